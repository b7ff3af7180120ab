//! Addresses and ports of a packet, rewritten in its frame, with its checksums (RFC 1624).

use crate::dataplane::packet::Packet;
use crate::net::address::{Address, is_v4};
use crate::net::checksum::Sum;
use crate::net::flow::Protocol;
use crate::net::{icmp, ipv4, ipv6, tcp, udp};

/// Ends of a packet that are replaced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ends {
    /// New source address, and port where the packet has one.
    pub src: Option<(Address, Option<u16>)>,
    /// New destination address, and port where the packet has one.
    pub dst: Option<(Address, Option<u16>)>,
}

/// Offset of the checksum of a transport header over the pseudo-header.
#[inline(always)]
pub(super) fn checksum_offset(protocol: Protocol) -> Option<usize> {
    match protocol {
        Protocol::TCP => Some(tcp::CHECKSUM_OFFSET),
        Protocol::UDP => Some(udp::CHECKSUM_OFFSET),
        _ => None,
    }
}

/// Replaces ends in the first buffer `head` of a frame. `packet` has the offsets. The CRC of SCTP stays as it is.
#[inline(always)]
pub(super) fn replace_ends(head: &mut [u8], packet: &Packet, ends: Ends) {
    let (l3, l4) = (usize::from(packet.l3), usize::from(packet.l4));
    let Some(ip) = head.get_mut(l3..) else { return };
    let addresses = replace_addresses(ip, ends);
    let has_ports =
        ends.src.is_some_and(|(_, port)| port.is_some()) || ends.dst.is_some_and(|(_, port)| port.is_some());
    if !has_ports {
        return;
    }
    let Some(transport) = head.get_mut(l4..) else { return };
    if is_icmp(packet.protocol) {
        return replace_identifier(transport, packet.protocol, packet.unfinished, ends, addresses);
    }
    let ports = replace_ports(transport, ends);
    let Some(offset) = checksum_offset(packet.protocol) else { return };
    let Some(field) = transport.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
        return;
    };
    update_transport(field, packet.protocol, packet.unfinished, [addresses, ports]);
}

fn is_icmp(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::ICMP | Protocol::ICMPV6)
}

