//! State of the control side: an immutable value that each change replaces as a whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::protocol::{
    EndFilter, PacketFilter, PodInfo, PodRequest, PolicyOrigin, PolicyStatus, PortInfo, PortState, RouteInfo,
    TablesSummary,
};
use ipnet::IpNet;

use super::served_services::{Parts, ServedServices};
use super::{ApiError, CoverageCheck, PortRoute, SwitchSettings};
use crate::dataplane::{
    DesiredState, FlowFilter, Masquerade, NodeAttachment, PathHop, PodAttachment, PortKind, PortReport,
    PortSpec, Route, RouteOrigin, RouteReport, Underlay,
};
use crate::ids::{AttachmentId, Generation, PortId};
use crate::nearest::nearest;
use crate::netlink::NodeRoute;
use crate::tables::{PodName, PortMapping, RuleTables, ServiceSet};

/// Ports, pods and tables of one generation.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Generation that the workers use.
    pub(super) generation: Generation,
    /// The loaded tables.
    pub(super) tables: Option<Arc<RuleTables>>,
    /// Generation in which the tables were loaded. They are unchanged since.
    pub(super) tables_since: Generation,
    /// Origin of the tables, and the time of their arrival.
    pub(super) origin: Option<(PolicyOrigin, SystemTime)>,
    /// Whether an agent has set the routes to the pods of other nodes since the start.
    pub(super) has_node_routes: bool,
    /// Ports by name.
    pub(super) ports: BTreeMap<String, PortRecord>,
    /// Pods by name.
    pub(super) pods: BTreeMap<PodName, PodRecord>,
    /// Configured routes.
    pub(super) routes: Arc<[PortRoute]>,
    /// Loaded Services.
    pub(super) services: Option<LoadedServices>,
    /// Services that the switch serves.
    pub(super) served: ServedServices,
}

/// Loaded Services.
#[derive(Debug, Clone)]
pub(super) struct LoadedServices {
    pub(super) set: Arc<ServiceSet>,
    /// Generation in which they were loaded or changed last.
    pub(super) since: Generation,
}

/// Port of the switch.
#[derive(Debug, Clone)]
pub(super) struct PortRecord {
    pub(super) spec: PortSpec,
    /// Report of its last opening.
    pub(super) report: PortReport,
    /// Whether the dataplane has the port open. A port without an interface is closed.
    pub(super) is_open: bool,
    pub(super) state: PortState,
    /// Reason for a state other than up, or a remark on the interface.
    pub(super) reason: Option<String>,
    /// Addresses of the node, for a port to the node's own stack.
    pub(super) node_addresses: Vec<IpAddr>,
}

/// Attached pod.
#[derive(Debug, Clone)]
pub(super) struct PodRecord {
    pub(super) attachment: AttachmentId,
    /// Request that attached the pod. Its port exists as long as the pod does.
    pub(super) request: PodRequest,
    /// Whether its port is drained: no flow from or to the pod begins.
    pub(super) draining: bool,
}

impl State {
    /// Least MTU of the uplinks.
    pub(super) fn uplink_mtu(&self) -> Option<u32> {
        let uplinks = self.ports.values().filter(|port| port.spec.kind == PortKind::Uplink);
        uplinks.map(|port| port.report.mtu).min()
    }

    /// Builds the desired state for the dataplane. A configured route is in force while its port is open.
    pub(super) fn desired(&self, settings: &SwitchSettings) -> DesiredState {
        let port_id =
            |name: &String| self.ports.get(name).filter(|port| port.is_open).map(|port| port.report.id);
        let attachment = |(name, pod): (&PodName, &PodRecord)| {
            Some(PodAttachment {
                id: pod.attachment,
                pod: name.clone(),
                port: port_id(&pod.request.port)?,
                addresses: pod.request.addresses.clone(),
                mac: pod.request.mac,
                bandwidth: pod.request.bandwidth,
            })
        };
        let routes = self.routes.iter().filter_map(|route| {
            let (prefix, next_hop, node) = (route.prefix, route.next_hop, route.node);
            Some(Route { prefix, port: port_id(&route.port)?, next_hop, node })
        });
        let node = self.host_port().filter(|(_, port)| port.is_open).map(|(_, port)| NodeAttachment {
            port: port.report.id,
            addresses: port.node_addresses.clone(),
            mac: None,
        });
        let draining = self.pods.values().filter(|pod| pod.draining);
        DesiredState {
            tables: self.tables.clone(),
            fail_open: settings.fail_open,
            rejects: settings.rejects,
            gateway: settings.gateway.clone(),
            pods: self.pods.iter().filter_map(attachment).collect(),
            draining: draining.filter_map(|pod| port_id(&pod.request.port)).collect(),
            node,
            pod_prefixes: settings.pod_prefixes.clone(),
            routes: routes.collect(),
            services: self.served.all.clone(),
            services_awaited: self.services.is_none() && self.served.all.is_some(),
            masquerade: settings
                .masquerade
                .as_ref()
                .map(|configured| self.masquerade(configured, &settings.pod_prefixes)),
            tunnel: settings.tunnel.clone(),
        }
    }

