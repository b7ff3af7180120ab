//! The parsed headers of a packet.

use crate::net::address::{self, Address};
use crate::net::flow::{FlowKey, Protocol};
use crate::net::mac::Mac;
use crate::net::sctp;
use crate::net::tcp::Flags;

/// Mark of a frame that a socket of the node has sent, in [`Packet::src_bits`]: the I/G bit of its source address, which
/// no station's address has (IEEE 802.3). `src/xdp/bpf/node.bpf.c` writes it.
const NODE_SOCKET_MARK: u64 = 1;

/// Kind of a packet: the stages that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    /// A packet of a flow: TCP, UDP, SCTP, an ICMP query, a protocol without ports, or ICMP of any other
    /// type.
    #[default]
    Flow,
    /// An ICMP error. It belongs to the flow of the packet that it quotes.
    IcmpError,
    /// A fragment without the transport header.
    LaterFragment,
    /// ARP.
    Arp,
    /// Link-local `ICMPv6`: neighbour discovery, listener reports.
    LinkLocal,
}

/// A parsed packet. Offsets are from the start of the frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Kind of the packet.
    pub kind: Kind,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Whether the packet is IPv4. The addresses tell it too, in more bytes.
    pub is_v4: bool,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TCP control bits; chunk type of SCTP; type of ICMP.
    pub flags: u8,
    /// Whether no router may fragment the packet: IPv4 with Don't Fragment, or IPv6.
    pub dont_fragment: bool,
    /// Whether the packet is the first fragment of a datagram.
    pub first_fragment: bool,
    /// Whether the packet has all bytes that its transport checksum covers. A fragment does not, nor a packet
    /// with a routing header that has segments left.
    pub whole: bool,
    /// Start of the IP header.
    pub l3: u8,
    /// Bytes of the TCP header.
    pub tcp_header_bytes: u8,
    /// Start of the transport header.
    pub l4: u16,
    /// End of the IP packet. Ethernet padding follows it.
    pub end: u16,
    /// Source port or identifier of an ICMP query.
    pub src_port: u16,
    /// Destination port or identifier of an ICMP query.
    pub dst_port: u16,
    /// TCP window, not scaled.
    pub window: u16,
    /// 802.1Q identifier, 0 without.
    pub vlan: u16,
    /// TCP sequence number; verification tag of SCTP.
    pub sequence: u32,
    /// TCP acknowledgement number.
    pub acknowledgement: u32,
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Whether the sender has left the transport checksum to the hardware. Linux does so on veth
    /// (`CHECKSUM_PARTIAL`).
    pub unfinished: bool,
    /// Whether the destination is a backend in place of a virtual address. The frame still has the virtual one.
    pub translated: bool,
    /// Ethernet source, as [`Mac::to_bits`] has it, with the mark of the node's sockets if the frame has it.
    pub src_bits: u64,
    /// Ethernet destination, as [`Mac::to_bits`] has it.
    pub dst_bits: u64,
}

// A batch has 256 of them, in a column that every stage reads.
const _: () = assert!(size_of::<Packet>() == 80);

impl Packet {
    /// Five-tuple of the packet.
    pub(crate) fn flow(&self) -> FlowKey {
        let Packet { src, dst, protocol, src_port, dst_port, .. } = *self;
        FlowKey { src: address::unpack(src), dst: address::unpack(dst), protocol, src_port, dst_port }
    }

    /// Whether the frame has the mark of the node's sockets.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.src_bits & NODE_SOCKET_MARK != 0
    }

    /// Ethernet source without the mark of the node's sockets, as [`Mac::to_bits`] has it: the address of the station.
    #[inline]
    pub(crate) fn station_bits(&self) -> u64 {
        self.src_bits & !NODE_SOCKET_MARK
    }

    /// The same as an address.
    #[inline]
    pub(crate) fn src_mac(&self) -> Mac {
        Mac::from_bits(self.station_bits())
    }

    /// Ethernet destination.
    #[inline]
    pub(crate) fn dst_mac(&self) -> Mac {
        Mac::from_bits(self.dst_bits)
    }

    /// Bytes of the IP packet.
    #[inline]
    pub(crate) fn ip_bytes(&self) -> usize {
        usize::from(self.end) - usize::from(self.l3)
    }

    /// Bytes of the IP header with its options or extension headers.
    #[inline]
    pub(crate) fn ip_header_bytes(&self) -> usize {
        usize::from(self.l4) - usize::from(self.l3)
    }

    /// Bytes of the transport header and what it carries.
    #[inline]
    pub(crate) fn transport_bytes(&self) -> usize {
        usize::from(self.end - self.l4)
    }

    /// The part of those in the first buffer of the frame, `head`, which has the header at least.
    #[inline]
    pub(crate) fn transport<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[usize::from(self.l4)..usize::from(self.end).min(head.len())]
    }

    /// Bytes of TCP payload.
    #[inline]
    pub(crate) fn tcp_payload_bytes(&self) -> u32 {
        self.transport_bytes().saturating_sub(usize::from(self.tcp_header_bytes)) as u32
    }

    /// Whether the packet opens a connection: a TCP segment with SYN and without ACK, an SCTP INIT (RFC 9260 section 3.2).
    #[inline]
    pub(crate) fn opens_connection(&self) -> bool {
        match self.protocol {
            Protocol::TCP => self.tcp_flags().has(Flags::SYN) && !self.tcp_flags().has(Flags::ACK),
            Protocol::SCTP => self.flags == sctp::chunk::INIT,
            _ => false,
        }
    }

    /// TCP control bits.
    #[inline]
    pub(crate) fn tcp_flags(&self) -> Flags {
        Flags(self.flags)
    }
}
