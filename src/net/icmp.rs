//! ICMP (RFC 792) and `ICMPv6` (RFC 4443) with neighbour discovery (RFC 4861).

use std::net::Ipv6Addr;

use super::be16;
use super::checksum::{Sum, pseudo_header_of};
use super::flow::Protocol;
use super::mac::Mac;

/// Bytes of the header: type, code, checksum, and four that depend on the type.
pub const HEADER_BYTES: usize = 8;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 2;
/// Offset of the identifier in a query.
pub(crate) const IDENTIFIER_OFFSET: usize = 4;

/// A query or its reply, which share an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Type of the request.
    pub request: u8,
    /// Whether the message is the reply.
    pub is_reply: bool,
}

/// Types of ICMP (IANA "Internet Control Message Protocol Parameters").
pub mod v4 {
    use super::Query;

    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code "port unreachable".
    pub const PORT_UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: fragmentation needed (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Code of [`UNREACHABLE`]: communication administratively prohibited (RFC 1812).
    pub const PROHIBITED: u8 = 13;
    /// Source quench: deprecated (RFC 6633), ignored by every host.
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect, which only a router on the host's own link may send.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP_REQUEST: u8 = 13;
    /// Timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;
    /// Information request.
    pub const INFORMATION_REQUEST: u8 = 15;
    /// Information reply.
    pub const INFORMATION_REPLY: u8 = 16;
    /// Address mask request (RFC 950).
    pub const ADDRESS_MASK_REQUEST: u8 = 17;
    /// Address mask reply.
    pub const ADDRESS_MASK_REPLY: u8 = 18;

    /// Returns the query of a message of this type.
    pub fn query(kind: u8) -> Option<Query> {
        match kind {
            ECHO_REQUEST | TIMESTAMP_REQUEST | INFORMATION_REQUEST | ADDRESS_MASK_REQUEST => {
                Some(Query { request: kind, is_reply: false })
            }
            ECHO_REPLY => Some(Query { request: ECHO_REQUEST, is_reply: true }),
            TIMESTAMP_REPLY | INFORMATION_REPLY | ADDRESS_MASK_REPLY => {
                Some(Query { request: kind - 1, is_reply: true })
            }
            _ => None,
        }
    }

    /// Whether a message of this type reports an error and quotes the packet that it is about.
    #[inline]
    pub fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// Types of `ICMPv6`.
pub mod v6 {
    use super::Query;

    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Code of [`UNREACHABLE`]: communication with destination administratively prohibited.
    pub const PROHIBITED: u8 = 1;
    /// Code "port unreachable" (RFC 4443 section 3.1).
    pub const PORT_UNREACHABLE: u8 = 4;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Multicast listener query, the first of the types that stay on the link (RFC 2710, RFC 4861).
    pub const LISTENER_QUERY: u8 = 130;
    /// Neighbour solicitation.
    pub const NEIGHBOR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// Node information query (RFC 4620).
    pub const NODE_INFORMATION_QUERY: u8 = 139;
    /// Node information reply.
    pub const NODE_INFORMATION_REPLY: u8 = 140;
    /// Multicast listener report, version 2 (RFC 3810).
    pub const LISTENER_REPORT_V2: u8 = 143;

    /// Returns the query of a message of this type. Node information has its `Qtype` in the bytes of an
    /// echo's identifier.
    pub fn query(kind: u8) -> Option<Query> {
        match kind {
            ECHO_REQUEST | NODE_INFORMATION_QUERY => Some(Query { request: kind, is_reply: false }),
            ECHO_REPLY | NODE_INFORMATION_REPLY => Some(Query { request: kind - 1, is_reply: true }),
            _ => None,
        }
    }

    /// Whether a message of this type reports an error and quotes the packet that it is about.
    #[inline]
    pub fn is_error(kind: u8) -> bool {
        kind < 128
    }

    /// Whether a message of this type never leaves its link.
    #[inline]
    pub fn is_link_local(kind: u8) -> bool {
        matches!(kind, LISTENER_QUERY..=REDIRECT | LISTENER_REPORT_V2)
    }
}

/// The query that a message of this protocol and type belongs to.
pub(crate) fn query(protocol: Protocol, kind: u8) -> Option<Query> {
    match protocol {
        Protocol::ICMP => v4::query(kind),
        Protocol::ICMPV6 => v6::query(kind),
        _ => None,
    }
}

/// A view of the header.
#[derive(Debug, Clone, Copy)]
pub struct Icmp<'a>(&'a [u8; HEADER_BYTES]);

impl<'a> Icmp<'a> {
    /// Views the header at the start of `message`; `None` for a short one.
    #[inline]
    pub fn new(message: &'a [u8]) -> Option<Icmp<'a>> {
        message.first_chunk().map(Icmp)
    }

    /// Type.
    #[inline]
    pub fn kind(self) -> u8 {
        self.0[0]
    }

    /// Code.
    #[inline]
    pub fn code(self) -> u8 {
        self.0[1]
    }

    /// Identifier of a query.
    #[inline]
    pub fn identifier(self) -> u16 {
        be16(self.0, IDENTIFIER_OFFSET)
    }
}

/// Writes the checksum of a message. `pseudo` is the sum over the pseudo-header for `ICMPv6`, and zero for
/// ICMP.
pub fn finish(message: &mut [u8], pseudo: Sum) {
    message[2..4].fill(0);
    let checksum = pseudo.add_bytes(message).finish();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

/// Changes the type of a message, and updates its checksum (RFC 1624, equation 3). The payload is not read.
pub fn change_kind(message: &mut [u8], kind: u8) {
    let (before, checksum) = (be16(message, 0), be16(message, 2));
    message[0] = kind;
    let sum = Sum::default().add_word(!checksum).add_word(!before).add_word(be16(message, 0));
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Fields of a neighbour solicitation or advertisement for a point-to-point gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborMessage {
    /// Target address, solicited or advertised.
    pub target: Ipv6Addr,
    /// Source (solicitation) or target (advertisement) link-layer address option.
    pub link_layer: Option<Mac>,
}

/// Bytes of a neighbour message with one link-layer address option.
pub const NEIGHBOR_BYTES: usize = 32;

/// Reads a neighbour solicitation or advertisement.
pub fn parse_neighbor(message: &[u8]) -> Option<NeighborMessage> {
    let fixed: &[u8; 24] = message.first_chunk()?;
    let target: [u8; 16] = fixed[8..].try_into().ok()?;
    let wanted = if fixed[0] == v6::NEIGHBOR_SOLICITATION { 1 } else { 2 };
    let mut options = &message[24..];
    let mut link_layer = None;
    while let [kind, length, ..] = *options {
        let bytes = usize::from(length) * 8;
        let option = options.get(..bytes).filter(|_| bytes != 0)?;
        if kind == wanted && bytes == 8 {
            link_layer = option[2..].first_chunk().map(|mac: &[u8; 6]| Mac(*mac));
        }
        options = &options[bytes..];
    }
    Some(NeighborMessage { target: target.into(), link_layer })
}

/// Writes a neighbour message of [`NEIGHBOR_BYTES`] and its checksum. `flags` are those of an advertisement
/// (RFC 4861 section 4.4), zero in a solicitation.
pub fn write_neighbor(
    message: &mut [u8],
    kind: u8,
    flags: u8,
    neighbor: (Ipv6Addr, Mac),
    src: Ipv6Addr,
    dst: Ipv6Addr,
) {
    let message = &mut message[..NEIGHBOR_BYTES];
    message.fill(0);
    message[0] = kind;
    message[4] = flags;
    message[8..24].copy_from_slice(&neighbor.0.octets());
    message[24] = if kind == v6::NEIGHBOR_SOLICITATION { 1 } else { 2 };
    message[25] = 1;
    message[26..32].copy_from_slice(&neighbor.1.0);
    finish(message, pseudo_header_of(src.into(), dst.into(), Protocol::ICMPV6, NEIGHBOR_BYTES));
}

/// Returns the solicited-node multicast address of an address (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c))
}

/// Returns the link-local address of an interface with this Ethernet address (RFC 4291 appendix A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
