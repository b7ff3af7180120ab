//! Valid inputs that edits start from.

use palisade::ids::PortId;

use crate::frames::{Spec, Transport, arp, ether_type, ethernet};
use crate::rig::{addressed, gateway_address, gateway_mac, mac, outside_address, pod_address};

/// Port that the frames arrive on.
pub(crate) const POD: PortId = PortId(0);

/// Frames of the first pod to another pod, to the uplink and to the gateway, whole and in fragments, and ICMP
/// errors that quote them.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for family in [0, 1] {
        let [from, to] = [0, 1].map(|pod| pod_address(pod)[family]);
        for transport in transports() {
            for dst in [to, outside_address(1)[family], gateway_address()[family]] {
                frames.push(addressed(POD, &Spec::new(from, dst, transport)).bytes());
            }
            // An error about a packet of the other pod.
            let quoted = Spec::new(to, from, transport).ip();
            let (kind, code) = if family == 0 { (3, 4) } else { (2, 0) };
            let error = Spec::new(from, to, Transport::Icmp { kind, code, rest: [0, 0, 5, 0] });
            frames.push(addressed(POD, &Spec { payload: quoted, ..error }).bytes());
        }
        frames.extend(fragments(from, to));
    }
    let address = |pod: usize| match pod_address(pod)[0] {
        std::net::IpAddr::V4(v4) => v4.octets(),
        std::net::IpAddr::V6(_) => unreachable!("the first one is IPv4"),
    };
    frames.push(arp(1, (mac(POD), address(0)), ([0; 6], address(1)), [0xff; 6]));
    frames.push(arp(2, (mac(POD), address(0)), (gateway_mac(), address(1)), gateway_mac()));
    frames
}

fn transports() -> [Transport; 8] {
    let ports = [40_000, 6379];
    let tcp = |flags| Transport::Tcp { ports, flags, sequence: 1, acknowledgement: 1, window: 1000 };
    [
        tcp(2),
        tcp(16),
        tcp(4),
        Transport::Udp { ports },
        Transport::Sctp { ports, chunk: 1 },
        Transport::Echo { request: true, identifier: 7 },
        Transport::Icmp { kind: 135, code: 0, rest: [0; 4] },
        Transport::Other(47),
    ]
}

/// Both halves of a datagram (RFC 791 section 3.1, RFC 8200 section 4.5).
fn fragments(from: std::net::IpAddr, to: std::net::IpAddr) -> [Vec<u8>; 2] {
    let spec = addressed(POD, &Spec::new(from, to, Transport::Udp { ports: [40_000, 6379] }));
    let datagram = [&[0x9c, 0x40, 0x18, 0xeb, 0, 32, 0, 0][..], &[0x61; 24]].concat();
    [(&datagram[..16], 0u16, true), (&datagram[16..], 16, false)].map(|(part, offset, more)| {
        let ip = if from.is_ipv4() {
            let mut ip = spec.raw(17, part);
            let word = offset / 8 | if more { 0x2000 } else { 0 };
            ip[6..8].copy_from_slice(&word.to_be_bytes());
            ip[10..12].fill(0);
            let words = ip[..20].chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
            let sum: u32 = words.sum();
            let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&folded.to_be_bytes());
            ip
        } else {
            let [high, low] = (offset | u16::from(more)).to_be_bytes();
            spec.raw(44, &[&[17, 0, high, low, 0, 0, 0, 7][..], part].concat())
        };
        ethernet(spec.src_mac, spec.dst_mac, None, ether_type(from), &ip)
    })
}

/// Recording of two frames, as tcpdump writes it (pcap-savefile(5)).
pub(crate) fn recording() -> Vec<u8> {
    let frame = &frames()[0];
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(65_535u32.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    for _ in 0..2 {
        file.extend([1u32, 2, frame.len() as u32, frame.len() as u32].map(u32::to_le_bytes).as_flattened());
        file.extend(frame);
    }
    file
}
