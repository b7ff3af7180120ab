//! Drains of ports, the bandwidth of pods, single routes, and what a reload of the configuration restores.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::protocol::{Loaded, PodInfo, PodRequest, PortFlows, PortRequest, RouteInfo, RouteRequest};
use super::state::State;
use super::switch::Switch;
use super::{ApiError, PortRoute, validation};
use crate::dataplane::{Bandwidth, RouteOrigin, flow_state_is_final};
use crate::limits::ROUTES_MAX;
use crate::tables::PodName;

impl Switch {
    /// Begins the drain of a port, or ends it: while it lasts, no flow from or to the pod begins. The drain ends with the pod.
    pub fn drain_port(&self, name: &str, draining: bool) -> Result<PortFlows, ApiError> {
        self.require_workers("drains of ports", "remove the pod's port when its clients have gone")?;
        {
            let _writer = self.lock_writer();
            let mut next = self.draft();
            next.known_port(name)?;
            let pod = next.pods.values_mut().find(|pod| pod.request.port == name);
            let pod = pod.ok_or_else(|| ApiError::NothingToDrain { port: name.to_owned() })?;
            if pod.draining != draining {
                pod.draining = draining;
                self.publish(next)?;
            }
        }
        let flows = self.port_flows()?.into_iter().find(|flows| flows.port == name);
        // The pod may have gone meanwhile.
        flows.ok_or_else(|| ApiError::NothingToDrain { port: name.to_owned() })
    }

    /// Changes the bandwidth of an attached pod.
    pub fn limit_pod(&self, name: &PodName, bandwidth: Bandwidth) -> Result<PodInfo, ApiError> {
        validation::validate_bandwidth(&bandwidth)?;
        if !bandwidth.is_unlimited() {
            self.require_rates()?;
        }
        let _writer = self.lock_writer();
        let mut next = self.draft();
        let before = next.attached_pod(name)?.request.bandwidth;
        next.pods.entry(name.clone()).and_modify(|pod| pod.request.bandwidth = bandwidth);
        let has_changed = before != bandwidth;
        let info = next.pod_info(name, &next.pods[name], self.settings.fail_open);
        if has_changed {
            self.publish(next)?;
        }
        Ok(info)
    }

    /// Fails where the backend limits no rate.
    pub(crate) fn require_rates(&self) -> Result<(), ApiError> {
        self.require_workers("the bandwidth of pods", "the CNI plugin `bandwidth` limits veth pairs")
            .map(drop)
    }

    /// Counts the flows of each port with a pod, by name of the port. Connections that have ended do not count.
    pub fn port_flows(&self) -> Result<Vec<PortFlows>, ApiError> {
        let workers = self.require_workers("counts of flows", "`conntrack -L` shows those of the kernel")?;
        let state = self.state.load_full();
        let mut flows: BTreeMap<&str, PortFlows> = BTreeMap::new();
        let mut owners: HashMap<IpAddr, &str> = HashMap::new();
        for (name, pod) in &state.pods {
            let port = pod.request.port.as_str();
            owners.extend(pod.request.addresses.iter().map(|address| (*address, port)));
            let counted =
                PortFlows { port: port.to_owned(), pod: name.clone(), draining: pod.draining, flows: 0 };
            flows.insert(port, counted);
        }
        workers.flows().for_each(&mut |flow| {
            if !flow_state_is_final(&flow.state) {
                let [src, dst] = [flow.key.src, flow.key.dst].map(|end| owners.get(&end).copied());
                for port in [src, dst.filter(|_| dst != src)].into_iter().flatten() {
                    flows.entry(port).and_modify(|counted| counted.flows += 1);
                }
            }
            true
        });
        Ok(flows.into_values().collect())
    }

    /// Adds a route.
    pub fn put_route(&self, prefix: IpNet, request: &RouteRequest) -> Result<RouteInfo, ApiError> {
        let RouteRequest { port, next_hop, node } = request.clone();
        let route = PortRoute { prefix: prefix.trunc(), port, next_hop, node };
        validation::validate_route(&route)?;
        {
            let _writer = self.lock_writer();
            let state = self.draft();
            state.known_port(&route.port)?;
            if let Some(taken) = state.routes.iter().find(|taken| taken.prefix.trunc() == route.prefix) {
                return Err(ApiError::RouteExists { prefix: route.prefix, port: taken.port.clone() });
            }
            if state.routes.len() >= ROUTES_MAX {
                return Err(ApiError::TooManyRoutes);
            }
            let routes = state.routes.iter().cloned().chain([route.clone()]).collect();
            self.publish(State { routes, ..state })?;
        }
        let added = |found: &RouteInfo| {
            found.origin == RouteOrigin::Configured
                && (found.prefix, found.port.as_ref()) == (route.prefix, Some(&route.port))
        };
        let unused = || self.state.load().unused_route(&route);
        Ok(self.routes().into_iter().find(added).unwrap_or_else(unused))
    }

