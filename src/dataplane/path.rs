//! Path of a new connection through the published snapshot, for operators: the result of each stage for its
//! first packet.
//!
//! The stages themselves take the first packet ([`trial`]). The other fields come from the functions that they call.

mod routes;
mod trial;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use self::routes::{Routes, hop_report, neighbor};
pub(super) use self::trial::Trial;
use self::trial::{Connection, Outcome};
use super::conntrack::Conntrack;
use super::fib::effective_acls::{EffectiveAcls, Flow};
use super::fib::next_hop::Hop;
use super::fib::port::{PolicyMode, PortView};
use super::fib::rules::Rules;
use super::fib::snapshot::Snapshot;
use super::neighbor::table::Neighbors;
use super::{DesiredState, DropReason, PathHop, PathNeighbor, PortKind, RouteReport};
use crate::ids::{AclId, ClassId, Generation, PortId};
use crate::net::address::{Address, is_v4, pack, unpack};
use crate::net::flow::{FlowKey, Protocol};
use crate::tables::{Decision, PodName, RuleOrigin, Verdict};

/// Path of a new connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowPath {
    /// Key of the connection.
    pub flow: FlowKey,
    /// Backend of the Service that the destination is an address of: the one that this connection gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// Generation that the workers use.
    pub generation: Generation,
    /// Way of the replies, to the source address.
    pub source: PathHop,
    /// Ingress port of the packets; `None` if no port can receive them.
    pub comes_by: Option<PortId>,
    /// Pod behind the ingress port.
    pub source_pod: Option<PodName>,
    /// Whether anti-spoofing lets the ingress port send from the source address.
    pub may_send: bool,
    /// Way of the packets, to the destination address.
    pub destination: PathHop,
    /// Pod behind the egress port.
    pub destination_pod: Option<PodName>,
    /// Largest IP packet that leaves, bytes.
    pub mtu: Option<u16>,
    /// Node at the other end of the tunnel that the packets take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<IpAddr>,
    /// Address of the node that the connection leaves with, where that is not its own.
    pub masquerade: Option<IpAddr>,
    /// Next hop on the link of the egress port.
    pub neighbor: Option<PathNeighbor>,
    /// Egress decision of the source pod's table; `None` if none is looked up.
    pub egress: Option<PathSide>,
    /// Ingress decision of the destination pod's table; `None` if none is looked up.
    pub ingress: Option<PathSide>,
    /// Reason of the first stage that drops the packet. An unresolved neighbour is no such reason: the
    /// address is known once the neighbour answers.
    pub dropped: Option<DropReason>,
    /// Reason of the drop of replies.
    pub reply_dropped: Option<DropReason>,
}

impl FlowPath {
    /// Key of the connection as policy and routes see it: to the backend of a Service.
    pub fn judged(&self) -> FlowKey {
        let to = |backend: SocketAddr| FlowKey { dst: backend.ip(), dst_port: backend.port(), ..self.flow };
        self.backend.map_or(self.flow, to)
    }
}

/// Decision of one pod's table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSide {
    /// Verdict on the connection.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub decided_by: RuleOrigin,
    /// Class of the peer address; `None` if the peer is the pod's own node, whose traffic passes without a
    /// table look-up.
    pub peer_class: Option<ClassId>,
    /// All entries of the table for that class, by ports.
    pub row: Vec<PathSpan>,
}

/// Ports that share one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSpan {
    /// Protocol, first and last port; `None` for everything that no other span covers.
    pub ports: Option<(Protocol, u16, u16)>,
    /// Verdict for these ports.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub decided_by: RuleOrigin,
}

/// Decisions on a connection, from the ends that policy sees, and the generation that has them: as [`FlowPath`] has these, without
/// a trial of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowDecisions {
    /// Generation that the workers use.
    pub generation: Generation,
    /// Egress decision of the source pod's table; `None` if none is looked up.
    pub egress: Option<PathSide>,
    /// Ingress decision of the destination pod's table; `None` if none is looked up.
    pub ingress: Option<PathSide>,
}

/// Evaluates a connection under a snapshot.
pub(super) fn decisions(snapshot: &Snapshot, key: &FlowKey) -> FlowDecisions {
    let flow = new_flow(snapshot, key);
    let ports = comes_by(snapshot, flow.src).and_then(|from| {
        let Some(Hop::Port(to, _)) = snapshot.hop(flow.dst) else { return None };
        Some((snapshot.port(from)?, snapshot.port(to)?))
    });
    let sides = ports.map(|(from, to)| sides(snapshot, &flow, from, to));
    let [egress, ingress] = sides.unwrap_or_default();
    FlowDecisions { generation: snapshot.generation, egress, ingress }
}

