//! Services in the commands about policies.

use super::{Scratch, policy};

const SERVICE: &str = "---
{apiVersion: v1, kind: Service, metadata: {name: data, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: db}, \
                       ports: [{port: 80, targetPort: 5432}]}}
";

/// Directory with pods, a policy that lets `api` reach the database on some port, and the Service before it.
fn shop(name: &str, port: u16) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.write("policy.yaml", &(policy("api", port, port) + SERVICE));
    scratch
}

#[test]
fn a_connection_to_a_service_is_explained_at_each_backend() {
    let scratch = shop("service-explain", 5432);
    let ask =
        |from: &str| scratch.palisade(&format!("explain --from {from} --to service/shop/data --port 80 ."));
    let (code, out, err) = ask("shop/api");
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.starts_with("allow: TCP from shop/api to service shop/data port 80 (10.96.0.1:80)\n"),
        "{out}"
    );
    assert!(out.contains("every connection goes to the only backend"), "{out}");
    assert!(out.contains("backend 240.0.0.2:5432 (pod shop/db") || out.contains(":5432 ("), "{out}");
    let (code, out, _) = ask("shop/web");
    assert_eq!(code, 1);
    assert!(out.starts_with("deny: TCP from shop/web") && out.contains("came close"), "{out}");
    let found = scratch.json("explain --from shop/web --to service/shop/data --port 80 -o json .");
    assert_eq!((&found[0]["verdict"], &found[0]["flows"][0]["verdict"]), (&"deny".into(), &"deny".into()));
    assert_eq!(found[0]["addresses"][0], "10.96.0.1:80");
}

#[test]
fn what_a_service_has_not_is_an_error_that_says_what_it_has() {
    let scratch = shop("service-errors", 5432);
    for (to, port, says) in [
        ("service/shop/data", 81, "service shop/data has no TCP port 81: it has TCP 80"),
        ("service/shop/dat", 80, "there is no Service shop/dat in the manifests"),
        ("service/shop/", 80, "write namespace/name"),
    ] {
        let (code, out, err) =
            scratch.palisade(&format!("explain --from shop/api --to {to} --port {port} ."));
        assert_eq!((code, out.as_str()), (2, ""), "{to}");
        assert!(err.contains(says), "{to}: {err}");
    }
    scratch.write("policy.yaml", &SERVICE.replace("10.96.0.1", "None"));
    let (code, _, err) = scratch.palisade("explain --from shop/api --to service/shop/data --port 80 .");
    assert!(code == 2 && err.contains("is headless"), "{err}");
}

#[test]
fn a_service_with_an_unready_backend_only_refuses_and_says_why() {
    let scratch = shop("service-unready", 5432);
    let pods = "{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: \
                [{name: c}]}, status: {podIP: 10.1.0.1, conditions: [{type: Ready, status: 'False'}]}}\n---\n{apiVersion: v1, \
                kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {containers: [{name: c}]}}\n";
    scratch.write("pods.yaml", pods);
    let (code, out, _) = scratch.palisade("explain --from shop/api --to service/shop/data --port 80 .");
    assert_eq!(code, 1);
    assert!(out.contains("has no backend for this client: connections are refused"), "{out}");
    assert!(out.contains("10.1.0.1:5432 takes no connection: it is not ready"), "{out}");
}

#[test]
fn a_failed_probe_to_a_service_names_the_backend_or_says_that_there_is_none() {
    let scratch = Scratch::new("service-probes");
    let case = |selector: &str, expect: &str| {
        format!(
            "name: c\nresources:\n- {{apiVersion: v1, kind: Pod, metadata: {{name: db, namespace: shop, labels: {{app: db}}}}, spec: \
             {{containers: [{{name: c}}]}}, status: {{podIP: 10.1.0.1}}}}\n- {{apiVersion: v1, kind: Service, metadata: {{name: data, \
             namespace: shop}}, spec: {{selector: {{app: {selector}}}, ports: [{{port: 80}}]}}}}\nprobes:\n- {{from: {{ip: 192.0.2.1}}, \
             to: {{service: shop/data}}, port: 80, expect: {expect}}}\n"
        )
    };
    for (selector, expect, code, says) in [
        ("db", "allow", 0, "probes: 1 passed"),
        ("db", "deny", 1, "service/shop/data may pick backend 10.1.0.1:80:"),
        ("none", "deny", 0, "probes: 1 passed"),
        ("none", "allow", 1, "service/shop/data has no backend for this client: connections are refused"),
    ] {
        scratch.write("case.yaml", &case(selector, expect));
        let (got, out, err) = scratch.palisade("test case.yaml");
        assert_eq!(got, code, "{selector} {expect}: {out}{err}");
        assert!(out.contains(says), "{selector} {expect}: {out}");
    }
}

