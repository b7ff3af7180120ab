//! Random histories of objects: the table after each change is that of the naive evaluator, and the
//! differences lead from each table to the next.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::naive;
use crate::net::flow::Protocol;
use crate::policy::objects::{
    ContainerPort, Endpoint, EndpointPort, EndpointSlice, LabelSelector, Labels, Node, Object, Pod,
    PortOfService, Readiness, Requirement, Service, ServiceKind, TargetPort, TrafficDistribution,
    TrafficPolicy,
};
use crate::policy::services::{Services, ServicesOptions};
use crate::policy::{Change, ObjectName};
use crate::tables::{PodName, ServiceTable, ServicesDiff};

const NAMES: &[&str] = &["a", "b", "c"];
const ZONES: &[&str] = &["east", "west"];

fn text(from: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(from).prop_map(str::to_owned)
}

fn address(net: u8) -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        3 => (1..6_u8).prop_map(move |host| IpAddr::from([10, net, 0, host])),
        1 => (1..4_u16).prop_map(move |host| IpAddr::from([0xfd00, net.into(), 0, 0, 0, 0, 0, host])),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::TCP, Protocol::UDP][..])
}

fn traffic() -> impl Strategy<Value = TrafficPolicy> {
    select(&[TrafficPolicy::Cluster, TrafficPolicy::Local][..])
}

fn service() -> impl Strategy<Value = Service> {
    let target = prop_oneof![
        (8080..8082_u16).prop_map(TargetPort::Number),
        text(&["http", "admin"]).prop_map(TargetPort::Named)
    ];
    let port = (protocol(), 80..82_u16, target, option::of(30_000..30_002_u16));
    let addresses = (vec(address(96), 0..=1), vec(address(97), 0..=2), vec(address(96), 0..=1));
    let kind = prop_oneof![6 => Just(ServiceKind::Virtual), 1 => Just(ServiceKind::Headless)];
    let distribution =
        option::of(select(&[TrafficDistribution::SameZone, TrafficDistribution::SameNode][..]));
    let range = prop_oneof![Just("10.0.0.0/8"), Just("fd00::/8")].prop_map(|text| text.parse().unwrap());
    let rest = (option::of(text(NAMES)), any::<bool>(), distribution, option::of(1..9_u32), vec(range, 0..2));
    (text(&["x", "y"]), text(NAMES), kind, addresses, port, (traffic(), traffic()), rest).prop_map(
        |(
            namespace,
            name,
            kind,
            (cluster_ips, external_ips, load_balancer_ips),
            (protocol, port, target, node_port),
            (internal_traffic, external_traffic),
            (app, publish_not_ready, distribution, affinity_seconds, source_ranges),
        )| Service {
            namespace,
            name,
            kind,
            selector: app.map(|app| LabelSelector {
                requirements: vec![Requirement::In { key: "app".to_owned(), values: vec![app] }],
            }),
            cluster_ips,
            external_ips,
            load_balancer_ips,
            source_ranges,
            health_check_port: None,
            families: Vec::new(),
            ports: vec![PortOfService { name: None, protocol, port, target, node_port }],
            affinity_seconds,
            internal_traffic,
            external_traffic,
            publish_not_ready,
            distribution,
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let states = (any::<bool>(), any::<bool>(), any::<bool>());
    let hints = (vec(text(ZONES), 0..=2), vec(text(&["n1", "n2"]), 0..=1));
    let endpoint = (address(1), states, option::of(text(&["n1", "n2"])), hints).prop_map(
        |(address, (ready, serving, terminating), node, (zone_hints, node_hints))| Endpoint {
            address,
            ready,
            serving,
            terminating,
            node,
            zone_hints,
            node_hints,
        },
    );
    let names = (text(&["x", "y"]), text(&["s1", "s2"]), option::weighted(0.9, text(NAMES)));
    (names, vec(endpoint, 0..5), protocol(), 8080..8082_u16).prop_map(
        |((namespace, name, service), endpoints, protocol, port)| EndpointSlice {
            namespace,
            name,
            service,
            endpoints,
            ports: vec![EndpointPort { name: String::new(), protocol, port }],
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    let state = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let port = (text(&["http", "admin"]), protocol(), 8080..8082_u16);
    let names = (text(&["x", "y"]), text(&["p", "q", "r"]), text(NAMES));
    (names, vec(address(2), 0..=2), option::of(text(&["n1", "n2"])), state, vec(port, 0..=2)).prop_map(
        |((namespace, name, app), addresses, node, (unready, terminating, finished), ports)| Pod {
            name: PodName::new(namespace, name),
            labels: Labels::from([("app".to_owned(), app)]),
            addresses,
            placeholder: false,
            node,
            host_ips: Vec::new(),
            host_network: false,
            finished,
            readiness: Readiness { unready, terminating },
            ports: ports
                .into_iter()
                .map(|(name, protocol, port)| ContainerPort { name: Some(name), protocol, port })
                .collect(),
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    (text(&["n1", "n2"]), option::of(text(ZONES)), address(3)).prop_map(|(name, zone, address)| Node {
        name,
        labels: zone.into_iter().map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)).collect(),
        addresses: vec![address],
    })
}

fn change() -> impl Strategy<Value = Change> {
    let object = prop_oneof![
        4 => service().prop_map(Object::Service),
        3 => slice().prop_map(Object::EndpointSlice),
        3 => pod().prop_map(Object::Pod),
        1 => node().prop_map(Object::Node),
    ];
    (object, prop::bool::weighted(0.3)).prop_map(|(object, removes)| {
        if removes { Change::Remove(ObjectName::of(&object)) } else { Change::Upsert(object) }
    })
}

/// Applies a difference to a table, as the switch does.
fn patch(table: &mut ServiceTable, difference: ServicesDiff) {
    if let Some(addresses) = difference.node_addresses {
        table.node_addresses = addresses;
    }
    for name in difference.removed {
        assert!(table.ports.remove(&name).is_some(), "{name} is removed and was not there");
    }
    for (name, port) in difference.set {
        assert_ne!(table.ports.get(&name), Some(&port), "{name} is set to what it was");
        table.ports.insert(name, port);
    }
}

proptest! {
    #![proptest_config(crate::random::cases(200))]

    #[test]
    fn every_change_leads_to_the_table_of_the_naive_evaluator(
        batches in vec(vec(change(), 1..4), 1..25),
        node in option::of(text(&["n1", "n2"])),
        derive_endpoints in prop::bool::weighted(0.7),
    ) {
        let options = ServicesOptions { node, derive_endpoints };
        let mut services = Services::new(options.clone());
        let (mut objects, mut patched) = (BTreeMap::new(), ServiceTable::default());
        for batch in batches {
            for change in &batch {
                match change {
                    Change::Upsert(object) => drop(objects.insert(ObjectName::of(object), object.clone())),
                    Change::Remove(name) => drop(objects.remove(name)),
                }
            }
            patch(&mut patched, services.apply_all(batch));
            let all: Vec<Object> = objects.values().cloned().collect();
            let wanted = naive::table(&all, &options);
            prop_assert_eq!(services.table(), &wanted);
            prop_assert_eq!(&patched, &wanted);
            let fresh = Services::from_objects(all, options.clone());
            prop_assert_eq!(fresh.table(), &wanted);
        }
    }
}
