//! Frames to tunnels.

use crate::dataplane::PortKind;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::net::address::{Address, from_v4, is_v4};
use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::{ethernet, ipv4, ipv6, udp, vxlan};
use crate::xdp::{Frame, Umem};

/// TTL of outer headers (RFC 1700).
const TTL: u8 = 64;
/// First source port of a tunnel, and their number: within the dynamic range (RFC 7348 section 5), below the external ports of
/// masqueraded flows.
const PORT_FIRST: u16 = 49_152;
const PORTS: u16 = 8_192;

/// Outer headers of a packet.
#[derive(Debug, Clone, Copy)]
pub(in crate::dataplane::pipeline) struct Encapsulation {
    own: Address,
    remote: Address,
    /// UDP ports: source, destination.
    ports: [u16; 2],
    vni: u32,
    /// Ethernet address of the switch at the other end.
    inner_dst: Mac,
}

impl Encapsulation {
    /// Outer headers of the packet in a frame, which goes to `dst`. `None` for a packet that leaves without.
    pub(in crate::dataplane::pipeline) fn of(
        snapshot: &Snapshot,
        head: &[u8],
        dst: Address,
    ) -> Option<Encapsulation> {
        let tunnels = snapshot.tunnels()?;
        let packet = head.get(ethernet::parse(head)?.header_bytes..)?;
        let src =
            if is_v4(dst) { from_v4(ipv4::Ipv4::new(packet)?.src()) } else { ipv6::Ipv6::new(packet)?.src() };
        let remote = snapshot.tunnel_of(src, dst)?;
        Some(Encapsulation {
            own: tunnels.own(is_v4(remote)),
            remote,
            ports: [source_port(packet, src ^ dst.rotate_left(1)), tunnels.port],
            vni: tunnels.vni,
            inner_dst: snapshot.mac,
        })
    }

    /// Bytes that the headers add.
    pub(in crate::dataplane::pipeline) fn bytes(&self) -> usize {
        vxlan::overhead_bytes(is_v4(self.remote))
    }

    /// Puts the headers into a frame of one packet, whose Ethernet header becomes the outer one. Returns false, and leaves the frame
    /// as it is, without room.
    pub(in crate::dataplane::pipeline) fn put(
        &self,
        umem: &Umem,
        frame: &mut Frame,
        free: &mut Vec<Frame>,
    ) -> bool {
        umem.finish_left_checksum(frame);
        let Some(header) = ethernet::parse(umem.data(frame)) else { return false };
        let (l3, is_v4) = (header.header_bytes, is_v4(self.remote));
        let inner_bytes = frame.len() - l3 + ethernet::HEADER_BYTES;
        if umem.grow_head(frame, self.bytes(), free).is_err() {
            return false;
        }
        let bytes = umem.data_mut(frame);
        let (outer, inner) = bytes.split_at_mut(l3 + self.bytes());
        outer.copy_within(self.bytes().., 0);
        let traffic_class = match header.ethertype {
            ethernet::IPV4 => inner[1],
            _ => inner[0] << 4 | inner[1] >> 4,
        };
        let payload_bytes = udp::HEADER_BYTES + vxlan::HEADER_BYTES + inner_bytes;
        let ethertype = if is_v4 { ethernet::IPV4 } else { ethernet::IPV6 };
        outer[l3 - 2..l3].copy_from_slice(&ethertype.to_be_bytes());
        let l4 = self.write_ip(&mut outer[l3..], payload_bytes, traffic_class) + l3;
        let [src, dst] = self.ports.map(u16::to_be_bytes);
        let [high, low] = (payload_bytes as u16).to_be_bytes();
        // Without a checksum: "it SHOULD be transmitted as zero" (section 5). Over IPv6 it follows.
        outer[l4..][..udp::HEADER_BYTES].copy_from_slice(&[src[0], src[1], dst[0], dst[1], high, low, 0, 0]);
        let at = l4 + udp::HEADER_BYTES;
        outer[at..][..vxlan::HEADER_BYTES].copy_from_slice(&vxlan::header(self.vni));
        let ethernet = &mut outer[at + vxlan::HEADER_BYTES..];
        ethernet::set_addresses(ethernet, self.inner_dst, header.src);
        ethernet[12..14].copy_from_slice(&header.ethertype.to_be_bytes());
        if !is_v4 {
            let bytes = umem.data_mut(frame);
            let addresses = &bytes[l3 + ipv6::ADDRESSES_OFFSET..l4];
            let sum = pseudo_header(addresses, Protocol::UDP, payload_bytes).fold();
            bytes[l4 + udp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.to_be_bytes());
            umem.leave_or_finish_checksum(frame, l4, udp::CHECKSUM_OFFSET);
        }
        true
    }

    /// Writes the outer IP header, and returns its length.
    fn write_ip(&self, outer: &mut [u8], payload_bytes: usize, traffic_class: u8) -> usize {
        if is_v4(self.remote) {
            let (src, dst) = (self.own as u32, self.remote as u32);
            ipv4::write(outer, src, dst, Protocol::UDP, payload_bytes, TTL);
            ipv4::set_tos(outer, traffic_class);
            return ipv4::HEADER_BYTES;
        }
        ipv6::write(outer, self.own, self.remote, Protocol::UDP, payload_bytes, TTL);
        outer[0] |= traffic_class >> 4;
        outer[1] |= traffic_class << 4;
        ipv6::HEADER_BYTES
    }
}

/// Source port by a hash of the flow of an inner packet: routers and receive queues spread flows by it, and keep the packets of each
/// in order.
fn source_port(packet: &[u8], addresses: Address) -> u16 {
    let ports = match ipv4::Ipv4::new(packet).filter(|ip| ip.version() == 4) {
        Some(ip) if ip.is_fragment() => None,
        Some(ip) => packet.get(ip.header_bytes()..),
        None => packet.get(ipv6::HEADER_BYTES..),
    };
    let ports = ports.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let mixed = (addresses >> 64) as u64 ^ addresses as u64 ^ u64::from(ports) << 16;
    // 2^64 divided by the golden ratio (Knuth, multiplicative hashing).
    let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    PORT_FIRST + (hash as u16) % PORTS
}

/// Puts outer headers before the answers of the switch to what has come by tunnels.
pub(in crate::dataplane::pipeline) fn encapsulate_answers(
    batch: &mut Batch,
    context: &Context<'_>,
    free: &mut Vec<Frame>,
) {
    if context.snapshot.tunnels().is_none() {
        return;
    }
    for i in 0..batch.len() {
        let is_uplink = || {
            let port = context.snapshot.port(batch.in_ports[i]);
            port.is_some_and(|port| port.kind == PortKind::Uplink)
        };
        if batch.answers[i] && is_uplink() {
            let (frame, to) = (&mut batch.frames[i], batch.packets[i].src);
            if let Some(encapsulation) = Encapsulation::of(context.snapshot, context.umem.data(frame), to) {
                batch.answers[i] = encapsulation.put(context.umem, frame, free);
            }
        }
    }
}
