//! Explanation of a new connection's path in sentences, with the names of ports and pods, for `GET
//! /v1/explain`.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::SwitchSettings;
use super::protocol::{PortState, RouteInfo};
use super::state::{PortRecord, State};
use crate::dataplane::{DropReason, FlowPath, PathHop, PathSide, PortKind};
use crate::ids::{ClassId, Generation, PortId};
use crate::net::flow::FlowKey;
use crate::policy::display;
use crate::policy::testcase::Endpoint;
use crate::tables::{Direction, PodName, RuleOrigin, Verdict};

/// Explanation of a new connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// Key of the connection.
    pub flow: FlowKey,
    /// Generation that the workers use.
    pub generation: Generation,
    /// Verdict on the connection: `Allow` where both directions pass.
    pub verdict: Verdict,
    /// Counter under which packets of the connection, or of its replies, are dropped.
    pub dropped: Option<DropReason>,
    /// Steps of the path, in order.
    pub steps: Vec<PathStep>,
    /// Source and destination as policy and routes see them: the latter is the backend of a Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<IpAddr>,
    /// Routes of these, with port and neighbour, as the workers use them.
    #[serde(default)]
    pub routes: [Option<RouteInfo>; 2],
    /// Decision of the source pod's egress table, where the source is a pod of this node.
    pub egress: Option<SideReport>,
    /// Decision of the destination pod's ingress table, where the destination is a pod of this node.
    pub ingress: Option<SideReport>,
    /// Decision that would deny the connection if the policies in audit mode were enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<RuleOrigin>,
}

/// A step of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStep {
    /// Kind of the step.
    pub step: PathStepKind,
    /// Whether the step lets the connection pass. A step that is not decided yet counts as passed.
    pub passes: bool,
    /// Sentence that describes the step.
    pub text: String,
}

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathStepKind {
    /// Port on which the packets arrive.
    Port,
    /// State of a port on the path that is not up.
    PortState,
    /// Anti-spoofing check of the source address on its port.
    AntiSpoofing,
    /// Backend of the Service that the destination is an address of.
    Service,
    /// Route of the destination.
    Route,
    /// Address of the node that the connection leaves with.
    Masquerade,
    /// MTU of the egress port.
    Mtu,
    /// Ethernet address of the next hop.
    Neighbor,
    /// Pods as the loaded tables know them.
    Tables,
    /// Route of the replies.
    Reply,
}

/// Decision of one ACL table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideReport {
    /// Pod that the table belongs to.
    pub pod: PodName,
    /// Direction of the table.
    pub direction: Direction,
    /// Verdict of the table.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub decided_by: RuleOrigin,
    /// Origin in words.
    pub reason: String,
    /// Decisions of this origin so far, at all pods: flows if allowed, packets if denied.
    #[serde(default)]
    pub hits: u64,
    /// Class of the peer's address. `None` where traffic from the pod's own node passes without a table
    /// look-up.
    pub peer_class: Option<ClassId>,
    /// All entries of the table for that class, by ports, with the default entry last.
    pub row: Vec<SpanReport>,
}

/// Ports that share one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanReport {
    /// `TCP 80-90`, or `everything else`.
    pub ports: String,
    /// Verdict for these ports.
    pub verdict: Verdict,
    /// Origin of the decision in words.
    pub reason: String,
    /// Decisions of this origin so far, at all pods: flows if allowed, packets if denied.
    #[serde(default)]
    pub hits: u64,
}

/// State that changes with the traffic.
pub(super) struct LiveState<'a> {
    /// Routes of the source and the destination address.
    routes: [Option<RouteInfo>; 2],
    /// Decisions since the start.
    hits: &'a BTreeMap<(&'a RuleOrigin, Verdict), u64>,
}