/// Lists the routes of a snapshot, which was built from `desired`, by prefix.
pub(super) fn routes(snapshot: &Snapshot, desired: &DesiredState, neighbors: &Neighbors) -> Vec<RouteReport> {
    Routes::of(snapshot, desired, neighbors).reports()
}

/// Route of an address in a snapshot, which was built from `desired`, with the neighbour that gets its packets.
pub(super) fn route_of(
    snapshot: &Snapshot,
    desired: &DesiredState,
    neighbors: &Neighbors,
    address: IpAddr,
) -> Option<RouteReport> {
    Routes::of(snapshot, desired, neighbors).route_of(address)
}

/// Computes the path of a new connection through a snapshot, which was built from `desired`. One to a Service gets this backend, if
/// it may.
pub(super) fn path(
    snapshot: &Snapshot,
    desired: &DesiredState,
    neighbors: &Neighbors,
    (trial, flows): (&mut Trial, &Conntrack),
    (key, backend): (&FlowKey, Option<SocketAddr>),
) -> FlowPath {
    let asked = new_flow(snapshot, key);
    let comes_by = comes_by(snapshot, asked.src);
    let from = comes_by.and_then(|port| Some((port, snapshot.port(port)?)));
    let connection = Connection { key, backend, flows, by_node_socket: asked.by_node_socket };
    let Outcome { dropped, to, is_masqueraded } = outcome(trial, snapshot, &connection, &asked, from);
    // The flow that policy and routes see: to the backend of a Service.
    let flow = Flow { dst: to.0, dst_port: to.1, ..asked };
    let backend = (to != (asked.dst, key.dst_port)).then(|| SocketAddr::new(unpack(to.0), to.1));
    let (source, destination) = (hop(snapshot, flow.src), hop(snapshot, flow.dst));
    let leaves_by = match destination {
        PathHop::Port { port, .. } => snapshot.port(port).map(|snapshot| (port, snapshot)),
        _ => None,
    };
    let pod = |port: PortId| desired.pods.iter().find(|pod| pod.port == port).map(|pod| pod.pod.clone());
    let [egress, ingress] = match (from, leaves_by) {
        (Some((_, from)), Some((_, to))) => sides(snapshot, &flow, from, to),
        _ => [None, None],
    };
    let waits = dropped == Some(DropReason::Masquerade);
    let masquerade = snapshot.masquerade().filter(|_| is_masqueraded || waits);
    let masquerade = masquerade.and_then(|view| view.address(is_v4(flow.src))).map(unpack);
    let number = snapshot.hop_number(flow.dst);
    FlowPath {
        flow: *key,
        backend,
        generation: snapshot.generation,
        source,
        comes_by,
        source_pod: comes_by.and_then(pod),
        may_send: from.is_some_and(|(id, port)| snapshot.may_send(port, id, flow.src)),
        destination,
        destination_pod: leaves_by.and_then(|(port, _)| pod(port)),
        masquerade,
        mtu: leaves_by.and_then(|_| Some(snapshot.adjacency(number?)?.mtu)),
        tunnel: tunnel(snapshot, &flow),
        neighbor: number.and_then(|number| neighbor(snapshot, neighbors, number, flow.dst)),
        egress,
        ingress,
        dropped,
        reply_dropped: reply_dropped(source),
    }
}

/// Node at the other end of the tunnel that a flow takes.
fn tunnel(snapshot: &Snapshot, flow: &Flow) -> Option<IpAddr> {
    snapshot.tunnel_of(flow.src, flow.dst).map(unpack)
}

/// Flow of a new connection. One from an address of the node is by a socket of the node, where the switch can tell these.
pub(super) fn new_flow(snapshot: &Snapshot, key: &FlowKey) -> Flow {
    let (src, dst) = (pack(key.src), pack(key.dst));
    let from = comes_by(snapshot, src).and_then(|port| snapshot.port(port));
    let by_node_socket = from.is_some_and(|from| from.marks_node_sockets() && from.is_node_address(src));
    Flow { src, dst, protocol: key.protocol, dst_port: key.dst_port, by_node_socket }
}

/// Verdict of policy on a flow, and the origin of the decisive entry: that of the table that denies it, else that of the last
/// table. `None` where no policy is asked, because a port of the flow is closed or no route leads to it.
pub(super) fn verdict<'a>(snapshot: &'a Snapshot, flow: &Flow) -> Option<(Verdict, Option<&'a RuleOrigin>)> {
    let from = snapshot.port(comes_by(snapshot, flow.src)?)?;
    let Some(Hop::Port(to, _)) = snapshot.hop(flow.dst) else { return None };
    let acls = EffectiveAcls::of_established(flow, from, snapshot.port(to)?);
    let mut origin = None;
    for (acl, peer) in [(acls.egress, flow.dst), (acls.ingress, snapshot.ingress_peer(&acls, flow))] {
        let Some(acl) = acl else { continue };
        let Some(rules) = snapshot.rules() else { return Some((Verdict::Deny, None)) };
        let decision = rules.decide(acl, peer, flow, None);
        origin = rules.name(decision);
        if !decision.is_allow() {
            return Some((Verdict::Deny, origin));
        }
    }
    Some((if acls.closed.is_some() { Verdict::Deny } else { Verdict::Allow }, origin))
}

