//! Events on objects that are not enforced as written (`kubectl describe` shows them).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use crate::source::kubernetes::connection::Connection;
use crate::source::kubernetes::kinds::Kind;
use crate::source::kubernetes::message::{Timing, jittered};
use crate::source::kubernetes::object::Issue;
use crate::source::kubernetes::parse::Key;

/// Longest interval between two events.
const INTERVAL: Duration = Duration::from_secs(4);
/// Attempts to write an event that the server refuses. Others are repeated until the server answers.
const REFUSALS_MAX: u32 = 8;
/// Most events that wait. Further ones are in the report of the agent only.
const WAITING_MAX: usize = 64;
/// Most versions of objects that are remembered, so that each has one event.
const KNOWN_MAX: usize = 4096;
/// Longest `note` of an event, in bytes (`events.k8s.io/v1`: "less than 1kB").
const NOTE_BYTES_MAX: usize = 1000;

/// Longest `reportingInstance`, in bytes.
const INSTANCE_BYTES_MAX: usize = 128;

/// Sender of events.
pub(in crate::source::kubernetes) struct Notifier {
    sender: mpsc::Sender<serde_json::Value>,
    known: HashSet<String>,
    instance: String,
}

impl Notifier {
    /// Creates a sender on behalf of a node. The future sends the events.
    pub(in crate::source::kubernetes) fn new(
        connection: Arc<Connection>,
        timing: Timing,
        instance: String,
    ) -> (Notifier, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Notifier { sender, known: HashSet::new(), instance }, send_all(connection, timing, receiver))
    }

    /// Sends an event about an object, unless its version has one.
    pub(in crate::source::kubernetes) fn notify(&mut self, kind: &Kind, key: &Key, issue: &Issue) {
        if issue.version.uid.is_empty() {
            return;
        }
        // All agents give the event of a version the same name, so that there is one in the cluster.
        let name = format!("palisade-{}-{}", issue.version.uid, issue.version.resource_version);
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.len() > 200 || !name.chars().all(is_name) || self.known.contains(&name) {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let namespace = if key.namespace.is_empty() { "default" } else { &key.namespace };
        let note =
            format!("Palisade cannot enforce this as written: {}: {}", issue.message, issue.consequence);
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format!("{:.6}", Timestamp::now()),
            "reportingController": "palisade.dev/agent",
            "reportingInstance": self.instance[..self.instance.floor_char_boundary(INSTANCE_BYTES_MAX)],
            "action": "Enforce",
            "reason": "NotEnforcedAsWritten",
            "regarding": {
                "apiVersion": kind.api_version(issue.version.api),
                "kind": kind.name,
                "namespace": key.namespace,
                "name": key.name,
                "uid": issue.version.uid,
                "resourceVersion": issue.version.resource_version,
            },
            "note": note[..note.floor_char_boundary(NOTE_BYTES_MAX)],
            "type": "Warning",
        });
        if self.sender.try_send(event).is_ok() {
            self.known.insert(name);
        }
    }
}

async fn send_all(
    connection: Arc<Connection>,
    timing: Timing,
    mut events: mpsc::Receiver<serde_json::Value>,
) {
    let mut last_error = String::new();
    while let Some(event) = events.recv().await {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let body = event.to_string();
        for attempt in 0..u32::MAX {
            let failure = match connection.send(Method::POST, &path, Some(body.clone())).await {
                Ok(_) => {
                    last_error.clear();
                    break;
                }
                // Another agent has sent it.
                Err(failure) if failure.code() == Some(409) => break,
                Err(failure) => failure,
            };
            let error = failure.to_string();
            if error != last_error {
                tracing::warn!(
                    "an event cannot be written (the right to create events.events.k8s.io): {error}"
                );
            }
            last_error = error;
            // A namespace that ends refuses new objects for good.
            let is_refused = failure.code().is_some_and(|code| (400..500).contains(&code) && code != 429);
            if is_refused && attempt + 1 >= REFUSALS_MAX {
                break;
            }
            let wait = timing.wait(attempt);
            tokio::time::sleep(failure.retry_after().map_or(wait, |asked| wait.max(asked))).await;
        }
        tokio::time::sleep(jittered(INTERVAL)).await;
    }
}
