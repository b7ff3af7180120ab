//! Rules one by one, from manifests.

use super::{naive, objects};
use crate::net::flow::Protocol;
use crate::policy::services::{
    ServiceBackends, ServiceClient, ServiceError, Services, ServicesOptions, backends_for,
};
use crate::tables::ServicePort;

/// The only port of a table for node `n1`, which the naive evaluator has alike.
fn port(text: &str) -> ServicePort {
    let objects = objects(text);
    let options = ServicesOptions { node: Some("n1".to_owned()), derive_endpoints: true };
    let services = Services::from_objects(objects.clone(), options.clone());
    assert_eq!(services.table(), &naive::table(&objects, &options));
    services.table().ports.values().next().cloned().unwrap_or_default()
}

fn internal(text: &str) -> Vec<String> {
    port(text).internal_backends.iter().map(ToString::to_string).collect()
}

/// Service with this `spec` beside its address and port.
fn service(spec: &str) -> String {
    format!(
        "{{kind: Service, apiVersion: v1, metadata: {{name: web, namespace: shop}}, spec: {{clusterIP: 10.96.0.1, \
         ports: [{{port: 80, targetPort: 8080}}]{spec}}}}}\n"
    )
}

/// Slice of the Service with these endpoints.
fn slice(endpoints: &str) -> String {
    format!(
        "---\n{{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, addressType: IPv4, metadata: {{name: web-1, namespace: \
         shop, labels: {{kubernetes.io/service-name: web}}}}, ports: [{{port: 8080}}], endpoints: [{endpoints}]}}\n"
    )
}

const ZONE: &str = "---\n{kind: Node, apiVersion: v1, metadata: {name: n1, labels: {topology.kubernetes.io/zone: east}}, \
                    status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: n1}]}}\n";

#[test]
fn ready_endpoints_are_used_and_terminating_ones_that_serve_only_if_none_is_ready() {
    let both = "{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}, \
                {addresses: [10.0.0.3], conditions: {ready: false}}";
    assert_eq!(internal(&(service("") + &slice(both))), ["10.0.0.1:8080"]);
    let dying = "{addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}, \
                 {addresses: [10.0.0.3], conditions: {ready: false, serving: false, terminating: true}}, \
                 {addresses: [10.0.0.4], conditions: {ready: false, serving: true}}";
    assert_eq!(internal(&(service("") + &slice(dying))), ["10.0.0.2:8080"]);
}

#[test]
fn of_endpoints_with_one_address_the_ready_one_counts_in_any_order_of_slices() {
    let ready = "{addresses: [10.0.0.2], nodeName: n2}";
    let serving =
        "{addresses: [10.0.0.2], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}";
    let dying = "{addresses: [10.0.0.2], nodeName: n1, conditions: {ready: false, serving: false, terminating: true}}";
    let other = |endpoints: &str| slice(endpoints).replace("web-1", "web-0");
    for (best, worse) in [(ready, dying), (serving, dying), (ready, serving)] {
        for (first, second) in [(best, worse), (worse, best)] {
            assert_eq!(
                internal(&(service("") + &slice(first) + &other(second))),
                ["10.0.0.2:8080"],
                "{first}"
            );
        }
    }
    // Endpoints of pods.
    let pod = |name: &str, status: &str| {
        format!(
            "---\n{{kind: Pod, apiVersion: v1, metadata: {{name: {name}, namespace: shop, labels: {{app: web}}{}}}, \
             status: {{podIP: 10.0.0.2, conditions: [{{type: Ready, status: '{status}'}}]}}}}\n",
            if status == "True" { "" } else { ", deletionTimestamp: '2026-01-01T00:00:00Z'" }
        )
    };
    for statuses in [["False", "True"], ["True", "False"]] {
        let pods = pod("a", statuses[0]) + &pod("b", statuses[1]);
        assert_eq!(internal(&(service(", selector: {app: web}") + &pods)), ["10.0.0.2:8080"], "{statuses:?}");
    }
}

