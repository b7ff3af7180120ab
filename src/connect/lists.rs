//! Backends of Services as the sockets' maps have them, and the changes from one set of Services to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::limits::{SOCKET_BACKENDS_MAX, SOCKET_SERVICES_MAX};
use crate::net::flow::Protocol;
use crate::tables::{ServicePort, ServicePortName, ServiceSet};

/// Address and port of a Service, with its protocol.
pub(super) type End = (Protocol, SocketAddr);

/// Backends of some addresses of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    /// Number of the list, which no other one has had.
    pub version: u32,
    /// Addresses of the Service with these backends.
    pub ends: Vec<End>,
    /// Backends, that of all flows first if there is one.
    pub backends: Vec<End>,
    /// Whether all flows go to the first one.
    pub is_sticky: bool,
}

/// Lists that the maps have.
#[derive(Debug, Default)]
pub(super) struct Lists {
    services: Option<Arc<ServiceSet>>,
    of_port: BTreeMap<Arc<ServicePortName>, Vec<List>>,
    /// Owner of each address.
    owners: BTreeMap<End, u32>,
    backends: usize,
    last_version: u32,
    /// Addresses without room, by port.
    left_out: BTreeMap<Arc<ServicePortName>, usize>,
}

/// Change of the maps.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Lists to set. They take over the addresses of others.
    pub set: Vec<List>,
    /// Addresses that no Service has any more, and lists that no address has.
    pub removed: (Vec<End>, Vec<List>),
    /// Addresses of Services that have no room.
    pub left_out: usize,
}

impl Lists {
    /// Goes on to other Services.
    pub(super) fn change(&mut self, services: &Arc<ServiceSet>) -> Change {
        let before = self.services.replace(services.clone()).unwrap_or_default();
        let mut changed: BTreeMap<Arc<ServicePortName>, Option<Arc<ServicePort>>> = BTreeMap::new();
        if before.node_addresses() == services.node_addresses() {
            before.ports().for_each_difference(services.ports(), |name, _, after| {
                changed.insert(name.clone(), after.cloned());
            });
        } else {
            let all = before.ports().iter().chain(services.ports().iter()).map(|(name, _)| name);
            changed.extend(all.map(|name| (name.clone(), services.ports().get(&**name).cloned())));
        }
        // Those without room may have some now.
        let waiting = std::mem::take(&mut self.left_out);
        changed.extend(waiting.into_keys().map(|name| {
            let port = services.ports().get(&*name).cloned();
            (name, port)
        }));
        let mut change = Change::default();
        for name in changed.keys() {
            let gone = self.of_port.remove(name).unwrap_or_default();
            self.backends -= gone.iter().map(|list| list.backends.len()).sum::<usize>();
            change.removed.1.extend(gone);
        }
        for (name, port) in changed {
            let Some(port) = port else { continue };
            let lists = self.lists(&name, &port, services.node_addresses());
            let ends: usize = lists.iter().map(|list| list.ends.len()).sum();
            let backends: usize = lists.iter().map(|list| list.backends.len()).sum();
            // Lists that go are there until those that come have taken over.
            if self.owners.len() + ends > SOCKET_SERVICES_MAX
                || self.backends + backends > SOCKET_BACKENDS_MAX / 2
            {
                self.left_out.insert(name, ends);
                continue;
            }
            self.backends += backends;
            for list in &lists {
                self.owners.extend(list.ends.iter().map(|end| (*end, list.version)));
            }
            change.set.extend(lists.iter().cloned());
            self.of_port.insert(name, lists);
        }
        for list in &change.removed.1 {
            for end in &list.ends {
                if self.owners.get(end) == Some(&list.version) {
                    self.owners.remove(end);
                    change.removed.0.push(*end);
                }
            }
        }
        change.left_out = self.left_out.values().sum();
        change
    }

    /// Lists of a port of a Service: one for each family of its addresses inside the cluster, and of the others.
    fn lists(&mut self, name: &ServicePortName, port: &ServicePort, node: &[IpAddr]) -> Vec<List> {
        let outer = port.short_circuit_backends.as_ref().unwrap_or(&port.external_backends);
        // An address of the node is the node's, but for a node port.
        let external = port.external.iter().filter(|end| !node.contains(&end.ip())).copied();
        let node_ports = port
            .node_port
            .into_iter()
            .flat_map(|number| node.iter().map(move |address| SocketAddr::new(*address, number)));
        let groups = [
            (port.cluster.clone(), &port.internal_backends),
            (
                external.chain(node_ports).chain(port.mapped.iter().copied()).collect::<Vec<SocketAddr>>(),
                outer,
            ),
        ];
        let mut lists = Vec::new();
        for ((ends, backends), is_v4) in
            groups.iter().flat_map(|group| [true, false].map(|is_v4| (group, is_v4)))
        {
            let of_family = |all: &[SocketAddr]| -> BTreeSet<End> {
                let all = all.iter().filter(|end| end.is_ipv4() == is_v4);
                all.map(|end| (name.protocol, *end)).collect()
            };
            let ends: Vec<End> = of_family(ends).into_iter().collect();
            if ends.is_empty() {
                continue;
            }
            let mut backends: Vec<End> = of_family(backends).into_iter().collect();
            let is_sticky = port.affinity_seconds.is_some();
            if is_sticky {
                // The node is one client, which keeps its backend as long as there is that one, and after a restart.
                let weight = |backend: &End| weight(name, node, backend);
                backends.sort_by_key(|backend| std::cmp::Reverse(weight(backend)));
            }
            self.last_version += 1;
            lists.push(List { version: self.last_version, ends, backends, is_sticky });
        }
        lists
    }
}

