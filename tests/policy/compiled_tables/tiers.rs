//! Tiers of cluster-wide policies: Admin, `NetworkPolicy`, Baseline.

use super::*;
use ClusterAction::{Accept, Deny, Pass};

#[test]
fn c1_1_the_admin_tier_decides_first_by_priority_then_rule() {
    let compiled = Compiled::new().with([
        ingress("p", &[]),
        cluster("late", Tier::Admin, 2, vec![cluster_rule(Deny, &[every_pod()], &[])], vec![]),
        cluster(
            "early",
            Tier::Admin,
            1,
            vec![
                ClusterRule {
                    name: Some("web".into()),
                    ..cluster_rule(Accept, &[every_pod()], &cluster_tcp(80))
                },
                cluster_rule(Deny, &[every_pod()], &cluster_tcp(80)),
            ],
            vec![],
        ),
    ]);
    assert_eq!(
        compiled.on_ingress("x/b", "x/a", TCP, 80),
        "allow: ClusterNetworkPolicy early ingress[0] \"web\""
    );
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 81), "deny: ClusterNetworkPolicy late ingress[0]");
    assert_eq!(
        compiled.on_ingress("192.0.2.1", "x/a", TCP, 80),
        "deny: isolated for ingress by NetworkPolicy x/p; no rule matched"
    );
}

#[test]
fn c1_1_pass_skips_the_rest_of_the_tier_for_what_it_matches() {
    let admin = cluster(
        "admin",
        Tier::Admin,
        1,
        vec![cluster_rule(Pass, &[every_pod()], &cluster_tcp(80)), cluster_rule(Deny, &[every_pod()], &[])],
        vec![],
    );
    let compiled = Compiled::new().with([admin, ingress("p", &[rule(&[app("b")], &[tcp(80, 81)])])]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 81), "deny: ClusterNetworkPolicy admin ingress[1]");
    assert_eq!(
        compiled.on_ingress("y/b", "x/a", TCP, 80),
        "deny: isolated for ingress by NetworkPolicy x/p; no rule matched"
    );
}

#[test]
fn c1_2_what_a_network_policy_says_is_final() {
    let baseline =
        || cluster("base", Tier::Baseline, 1, vec![cluster_rule(Deny, &[every_pod()], &[])], vec![]);
    let compiled = Compiled::new().with([baseline(), ingress("p", &[rule(&[], &[])])]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
    let accept = cluster_rule(Accept, &[every_pod()], &[]);
    let compiled =
        Compiled::new().with([cluster("base", Tier::Baseline, 1, vec![accept], vec![]), ingress("p", &[])]);
    assert!(!compiled.passes("x/b", "x/a", TCP, 80));
    let compiled = Compiled::new().with([baseline()]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "deny: ClusterNetworkPolicy base ingress[0]");
    assert_eq!(compiled.on_ingress("192.0.2.1", "x/a", TCP, 80), OPEN_IN, "external addresses are no pods");
}

#[test]
fn c1_3_pass_in_the_baseline_tier_lets_the_default_decide() {
    let rules =
        vec![cluster_rule(Pass, &[every_pod()], &cluster_tcp(80)), cluster_rule(Deny, &[every_pod()], &[])];
    let compiled = Compiled::new().with([cluster("base", Tier::Baseline, 1, rules, vec![])]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), OPEN_IN);
    assert!(!compiled.passes("x/b", "x/a", TCP, 81));
}

#[test]
fn c1_6_a_policy_without_a_matching_rule_changes_nothing() {
    let compiled = Compiled::new().with([cluster(
        "admin",
        Tier::Admin,
        1,
        vec![],
        vec![cluster_rule(Deny, &[every_pod()], &cluster_tcp(1))],
    )]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), OPEN_IN);
    assert_eq!(compiled.on_egress("x/a", "x/b", TCP, 80), OPEN_OUT);
    assert!(compiled.compiler.policies_selecting(&PodName::new("x", "a"), Direction::Ingress).is_empty());
}

#[test]
fn c1_7_ties_go_by_name() {
    let of =
        |name, action| cluster(name, Tier::Admin, 1, vec![cluster_rule(action, &[every_pod()], &[])], vec![]);
    let compiled = Compiled::new().with([of("b", Deny), of("a", Accept)]);
    assert_eq!(compiled.on_ingress("x/b", "x/a", TCP, 80), "allow: ClusterNetworkPolicy a ingress[0]");
}

