use super::*;
use crate::policy::read::{Source, read};

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

fn found(policies: &str) -> Vec<(Check, String)> {
    let parsed = read(&Source::new("lint.yaml", format!("{PODS}{policies}"))).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    lint(&objects).into_iter().map(|finding| (finding.check, finding.path)).collect()
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
    let parsed = read(&Source::new("lint.yaml", policy)).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    assert_eq!(lint(&objects), []);
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
    let apart = "{from: [{namespaceSelector: {matchLabels: {a: b}}}], ports: [{port: 80}]}";
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
