//! Explanations of a connection's path on a simulated dataplane, by the socket and by the command.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use assert_cmd::Command;
use palisade::control::explain::{PathReport, PathStepKind};
use palisade::control::protocol::PortRequest;
use palisade::control::{Client, PortRoute, Server, Switch, SwitchSettings};
use palisade::dataplane::{
    Backend, ConntrackSettings, Counters, DataplaneApi, DesiredState, DropReason, DryRun, FlowDecisions,
    FlowPath, Gateway, Mac, PortError, PortHealth, PortKind, PortReport, PortSpec, PublishError, RouteReport,
    Settings, Simulation, Workers,
};
use palisade::ids::{Generation, PortId};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::parse::Source;
use palisade::policy::testcase::Endpoint;
use palisade::source::load::{LoadOptions, load_sources};
use palisade::tables::Verdict;

use crate::fixture::{Scratch, on_port, pod, pod_port};

/// Memory ports under the names of interfaces, whose peers send nothing.
pub(crate) struct SimulatedDataplane {
    simulation: Mutex<Simulation>,
    workers: DryRun,
}

impl DataplaneApi for SimulatedDataplane {
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut simulation = self.simulation.lock().unwrap();
        let port = match spec.kind {
            PortKind::Uplink => simulation.open_uplink(Mac([2, 0, 0, 0, 0, 9]), spec.vlan, 1400),
            kind => simulation.open_port(kind, spec.vlan, 1500),
        }?;
        Ok(PortReport {
            id: port.id,
            interface_index: 0,
            program: 0,
            mtu: 1500,
            queues: 1,
            native: true,
            zero_copy: false,
            offloaded: false,
            not_offloaded: None,
            warnings: Vec::new(),
        })
    }

    fn close_port(&self, port: PortId, _: bool) -> Result<(), PortError> {
        self.simulation.lock().unwrap().close_port(port)
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError> {
        Ok(self.simulation.lock().unwrap().publish(desired))
    }

    fn counters(&self) -> Counters {
        self.simulation.lock().unwrap().counters()
    }

    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        self.simulation.lock().unwrap().path_by(flow, backend)
    }

    fn routes(&self) -> Vec<RouteReport> {
        self.simulation.lock().unwrap().routes()
    }

    fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.simulation.lock().unwrap().route_of(address)
    }

    fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        let FlowPath { generation, egress, ingress, .. } = self.path(flow, None);
        FlowDecisions { generation, egress, ingress }
    }

    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    fn workers(&self) -> Option<&dyn Workers> {
        self.workers.workers()
    }

    fn reopen_port(&self, port: PortId, _: &PortSpec) -> Result<PortReport, PortError> {
        Err(PortError::Unknown(port))
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Err(PortError::Unknown(port))
    }

    fn block_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn block_new_interface(&self, _: u32, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn unblock_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

pub(crate) const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, labels: {app: db}}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far}, spec: {containers: [{name: c}]}, status: {podIP: 10.2.0.2}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 6379}]}]}
";