#[test]
fn c2_networks_match_pods_and_nodes_match_their_addresses() {
    let compiled = Compiled::new().with([
        Object::Node(Node {
            name: "n".into(),
            labels: labels(&[("role", "worker")]),
            addresses: vec!["192.168.0.1".parse().unwrap()],
        }),
        cluster(
            "admin",
            Tier::Admin,
            1,
            vec![],
            vec![
                cluster_rule(Accept, &[ClusterPeer::Nodes(is("role", "worker"))], &[]),
                cluster_rule(Accept, &[ClusterPeer::Pods(scope(is("team", "blue"), is("app", "b")))], &[]),
                cluster_rule(Deny, &[ClusterPeer::Network("0.0.0.0/0".parse().unwrap())], &[]),
            ],
        ),
    ]);
    assert_eq!(
        compiled.on_egress("x/a", "192.168.0.1", TCP, 1),
        "allow: ClusterNetworkPolicy admin egress[0]"
    );
    assert!(compiled.passes("x/a", "y/b", TCP, 1));
    assert!(
        !compiled.passes("x/a", "x/b", Protocol::ICMP, 0) && !compiled.passes("x/a", "192.0.2.1", TCP, 1)
    );
}

#[test]
fn c2_a_domain_name_matches_nothing_and_an_unknown_peer_that_denies_everything() {
    let accept = cluster_rule(Accept, &[ClusterPeer::DomainName("example.com".into())], &[]);
    let compiled =
        Compiled::new().with([egress("p", &[]), cluster("admin", Tier::Admin, 1, vec![], vec![accept])]);
    assert!(!compiled.passes("x/a", "192.0.2.1", TCP, 443));
    let deny = cluster_rule(Deny, &[ClusterPeer::Everyone], &[]);
    let compiled = Compiled::new().with([cluster("admin", Tier::Admin, 1, vec![deny], vec![])]);
    assert!(!compiled.passes("192.0.2.1", "x/a", TCP, 443) && !compiled.passes("y/a", "x/a", UDP, 1));
}

#[test]
fn ports_that_rules_ask_of_some_pods_concern_no_others_when_a_policy_comes_beside_them_and_goes() {
    let nobody = ClusterPeer::Pods(scope(all(), is("app", "nobody")));
    let dns = [ClusterPort::Named { protocol: None, name: "dns".into() }];
    let every =
        cluster("every", Tier::Admin, 2, vec![], vec![cluster_rule(Deny, &[every_pod()], &cluster_tcp(80))]);
    // A rule of another policy resolves the port of y/a by its name.
    let of_others = Object::NetworkPolicy(NetworkPolicy {
        namespace: "y".into(),
        name: "others".into(),
        pod_selector: all(),
        ingress: None,
        egress: Some(vec![rule(
            &[Peer::Pods { namespaces: Some(all()), pods: all() }],
            &[named(TCP, "dns")],
        )]),
        ignored: Vec::new(),
        audited: false,
        assigned: AssignedMetadata::default(),
    });
    let mut compiled = Compiled::new().with([
        Object::Pod(Pod { ports: vec![port("dns", TCP, 53)], ..pod("y", "a", "10.0.1.1") }),
        of_others,
        cluster("some", Tier::Admin, 1, vec![], vec![cluster_rule(Deny, &[nobody], &dns)]),
    ]);
    for _ in 0..2 {
        assert!([53, 80].iter().all(|&port| compiled.passes("x/a", "y/a", TCP, port)));
        compiled.put(every.clone());
        assert!(compiled.passes("x/a", "y/a", TCP, 53) && !compiled.passes("x/a", "y/a", TCP, 80));
        compiled.compiler.apply(Change::Remove(ObjectName::of(&every)));
    }
}

#[test]
fn c3_a_named_port_has_the_protocol_of_the_container_port() {
    let ports = vec![port("dns", UDP, 53), port("dns", TCP, 54)];
    let of = |protocol| [ClusterPort::Named { protocol, name: "dns".into() }];
    let rules = |protocol| vec![cluster_rule(Deny, &[every_pod()], &of(protocol))];
    let compiled = Compiled::new().with([
        Object::Pod(Pod { ports: ports.clone(), ..pod("x", "a", "10.0.0.1") }),
        Object::Pod(Pod { ports, ..pod("y", "a", "10.0.1.1") }),
        cluster("admin", Tier::Admin, 1, rules(None), rules(Some(TCP))),
    ]);
    assert!(!compiled.passes("x/b", "x/a", UDP, 53) && !compiled.passes("x/b", "x/a", TCP, 54));
    assert!(compiled.passes("x/b", "x/a", TCP, 53));
    assert!(!compiled.passes("x/a", "y/a", TCP, 54) && compiled.passes("x/a", "y/a", UDP, 53));
}
