//! Reasons of drops.

use serde::{Deserialize, Serialize};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal,)+) => {
        /// Reason of a drop: the index of its counter, and the word that operators read.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)+];

            /// Name in counters and in the command line's output.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)+ }
            }

            /// Meaning for operators, in a sentence or a few.
            pub fn description(self) -> &'static str {
                match self { $(DropReason::$name => concat!($($doc,)+),)+ }.trim()
            }

            /// First sentence of the description.
            pub fn meaning(self) -> &'static str {
                let text = self.description();
                text.find(". ").map_or(text, |end| &text[..=end])
            }
        }
    };
}

drop_reasons! {
    /// The frame ends before its headers do.
    Truncated => "truncated",
    /// The frame is longer than any packet may be, or the kernel has lost a part of it.
    Oversized => "oversized",
    /// A header contradicts itself or the frame: version, lengths, flags; a virtio-net header of a tap device contradicts
    /// its packet.
    Malformed => "malformed",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad-ip-checksum",
    /// The transport checksum of a packet that would open a flow or change its state is wrong. These are TCP segments with
    /// SYN, RST or FIN and the ACK that ends a handshake, the first packet and the first answer of UDP, ICMP requests, and
    /// SCTP packets that open or end an association.
    BadChecksum => "bad-checksum",
    /// The packet names its route: an IPv4 source route (RFC 7126), an IPv6 routing header of type 0 (RFC 5095). Other
    /// routing headers pass; policy applies to the destination address.
    SourceRoute => "source-route",
    /// An IPv4 option makes routers record the path: record route, timestamp (RFC 7126). Other options pass unchanged.
    IpOption => "ip-option",
    /// Neither IPv4, IPv6 nor ARP.
    UnknownEthertype => "unknown-ethertype",
    /// The frame is addressed neither to the switch (on an uplink: to the NIC) nor to a group that the switch serves.
    NotForUs => "not-for-us",
    /// An 802.1Q tag that the port does not carry, or no tag on a port that carries one.
    Vlan => "vlan",
    /// The source address does not belong to the port that the packet came from.
    Spoofed => "spoofed",
    /// Multicast or broadcast, which the switch does not forward.
    Multicast => "multicast",
    /// A fragment that no datagram can have: it ends behind 65,535 bytes, or between two multiples of eight.
    Fragment => "fragment",
    /// A fragment that repeats a part of its datagram; if it repeats only some of it, with all that follow
    /// (RFC 5722).
    FragmentOverlap => "fragment-overlap",
    /// A first fragment without its whole transport header, or one of TCP that begins within it (RFC 1858, RFC 3128).
    FragmentTiny => "fragment-tiny",
    /// A fragment whose datagram's first fragment has not arrived in time.
    FragmentTimeout => "fragment-timeout",
    /// A fragment that arrived before the first of its datagram and found no place to wait, or lost it to
    /// others.
    FragmentStoreFull => "fragment-store-full",
    /// The packet does not fit the state of its flow: a TCP segment outside any connection, a reset outside the window, a
    /// reply to nothing. So are ICMP replies without a request, ICMP errors about no flow, source quenches and redirects.
    InvalidState => "invalid-state",
    /// Policy of the source pod forbids it.
    PolicyEgress => "policy-egress",
    /// Policy of the destination pod forbids it.
    PolicyIngress => "policy-ingress",
    /// The tables do not contain the pod, or no tables are loaded.
    UnknownPod => "unknown-pod",
    /// A new flow from or to a port that is drained; established flows go on.
    Draining => "draining",
    /// The conntrack table has no slot for the flow, and no flow may be evicted for it. Answered flows stay, and so do
    /// those of ports with fewer unanswered ones. Or the bindings of flows to Services have no room.
    TableFull => "table-full",
    /// No route to the destination. Also an address in `pod_prefixes` without a pod, and a packet from an uplink to an
    /// uplink that is none to a Service.
    NoRoute => "no-route",
    /// The TTL or hop limit ran out.
    TtlExceeded => "ttl-exceeded",
    /// Larger than the MTU of the port that it would leave by, and with Don't Fragment, or over IPv6. Also several
    /// datagrams that the kernel of a pod on a tap device has put together (UDP GSO). The sender gets an ICMP error.
    TooBig => "too-big",
    /// The Ethernet address of the next hop is not known yet; the switch has solicited it. On an uplink the kernel does.
    Unresolved => "unresolved",
    /// The transmit ring of the port is full: it takes frames slower than they arrive. Or the port's share of the free
    /// frames is used up, or the hand-off queue to the worker that transmits for it is full.
    TxFull => "tx-full",
    /// The port that it would leave by is closed.
    PortDown => "port-down",
    /// The Service has no backend for this protocol, port and address family. The sender gets a reset or an ICMP error.
    ServiceNoBackend => "service-no-backend",
    /// The flow comes from outside or from the node, and the Service has no backend on this node.
    ServiceRemote => "service-remote",
    /// The flow goes to an address of a load balancer that does not take its source (`loadBalancerSourceRanges`).
    ServiceSource => "service-source",
    /// The client's port has flows to the same backend by eight other front ends. Or a connection that is not tracked any
    /// more has the port of another one.
    ServiceCollision => "service-collision",
    /// A pod's packet to the outside that cannot be masqueraded: no external port is free for the destination, its protocol
    /// has no ports, or the routes to other nodes are awaited.
    Masquerade => "masquerade",
    /// A packet to an external port of masqueraded flows that no flow with its source has. Its flow has ended, or it never
    /// was.
    MasqueradeUnknown => "masquerade-unknown",
    /// A packet in a tunnel whose sender is not the node that its source belongs to, or of another network identifier.
    TunnelPeer => "tunnel-peer",
    /// A packet in a tunnel that a router has marked as congested, of a sender that does not take marks (RFC 6040).
    TunnelCongestion => "tunnel-congestion",
    /// Beyond the rate of packets from the source pod.
    BandwidthEgress => "bandwidth-egress",
    /// Beyond the rate of packets to the destination pod.
    BandwidthIngress => "bandwidth-ingress",
}
