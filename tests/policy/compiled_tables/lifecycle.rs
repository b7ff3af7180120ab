//! Objects that are added, changed and removed.

use super::*;

#[test]
fn n8_pods_on_the_hosts_network_are_neither_subjects_nor_peers() {
    let compiled = Compiled::new().with([
        Object::Pod(Pod { host_network: true, ..pod("x", "b", "192.168.0.1") }),
        Object::Pod(Pod {
            host_network: true,
            labels: labels(&[("app", "a")]),
            ..pod("x", "h", "192.168.0.2")
        }),
        ingress(
            "p",
            &[rule(&[app("b")], &[tcp(80, 80)]), rule(&[block("192.168.0.1/32", &[])], &[tcp(81, 81)])],
        ),
    ]);
    assert!(!compiled.passes("192.168.0.1", "x/a", TCP, 80));
    assert!(compiled.passes("192.168.0.1", "x/a", TCP, 81), "blocks match the node's address");
    assert_eq!(compiled.ask("x/a", "192.168.0.2", TCP, 1), [OPEN_OUT, "-"]);
}

#[test]
fn n9_the_own_node_gets_in_and_nothing_else_of_it_is_special() {
    let node = |name: &str, address: &str| {
        Object::Node(Node {
            name: name.into(),
            labels: Labels::new(),
            addresses: vec![address.parse().unwrap()],
        })
    };
    let compiled = Compiled::new().with([
        node("n", "192.168.0.1"),
        node("m", "192.168.0.2"),
        policy("p", Some(vec![]), Some(vec![])),
    ]);
    assert_eq!(compiled.on_ingress("192.168.0.1", "x/a", UDP, 9), "allow: traffic from the pod's own node");
    assert!(!compiled.passes("192.168.0.2", "x/a", TCP, 80), "another node is an ordinary address");
    assert!(!compiled.passes("x/a", "192.168.0.1", TCP, 80), "the way out is evaluated");
    assert_eq!(compiled.on_ingress("192.168.0.1", "x/b", TCP, 80), OPEN_IN);
}

#[test]
fn n11_a_pod_without_an_address_waits_and_a_finished_one_leaves() {
    let name = PodName::new("y", "a");
    let mut compiled = Compiled::new().with([ingress(
        "p",
        &[rule(&[Peer::Pods { namespaces: Some(is("team", "blue")), pods: is("app", "a") }], &[])],
    )]);
    assert!(compiled.passes("10.0.1.1", "x/a", TCP, 80));
    compiled.put(Object::Pod(Pod { addresses: Vec::new(), ..pod("y", "a", "10.0.1.1") }));
    assert!(!compiled.passes("10.0.1.1", "x/a", TCP, 80));
    assert!(!compiled.compiler.tables().pods.contains_key(&name));
    compiled.put(Object::Pod(pod("y", "a", "10.0.1.7")));
    assert!(compiled.passes("10.0.1.7", "x/a", TCP, 80));
    assert!(compiled.compiler.tables().pods.contains_key(&name));
    compiled.put(Object::Pod(Pod { finished: true, ..pod("y", "a", "10.0.1.7") }));
    assert!(!compiled.passes("10.0.1.7", "x/a", TCP, 80));
    assert!(!compiled.compiler.tables().pods.contains_key(&name));
}

#[test]
fn n11_an_address_used_again_inherits_nothing() {
    let mut compiled = Compiled::new().with([ingress("p", &[rule(&[app("b")], &[])])]);
    assert!(compiled.passes("10.0.0.2", "x/a", TCP, 80));
    compiled.compiler.apply(Change::Remove(ObjectName::Pod(PodName::new("x", "b"))));
    assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 80));
    compiled.put(Object::Pod(pod("y", "c", "10.0.0.2")));
    assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 80));
}

#[test]
fn n11_an_address_that_two_pods_claim_may_do_what_both_may() {
    let compiled = Compiled::new().with([
        ingress("p", &[rule(&[app("b")], &[tcp(80, 81)]), rule(&[app("c")], &[tcp(81, 82)])]),
        Object::Pod(pod("x", "c", "10.0.0.2")),
    ]);
    let may = |port| compiled.passes("10.0.0.2", "x/a", TCP, port);
    assert_eq!([80, 81, 82].map(may), [false, true, false]);
    assert_eq!(compiled.on_ingress("10.0.0.2", "x/a", TCP, 81), "allow: NetworkPolicy x/p ingress[0]");
    let deny = cluster_rule(ClusterAction::Deny, &[ClusterPeer::Pods(scope(all(), is("app", "c")))], &[]);
    let compiled = compiled.with([cluster("deny-c", Tier::Admin, 1, vec![deny], vec![])]);
    assert!(!compiled.passes("10.0.0.2", "x/a", TCP, 81), "a deny for one of them is enough");
}

#[test]
fn n11_what_a_policy_did_goes_with_it() {
    let mut compiled = Compiled::new();
    let before = compiled.compiler.tables().clone();
    compiled.put(policy("p", Some(vec![rule(&[app("b")], &[])]), Some(vec![])));
    assert!(!compiled.passes("y/a", "x/a", TCP, 80));
    let name = ObjectName::NetworkPolicy { namespace: "x".into(), name: "p".into() };
    compiled.compiler.apply(Change::Remove(name));
    assert_eq!(compiled.compiler.tables(), &before);
}

#[test]
fn ids_that_became_free_are_taken_again_the_smallest_first() {
    let mut compiled = Compiled::new();
    let before = compiled.compiler.tables().clone();
    for _ in 0..50 {
        compiled.put(policy("p", Some(vec![rule(&[app("b")], &[tcp(80, 80)])]), Some(vec![])));
        let last = compiled.compiler.tables().acls.last_key_value().unwrap().0.index();
        assert_eq!(last, before.acls.len() + 1, "one table for each direction, no more");
        let name = ObjectName::NetworkPolicy { namespace: "x".into(), name: "p".into() };
        compiled.compiler.apply(Change::Remove(name));
    }
}

#[test]
fn n12_selectors_match_every_address_of_a_pod() {
    let compiled = Compiled::new().with([
        Object::Pod(Pod {
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ..pod("x", "b", "10.0.0.2")
        }),
        Object::Pod(Pod {
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            ..pod("x", "a", "10.0.0.1")
        }),
        ingress("p", &[rule(&[app("b")], &[])]),
    ]);
    assert!(
        compiled.passes("10.0.0.2", "10.0.0.1", TCP, 80) && compiled.passes("fd00::2", "fd00::1", TCP, 80)
    );
    assert!(!compiled.passes("fd00::3", "fd00::1", TCP, 80));
}
