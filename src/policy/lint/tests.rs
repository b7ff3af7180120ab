mod mistaken_names;

use ipnet::IpNet;

use super::*;
use crate::policy::objects::{
    AssignedMetadata, IpBlock, LabelSelector, NetworkPolicy, NetworkPolicyRule, Peer, Peers, Ports,
};
use crate::policy::parse::{Source, parse_source};

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: default, labels: {app: db}}
spec: {containers: [{name: c, ports: [{name: pg, containerPort: 5432}]}]}
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
status: {podIP: 10.1.3.2}
---
";

/// Lints a `NetworkPolicy` named p with this spec beside two pods.
fn network(spec: &str) -> Vec<(Check, String)> {
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: default}}\nspec: {spec}\n"
    );
    found(&policy)
}

/// The same beside another policy.
fn network_and(other: &str, spec: &str) -> Vec<(Check, String)> {
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: default}}\nspec: {spec}\n---\n"
    );
    found(&(policy + other))
}

fn found(policies: &str) -> Vec<(Check, String)> {
    found_in(&format!("{PODS}{policies}"))
}

/// Lints manifests that stand alone.
fn found_in(manifests: &str) -> Vec<(Check, String)> {
    let parsed = parse_source(&Source::new("lint.yaml", manifests)).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    lint(&objects, &[]).into_iter().map(|finding| (finding.check, finding.path)).collect()
}

fn one(check: Check, path: &str) -> Vec<(Check, String)> {
    vec![(check, path.to_owned())]
}

#[test]
fn a_policy_that_selects_no_pod_is_found() {
    assert_eq!(
        network("{podSelector: {matchLabels: {app: dbx}}}"),
        one(Check::SelectsNoPod, "spec.podSelector")
    );
    assert_eq!(network("{podSelector: {matchLabels: {app: db}}}"), []);
}

#[test]
fn without_pods_nothing_is_said_about_selection() {
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {}}\n";
    let parsed = parse_source(&Source::new("lint.yaml", policy)).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    assert_eq!(lint(&objects, &[]), []);
}

#[test]
fn a_named_port_is_looked_for_on_the_destination_pods() {
    let ingress = |name: &str| {
        network(&format!(
            "{{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{{port: {name}}}]}}]}}"
        ))
    };
    assert_eq!(ingress("pg"), []);
    assert_eq!(ingress("http"), one(Check::NamedPortMissing, "spec.ingress[0].ports[0].port"));
    let egress = |name: &str| {
        network(&format!(
            "{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{podSelector: {{matchLabels: {{app: web}}}}}}], \
             ports: [{{port: {name}}}, {{port: 53, protocol: UDP}}]}}]}}"
        ))
    };
    assert_eq!(egress("http"), []);
    assert_eq!(egress("pg"), one(Check::NamedPortMissing, "spec.egress[0].ports[0].port"));
}

#[test]
fn a_rule_that_another_contains_is_found_once() {
    let wide = "{from: [{podSelector: {}}]}";
    let narrow = "{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}";
    for (rules, at) in [([wide, narrow], 1), ([narrow, wide], 0), ([wide, wide], 1)] {
        let spec = format!("{{podSelector: {{}}, ingress: [{}]}}", rules.join(", "));
        assert_eq!(network(&spec), one(Check::ShadowedRule, &format!("spec.ingress[{at}]")), "{rules:?}");
    }
    let apart = "{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: DoesNotExist}]}}], ports: [{port: 80}]}";
    assert_eq!(network(&format!("{{podSelector: {{}}, ingress: [{narrow}, {apart}]}}")), []);
}

#[test]
fn a_cluster_wide_rule_behind_one_that_matches_more_is_found() {
    let policy = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: k}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress:
    - {action: Deny, from: [{namespaces: {}}]}
    - {action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
";
    assert_eq!(found(policy), one(Check::ShadowedRule, "spec.ingress[1]"));
}

#[test]
fn an_exception_that_is_allowed_all_the_same_is_found() {
    let block = |second: &str| {
        network(&format!(
            "{{podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 192.0.2.0/24, except: [192.0.2.0/28]}}}}]}}, {second}]}}"
        ))
    };
    assert_eq!(
        block("{from: [{ipBlock: {cidr: 192.0.2.0/27}}]}"),
        one(Check::ExceptWithoutEffect, "spec.ingress[0].from[0].ipBlock.except[0]")
    );
    assert_eq!(block("{from: [{ipBlock: {cidr: 192.0.2.0/27}}], ports: [{port: 80}]}"), []);
    assert_eq!(block("{from: [{ipBlock: {cidr: 192.0.2.0/29}}]}"), []);
    let nested = "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.0/28, 192.0.2.0/27]}}]}]}";
    assert_eq!(network(nested), one(Check::ExceptWithoutEffect, "spec.ingress[0].from[0].ipBlock.except[0]"));
}

