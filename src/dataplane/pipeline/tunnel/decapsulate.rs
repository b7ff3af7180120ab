//! Frames from tunnels.

use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::fib::tunnel::Tunnels;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::{DropReason, PortKind};
use crate::net::address::{Address, from_v4};
use crate::net::flow::Protocol;
use crate::net::{ecn, ethernet, ipv4, ipv6, udp, vxlan};
use crate::xdp::{Frame, Umem};

/// Takes the outer headers off the frames that have come by tunnels: what is left is the inner packet behind the outer Ethernet
/// header. A node may send what the routes lead back to it, and nothing else.
pub(in crate::dataplane::pipeline) fn decapsulate(batch: &mut Batch, context: &Context<'_>) {
    let Some(tunnels) = context.snapshot.tunnels() else { return };
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        let port = context.snapshot.port(batch.in_ports[run.start]);
        let Some(port) = port.filter(|port| port.kind == PortKind::Uplink) else { continue };
        for i in run {
            // A frame that has waited has lost them already.
            if !batch.is_pending(i) || batch.waited[i] {
                continue;
            }
            let frame = &mut batch.frames[i];
            let Some(outer) = Outer::of(context.umem.data(frame), tunnels, port) else { continue };
            match take_off(context.umem, frame, &outer, tunnels.vni, context.snapshot) {
                Ok(()) => batch.by_tunnel[i] = true,
                Err(reason) => batch.drop(i, reason),
            }
        }
    }
}

/// Outer headers of a frame to this node's end of tunnels.
struct Outer {
    /// Start of the IP header.
    l3: usize,
    is_v4: bool,
    /// End of the IP packet.
    end: usize,
    src: Address,
    /// TOS byte, or traffic class.
    traffic_class: u8,
}

impl Outer {
    /// Reads the headers at the beginning of a frame. `None` for a frame to another place.
    fn of(head: &[u8], tunnels: &Tunnels, port: &PortView) -> Option<Outer> {
        let header = ethernet::parse(head)?;
        if header.dst != port.own_mac || header.vlan.unwrap_or(0) != port.vlan {
            return None;
        }
        let l3 = header.header_bytes;
        let packet = head.get(l3..)?;
        let (outer, dst, protocol) = match header.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Ipv4::new(packet).filter(|ip| ip.header_bytes() == ipv4::HEADER_BYTES)?;
                let (end, src) = (l3 + ip.total_bytes(), from_v4(ip.src()));
                let outer = Outer { l3, is_v4: true, end, src, traffic_class: packet[1] };
                (outer, from_v4(ip.dst()), ip.protocol())
            }
            ethernet::IPV6 => {
                let ip = ipv6::Ipv6::new(packet)?;
                let end = l3 + ipv6::HEADER_BYTES + ip.payload_bytes();
                let traffic_class = packet[0] << 4 | packet[1] >> 4;
                let outer = Outer { l3, is_v4: false, end, src: ip.src(), traffic_class };
                (outer, ip.dst(), Protocol(ip.next_header()))
            }
            _ => return None,
        };
        let is_ours = protocol == Protocol::UDP && dst == tunnels.own(outer.is_v4);
        let udp = udp::Udp::new(packet.get(outer.l4() - l3..)?)?;
        (is_ours && udp.dst_port() == tunnels.port).then_some(outer)
    }

    /// Start of the UDP header.
    fn l4(&self) -> usize {
        self.l3 + if self.is_v4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES }
    }
}

/// Removes the outer headers of a frame, if its sender may send the inner packet. A UDP checksum is not verified, which is free
/// to the receiver (RFC 7348 section 5): the inner packet has its own.
fn take_off(
    umem: &Umem,
    frame: &mut Frame,
    outer: &Outer,
    vni: u32,
    snapshot: &Snapshot,
) -> Result<(), DropReason> {
    let head = umem.data(frame);
    let (l3, l4) = (outer.l3, outer.l4());
    if outer.is_v4 {
        if !ipv4::checksum_holds(&head[l3..l4]) {
            return Err(DropReason::BadIpChecksum);
        }
        // "VTEPs MUST NOT fragment VXLAN packets" (section 4.3).
        if ipv4::Ipv4::new(&head[l3..]).is_some_and(ipv4::Ipv4::is_fragment) {
            return Err(DropReason::Malformed);
        }
    }
    let (at, inner) = (l4 + udp::HEADER_BYTES, l4 + udp::HEADER_BYTES + vxlan::HEADER_BYTES);
    let ip = inner + ethernet::HEADER_BYTES;
    if outer.end > frame.len() || ip > head.len().min(outer.end) {
        return Err(DropReason::Truncated);
    }
    let has_length = udp::Udp::new(&head[l4..]).is_some_and(|udp| l4 + udp.bytes() == outer.end);
    let header = head[at..].first_chunk().copied().and_then(vxlan::vni);
    let (true, Some(found)) = (has_length, header) else { return Err(DropReason::Malformed) };
    if found != vni {
        return Err(DropReason::TunnelPeer);
    }
    let ethertype = crate::net::be16(head, inner + 12);
    let packet = &head[ip..];
    let (src, traffic_class) = match ethertype {
        ethernet::IPV4 => (ipv4::Ipv4::new(packet).map(|ip| from_v4(ip.src())), packet.get(1).copied()),
        ethernet::IPV6 => (ipv6::Ipv6::new(packet).map(ipv6::Ipv6::src), packet.get(1).map(|byte| byte >> 4)),
        _ => return Err(DropReason::UnknownEthertype),
    };
    let (Some(src), Some(traffic_class)) = (src, traffic_class) else { return Err(DropReason::Truncated) };
    if snapshot.tunnel_remote(src) != Some(outer.src) {
        return Err(DropReason::TunnelPeer);
    }
    let Some(ecn) = ecn::decapsulate(traffic_class, outer.traffic_class) else {
        return Err(DropReason::TunnelCongestion);
    };
    let overhead = ip - l3;
    frame.truncate(outer.end);
    let bytes = umem.data_mut(frame);
    bytes.copy_within(..l3, overhead);
    bytes[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
    if ecn != traffic_class & ecn::MASK {
        match ethertype {
            ethernet::IPV4 => ipv4::set_tos(&mut bytes[ip..], traffic_class & !ecn::MASK | ecn),
            _ => bytes[ip + 1] = bytes[ip + 1] & !(ecn::MASK << 4) | ecn << 4,
        }
    }
    frame.shrink_head(overhead).map_err(|_| DropReason::Truncated)
}
