//! Streams that a real API server has sent.

use std::path::{Path, PathBuf};

use palisade::tables::PodName;

use crate::fixture::{Agent, eventually};
use crate::server::ApiServer;
use crate::tools::skipped;

fn recorded(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/kubernetes").join(name);
    if !path.exists() {
        skipped(&format!("there is no recorded stream at {}", path.display()));
        return None;
    }
    Some(path)
}

#[test]
fn recorded_streams_of_a_real_server_are_read() {
    let server = ApiServer::start();
    for (kind, name) in
        [("NetworkPolicy", "np-watchlist.jsonl"), ("Namespace", "ns-watch.jsonl"), ("Pod", "pod-watch.jsonl")]
    {
        let Some(path) = recorded(name) else { return };
        let mut bytes = std::fs::read(path).unwrap();
        if kind != "NetworkPolicy" {
            // These are of plain watches: the end of the initial events is missing.
            bytes.extend(
                format!(
                    "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"{kind}\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"214\",\
                     \"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}}}\n"
                )
                .into_bytes(),
            );
        }
        server.set(|faults| drop(faults.recorded.insert(kind, bytes.into())));
    }
    let agent = Agent::start_as(&server, &serde_json::json!({}), |settings| {
        settings.node = Some("node-a".to_owned());
    });
    let web = PodName::new("prod".to_owned(), "web-0".to_owned());
    // The policy may come behind the end of the list, in tables of its own.
    eventually("the pod of the recording has its tables, and the policy its rule", || {
        agent.see(|recorded| {
            recorded.tables.as_ref().is_some_and(|tables| {
                let mut rules = tables.rules.values().map(|rule| format!("{rule:?}"));
                tables.pods.contains_key(&web) && rules.any(|rule| rule.contains("allow-web"))
            })
        })
    });
    agent.see(|recorded| {
        let tables = recorded.tables.as_ref().unwrap();
        assert_eq!(tables.pods[&web].addresses.len(), 2);
        assert_eq!(recorded.report.unenforced, []);
    });
}
