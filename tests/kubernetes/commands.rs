//! The command `palisade agent`, and the agent within the switch, on a control socket.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::IpNet;
use palisade::control::protocol::PolicySource;
use palisade::control::{Client, MetricsFormat, Server, Switch, SwitchSettings};
use palisade::dataplane::DryRun;
use palisade::source::kubernetes::{Access, Settings, SwitchTarget, run};
use serde_json::json;

use crate::fixture::{Scratch, compiled, eventually, node, policy, service, small_cluster, timing};
use crate::server::ApiServer;

/// Switch without ports.
pub(crate) fn switch() -> Switch {
    Switch::new(
        Arc::new(DryRun::new(&palisade::dataplane::Settings::default()).unwrap()),
        SwitchSettings::default(),
    )
}

/// Process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(server: &ApiServer, scratch: &Scratch) -> Command {
    let kubeconfig = scratch.write("kubeconfig", &server.kubeconfig(&json!({})));
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(["agent", "--node", "n1", "--kubeconfig"]).arg(kubeconfig);
    command.arg("--socket").arg(scratch.0.join("control.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn switch_at(scratch: &Scratch) -> Server {
    let switch = switch();
    Server::start(&scratch.0.join("control.sock"), 0o600, Arc::new(switch)).unwrap()
}

#[test]
fn the_command_loads_a_switch_survives_its_restart_and_is_alone() {
    let (server, scratch) = (ApiServer::start(), Scratch::new());
    small_cluster(&server);
    let first_switch = switch_at(&scratch);
    let mut process = Process(agent(&server, &scratch).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("palisade agent of node n1 for the switch at"), "{line}");
    let client = Client::new(scratch.0.join("control.sock"));
    let has_tables = || {
        let tables = client.tables_document().ok().map(|tables| tables.canonical());
        tables == Some(compiled(&server.objects()))
    };
    eventually("the switch has the tables", has_tables);
    let second = agent(&server, &scratch).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("process {} has the lock", process.0.id())), "{said}");
    // Another client loads tables, and the switch starts again.
    client.delete_tables().unwrap();
    eventually("the switch has the tables again", has_tables);
    drop(first_switch);
    server.put(policy("meanwhile", "web", "db"));
    let _second_switch = switch_at(&scratch);
    eventually("the next switch has the tables", has_tables);
    eventually("the switch knows its agent", || client.status().unwrap().source.is_some());
    let mut broken = policy("broken", "db", "web");
    broken["spec"]["x"] = json!(1);
    server.put(broken);
    let shown = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["show", "policies", "--socket"]).arg(scratch.0.join("control.sock"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    eventually("show policies names the policy that is not enforced", || {
        shown().contains("NetworkPolicy shop/broken is not enforced as written: spec.x: unknown field")
    });
}

#[test]
fn the_agent_of_the_same_process_loads_its_switch_and_its_state_is_visible() {
    let (server, scratch) = (ApiServer::start(), Scratch::new());
    small_cluster(&server);
    let switch = switch();
    let kubeconfig = Some(scratch.write("kubeconfig", &server.kubeconfig(&json!({}))));
    let access = Access { kubeconfig, context: None };
    let settings = Settings { access, node: Some("n1".to_owned()), timing: timing(), ..Settings::default() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopWhenDropped(&stop);
        scope.spawn(|| run(&settings, &mut SwitchTarget::new(&switch), &mut |_| {}, &stop).unwrap());
        let tables = || switch.tables().map(|tables| tables.canonical());
        eventually("the switch has the tables", || tables() == Some(compiled(&server.objects())));
        let source = switch.status().policy.unwrap().origin.source;
        assert_eq!(source, PolicySource::Kubernetes { server: format!("http://{}", server.address) });
        eventually("nothing is away", || switch.remarks().is_empty());
        // Changes are differences from the tables and Services that are loaded.
        server.put(policy("later", "web", "db"));
        eventually("the switch has the policy", || tables() == Some(compiled(&server.objects())));
        let ports = || switch.services().map(|(_, table)| table.ports.len());
        assert_eq!(ports(), Some(0));
        server.put(service("web", "10.96.0.1"));
        eventually("the switch has the Service", || ports() == Some(1));
        server.put(node("n1", &["10.1.0.0/24"], "192.0.2.1"));
        let prefix: IpNet = "10.1.0.0/24".parse().unwrap();
        eventually("the CNI plugin finds the pods' addresses", || switch.status().pod_prefixes == [prefix]);
        server.set(|faults| faults.is_away = true);
        server.cut();
        let pods =
            || switch.remarks().into_iter().find(|line| line.starts_with("Pod has not been followed for"));
        eventually("readiness says since when", || pods().is_some());
        let metrics = switch.metrics(MetricsFormat::Prometheus);
        assert!(metrics.contains("palisade_source_away_since_timestamp_seconds{kind=\"Pod\"} "), "{metrics}");
        assert!(switch.tables().is_some(), "the last tables hold");
    });
}

/// Stops an agent, even if the test fails.
pub(crate) struct StopWhenDropped<'s>(pub(crate) &'s AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
