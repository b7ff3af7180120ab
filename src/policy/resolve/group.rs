//! Address groups: sets of addresses that rules refer to.

use std::fmt;

use ipnet::IpNet;

use crate::net::flow::Protocol;
use crate::policy::objects::{ContainerPort, IpBlock, LabelSelector, Labels, PodScope, Requirement};

/// Set of addresses that rules refer to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressGroup {
    /// Addresses of pods, by label.
    Pods(PodSet),
    /// Addresses of a prefix without its exceptions.
    Block(IpBlock),
    /// Addresses of nodes with these labels.
    Nodes(LabelSelector),
    /// Addresses of the node of a pod, by name. No policy contains this group; see
    /// [`OwnNode`](crate::tables::RuleOrigin::OwnNode).
    OwnNode(String),
    /// Addresses of pods with this container port, among those of which a rule names a port.
    Port {
        /// Name of the container port.
        name: String,
        /// Protocol.
        protocol: Protocol,
        /// Port number.
        number: u16,
    },
}

/// Pods by namespace and label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSet {
    /// Namespaces of the pods.
    pub namespaces: NamespaceScope,
    /// Labels of the pods.
    pub pods: LabelSelector,
}

/// Namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceScope {
    /// Namespace with this name.
    Named(String),
    /// Namespaces with these labels.
    Matching(LabelSelector),
}

/// Named port of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortName {
    /// Name.
    pub(crate) name: String,
    /// `None` is the protocol of the container port.
    pub(crate) protocol: Option<Protocol>,
}

impl PortName {
    /// Tests whether the name refers to a container port with this name and protocol.
    pub(crate) fn is(&self, name: &str, protocol: Protocol) -> bool {
        self.name == name && self.protocol.is_none_or(|own| own == protocol)
    }

    /// Tests whether the name refers to a container port.
    pub(crate) fn is_of(&self, port: &ContainerPort) -> bool {
        port.name.as_ref().is_some_and(|name| self.is(name, port.protocol))
    }
}

impl NamespaceScope {
    /// Tests whether the scope contains a namespace.
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
    /// Group of a block, independent of the order of its exceptions.
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

/// Selector in the syntax of `kubectl --selector`.
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
