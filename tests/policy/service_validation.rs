//! Services and `EndpointSlices` that the API server refuses, with the place of each error.

use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_source};

/// Paths and messages of the errors of an object.
fn errors(text: &str) -> Vec<(String, String)> {
    match parse_source(&Source::new("s.yaml", text)) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| (error.path, error.message)).collect(),
    }
}

fn service(spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {{{spec}}}}}")
}

fn slice(rest: &str) -> String {
    format!("{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s}}, {rest}}}")
}

/// Asserts that an object has exactly one error, at a path and with a message that contains a text.
fn refused(text: &str, path: &str, says: &str) {
    match errors(text).as_slice() {
        [(at, message)] => assert!(at == path && message.contains(says), "{text}\n{at}: {message}"),
        other => panic!("{text}\n{other:?}"),
    }
}

#[test]
fn services_that_the_api_server_refuses_are_refused() {
    let port = "ports: [{port: 80}]";
    for (spec, path, says) in [
        ("", "spec.ports", "Required value"),
        ("ports: [{port: 0}]", "spec.ports[0].port", "between 1 and 65535"),
        ("ports: [{}]", "spec.ports[0].port", "Required value"),
        ("ports: [{port: 80, protocol: ICMP}]", "spec.ports[0].protocol", "Unsupported value"),
        ("ports: [{port: 80, targetPort: 70000}]", "spec.ports[0].targetPort", "between 1 and 65535"),
        ("ports: [{port: 80, targetPort: '80'}]", "spec.ports[0].targetPort", "at least one letter"),
        ("ports: [{port: 80, nodePort: 30000}]", "spec.ports[0].nodePort", "may not be used when `type`"),
        ("ports: [{port: 80}, {name: b, port: 81}]", "spec.ports[0].name", "Required value"),
        ("ports: [{name: a, port: 80}, {name: a, port: 81}]", "spec.ports[1].name", "Duplicate value"),
        ("ports: [{name: a, port: 80}, {name: b, port: 80}]", "spec.ports[1].port", "Duplicate value"),
        (
            "type: NodePort, ports: [{name: a, port: 80, nodePort: 30000}, {name: b, port: 81, nodePort: 30000}]",
            "spec.ports[1].nodePort",
            "Duplicate value",
        ),
    ] {
        refused(&service(spec), path, says);
    }
    for (spec, path, says) in [
        ("type: Cluster", "spec.type", "Unsupported value"),
        ("clusterIP: 10.0.0", "spec.clusterIP", "must be a valid IP address"),
        ("clusterIP: 127.0.0.1", "spec.clusterIP", "loopback"),
        ("clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2]", "spec.clusterIPs[0]", "must match `clusterIP`"),
        ("clusterIPs: [10.0.0.1, 10.0.0.2]", "spec.clusterIPs[1]", "no more than one IP for each IP family"),
        ("clusterIPs: [None, 10.0.0.2]", "spec.clusterIPs[1]", "the first and only value"),
        ("clusterIP: None, type: NodePort", "spec.clusterIP", "may not be set to 'None'"),
        ("externalIPs: [169.254.1.1]", "spec.externalIPs[0]", "link-local"),
        ("externalIPs: [224.0.0.9]", "spec.externalIPs[0]", "multicast"),
        ("ipFamilies: [IPv4, IPv4]", "spec.ipFamilies[1]", "Duplicate value"),
        ("ipFamilies: [IPv5]", "spec.ipFamilies[0]", "Unsupported value"),
        ("sessionAffinity: clientip", "spec.sessionAffinity", "Unsupported value"),
        ("sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}", "spec.sessionAffinityConfig", "Forbidden"),
        (
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "must be greater than 0",
        ),
        ("internalTrafficPolicy: local", "spec.internalTrafficPolicy", "Unsupported value"),
        ("externalTrafficPolicy: Local", "spec.externalTrafficPolicy", "externally-accessible"),
        ("trafficDistribution: Near", "spec.trafficDistribution", "Unsupported value"),
        ("loadBalancerSourceRanges: [10.0.0.0/8]", "spec.loadBalancerSourceRanges[0]", "Forbidden"),
        ("selector: {app: 'a b'}", "spec.selector.app", "a valid label"),
        ("type: ExternalName", "spec.externalName", "Required value"),
    ] {
        refused(&service(&format!("{spec}, {port}")), path, says);
    }
    let name = service(port).replace("name: s", "name: a.b");
    refused(&name, "metadata.name", "RFC 1123 label");
}

#[test]
fn slices_that_the_api_server_refuses_are_refused() {
    for (rest, path, says) in [
        ("endpoints: []", "addressType", "Required value"),
        ("addressType: IPv5", "addressType", "Unsupported value"),
        ("addressType: IPv4, endpoints: [{}]", "endpoints[0].addresses", "at least 1 address"),
        ("addressType: IPv4, endpoints: [{addresses: [x]}]", "endpoints[0].addresses[0]", "valid IP address"),
        ("addressType: IPv4, endpoints: [{addresses: ['fd00::1']}]", "endpoints[0].addresses[0]", "family"),
        ("addressType: IPv4, endpoints: [{addresses: [127.0.0.1]}]", "endpoints[0].addresses[0]", "loopback"),
        ("addressType: IPv4, ports: [{port: 0}]", "ports[0].port", "between 1 and 65535"),
        ("addressType: IPv4, ports: [{port: 1}, {port: 2}]", "ports[1]", "Duplicate value"),
    ] {
        refused(&slice(rest), path, says);
    }
}

#[test]
fn the_sources_of_a_load_balancer_are_read() {
    let text = |ranges: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {{type: LoadBalancer, ports: [{{port: 80}}], \
             loadBalancerSourceRanges: [{ranges}]}}, status: {{loadBalancer: {{ingress: [{{ip: 192.0.2.1}}, {{ip: 127.0.0.1}}]}}}}}}"
        )
    };
    let addresses = |ranges: &str| {
        let parsed = parse_source(&Source::new("s.yaml", text(ranges))).unwrap();
        let Object::Service(service) = &parsed.objects[0].0 else { panic!("no Service") };
        (service.load_balancer_ips.len(), service.source_ranges.len(), parsed.warnings.len())
    };
    assert_eq!(addresses("0.0.0.0/0"), (1, 0, 1), "a loopback address is left out with a warning");
    assert_eq!(addresses("10.0.0.0/8, \"2001:db8::/32\""), (1, 2, 1));
}

#[test]
fn hostile_sizes_are_bounded() {
    let ports: Vec<String> = (0..2000).map(|at| format!("{{name: p{at}, port: {}}}", at + 1)).collect();
    refused(&service(&format!("ports: [{}]", ports.join(","))), "spec.ports[1000]", "Too many");
    let endpoints = vec!["{addresses: [10.0.0.1]}"; 1001].join(",");
    refused(&slice(&format!("addressType: IPv4, endpoints: [{endpoints}]")), "endpoints[1000]", "Too many");
    let long = "n".repeat(1 << 16);
    let found = errors(&service("ports: [{port: 80}]").replace("name: s", &format!("name: {long}")));
    assert!(found.iter().all(|(path, message)| path == "metadata.name" && message.len() < 3000), "{found:?}");
}
