//! Drain of ports, and ports, pods and routes by command, of a switch under traffic.

use std::process::Command;

use palisade::lab::traffic::{Server, Services};
use palisade::lab::{LabSpec, PodPorts, Switch, SwitchSpec};

use crate::support::connection::Connection;
use crate::support::{
    PORT, Rig, TIMEOUT, assert_allowed, assert_denied, assert_pings, eventually, isolated, pods_manifest,
};

/// Runs a command of `palisade` for the switch. Gives exit code and output.
fn palisade(rig: &Rig, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).env("PALISADE_SOCKET", rig.switch.client().socket());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Runs a command that succeeds.
fn done(rig: &Rig, arguments: &[&str]) -> String {
    let (code, said) = palisade(rig, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
    said
}

fn rig(ports: PodPorts) -> Rig {
    Rig::of(&LabSpec { ports, mtu: 1500, ..LabSpec::of(&["client", "other", "server"]).unwrap() }, "")
}

fn commands_are_kept_by_the_export_of_the_configuration(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(ports);
    let [client, server] = ["client", "server"].map(|name| rig.pod(name));
    let server_port = server.plan().host_interface.clone();
    done(&rig, &["pod", "limit", "default/server", "--egress-rate", "1G"]);
    done(&rig, &["route", "add", "198.51.100.0/24", "--port", &server_port]);
    let exported = done(&rig, &["config", "export"]);
    assert!(exported.contains("198.51.100.0/24") && exported.contains("egress_rate"), "{exported}");
    let Rig { switch, mut lab } = rig;
    switch.kill().unwrap();
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.config.push_str(&exported);
    let switch = Switch::start(&mut lab, &spec).unwrap();
    switch.apply(&pods_manifest(&lab)).unwrap();
    let rig = Rig { switch, lab };
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    assert_allowed(&client, server.addresses()[0]);
    assert_eq!(done(&rig, &["config", "export"]), exported);
}

#[test]
fn commands_are_kept_by_the_export_of_the_configuration_with_veth_pairs() {
    commands_are_kept_by_the_export_of_the_configuration(PodPorts::Veth);
}

#[test]
fn commands_are_kept_by_the_export_of_the_configuration_with_taps() {
    commands_are_kept_by_the_export_of_the_configuration(PodPorts::Tap);
}

/// Number of flows of a port's pod, as `port list` shows it.
fn flows(rig: &Rig, port: &str) -> u64 {
    let listed = done(rig, &["port", "list", "--output", "json"]);
    let ports: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let port = ports.as_array().unwrap().iter().find(|found| found["name"] == port);
    port.unwrap()["flows"].as_u64().unwrap()
}

fn a_live_connection_goes_on_while_new_ones_are_refused(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(ports);
    let [client, other, server] = ["client", "other", "server"].map(|name| rig.pod(name));
    let mut kept = Connection::open(&client, &server);
    let mut reply = Connection::open(&server, &other);
    assert!(kept.goes_on(TIMEOUT) && reply.goes_on(TIMEOUT));
    let _servers = [&server, &other].map(|pod| Server::start(pod, &[PORT], Services::Both).unwrap());

    let port = &server.plan().host_interface;
    let said = done(&rig, &["port", "drain", port]);
    assert!(
        said.starts_with(&format!("port {port} is draining: 2 flows of pod default/server are")),
        "{said}"
    );
    for address in server.addresses() {
        assert_denied(&rig.switch, &client, address, "draining");
    }
    assert_denied(&rig.switch, &server, other.addresses()[0], "draining");
    assert_allowed(&client, other.addresses()[0]);
    assert!(kept.goes_on(TIMEOUT) && reply.goes_on(TIMEOUT));
    // Other tables revalidate the flows, and end none of these.
    rig.apply(&crate::support::only_from("client", "other"));
    assert!(kept.goes_on(TIMEOUT) && reply.goes_on(TIMEOUT));
    assert_eq!(flows(&rig, port), 2);
    assert!(done(&rig, &["show", "status"]).contains(&format!("port {port} is draining")));
    let explained =
        palisade(&rig, &["explain", "--from", "default/client", "--to", "default/server", "--port", "6379"]);
    assert!(explained.1.contains("draining"), "{explained:?}");

    let (code, said) = palisade(&rig, &["port", "drain", port, "--wait", "0"]);
    assert!(code == Some(1) && said.contains("2 flows of pod default/server are left"), "{said}");
    let said = std::thread::scope(|scope| {
        let wait = scope.spawn(|| done(&rig, &["port", "drain", port, "--wait", "60"]));
        drop(reply);
        eventually("the flow of a closed connection is left no more", || flows(&rig, port) == 1);
        assert!(kept.goes_on(TIMEOUT) && !wait.is_finished());
        drop(kept);
        wait.join().unwrap()
    });
    assert!(said.contains("no flow of pod default/server is left"), "{said}");

    done(&rig, &["port", "drain", port, "--undo"]);
    assert_allowed(&client, server.addresses()[0]);
    assert!(!done(&rig, &["show", "status"]).contains("draining"));
}

#[test]
fn a_live_connection_of_a_drained_veth_port_goes_on_while_new_ones_are_refused() {
    a_live_connection_goes_on_while_new_ones_are_refused(PodPorts::Veth);
}

#[test]
fn a_live_connection_of_a_drained_tap_port_goes_on_while_new_ones_are_refused() {
    a_live_connection_goes_on_while_new_ones_are_refused(PodPorts::Tap);
}

#[test]
fn a_pod_moves_out_and_in_again_by_commands() {
    let Some(_isolated) = isolated() else { return };
    for ports in [PodPorts::Veth, PodPorts::Tap] {
        let rig = rig(ports);
        let [client, server] = ["client", "server"].map(|name| rig.pod(name));
        let plan = server.plan();
        let port = plan.host_interface.as_str();
        assert_pings(&client, plan.addresses[0]);
        let (code, said) = palisade(&rig, &["port", "remove", port]);
        assert!(code == Some(2) && said.contains("detach the pod first"), "{said}");
        done(&rig, &["pod", "detach", "default/server"]);
        done(&rig, &["port", "remove", port, "--detach=false"]);
        assert_denied(&rig.switch, &client, plan.addresses[0], "no-route");

        let request = plan.port_request();
        let mut add = vec!["port", "add", port, "--kind", if ports == PodPorts::Tap { "tap" } else { "pod" }];
        for (option, value) in [("--interface", &request.interface), ("--namespace", &request.namespace)] {
            add.extend(value.as_ref().map(|value| [option, value.as_str()]).into_iter().flatten());
        }
        let said = done(&rig, &add);
        assert!(said.contains("a restart forgets this change"), "{said}");
        let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
        let mut attach = vec!["pod", "attach", "default/server", "--port", port];
        attach.extend(addresses.iter().flat_map(|address| ["--address", address.as_str()]));
        done(&rig, &attach);
        assert_pings(&client, plan.addresses[0]);

        // A prefix behind a pod: the route is in force at once, and no longer than it stands.
        let peer = client.v4().to_string();
        done(&rig, &["route", "add", "198.51.100.0/24", "--port", port, "--next-hop", &peer]);
        assert!(done(&rig, &["route", "list"]).contains("198.51.100.0/24"));
        done(&rig, &["route", "remove", "198.51.100.0/24"]);
        assert!(!done(&rig, &["route", "list"]).contains("198.51.100.0/24"));
    }
}