#[test]
fn a_local_policy_uses_endpoints_of_the_node_with_the_same_fallback() {
    let both = "{addresses: [10.0.0.1], nodeName: n2}, {addresses: [10.0.0.2], nodeName: n1}";
    let local = ", internalTrafficPolicy: Local";
    assert_eq!(internal(&(service(local) + &slice(both))), ["10.0.0.2:8080"]);
    let dying = "{addresses: [10.0.0.1], nodeName: n2}, \
                 {addresses: [10.0.0.2], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}";
    assert_eq!(internal(&(service(local) + &slice(dying))), ["10.0.0.2:8080"]);
    let away = "{addresses: [10.0.0.1], nodeName: n2}";
    assert_eq!(internal(&(service(local) + &slice(away))), [""; 0]);
    let outside = ", type: NodePort, externalTrafficPolicy: Local, externalIPs: [192.0.2.9]";
    let found = port(&(service(outside) + &slice(both)));
    assert_eq!((found.internal_backends.len(), found.external_backends.len()), (2, 1));
    // Pods and the node itself get all backends, also with both policies Local.
    let both_local = format!("{outside}{local}");
    let short = port(&(service(&both_local) + &slice(both)));
    assert_eq!(short.internal_backends, found.external_backends);
    assert_eq!(short.short_circuit_backends, Some(found.internal_backends));
    assert_eq!(port(&(service(", externalIPs: [192.0.2.9]") + &slice(both))).short_circuit_backends, None);
    assert_eq!(found.external[0].to_string(), "192.0.2.9:80");
}

#[test]
fn hints_are_used_only_if_all_ready_endpoints_have_them_and_one_is_for_this_node() {
    let zones = |one: &str, other: &str| {
        let hint = |zone: &str| match zone {
            "" => String::new(),
            zone => format!(", hints: {{forZones: [{{name: {zone}}}]}}"),
        };
        let endpoints =
            format!("{{addresses: [10.0.0.1]{}}}, {{addresses: [10.0.0.2]{}}}", hint(one), hint(other));
        internal(&(service("") + &slice(&endpoints) + ZONE))
    };
    assert_eq!(zones("east", "west"), ["10.0.0.1:8080"]);
    assert_eq!(zones("east", "").len(), 2);
    assert_eq!(zones("north", "west").len(), 2);
    let nodes = "{addresses: [10.0.0.1], hints: {forZones: [{name: east}], forNodes: [{name: n2}]}}, \
                 {addresses: [10.0.0.2], hints: {forZones: [{name: west}], forNodes: [{name: n1}]}}";
    assert_eq!(internal(&(service("") + &slice(nodes) + ZONE)), ["10.0.0.2:8080"]);
}

