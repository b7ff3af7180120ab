//! Paths of connections, decisions on them, and routes, under the published snapshot.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use super::Core;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::path::{self, FlowDecisions, FlowPath, Trial};
use crate::dataplane::{DesiredState, RouteReport};
use crate::net::flow::FlowKey;

impl Core {
    /// Path of a new connection under the published snapshot.
    pub(in crate::dataplane) fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        let (snapshot, desired) = self.in_force();
        let lock = self.trial.get_or_init(|| Mutex::new(Trial::new()));
        let mut trial = lock.lock().unwrap_or_else(|poisoned| {
            // A panic during a trial has left its packet there.
            let mut trial = poisoned.into_inner();
            *trial = Trial::new();
            lock.clear_poison();
            trial
        });
        let flows = (&mut *trial, &self.shared.conntrack);
        path::path(&snapshot, &desired, &self.shared.neighbors, flows, (flow, backend))
    }

    /// Decisions on a connection under the published snapshot.
    pub(in crate::dataplane) fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        path::decisions(&self.shared.snapshot.current(), flow)
    }

    /// Routes of the published snapshot, by prefix.
    pub(in crate::dataplane) fn routes(&self) -> Vec<RouteReport> {
        let (snapshot, desired) = self.in_force();
        path::routes(&snapshot, &desired, &self.shared.neighbors)
    }

    /// Route of an address in the published snapshot.
    pub(in crate::dataplane) fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        let (snapshot, desired) = self.in_force();
        path::route_of(&snapshot, &desired, &self.shared.neighbors, address)
    }

    /// The published snapshot, and the state that it was laid out from. A change need not wait for their reader.
    pub(super) fn in_force(&self) -> (Arc<Snapshot>, Arc<DesiredState>) {
        let state = self.state();
        (self.shared.snapshot.current(), state.desired.clone())
    }
}
