//! Conditions in `status.conditions` of the policies of the cluster. One agent writes them for all: the holder of a Lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::lease::Lease;
use crate::source::kubernetes::connection::{Connection, Failure};
use crate::source::kubernetes::kinds::KINDS;
use crate::source::kubernetes::message::Timing;

/// Type of the condition.
const TYPE: &str = "Accepted";
/// Name of the Lease, and of the manager of the fields.
const LEASE: &str = "palisade-conditions";
const MANAGER: &str = "palisade";
/// Longest `message` of a condition, in bytes (`metav1.Condition`: 32,768).
const MESSAGE_BYTES_MAX: usize = 4096;

/// Condition of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source::kubernetes) struct Condition {
    /// Place of its kind in [`KINDS`].
    pub(in crate::source::kubernetes) kind: usize,
    /// Name of the policy.
    pub(in crate::source::kubernetes) name: String,
    /// `metadata.generation` of the version that the tables have.
    pub(in crate::source::kubernetes) generation: i64,
    /// Reason why it is not enforced as written, and the consequence.
    pub(in crate::source::kubernetes) problem: Option<String>,
}

impl Condition {
    /// Condition as the API has it, after the one that the policy has.
    fn value(&self, before: &Value) -> Value {
        let status = if self.problem.is_none() { "True" } else { "False" };
        let message = self.problem.as_deref().unwrap_or("it is enforced as written");
        let now = || json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let is_same = before["status"] == status && before["lastTransitionTime"].is_string();
        json!({
            "type": TYPE,
            "status": status,
            "reason": if self.problem.is_none() { "Accepted" } else { "NotEnforcedAsWritten" },
            "message": message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)],
            "observedGeneration": self.generation,
            "lastTransitionTime": if is_same { before["lastTransitionTime"].clone() } else { now() },
        })
    }
}

/// Writes the wanted conditions while this agent has the Lease, until the sender is gone.
pub(in crate::source::kubernetes) async fn write_conditions(
    connection: Arc<Connection>,
    timing: Timing,
    instance: String,
    mut wanted: watch::Receiver<Vec<Condition>>,
) {
    let mut lease = Lease::new(connection.clone(), LEASE, instance, timing.lease);
    let mut written = BTreeMap::new();
    let (mut failures, mut last_error) = (0, String::new());
    loop {
        let conditions = wanted.borrow_and_update().clone();
        if conditions.is_empty() {
            written.clear();
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let (is_held, wait) = match write(&connection, &mut lease, &conditions, &mut written).await {
            Ok(is_held) => {
                (failures, last_error) = (0, String::new());
                if !is_held {
                    // Another agent writes.
                    written.clear();
                }
                (is_held, lease.wait(is_held))
            }
            Err(failure) => {
                let error = failure.to_string();
                if error != last_error {
                    tracing::warn!(
                        "conditions of policies cannot be written (the rights to get, create and update leases, and to patch \
                         the status of policies): {error}"
                    );
                }
                last_error = error;
                failures += 1;
                (false, timing.wait(failures))
            }
        };
        if is_held {
            // A change is written at once.
            if let Ok(Err(_)) = timeout(wait, wanted.changed()).await {
                return;
            }
        } else {
            tokio::time::sleep(wait).await;
            if wanted.has_changed().is_err() {
                return;
            }
        }
    }
}

/// Writes conditions that differ from those in `written`. Returns false, and writes none, without the Lease.
async fn write(
    connection: &Connection,
    lease: &mut Lease,
    conditions: &[Condition],
    written: &mut BTreeMap<(usize, String), Condition>,
) -> Result<bool, Failure> {
    let mut refused = None;
    written.retain(|(kind, name), _| {
        conditions.iter().any(|wanted| wanted.kind == *kind && wanted.name == *name)
    });
    for condition in conditions {
        let place = (condition.kind, condition.name.clone());
        if written.get(&place) == Some(condition) {
            continue;
        }
        if !lease.hold().await? {
            return Ok(false);
        }
        match apply(connection, condition).await {
            Ok(()) => drop(written.insert(place, condition.clone())),
            // The server refuses this one alone.
            Err(failure) if failure.code().is_some_and(|code| matches!(code, 400 | 409 | 413 | 422)) => {
                refused = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    refused.map_or(Ok(()), Err)?;
    lease.hold().await
}

/// Writes a condition, unless the policy has it.
async fn apply(connection: &Connection, condition: &Condition) -> Result<(), Failure> {
    let kind = &KINDS[condition.kind];
    for version in kind.versions {
        let path = format!("{}/{}", kind.path(version), condition.name);
        let policy = match connection.value(Method::GET, &path, None).await {
            Ok(policy) => policy,
            // The server has the kind in another version, or the policy is gone.
            Err(failure) if failure.code() == Some(404) => continue,
            Err(failure) => return Err(failure),
        };
        let known = policy["status"]["conditions"].as_array();
        let before = known.and_then(|known| known.iter().find(|known| known["type"] == TYPE));
        let value = condition.value(before.unwrap_or(&Value::Null));
        if before == Some(&value) {
            return Ok(());
        }
        let status = json!({
            "apiVersion": kind.api_version(version),
            "kind": kind.name,
            "metadata": {"name": condition.name},
            "status": {"conditions": [value]},
        });
        let path = format!("{path}/status?fieldManager={MANAGER}&force=true");
        return match connection.value(Method::PATCH, &path, Some(&status)).await {
            // The policy is gone, or its kind has no status.
            Err(failure) if failure.code() == Some(404) => Ok(()),
            result => result.map(drop),
        };
    }
    Ok(())
}