#[test]
fn endpoints_are_derived_from_pods_where_no_slice_exists() {
    let pod = |name: &str, address: &str, rest: &str| {
        format!(
            "---\n{{kind: Pod, apiVersion: v1, metadata: {{name: {name}, namespace: shop, labels: {{app: web}}}}, spec: {{nodeName: \
             n1, containers: [{{name: c, ports: [{{name: http, containerPort: 8000}}]}}]}}, status: {{podIP: {address}{rest}}}}}\n"
        )
    };
    let pods = pod("a", "10.0.0.1", "")
        + &pod("b", "10.0.0.2", ", conditions: [{type: Ready, status: 'False'}]")
        + &pod("c", "10.0.0.3", ", phase: Failed");
    let spec = ", selector: {app: web}";
    assert_eq!(internal(&(service(spec) + &pods)), ["10.0.0.1:8080"]);
    let unready = service(&format!("{spec}, publishNotReadyAddresses: true"));
    assert_eq!(internal(&(unready + &pods)), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    let named = service(spec).replace("targetPort: 8080", "targetPort: http");
    assert_eq!(internal(&(named + &pods)), ["10.0.0.1:8000"]);
    let missing = service(spec).replace("targetPort: 8080", "targetPort: admin");
    assert_eq!(internal(&(missing + &pods)), [""; 0]);
    assert_eq!(internal(&(service(spec) + &pods + &slice("{addresses: [10.9.9.9]}"))), ["10.9.9.9:8080"]);
}

#[test]
fn services_without_a_virtual_address_have_no_port_in_the_table() {
    for spec in [", clusterIP: None", ", type: ExternalName, externalName: example.com"] {
        let text = service(spec).replace("clusterIP: 10.96.0.1, ", "");
        assert_eq!(port(&text), ServicePort::default(), "{spec}");
    }
    assert_eq!(port(&service("").replace("clusterIP: 10.96.0.1, ", "")), ServicePort::default());
}

#[test]
fn an_address_that_several_services_claim_is_that_of_the_first_and_moves_when_it_goes() {
    let of = |name: &str, external: &str| {
        service(&format!(", externalIPs: [{external}]")).replace("name: web", &format!("name: {name}"))
    };
    let text = of("a", "10.96.0.1") + "---\n" + &of("b", "192.0.2.5").replace("10.96.0.1", "10.96.0.2");
    let other = of("c", "10.96.0.2").replace("clusterIP: 10.96.0.1", "clusterIP: 10.96.0.3");
    let objects = objects(&(text + "---\n" + &other));
    let options = ServicesOptions { node: None, derive_endpoints: true };
    let mut services = Services::from_objects(objects.clone(), options);
    let ends = |services: &Services, name: &str| {
        let port = services.table().ports.iter().find(|(port, _)| port.name == name).unwrap().1;
        (port.cluster.len(), port.external.len())
    };
    assert_eq!([ends(&services, "a"), ends(&services, "b"), ends(&services, "c")], [(1, 0), (1, 1), (1, 0)]);
    let warnings: Vec<String> = services.warnings().collect();
    assert_eq!(warnings, ["service shop/c does not get TCP 10.96.0.2:80: service shop/b has it"]);
    let name = crate::policy::ObjectName::of(&objects[1]);
    let difference = services.apply_all([crate::policy::Change::Remove(name)]);
    assert_eq!((difference.removed.len(), difference.set.len()), (1, 1));
    assert_eq!(ends(&services, "c"), (1, 1));
    assert_eq!(services.warnings().count(), 0);
}

#[test]
fn a_client_gets_the_backends_of_its_node() {
    let endpoints = "{addresses: [10.0.0.1], nodeName: n2}, {addresses: [10.0.0.2], nodeName: n1}, \
                     {addresses: [10.0.0.3], nodeName: n1, conditions: {ready: false}}";
    let objects = objects(&(service(", internalTrafficPolicy: Local") + &slice(endpoints)));
    let ask =
        |port, client| backends_for(&objects, &"shop/web".parse().unwrap(), Protocol::TCP, port, client);
    let ServiceBackends { backends, unused, addresses } =
        ask(80, ServiceClient::Pod { node: Some("n2") }).unwrap();
    assert_eq!((backends[0].to_string(), backends.len()), ("10.0.0.1:8080".to_owned(), 1));
    assert_eq!(addresses[0].to_string(), "10.96.0.1:80");
    let reasons: Vec<&str> = unused.iter().map(|unused| unused.why).collect();
    assert_eq!(reasons, ["it runs on another node, and the traffic policy is Local", "it is not ready"]);
    assert_eq!(ask(80, ServiceClient::Pod { node: None }).unwrap().backends.len(), 2);
    let error = ask(8080, ServiceClient::Outside { address: None }).unwrap_err();
    assert!(matches!(error, ServiceError::NoPort { .. }), "{error}");
    assert_eq!(error.to_string(), "service shop/web has no TCP port 8080: it has TCP 80");
}

#[test]
fn a_load_balancer_answers_the_clients_of_its_source_ranges() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web}\n\
                spec: {type: LoadBalancer, clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80, targetPort: 8080}], \
                loadBalancerSourceRanges: [198.51.100.0/24]}\n\
                status: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}\n---\n";
    let objects = objects(&(text.to_owned() + &slice("{addresses: [10.0.0.1]}")));
    let ask = |address: &str| {
        let client = ServiceClient::Outside { address: Some(address.parse().unwrap()) };
        let found = backends_for(&objects, &"shop/web".parse().unwrap(), Protocol::TCP, 80, client).unwrap();
        (found.addresses.len(), found.backends.len(), found.unused.len())
    };
    assert_eq!(ask("198.51.100.9"), (1, 1, 0));
    assert_eq!(ask("198.51.101.9"), (0, 0, 1));
}
