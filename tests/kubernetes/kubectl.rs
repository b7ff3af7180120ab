//! The fake API server, read by a client that is not of this project.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Scratch, pod, small_cluster};
use crate::server::ApiServer;
use crate::tools::run_if_installed;

/// Time within which an event arrives.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Watch of pods by `kubectl`. It ends with this.
struct Watch {
    child: Child,
    events: Receiver<String>,
}

impl Watch {
    fn start(arguments: &[&str]) -> Watch {
        let mut child = Command::new("kubectl").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (sender, events) = channel();
        std::thread::spawn(move || lines.map(|line| sender.send(line)).all(|sent| sent.is_ok()));
        Watch { child, events }
    }

    fn next(&self) -> String {
        self.events.recv_timeout(TIMEOUT).expect("an event")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn kubectl_lists_and_watches_the_objects_of_the_fake_server() {
    let server = ApiServer::start();
    small_cluster(&server);
    let scratch = Scratch::new();
    let kubeconfig = scratch.write("kubeconfig", &server.kubeconfig(&json!({}))).display().to_string();
    let cache = scratch.0.join("cache").display().to_string();
    let access = ["--kubeconfig", &kubeconfig, "--cache-dir", &cache];
    for (resource, kind) in [
        ("pods", "Pod"),
        ("namespaces", "Namespace"),
        ("nodes", "Node"),
        ("networkpolicies.networking.k8s.io", "NetworkPolicy"),
        ("adminnetworkpolicies.policy.networking.k8s.io", "AdminNetworkPolicy"),
    ] {
        let arguments = [&access[..], &["get", resource, "--all-namespaces", "--chunk-size=3", "-o", "json"]];
        let Some(output) = run_if_installed("kubectl", &arguments.concat(), b"") else { return };
        assert!(output.status.success(), "{output:?}");
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let names = |objects: &[Value]| -> BTreeSet<String> {
            let of_kind = objects.iter().filter(|object| object["kind"] == kind);
            of_kind.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        };
        let expected = names(&server.objects());
        assert!(!expected.is_empty());
        assert_eq!(names(list["items"].as_array().unwrap()), expected, "{kind}");
    }
    let columns = r#"jsonpath={.type} {.object.metadata.name} {.object.status.podIP}{"\n"}"#;
    let watch = ["get", "pods", "--all-namespaces", "--watch", "--output-watch-events", "-o", columns];
    let watch = Watch::start(&[&access[..], &watch].concat());
    let first: BTreeSet<String> = (0..8).map(|_| watch.next()).collect();
    assert!(first.contains("ADDED pod-0 10.1.0.1") && first.len() == 8, "{first:?}");
    let added = pod("late", "n1", "web", "10.1.0.99");
    server.put(added.clone());
    assert_eq!(watch.next(), "ADDED late 10.1.0.99");
    server.put(pod("late", "n1", "web", "10.1.0.98"));
    assert_eq!(watch.next(), "MODIFIED late 10.1.0.98");
    server.delete(&added);
    assert!(watch.next().starts_with("DELETED late"));
}
