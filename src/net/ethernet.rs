//! Ethernet II with at most one 802.1Q tag (IEEE 802.3, 802.1Q).

use super::be16;
use super::mac::Mac;

/// `ETH_P_IP` of `linux/if_ether.h`.
pub const IPV4: u16 = 0x0800;
/// `ETH_P_ARP`.
pub const ARP: u16 = 0x0806;
/// `ETH_P_IPV6`.
pub const IPV6: u16 = 0x86dd;
/// `ETH_P_8021Q`.
pub const VLAN: u16 = 0x8100;
/// Bytes of the header without a tag: `ETH_HLEN`.
pub const HEADER_BYTES: usize = 14;
/// Bytes of an 802.1Q tag.
pub const TAG_BYTES: usize = 4;

/// Bytes of a header with this 802.1Q tag, or with none for 0.
#[inline]
pub fn bytes_with(vlan: u16) -> usize {
    if vlan == 0 { HEADER_BYTES } else { HEADER_BYTES + TAG_BYTES }
}

/// A header with the fields of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// VLAN identifier of an 802.1Q tag; `None` without a tag or with a priority tag (identifier 0).
    pub vlan: Option<u16>,
    /// Ethertype behind the tag.
    pub ethertype: u16,
    /// Bytes up to the payload.
    pub header_bytes: usize,
}

/// Reads the header; `None` for a frame that ends within it.
#[inline]
pub fn parse(frame: &[u8]) -> Option<Ethernet> {
    let header: &[u8; HEADER_BYTES] = frame.first_chunk()?;
    let ([dst, src], _) = header.as_chunks::<6>() else { return None };
    let (dst, src) = (Mac(*dst), Mac(*src));
    let ethertype = be16(header, 12);
    if ethertype != VLAN {
        return Some(Ethernet { dst, src, vlan: None, ethertype, header_bytes: HEADER_BYTES });
    }
    let tag: &[u8; TAG_BYTES] = frame[HEADER_BYTES..].first_chunk()?;
    let identifier = be16(tag, 0) & 0x0fff;
    Some(Ethernet {
        dst,
        src,
        vlan: (identifier != 0).then_some(identifier),
        ethertype: be16(tag, 2),
        header_bytes: HEADER_BYTES + TAG_BYTES,
    })
}

/// Writes the addresses.
#[inline]
pub fn set_addresses(frame: &mut [u8], dst: Mac, src: Mac) {
    if let ([to, from, ..], _) = frame.as_chunks_mut::<6>() {
        (*to, *from) = (dst.0, src.0);
    }
}

/// Writes the addresses, in the form of [`Mac::to_bits`].
#[inline]
pub fn set_address_bits(frame: &mut [u8], dst: u64, src: u64) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses[..8].copy_from_slice(&(dst | src << 48).to_le_bytes());
        addresses[8..].copy_from_slice(&((src >> 16) as u32).to_le_bytes());
    }
}

/// Returns the multicast address of an IPv6 group (RFC 2464 section 7).
pub fn ipv6_multicast(group: std::net::Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}