impl<'a> LiveState<'a> {
    pub(super) fn new(
        routes: [Option<RouteInfo>; 2],
        hits: &'a BTreeMap<(&'a RuleOrigin, Verdict), u64>,
    ) -> LiveState<'a> {
        LiveState { routes, hits }
    }

    /// Number of decisions with this verdict and origin.
    fn hits(&self, verdict: Verdict, origin: &RuleOrigin) -> u64 {
        self.hits.get(&(origin, verdict)).copied().unwrap_or(0)
    }
}

/// Describes a path. `ends` are the endpoints of the request.
pub(super) fn report(
    path: &FlowPath,
    ends: [&Endpoint; 2],
    state: &State,
    settings: &SwitchSettings,
    live: &LiveState<'_>,
) -> PathReport {
    let words = PathWriter { path, state, settings };
    let dropped = path.dropped.or(path.reply_dropped);
    let side = |side: &Option<PathSide>, pod: &Option<PodName>, direction| {
        Some(side_report(side.as_ref()?, pod.as_ref()?, direction, live))
    };
    let states = words.states(ends);
    let dropped = dropped.or_else(|| (!states.is_empty()).then_some(DropReason::PortDown));
    let mut steps = vec![words.port(), words.anti_spoofing()];
    let service = words.service();
    let has_route = service.as_ref().is_none_or(|step| step.passes);
    steps.extend(service.into_iter().chain(has_route.then(|| words.route())));
    steps.extend(states);
    steps.extend(words.masquerade().into_iter().chain(words.mtu()).chain(words.neighbor()));
    steps.extend(ends.into_iter().filter_map(|end| words.tables(end)));
    steps.push(words.reply());
    PathReport {
        flow: path.flow,
        generation: path.generation,
        verdict: if dropped.is_some() { Verdict::Deny } else { Verdict::Allow },
        dropped,
        steps,
        ends: vec![path.flow.src, path.judged().dst],
        routes: live.routes.clone(),
        egress: side(&path.egress, &path.source_pod, Direction::Egress),
        ingress: side(&path.ingress, &path.destination_pod, Direction::Ingress),
        audit: None,
    }
}

struct PathWriter<'a> {
    path: &'a FlowPath,
    state: &'a State,
    settings: &'a SwitchSettings,
}

