//! Differences between the Services of the running switch and others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use crate::control::protocol::ServicesReport;
use crate::printable;
use crate::tables::{ServicePort, ServicePortName, ServiceTable};

/// Most addresses of a change that a line shows. JSON has all.
const ADDRESSES_SHOWN: usize = 8;

/// Changes of Services.
#[derive(Debug, Default, Serialize)]
pub(super) struct ServiceChanges {
    /// Addresses at which node ports are served, before and after, if they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_addresses: Option<[Vec<IpAddr>; 2]>,
    /// Ports that differ, by name.
    ports: Vec<ServiceChange>,
}

/// Change of one port of a Service.
#[derive(Debug, Serialize)]
struct ServiceChange {
    service: ServicePortName,
    /// The port in the running switch; `None` if it comes.
    before: Option<ServicePort>,
    /// The port in the manifests; `None` if it goes.
    after: Option<ServicePort>,
}

impl ServiceChanges {
    /// Compares the Services of the running switch with those of manifests.
    pub(super) fn between(running: &ServicesReport, new: &ServiceTable) -> ServiceChanges {
        let old: BTreeMap<_, _> = running.ports.iter().map(|found| (&found.service, &found.port)).collect();
        let names: BTreeSet<&ServicePortName> = old.keys().copied().chain(new.ports.keys()).collect();
        let ports = names.into_iter().filter(|name| old.get(name).copied() != new.ports.get(*name));
        let change = |name: &ServicePortName| ServiceChange {
            service: name.clone(),
            before: old.get(name).map(|port| ServicePort::clone(port)),
            after: new.ports.get(name).cloned(),
        };
        // A switch without Services has no addresses for them either.
        let is_same_node =
            running.node_addresses == new.node_addresses || running.since.is_none() && new.ports.is_empty();
        let addresses = || [running.node_addresses.clone(), new.node_addresses.clone()];
        ServiceChanges { node_addresses: (!is_same_node).then(addresses), ports: ports.map(change).collect() }
    }

    /// Whether nothing changes.
    pub(super) fn is_empty(&self) -> bool {
        self.node_addresses.is_none() && self.ports.is_empty()
    }

    /// Changes as text, a port in a line with its changes below: empty without one.
    pub(super) fn text(&self) -> String {
        let node = self.node_addresses.iter().map(|[before, after]| {
            format!("~ changes the node's addresses\n{}", set_change("node ports at", before, after))
        });
        node.chain(self.ports.iter().map(ServiceChange::text)).collect()
    }
}

impl ServiceChange {
    fn text(&self) -> String {
        let name = self.service.to_string();
        let title = format!("{} ({})", printable::line(&name), self.service.protocol);
        let nothing = ServicePort::default();
        let (turn, before, after) = match (&self.before, &self.after) {
            (None, Some(after)) => ("+ serves ", &nothing, after),
            (Some(before), None) => ("- ends   ", before, &nothing),
            (Some(before), Some(after)) => ("~ changes", before, after),
            (None, None) => return String::new(),
        };
        let short = |port: &ServicePort| port.short_circuit_backends.clone().unwrap_or_default();
        let mut text = format!("{turn} {title}\n");
        text += &set_change("cluster addresses", &before.cluster, &after.cluster);
        text += &set_change("external addresses", &before.external, &after.external);
        text += &value_change("node port", before.node_port, after.node_port);
        text += &set_change("backends", &before.internal_backends, &after.internal_backends);
        let has_outside = |port: &ServicePort| !port.external.is_empty() || port.node_port.is_some();
        if has_outside(before) || has_outside(after) {
            text += &set_change("backends for outside", &before.external_backends, &after.external_backends);
            text += &set_change("backends of this node's pods for outside", &short(before), &short(after));
        }
        text += &value_change("affinity in seconds", before.affinity_seconds, after.affinity_seconds);
        text
    }
}

/// Line on the members that come and go, if any do.
fn set_change<T: Ord + ToString>(name: &str, before: &[T], after: &[T]) -> String {
    let (old, new): (BTreeSet<&T>, BTreeSet<&T>) = (before.iter().collect(), after.iter().collect());
    let side = |sign: char, members: Vec<&T>| -> Option<String> {
        let shown =
            members.iter().take(ADDRESSES_SHOWN).map(|member| format!("{sign}{}", member.to_string()));
        let shown: Vec<String> = shown.collect();
        let more = match members.len().saturating_sub(ADDRESSES_SHOWN) {
            0 => String::new(),
            count => format!(" and {sign}{count} more"),
        };
        (!shown.is_empty()).then(|| format!("{}{more}", shown.join(" ")))
    };
    let sides = [
        side('+', new.difference(&old).copied().collect()),
        side('-', old.difference(&new).copied().collect()),
    ];
    let sides: Vec<String> = sides.into_iter().flatten().collect();
    if sides.is_empty() { String::new() } else { format!("    {name}: {}\n", sides.join(" ")) }
}

/// Line on a value that changes.
fn value_change<T: PartialEq + ToString>(name: &str, before: Option<T>, after: Option<T>) -> String {
    if before == after {
        return String::new();
    }
    let shown = |value: Option<T>| value.map_or("none".to_owned(), |value| value.to_string());
    format!("    {name}: {} to {}\n", shown(before), shown(after))
}
