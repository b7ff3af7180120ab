//! What the headers of one fragment say.

use crate::dataplane::conntrack::Key;
use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::net::address::is_v4;
use crate::net::flow::Protocol;
use crate::net::{ipv4, ipv6};

/// A fragment: of which datagram, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FragmentInfo {
    /// Names the datagram: source in `low`, destination in `high`, and identification, protocol (of IPv4, RFC 791) and
    /// port that it came from in `word`. In IPv6 fragments of one packet may name different protocols (RFC 8200 section
    /// 4.5). With the port in it nobody speaks of a datagram of somebody else's.
    pub key: Key,
    /// First unit of eight bytes.
    pub first_unit: usize,
    /// Unit behind the last; of the fragment that ends the datagram, behind all that there can be.
    pub end_unit: usize,
    /// Protocol that the fragment names.
    pub protocol: Protocol,
}

/// Unit behind all that a datagram can have.
const END: usize = 8192;

impl FragmentInfo {
    /// The fragment that begins with these bytes of a frame; `None` where no datagram can have it: it ends behind 65,535 bytes, or its length is not a
    /// multiple of eight though more follows, or it has none.
    pub(super) fn of(head: &[u8], packet: &Packet, port: PortId) -> Option<FragmentInfo> {
        let bytes = head.get(usize::from(packet.l3)..)?;
        let (offset, more, identification, start) = if is_v4(packet.src) {
            let ip = ipv4::Ipv4::new(bytes)?;
            let identification = u32::from(ip.identification());
            (ip.fragment_offset(), ip.more_fragments(), identification, ip.header_bytes())
        } else {
            // Headers between the fragment header and the transport header are part of the fragment.
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
