//! Path of a new connection through the published snapshot, for operators: the result of each stage for its
//! first packet.
//!
//! Every field comes from the function that the stage itself calls, so that this report cannot differ from
//! the workers.

mod routes;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use self::routes::{Routes, hop_report, neighbor};
use super::fib::effective_acls::{EffectiveAcls, Flow};
use super::fib::next_hop::Hop;
use super::fib::port::{PolicyMode, PortView};
use super::fib::rules::Rules;
use super::fib::snapshot::Snapshot;
use super::neighbor::table::Neighbors;
use super::pipeline::anti_spoof::check_endpoints;
use super::pipeline::route::is_routable;
use super::{DesiredState, DropReason, PathHop, PathNeighbor, PortKind, RouteReport};
use crate::ids::{AclId, ClassId, Generation, PortId};
use crate::net::address::{Address, is_link_local, is_v4, pack, unpack};
use crate::net::flow::{FlowKey, Protocol};
use crate::tables::{Decision, PodName, RuleOrigin, Verdict};

/// Path of a new connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowPath {
    /// Key of the connection.
    pub flow: FlowKey,
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

/// Computes the path of a new connection through a snapshot, which was built from `desired`.
pub(super) fn path(
    snapshot: &Snapshot,
    desired: &DesiredState,
    neighbors: &Neighbors,
    key: &FlowKey,
) -> FlowPath {
    let flow = new_flow(snapshot, key);
    let (source, destination) = (hop(snapshot, flow.src), hop(snapshot, flow.dst));
    let comes_by = comes_by(snapshot, flow.src);
    let from = comes_by.and_then(|port| Some((port, snapshot.port(port)?)));
    let leaves_by = match destination {
        PathHop::Port { port, .. } => snapshot.port(port).map(|snapshot| (port, snapshot)),
        _ => None,
    };
    let pod = |port: PortId| desired.pods.iter().find(|pod| pod.port == port).map(|pod| pod.pod.clone());
    let [egress, ingress] = match (from, leaves_by) {
        (Some((_, from)), Some((_, to))) => sides(snapshot, &flow, from, to),
        _ => [None, None],
    };
    let ports = from.and_then(|(_, from)| Some([from, leaves_by?.1]));
    let masquerade = ports.and_then(|ports| masquerade(snapshot, key, &flow, ports));
    let dropped = dropped(snapshot, key, &flow, from, destination, masquerade.is_some());
    let number = snapshot.hop_number(flow.dst);
    FlowPath {
        flow: *key,
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

/// Address of the node that a connection from one port to another leaves with.
fn masquerade(snapshot: &Snapshot, key: &FlowKey, flow: &Flow, [from, to]: [&PortView; 2]) -> Option<IpAddr> {
    let view = snapshot.masquerade().filter(|_| to.kind == PortKind::Uplink)?;
    let by_service = || {
        let mut services = snapshot.services().into_iter();
        services.any(|services| services.carries_to(flow.protocol, flow.dst, key.dst_port))
    };
    let by_service = from.kind == PortKind::Uplink && by_service();
    let covers = view.covers(from.kind, by_service, flow.src, flow.dst);
    view.address(is_v4(flow.src)).filter(|_| covers).map(unpack)
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

/// Reason of the first stage that drops the packet, in the order of the stages.
fn dropped(
    snapshot: &Snapshot,
    key: &FlowKey,
    flow: &Flow,
    from: Option<(PortId, &PortView)>,
    destination: PathHop,
    is_masqueraded: bool,
) -> Option<DropReason> {
    let Some((id, from)) = from else {
        // No port may send from an address of the switch, or from one in a pod prefix without a pod.
        return Some(if snapshot.hop(flow.src).is_some() {
            DropReason::Spoofed
        } else {
            DropReason::NoRoute
        });
    };
    let is_from_link = is_link_local(flow.src) && is_link_local(flow.dst);
    if !(is_from_link || snapshot.may_send(from, id, flow.src)) {
        return Some(DropReason::Spoofed);
    }
    if let Some(reason) = check_endpoints((flow.src, key.src_port), (flow.dst, key.dst_port)) {
        return Some(reason);
    }
    match destination {
        PathHop::NoRoute | PathHop::NoPod => Some(DropReason::NoRoute),
        PathHop::Gateway => {
            let echo = if is_v4(flow.dst) { Protocol::ICMP } else { Protocol::ICMPV6 };
            (flow.protocol != echo).then_some(DropReason::NoRoute)
        }
        PathHop::Port { .. } if !is_routable(flow.src, flow.dst) => Some(DropReason::NoRoute),
        PathHop::Port { port, .. } => match snapshot.port(port) {
            None => Some(DropReason::PortDown),
            // The switch does not route between uplinks.
            Some(to) if [from.kind, to.kind] == [PortKind::Uplink; 2] && !is_masqueraded => {
                Some(DropReason::NoRoute)
            }
            Some(to) => snapshot.evaluate_new(flow, from, to, None).or_else(|| {
                let waits = snapshot.masquerade().is_some_and(|view| view.waits());
                (is_masqueraded && waits && from.is_pod()).then_some(DropReason::Masquerade)
            }),
        },
    }
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