/// Replaces the identifier of an ICMP query, the port of both of its ends, and updates the checksum. That of `ICMPv6` covers
/// the pseudo-header too (RFC 4443 section 2.3).
#[cold]
pub(super) fn replace_identifier(
    message: &mut [u8],
    protocol: Protocol,
    is_unfinished: bool,
    ends: Ends,
    addresses: Change,
) {
    let port = [ends.src, ends.dst].into_iter().flatten().find_map(|(_, port)| port);
    let Some(place) = message.get_mut(icmp::IDENTIFIER_OFFSET..) else { return };
    let identifier = port.map_or_else(Change::default, |port| replace(place, port.to_be_bytes()));
    let covered = if protocol == Protocol::ICMPV6 { addresses } else { Change::default() };
    if let Some(field) = message.get_mut(icmp::CHECKSUM_OFFSET..).and_then(|rest| rest.first_chunk_mut::<2>())
    {
        if is_unfinished {
            return covered.update_sum(field);
        }
        covered.add(identifier).update(field);
    }
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// Replaces address and port of one end of a TCP or UDP packet, as [`replace_ends`] does. Returns false, and does nothing, for
/// any other packet.
#[inline(always)]
pub(super) fn replace_end(
    head: &mut [u8],
    packet: &Packet,
    end: End,
    (address, port): (Address, u16),
) -> bool {
    let Some(offset) = checksum_offset(packet.protocol) else { return false };
    let (l3, l4) = (usize::from(packet.l3), usize::from(packet.l4));
    let has_family = is_v4(address) == packet.is_v4;
    let Some((network, transport)) = head.split_at_mut_checked(l4) else { return false };
    let Some(mut field) = transport.get(offset..).and_then(<[u8]>::first_chunk::<2>).copied() else {
        return false;
    };
    if !has_family {
        return false;
    }
    let is_source = end == End::Source;
    let network = network.get_mut(l3..).unwrap_or_default();
    let addresses = if packet.is_v4 {
        let Some(header) = network.first_chunk_mut::<{ ipv4::HEADER_BYTES }>() else { return false };
        let (before, behind) = header.split_at_mut(16);
        let place = if is_source { &mut before[12..] } else { behind };
        let change = replace(place, (address as u32).to_be_bytes());
        if let Some(field) = header[10..].first_chunk_mut() {
            change.update(field);
        }
        change
    } else {
        let Some(header) = network.first_chunk_mut::<{ ipv6::HEADER_BYTES }>() else { return false };
        let (before, behind) = header.split_at_mut(24);
        replace(if is_source { &mut before[8..] } else { behind }, address.to_be_bytes())
    };
    let at = if is_source { 0 } else { 2 };
    let ports = replace(&mut transport[at..], port.to_be_bytes());
    update_transport(&mut field, packet.protocol, packet.unfinished, [addresses, ports]);
    transport[offset..offset + 2].copy_from_slice(&field);
    true
}

/// Replaces the first bytes of a place, which begins at an even offset of what checksums cover.
#[inline(always)]
fn replace<const N: usize>(place: &mut [u8], new: [u8; N]) -> Change {
    let Some(place) = place.first_chunk_mut::<N>() else { return Change::default() };
    Change::of_array(std::mem::replace(place, new), new)
}

/// Difference of bytes that checksums cover: the sum of the old bytes inverted and of the new ones, "~m + m'" (RFC 1624
/// section 3).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Change(Sum);

impl Change {
    /// The change of these bytes to others. Both begin at an even offset of what the checksum covers.
    pub(super) fn of(old: &[u8], new: &[u8]) -> Change {
        Change(Sum::default().add_word(!Sum::default().add_bytes(old).fold()).add_bytes(new))
    }

    /// The same for an even number of bytes, which the compiler knows.
    #[inline(always)]
    fn of_array<const N: usize>(old: [u8; N], new: [u8; N]) -> Change {
        const { assert!(N.is_multiple_of(2)) };
        let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
        Change(pairs.fold(Sum::default(), |sum, (old, new)| {
            sum.add_word(!u16::from_be_bytes(*old)).add_word(u16::from_be_bytes(*new))
        }))
    }

    #[inline(always)]
    fn add(self, other: Change) -> Change {
        Change(self.0.add(other.0))
    }

    /// "HC' = ~(~HC + ~m + m')" (RFC 1624 section 3, equation 3).
    #[inline(always)]
    pub(super) fn update(self, field: &mut [u8; 2]) {
        *field = self.0.add_word(!u16::from_be_bytes(*field)).finish().to_be_bytes();
    }

    /// The same for a field that holds a sum that is not inverted.
    fn update_sum(self, field: &mut [u8; 2]) {
        *field = self.0.add_bytes(field).fold().to_be_bytes();
    }
}

/// Replaces the addresses of an IP header, and updates the header checksum of IPv4.
#[inline(always)]
pub(super) fn replace_addresses(ip: &mut [u8], ends: Ends) -> Change {
    let mut change = Change::default();
    let is_ipv4 = ip.first().is_some_and(|byte| byte >> 4 == 4);
    for (end, at_v4, at_v6) in [(ends.src, 12, 8), (ends.dst, 16, 24)] {
        let Some((address, _)) = end else { continue };
        if is_ipv4 && is_v4(address) {
            let Some(place) = ip.get_mut(at_v4..).and_then(|rest| rest.first_chunk_mut::<4>()) else {
                continue;
            };
            let new = (address as u32).to_be_bytes();
            change = change.add(Change::of_array(*place, new));
            *place = new;
        } else if !is_ipv4 && !is_v4(address) {
            let Some(place) = ip.get_mut(at_v6..).and_then(|rest| rest.first_chunk_mut::<16>()) else {
                continue;
            };
            let new = address.to_be_bytes();
            change = change.add(Change::of_array(*place, new));
            *place = new;
        }
    }
    if is_ipv4 && let Some(field) = ip.get_mut(10..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        change.update(field);
    }
    change
}

/// Replaces the ports of a transport header.
#[inline(always)]
pub(super) fn replace_ports(transport: &mut [u8], ends: Ends) -> Change {
    let mut change = Change::default();
    for (end, at) in [(ends.src, 0), (ends.dst, 2)] {
        let Some((_, Some(port))) = end else { continue };
        let Some(place) = transport.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
            continue;
        };
        let new = port.to_be_bytes();
        change = change.add(Change::of_array(*place, new));
        *place = new;
    }
    change
}

/// Updates a transport checksum by the changes of addresses and ports. An unfinished one holds the sum over the
/// pseudo-header, which has no ports.
#[inline(always)]
pub(super) fn update_transport(
    field: &mut [u8; 2],
    protocol: Protocol,
    is_unfinished: bool,
    [addresses, ports]: [Change; 2],
) {
    if is_unfinished {
        return addresses.update_sum(field);
    }
    // "An all zero transmitted checksum value means that the transmitter generated no checksum" (RFC 768).
    let is_udp = protocol == Protocol::UDP;
    if is_udp && *field == [0; 2] {
        return;
    }
    addresses.add(ports).update(field);
    if is_udp && *field == [0; 2] {
        *field = [0xff; 2];
    }
}