    /// The Services that the switch serves in this state: those before, if nothing has changed.
    pub(super) fn serve(&self, before: &ServedServices) -> ServedServices {
        let loaded = self.services.as_ref().map(|loaded| loaded.set.clone());
        let of_services = loaded.iter().flat_map(|set| set.node_addresses());
        let of_host_port = self.host_port().into_iter().flat_map(|(_, port)| &port.node_addresses);
        let has_addresses = of_services.clone().next().is_some();
        let node_addresses: Vec<IpAddr> =
            if has_addresses { of_services.copied().collect() } else { of_host_port.copied().collect() };
        let mappings = self.pods.iter().flat_map(|(name, pod)| {
            let of = |mapping: &PortMapping| (name.clone(), pod.request.addresses.clone(), *mapping);
            pod.request.port_mappings.iter().map(of).collect::<Vec<_>>()
        });
        before.next(Parts { mappings: mappings.collect(), node_addresses, loaded })
    }

    /// The pod that a port of the node leads to, or overlaps with.
    pub(super) fn pod_with_mapping(&self, mapping: &PortMapping) -> Option<&PodName> {
        let has = |pod: &PodRecord| pod.request.port_mappings.iter().any(|other| other.overlaps(mapping));
        self.pods.iter().find(|(_, pod)| has(pod)).map(|(name, _)| name)
    }

    /// Masquerading, with the pods of this node, and with other nodes and their pods, as exceptions.
    fn masquerade(&self, configured: &Masquerade, own_prefixes: &[IpNet]) -> Arc<Masquerade> {
        let nodes = self.routes.iter().filter(|route| route.node);
        let nodes = nodes.flat_map(|route| [Some(route.prefix), route.next_hop.map(IpNet::from)]);
        let except = configured.except.iter().chain(own_prefixes).copied().chain(nodes.flatten());
        let waits = configured.waits && !self.has_node_routes;
        Arc::new(Masquerade { except: except.collect(), waits, ..configured.clone() })
    }

    /// Replaces the tables.
    pub(super) fn with_tables(self, tables: Option<(RuleTables, PolicyOrigin)>) -> State {
        let (tables, origin) = tables.unzip();
        State {
            tables: tables.map(Arc::new),
            origin: origin.map(|origin| (origin, SystemTime::now())),
            ..self
        }
    }

    /// Finds the port to the node's own stack.
    pub(super) fn host_port(&self) -> Option<(&String, &PortRecord)> {
        self.ports.iter().find(|(_, port)| port.spec.kind == PortKind::Host)
    }

    /// Addresses of a pod: those of its attachment, or else those that the tables give it.
    pub(super) fn addresses_of(&self, pod: &PodName) -> Option<Vec<IpAddr>> {
        let known = || Some(self.tables.as_ref()?.pods.get(pod)?.addresses.clone());
        self.pods.get(pod).map(|pod| pod.request.addresses.clone()).or_else(known)
    }

    /// Addresses of a pod of a request, which fails for one that is neither attached nor in the tables.
    pub(super) fn known_addresses(&self, pod: &PodName) -> Result<Vec<IpAddr>, ApiError> {
        self.addresses_of(pod).ok_or_else(|| {
            let known = self.tables.iter().flat_map(|tables| tables.pods.keys()).chain(self.pods.keys());
            ApiError::NoPod { pod: pod.clone(), nearest: nearest(&pod.to_string(), known).cloned() }
        })
    }

    /// Resolves the pods of a filter to their addresses.
    pub(super) fn resolve(&self, filter: &PacketFilter) -> Result<FlowFilter, ApiError> {
        let addresses = |pod| -> Result<Vec<IpNet>, ApiError> {
            Ok(self.known_addresses(pod)?.into_iter().map(IpNet::from).collect())
        };
        let mut flows = filter.without_pods();
        for (end, wanted) in flows.ends.iter_mut().zip([&filter.from, &filter.to]) {
            if let Some(EndFilter::Pod(pod)) = wanted {
                *end = Some(addresses(pod)?);
            }
        }
        if let Some(pod) = &filter.pod {
            flows.either.push(addresses(pod)?);
        }
        Ok(flows)
    }

