//! Reports on what is in force, of a switch under traffic.

use std::process::Command;

use palisade::control::protocol::{AclReport, PoliciesReport, RouteInfo};
use palisade::dataplane::{NeighborState, RouteOrigin};
use palisade::lab::traffic::{Server, Services};
use palisade::tables::PodName;
use serde::de::DeserializeOwned;

use crate::support::{INGRESS, PORT, Rig, assert_allowed, assert_denied, eventually, isolated, only_from};

/// Runs a command of `palisade` for the switch. Returns exit code and standard output.
fn run(rig: &Rig, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(arguments)
        .env("PALISADE_SOCKET", rig.switch.client().socket())
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    assert!(code != 2, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    (code, String::from_utf8(output.stdout).unwrap())
}

fn json<T: DeserializeOwned>(rig: &Rig, arguments: &[&str]) -> T {
    serde_json::from_str(&run(rig, &[arguments, &["--output", "json"]].concat()).1).unwrap()
}

#[test]
fn what_is_in_force_is_shown_with_the_counts_of_the_traffic() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 2);
    rig.apply(&only_from("server", "client"));
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let address = server.addresses()[0];
    for _ in 0..3 {
        assert_allowed(&client, address);
    }
    assert_denied(&rig.switch, &stranger, address, INGRESS);

    let acl: AclReport = json(&rig, &["show", "acl", "default/server"]);
    assert_eq!((acl.ingress.isolated, acl.egress.isolated), (Some(true), Some(false)));
    assert_eq!(acl.port.as_deref(), Some(server.plan().host_interface.as_str()));
    let [entry] = acl.ingress.entries.as_slice() else { panic!("{acl:?}") };
    assert_eq!(entry.ports, [format!("TCP {PORT}")]);
    assert_eq!(entry.peers.pods, [PodName::new("default", "client")]);
    assert_eq!(entry.decision.hits, 3, "{acl:?}");
    assert!(acl.ingress.default.hits >= 1, "{acl:?}");
    let (_, text) = run(&rig, &["show", "acl", "default/server"]);
    for words in [
        "ingress: isolated by NetworkPolicy default/to-server",
        "from default/client",
        "(3 flows)",
        "deny  everything else",
    ] {
        assert!(text.contains(words), "{words} is missing: {text}");
    }

    let policies: PoliciesReport = json(&rig, &["show", "policies"]);
    let [policy] = policies.policies.as_slice() else { panic!("{policies:?}") };
    assert_eq!((policy.policy.name.as_str(), policy.pods, policy.rules), ("to-server", 1, 1));
    assert_eq!(policy.allowed_flows, 3);
    assert!(policy.denied_packets >= 1 && policies.status.is_some(), "{policies:?}");

    let routes: Vec<RouteInfo> = json(&rig, &["show", "routes"]);
    let route =
        routes.iter().find(|route| route.prefix.contains(&address) && route.origin == RouteOrigin::Pod);
    let route = route.unwrap();
    let neighbor = route.neighbor.unwrap();
    assert_eq!(route.pod, Some(PodName::new("default", "server")));
    assert_eq!(neighbor.mac.unwrap(), server.plan().mac);
    assert_ne!(neighbor.state, NeighborState::Unresolved);

    let port = PORT.to_string();
    let ends = ["--from", "default/client", "--to", "default/server", "--port", &port];
    let (code, text) = run(&rig, &[&["explain"][..], &ends].concat());
    assert_eq!(code, 0, "{text}");
    for words in [
        "NetworkPolicy default/to-server ingress[0] (3 flows)".to_owned(),
        format!("{address} now: route {address}/32 (pod)"),
    ] {
        assert!(text.contains(&words), "{words} is missing: {text}");
    }

    eventually("all frames are free, in rings or held", || {
        let workers = rig.counters().workers;
        workers.len() == 2
            && workers.values().all(|worker| {
                worker.frames > 0
                    && worker.frames_in_rings > 0
                    && worker.frames_free + worker.frames_in_rings <= worker.frames
            })
    });
    let (_, text) = run(&rig, &["show", "umem"]);
    assert_eq!(text.lines().count(), 3, "{text}");
    let (_, text) = run(&rig, &["show", "classes"]);
    assert!(text.contains("default/client"), "{text}");
}
