//! Services from manifests: the watched directory, `apply`, `show services` and `explain` on a fake dataplane.

use std::fs;

use palisade::config::Policy;
use palisade::control::protocol::PolicyOrigin;
use palisade::control::{CoverageCheck, Server, SwitchSettings};
use palisade::net::flow::Protocol;
use palisade::source::{PolicyDirectory, Reload};
use palisade::tables::{ServicePort, ServicePortName, ServiceTable};

use crate::commands::palisade;
use crate::fixture::{Scratch, Served, on_port, pod, pod_port, switch};

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: default, labels: {app: web}}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: default, labels: {app: db}}, status: {podIP: 10.1.0.3}}
";

fn service(target: u16) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: data, namespace: default}}, spec: {{clusterIP: 10.96.0.1, selector: \
         {{app: db}}, ports: [{{port: 80, targetPort: {target}}}]}}}}\n"
    )
}

/// Backends of all ports of a table.
fn backends(table: Option<ServiceTable>) -> Vec<String> {
    let ports = table.unwrap_or_default().ports;
    ports.values().flat_map(|port| &port.internal_backends).map(ToString::to_string).collect()
}

#[test]
fn a_directory_loads_its_services_after_its_tables_and_removes_them_with_their_files() {
    let scratch = Scratch::new();
    let root = scratch.0.join("policies");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("pods.yaml"), PODS).unwrap();
    let config = Policy { directory: Some(root.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let (_, switch) = switch(SwitchSettings::default());
    let tables = directory.load().unwrap().tables;
    switch.replace_tables(tables, PolicyOrigin::directory(&root), CoverageCheck::Require).unwrap();
    directory.started(&switch);
    let running_table = || switch.services().map(|(_, table)| table);
    // Services of the process before are awaited no longer.
    assert_eq!(running_table(), Some(ServiceTable::default()));
    let mut outcome = || {
        let timeout = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            match directory.turn(false, &switch) {
                Reload::NotDue if std::time::Instant::now() < timeout => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                outcome => return outcome,
            }
        }
    };
    let running = || backends(running_table());

    // A directory without Services leaves those of others.
    let others = ServiceTable {
        ports: [(
            ServicePortName {
                namespace: "default".to_owned(),
                name: "other".to_owned(),
                port: None,
                protocol: Protocol::UDP,
            },
            ServicePort { cluster: vec!["10.96.0.9:80".parse().unwrap()], ..ServicePort::default() },
        )]
        .into(),
        ..ServiceTable::default()
    };
    switch.replace_services(&others).unwrap();
    fs::write(root.join("pods.yaml"), PODS.replace("10.1.0.2", "10.1.0.5")).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running_table(), Some(others));

    fs::write(root.join("service.yaml"), service(5432)).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running(), ["10.1.0.3:5432"]);
    // An invalid file changes nothing.
    fs::write(root.join("service.yaml"), service(0).replace("targetPort: 0", "targetPort: -1")).unwrap();
    let Reload::Rejected(errors) = outcome() else { panic!("not rejected") };
    assert!(errors[0].contains("spec.ports[0].targetPort"), "{errors:?}");
    assert_eq!(running(), ["10.1.0.3:5432"]);
    // A changed file is one difference; a pod that moves takes its Service along.
    fs::write(root.join("service.yaml"), service(5433)).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running(), ["10.1.0.3:5433"]);
    fs::write(root.join("pods.yaml"), PODS.replace("10.1.0.3", "10.1.0.4")).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running(), ["10.1.0.4:5433"]);
    // Services that another client loads meanwhile are replaced with the next change.
    switch.replace_services(&ServiceTable::default()).unwrap();
    fs::write(root.join("service.yaml"), service(5434)).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running(), ["10.1.0.4:5434"]);
    fs::remove_file(root.join("service.yaml")).unwrap();
    assert!(matches!(outcome(), Reload::Loaded { .. }));
    assert_eq!(running(), [""; 0]);
    assert!(switch.tables().unwrap().pods.len() == 2, "the tables stay");
}

