//! Fragments of datagrams to a Service, and of replies.

use palisade::dataplane::DropReason;
use palisade::ids::PortId;
use palisade::net::flow::Protocol;

use super::fixture::{
    SERVICE, TARGET, becomes, exchange, packet, port, seen_by_backend, seen_by_client, services_at,
    transport, virtual_address, with_backends,
};
use crate::frames::Spec;
use crate::rig::assertions::{A, B, CLIENT, udp_of};
use crate::rig::{HOST, Rig, Setting, addressed, forwarded, node_address, pod_address};

/// Bytes of Ethernet and IP header.
fn headers(family: usize) -> usize {
    [34, 54][family]
}

/// Sets the checksum of an IPv4 header.
fn finish_header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 =
        frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// Cuts a frame into two fragments, the first one with `first` bytes behind the IP header.
pub(crate) fn cut(frame: &[u8], family: usize, first: usize) -> [Vec<u8>; 2] {
    let start = headers(family);
    [(0, &frame[start..start + first], true), (first, &frame[start + first..], false)].map(
        |(offset, part, more)| {
            let mut fragment = frame[..start].to_vec();
            if family == 0 {
                let word = (offset as u16 / 8) | if more { 0x2000 } else { 0 };
                fragment[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
                fragment[18..20].copy_from_slice(&7u16.to_be_bytes());
                fragment[20..22].copy_from_slice(&word.to_be_bytes());
                finish_header(&mut fragment);
            } else {
                let next = std::mem::replace(&mut fragment[20], 44);
                fragment[18..20].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
                let word = offset as u16 | u16::from(more);
                fragment.extend([next, 0]);
                fragment.extend(word.to_be_bytes());
                fragment.extend([0, 0, 0, 7]);
            }
            fragment.extend(part);
            fragment
        },
    )
}

fn large(spec: &Spec) -> Spec {
    Spec { payload: (0..200).collect(), ..spec.clone() }
}

pub(super) fn send(rig: &mut Rig, from: PortId, fragments: &[Vec<u8>]) -> Vec<(PortId, Vec<u8>)> {
    fragments.iter().flat_map(|fragment| rig.send_on(0, from, std::slice::from_ref(fragment))).collect()
}

#[test]
fn fragments_are_translated_as_their_first_one() {
    for family in [0, 1] {
        for workers in [1, 2] {
            let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
            let sent = large(&seen_by_client(Protocol::UDP, family, 0, 0, CLIENT));
            let seen = large(&seen_by_backend(Protocol::UDP, family, 0, [0, 1], CLIENT));
            let out = send(&mut rig, A, &cut(&addressed(A, &sent).bytes(), family, 64));
            let expected = cut(&forwarded(B, &seen), family, 64).map(|fragment| (B, fragment));
            assert_eq!(out, expected);
            let sent = large(&seen_by_backend(Protocol::UDP, family, 1, [0, 1], CLIENT));
            let seen = large(&seen_by_client(Protocol::UDP, family, 1, 0, CLIENT));
            let out = send(&mut rig, B, &cut(&addressed(B, &sent).bytes(), family, 64));
            let expected = cut(&forwarded(A, &seen), family, 64).map(|fragment| (A, fragment));
            assert_eq!(out, expected);
        }
    }
}

#[test]
fn a_fragment_before_the_first_of_its_datagram_is_dropped_and_counted() {
    let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    let sent = large(&seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT));
    let [_, later] = cut(&addressed(A, &sent).bytes(), 0, 64);
    let before = rig.counters(A);
    assert_eq!(send(&mut rig, A, &[later]), []);
    let drops = rig.drops_since(A, &before);
    assert_eq!(drops, [(DropReason::ServiceNoBackend.name().to_owned(), 1)].into());
}

#[test]
fn fragments_of_one_batch_are_translated_as_their_first_one() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        for step in [0, 1, 2] {
            let at_client = large(&seen_by_client(Protocol::UDP, family, step, 0, CLIENT));
            let at_backend = large(&seen_by_backend(Protocol::UDP, family, step, [0, 1], CLIENT));
            let (from, sent, to, seen) =
                if step == 1 { (B, at_backend, A, at_client) } else { (A, at_client, B, at_backend) };
            let out = rig.send_on(0, from, &cut(&addressed(from, &sent).bytes(), family, 64));
            let expected = cut(&forwarded(to, &seen), family, 64).map(|fragment| (to, fragment));
            assert_eq!(out, expected, "step {step}");
        }
    }
}

#[test]
fn a_direct_datagram_with_the_identification_of_a_translated_one_is_not_translated() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
        exchange(&mut rig, Protocol::UDP, family, [0, 1], CLIENT);
        let sent = large(&seen_by_backend(Protocol::UDP, family, 1, [0, 1], CLIENT));
        let seen = large(&seen_by_client(Protocol::UDP, family, 1, 0, CLIENT));
        let out = send(&mut rig, B, &cut(&addressed(B, &sent).bytes(), family, 64));
        assert_eq!(out, cut(&forwarded(A, &seen), family, 64).map(|fragment| (A, fragment)));
        let direct = large(&udp_of(family, 1, 0, [5000, 6000]));
        let out = send(&mut rig, B, &cut(&addressed(B, &direct).bytes(), family, 64));
        assert_eq!(out, cut(&forwarded(A, &direct), family, 64).map(|fragment| (A, fragment)));
    }
}

#[test]
fn replies_in_fragments_reach_a_client_whose_address_may_be_virtual() {
    for family in [0, 1] {
        let services = Some(services_at(&port(&[1]), &node_address()));
        let mut rig = Rig::new(1, &Setting { services, ..Setting::open() });
        let (node, backend) = (node_address()[family], pod_address(1)[family]);
        let service = virtual_address()[family];
        let sent = packet(node, service, transport(Protocol::UDP, 0, [CLIENT, SERVICE]));
        let seen = packet(node, backend, transport(Protocol::UDP, 0, [CLIENT, TARGET]));
        becomes(&mut rig, HOST, &sent, B, &seen);
        let sent = large(&packet(backend, node, transport(Protocol::UDP, 1, [CLIENT, TARGET])));
        let seen = large(&packet(service, node, transport(Protocol::UDP, 1, [CLIENT, SERVICE])));
        let out = rig.send_on(0, B, &cut(&addressed(B, &sent).bytes(), family, 64));
        assert_eq!(out, cut(&forwarded(HOST, &seen), family, 64).map(|fragment| (HOST, fragment)));
    }
}
