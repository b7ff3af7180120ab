//! IPv4 (RFC 791).

use super::checksum::{Sum, is_zero};
use super::flow::Protocol;
use super::{be16, be32};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Largest header.
pub const HEADER_BYTES_MAX: usize = 60;

/// Types of options (RFC 791 section 3.1).
pub mod option {
    /// End of the options list: one byte.
    pub const END: u8 = 0;
    /// No operation: one byte.
    pub const NO_OPERATION: u8 = 1;
    /// Record route.
    pub const RECORD_ROUTE: u8 = 7;
    /// Internet timestamp.
    pub const TIMESTAMP: u8 = 68;
    /// Loose source and record route.
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Strict source and record route.
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
}

/// Returns the types of the options behind the fixed header, in their order. A last `None` stands for an
/// option that does not end within them.
pub fn option_types(mut options: &[u8]) -> impl Iterator<Item = Option<u8>> {
    std::iter::from_fn(move || match *options {
        [] | [option::END, ..] => None,
        [option::NO_OPERATION, ref rest @ ..] => {
            options = rest;
            Some(Some(option::NO_OPERATION))
        }
        [kind, length, ..] if length >= 2 && usize::from(length) <= options.len() => {
            options = &options[usize::from(length)..];
            Some(Some(kind))
        }
        _ => {
            options = &[];
            Some(None)
        }
    })
}

/// A view of the fixed part of a header.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Ipv4<'a> {
    /// Views the header at the start of `packet`; `None` for a short one.
    #[inline]
    pub fn new(packet: &'a [u8]) -> Option<Ipv4<'a>> {
        packet.first_chunk().map(Ipv4)
    }

    /// Views the header in these bytes.
    #[inline]
    pub fn of(header: &'a [u8; HEADER_BYTES]) -> Ipv4<'a> {
        Ipv4(header)
    }

    /// Version, 4.
    #[inline]
    pub fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_bytes(self) -> usize {
        usize::from(self.0[0] & 0x0f) * 4
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_bytes(self) -> usize {
        usize::from(be16(self.0, 2))
    }

    /// Identification, which fragments of one datagram share.
    #[inline]
    pub fn identification(self) -> u16 {
        be16(self.0, 4)
    }

    /// Don't Fragment.
    #[inline]
    pub fn dont_fragment(self) -> bool {
        self.0[6] & 0x40 != 0
    }

    /// More Fragments.
    #[inline]
    pub fn more_fragments(self) -> bool {
        self.0[6] & 0x20 != 0
    }

    /// Whether the packet is a fragment: More Fragments is set, or the offset is not zero.
    #[inline]
    pub fn is_fragment(self) -> bool {
        be16(self.0, 6) & 0x3fff != 0
    }

    /// Offset of a fragment, bytes.
    #[inline]
    pub fn fragment_offset(self) -> usize {
        usize::from(be16(self.0, 6) & 0x1fff) * 8
    }

    /// Time to live.
    #[inline]
    pub fn ttl(self) -> u8 {
        self.0[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(self) -> Protocol {
        Protocol(self.0[9])
    }

    /// Source address, host order.
    #[inline]
    pub fn src(self) -> u32 {
        be32(self.0, 12)
    }

    /// Destination address, host order.
    #[inline]
    pub fn dst(self) -> u32 {
        be32(self.0, 16)
    }
}

/// Whether the checksum over `header`, options included, is right.
#[inline]
pub fn checksum_holds(header: &[u8]) -> bool {
    match header.first_chunk::<HEADER_BYTES>() {
        // Nearly every header has no options. Its length is a constant, for which the compiler unrolls the
        // sum.
        Some(fixed) if header.len() == HEADER_BYTES => plain_checksum_holds(fixed),
        _ => Sum::default().add_bytes(header).fold() == 0xffff,
    }
}

/// Whether the checksum over a header without options is right.
#[inline]
pub fn plain_checksum_holds(header: &[u8; HEADER_BYTES]) -> bool {
    // A header is never all zero, so its sum is zero in ones' complement only as 0xffff.
    let words = header.as_chunks::<4>().0;
    is_zero(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
}

/// Decrements a TTL above zero, and updates the checksum (RFC 1812 section 5.3.1, RFC 1624).
#[inline]
pub fn decrement_ttl(packet: &mut [u8]) {
    if let Some(header) = packet.first_chunk_mut::<HEADER_BYTES>() {
        // TTL, protocol and checksum change in one register: a byte that is written and read again as part of
        // a word stalls on store forwarding. The ones' complement sum does not depend on the byte order, so
        // the number subtracted from the first byte of one word of the header is added to the first byte of
        // another.
        let word = header[8..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let checksum = (word >> 16) + 1;
        let checksum = checksum + u32::from(checksum >= 0xffff);
        let word = (word.wrapping_sub(1) & 0xffff) | checksum << 16;
        header[8..12].copy_from_slice(&word.to_le_bytes());
    }
}

/// Writes a header without options and its checksum.
pub fn write(packet: &mut [u8], src: u32, dst: u32, protocol: Protocol, payload_bytes: usize, ttl: u8) {
    let header = &mut packet[..HEADER_BYTES];
    header.fill(0);
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((HEADER_BYTES + payload_bytes) as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = ttl;
    header[9] = protocol.0;
    header[12..16].copy_from_slice(&src.to_be_bytes());
    header[16..20].copy_from_slice(&dst.to_be_bytes());
    let checksum = Sum::default().add_bytes(header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Sets the TOS byte of a header, and its checksum (RFC 1624).
pub fn set_tos(header: &mut [u8], tos: u8) {
    let before = be16(header, 0);
    let after = before & 0xff00 | u16::from(tos);
    let sum = Sum::default().add_word(!be16(header, 10)).add_word(!before).add_word(after);
    header[1] = tos;
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_are_walked_to_their_end_and_no_further() {
        let types = |options: &[u8]| option_types(options).collect::<Vec<_>>();
        assert_eq!(types(&[1, 1, 131, 3, 4, 148, 4, 0, 0, 0, 7]), [1, 1, 131, 148].map(Some));
        assert_eq!(types(&[7, 3, 4]), [Some(7)]);
        for broken in [&[131, 0, 0, 0][..], &[131, 1, 0, 0], &[131, 5, 0, 0], &[131]] {
            assert_eq!(types(broken), [None], "{broken:?}");
        }
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn a_ttl_is_decremented_with_its_checksum(mut header in prop::array::uniform20(any::<u8>()), ttl in 1u8..) {
            (header[0], header[8]) = (0x45, ttl);
            header[10..12].fill(0);
            let checksum = Sum::default().add_bytes(&header).finish();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            prop_assert!(checksum_holds(&header));
            let before = header;
            decrement_ttl(&mut header);
            prop_assert!(checksum_holds(&header));
            prop_assert_eq!((header[8], header[9]), (ttl - 1, before[9]));
            header[10..12].fill(0);
            let checksum = Sum::default().add_bytes(&header).finish();
            let mut forwarded = before;
            decrement_ttl(&mut forwarded);
            prop_assert_eq!(be16(&forwarded, 10), checksum);
        }

        #[test]
        fn one_changed_bit_breaks_the_checksum(mut header in prop::array::uniform20(any::<u8>()), bit in 0..160usize) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let checksum = Sum::default().add_bytes(&header).finish();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(plain_checksum_holds(&header), Sum::default().add_bytes(&header).fold() == 0xffff);
            header[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!plain_checksum_holds(&header));
        }
    }
}
