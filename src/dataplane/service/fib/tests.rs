use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::tables::ServiceTable;

fn name(number: u8) -> ServicePortName {
    let protocol = [Protocol::TCP, Protocol::UDP, Protocol::SCTP][usize::from(number) % 3];
    ServicePortName { namespace: "shop".to_owned(), name: format!("service{number}"), port: None, protocol }
}

/// Pods of this node, which come and go.
fn pods(generation: u32) -> &'static [&'static str] {
    &["10.0.0.3", "fd00::0"][..generation as usize % 3]
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn fib(table: &ServiceTable, before: Option<&Arc<ServiceFib>>, generation: u32) -> Option<Arc<ServiceFib>> {
    fib_with(&[], table, before, generation)
}

/// Lays out Services on a node with these pods.
fn fib_with(
    pods: &[&str],
    table: &ServiceTable,
    before: Option<&Arc<ServiceFib>>,
    generation: u32,
) -> Option<Arc<ServiceFib>> {
    let set = Arc::new(ServiceSet::new(table).unwrap());
    let local = || local(pods, &[]);
    ServiceFib::next(before, Some(&set), local, Generation(generation))
}

/// Port of a Service by few numbers.
fn port(cluster: u8, external: Option<u8>, node_port: bool, backends: u8) -> ServicePort {
    let backends: Vec<SocketAddr> = (0..backends)
        .flat_map(|n| [SocketAddr::from(([10, 0, 0, n + 2], 8080)), address(&format!("[fd00::{n}]:8080"))])
        .collect();
    ServicePort {
        cluster: vec![
            SocketAddr::from(([10, 96, 0, cluster], 80)),
            address(&format!("[fd00:96::{cluster}]:80")),
        ],
        external: external.into_iter().map(|host| SocketAddr::from(([192, 0, 2, host], 80))).collect(),
        node_port: node_port.then_some(30_000 + u16::from(cluster)),
        mapped: external
            .map(|_| SocketAddr::from(([192, 0, 2, 99], 20_000 + u16::from(cluster))))
            .into_iter()
            .collect(),
        external_backends: backends[..backends.len() / 2].to_vec(),
        internal_backends: backends,
        ..ServicePort::default()
    }
}

/// The port that serves a destination, by a walk over the document: its name, and whether it is external.
fn naive(table: &ServiceTable, to: SocketAddr, protocol: Protocol) -> Option<(ServicePortName, bool)> {
    let of = |(name, port): (&ServicePortName, &ServicePort)| {
        let is_external = if name.protocol != protocol {
            return None;
        } else if port.cluster.contains(&to) {
            false
        } else if port.external.contains(&to)
            || (port.node_port == Some(to.port()) || port.mapped.contains(&to))
                && table.node_addresses.contains(&to.ip())
        {
            true
        } else {
            return None;
        };
        Some((name.clone(), is_external))
    };
    table.ports.iter().find_map(of)
}

/// The Services' part in an address, by a walk over the document.
fn naive_owner(table: &ServiceTable, of: IpAddr) -> Option<Owner> {
    let has = |list: fn(&ServicePort) -> &[SocketAddr]| {
        table.ports.values().flat_map(list).any(|address| address.ip() == of)
    };
    if has(|port| &port.cluster) {
        Some(Owner::Cluster)
    } else if has(|port| &port.external) {
        Some(Owner::External)
    } else {
        (!table.ports.is_empty() && table.node_addresses.contains(&of)).then_some(Owner::Node)
    }
}

/// Change of one port of a Service: external host, node port and backends; `None` removes it.
type Change = Option<(Option<u8>, bool, u8)>;

/// Changes the port of this number, at the addresses of a slot.
fn play(table: &mut ServiceTable, number: u8, slot: u8, change: Change) {
    let last = table.ports.remove(&name(number));
    let Some((external, node_port, backends)) = change else { return };
    let external = external.map(|host| host * 12 + slot);
    let next = port(slot, external, node_port, backends);
    let is_other = |(other, port): (&ServicePortName, &ServicePort)| {
        (other.protocol == name(number).protocol && port.cluster == next.cluster).then(|| other.clone())
    };
    // The Service that has had the addresses gets those of this one, or is removed.
    if let Some(other) = table.ports.iter().find_map(is_other) {
        match last {
            Some(last) => drop(table.ports.insert(other, last)),
            None => drop(table.ports.remove(&other)),
        }
    }
    table.ports.insert(name(number), next);
}

/// Destinations of which some have Services.
fn destinations() -> impl Iterator<Item = SocketAddr> {
    let hosts = (0..36).map(|host| format!("192.0.2.{host}:80"));
    let own = |n| {
        [
            format!("10.96.0.{n}:80"),
            format!("[fd00:96::{n}]:80"),
            format!("192.0.2.99:{}", 30_000 + n),
            format!("192.0.2.99:{}", 20_000 + n),
        ]
    };
    hosts.chain((0..12).flat_map(own)).map(|to| address(&to))
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    /// A destination of which packets become something else has the epoch of the change, wherever a flow has looked for it.
    #[test]
    fn a_destination_that_changes_has_the_epoch_of_its_change(
        steps in prop::collection::vec(
            (0..12u8, 0..12u8, prop::option::of((prop::option::of(0..3u8), any::<bool>(), 0..5u8)), any::<bool>(), 0..3u32),
            2..20,
        ),
    ) {
        let mut table = ServiceTable::default();
        let mut last: Option<(ServiceTable, Arc<ServiceFib>)> = None;
        for ((number, slot, change, has_node, local), step) in steps.into_iter().zip(1..) {
            table.node_addresses = if has_node { vec!["192.0.2.99".parse().unwrap()] } else { Vec::new() };
            play(&mut table, number, slot, change);
            let next = fib_with(pods(local), &table, last.as_ref().map(|(_, fib)| fib), step);
            let Some(next) = next else {
                last = None;
                continue;
            };
            let epochs: Vec<Generation> = next.page_epochs().collect();
            if let Some((before, fib)) = &last {
                let answer = |table: &ServiceTable, to, protocol| {
                    naive(table, to, protocol).map(|(name, is_external)| (table.ports[&name].clone(), is_external))
                };
                for to in destinations() {
                    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
                        let [was, is] = [before, &table].map(|table| answer(table, to, protocol));
                        let page = usize::from(fib.page_of(pack(to.ip()), protocol, to.port()));
                        prop_assert!(was == is || epochs[page] == Generation(step), "{} {} {}", to, protocol.0, step);
                    }
                }
            }
            last = Some((table.clone(), next));
        }
    }

    /// Lookups after any changes agree with a walk over the document, and with a fresh layout.
    #[test]
    fn lookups_agree_with_the_document(
        steps in prop::collection::vec(
            (0..12u8, 0..12u8, prop::option::of((prop::option::of(0..3u8), any::<bool>(), 0..5u8)), any::<bool>()),
            1..20,
        ),
    ) {
        let mut table = ServiceTable::default();
        let mut last = None;
        for (step, (number, slot, change, has_node)) in steps.into_iter().enumerate() {
            table.node_addresses = if has_node { vec!["192.0.2.99".parse().unwrap()] } else { Vec::new() };
            play(&mut table, number, slot, change);
            last = fib_with(pods(step as u32), &table, last.as_ref(), step as u32);
            for to in destinations() {
                let owner = last.as_ref().and_then(|fib| fib.owner(pack(to.ip())));
                prop_assert_eq!(owner, naive_owner(&table, to.ip()));
                for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
                    let found = last.as_ref().and_then(|fib| fib.find(pack(to.ip()), protocol, to.port(), true));
                    let expected = naive(&table, to, protocol);
                    let is_node_port = last.as_ref().is_some_and(|fib| fib.has_node_port(pack(to.ip()), protocol, to.port()));
                    let has_node_port = |(name, port): (&ServicePortName, &ServicePort)| {
                        let is_mapped = port.mapped.contains(&to) && table.node_addresses.contains(&to.ip());
                        name.protocol == protocol && (port.node_port == Some(to.port()) || is_mapped)
                    };
                    prop_assert_eq!(is_node_port, table.ports.iter().any(has_node_port));
                    let backends_for = |is_external| if is_external { BackendsFor::Outside } else { BackendsFor::Cluster };
                    prop_assert_eq!(found.map(|found| found.backends), expected.as_ref().map(|(_, external)| backends_for(*external)));
                    let is_at_node = table.node_addresses.contains(&to.ip());
                    let unspecified: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                    let at = if is_at_node { SocketAddr::new(unspecified, to.port()) } else { to };
                    let has = |at| last.as_ref().is_some_and(|fib| fib.uplink_destinations().ports.contains(&(protocol, at)));
                    let taken = has(at) || is_at_node && has(to);
                    let has_pod = |(name, is_external): &(ServicePortName, bool)| {
                        *is_external && table.ports[name].external_backends.iter().any(|backend| backend.is_ipv4() == to.is_ipv4() && pods(step as u32).iter().any(|pod| backend.ip() == pod.parse::<IpAddr>().unwrap()))
                    };
                    let is_strange = !is_at_node && to.ip() == IpAddr::from([192, 0, 2, 99]);
                    prop_assert!(taken == expected.as_ref().is_some_and(has_pod) || is_strange);
                    let (Some(found), Some((name, is_external))) = (found, expected) else { continue };
                    prop_assert!(last.as_ref().is_some_and(|fib| fib.may_serve(pack(to.ip()))));
                    let port = &table.ports[&name];
                    let backends = if is_external { &port.external_backends } else { &port.internal_backends };
                    for hash in [0, u64::MAX / 2, u64::MAX] {
                        let pick = found.entry.pick(found.backends, to.is_ipv4(), false, hash);
                        let pick = pick.map(|pick| SocketAddr::new(crate::net::address::unpack(pick.address), pick.port));
                        let mut of_family = backends.iter().filter(|backend| backend.is_ipv4() == to.is_ipv4());
                        if let Some(pick) = pick {
                            prop_assert!(of_family.any(|backend| *backend == pick));
                        } else {
                            prop_assert_eq!(of_family.count(), 0);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_change_shares_what_it_does_not_write_and_counters_go_on() {
    let mut table = ServiceTable::default();
    (0..200).for_each(|number| drop(table.ports.insert(name(number), port(number, None, false, 3))));
    let first = fib(&table, None, 1).unwrap();
    let found = first.find(pack("10.96.0.7".parse().unwrap()), name(7).protocol, 80, true).unwrap();
    let pick = found.entry.pick(BackendsFor::Cluster, true, false, 5).unwrap();
    found.entry.count_opened(BackendsFor::Cluster, true, pick.index);
    table.ports.insert(name(7), port(7, None, false, 4));
    let second = fib(&table, Some(&first), 2).unwrap();
    let copied =
        first.pages.iter().zip(&second.pages).filter(|(one, other)| !Arc::ptr_eq(one, other)).count();
    assert!((1..=2).contains(&copied), "{copied} pages");
    assert_eq!(second.page_epochs().filter(|epoch| *epoch == Generation(2)).count(), copied);
    assert!(Arc::ptr_eq(&first.filter, &second.filter));
    for (number, page) in second.pages.iter().enumerate() {
        let of = |place: &Place| page_and_tag(place.address, place.port, place.protocol);
        let tags: Vec<_> = page.places.iter().map(of).collect();
        assert_eq!(tags, page.tags.iter().map(|tag| (number, *tag)).collect::<Vec<_>>());
    }
    assert_eq!((first.revision, second.revision), (1, 2));
    let flows = &second.flows()[&name(7)];
    assert_eq!((flows.total, flows.backends.len(), flows.backends.values().sum::<u64>()), (1, 8, 1));
    assert_eq!(fib(&ServiceTable::default(), Some(&second), 3).map(|_| ()), None);
}

#[test]
fn an_address_moves_from_one_service_to_another_in_one_change() {
    // The new owner comes before and behind the last one, in the order of names.
    for [from, to] in [[6, 3], [3, 6]] {
        let mut table = ServiceTable::default();
        table.ports.insert(name(from), port(9, Some(9), true, 2));
        table.node_addresses = vec!["192.0.2.99".parse().unwrap()];
        let first = fib(&table, None, 1).unwrap();
        let moved = table.ports.remove(&name(from)).unwrap();
        table.ports.insert(name(to), moved);
        let second = fib(&table, Some(&first), 2).unwrap();
        for at in ["10.96.0.9:80", "192.0.2.9:80", "192.0.2.99:30009"].map(address) {
            assert!(second.find(pack(at.ip()), name(to).protocol, at.port(), true).is_some(), "{at}");
        }
        assert!(second.flows().contains_key(&name(to)));
    }
}

/// Addresses of pods and of the node.
fn local(pods: &[&str], node: &[&str]) -> LocalAddresses {
    let addresses = |list: &[&str]| -> Vec<Address> {
        list.iter().map(|address| pack(address.parse().unwrap())).collect()
    };
    LocalAddresses::new(
        addresses(pods).into_iter(),
        addresses(node).into_iter(),
        std::iter::empty(),
        [false; 2],
    )
}

#[test]
fn a_service_takes_no_address_from_a_pod_or_the_node() {
    let mut table =
        ServiceTable { node_addresses: vec!["192.0.2.7".parse().unwrap()], ..ServiceTable::default() };
    table.ports.insert(name(0), port(1, Some(7), true, 2));
    table.ports.insert(name(3), port(2, Some(8), false, 2));
    let set = Arc::new(ServiceSet::new(&table).unwrap());
    let lay_out = |before: Option<&Arc<ServiceFib>>, local: LocalAddresses, generation| {
        ServiceFib::next(before, Some(&set), || local, Generation(generation)).unwrap()
    };
    let owners = |fib: &ServiceFib| {
        ["10.96.0.1", "192.0.2.7", "192.0.2.8"].map(|text| fib.owner(pack(text.parse().unwrap())))
    };
    let has = |fib: &ServiceFib, at: &str| {
        let at = address(at);
        fib.find(pack(at.ip()), Protocol::TCP, at.port(), true).is_some()
    };
    // A node port stays at the node's address, which is nobody's external address.
    let first = lay_out(None, local(&[], &["192.0.2.7"]), 1);
    assert_eq!(owners(&first), [Some(Owner::Cluster), Some(Owner::Node), Some(Owner::External)]);
    assert!(!has(&first, "192.0.2.7:80") && has(&first, "192.0.2.7:30001") && has(&first, "192.0.2.8:80"));
    // Pods come.
    let second = lay_out(Some(&first), local(&["10.96.0.1", "192.0.2.7", "192.0.2.8"], &[]), 2);
    assert_eq!(owners(&second), [None; 3]);
    assert!(!["10.96.0.1:80", "192.0.2.7:30001", "192.0.2.8:80"].into_iter().any(|at| has(&second, at)));
    // The filter has the node's addresses, whoever has had them before.
    let bare = ServiceTable { ports: [(name(0), port(1, None, true, 2))].into(), ..table.clone() };
    let bare = Arc::new(ServiceSet::new(&bare).unwrap());
    let lay_out_bare = |before: Option<&Arc<ServiceFib>>, local: LocalAddresses| {
        ServiceFib::next(before, Some(&bare), || local, Generation(1)).unwrap()
    };
    let taken = lay_out_bare(None, local(&["192.0.2.7"], &[]));
    assert_eq!(taken.owner(pack("192.0.2.7".parse().unwrap())), None);
    assert!(lay_out_bare(Some(&taken), local(&[], &[])).may_serve(pack("192.0.2.7".parse().unwrap())));
    // They leave, and bound flows are as current as before.
    let third = lay_out(Some(&second), local(&[], &["192.0.2.7"]), 3);
    assert_eq!((owners(&third), third.revision), (owners(&first), first.revision));
    assert!(Arc::ptr_eq(&third, &lay_out(Some(&third), local(&[], &["192.0.2.7"]), 4)));
}

#[test]
fn backends_of_this_node_are_laid_out_when_pods_come_and_go() {
    let mut table = ServiceTable::default();
    let backends =
        (0..1000u16).map(|n| SocketAddr::from(([10, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]], 80)));
    let wide = ServicePort { internal_backends: backends.collect(), ..port(1, None, false, 0) };
    table.ports.insert(name(0), wide);
    table.ports.insert(name(3), port(2, None, false, 4));
    let set = Arc::new(ServiceSet::new(&table).unwrap());
    let lay_out = |before: Option<&Arc<ServiceFib>>, pods: &[&str], generation| {
        ServiceFib::next(before, Some(&set), || local(pods, &[]), Generation(generation)).unwrap()
    };
    let hashes = || (0..64u64).map(|n| n << 58);
    let local_picks = |fib: &ServiceFib| -> std::collections::BTreeSet<Address> {
        let picks =
            hashes().filter_map(|hash| fib.entries[&name(0)].pick(BackendsFor::Cluster, true, true, hash));
        picks.map(|pick| pick.address).collect()
    };
    let [one, other] = ["10.1.0.7", "10.1.2.9"].map(|text| pack(text.parse().unwrap()));
    let first = lay_out(None, &[], 1);
    assert!(local_picks(&first).is_empty());
    first.entries[&name(0)].count_opened(BackendsFor::Cluster, true, 3);
    let second = lay_out(Some(&first), &["10.1.0.7", "10.9.9.9"], 2);
    assert_eq!(local_picks(&second), [one].into());
    let third = lay_out(Some(&second), &["10.1.0.7", "10.1.2.9"], 3);
    let (entry, before) = (&third.entries[&name(0)], &first.entries[&name(0)]);
    assert_eq!(
        (local_picks(&third), entry.count(BackendsFor::Cluster, true, true)),
        ([one, other].into(), 2)
    );
    let pick = entry.pick(BackendsFor::Cluster, true, true, 0).unwrap();
    let next = entry.next(BackendsFor::Cluster, true, true, &pick).unwrap();
    assert_eq!(
        [pick.address, next.address].into_iter().collect::<std::collections::BTreeSet<_>>(),
        [one, other].into()
    );
    assert_eq!(entry.next(BackendsFor::Cluster, true, true, &next), Some(pick));
    // Other flows, other ports and the counters are as before.
    assert!(hashes().all(|hash| entry.pick(BackendsFor::Cluster, true, false, hash)
        == before.pick(BackendsFor::Cluster, true, false, hash)));
    assert!(Arc::ptr_eq(&first.entries[&name(3)], &third.entries[&name(3)]));
    assert_eq!(third.flows()[&name(0)].total, 1);
    assert!(local_picks(&lay_out(Some(&third), &[], 4)).is_empty());
    let prefix = || {
        LocalAddresses::new(
            [].into_iter(),
            [].into_iter(),
            ["10.1.2.9/32".parse().unwrap()].into_iter(),
            [false; 2],
        )
    };
    let routed = ServiceFib::next(Some(&third), Some(&set), prefix, Generation(5)).unwrap();
    assert_eq!(local_picks(&routed), [other].into());
}
