//! Fuzz targets of the header views.

use palisade::net::flow::Protocol;
use palisade::net::{arp, ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};

use crate::fuzz_input::TIME_MAX;

/// Calls every accessor of every view.
fn look(bytes: &[u8]) -> usize {
    let mut seen = 0;
    seen += usize::from(ethernet::parse(bytes).is_some());
    seen += usize::from(arp::parse(bytes).is_some());
    if let Some(ip) = ipv4::Ipv4::new(bytes) {
        seen += ip.header_bytes() + ip.total_bytes() + ip.fragment_offset() + usize::from(ip.version());
        seen += usize::from(ip.more_fragments() & ip.is_fragment() & ip.dont_fragment());
        seen +=
            usize::from(ip.identification()) + usize::from(ip.ttl()) + ip.src() as usize + ip.dst() as usize;
        seen += usize::from(ip.protocol() == Protocol::TCP);
        seen += usize::from(ipv4::checksum_holds(&bytes[..ip.header_bytes().clamp(20, bytes.len())]));
    }
    if let Some(ip) = ipv6::Ipv6::new(bytes) {
        seen += ip.payload_bytes() + usize::from(ip.next_header()) + usize::from(ip.hop_limit());
        seen += usize::from(ip.src() == ip.dst()) + usize::from(ip.version());
        if let Some(upper) = ipv6::upper_layer(bytes) {
            assert!(format!("{upper:?}").contains("UpperLayer"));
        }
    }
    if let Some(segment) = tcp::Tcp::new(bytes) {
        seen += segment.header_bytes() + usize::from(segment.src_port()) + usize::from(segment.dst_port());
        seen += segment.sequence() as usize + segment.acknowledgement() as usize;
        seen += usize::from(segment.window()) + usize::from(segment.flags().is_invalid());
    }
    seen += usize::from(tcp::window_scale(bytes).unwrap_or(0));
    if let Some(datagram) = udp::Udp::new(bytes) {
        seen += datagram.bytes() + usize::from(datagram.src_port()) + usize::from(datagram.dst_port());
    }
    if let Some(packet) = sctp::Sctp::new(bytes) {
        seen += packet.verification_tag() as usize
            + usize::from(packet.src_port())
            + usize::from(packet.dst_port());
    }
    if let Some(message) = icmp::Icmp::new(bytes) {
        seen += usize::from(message.kind()) + usize::from(message.code()) + usize::from(message.identifier());
    }
    seen + usize::from(icmp::parse_neighbor(bytes).is_some())
}

#[test]
fn header_views_take_any_bytes() {
    bolero::check!().with_iterations(20_000).with_test_time(TIME_MAX).for_each(|bytes: &[u8]| {
        std::hint::black_box(look(bytes));
    });
}

#[test]
fn header_views_take_what_is_nearly_a_packet() {
    let packets: Vec<Vec<u8>> =
        super::seeds::frames().into_iter().map(|frame| frame[14..].to_vec()).collect();
    bolero::check!()
        .with_iterations(5_000)
        .with_test_time(TIME_MAX)
        .with_type::<(crate::fuzz_input::Edit, u8)>()
        .for_each(|(edit, skip)| {
            let bytes = edit.of(&packets);
            std::hint::black_box(look(&bytes[usize::from(*skip).min(bytes.len())..]));
        });
}