impl PathWriter<'_> {
    /// Names a port: `port db (veth-db) of pod default/db`.
    fn port_name(&self, id: PortId) -> String {
        let Some((name, port)) = self.port_with(id) else { return format!("port {id}") };
        let of = match (self.state.pod_behind(name), port.spec.kind) {
            (Some(pod), _) => format!(" of pod {pod}"),
            (None, PortKind::Pod | PortKind::Tap) => ", which has no pod".to_owned(),
            (None, PortKind::Host) => " to the node".to_owned(),
            (None, PortKind::Uplink) => ", an uplink".to_owned(),
        };
        format!("port {name} ({}){of}", port.spec.interface)
    }

    fn port_with(&self, id: PortId) -> Option<(&String, &PortRecord)> {
        self.state.ports.iter().find(|(_, port)| port.is_open && port.report.id == id)
    }

    /// Steps for ports of the path that are not up, each with its reason.
    fn states(&self, ends: [&Endpoint; 2]) -> Vec<PathStep> {
        let by_id = [self.path.comes_by, self.leaves_by()].into_iter().flatten();
        let by_id = by_id.filter_map(|id| Some(self.port_with(id)?.0));
        let by_pod = ends.into_iter().filter_map(|end| match end {
            Endpoint::Pod(name) => Some(&self.state.pods.get(name)?.request.port),
            Endpoint::Ip(_) => None,
        });
        let names: BTreeSet<&String> = by_id.chain(by_pod).collect();
        let ports = names.into_iter().filter_map(|name| self.state.ports.get_key_value(name));
        let amiss = ports.filter(|(_, port)| port.state != PortState::Up);
        let step = |(name, port): (&String, &PortRecord)| {
            let what = match port.state {
                PortState::Up | PortState::Down => "is down",
                PortState::Unguarded => {
                    "has no program on its interface, so the switch sees none of its packets"
                }
            };
            let reason = port.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let text = format!("port {name} ({}) {what}{reason}", port.spec.interface);
            PathStep { step: PathStepKind::PortState, passes: false, text }
        };
        amiss.map(step).collect()
    }

    fn leaves_by(&self) -> Option<PortId> {
        match self.path.destination {
            PathHop::Port { port, .. } => Some(port),
            _ => None,
        }
    }

    fn port(&self) -> PathStep {
        let source = self.path.flow.src;
        let text = match (self.path.comes_by, self.path.source) {
            (Some(port), PathHop::NoRoute) => {
                format!("no route has {source}: it could come by {}", self.port_name(port))
            }
            (Some(port), _) => format!("{source} comes by {}", self.port_name(port)),
            (None, PathHop::Gateway) => format!("{source} is the switch itself, which opens no connections"),
            (None, PathHop::NoPod) => format!("{source} is among pod_prefixes, and no pod has it"),
            (None, _) => format!("no port leads to {source}, and there is no uplink that could bring it"),
        };
        PathStep { step: PathStepKind::Port, passes: self.path.comes_by.is_some(), text }
    }

    fn anti_spoofing(&self) -> PathStep {
        let source = self.path.flow.src;
        let text = if self.path.may_send {
            format!("the port may send from {source}")
        } else {
            format!("no port may send from {source}: packets are dropped as {}", DropReason::Spoofed.name())
        };
        PathStep { step: PathStepKind::AntiSpoofing, passes: self.path.may_send, text }
    }

    fn service(&self) -> Option<PathStep> {
        let FlowKey { dst, dst_port, .. } = self.path.flow;
        let virtual_end = SocketAddr::new(dst, dst_port);
        let refused = self.path.dropped.filter(|reason| reason.name().starts_with("service-"));
        let text = match (refused, self.path.backend) {
            (Some(reason), _) => {
                let (because, counter) = (refusal(reason), reason.name());
                format!("{virtual_end} is a Service's, {because}: packets are dropped as {counter}")
            }
            (None, Some(backend)) => {
                format!("{virtual_end} is a Service's: the connection goes to {backend}")
            }
            (None, None) => return None,
        };
        Some(PathStep { step: PathStepKind::Service, passes: refused.is_none(), text })
    }

    fn route(&self) -> PathStep {
        let destination = self.path.judged().dst;
        let no_route = DropReason::NoRoute.name();
        let text = match self.path.destination {
            PathHop::NoRoute => format!(
                "no route has {destination}: packets are dropped as {no_route}{}",
                self.unused_route(destination)
            ),
            PathHop::NoPod => format!(
                "{destination} is among pod_prefixes, and no pod has it: packets are dropped as {no_route}"
            ),
            PathHop::Gateway => {
                format!("{destination} is the switch itself, which answers an echo and no more")
            }
            PathHop::Port { port, is_open, next_hop } => {
                let by = next_hop.map(|router| format!(", by router {router}")).unwrap_or_default();
                let closed = if is_open { "" } else { ", which is closed" };
                let tunnel = self.path.tunnel.map(|node| format!(", in a tunnel to node {node}"));
                let tunnel = tunnel.unwrap_or_default();
                format!("{destination} is behind {}{closed}{tunnel}{by}", self.port_name(port))
            }
        };
        let stages = [DropReason::NoRoute, DropReason::PortDown];
        let passes = self.path.dropped.is_none_or(|reason| !stages.contains(&reason))
            && !matches!(self.path.destination, PathHop::NoRoute | PathHop::NoPod);
        PathStep { step: PathStepKind::Route, passes, text }
    }

    /// Names a configured route that would cover the address if its port were open.
    fn unused_route(&self, address: IpAddr) -> String {
        let is_unused = |port: &String| !self.state.ports.contains_key(port);
        let mut routes = self.state.routes.iter();
        let unused = routes.find(|route| route.prefix.contains(&address) && is_unused(&route.port));
        unused.map_or_else(
            || ": a [[routes]] entry of the configuration would lead there".to_owned(),
            |route| format!(": the route {} counts when port {} is open", route.prefix, route.port),
        )
    }

    fn masquerade(&self) -> Option<PathStep> {
        let address = self.path.masquerade?;
        let waits = self.path.dropped == Some(DropReason::Masquerade);
        let text = if waits {
            format!(
                "it would leave with the node's address {address}, once the routes to other nodes are known"
            )
        } else {
            format!("it leaves with the node's address {address}, from a port of the switch")
        };
        Some(PathStep { step: PathStepKind::Masquerade, passes: !waits, text })
    }

    fn mtu(&self) -> Option<PathStep> {
        let mtu = self.path.mtu?;
        let text = format!("packets of up to {mtu} bytes leave; the sender of a larger one is told");
        Some(PathStep { step: PathStepKind::Mtu, passes: true, text })
    }

    fn neighbor(&self) -> Option<PathStep> {
        let neighbor = self.path.neighbor?;
        let text = match neighbor.mac {
            Some(mac) => format!("{} has the Ethernet address {mac}", neighbor.address),
            None => format!(
                "the Ethernet address of {} is not known: packets are dropped as {} until it has answered",
                neighbor.address,
                DropReason::Unresolved.name()
            ),
        };
        Some(PathStep { step: PathStepKind::Neighbor, passes: true, text })
    }

    /// Step for a pod that the tables do not know, or know by other addresses.
    fn tables(&self, end: &Endpoint) -> Option<PathStep> {
        let address =
            |pod: &super::state::PodRecord, address: &IpAddr| pod.request.addresses.contains(address);
        let (name, pod) = match end {
            Endpoint::Pod(name) => {
                let Some(found) = self.state.pods.get_key_value(name) else {
                    let text =
                        format!("pod {name} is not attached to this switch: its address is one like any");
                    return Some(PathStep { step: PathStepKind::Tables, passes: true, text });
                };
                found
            }
            Endpoint::Ip(ip) => self.state.pods.iter().find(|(_, pod)| address(pod, ip))?,
        };
        let info = self.state.pod_info(name, pod, self.settings.fail_open);
        let text = format!("pod {name}: {}", info.warnings.first()?);
        let passes = info.known || self.settings.fail_open;
        Some(PathStep { step: PathStepKind::Tables, passes, text })
    }

    fn reply(&self) -> PathStep {
        let source = self.path.flow.src;
        let text = match (self.path.reply_dropped, self.path.source) {
            (None, PathHop::Port { port, .. }) => format!("replies leave by {}", self.port_name(port)),
            (reason, _) => format!(
                "no way back to {source}: replies are dropped as {}",
                reason.unwrap_or(DropReason::NoRoute).name()
            ),
        };
        PathStep { step: PathStepKind::Reply, passes: self.path.reply_dropped.is_none(), text }
    }
}

fn side_report(side: &PathSide, pod: &PodName, direction: Direction, live: &LiveState<'_>) -> SideReport {
    let rest = if side.row.len() == 1 { "everything" } else { "everything else" };
    let row = side.row.iter().map(|span| SpanReport {
        ports: span
            .ports
            .map_or_else(|| rest.to_owned(), |(protocol, first, last)| display::ports(protocol, first, last)),
        verdict: span.verdict,
        reason: span.decided_by.to_string(),
        hits: live.hits(span.verdict, &span.decided_by),
    });
    SideReport {
        pod: pod.clone(),
        direction,
        verdict: side.verdict,
        decided_by: side.decided_by.clone(),
        reason: side.decided_by.to_string(),
        hits: live.hits(side.verdict, &side.decided_by),
        peer_class: side.peer_class,
        row: row.collect(),
    }
}

/// Property of a Service for which packets to it are dropped.
fn refusal(reason: DropReason) -> &'static str {
    match reason {
        DropReason::ServiceSource => "whose loadBalancerSourceRanges do not have this client",
        DropReason::ServiceRemote => "whose backends are on other nodes",
        DropReason::ServiceCollision => "and other flows have all source ports to its backends",
        _ => "with no backend for it",
    }
}
