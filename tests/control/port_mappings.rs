//! Ports of the node that lead to pods: Services beside the loaded ones.

use palisade::control::protocol::{PodRequest, PortRequest, ServicesPatch};
use palisade::dataplane::PortKind;
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceTable, ServicesDiff};

use crate::fixture::{Served, on_port, pod, pod_port};

const NODE: &str = "192.0.2.1";

/// Switch with a host port, and a pod with these ports of the node.
fn served(mappings: &[&str]) -> Served {
    let served = Served::start();
    let addresses = vec![NODE.parse().unwrap()];
    let host = PortRequest { addresses, ..PortRequest::of(PortKind::Host) };
    served.client.put_port("node", &host).unwrap();
    served.client.put_port("veth-db", &pod_port()).unwrap();
    served.client.put_pod(&pod("db"), &with(mappings, on_port("veth-db", "10.1.0.2"))).unwrap();
    served
}

fn with(mappings: &[&str], request: PodRequest) -> PodRequest {
    PodRequest { port_mappings: mappings.iter().map(|text| text.parse().unwrap()).collect(), ..request }
}

/// Names and destinations of the Services that the workers have.
fn in_force(served: &Served) -> Vec<(String, Vec<String>)> {
    let services = served.dataplane.desired().services;
    let ports = services.iter().flat_map(|set| set.ports().iter()).map(|(name, port)| {
        let at = port.cluster.iter().chain(&port.external).chain(&port.mapped);
        (name.to_string(), at.map(ToString::to_string).collect())
    });
    ports.collect()
}

fn table(external: &str) -> ServiceTable {
    let name = ServicePortName {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        port: None,
        protocol: Protocol::TCP,
    };
    let port = ServicePort { external: vec![external.parse().unwrap()], ..ServicePort::default() };
    ServiceTable { node_addresses: vec![NODE.parse().unwrap()], ports: [(name, port)].into() }
}

#[test]
fn ports_of_the_node_are_served_beside_the_loaded_services_and_go_with_their_pods() {
    let served = served(&["8080:80"]);
    let mapped =
        ("default/db:8080:80/tcp".to_owned(), vec![format!("{NODE}:8080"), "127.0.0.1:8080".to_owned()]);
    assert_eq!(in_force(&served), std::slice::from_ref(&mapped));
    assert!(served.dataplane.desired().services_awaited, "no Services have been loaded");
    let report = served.client.services().unwrap();
    assert!(report.since.is_none() && report.ports.is_empty() && report.port_mappings.len() == 1);

    let loaded = served.client.put_services(&table("203.0.113.9:80")).unwrap();
    let web = ("shop/web".to_owned(), vec!["203.0.113.9:80".to_owned()]);
    assert_eq!(in_force(&served), [mapped, web.clone()]);
    assert!(!served.dataplane.desired().services_awaited);
    // A change of the loaded Services knows nothing of the others.
    let diff =
        ServicesDiff { node_addresses: Some(vec!["192.0.2.2".parse().unwrap()]), ..ServicesDiff::default() };
    served.client.patch_services(&ServicesPatch { base: loaded.generation, diff }).unwrap();
    assert_eq!(in_force(&served)[0].1, ["192.0.2.2:8080", "127.0.0.1:8080"]);
    served.client.delete_pod(&pod("db")).unwrap();
    assert_eq!(in_force(&served), [web]);
    assert!(served.client.services().unwrap().port_mappings.is_empty());
}

#[test]
fn a_port_of_the_node_leads_to_one_pod_and_the_status_names_one_that_leads_nowhere() {
    let served = served(&["8080:80", "192.0.2.77:9090:90", "[::1]:9091:91"]);
    let problems = || served.client.status().unwrap().problems;
    let has_problem = |text: &str| problems().iter().any(|problem| problem.contains(text));
    assert!(has_problem("192.0.2.77 is no address of the node"), "{:?}", problems());
    assert!(has_problem("the pod has no address of that family"), "{:?}", problems());
    served.client.put_port("veth-web", &pod_port()).unwrap();
    let web = |mapping| with(&[mapping], on_port("veth-web", "10.1.0.3"));
    for taken in ["8080:81", "192.0.2.1:8080:80"] {
        let refused = served.client.put_pod(&pod("web"), &web(taken)).unwrap_err();
        assert_eq!(refused.status(), Some(409), "{refused}");
        assert!(refused.to_string().contains("already leads to pod default/db"), "{refused}");
    }
    served.client.put_pod(&pod("web"), &web("8080:80/udp")).unwrap();
    // A Service has an address and port of the node first.
    served.client.put_services(&table("192.0.2.1:8080")).unwrap();
    assert!(has_problem("Service shop/web has it"), "{:?}", problems());
    let names: Vec<String> = in_force(&served).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["default/web:8080:80/udp", "shop/web"]);
}

#[test]
fn a_port_that_a_socket_of_the_node_may_get_and_one_that_is_a_node_port_are_problems() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first = range.split_whitespace().next().unwrap();
    let served = served(&[&format!("{first}:80"), "30080:80"]);
    let problems = || served.client.status().unwrap().problems;
    assert_eq!(in_force(&served).len(), 2);
    assert!(problems().iter().any(|problem| problem.contains("ip_local_reserved_ports")), "{:?}", problems());
    let mut services = table("203.0.113.9:80");
    services.ports.values_mut().for_each(|port| port.node_port = Some(30_080));
    served.client.put_services(&services).unwrap();
    assert!(problems().iter().any(|problem| problem.contains("Service shop/web has it")), "{:?}", problems());
    assert_eq!(in_force(&served).len(), 2);
}

#[test]
fn ports_of_the_node_that_make_no_sense_are_refused() {
    let served = served(&[]);
    served.client.put_port("veth-web", &pod_port()).unwrap();
    let twice = with(&["80:80", "192.0.2.1:80:81"], on_port("veth-web", "10.1.0.3"));
    let refused = served.client.put_pod(&pod("web"), &twice).unwrap_err();
    assert!(refused.to_string().contains("are the same port of the node"), "{refused}");
    assert!(in_force(&served).is_empty());
}
