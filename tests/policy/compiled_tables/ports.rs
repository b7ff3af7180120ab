//! Ports of rules: ranges, protocols, and names.

use super::*;

#[test]
fn n6_2_a_range_is_one_span_whatever_its_length() {
    let compiled = Compiled::new().with([ingress("p", &[rule(&[], &[tcp(1, 65_535)])])]);
    let spans = compiled.compiler.tables().rows.values().map(|row| row.tcp.len()).max();
    assert_eq!(spans, Some(1));
    assert!(compiled.passes("x/b", "x/a", TCP, 65_535) && !compiled.passes("x/b", "x/a", TCP, 0));
    assert!(!compiled.passes("x/b", "x/a", UDP, 80));
}

#[test]
fn n6_3_a_name_means_what_the_destination_pod_calls_so() {
    let with_port = |namespace, app, address, number| {
        Object::Pod(Pod { ports: vec![port("http", TCP, number)], ..pod(namespace, app, address) })
    };
    let mut compiled = Compiled::new().with([
        with_port("x", "b", "10.0.0.2", 80),
        with_port("y", "a", "10.0.1.1", 8080),
        egress("p", &[rule(&[Peer::Pods { namespaces: Some(all()), pods: all() }], &[named(TCP, "http")])]),
    ]);
    assert!(compiled.passes("x/a", "x/b", TCP, 80) && !compiled.passes("x/a", "x/b", TCP, 8080));
    assert!(compiled.passes("x/a", "y/a", TCP, 8080) && !compiled.passes("x/a", "y/a", TCP, 80));
    assert!(!compiled.passes("x/a", "y/b", TCP, 80), "the pod has no port of that name");
    compiled.put(with_port("x", "b", "10.0.0.2", 81));
    assert!(compiled.passes("x/a", "x/b", TCP, 81) && !compiled.passes("x/a", "x/b", TCP, 80));
}

#[test]
fn n6_3_on_the_way_in_the_selected_pods_own_ports_count() {
    let pods = |number| {
        [("x", "a", "10.0.0.1"), ("x", "a2", "10.0.0.9")].map(|(namespace, name, address)| {
            let number = if name == "a" { number } else { 8080 };
            let labels = labels(&[("app", "a")]);
            Object::Pod(Pod {
                ports: vec![port("http", TCP, number)],
                labels,
                ..pod(namespace, name, address)
            })
        })
    };
    let compiled = Compiled::new().with(pods(80)).with([ingress("p", &[rule(&[], &[named(TCP, "http")])])]);
    assert!(compiled.passes("x/b", "x/a", TCP, 80) && !compiled.passes("x/b", "x/a", TCP, 8080));
    assert!(compiled.passes("x/b", "x/a2", TCP, 8080) && !compiled.passes("x/b", "x/a2", TCP, 80));
}

#[test]
fn n6_4_a_name_needs_the_protocol_and_never_widens() {
    let compiled = Compiled::new().with([
        Object::Pod(Pod { ports: vec![port("dns", UDP, 53)], ..pod("x", "a", "10.0.0.1") }),
        ingress("p", &[rule(&[], &[named(TCP, "dns")]), rule(&[app("b")], &[tcp(80, 80)])]),
    ]);
    assert!(!compiled.passes("x/b", "x/a", TCP, 53) && !compiled.passes("x/b", "x/a", UDP, 53));
    assert!(compiled.passes("x/b", "x/a", TCP, 80), "other entries still count");
}

#[test]
fn n6_5_every_container_port_of_the_name_counts() {
    let ports = vec![port("web", TCP, 80), port("web", TCP, 8080), port("web", UDP, 443)];
    let compiled = Compiled::new().with([
        Object::Pod(Pod { ports: ports.clone(), ..pod("x", "a", "10.0.0.1") }),
        Object::Pod(Pod { ports, ..pod("y", "a", "10.0.1.1") }),
        policy("p", Some(vec![rule(&[], &[named(TCP, "web")])]), Some(vec![rule(&[], &[named(UDP, "web")])])),
    ]);
    assert!(compiled.passes("x/b", "x/a", TCP, 80) && compiled.passes("x/b", "x/a", TCP, 8080));
    assert!(!compiled.passes("x/b", "x/a", UDP, 443));
    assert!(compiled.passes("x/a", "y/a", UDP, 443) && !compiled.passes("x/a", "y/a", TCP, 80));
}

#[test]
fn n6_6_a_name_without_peers_or_with_a_block_finds_pods_and_nobody_else() {
    for peers in [vec![], vec![block("0.0.0.0/0", &[])]] {
        let compiled = Compiled::new().with([
            Object::Pod(Pod { ports: vec![port("http", TCP, 80)], ..pod("y", "a", "10.0.1.1") }),
            egress("p", &[rule(&peers, &[named(TCP, "http")])]),
        ]);
        assert!(compiled.passes("x/a", "y/a", TCP, 80) && !compiled.passes("x/a", "y/b", TCP, 80));
        assert!(!compiled.passes("x/a", "192.0.2.1", TCP, 80));
    }
}

#[test]
fn n7_what_has_no_ports_matches_rules_without_ports_only() {
    let compiled = Compiled::new().with([ingress(
        "p",
        &[rule(&[app("b")], &[tcp(0, 65_535)]), rule(&[block("192.0.2.0/24", &[])], &[])],
    )]);
    assert!(!compiled.passes("x/b", "x/a", Protocol::ICMP, 0));
    assert!(compiled.passes("192.0.2.1", "x/a", Protocol::ICMP, 0));
    assert!(compiled.passes("192.0.2.1", "x/a", Protocol(47), 0));
}