    /// Adds routes as one change, in place of those to the same prefixes. Returns those that are refused.
    pub fn put_routes(&self, requests: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, ApiError)> {
        let _writer = self.lock_writer();
        let state = self.draft();
        let (mut routes, mut refused) = (BTreeMap::new(), Vec::new());
        for (prefix, RouteRequest { port, next_hop, node }) in requests {
            let route =
                PortRoute { prefix: prefix.trunc(), port: port.clone(), next_hop: *next_hop, node: *node };
            let checked = state.known_port(port).and_then(|_| validation::validate_route(&route));
            match checked {
                Ok(()) => drop(routes.insert(route.prefix, route)),
                Err(error) => refused.push((*prefix, error)),
            }
        }
        let others = state.routes.iter().filter(|route| !routes.contains_key(&route.prefix.trunc()));
        let mut all: Vec<PortRoute> = others.cloned().collect();
        let room = ROUTES_MAX.saturating_sub(all.len());
        let (fitting, left): (Vec<_>, Vec<_>) =
            routes.into_values().enumerate().partition(|(n, _)| *n < room);
        refused.extend(left.into_iter().map(|(_, route)| (route.prefix, ApiError::TooManyRoutes)));
        all.extend(fitting.into_iter().map(|(_, route)| route));
        if *state.routes != *all {
            // A worker that is late has the routes with the next change.
            let _ = self.publish(State { routes: all.into(), ..state });
        }
        refused
    }

    /// Removes a route.
    pub fn delete_route(&self, prefix: IpNet) -> Result<(), ApiError> {
        let _writer = self.lock_writer();
        let state = self.draft();
        let stays = |route: &&PortRoute| route.prefix.trunc() != prefix.trunc();
        let routes: Vec<PortRoute> = state.routes.iter().filter(stays).cloned().collect();
        if routes.len() == state.routes.len() {
            return Err(ApiError::NoRoute { prefix: prefix.trunc() });
        }
        self.publish(State { routes: routes.into(), ..state })?;
        Ok(())
    }

    /// Replaces the routes. A route is in force while its port is open.
    pub fn replace_routes(&self, routes: Vec<PortRoute>) -> Result<Loaded, ApiError> {
        let _writer = self.lock_writer();
        Ok(Loaded { generation: self.publish(State { routes: routes.into(), ..self.draft() })? })
    }

    /// Puts the routes of a configuration in force, in place of those of the configuration before. Routes to prefixes that
    /// neither has stay. Returns whether the routes have changed.
    pub(crate) fn reload_routes(
        &self,
        before: &[PortRoute],
        mut routes: Vec<PortRoute>,
    ) -> Result<bool, ApiError> {
        let _writer = self.lock_writer();
        let state = self.draft();
        let has = |routes: &[PortRoute], prefix: IpNet| {
            routes.iter().any(|route| route.prefix.trunc() == prefix.trunc())
        };
        let others = state.routes.iter();
        let others = others.filter(|route| !has(before, route.prefix) && !has(&routes, route.prefix));
        let others: Vec<PortRoute> = others.cloned().collect();
        routes.extend(others);
        if *state.routes == *routes {
            return Ok(false);
        }
        self.publish(State { routes: routes.into(), ..state })?;
        Ok(true)
    }

    /// Whether a port is there as these requests make it, with the requested pod or without one. The pod may have another
    /// bandwidth.
    pub(crate) fn has_port(
        &self,
        name: &str,
        request: &PortRequest,
        pod: Option<&(PodName, PodRequest)>,
    ) -> bool {
        let state = self.state.load();
        let is_same = state.ports.get(name).is_some_and(|port| {
            validation::validate_port(name, request).is_ok_and(|spec| spec == port.spec)
                && port.node_addresses == request.addresses
        });
        let behind = state.pod_behind(name).and_then(|name| Some((name, &state.pods.get(name)?.request)));
        let is_wanted = |(name, request): (&PodName, &PodRequest)| {
            pod.is_some_and(|(wanted, like)| {
                name == wanted && *like == PodRequest { bandwidth: like.bandwidth, ..request.clone() }
            })
        };
        is_same && behind.map_or(pod.is_none(), is_wanted)
    }
}
