//! Requests about drains of ports, the bandwidth of pods, and single routes.

use axum::body::Bytes;
use axum::http::Method;
use ipnet::IpNet;

use super::{Client, ClientError, pod_path, segment};
use crate::control::protocol::{
    Loaded, PodInfo, PortFlows, RouteInfo, RouteRequest, SourceReport, TablesPatch,
};
use crate::dataplane::Bandwidth;
use crate::tables::PodName;

impl Client {
    /// Removes the port `name`. `detach` tells whether the kernel gets the interface back.
    pub fn delete_port_with(&self, name: &str, detach: bool) -> Result<(), ClientError> {
        let path = format!("/v1/ports/{}?detach={detach}", segment(name));
        self.ask(Method::DELETE, &path, Bytes::new()).map(drop)
    }

    /// Begins the drain of a port, or ends it.
    pub fn drain_port(&self, name: &str, draining: bool) -> Result<PortFlows, ClientError> {
        let method = if draining { Method::PUT } else { Method::DELETE };
        self.read(method, &format!("/v1/ports/{}/drain", segment(name)), Bytes::new())
    }

    /// Changes the bandwidth of an attached pod.
    pub fn limit_pod(&self, pod: &PodName, bandwidth: &Bandwidth) -> Result<PodInfo, ClientError> {
        self.send(Method::PUT, &format!("{}/bandwidth", pod_path("pods", pod)), bandwidth)
    }

    /// Counts the flows of each port with a pod, by name of the port.
    pub fn port_flows(&self) -> Result<Vec<PortFlows>, ClientError> {
        self.get("/v1/flows/ports")
    }

    /// Changes the loaded tables, even if they know none of the attached pods afterwards.
    pub fn patch_tables_allow_empty(&self, patch: &TablesPatch) -> Result<Loaded, ClientError> {
        self.send(Method::PATCH, "/v1/tables?allow_empty=true", patch)
    }

    /// Reports the state of an agent.
    pub fn put_source(&self, report: &SourceReport) -> Result<(), ClientError> {
        let body = serde_json::to_vec(report).map_err(|error| self.unreadable(&error))?;
        self.ask(Method::PUT, "/v1/source", body.into()).map(drop)
    }

    /// Adds a route.
    pub fn put_route(&self, prefix: IpNet, route: &RouteRequest) -> Result<RouteInfo, ClientError> {
        self.send(Method::PUT, &route_path(prefix), route)
    }

    /// Removes a route.
    pub fn delete_route(&self, prefix: IpNet) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &route_path(prefix), Bytes::new()).map(drop)
    }
}

fn route_path(prefix: IpNet) -> String {
    format!("/v1/routes/{}/{}", segment(&prefix.addr().to_string()), prefix.prefix_len())
}