/// Weight of a backend of a Service for a node, the same in all processes: the highest one has the node's flows (highest random
/// weight).
fn weight(name: &ServicePortName, node: &[IpAddr], backend: &End) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&name.namespace, &name.name, &name.port, node, backend.1).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::ServiceTable;

    fn name(of: &str) -> ServicePortName {
        ServicePortName {
            namespace: "shop".to_owned(),
            name: of.to_owned(),
            port: None,
            protocol: Protocol::TCP,
        }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn set(ports: Vec<(&str, ServicePort)>) -> Arc<ServiceSet> {
        let node_addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).to_vec();
        let ports = ports.into_iter().map(|(of, port)| (name(of), port)).collect();
        Arc::new(ServiceSet::new(&ServiceTable { node_addresses, ports }).unwrap())
    }

    fn shop() -> ServicePort {
        let backends = addresses(&["10.0.0.2:8080", "10.0.0.3:8080", "[fd00::2]:8080"]);
        ServicePort {
            cluster: addresses(&["10.96.0.1:80", "[fd00:96::1]:80"]),
            external: addresses(&["203.0.113.9:80", "192.0.2.1:22"]),
            node_port: Some(30080),
            internal_backends: backends.clone(),
            external_backends: backends[..1].to_vec(),
            ..ServicePort::default()
        }
    }

    fn texts(ends: &[End]) -> Vec<String> {
        ends.iter().map(|(_, end)| end.to_string()).collect()
    }

    #[test]
    fn a_port_has_a_list_for_each_family_inside_and_outside() {
        let change = Lists::default().change(&set(vec![("web", shop())]));
        let seen: Vec<_> = change.set.iter().map(|list| (texts(&list.ends), texts(&list.backends))).collect();
        let expected = [
            (vec!["10.96.0.1:80"], vec!["10.0.0.2:8080", "10.0.0.3:8080"]),
            (vec!["[fd00:96::1]:80"], vec!["[fd00::2]:8080"]),
            (vec!["192.0.2.1:30080", "203.0.113.9:80"], vec!["10.0.0.2:8080"]),
            (vec!["[2001:db8::1]:30080"], vec![]),
        ];
        let expected = expected.map(|(ends, backends)| {
            [ends, backends].map(|list| list.iter().map(ToString::to_string).collect())
        });
        assert_eq!(seen, expected.map(|[ends, backends]: [Vec<String>; 2]| (ends, backends)));
    }

    #[test]
    fn what_did_not_change_stays_and_an_address_that_moves_is_never_removed() {
        let mut lists = Lists::default();
        let other = || ServicePort { cluster: addresses(&["10.96.0.7:80"]), ..ServicePort::default() };
        let first = set(vec![("web", shop()), ("other", other())]);
        lists.change(&first);
        let same = lists.change(&first);
        assert!(same.set.is_empty() && same.removed.0.is_empty() && same.removed.1.is_empty(), "{same:?}");
        // The address of one Service becomes that of another one.
        let moved = lists.change(&set(vec![("web", shop()), ("next", other())]));
        assert_eq!((moved.set.len(), moved.removed.0.len(), moved.removed.1.len()), (1, 0, 1));
        let gone = lists.change(&set(vec![("web", shop())]));
        assert_eq!(texts(&gone.removed.0), ["10.96.0.7:80"]);
        let versions: BTreeSet<u32> =
            moved.set.iter().chain(&gone.removed.1).map(|list| list.version).collect();
        assert_eq!(versions.len(), 1);
    }

    #[test]
    fn the_node_keeps_its_backend_of_a_service_with_affinity_as_long_as_there_is_that_one() {
        let with = |backends: &[&str]| {
            set(vec![(
                "web",
                ServicePort {
                    cluster: addresses(&["10.96.0.1:80"]),
                    internal_backends: addresses(backends),
                    affinity_seconds: Some(10),
                    ..ServicePort::default()
                },
            )])
        };
        let all = ["10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80"];
        let first =
            |backends: &[&str]| texts(&Lists::default().change(&with(backends)).set[0].backends)[0].clone();
        let kept = first(&all);
        for gone in all {
            let rest: Vec<&str> = all.into_iter().filter(|other| *other != gone).collect();
            assert_eq!(first(&rest) == kept, gone != kept, "without {gone}");
        }
    }
}
