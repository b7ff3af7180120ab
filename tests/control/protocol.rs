//! JSON of the ports and pods of the control API, byte for byte: programs of operators read it.

use palisade::control::protocol::{PodRequest, PortInfo, PortRequest};
use palisade::control::{Switch, SwitchSettings};
use palisade::dataplane::PortKind;

use crate::fixture::{on_port, pod, pod_port, switch};

const PORT_WITH_POD: &str = r#"{"name":"db","interface":"veth-db","kind":"pod","vlan":7,"state":"up","id":0,"interface_index":0,"program":0,"mtu":1500,"queues":1,"native":true,"zero_copy":false,"offloaded":false,"warnings":[],"pod":"default/db"}"#;
const HOST_PORT: &str = r#"{"name":"node","interface":"node","kind":"host","vlan":null,"state":"up","id":1,"interface_index":0,"program":0,"mtu":1500,"queues":1,"native":true,"zero_copy":false,"offloaded":false,"warnings":[],"pod":null}"#;

fn with_pod_and_node() -> std::sync::Arc<Switch> {
    let (_, switch) = switch(SwitchSettings::default());
    let port = PortRequest { interface: Some("veth-db".to_owned()), vlan: Some(7), ..pod_port() };
    switch.put_port("db", &port).unwrap();
    switch.put_pod(&pod("db"), &on_port("db", "10.1.0.2")).unwrap();
    let addresses = vec!["10.1.0.1".parse().unwrap()];
    switch.put_port("node", &PortRequest { kind: PortKind::Host, addresses, ..pod_port() }).unwrap();
    switch
}

#[test]
fn the_json_of_a_port_has_its_fields_in_one_object() {
    let ports = with_pod_and_node().ports();
    for (port, expected) in ports.iter().zip([PORT_WITH_POD, HOST_PORT]) {
        assert_eq!(serde_json::to_string(port).unwrap(), expected);
        assert_eq!(&serde_json::from_str::<PortInfo>(expected).unwrap(), port);
    }
    let down = PORT_WITH_POD.replace(r#""up""#, r#""down","reason":"interface veth-db is gone""#);
    let port: PortInfo = serde_json::from_str(&down).unwrap();
    assert_eq!(port.reason.as_deref(), Some("interface veth-db is gone"));
    assert_eq!(serde_json::to_string(&port).unwrap(), down);
}

#[test]
fn the_json_of_a_pod_has_a_null_for_an_ethernet_address_to_learn() {
    let pods = with_pod_and_node().pods();
    let expected = r#"[{"pod":"default/db","attachment":1,"port":"db","addresses":["10.1.0.2"],"mac":null,"known":false,"warnings":["no rule tables are loaded: its traffic is dropped"]}]"#;
    assert_eq!(serde_json::to_string(&pods).unwrap(), expected);
}

#[test]
fn requests_leave_out_what_is_absent_and_refuse_unknown_fields() {
    assert_eq!(serde_json::to_string(&pod_port()).unwrap(), r#"{"kind":"pod"}"#);
    let port = r#"{"kind":"host","interface":"veth-node","vlan":7,"addresses":["10.1.0.1"]}"#;
    let request: PortRequest = serde_json::from_str(port).unwrap();
    assert_eq!(serde_json::to_string(&request).unwrap(), port);
    let request = PodRequest { mac: Some("02:00:00:00:00:02".parse().unwrap()), ..on_port("p", "10.1.0.2") };
    let pod = r#"{"port":"p","addresses":["10.1.0.2"],"mac":"02:00:00:00:00:02"}"#;
    assert_eq!(serde_json::to_string(&request).unwrap(), pod);
    let without = serde_json::to_string(&on_port("p", "10.1.0.2")).unwrap();
    assert_eq!(without, r#"{"port":"p","addresses":["10.1.0.2"]}"#);
    assert!(serde_json::from_str::<PortRequest>(r#"{"kind":"pod","queues":1}"#).is_err());
    assert!(serde_json::from_str::<PodRequest>(&pod.replace("mac", "macs")).is_err());
}
