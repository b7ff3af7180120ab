//! Fields of one fragment's headers.

use crate::dataplane::conntrack::Key;
use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::net::address::is_v4;
use crate::net::flow::Protocol;
use crate::net::{ipv4, ipv6};

/// The datagram of a fragment, and the fragment's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FragmentInfo {
    /// Identifies the datagram: source in `low`, destination in `high`; identification, protocol and
    /// receiving port in `word`. The identification "is used together with the source and destination
    /// address, and the protocol fields, to identify datagram fragments for reassembly" (RFC 791 section
    /// 3.2); in IPv6, fragments of one packet may name different protocols (RFC 8200 section 4.5). The
    /// receiving port keeps a pod from adding fragments to another pod's datagram.
    pub key: Key,
    /// Its first unit of eight bytes.
    pub first_unit: usize,
    /// The unit behind its last one; of the fragment that ends the datagram, the unit behind the largest
    /// datagram.
    pub end_unit: usize,
    /// Protocol in its header.
    pub protocol: Protocol,
}

/// The unit behind the largest datagram.
const END: usize = 8192;

impl FragmentInfo {
    /// Fields of the fragment that begins with these bytes of a frame. `None` where no datagram can have it:
    /// it ends behind 65,535 bytes, or it is empty, or more fragments follow and its length is not a multiple
    /// of eight bytes.
    pub(crate) fn of(head: &[u8], packet: &Packet, port: PortId) -> Option<FragmentInfo> {
        let bytes = head.get(usize::from(packet.l3)..)?;
        let (offset, more, identification, start) = if is_v4(packet.src) {
            let ip = ipv4::Ipv4::new(bytes)?;
            let identification = u32::from(ip.identification());
            (ip.fragment_offset(), ip.more_fragments(), identification, ip.header_bytes())
        } else {
            // Headers between the fragment header and the transport header are in the fragmentable part (RFC
            // 8200 section 4.5).
            let upper = ipv6::upper_layer(bytes)?;
            let fragment = upper.fragment?;
            (fragment.offset, fragment.more, fragment.identification, fragment.start)
        };
        let len = packet.ip_bytes().checked_sub(start)?;
        let fits = u16::try_from(offset + len).is_ok() && len > 0 && (!more || len % 8 == 0);
        let protocol = if is_v4(packet.src) { packet.protocol.0 } else { 0 };
        let word = u64::from(identification) | u64::from(protocol) << 32 | (port.index() as u64) << 40;
        fits.then(|| FragmentInfo {
            key: Key::new(packet.src, packet.dst, word),
            first_unit: offset / 8,
            end_unit: if more { (offset + len) / 8 } else { END },
            protocol: packet.protocol,
        })
    }
}
