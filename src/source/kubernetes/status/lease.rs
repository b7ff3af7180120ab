//! Lease by which one agent of a cluster writes what is to be written once (`coordination.k8s.io/v1`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::source::kubernetes::connection::{Connection, Failure};
use crate::source::kubernetes::message::jittered;

/// Time between two looks of an agent without the Lease, in times of its duration: thousands of agents look at it.
const LOOKS: u32 = 10;

/// Lease, as one agent sees it.
pub(super) struct Lease {
    connection: Arc<Connection>,
    name: &'static str,
    /// Name of this agent.
    holder: String,
    duration: Duration,
    /// Holder and time of renewal that were last seen, and since when. The clock of another node is not compared with this one's.
    seen: Option<(Value, Instant)>,
    /// Time at which this agent has renewed it.
    renewed: Option<Instant>,
}

impl Lease {
    pub(super) fn new(
        connection: Arc<Connection>,
        name: &'static str,
        holder: String,
        duration: Duration,
    ) -> Lease {
        Lease { connection, name, holder, duration, seen: None, renewed: None }
    }

    /// Takes or renews the Lease. Returns whether this agent has it.
    pub(super) async fn hold(&mut self) -> Result<bool, Failure> {
        if self.renewed.is_some_and(|renewed| renewed.elapsed() < self.duration / 3) {
            return Ok(true);
        }
        self.renewed = None;
        let start = Instant::now();
        let is_held = match self.take().await {
            // Another agent was first.
            Err(failure) if failure.code() == Some(409) => false,
            result => result?,
        };
        self.renewed = is_held.then_some(start);
        Ok(is_held)
    }

    /// Time until the next call of [`Lease::hold`] after one with this result.
    pub(super) fn wait(&self, is_held: bool) -> Duration {
        if is_held { self.duration / 3 } else { self.duration + jittered(self.duration * LOOKS) }
    }

    async fn take(&mut self) -> Result<bool, Failure> {
        let namespace = self.connection.namespace().await?;
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let path = format!("{all}/{}", self.name);
        let now = format!("{:.6}", Timestamp::now());
        let mut spec = json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration.as_secs().max(1),
            "acquireTime": now,
            "renewTime": now,
        });
        let mut lease = match self.connection.value(Method::GET, &path, None).await {
            Ok(lease) => lease,
            Err(failure) if failure.code() == Some(404) => {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": namespace}, "spec": spec});
                self.connection.value(Method::POST, &all, Some(&lease)).await?;
                return Ok(true);
            }
            Err(failure) => return Err(failure),
        };
        let is_own = lease["spec"]["holderIdentity"] == self.holder.as_str();
        if is_own {
            spec["acquireTime"] = lease["spec"]["acquireTime"].clone();
        } else if !self.is_expired(&lease["spec"]) {
            return Ok(false);
        }
        // The resource version of `metadata` makes the server refuse the change if another agent was first.
        lease["spec"] = spec;
        self.connection.value(Method::PUT, &path, Some(&lease)).await?;
        Ok(true)
    }

    /// Whether its holder has not renewed the Lease for its duration.
    fn is_expired(&mut self, spec: &Value) -> bool {
        let is_free = spec["holderIdentity"].as_str().is_none_or(str::is_empty);
        let renewal = json!([spec["holderIdentity"], spec["renewTime"]]);
        match &self.seen {
            Some((seen, since)) if *seen == renewal => is_free || since.elapsed() >= self.duration,
            _ => {
                self.seen = Some((renewal, Instant::now()));
                is_free
            }
        }
    }
}