#[test]
fn a_block_that_names_pods_by_address_is_found() {
    let block = |cidr: &str| {
        network(&format!("{{podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: {cidr}}}}}]}}]}}"))
    };
    assert_eq!(block("10.1.3.0/24"), one(Check::BlockInPodNetwork, "spec.ingress[0].from[0].ipBlock.cidr"));
    assert_eq!(block("10.1.3.2/32"), one(Check::BlockInPodNetwork, "spec.ingress[0].from[0].ipBlock.cidr"));
    assert_eq!(block("10.0.0.0/8"), []);
    assert_eq!(block("0.0.0.0/0"), []);
}

#[test]
fn egress_to_some_places_without_dns_is_found_and_no_egress_is_not() {
    let egress =
        |rules: &str| network(&format!("{{podSelector: {{}}, policyTypes: [Egress], egress: [{rules}]}}"));
    assert_eq!(egress("{ports: [{port: 443}, {port: 53}]}"), one(Check::BlocksDns, "spec.egress"));
    assert_eq!(egress("{ports: [{port: 443}, {port: 53, protocol: UDP}]}"), []);
    assert_eq!(egress("{to: [{podSelector: {}}]}"), []);
    assert_eq!(egress(""), []);
}

#[test]
fn dns_that_the_admin_tier_accepts_is_not_blocked() {
    let beside = |protocols: &str| {
        let cluster = cluster_egress(&format!("to: [{{namespaces: {{}}}}], protocols: [{protocols}]"));
        network_and(&cluster, "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}")
    };
    for accepted in ["{udp: {}}", "{udp: {destinationPort: {range: {start: 50, end: 60}}}}"] {
        assert_eq!(beside(accepted), [], "{accepted}");
    }
    for other in ["{tcp: {}}", "{udp: {destinationPort: {number: 54}}}"] {
        assert_eq!(beside(other), one(Check::BlocksDns, "spec.egress"), "{other}");
    }
}

#[test]
fn a_rule_of_a_cluster_policy_with_the_port_of_a_service_is_found() {
    let check = |rule: &str| found(&(service("db", "5432") + "---\n" + &cluster_egress(rule)));
    let tcp = |number: u16| format!("{{tcp: {{destinationPort: {{number: {number}}}}}}}");
    let rule = |protocols: &str| format!("to: [{{namespaces: {{}}}}], protocols: [{protocols}]");
    let web = "to: [{pods: {podSelector: {matchLabels: {app: db}}}}], protocols: ";
    assert_eq!(
        check(&format!("{web}[{}]", tcp(80))),
        one(Check::PortOfService, "spec.egress[0].protocols[0]")
    );
    for protocols in [
        format!("{}, {}", tcp(80), tcp(5432)),
        format!("{}, {{destinationNamedPort: pg}}", tcp(80)),
        "{tcp: {destinationPort: {range: {start: 70, end: 90}}}}".to_owned(),
        "{udp: {destinationPort: {number: 80}}}".to_owned(),
    ] {
        assert_eq!(check(&rule(&protocols)), [], "{protocols}");
    }
    assert_eq!(check("to: [{namespaces: {}}]"), []);
}

#[test]
fn a_rule_of_a_cluster_policy_within_an_earlier_one_is_found() {
    let second = |protocols: &str| {
        let first = "to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 80, end: 90}}}}]}, {action: Accept";
        found(&cluster_egress(&format!("{first}, to: [{{namespaces: {{}}}}], protocols: [{protocols}]")))
    };
    let range = |first: u16, last: u16| {
        format!("{{tcp: {{destinationPort: {{range: {{start: {first}, end: {last}}}}}}}}}")
    };
    assert_eq!(second(&range(81, 90)), one(Check::ShadowedRule, "spec.egress[1]"));
    for protocols in [range(79, 90), range(80, 91), range(80, 90).replace("tcp", "udp")] {
        assert_eq!(second(&protocols), [], "{protocols}");
    }
}

/// A policy of the Admin tier with one egress rule that accepts.
fn cluster_egress(rule: &str) -> String {
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: k}}\nspec: {{tier: Admin, priority: 1, \
         subject: {{namespaces: {{}}}}, egress: [{{action: Accept, {rule}}}]}}\n"
    )
}

#[test]
fn policies_with_one_priority_are_found() {
    let policy = |name: &str, priority: u32| {
        format!(
            "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
             spec: {{tier: Admin, priority: {priority}, subject: {{namespaces: {{}}}}, ingress: [{{action: Pass, from: [{{namespaces: {{}}}}]}}]}}\n---\n"
        )
    };
    assert_eq!(found(&(policy("a", 1) + &policy("b", 1))), one(Check::TiedPriority, "spec.priority"));
    assert_eq!(found(&(policy("a", 1) + &policy("b", 2))), []);
}