/// Length of the IP header at the beginning of these bytes, without extension headers; `None` for neither version.
pub(super) fn ip_header_bytes(ip: &[u8]) -> Option<usize> {
    match ip.first()? >> 4 {
        4 => Some(usize::from(ip.first()? & 0xf) * 4).filter(|bytes| *bytes >= ipv4::HEADER_BYTES),
        6 => ipv6::upper_layer(ip).map(|upper| upper.offset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::net::address::{from_v4, unpack};
    use crate::net::checksum::pseudo_header_of;

    /// IPv4 or IPv6 packet with valid checksums.
    fn packet(
        is_v4: bool,
        protocol: Protocol,
        src: u128,
        dst: u128,
        ports: [u16; 2],
        payload: &[u8],
    ) -> Vec<u8> {
        let header_bytes = if protocol == Protocol::TCP { tcp::HEADER_BYTES } else { udp::HEADER_BYTES };
        let mut transport = vec![0; header_bytes];
        transport[..2].copy_from_slice(&ports[0].to_be_bytes());
        transport[2..4].copy_from_slice(&ports[1].to_be_bytes());
        transport.extend(payload);
        let pseudo = pseudo_header_of(unpack(src), unpack(dst), protocol, transport.len());
        let checksum = pseudo.add_bytes(&transport).finish();
        let checksum = if checksum == 0 && protocol == Protocol::UDP { 0xffff } else { checksum };
        let at = checksum_offset(protocol).unwrap();
        transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        let mut ip = vec![0; if is_v4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES }];
        if is_v4 {
            ipv4::write(&mut ip, src as u32, dst as u32, protocol, transport.len(), 64);
        } else {
            ipv6::write(&mut ip, src, dst, protocol, transport.len(), 64);
        }
        ip.extend(transport);
        ip
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        /// Rewritten packets are those that a sender would have made, whatever ends change.
        #[test]
        fn checksums_are_those_of_a_packet_made_anew(
            is_v4: bool,
            is_tcp: bool,
            is_unfinished: bool,
            addresses in prop::array::uniform4(any::<u128>()),
            ports in prop::array::uniform4(any::<u16>()),
            changes in prop::array::uniform2(any::<bool>()),
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let address = |n: usize| if is_v4 { from_v4(addresses[n] as u32) } else { addresses[n] | 1 << 127 };
            let protocol = if is_tcp { Protocol::TCP } else { Protocol::UDP };
            let mut bytes = packet(is_v4, protocol, address(0), address(1), [ports[0], ports[1]], &payload);
            let l4 = if is_v4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES } as u16;
            let parsed = Packet { protocol, is_v4, l4, unfinished: is_unfinished, ..Packet::default() };
            let at = usize::from(l4) + checksum_offset(protocol).unwrap();
            let begin = |bytes: &mut [u8], src, dst| {
                let transport = bytes.len() - usize::from(l4);
                let sum = pseudo_header_of(unpack(src), unpack(dst), protocol, transport).fold();
                bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            };
            if is_unfinished {
                begin(&mut bytes, address(0), address(1));
            }
            let [src, dst] = changes;
            let ends = Ends {
                src: src.then_some((address(2), Some(ports[2]))),
                dst: dst.then_some((address(3), Some(ports[3]))),
            };
            let mut by_end = bytes.clone();
            replace_ends(&mut bytes, &parsed, ends);
            let one = [(End::Source, ends.src), (End::Destination, ends.dst)];
            for (end, (address, port)) in one.into_iter().filter_map(|(end, to)| Some((end, to?))) {
                prop_assert!(replace_end(&mut by_end, &parsed, end, (address, port.unwrap())));
            }
            prop_assert_eq!(&by_end, &bytes);
            let (src, src_port) = if src { (address(2), ports[2]) } else { (address(0), ports[0]) };
            let (dst, dst_port) = if dst { (address(3), ports[3]) } else { (address(1), ports[1]) };
            let mut expected = packet(is_v4, protocol, src, dst, [src_port, dst_port], &payload);
            if is_unfinished {
                begin(&mut expected, src, dst);
            }
            let [same, other] = [&bytes, &expected].map(|bytes| {
                let mut bytes = bytes.clone();
                // Zero has two representations in ones' complement.
                let checksum = u16::from_be_bytes([bytes[at], bytes[at + 1]]) % 0xffff;
                bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
                if is_v4 {
                    let header = u16::from_be_bytes([bytes[10], bytes[11]]) % 0xffff;
                    bytes[10..12].copy_from_slice(&header.to_be_bytes());
                }
                bytes
            });
            prop_assert_eq!(same, other);
        }
    }
}
