use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::net::flow::Protocol;

fn name(number: usize) -> ServicePortName {
    ServicePortName {
        namespace: "shop".to_owned(),
        name: format!("service{number}"),
        port: None,
        protocol: [Protocol::TCP, Protocol::UDP][number % 2],
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn port(cluster: &str, backends: &[&str]) -> ServicePort {
    ServicePort {
        cluster: vec![address(cluster)],
        internal_backends: backends.iter().map(|backend| address(backend)).collect(),
        ..ServicePort::default()
    }
}

fn table(ports: impl IntoIterator<Item = (usize, ServicePort)>) -> ServiceTable {
    let ports = ports.into_iter().map(|(number, port)| (name(number), port)).collect();
    ServiceTable { node_addresses: vec!["192.0.2.1".parse().unwrap()], ports }
}

fn error(table: &ServiceTable) -> String {
    table.check().unwrap_err().to_string()
}

#[test]
fn addresses_that_no_packet_has_are_rejected() {
    for bad in
        ["10.96.0.1:0", "0.0.0.0:80", "127.0.0.1:80", "224.0.0.1:80", "[::]:80", "[ff02::1]:80", "[::1]:80"]
    {
        assert!(error(&table([(0, port(bad, &[]))])).contains("cluster has"), "{bad}");
        assert!(
            error(&table([(0, port("10.96.0.1:80", &[bad]))])).contains("internal_backends has"),
            "{bad}"
        );
    }
    assert!(error(&table([(0, port("[::ffff:10.96.0.1]:80", &[]))])).contains("cluster has"));
    let node_port = ServicePort { node_port: Some(0), ..ServicePort::default() };
    assert!(error(&table([(0, node_port)])).contains("node_port is 0"));
    let mut of_icmp = table([]);
    of_icmp.ports.insert(ServicePortName { protocol: Protocol::ICMP, ..name(0) }, ServicePort::default());
    assert!(error(&of_icmp).contains("protocol ICMP is not served"));
    let loopback =
        ServiceTable { node_addresses: vec!["127.0.0.1".parse().unwrap()], ..ServiceTable::default() };
    assert!(error(&loopback).contains("node_addresses has 127.0.0.1"));
}

#[test]
fn two_services_with_one_address_are_rejected_by_name() {
    let both = table([(0, port("10.96.0.1:80", &[])), (2, port("10.96.0.1:80", &[]))]);
    assert_eq!(
        error(&both),
        "services shop/service0 and shop/service2 both claim TCP 10.96.0.1:80: one of them must give it up"
    );
    // Another protocol, or another port, is another address.
    table([(0, port("10.96.0.1:80", &[])), (1, port("10.96.0.1:80", &[])), (2, port("10.96.0.1:81", &[]))])
        .check()
        .unwrap();
}

#[test]
fn more_entries_than_the_limits_are_rejected() {
    let backends = (0..=SERVICE_PORT_BACKENDS_MAX as u32)
        .map(|n| SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 80)));
    let crowded = ServicePort { internal_backends: backends.collect(), ..port("10.96.0.1:80", &[]) };
    assert!(error(&table([(0, crowded)])).contains("internal_backends of shop/service0 has 10001 entries"));
    let addresses = vec!["192.0.2.1".parse().unwrap(); NODE_ADDRESSES_MAX + 1];
    assert!(
        error(&ServiceTable { node_addresses: addresses, ..table([]) }).contains("above the limit of 64")
    );
}

#[test]
fn a_difference_changes_what_it_names_and_a_bad_one_nothing() {
    let set = ServiceSet::new(&table([
        (0, port("10.96.0.1:80", &["10.0.0.2:8080"])),
        (2, port("10.96.0.2:80", &[])),
    ]))
    .unwrap();
    let before = set.table();
    let diff = |set: &[(usize, ServicePort)], removed: &[usize]| ServicesDiff {
        set: set.iter().map(|(number, port)| (name(*number), port.clone())).collect(),
        removed: removed.iter().map(|number| name(*number)).collect(),
        ..ServicesDiff::default()
    };
    // The addresses of two Services change places.
    let swapped =
        set.changed(&diff(&[(0, port("10.96.0.2:80", &[])), (2, port("10.96.0.1:80", &[]))], &[])).unwrap();
    assert_eq!(swapped.table(), table([(0, port("10.96.0.2:80", &[])), (2, port("10.96.0.1:80", &[]))]));
    let taken = set.changed(&diff(&[(4, port("10.96.0.1:80", &[]))], &[])).unwrap_err();
    assert!(matches!(taken, ServicesError::Taken { .. }), "{taken}");
    let absent = set.changed(&diff(&[], &[6])).unwrap_err();
    assert!(absent.to_string().contains("removes service shop/service6, which is not loaded"), "{absent}");
    let both = set.changed(&diff(&[(0, port("10.96.0.1:80", &[]))], &[0])).unwrap_err();
    assert!(both.to_string().contains("which it also sets"), "{both}");
    assert_eq!(set.table(), before);
}

/// Random difference over few names, addresses and backends.
fn arbitrary_diff() -> impl Strategy<Value = (BTreeMap<usize, (u8, u8)>, Vec<usize>)> {
    (prop::collection::btree_map(0..6usize, (0..5u8, 0..4u8), 0..4), prop::collection::vec(0..6usize, 0..2))
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    /// A set that differences have changed equals one that is loaded at once, and rejects what a load rejects.
    #[test]
    fn differences_agree_with_a_load(diffs in prop::collection::vec(arbitrary_diff(), 1..20)) {
        let mut set = ServiceSet::default();
        let mut model = ServiceTable::default();
        for (changed, removed) in diffs {
            let changed: BTreeMap<ServicePortName, ServicePort> = changed
                .into_iter()
                .map(|(number, (host, backends))| {
                    let backends = (0..backends).map(|n| SocketAddr::from(([10, 0, 0, n + 2], 8080))).collect();
                    let cluster = vec![SocketAddr::from(([10, 96, 0, host + 1], 80))];
                    let port = ServicePort { cluster, internal_backends: backends, ..ServicePort::default() };
                    (name(number), port)
                })
                .collect();
            let removed: Vec<ServicePortName> = removed.into_iter().map(name).collect();
            let diff = ServicesDiff { node_addresses: None, set: changed, removed };
            let mut expected = model.clone();
            let is_known = diff.removed.iter().all(|name| {
                !diff.set.contains_key(name) && expected.ports.remove(name).is_some()
            });
            expected.ports.extend(diff.set.clone());
            match set.changed(&diff) {
                Ok(next) => {
                    prop_assert!(is_known);
                    prop_assert_eq!(next.table(), expected.clone());
                    let fresh = ServiceSet::new(&expected).unwrap();
                    prop_assert!(fresh.owners.iter().eq(next.owners.iter()));
                    prop_assert_eq!(fresh.backends, next.backends);
                    (set, model) = (next, expected);
                }
                Err(_) => prop_assert!(!is_known || expected.check().is_err()),
            }
        }
    }
}