#[test]
fn rules_of_a_direction_that_the_types_lack_are_found() {
    let rules = "{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{}], egress: [{ports: [{port: 53}]}]}";
    assert_eq!(network(rules), one(Check::RulesWithoutType, "spec.egress"));
    let egress =
        "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], ingress: [{}], egress: [{}]}";
    assert_eq!(network(egress), one(Check::RulesWithoutType, "spec.ingress"));
    for types in ["policyTypes: [Ingress, Egress], ", "", "policyTypes: [], "] {
        assert_eq!(
            network(&format!("{{podSelector: {{}}, {types}ingress: [{{}}], egress: [{{}}]}}")),
            [],
            "{types}"
        );
    }
    assert_eq!(network("{podSelector: {}, policyTypes: [Ingress], ingress: [{}], egress: []}"), []);
}

#[test]
fn a_block_of_which_its_exceptions_leave_nothing_is_found() {
    let block = |cidr: &str, except: &str| {
        network(&format!(
            "{{podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: {cidr}, except: [{except}]}}}}]}}]}}"
        ))
    };
    let empty = || one(Check::EmptyBlock, "spec.ingress[0].from[0].ipBlock");
    assert_eq!(block("192.0.2.0/24", "192.0.2.0/25, 192.0.2.128/26, 192.0.2.192/26"), empty());
    assert_eq!(block("0.0.0.0/0", "0.0.0.0/1, 128.0.0.0/1"), empty());
    assert_eq!(block("\"::/0\"", "\"::/1\", \"8000::/1\""), empty());
    assert_eq!(block("192.0.2.0/24", "192.0.2.0/25, 192.0.2.128/26, 192.0.2.192/27"), []);
}

#[test]
fn a_named_port_towards_addresses_only_is_found() {
    let egress = |peers: &str, port: &str| {
        network(&format!(
            "{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{peers}], ports: [{{port: {port}}}, {{port: 53, protocol: UDP}}]}}]}}"
        ))
    };
    let block = "{ipBlock: {cidr: 192.0.2.0/24}}";
    assert_eq!(egress(block, "https"), one(Check::NamedPortOfAddresses, "spec.egress[0].ports[0].port"));
    assert_eq!(egress(block, "443"), []);
    assert_eq!(egress(&format!("{block}, {{podSelector: {{matchLabels: {{app: web}}}}}}"), "http"), []);
    assert_eq!(egress("{ipBlock: {cidr: 10.0.0.0/8}}", "http"), [], "pods are in the block");
    let alone = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {}, policyTypes: [Egress], \
                 egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: https}]}]}\n";
    assert_eq!(found_in(alone), one(Check::NamedPortOfAddresses, "spec.egress[0].ports[0].port"));
    let cluster = |name: &str| {
        found(&cluster_egress(&format!(
            "to: [{{namespaces: {{}}}}], protocols: [{{destinationNamedPort: {name}}}]"
        )))
    };
    assert_eq!(cluster("http"), []);
    assert_eq!(cluster("htttp"), one(Check::NamedPortMissing, "spec.egress[0].protocols[0]"));
}

#[test]
fn a_peer_that_selects_nothing_is_found() {
    let ingress = |peer: &str| network(&format!("{{podSelector: {{}}, ingress: [{{from: [{peer}]}}]}}"));
    let second = || one(Check::PeerSelectsNothing, "spec.ingress[0].from[1]");
    let web = "{podSelector: {matchLabels: {app: web}}}";
    assert_eq!(ingress(web), []);
    assert_eq!(ingress(&format!("{web}, {{podSelector: {{matchLabels: {{app: webb}}}}}}")), second());
    assert_eq!(ingress(&format!("{web}, {{namespaceSelector: {{matchLabels: {{team: a}}}}}}")), second());
    assert_eq!(ingress("{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}"), []);
    let cluster = |peer: &str, more: &str| {
        found(&format!(
            "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: k}}\nspec: {{tier: Admin, priority: 1, \
             subject: {{namespaces: {{}}}}, egress: [{{action: Deny, to: [{peer}]}}]}}\n{more}"
        ))
    };
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {zone: a}}\n";
    let to = || one(Check::PeerSelectsNothing, "spec.egress[0].to");
    assert_eq!(cluster("{pods: {podSelector: {matchLabels: {app: x}}}}", ""), to());
    assert_eq!(cluster("{pods: {podSelector: {matchLabels: {app: db}}}}", ""), []);
    assert_eq!(cluster("{nodes: {matchLabels: {zone: b}}}", node), to());
    assert_eq!(cluster("{nodes: {matchLabels: {zone: a}}}", node), []);
    assert_eq!(cluster("{nodes: {matchLabels: {zone: b}}}", ""), [], "no nodes in the manifests");
    assert_eq!(cluster("{newKind: {}}", ""), [], "reading it has warned");
}