fn hop(snapshot: &Snapshot, address: Address) -> PathHop {
    snapshot.hop(address).map_or(PathHop::NoRoute, |hop| hop_report(snapshot, hop))
}

/// Ingress port of packets from an address: the port that the address lies behind, or, for an address without
/// a route, the first uplink.
fn comes_by(snapshot: &Snapshot, source: Address) -> Option<PortId> {
    match snapshot.hop(source) {
        Some(Hop::Port(port, _)) => Some(port),
        None => snapshot.ports().find(|(_, port)| port.kind == PortKind::Uplink).map(|(id, _)| id),
        Some(Hop::Gateway | Hop::Nowhere) => None,
    }
}

/// Fate of the first packet of a connection.
fn outcome(
    trial: &mut Trial,
    snapshot: &Snapshot,
    connection: &Connection<'_>,
    flow: &Flow,
    from: Option<(PortId, &PortView)>,
) -> Outcome {
    let dropped = |reason| Outcome {
        dropped: Some(reason),
        to: (flow.dst, connection.key.dst_port),
        is_masqueraded: false,
    };
    let Some(from) = from else {
        // No port may send from an address of the switch, or from one in a pod prefix without a pod.
        let is_somebodys = snapshot.hop(flow.src).is_some();
        return dropped(if is_somebodys { DropReason::Spoofed } else { DropReason::NoRoute });
    };
    trial.first_packet(snapshot, connection, from).unwrap_or_else(|error| {
        tracing::error!("a connection cannot be tried: {error}");
        dropped(DropReason::TableFull)
    })
}

fn reply_dropped(source: PathHop) -> Option<DropReason> {
    match source {
        PathHop::NoRoute | PathHop::NoPod | PathHop::Gateway => Some(DropReason::NoRoute),
        PathHop::Port { is_open: false, .. } => Some(DropReason::PortDown),
        PathHop::Port { .. } => None,
    }
}

fn sides(snapshot: &Snapshot, flow: &Flow, from: &PortView, to: &PortView) -> [Option<PathSide>; 2] {
    let Some(rules) = snapshot.rules() else { return [None, None] };
    if flow.src == flow.dst {
        return sides_of_itself(rules, flow, from);
    }
    let acls = EffectiveAcls::of_established(flow, from, to);
    let is_evaluated = matches!(to.policy_mode(), PolicyMode::Tables { .. }) && acls.closed.is_none();
    let is_own_node = flow.by_node_socket && from.is_node_address(flow.src);
    let own_node = (is_evaluated && is_own_node).then(|| PathSide {
        verdict: Verdict::Allow,
        decided_by: RuleOrigin::OwnNode,
        peer_class: None,
        row: Vec::new(),
    });
    let evaluate = |acl: Option<AclId>, peer| side(rules, acl?, peer, flow);
    let peer = snapshot.ingress_peer(&acls, flow);
    [evaluate(acls.egress, flow.dst), evaluate(acls.ingress, peer).or(own_node)]
}

/// Decisions on a connection of a pod to itself, by its own Service: those of policies of the cluster.
fn sides_of_itself(rules: &Rules, flow: &Flow, port: &PortView) -> [Option<PathSide>; 2] {
    let PolicyMode::Tables { egress, ingress } = port.policy_mode() else { return [None, None] };
    [egress, ingress]
        .map(|acl| side(rules, acl, flow.src, flow).filter(|side| side.decided_by.is_of_cluster_policy()))
}

fn side(rules: &Rules, acl: AclId, peer: Address, flow: &Flow) -> Option<PathSide> {
    let decision = rules.decide(acl, peer, flow, None);
    let class = rules.class(peer);
    let row = rules.row(acl, class)?;
    let span = |ports, decision: Decision| {
        Some(PathSpan { ports, verdict: decision.verdict(), decided_by: rules.name(decision)?.clone() })
    };
    let protocols = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
    let listed = protocols.into_iter().flat_map(|protocol| {
        let spans = row.spans(protocol).iter();
        spans.filter_map(move |found| span(Some((protocol, found.first, found.last)), found.decision))
    });
    Some(PathSide {
        verdict: decision.verdict(),
        decided_by: rules.name(decision)?.clone(),
        peer_class: Some(class),
        row: listed.chain(span(None, row.other)).collect(),
    })
}
