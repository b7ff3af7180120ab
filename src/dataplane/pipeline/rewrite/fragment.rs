//! Fragmentation of IPv4 packets that are larger than the MTU of their next hop and that a router may fragment (RFC 791 section
//! 3.2, RFC 1812 section 5.2.6).

use std::collections::VecDeque;

use super::segment::{Payload, write_segment};
use crate::limits::PORT_SEGMENTS_MAX;
use crate::net::checksum::Sum;
use crate::net::ipv4::{HEADER_BYTES_MAX, Ipv4};
use crate::net::{ethernet, ipv4};
use crate::xdp::{Frame, Umem};

/// Unit of fragment offsets.
const UNIT: usize = 8;
/// More Fragments, in the field of flags and offset.
const MORE_FRAGMENTS: u16 = 0x2000;

/// Fragments of a packet, as numbers of bytes.
pub(super) struct FragmentSizes {
    /// Start of the IP header.
    l3: usize,
    /// Bytes of the IP header.
    header: usize,
    /// Bytes behind the IP header.
    payload: usize,
    /// Bytes of the payload in each fragment but the last.
    bytes: usize,
}

impl FragmentSizes {
    /// Sizes for a packet whose frame ends with it. `None` where it needs too many fragments.
    pub(super) fn of(umem: &Umem, frame: &Frame, mtu: u16) -> Option<FragmentSizes> {
        let head = umem.data(frame);
        let l3 = ethernet::parse(head)?.header_bytes;
        let header = Ipv4::new(head.get(l3..)?)?.header_bytes();
        let bytes = usize::from(mtu).checked_sub(header)? / UNIT * UNIT;
        let payload = frame.len().checked_sub(l3 + header)?;
        let sizes = FragmentSizes { l3, header, payload, bytes };
        let is_possible = bytes > 0 && head.len() >= l3 + header && sizes.count() <= PORT_SEGMENTS_MAX;
        is_possible.then_some(sizes)
    }

    fn count(&self) -> usize {
        self.payload.div_ceil(self.bytes)
    }

    /// Frames that the fragments take, at most, with `added` bytes of outer headers each.
    pub(super) fn frames(&self, added: usize) -> usize {
        self.count() * (added + self.l3 + self.header + self.bytes).div_ceil(Umem::PACKET_ROOM)
    }
}

/// Cuts a packet, which has all headers of the wire, into fragments in frames of `free`, and appends these to `out`. Returns their
/// number; 0, with nothing appended, if frames or the capacity of `out` do not suffice.
#[cold]
#[inline(never)]
pub(super) fn fragment(
    umem: &Umem,
    frame: &Frame,
    sizes: &FragmentSizes,
    free: &mut Vec<Frame>,
    out: &mut VecDeque<Frame>,
) -> usize {
    let count = sizes.count();
    if free.len() < sizes.frames(0) || out.capacity() - out.len() < count {
        return 0;
    }
    let (headers, first) = umem.data(frame).split_at(sizes.l3 + sizes.header);
    let Some(header) = Ipv4::new(&headers[sizes.l3..]) else { return 0 };
    let (offset, is_cut_before) = (header.fragment_offset(), header.more_fragments());
    let mut later = [0; ethernet::HEADER_BYTES + ethernet::TAG_BYTES + HEADER_BYTES_MAX];
    let later_bytes = sizes.l3 + copied_header(&headers[sizes.l3..], &mut later[sizes.l3..]);
    later[..sizes.l3].copy_from_slice(&headers[..sizes.l3]);
    let mut payload = Payload { part: first, rest: umem.rest(frame) };
    for number in 0..count {
        let headers = if number == 0 { headers } else { &later[..later_bytes] };
        let at = number * sizes.bytes;
        let bytes = sizes.bytes.min(sizes.payload - at);
        let Some(mut cut) = write_segment(umem, headers, &mut payload, bytes, free) else {
            debug_assert!(false, "the frames were counted before");
            break;
        };
        let more = if number + 1 < count || is_cut_before { MORE_FRAGMENTS } else { 0 };
        let units = ((offset + at) / UNIT) as u16;
        finish_header(&mut umem.data_mut(&mut cut)[sizes.l3..headers.len()], bytes, units | more);
        out.push_back(cut);
    }
    count
}

/// Writes the header of the later fragments, with the options that "must be copied on fragmentation" (RFC 791 section 3.1), and
/// returns its length.
fn copied_header(header: &[u8], place: &mut [u8]) -> usize {
    let (fixed, mut options) = header.split_at(ipv4::HEADER_BYTES);
    place[..ipv4::HEADER_BYTES].copy_from_slice(fixed);
    let mut end = ipv4::HEADER_BYTES;
    while let [kind, rest @ ..] = options {
        let length = match *kind {
            ipv4::option::END => break,
            ipv4::option::NO_OPERATION => 1,
            _ => rest.first().map_or(0, |length| usize::from(*length)),
        };
        let Some((option, others)) = options.split_at_checked(length).filter(|_| length > 0) else { break };
        let is_copied = kind & 0x80 != 0;
        if is_copied {
            place[end..end + length].copy_from_slice(option);
            end += length;
        }
        options = others;
    }
    let padded = end.next_multiple_of(4);
    place[end..padded].fill(ipv4::option::END);
    place[0] = 4 << 4 | (padded / 4) as u8;
    padded
}

/// Sets length, flags, offset and checksum of the header of a fragment with so many bytes behind it.
fn finish_header(header: &mut [u8], payload: usize, flags_and_offset: u16) {
    let total = (header.len() + payload) as u16;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    header[10..12].fill(0);
    let checksum = Sum::default().add_bytes(header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_fragments_have_the_options_that_are_copied() {
        let header = |options: &[u8]| {
            let mut header = vec![0x40 | (5 + options.len() / 4) as u8];
            header.resize(ipv4::HEADER_BYTES, 7);
            header.extend(options);
            header
        };
        let security = [130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        for (options, copied) in [
            (vec![], vec![]),
            // Router alert is copied, a timestamp is not.
            (vec![148, 4, 0, 0, 68, 4, 5, 0], vec![148, 4, 0, 0]),
            ([&[1, 7, 3, 4, 1], &security[..]].concat(), [&security[..], &[0]].concat()),
            (vec![1, 1, 1, 0], vec![]),
            // A length that leads beyond the header.
            (vec![148, 4, 0, 0, 130, 11, 0, 0], vec![148, 4, 0, 0]),
            (vec![130, 0, 0, 0], vec![]),
        ] {
            let mut place = [0xff; HEADER_BYTES_MAX];
            let bytes = copied_header(&header(&options), &mut place);
            assert_eq!(place[ipv4::HEADER_BYTES..bytes], copied[..], "{options:?}");
            assert_eq!(usize::from(place[0] & 0xf) * 4, bytes);
        }
    }
}
