//! Isolation of pods, and rules of policies that add up.

use super::*;

#[test]
fn n1_1_both_sides_are_asked_and_either_denies() {
    let compiled = Compiled::new().with([ingress("in", &[]), egress("out", &[])]);
    assert_eq!(
        compiled.ask("x/b", "x/a", TCP, 80),
        [OPEN_OUT, "deny: isolated for ingress by NetworkPolicy x/in; no rule matched"]
    );
    assert_eq!(
        compiled.ask("x/a", "x/b", TCP, 80),
        ["deny: isolated for egress by NetworkPolicy x/out; no rule matched", OPEN_IN]
    );
    assert_eq!(compiled.ask("192.0.2.1", "x/b", TCP, 80), ["-", OPEN_IN]);
}

#[test]
fn n1_2_only_policies_of_the_own_namespace_isolate_and_only_their_direction() {
    let compiled = Compiled::new().with([ingress("in", &[])]);
    assert_eq!(compiled.on_ingress("x/b", "y/a", TCP, 80), OPEN_IN);
    assert_eq!(compiled.on_egress("x/a", "y/a", TCP, 80), OPEN_OUT);
    assert_eq!(compiled.on_ingress("x/a", "x/b", TCP, 80), OPEN_IN);
}

#[test]
fn n1_3_policies_add_up_and_the_first_by_name_and_rule_is_named() {
    let compiled = Compiled::new().with([
        ingress("q", &[rule(&[], &[tcp(80, 80)])]),
        ingress("p", &[rule(&[app("b")], &[tcp(443, 443)]), rule(&[], &[tcp(80, 90)])]),
        ingress("deny", &[]),
    ]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[1]");
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 443), "allow: NetworkPolicy x/p ingress[0]");
    assert_eq!(
        compiled.on_ingress("y/b", "x/a", TCP, 443),
        "deny: isolated for ingress by NetworkPolicy x/deny, NetworkPolicy x/p, NetworkPolicy x/q; no rule matched"
    );
}

#[test]
fn n3_absent_peers_are_everyone_and_absent_ports_everything() {
    let compiled = Compiled::new().with([ingress("p", &[rule(&[], &[])])]);
    for (from, protocol) in [("x/b", TCP), ("192.0.2.1", UDP), ("y/a", Protocol::ICMP)] {
        assert_eq!(compiled.on_ingress(from, "x/a", protocol, 0), "allow: NetworkPolicy x/p ingress[0]");
    }
}

#[test]
fn n3_selectors_of_peers_reach_as_far_as_they_say() {
    let peers = |namespaces, pods| [rule(&[Peer::Pods { namespaces, pods }], &[])];
    let who = |rules: &[NetworkPolicyRule]| -> Vec<&str> {
        let compiled = Compiled::new().with([ingress("p", rules)]);
        let candidates = ["x/b", "y/a", "y/b", "192.0.2.1"];
        candidates.into_iter().filter(|from| compiled.passes(from, "x/a", TCP, 1)).collect()
    };
    assert_eq!(who(&peers(None, all())), ["x/b"]);
    assert_eq!(who(&peers(Some(all()), all())), ["x/b", "y/a", "y/b"]);
    assert_eq!(who(&peers(Some(is("team", "blue")), all())), ["y/a", "y/b"]);
    assert_eq!(who(&peers(Some(is("team", "blue")), is("app", "b"))), ["y/b"]);
    let either = [Peer::Pods { namespaces: Some(is("team", "blue")), pods: all() }, app("b")];
    assert_eq!(who(&[rule(&either, &[])]), ["x/b", "y/a", "y/b"]);
}

#[test]
fn n4_a_namespace_has_its_name_as_a_label_even_if_only_spoken_of() {
    let peer = Peer::Pods { namespaces: Some(is("kubernetes.io/metadata.name", "z")), pods: all() };
    let compiled =
        Compiled::new().with([ingress("p", &[rule(&[peer], &[])]), Object::Pod(pod("z", "a", "10.0.9.1"))]);
    assert!(compiled.passes("z/a", "x/a", TCP, 1));
    assert!(!compiled.passes("y/a", "x/a", TCP, 1));
}

#[test]
fn n4_labels_of_pods_and_namespaces_are_followed() {
    let peer = Peer::Pods { namespaces: Some(is("team", "blue")), pods: is("app", "a") };
    let mut compiled = Compiled::new().with([ingress("p", &[rule(&[peer], &[])])]);
    assert!(compiled.passes("y/a", "x/a", TCP, 1));
    compiled.put(Object::Namespace(Namespace { name: "y".into(), labels: Labels::new() }));
    assert!(!compiled.passes("y/a", "x/a", TCP, 1));
    compiled.put(Object::Namespace(Namespace { name: "y".into(), labels: labels(&[("team", "blue")]) }));
    compiled.put(Object::Pod(Pod { labels: Labels::new(), ..pod("y", "a", "10.0.1.1") }));
    assert!(!compiled.passes("y/a", "x/a", TCP, 1));
    compiled.put(Object::Pod(Pod { labels: Labels::new(), ..pod("x", "a", "10.0.0.1") }));
    assert_eq!(compiled.on_ingress("y/a", "x/a", TCP, 1), OPEN_IN);
}
