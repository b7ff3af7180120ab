use std::net::IpAddr;

use proptest::prelude::*;

use super::super::parse_frame;
use super::*;
use crate::dataplane::frames::{self, Spec, Transport};
use crate::net::virtio_net::NEEDS_CSUM;

/// FIN, PSH and ACK.
const FIN_PSH_ACK: u8 = 0x19;

pub(in crate::dataplane::pipeline) fn spec(is_v4: bool, is_tcp: bool, payload: usize) -> Spec {
    let [src, dst] = if is_v4 { ["10.0.0.1", "10.0.0.2"] } else { ["fd00::1", "fd00::2"] };
    let [src, dst]: [IpAddr; 2] = [src, dst].map(|text| text.parse().unwrap());
    let transport = if is_tcp {
        Transport::Tcp {
            ports: [1000, 80],
            flags: FIN_PSH_ACK,
            sequence: u32::MAX - 700,
            acknowledgement: 8,
            window: 9,
        }
    } else {
        Transport::Udp { ports: [1000, 53] }
    };
    Spec { payload: (0..payload).map(|i| (i % 251) as u8).collect(), ..Spec::new(src, dst, transport) }
}

pub(in crate::dataplane::pipeline) fn unfinished(spec: &Spec) -> Vec<u8> {
    let mut bytes = spec.bytes();
    frames::unfinish(&mut bytes);
    bytes
}

/// Header that the network stack of a pod gives the packet, with segments of `gso_size` bytes.
pub(in crate::dataplane::pipeline) fn header(spec: &Spec, gso_size: u16) -> VirtioNet {
    let (gso_type, csum_offset) = match spec.transport {
        Transport::Tcp { .. } if spec.src.is_ipv4() => (GSO_TCPV4, 16),
        Transport::Tcp { .. } => (GSO_TCPV6, 16),
        _ => (GSO_UDP_L4, 6),
    };
    let csum_start = if spec.src.is_ipv4() { 34 } else { 54 };
    VirtioNet { flags: NEEDS_CSUM, gso_type, hdr_len: csum_start + 20, gso_size, csum_start, csum_offset }
}

fn checked(header: &VirtioNet, bytes: &[u8]) -> HeaderCheck {
    let mut packet = Packet::default();
    assert_eq!(parse_frame(bytes, bytes.len(), &mut packet), None);
    check_header(header, &packet, bytes)
}

#[test]
fn a_header_is_believed_only_where_the_packet_confirms_it() {
    let (tcp, udp) = (spec(true, true, 3000), spec(true, false, 3000));
    let (tcp_bytes, udp_bytes) = (unfinished(&tcp), unfinished(&udp));
    let is = |header: VirtioNet| checked(&header, &tcp_bytes);
    let right = header(&tcp, 1000);
    assert_eq!(is(right), HeaderCheck::Segments(1000));
    assert_eq!(is(VirtioNet { hdr_len: 9999, ..right }), HeaderCheck::Segments(1000), "a hint");
    assert_eq!(is(VirtioNet { gso_size: 3000, ..right }), HeaderCheck::Plain, "one segment");
    assert_eq!(is(VirtioNet { gso_type: 0, gso_size: 0, ..right }), HeaderCheck::Plain);
    assert_eq!(checked(&header(&udp, 1000), &udp_bytes), HeaderCheck::Segments(1000));
    for wrong in [
        VirtioNet { gso_size: 0, ..right },
        VirtioNet { gso_size: 10, ..right },
        VirtioNet { flags: 0, ..right },
        VirtioNet { gso_type: GSO_TCPV6, ..right },
        VirtioNet { gso_type: GSO_UDP_L4, ..right },
        VirtioNet { gso_type: 3, ..right },
        VirtioNet { gso_type: GSO_ECN, ..right },
        VirtioNet { csum_start: 36, ..right },
        VirtioNet { csum_offset: 6, ..right },
        VirtioNet { gso_type: 0, csum_start: 20, ..right },
        VirtioNet { gso_type: 0, csum_start: 3060, ..right },
        VirtioNet { gso_type: 0, csum_start: u16::MAX, csum_offset: u16::MAX, ..right },
    ] {
        assert_eq!(is(wrong), HeaderCheck::Contradicts, "{wrong:?}");
    }
    assert_eq!(is(VirtioNet { gso_type: 0, csum_start: 54, csum_offset: 16, ..right }), HeaderCheck::Inner);
    // The checksum is finished, though the header says otherwise.
    assert_eq!(checked(&right, &tcp.bytes()), HeaderCheck::Contradicts);
    assert_eq!(checked(&VirtioNet { gso_type: 0, ..right }, &tcp.bytes()), HeaderCheck::Contradicts);
    assert_eq!(checked(&VirtioNet::default(), &tcp.bytes()), HeaderCheck::Plain);
    // A SYN has no segments.
    let syn = Transport::Tcp { ports: [1, 2], flags: 2, sequence: 1, acknowledgement: 0, window: 9 };
    let syn = Spec { transport: syn, ..tcp.clone() };
    assert_eq!(checked(&right, &unfinished(&syn)), HeaderCheck::Contradicts);
}

#[test]
fn a_checksum_within_the_payload_is_finished() {
    let inner = spec(true, true, 100);
    let outer = Spec { payload: unfinished(&inner), ..spec(true, false, 0) };
    let (umem, mut free) = Umem::in_memory(1);
    let mut frame = free.pop().unwrap();
    umem.write(&mut frame, &outer.bytes()).unwrap();
    let header =
        VirtioNet { flags: NEEDS_CSUM, csum_start: 42 + 34, csum_offset: 16, ..VirtioNet::default() };
    assert_eq!(checked(&header, &outer.bytes()), HeaderCheck::Inner);
    finish_inner(&umem, &mut frame, &header);
    frames::check(&umem.data(&frame)[42..]).unwrap();
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    #[test]
    fn no_header_makes_the_check_fail_or_believe_in_more_than_there_is(
        is_v4: bool,
        is_tcp: bool,
        payload in 0usize..4000,
        bytes: [u8; 10],
        is_unfinished: bool,
    ) {
        let spec = spec(is_v4, is_tcp, payload);
        let frame = if is_unfinished { unfinished(&spec) } else { spec.bytes() };
        let header = VirtioNet::from_bytes(&bytes);
        match checked(&header, &frame) {
            HeaderCheck::Segments(size) => {
                prop_assert!(is_unfinished && usize::from(size) < payload);
                prop_assert!(payload.div_ceil(size.into()) <= PORT_SEGMENTS_MAX);
            }
            HeaderCheck::Inner => {
                prop_assert!(usize::from(header.csum_start) + usize::from(header.csum_offset) + 2 <= frame.len());
            }
            HeaderCheck::Plain | HeaderCheck::Contradicts => {}
        }
    }
}
