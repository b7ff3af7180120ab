//! Groups: the sets of addresses that rules name.

use std::fmt;

use ipnet::IpNet;

use crate::net::flow::Protocol;
use crate::policy::objects::{ContainerPort, IpBlock, LabelSelector, Labels, PodScope, Requirement};

/// A set of addresses that rules name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressGroup {
    /// Addresses of pods, by label.
    Pods(PodSet),
    /// Addresses of a prefix, less some.
    Block(IpBlock),
    /// Addresses of nodes with these labels.
    Nodes(LabelSelector),
    /// Addresses of the node with this name: the pod's own, in a rule of no policy.
    OwnNode(String),
    /// Addresses of pods with this container port, among those that some rule asks for a port of this name.
    Port {
        /// Name of the container port.
        name: String,
        /// Its protocol.
        protocol: Protocol,
        /// Its number.
        number: u16,
    },
}

/// Pods by namespace and label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSet {
    /// Where they are.
    pub namespaces: NamespaceScope,
    /// Their labels.
    pub pods: LabelSelector,
}

/// Namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceScope {
    /// The one with this name.
    Named(String),
    /// Those with these labels.
    Matching(LabelSelector),
}

/// A port by name, as a rule writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortName {
    /// The name.
    pub(crate) name: String,
    /// `None` is the container port's own.
    pub(crate) protocol: Option<Protocol>,
}

impl PortName {
    /// Whether a container port goes by this name.
    pub(crate) fn is(&self, name: &str, protocol: Protocol) -> bool {
        self.name == name && self.protocol.is_none_or(|own| own == protocol)
    }

    /// Whether a container port goes by this name.
    pub(crate) fn is_of(&self, port: &ContainerPort) -> bool {
        port.name.as_ref().is_some_and(|name| self.is(name, port.protocol))
    }
}

impl NamespaceScope {
    /// Whether a namespace is one of them.
    pub(crate) fn covers(&self, name: &str, labels: &Labels) -> bool {
        match self {
            NamespaceScope::Named(named) => named == name,
            NamespaceScope::Matching(selector) => selector.matches(labels),
        }
    }
}

impl From<&PodScope> for PodSet {
    fn from(scope: &PodScope) -> PodSet {
        PodSet { namespaces: NamespaceScope::Matching(scope.namespaces.clone()), pods: scope.pods.clone() }
    }
}

impl AddressGroup {
    /// The group of a block, whatever the order in which its exceptions were written.
    pub(crate) fn block(block: &IpBlock) -> AddressGroup {
        let mut except: Vec<_> = block.except.iter().map(IpNet::trunc).collect();
        except.retain(|except| block.cidr.contains(except));
        except.sort_unstable();
        except.dedup();
        AddressGroup::Block(IpBlock { cidr: block.cidr.trunc(), except })
    }
}

impl fmt::Display for AddressGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressGroup::Pods(set) => set.fmt(f),
            AddressGroup::Block(block) => {
                write!(f, "{}", block.cidr)?;
                for (i, except) in block.except.iter().enumerate() {
                    write!(f, "{}{except}", if i == 0 { " except " } else { ", " })?;
                }
                Ok(())
            }
            AddressGroup::Nodes(selector) if selector.is_everything() => f.write_str("all nodes"),
            AddressGroup::Nodes(selector) => write!(f, "nodes {}", Text(selector)),
            AddressGroup::OwnNode(name) => write!(f, "node {name}"),
            AddressGroup::Port { name, protocol, number } => {
                write!(f, "pods whose port {name} is {protocol} {number}")
            }
        }
    }
}

impl fmt::Display for PodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pods.is_everything() {
            f.write_str("all pods")?;
        } else {
            write!(f, "pods {}", Text(&self.pods))?;
        }
        match &self.namespaces {
            NamespaceScope::Named(name) => write!(f, " in namespace {name}"),
            NamespaceScope::Matching(selector) if selector.is_everything() => {
                f.write_str(" in all namespaces")
            }
            NamespaceScope::Matching(selector) => write!(f, " in namespaces {}", Text(selector)),
        }
    }
}

/// A selector as `kubectl --selector` writes it.
struct Text<'a>(&'a LabelSelector);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.0.requirements.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match requirement {
                Requirement::In { key, values } if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Requirement::In { key, values } => write!(f, "{key} in ({})", values.join(","))?,
                Requirement::NotIn { key, values } => write!(f, "{key} notin ({})", values.join(","))?,
                Requirement::Exists { key } => f.write_str(key)?,
                Requirement::DoesNotExist { key } => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}
