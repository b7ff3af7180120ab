//! VXLAN (RFC 7348): Ethernet frames in UDP datagrams.

use super::{ethernet, ipv4, ipv6, udp};

/// UDP port of IANA.
pub const PORT: u16 = 4789;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Largest network identifier.
pub const VNI_MAX: u32 = 0x00ff_ffff;

/// Flag I: "the VNI field is valid".
const VALID: u8 = 0x08;

/// Bytes that a tunnel adds to an IP packet: inner Ethernet header, VXLAN, UDP and outer IP.
pub const fn overhead_bytes(is_v4: bool) -> usize {
    let ip = if is_v4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    ip + udp::HEADER_BYTES + HEADER_BYTES + ethernet::HEADER_BYTES
}

/// Header with a network identifier.
#[inline]
pub fn header(vni: u32) -> [u8; HEADER_BYTES] {
    let [_, a, b, c] = vni.to_be_bytes();
    [VALID, 0, 0, 0, a, b, c, 0]
}

/// Network identifier of a header. `None` without a valid one. Other flags and reserved bits "MUST be ignored on receipt".
#[inline]
pub fn vni(header: [u8; HEADER_BYTES]) -> Option<u32> {
    let [flags, _, _, _, a, b, c, _] = header;
    (flags & VALID != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_identifier_behind_the_flag() {
        assert_eq!(header(0x0012_3456), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(vni([0xff, 1, 2, 3, 0x12, 0x34, 0x56, 9]), Some(0x0012_3456));
        assert_eq!(vni([0xf7, 0, 0, 0, 0, 0, 1, 0]), None);
        assert_eq!([true, false].map(overhead_bytes), [50, 70]);
    }
}
