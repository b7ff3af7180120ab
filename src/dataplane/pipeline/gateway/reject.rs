//! Answers to packets that policy or a drain denies, where the switch is configured to reject them: a TCP reset (RFC 9293 section
//! 3.10.7.1), or an ICMP error "communication administratively prohibited" (RFC 1812 section 5.2.7.1, RFC 4443 section
//! 3.1).

use super::{IcmpError, TTL, icmp_error};
use crate::dataplane::DropReason;
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::net::address::{is_v4, unpack};
use crate::net::checksum::pseudo_header_of;
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags};
use crate::net::{ethernet, ipv4, ipv6};
use crate::xdp::{Frame, Umem};

/// Replaces the frames that policy has denied, that a Service does not serve, and segments of no flow by answers to their senders,
/// within the rate limit of ICMP errors.
#[cold]
pub(in crate::dataplane::pipeline) fn answer_denied(
    batch: &mut Batch,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
) {
    for i in 0..batch.len() {
        let icmp_answer = match batch.dispositions[i] {
            Disposition::Dropped(DropReason::ServiceNoBackend) => IcmpError::PortUnreachable,
            Disposition::Dropped(
                DropReason::PolicyEgress | DropReason::PolicyIngress | DropReason::Draining,
            ) if context.snapshot.rejects => IcmpError::Prohibited,
            // A TCP segment, which is answered with a reset.
            _ if batch.unknown_segments.contains(&(i as u16)) => IcmpError::PortUnreachable,
            _ => continue,
        };
        let packet = &batch.packets[i];
        // Neither a reset nor an ICMP error causes an answer, and they take nothing from the rate limit.
        let is_reset = packet.protocol == Protocol::TCP && packet.tcp_flags().has(Flags::RST);
        if packet.kind != Kind::Flow || is_reset {
            continue;
        }
        if rate_limits.allow_icmp_error(batch.in_ports[i], context.now_ms) {
            let frame = &mut batch.frames[i];
            batch.answers[i] = if packet.protocol == Protocol::TCP && packet.whole {
                reset(context.umem, frame, packet)
            } else {
                icmp_error(context.umem, frame, packet, (context.snapshot, batch.in_ports[i]), icmp_answer)
            };
        }
    }
    batch.unknown_segments.clear();
}

/// Replaces a frame by the TCP reset that the destination of its segment would send for a closed port. Returns whether it has.
pub(super) fn reset(umem: &Umem, frame: &mut Frame, packet: &Packet) -> bool {
    let Some(segment) = tcp::Tcp::new(packet.transport(umem.data(frame))) else { return false };
    let (src_port, dst_port) = (segment.src_port(), segment.dst_port());
    let flags = segment.flags();
    let sent =
        packet.tcp_payload_bytes() + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
    let (sequence, acknowledgement, control) = if flags.has(Flags::ACK) {
        (segment.acknowledgement(), 0, Flags::RST)
    } else {
        (0, segment.sequence().wrapping_add(sent), Flags::RST | Flags::ACK)
    };
    let l3 = usize::from(packet.l3);
    let ip_bytes = if is_v4(packet.src) { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    frame.drop_virtio_header();
    frame.truncate(l3 + ip_bytes + tcp::HEADER_BYTES);
    let bytes = umem.data_mut(frame);
    ethernet::set_addresses(bytes, packet.src_mac(), packet.dst_mac());
    if is_v4(packet.src) {
        let (src, dst) = (packet.dst as u32, packet.src as u32);
        ipv4::write(&mut bytes[l3..], src, dst, Protocol::TCP, tcp::HEADER_BYTES, TTL);
    } else {
        ipv6::write(&mut bytes[l3..], packet.dst, packet.src, Protocol::TCP, tcp::HEADER_BYTES, TTL);
    }
    let header = &mut bytes[l3 + ip_bytes..][..tcp::HEADER_BYTES];
    tcp::write(header, [dst_port, src_port], sequence, acknowledgement, Flags(control));
    let pseudo_header =
        pseudo_header_of(unpack(packet.dst), unpack(packet.src), Protocol::TCP, tcp::HEADER_BYTES);
    let checksum = pseudo_header.add_bytes(header).finish();
    header[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    true
}