#[test]
fn a_switch_that_starts_with_a_directory_has_its_services() {
    let scratch = Scratch::new();
    scratch.write("all.yaml", &format!("{PODS}---\n{}", service(5432)));
    let config = Policy { directory: Some(scratch.0.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let (_, switch) = switch(SwitchSettings::default());
    switch.put_tables(directory.load().unwrap().tables).unwrap();
    directory.started(&switch);
    assert_eq!(backends(switch.services().map(|(_, table)| table)), ["10.1.0.3:5432"]);
}

#[test]
fn services_are_applied_shown_explained_and_unloaded() {
    let served = Served::start();
    let socket = served.socket().to_str().unwrap();
    served.client.put_port("p0", &pod_port()).unwrap();
    served.client.put_pod(&pod("web"), &on_port("p0", "10.1.0.2")).unwrap();
    let (_, out, _) = palisade(&["show", "services", "--socket", socket]);
    assert!(out.contains("No Services are loaded"), "{out}");
    let file = served.scratch.write("all.yaml", &format!("{PODS}---\n{}", service(5432)));
    let file = file.to_str().unwrap();
    let (code, out, err) = palisade(&["apply", file, "--socket", socket]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Services loaded: 1 ports, generation "), "{out}");
    let (code, out, _) = palisade(&["show", "services", "--socket", socket]);
    assert_eq!(code, 0);
    for part in ["default/data", "TCP", "10.96.0.1:80", "10.1.0.3:5432 0"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = palisade(&["show", "services", "--output", "json", "--socket", socket]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ports"][0]["backends"][0]["address"], "10.1.0.3:5432");

    // A dry run, and a file with an error, change nothing.
    let (code, out, err) = palisade(&["apply", "--dry-run", file, "--socket", socket]);
    assert_eq!((code, out.as_str()), (0, "No connection opens or closes.\n"), "{err}");
    let pods = served.scratch.write("pods.yaml", PODS);
    let (code, out, err) = palisade(&["apply", "--dry-run", pods.to_str().unwrap(), "--socket", socket]);
    let ends = "No connection opens or closes.\n- ends    default/data (TCP)\n    cluster addresses: -10.96.0.1:80\n    backends: -10.1.0.3:5432\n";
    assert_eq!((code, out.as_str()), (1, ends), "{err}");
    let moved = served.scratch.write("moved.yaml", &format!("{PODS}---\n{}", service(5433)));
    let moved = moved.to_str().unwrap();
    let (code, out, _) = palisade(&["apply", "--dry-run", moved, "--socket", socket]);
    assert!(
        code == 1
            && out.ends_with("~ changes default/data (TCP)\n    backends: +10.1.0.3:5433 -10.1.0.3:5432\n"),
        "{out}"
    );
    let (code, out, _) = palisade(&["apply", "--dry-run", "-o", "json", moved, "--socket", socket]);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["changes"].as_array().map(Vec::len), Some(0));
    assert_eq!(
        (code, &found["services"]["ports"][0]["after"]["internal_backends"][0]),
        (1, &"10.1.0.3:5433".into())
    );
    // A rehearsal says that it leaves the Services out.
    let (code, _, err) = palisade(&["apply", "--shadow", moved, "--socket", socket]);
    assert!(code == 2 || err.contains("Services are not rehearsed"), "{err}");
    let wrong = served.scratch.write(
        "wrong.yaml",
        &format!("{PODS}---\n{}", service(0).replace("targetPort: 0", "targetPort: -1")),
    );
    let (code, _, err) = palisade(&["apply", wrong.to_str().unwrap(), "--socket", socket]);
    assert!(code == 2 && err.contains("spec.ports[0].targetPort"), "{err}");
    assert_eq!(served.client.services().unwrap().ports.len(), 1);
    let pods = served.scratch.write("pods.yaml", PODS);
    let (_, out, _) = palisade(&["apply", pods.to_str().unwrap(), "--socket", socket]);
    assert!(out.contains("Services unloaded"), "{out}");
    palisade(&["apply", file, "--socket", socket]);
    let (_, out, _) = palisade(&["apply", "--delete", "--socket", socket]);
    assert!(out.contains("rule tables unloaded") && out.contains("Services unloaded"), "{out}");
    assert!(served.client.services().unwrap().ports.is_empty());
}

#[test]
fn a_service_of_the_running_switch_is_explained_at_each_backend() {
    let (_, switch) = crate::explain::switch();
    let port = |backends: &[&str]| ServicePort {
        cluster: vec!["10.96.0.1:80".parse().unwrap()],
        internal_backends: backends.iter().map(|backend| backend.parse().unwrap()).collect(),
        ..ServicePort::default()
    };
    let name = |name: &str| ServicePortName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        port: None,
        protocol: Protocol::TCP,
    };
    let empty = ServicePort { cluster: vec!["10.96.0.2:80".parse().unwrap()], ..port(&[]) };
    let ports = [(name("data"), port(&["10.1.0.2:22", "10.1.0.2:6379"])), (name("none"), empty)].into();
    switch.replace_services(&ServiceTable { ports, ..ServiceTable::default() }).unwrap();
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let _server = Server::start(&socket, 0o660, switch).unwrap();
    let explain = |to: &str, port: &str| {
        let socket = socket.to_str().unwrap();
        palisade(&["explain", "--from", "default/web", "--to", to, "--port", port, "--socket", socket])
    };
    let (code, out, err) = explain("service/default/data", "80");
    assert_eq!(code, 1, "{out}{err}");
    assert!(
        out.starts_with("mixed: TCP from default/web to service default/data port 80 (10.96.0.1:80)"),
        "{out}"
    );
    assert!(out.contains("backends: 2") && out.contains("6379") && out.contains("deny"), "{out}");
    let (code, out, _) = explain("service/default/none", "80");
    assert!(code == 1 && out.contains("the Service has no backend: the switch refuses connections"), "{out}");
    let (code, _, err) = explain("service/default/data", "81");
    assert!(code == 2 && err.contains("it has TCP 80"), "{err}");
    let (code, _, err) = explain("service/default/other", "80");
    assert!(code == 2 && err.contains("the switch has no Service default/other"), "{err}");
}