    /// Finds the port of a request, which fails for an unknown one.
    pub(super) fn known_port(&self, name: &str) -> Result<&PortRecord, ApiError> {
        self.ports.get(name).ok_or_else(|| ApiError::NoPort {
            name: name.to_owned(),
            nearest: nearest(name, self.ports.keys()).cloned(),
        })
    }

    /// Finds the attached pod of a request, which fails for another one.
    pub(super) fn attached_pod(&self, name: &PodName) -> Result<&PodRecord, ApiError> {
        self.pods.get(name).ok_or_else(|| {
            let nearest = nearest(&name.to_string(), self.pods.keys()).cloned();
            ApiError::NoPod { pod: name.clone(), nearest }
        })
    }

    /// Finds the pod behind a port.
    pub(super) fn pod_behind(&self, port: &str) -> Option<&PodName> {
        self.pods.iter().find(|(_, pod)| pod.request.port == port).map(|(name, _)| name)
    }

    /// Finds the attached pod that has an address.
    pub(super) fn pod_with(&self, address: IpAddr) -> Option<&PodName> {
        let mut pods = self.pods.iter();
        pods.find(|(_, pod)| pod.request.addresses.contains(&address)).map(|(name, _)| name)
    }

    /// Finds the name of the open port with this id.
    pub(super) fn port_name(&self, id: PortId) -> Option<&String> {
        self.ports.iter().find(|(_, port)| port.is_open && port.report.id == id).map(|(name, _)| name)
    }

    /// Rejects addresses that a pod, the node or the gateway has.
    pub(super) fn check_addresses_free(
        &self,
        addresses: &[IpAddr],
        settings: &SwitchSettings,
    ) -> Result<(), ApiError> {
        let pods = self.pods.iter().map(|(name, pod)| (format!("pod {name}"), &pod.request.addresses));
        let node = self.host_port().map(|(_, port)| ("the node".to_owned(), &port.node_addresses));
        let gateway = ("the gateway, the switch itself".to_owned(), &settings.gateway.addresses);
        for (owner, taken) in pods.chain(node).chain([gateway]) {
            if let Some(&address) = addresses.iter().find(|address| taken.contains(address)) {
                return Err(ApiError::AddressTaken { address, owner });
            }
        }
        Ok(())
    }

    /// Describes the policy in force.
    pub(super) fn policy_status(&self) -> Option<PolicyStatus> {
        let (tables, (origin, since)) = (self.tables.as_ref()?, self.origin.as_ref()?);
        Some(PolicyStatus {
            origin: origin.clone(),
            generation: self.tables_since,
            since_unix_s: unix_seconds(*since),
            rules: tables.rules.len(),
            pods: tables.pods.len(),
        })
    }

    /// Rejects tables that know none of the attached pods.
    pub(super) fn check_coverage(
        &self,
        tables: &RuleTables,
        coverage: CoverageCheck,
        fail_open: bool,
    ) -> Result<(), ApiError> {
        let is_known = |tables: &RuleTables| self.pods.keys().any(|pod| tables.pods.contains_key(pod));
        let is_refused = match coverage {
            CoverageCheck::Skip => false,
            CoverageCheck::Require => true,
            CoverageCheck::RequireIfCovered => self.tables.as_deref().is_some_and(is_known),
        };
        if is_refused && !self.pods.is_empty() && !is_known(tables) {
            return Err(ApiError::NoPodCovered {
                attached: self.pods.len(),
                known: tables.pods.len(),
                fail_open,
            });
        }
        Ok(())
    }

    pub(super) fn tables_summary(&self) -> TablesSummary {
        let Some(tables) = &self.tables else {
            return TablesSummary { generation: self.generation, ..TablesSummary::default() };
        };
        let named = tables.prefixes.values().filter(|class| class.index() != 0);
        TablesSummary {
            generation: self.generation,
            loaded: true,
            rules: tables.rules.len(),
            classes: 1 + named.collect::<std::collections::BTreeSet<_>>().len(),
            prefixes: tables.prefixes.len(),
            rows: tables.rows.len(),
            acls: tables.acls.len(),
            pods: tables.pods.len(),
        }
    }

    pub(super) fn port_info(&self, name: &str, port: &PortRecord) -> PortInfo {
        PortInfo {
            name: name.to_owned(),
            spec: port.spec.clone(),
            state: port.state,
            reason: port.reason.clone(),
            report: port.report.clone(),
            pod: self.pod_behind(name).cloned(),
            draining: self.pods.values().any(|pod| pod.draining && pod.request.port == name),
        }
    }

