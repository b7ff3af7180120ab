//! Node of a lab: a namespace of its own for the pods' host ends and the switch that connects them.
//!
//! Packet filters, sysctls, traffic control and routing tables belong to the namespace, so that the host's
//! have no influence on a test, and the namespace removes them all.

use std::io;
use std::process::{Command, Output};

use super::GATEWAY_V4;
use super::LabError;
use super::error::{Context, write_setting};
use super::host_ends::move_host_ends;
use super::journal::Journal;
use super::namespace::Namespace;
use crate::dataplane::Mac;
use crate::netlink::RouteSocket;

/// A namespace with the pods' host ends. Dropped, it is removed, which disconnects the pods.
#[derive(Debug)]
pub struct Node {
    journal: Journal,
    namespace: Namespace,
}

impl Node {
    pub(super) fn up(journal: &Journal) -> Result<Node, LabError> {
        let namespace = Namespace::create(&journal.node_netns(), &journal.mark())?;
        let node = Node { journal: journal.clone(), namespace };
        node.take_host_ends()?;
        Ok(node)
    }

    /// Network namespace of the node.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs `f` on a thread inside the node, and waits for it.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.run(f)
    }

    /// Runs a program inside the node, and collects its output.
    pub fn output(&self, command: &mut Command) -> Result<Output, LabError> {
        let ran: io::Result<Output> = self.run(|| command.output())?;
        ran.context(|| format!("start {}", command.get_program().display()))
    }

    /// Makes the node's kernel route between the pods, as their IPv4 gateway with this Ethernet address on
    /// every host end.
    pub fn route(&self, gateway: Mac) -> Result<(), LabError> {
        self.run(|| {
            write_setting("/proc/sys/net/ipv4/ip_forward", "1")?;
            let kernel = RouteSocket::open()?;
            for pod in &self.journal.pods {
                let name = &pod.host_interface;
                kernel.set_mac(name, gateway)?;
                kernel.add_address(name, GATEWAY_V4.into())?;
                for address in pod.addresses.iter().filter(|address| address.is_ipv4()) {
                    kernel.add_link_route(name, (*address).into())?;
                }
            }
            Ok(())
        })?
    }

    fn take_host_ends(&self) -> Result<(), LabError> {
        let names = move_host_ends(&self.journal, &self.namespace)?;
        self.run(|| {
            for name in &names {
                write_setting(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
            }
            let kernel = RouteSocket::open()?;
            names.iter().try_for_each(|name| Ok(kernel.set_up(name)?))
        })?
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.namespace.remove() {
            // The teardown of the lab removes the rest, which the journal names.
            eprintln!("lab {}: {error}", self.journal.id);
        }
    }
}