#[test]
fn a_service_without_a_backend_of_the_clients_family_refuses() {
    let scratch = Scratch::new("service-family");
    let objects = |service: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: six, namespace: shop, labels: {{app: six}}}}, spec: {{containers: [{{name: \
             c}}]}}, status: {{podIP: 'fd00::1'}}}}\n---\n{{apiVersion: v1, kind: Service, metadata: {{name: data, namespace: shop}}, \
             spec: {{selector: {{app: six}}, ports: [{{port: 80}}], {service}}}}}\n"
        )
    };
    let explain = "explain --from 10.0.0.9 --to service/shop/data --port 80 .";
    let dual = "clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd96::1'], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: \
                RequireDualStack";
    scratch.write("objects.yaml", &objects(dual));
    let (code, out, err) = scratch.palisade(explain);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("has no backend for this client: connections are refused"), "{out}");
    assert!(
        out.contains("[fd00::1]:80 takes no connection: the client has no address of its family"),
        "{out}"
    );
    scratch.write("objects.yaml", &objects("clusterIP: 'fd96::1'"));
    let (code, _, err) = scratch.palisade(explain);
    assert!(code == 2 && err.contains("no address of one family"), "{err}");
    let case = "name: c\nresources: [objects.yaml]\nprobes:\n- {from: {ip: 10.0.0.9}, to: {service: shop/data}, port: 80, \
                expect: deny}\n";
    scratch.write("case.yaml", &case.replace("[objects.yaml]", &flow_list(&objects(dual))));
    let (code, out, err) = scratch.palisade("test case.yaml");
    assert!(code == 0 && out.contains("probes: 1 passed"), "{out}{err}");
}

#[test]
fn the_address_of_a_service_is_no_backend_of_another() {
    let scratch = shop("service-of-service", 5432);
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: data-1, namespace: shop, labels: \
                 {kubernetes.io/service-name: data}}, addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: \
                 [10.96.0.2]}]}\n---\n{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, spec: {clusterIP: \
                 10.96.0.2, ports: [{port: 80}]}}\n";
    scratch.write("slice.yaml", slice);
    let (code, out, err) = scratch.palisade("explain --from shop/api --to service/shop/data --port 80 .");
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("10.96.0.2:80 takes no connection: its address is that of a Service"), "{out}");
}

/// The documents of a manifest as a YAML list.
fn flow_list(documents: &str) -> String {
    format!("[{}]", documents.trim_end().replace("---\n", ", "))
}

#[test]
fn lint_finds_the_port_of_a_service_in_a_rule() {
    let scratch = shop("service-lint", 80);
    let (code, out, _) = scratch.palisade("lint .");
    assert_eq!(code, 1);
    let says = "80 is the port of Service shop/data: policy is asked about the pods behind it, and pod shop/db has port 5432: \
                write 5432 [port-of-service]";
    assert!(out.contains(says), "{out}");
    let right = shop("service-lint-right", 5432);
    assert_eq!(right.palisade("lint ."), (0, "Nothing found.\n".to_owned(), String::new()));
}

#[test]
fn policies_of_the_cluster_apply_to_a_pod_through_its_own_service() {
    let scratch = Scratch::new("service-itself");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: \
               c}]}, status: {podIP: 10.1.0.1}}";
    let service = "{apiVersion: v1, kind: Service, metadata: {name: data, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: \
                   {app: db}, ports: [{port: 80}]}}";
    let isolated = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: none, namespace: shop}, spec: \
                    {podSelector: {}, policyTypes: [Ingress, Egress]}}";
    let cluster = "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: closed}, spec: {tier: \
                   Admin, priority: 1, subject: {pods: {podSelector: {matchLabels: {app: db}}}}, ingress: [{action: Deny, from: \
                   [{namespaces: {}}]}]}}";
    let text = |policies: &[&str]| [&[pod, service], policies].concat().join("\n---\n");
    let to = |destination: &str| {
        scratch.palisade(&format!("explain --from shop/db --to {destination} --port 80 ."))
    };
    for (policies, code, says) in [
        (&[isolated][..], 0, "a pod always reaches itself"),
        (&[isolated, cluster], 1, "ClusterNetworkPolicy closed ingress[0]"),
    ] {
        scratch.write("objects.yaml", &text(policies));
        let (got, out, err) = to("service/shop/data");
        assert_eq!(got, code, "{out}{err}");
        assert!(out.contains(says), "{out}");
        // Its own address does not leave it.
        let (got, out, _) = to("shop/db");
        assert!(got == 0 && out.contains("a pod always reaches itself"), "{out}");
    }
    // Policy tests agree.
    let resources = [pod, service, isolated, cluster].map(|object| format!("- {object}\n")).concat();
    let probe = |to: &str, expect: &str| {
        format!("- {{from: {{pod: shop/db}}, to: {to}, port: 80, expect: {expect}}}\n")
    };
    let probes = probe("{service: shop/data}", "deny") + &probe("{pod: shop/db}", "allow");
    scratch.write("case.yaml", &format!("name: c\nresources:\n{resources}probes:\n{probes}"));
    let (got, out, err) = scratch.palisade("test case.yaml");
    assert_eq!(got, 0, "{out}{err}");
}