#[test]
fn what_selects_only_pods_on_the_hosts_network_or_finished_ones_is_found() {
    let agent = "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent, namespace: default}\nspec: {selector: {matchLabels: {app: agent}}, \
                 template: {metadata: {labels: {app: agent}}, spec: {hostNetwork: true, containers: [{name: c}]}}}\n";
    let done = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: job, namespace: default, labels: {app: job}}\nspec: {containers: [{name: c}]}\nstatus: {phase: Succeeded}\n";
    let policy = |subject: &str, peer: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: default}}\n\
             spec: {{podSelector: {{matchLabels: {{app: {subject}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {peer}}}}}}}]}}]}}\n{agent}{done}"
        )
    };
    assert_eq!(found(&policy("agent", "web")), one(Check::HostNetworkOrFinished, "spec.podSelector"));
    assert_eq!(found(&policy("job", "web")), one(Check::HostNetworkOrFinished, "spec.podSelector"));
    assert_eq!(found(&policy("db", "agent")), one(Check::HostNetworkOrFinished, "spec.ingress[0].from[0]"));
    assert_eq!(found(&policy("db", "web")), []);
    let alone = found_in(&policy("agent", "agent"));
    assert_eq!(alone.len(), 2, "also where no other pod is there: {alone:?}");
}

#[test]
fn a_hundred_thousand_exceptions_are_looked_at_one_by_one_only() {
    let except = |at: u32| IpNet::new_assert(std::net::Ipv4Addr::from_bits(0x0a00_0000 + 2 * at).into(), 32);
    let block = IpBlock { cidr: "10.0.0.0/8".parse().unwrap(), except: (0..100_000).map(except).collect() };
    let rule = |block: IpBlock| NetworkPolicyRule {
        peers: Peers::Any(vec![Peer::IpBlock(block)]),
        ports: Ports::All,
    };
    let narrow = IpBlock { cidr: "10.0.0.0/29".parse().unwrap(), except: Vec::new() };
    let policy = NetworkPolicy {
        namespace: "default".to_owned(),
        name: "p".to_owned(),
        pod_selector: LabelSelector::default(),
        ingress: Some(vec![rule(block), rule(narrow)]),
        egress: None,
        ignored: Vec::new(),
        audited: false,
        assigned: AssignedMetadata::default(),
    };
    let found: Vec<_> = lint(&[Object::NetworkPolicy(policy)], &[]).into_iter().map(|one| one.path).collect();
    let paths = |at: usize| format!("spec.ingress[0].from[0].ipBlock.except[{at}]");
    assert_eq!(found, [paths(0), paths(1), paths(2), paths(3)]);
}

/// Service in front of the pod `db` with this selector and target port.
fn service(app: &str, target: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: db}}, spec: {{selector: {{app: {app}}}, ports: [{{port: 80, \
         targetPort: {target}}}]}}}}\n"
    )
}

#[test]
fn a_service_that_selects_no_pod_is_found_unless_a_slice_stands_for_it() {
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: db-1, labels: \
                 {kubernetes.io/service-name: db}}, endpoints: []}\n";
    assert_eq!(found(&service("db", "5432")), []);
    assert_eq!(found(&service("dbb", "5432")), one(Check::ServiceSelectsNoPod, "spec.selector"));
    assert_eq!(found(&(service("dbb", "5432") + slice)), []);
}

#[test]
fn a_rule_with_the_port_of_a_service_is_found_where_the_pods_have_another() {
    let ingress = |ports: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: default}}\nspec: \
             {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{ports}]}}]}}\n"
        )
    };
    let check = |ports: &str, target: &str| found(&(service("db", target) + &ingress(ports)));
    let wrong = one(Check::PortOfService, "spec.ingress[0].ports[0].port");
    assert_eq!(check("{port: 80}", "5432"), wrong);
    assert_eq!(check("{port: 80}", "pg"), wrong);
    for (ports, target) in [
        ("{port: 5432}", "5432"),
        ("{port: 80}, {port: 5000, endPort: 6000}", "5432"),
        ("{port: 80}, {port: pg}", "pg"),
        ("{port: 80, protocol: UDP}", "5432"),
        ("{port: 80}", "80"),
    ] {
        assert_eq!(check(ports, target), [], "{ports} {target}");
    }
    let egress = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\nspec: \
                  {policyTypes: [Egress], podSelector: {matchLabels: {app: web}}, egress: [{to: [{podSelector: {matchLabels: {app: \
                  db}}}], ports: [{port: 80}]}, {ports: [{port: 53, protocol: UDP}]}]}\n";
    assert_eq!(
        found(&(service("db", "5432") + egress)),
        one(Check::PortOfService, "spec.egress[0].ports[0].port")
    );
}