    /// Names the port of a route, and the pod behind it.
    pub(super) fn route_info(&self, route: &RouteReport) -> RouteInfo {
        let (id, next_hop) = match route.hop {
            PathHop::Port { port, next_hop, .. } => (Some(port), next_hop),
            _ => (None, None),
        };
        let port = id.and_then(|id| self.ports.iter().find(|(_, port)| port.is_open && port.report.id == id));
        RouteInfo {
            prefix: route.prefix,
            origin: route.origin,
            in_force: true,
            port: id.map(|id| port.map_or_else(|| id.to_string(), |(name, _)| name.clone())),
            interface: port.map(|(_, port)| port.spec.interface.clone()),
            port_state: port.map(|(_, port)| port.state),
            pod: port.and_then(|(name, _)| self.pod_behind(name)).cloned(),
            next_hop: route.tunnel.or(next_hop),
            node: self.is_of_node(route),
            tunnel: route.tunnel.is_some(),
            mtu: route.mtu,
            neighbor: route.neighbor,
        }
    }

    /// Whether the node's own kernel gets a route, too.
    fn is_of_node(&self, route: &RouteReport) -> bool {
        let is_same = |configured: &PortRoute| configured.prefix.trunc() == route.prefix;
        route.origin == RouteOrigin::Configured
            && self.routes.iter().rfind(|configured| is_same(configured)).is_some_and(|found| found.node)
    }

    /// Routes that the node's own kernel gets, on uplinks that are open: by the other node, or by the switch where a tunnel leads
    /// to it.
    pub(super) fn node_routes(&self, settings: &SwitchSettings) -> BTreeMap<IpNet, NodeRoute> {
        let is_open = |name: &String| {
            self.ports.get(name).is_some_and(|port| port.is_open && port.spec.kind == PortKind::Uplink)
        };
        let all = self.routes.iter().map(|route| (route.prefix, route.next_hop, route.node));
        let underlay = Underlay::new(settings.tunnel.as_ref(), all);
        let way = |next_hop: IpAddr| {
            if underlay.next_hop(next_hop).is_none() {
                return Some(NodeRoute::Router(next_hop));
            }
            let mut gateways = settings.gateway.addresses.iter().copied();
            let gateway = gateways.find(|gateway| gateway.is_ipv4() == next_hop.is_ipv4())?;
            let source = settings.tunnel.as_ref()?.address(next_hop.is_ipv4())?;
            Some(NodeRoute::Switch { gateway, source })
        };
        let routes = self.routes.iter().filter(|route| route.node && is_open(&route.port));
        routes.filter_map(|route| Some((route.prefix.trunc(), way(route.next_hop?)?))).collect()
    }

    /// Describes a configured route that is not in force.
    pub(super) fn unused_route(&self, route: &PortRoute) -> RouteInfo {
        let port = self.ports.get(&route.port);
        RouteInfo {
            prefix: route.prefix.trunc(),
            origin: RouteOrigin::Configured,
            in_force: false,
            port: Some(route.port.clone()),
            interface: port.map(|port| port.spec.interface.clone()),
            port_state: port.map(|port| port.state),
            pod: None,
            next_hop: route.next_hop,
            node: route.node,
            tunnel: false,
            mtu: None,
            neighbor: None,
        }
    }

    pub(super) fn pod_info(&self, name: &PodName, pod: &PodRecord, fail_open: bool) -> PodInfo {
        let PodRecord { attachment, request, .. } = pod;
        let policy = self.tables.as_ref().and_then(|tables| tables.pods.get(name));
        let fate = if fail_open {
            "its traffic passes unchecked (fail = \"open\")"
        } else {
            "its traffic is dropped"
        };
        let warning = match (&self.tables, policy) {
            (None, _) => Some(format!("no rule tables are loaded: {fate}")),
            (Some(_), None) => Some(format!("the loaded tables do not know the pod: {fate}")),
            (Some(_), Some(policy)) => (!pod.has_addresses(&policy.addresses)).then(|| {
                format!(
                    "the loaded tables give the pod the addresses [{}], and it is attached with [{}]: rules \
                         that select it do not match its traffic until both agree",
                    list(&policy.addresses),
                    list(&request.addresses)
                )
            }),
        };
        PodInfo {
            pod: name.clone(),
            attachment: *attachment,
            port: request.port.clone(),
            addresses: request.addresses.clone(),
            mac: request.mac,
            bandwidth: request.bandwidth,
            port_mappings: request.port_mappings.clone(),
            known: policy.is_some(),
            warnings: warning.into_iter().collect(),
        }
    }
}

impl PodRecord {
    /// Whether the pod is attached with exactly these addresses.
    pub(super) fn has_addresses(&self, addresses: &[IpAddr]) -> bool {
        let own = &self.request.addresses;
        own.len() == addresses.len() && own.iter().all(|address| addresses.contains(address))
    }
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
