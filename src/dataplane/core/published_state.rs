//! Published state without workers, for a dataplane whose packets the kernel forwards.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::Core;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::{
    ConntrackSettings, DesiredState, FlowMemory, FlowPath, PortError, PortKind, RouteReport, Settings,
    StartError,
};
use crate::ids::{Generation, PortId};
use crate::limits::MTU_MAX;
use crate::net::flow::FlowKey;

/// Capacity of the flow table, which stays empty.
const FLOWS: usize = 1024;

/// Ports and desired state, with the answers of the snapshot that workers would use: paths and routes.
pub struct PublishedState(Core);

impl PublishedState {
    /// Creates a state without ports. It has no thread, no file and no socket.
    pub fn new() -> Result<PublishedState, StartError> {
        let conntrack = ConntrackSettings {
            flows_max: FLOWS,
            memory: FlowMemory::Process,
            ..ConntrackSettings::default()
        };
        let settings = Settings { conntrack, huge_pages: false, ..Settings::default() };
        Ok(PublishedState(Core::new(&settings, Instant::now())?))
    }

    /// Adds a port.
    pub fn add_port(&self, kind: PortKind, mtu: u32) -> Result<PortId, PortError> {
        let id = self.0.free_port(None)?;
        self.0.add_port(
            id,
            PortView::new(kind, None, mtu.min(MTU_MAX as u32) as u16, None),
            None,
            &|_, _| {},
        );
        Ok(id)
    }

    /// Removes a port.
    pub fn remove_port(&self, port: PortId) {
        self.0.remove_port(port, &|_, _| {});
    }

    /// Replaces the desired state. Returns its generation.
    pub fn publish(&self, desired: DesiredState) -> Generation {
        self.0.publish(&mut self.0.state(), Some(desired), &|_, _| {})
    }

    /// Desired state.
    pub fn desired(&self) -> Arc<DesiredState> {
        self.0.desired()
    }

    /// Path of a new connection.
    pub fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        self.0.path(flow, backend)
    }

    /// Routes by prefix.
    pub fn routes(&self) -> Vec<RouteReport> {
        self.0.routes()
    }

    /// Route of an address.
    pub fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.0.route_of(address)
    }
}