/// Starts a switch with the pods db and web, the tables of [`OBJECTS`], and routes by an uplink that is not
/// open yet.
pub(crate) fn switch() -> (Arc<SimulatedDataplane>, Arc<Switch>) {
    let conntrack = ConntrackSettings { flows_max: 1024, ..ConntrackSettings::default() };
    let settings = Settings {
        cores: vec![0],
        frames_per_worker: 1024,
        huge_pages: false,
        conntrack,
        ..Settings::default()
    };
    let simulation = Mutex::new(Simulation::new(&settings).unwrap());
    let dataplane = Arc::new(SimulatedDataplane { simulation, workers: DryRun::new(&settings).unwrap() });
    let route = |prefix: &str, next_hop: Option<&str>| PortRoute {
        prefix: prefix.parse().unwrap(),
        port: "eth0".to_owned(),
        next_hop: next_hop.map(|address| address.parse().unwrap()),
        node: false,
    };
    let settings = SwitchSettings {
        gateway: Gateway { addresses: vec![address("169.254.1.1")], ..Gateway::default() },
        pod_prefixes: vec!["10.1.0.0/24".parse().unwrap()],
        routes: vec![route("10.2.0.0/16", Some("192.0.2.2")), route("192.0.2.0/24", None)],
        ..SwitchSettings::default()
    };
    let switch = Switch::new(dataplane.clone(), settings);
    for (name, address) in [("db", "10.1.0.2"), ("web", "10.1.0.3")] {
        let port = format!("veth-{name}");
        switch.put_port(&port, &pod_port()).unwrap();
        switch.put_pod(&pod(name), &on_port(&port, address)).unwrap();
    }
    let tables =
        load_sources(&[Source::new("objects.yaml", OBJECTS)], &LoadOptions::default()).unwrap().tables;
    switch.put_tables(tables).unwrap();
    (dataplane, Arc::new(switch))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn explain(switch: &Switch, from: &str, to: &str, port: u16) -> PathReport {
    let [from, to]: [Endpoint; 2] = [from, to].map(|end| end.parse().unwrap());
    switch.explain([&from, &to], Protocol::TCP, Some(port), None).unwrap().remove(0)
}

pub(crate) fn open_uplink(switch: &Switch) {
    let uplink = PortRequest { kind: PortKind::Uplink, ..pod_port() };
    switch.put_port("eth0", &uplink).unwrap();
}

#[test]
fn a_path_between_pods_names_ports_rules_mtu_and_neighbour() {
    let (_, switch) = switch();
    let report = explain(&switch, "default/web", "default/db", 6379);
    assert_eq!((report.verdict, report.dropped), (Verdict::Allow, None), "{report}");
    let text = report.to_string();
    for part in [
        "10.1.0.3 comes by port veth-web (veth-web) of pod default/web",
        "the port may send from 10.1.0.3",
        "10.1.0.2 is behind port veth-db (veth-db) of pod default/db",
        "packets of up to 1500 bytes leave",
        "the Ethernet address of 10.1.0.2 is not known: packets are dropped as unresolved until it has answered",
        "replies leave by port veth-web (veth-web)",
        "egress of default/web: allow: no policy isolates the pod for egress",
        "ingress of default/db: allow: NetworkPolicy default/db ingress[0]",
        "10.1.0.3 now: route 10.1.0.3/32 (pod) by port veth-web (veth-web, up, MTU 1500), 10.1.0.3 (unresolved)",
        "10.1.0.2 now: route 10.1.0.2/32 (pod) by port veth-db (veth-db, up, MTU 1500), 10.1.0.2 (unresolved)",
        "ingress of default/db: allow: NetworkPolicy default/db ingress[0] (0 flows)",
        "TCP 6379: allow: NetworkPolicy default/db ingress[0]",
        "everything else: deny: isolated for ingress by NetworkPolicy default/db; no rule matched",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let denied = explain(&switch, "default/web", "default/db", 80);
    assert_eq!((denied.verdict, denied.dropped), (Verdict::Deny, Some(DropReason::PolicyIngress)));
}

#[test]
fn an_address_without_a_route_is_not_allowed() {
    let (dataplane, switch) = switch();
    let report = explain(&switch, "default/web", "198.51.100.1", 80);
    assert_eq!((report.verdict, report.dropped), (Verdict::Deny, Some(DropReason::NoRoute)));
    assert!(report.to_string().starts_with("deny (no-route): TCP 10.1.0.3"), "{report}");
    assert!(
        report.to_string().contains("a [[routes]] entry of the configuration would lead there"),
        "{report}"
    );
    // Address of no pod, within the prefix of this node's pods.
    assert_eq!(explain(&switch, "default/web", "10.1.0.9", 80).dropped, Some(DropReason::NoRoute));
    assert_eq!(explain(&switch, "10.1.0.9", "default/db", 6379).dropped, Some(DropReason::Spoofed));
    assert_eq!(explain(&switch, "198.51.100.1", "default/db", 6379).verdict, Verdict::Deny);

    let report = explain(&switch, "default/web", "default/far", 80);
    assert_eq!(report.dropped, Some(DropReason::NoRoute));
    assert!(report.to_string().contains("the route 10.2.0.0/16 counts when port eth0 is open"), "{report}");
    open_uplink(&switch);
    let report = explain(&switch, "default/web", "default/far", 80);
    assert_eq!(report.verdict, Verdict::Allow, "{report}");
    let text = report.to_string();
    assert!(text.contains("10.2.0.2 is behind port eth0 (eth0), an uplink, by router 192.0.2.2"), "{text}");
    assert!(
        text.contains("packets of up to 1400 bytes") && text.contains("of 192.0.2.2 is not known"),
        "{text}"
    );
    assert!(text.contains("pod default/far is not attached to this switch"), "{text}");
    let uplink = switch.ports().iter().find(|port| port.name == "eth0").unwrap().report.id;
    dataplane.simulation.lock().unwrap().resolve(uplink, address("192.0.2.2"), Some(Mac([2, 0, 0, 0, 0, 7])));
    let text = explain(&switch, "default/web", "default/far", 80).to_string();
    assert!(text.contains("192.0.2.2 has the Ethernet address 02:00:00:00:00:07"), "{text}");
    let route = "10.2.0.2 now: route 10.2.0.0/16 (configured) by port eth0 (eth0, up, MTU 1400), router 192.0.2.2, \
                 192.0.2.2 at 02:00:00:00:00:07 (resolved)";
    assert!(text.contains(route), "{text}");

    // The packet could come by the uplink, but no reply would have a route.
    let report = explain(&switch, "198.51.100.1", "default/db", 6379);
    assert_eq!((report.verdict, report.dropped), (Verdict::Deny, Some(DropReason::NoRoute)));
    let reply = report.steps.iter().find(|step| step.step == PathStepKind::Reply).unwrap();
    assert!(!reply.passes && reply.text.contains("no way back to 198.51.100.1"), "{report}");
    assert_eq!(explain(&switch, "10.2.0.2", "192.0.2.9", 80).dropped, Some(DropReason::NoRoute));
}

#[test]
fn a_pod_that_the_tables_do_not_know_is_told() {
    let (_, switch) = switch();
    switch.put_port("veth-new", &pod_port()).unwrap();
    switch.put_pod(&pod("new"), &on_port("veth-new", "10.1.0.4")).unwrap();
    let report = explain(&switch, "default/new", "default/db", 6379);
    assert_eq!(report.dropped, Some(DropReason::UnknownPod), "{report}");
    assert!(
        report.to_string().contains("DROPPED: pod default/new: the loaded tables do not know the pod"),
        "{report}"
    );
}

#[test]
fn the_command_asks_the_running_switch() {
    let (_, switch) = switch();
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let _server = Server::start(&socket, 0o660, switch).unwrap();
    let explain = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let output =
            command.arg("explain").args(arguments.split(' ')).arg("--socket").arg(&socket).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = explain("--from default/web --to default/db --port 6379");
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("allow: TCP 10.1.0.3:49152 -> 10.1.0.2:6379\n"), "{out}");
    let (code, out, _) = explain("--from default/web --to 198.51.100.1 --port 80 --output json");
    assert_eq!(code, 1);
    let reports: Vec<PathReport> = serde_json::from_str(&out).unwrap();
    assert_eq!(reports[0].dropped, Some(DropReason::NoRoute));
    for (arguments, says) in [
        (
            "--from default/nobody --to default/db --port 1",
            "pod default/nobody is not attached: `palisade show pods`",
        ),
        ("--from default/web --to default/db", "port: TCP needs a destination port"),
        ("--from default/web --to fd00::1 --port 1", "no address of one family"),
        ("--from default/web --to default/db --port 1 --protocol 256", "a number from 0 to 255"),
    ] {
        let (code, out, err) = explain(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments}");
        assert!(err.contains(says), "{arguments}: {err}");
    }
    let client = Client::new(&socket);
    let ends = ["10.1.0.3", "10.1.0.2"].map(|end| end.parse::<Endpoint>().unwrap());
    let refused = client.explain(ends.each_ref(), Protocol::TCP, Some(0), None).unwrap_err();
    assert_eq!(refused.status(), Some(422), "{refused}");
}
