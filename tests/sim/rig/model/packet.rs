//! Fields of a packet that the model reads, and the frames of the switch itself.

use std::net::IpAddr;

use palisade::ids::PortId;
use palisade::net::flow::Protocol;

use super::{FIN, RST, SYN};
use crate::frames::{Spec, Transport};
use crate::rig::{self, UPLINK};

/// Tells whether the transport checksum matters. Unknown protocols have none.
pub(super) fn has_wrong_checksum(spec: &Spec) -> bool {
    spec.broken && !matches!(spec.transport, Transport::Other(_))
}

pub(crate) fn protocol_and_ports(spec: &Spec) -> (Protocol, [u16; 2]) {
    let icmp = if spec.src.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
    match spec.transport {
        Transport::Tcp { ports, .. } => (Protocol::TCP, ports),
        Transport::Udp { ports } => (Protocol::UDP, ports),
        Transport::Sctp { ports, .. } => (Protocol::SCTP, ports),
        Transport::Echo { identifier, .. } => (icmp, [identifier; 2]),
        Transport::Icmp { rest, .. } if query(spec).is_some() => {
            (icmp, [u16::from_be_bytes([rest[0], rest[1]]); 2])
        }
        Transport::Icmp { .. } => (icmp, [0; 2]),
        Transport::Other(protocol) => (Protocol(protocol), [0; 2]),
    }
}

/// Type of the request of an ICMP query or reply, and whether it is the reply.
pub(super) fn query(spec: &Spec) -> Option<(u8, bool)> {
    let is_v4 = spec.src.is_ipv4();
    match spec.transport {
        Transport::Echo { request, .. } => Some((if is_v4 { 8 } else { 128 }, !request)),
        Transport::Icmp { kind: kind @ (13 | 15 | 17), .. } if is_v4 => Some((kind, false)),
        Transport::Icmp { kind: kind @ (14 | 16 | 18), .. } if is_v4 => Some((kind - 1, true)),
        Transport::Icmp { kind: kind @ (139 | 140), .. } if !is_v4 => Some((139, kind == 140)),
        _ => None,
    }
}

/// Tells whether a segment opens, resets or finishes a connection.
pub(super) fn is_decisive(spec: &Spec) -> bool {
    matches!(spec.transport, Transport::Tcp { flags, .. } if flags & (SYN | RST | FIN) != 0)
}

/// Tells whether an address is multicast, broadcast, loopback or unspecified.
pub(super) fn is_no_host(address: IpAddr) -> bool {
    let is_broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    address.is_multicast() || is_broadcast || address.is_loopback() || address.is_unspecified()
}

pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
}

/// Frame from the switch itself to the station behind a port.
pub(super) fn answered(port: PortId, spec: Spec) -> Vec<u8> {
    let vlan = (port == UPLINK).then_some(rig::UPLINK_VLAN);
    let mut dst_mac = spec.src_mac;
    // Without the mark of the node's sockets.
    dst_mac[0] &= !1;
    Spec { src_mac: rig::switch_mac(port), dst_mac, vlan, ..spec }.bytes()
}

/// ICMP error about a packet: time exceeded, or too big for an MTU.
pub(super) fn report(port: PortId, spec: &Spec, mtu: Option<u16>) -> Vec<u8> {
    let is_v4 = spec.src.is_ipv4();
    let (kind, code) = match (is_v4, mtu) {
        (true, None) => (11, 0),
        (true, Some(_)) => (3, 4),
        (false, None) => (3, 0),
        (false, Some(_)) => (2, 0),
    };
    let [high, low] = mtu.unwrap_or(0).to_be_bytes();
    let mut payload = spec.ip();
    payload.truncate(if is_v4 { 576 - 28 } else { 1280 - 48 });
    let error = Spec {
        src: rig::gateway_address()[usize::from(!is_v4)],
        dst: spec.src,
        ttl: 64,
        transport: Transport::Icmp { kind, code, rest: [0, 0, high, low] },
        payload,
        broken: false,
        ..spec.clone()
    };
    answered(port, error)
}
