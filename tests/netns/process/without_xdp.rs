//! A switch without the privilege for AF_XDP: tap ports alone make a whole switch.

use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use palisade::control::protocol::PortRequest;
use palisade::dataplane::PortKind;
use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{Lab, LabSpec, POD_INTERFACE, PodPorts, Switch, SwitchSpec};

use crate::support::{PORT, TIMEOUT, assert_accounted, assert_pings, isolated, pods_manifest};

/// Program that runs the switch without the capability for AF_XDP sockets (`CAP_NET_RAW`).
fn wrapper(lab: &Lab) -> std::path::PathBuf {
    let path = lab.directory().join("without-xdp");
    let script = format!(
        "#!/bin/sh\nexec setpriv --inh-caps=-net_raw --bounding-set=-net_raw {} \"$@\"\n",
        env!("CARGO_BIN_EXE_palisade")
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn tap_ports_alone_make_a_switch() {
    let Some(_isolated) = isolated() else { return };
    let ports_of = [("veth".to_owned(), PodPorts::Veth)].into();
    let spec =
        LabSpec { ports: PodPorts::Tap, ports_of, ..LabSpec::of(&["client", "server", "veth"]).unwrap() };
    let mut lab = Lab::up(&spec).unwrap();
    let mut spec = SwitchSpec::of(wrapper(&lab));
    for pod in lab.pods().take(2) {
        let plan = pod.plan();
        write!(
            spec.config,
            "[[ports]]\nname = {:?}\nkind = \"tap\"\nnamespace = {:?}\ninterface = {POD_INTERFACE:?}\npod = \"{}\"\n\
             pod_addresses = {:?}\n",
            plan.host_interface, plan.netns, plan.pod, plan.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        )
        .unwrap();
    }
    let switch = Switch::start(&mut lab, &spec).unwrap();
    switch.apply(&pods_manifest(&lab)).unwrap();
    let (client, server) = (lab.pod("client").unwrap(), lab.pod("server").unwrap());
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        assert_pings(&client, address);
        transfer(&client, address, PORT, 1 << 20, TIMEOUT).unwrap();
    }
    assert_accounted(&switch.client().counters().unwrap());
    let problems = switch.client().status().unwrap().problems;
    assert!(problems.iter().any(|problem| problem.contains("without AF_XDP")), "{problems:?}");
    let veth = lab.pod("veth").unwrap().plan().host_interface.clone();
    let refused = switch.client().put_port(&veth, &PortRequest::of(PortKind::Pod)).unwrap_err().to_string();
    assert!(refused.contains("needs AF_XDP"), "{refused}");
}
