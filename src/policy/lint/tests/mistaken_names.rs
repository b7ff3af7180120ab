//! Labels, namespaces and addresses that name something else than they seem to.

use super::*;

/// Messages of the findings of manifests beside the two pods.
fn messages(manifests: &str) -> Vec<String> {
    let parsed = parse_source(&Source::new("lint.yaml", format!("{PODS}{manifests}"))).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    lint(&objects, &[]).into_iter().map(|finding| finding.message).collect()
}

fn policy(spec: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {spec}\n---\n"
    )
}

#[test]
fn a_label_that_comes_close_to_a_selector_is_named() {
    let selecting =
        |labels: &str| messages(&policy(&format!("{{podSelector: {{matchLabels: {{{labels}}}}}}}")));
    let near = [
        "selects no pod: none in namespace default matches app=wbe: did you mean app=web, a label of pod default/web?",
    ];
    assert_eq!(selecting("app: wbe"), near);
    let near = [
        "selects no pod: none in namespace default matches ap=web: did you mean app=web, a label of pod default/web?",
    ];
    assert_eq!(selecting("ap: web"), near);
    // The label is there, and the pods are in another namespace.
    let other =
        policy("{podSelector: {matchLabels: {app: web}}}").replace("name: p", "name: p, namespace: other");
    assert_eq!(messages(&other), ["selects no pod: none in namespace other matches app=web"]);
    assert_eq!(selecting("app: cache"), ["selects no pod: none in namespace default matches app=cache"]);
}

#[test]
fn a_namespace_is_named_by_its_own_label() {
    let namespace = |labels: &str| {
        format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: default, labels: {{{labels}}}}}}}\n---\n"
        )
    };
    let by = |key: &str| {
        let peer = format!("{{namespaceSelector: {{matchLabels: {{{key}: default}}}}}}");
        policy(&format!("{{podSelector: {{}}, ingress: [{{from: [{peer}]}}]}}"))
    };
    let path = "spec.ingress[0].from[0].namespaceSelector";
    for key in ["name", "kubernetes.io/name", "kubernetes.io/metadata-name", "k8s.io/metadata.name"] {
        let found = found(&(namespace("") + &by(key)));
        assert_eq!(found, one(Check::NameLabelOfNamespace, path), "{key}");
    }
    let message = format!(
        "no namespace has the label name: to select namespace default, write {}: default",
        crate::policy::objects::NAMESPACE_NAME_LABEL
    );
    assert_eq!(messages(&(namespace("") + &by("name"))), [message]);
    assert_eq!(found(&(namespace("name: default") + &by("name"))), []);
    assert_eq!(found(&(namespace("") + &by("kubernetes.io/metadata.name"))), []);
    // A label of another meaning is missing, not misspelt.
    let peer = "spec.ingress[0].from[0]";
    assert_eq!(found(&(namespace("") + &by("team"))), one(Check::PeerSelectsNothing, peer));
    let subject = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: c}\nspec: {tier: Admin, \
                   priority: 1, subject: {namespaces: {matchLabels: {name: default}}}}\n";
    let of_subject = found(&(namespace("") + subject));
    assert!(of_subject.contains(&(Check::NameLabelOfNamespace, "spec.subject".to_owned())), "{of_subject:?}");
}

#[test]
fn a_block_with_the_virtual_address_of_a_service_is_found() {
    let virtual_address = "{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {selector: {app: db}, clusterIP: 10.96.0.10, ports: [{port: \
                   5432}]}}\n---\n";
    let beside = |other: &str, block: &str| {
        let spec = format!(
            "{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{ipBlock: {block}}}]}}, {{ports: [{{port: 53, \
             protocol: UDP}}]}}]}}"
        );
        found(&(virtual_address.to_owned() + other + &policy(&spec)))
    };
    let to = |block: &str| beside("", block);
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: db-1}, endpoints: [{addresses: \
                 [10.96.5.5]}]}\n---\n";
    assert_eq!(beside(slice, "{cidr: 10.96.0.0/16}"), [], "the block holds a backend");
    let wrong = one(Check::BlockOfService, "spec.egress[0].to[0].ipBlock.cidr");
    for block in ["{cidr: 10.96.0.10/32}", "{cidr: 10.96.0.0/12}"] {
        assert_eq!(to(block), wrong, "{block}");
    }
    for block in [
        "{cidr: 10.96.0.11/32}",
        // Company networks and the outside hold the addresses of Services by chance.
        "{cidr: 10.0.0.0/8}",
        "{cidr: 0.0.0.0/0}",
        "{cidr: 10.96.0.0/12, except: [10.96.0.0/24]}",
        "{cidr: fd00::/64}",
    ] {
        assert_eq!(to(block), [], "{block}");
    }
}

#[test]
fn a_named_port_is_that_of_dns_if_a_pod_has_it_so() {
    let pod = |name: &str, port: u16| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default}}\nspec: {{containers: [{{name: c, ports: [{{name: \
             {name}, protocol: UDP, containerPort: {port}}}]}}]}}\nstatus: {{podIP: 10.1.4.{port}}}\n---\n"
        )
    };
    let allowing = |name: &str| {
        policy(&format!(
            "{{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{{ports: [{{port: {name}, protocol: \
             UDP}}, {{port: 53}}]}}]}}"
        ))
    };
    let pods = pod("ntp", 123) + &pod("dns", 53);
    assert_eq!(found(&(pods.clone() + &allowing("ntp"))), one(Check::BlocksDns, "spec.egress"));
    assert_eq!(found(&(pods + &allowing("dns"))), []);
}
