use super::*;
use crate::net::flow::FlowKey;
use crate::net::flow::Protocol;
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::parse::Source;
use crate::policy::testcase::Endpoint;
use crate::policy::testcase::ProbeExpansion;
use crate::policy::testcase::parse_cases;
use crate::tables::PolicyKind;
use crate::tables::{PodName, Verdict};

const CASE: &str = r"
name: near misses
resources:
  - {apiVersion: v1, kind: Namespace, metadata: {name: far, labels: {team: b}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: default, labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: pg, containerPort: 5432}]}]}, status: {podIP: 10.0.0.1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: api, namespace: far, labels: {app: api}}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.2}}
  - apiVersion: networking.k8s.io/v1
    kind: NetworkPolicy
    metadata: {name: db, namespace: default}
    spec:
      podSelector: {}
      ingress:
        - {from: [{namespaceSelector: {matchLabels: {team: a}}}], ports: [{port: pg}]}
        - {from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}
        - {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/24]}}]}
        - {ports: [{port: 1, endPort: 9}, {port: pg, protocol: UDP}]}
probes: []
";

fn explanation(port: u16) -> Explanation {
    let case = parse_cases(&Source::new("case.yaml", CASE)).cases.remove(0);
    let expansion = ProbeExpansion::new(&case);
    let evaluator = ReferenceEvaluator::new(expansion.objects());
    let (src, dst) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: port };
    let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
    explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new())
}

const EXEMPT: &str = r"
name: hosts
resources:
  - {apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: sys}, spec: {hostNetwork: true, containers: [{name: c}]}, status: {podIP: 172.16.0.1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.1, phase: Succeeded}}
  - {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.2}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {}, ingress: [{}]}}
  - apiVersion: policy.networking.k8s.io/v1alpha1
    kind: BaselineAdminNetworkPolicy
    metadata: {name: default}
    spec: {subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
";

#[test]
fn an_end_that_no_policy_judges_is_named_with_the_reason() {
    let case = parse_cases(&Source::new("case.yaml", EXEMPT)).cases.remove(0);
    let evaluator = ReferenceEvaluator::new(case.objects.iter().map(|(object, _)| object));
    let explained = |from: Endpoint, src: &str| {
        let (src, dst) = (src.parse().unwrap(), "10.0.0.2".parse().unwrap());
        let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
        explain(
            &evaluator,
            &flow,
            [&from, &Endpoint::Ip(dst)],
            &evaluator.evaluate(&flow),
            &PolicyLocations::new(),
        )
    };
    let host = explained(Endpoint::Pod(PodName::new("sys", "proxy")), "172.16.0.1");
    assert_eq!(host.exempt[0].why, Exemption::HostNetwork);
    assert!(
        host.to_string().contains("no policy is asked about pod sys/proxy: it is on the host's network"),
        "{host}"
    );
    assert_eq!(explained(Endpoint::Ip("172.16.0.1".parse().unwrap()), "172.16.0.1").exempt, host.exempt);
    let finished = explained(Endpoint::Pod(PodName::new("shop", "job")), "10.0.0.1");
    assert_eq!(finished.exempt[0].why, Exemption::Finished);
    assert!(finished.to_string().contains("it has finished"), "{finished}");
}

#[test]
fn a_baseline_policy_that_a_network_policy_preempts_is_listed_as_such() {
    let case = parse_cases(&Source::new("case.yaml", EXEMPT)).cases.remove(0);
    let evaluator = ReferenceEvaluator::new(case.objects.iter().map(|(object, _)| object));
    let (src, dst) = ("192.0.2.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
    let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
    let explanation =
        explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new());
    let policies = &explanation.ingress.as_ref().unwrap().policies;
    let explained: Vec<_> =
        policies.iter().map(|policy| (policy.policy.kind, policy.evaluated, policy.preempted)).collect();
    let (network, baseline) = (PolicyKind::NetworkPolicy, PolicyKind::BaselineAdminNetworkPolicy);
    assert_eq!(explained, [(network, true, false), (baseline, false, true)]);
    let text = explanation.to_string();
    assert!(
        text.contains("BaselineAdminNetworkPolicy default, not asked: a NetworkPolicy isolates the pod"),
        "{text}"
    );
}

#[test]
fn each_rule_says_on_what_it_fails() {
    let side = explanation(5432).ingress.unwrap();
    let rules = &side.policies[0].rules;
    let mismatches_of = |index: usize| {
        let rule: &RuleTrace = &rules[index];
        rule.peer_mismatches
            .iter()
            .chain(&rule.port_mismatches)
            .map(|mismatch| (mismatch.on, mismatch.text.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        mismatches_of(0),
        [(MismatchKind::NamespaceLabel, r#"namespace far has team="b", not team=a"#)]
    );
    assert_eq!(mismatches_of(1), [(MismatchKind::PodLabel, r#"pod far/api has app="api", not app=web"#)]);
    assert_eq!(
        mismatches_of(2),
        [(MismatchKind::Address, "10.0.0.2 is excepted by 10.0.0.0/24 from 10.0.0.0/8")]
    );
    assert_eq!(
        mismatches_of(3),
        [
            (MismatchKind::Port, "TCP 5432 is not TCP 1-9"),
            (MismatchKind::Port, "pod default/db has no UDP port named pg"),
        ]
    );
    assert!(rules[..3].iter().all(RuleTrace::is_near));
}

#[test]
fn a_rule_that_matches_is_named_and_misses_nothing() {
    let explanation = explanation(7);
    assert_eq!(explanation.verdict, Verdict::Allow);
    let side = explanation.ingress.unwrap();
    assert_eq!(side.reason, "NetworkPolicy default/db ingress[3]");
    let matching: Vec<usize> =
        side.policies[0].rules.iter().filter(|rule| rule.matches).map(|rule| rule.index).collect();
    assert_eq!(matching, [3]);
    assert!(explanation.egress.unwrap().policies.is_empty());
}

#[test]
fn of_several_pods_that_claim_an_address_the_one_that_denies_is_explained() {
    let other = "  - {apiVersion: v1, kind: Pod, metadata: {name: aa, namespace: default}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.1}}\n\
                 probes: []\n";
    let text = CASE
        .replace("probes: []\n", other)
        .replace("podSelector: {}", "podSelector: {matchLabels: {app: db}}");
    let case = parse_cases(&Source::new("case.yaml", text)).cases.remove(0);
    let objects = ProbeExpansion::new(&case).objects().to_vec();
    let evaluator = ReferenceEvaluator::new(&objects);
    let (src, dst) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
    let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
    let explanation =
        explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new());
    let side = explanation.ingress.unwrap();
    assert_eq!((side.pod.to_string().as_str(), side.verdict), ("default/db", Verdict::Deny));
    assert_eq!(side.policies.len(), 1);
    let compiler = crate::policy::Compiler::from_objects(objects.clone(), crate::policy::Options::default());
    let evaluator_of_tables = crate::policy::evaluate::TableEvaluator::new(compiler.into_tables()).unwrap();
    assert_eq!(
        evaluator_of_tables.evaluate(&flow).ingress.unwrap().verdict,
        Verdict::Deny,
        "so say the tables"
    );
}
