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

            /// Meaning for operators, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(DropReason::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The frame ends before its headers do.
    Truncated => "truncated",
    /// The frame is longer than any packet may be, or the kernel has lost a part of it.
    Oversized => "oversized",
    /// A header contradicts itself or the frame: version, lengths, flags.
    Malformed => "malformed",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad-ip-checksum",
    /// The transport checksum of a packet that would open a flow or change its state is wrong.
    BadChecksum => "bad-checksum",
    /// The packet names its route: an IPv4 source route (RFC 7126), an IPv6 routing header of type 0 (RFC
    /// 5095).
    SourceRoute => "source-route",
    /// An IPv4 option makes routers record the path: record route, timestamp (RFC 7126).
    IpOption => "ip-option",
    /// Neither IPv4, IPv6 nor ARP.
    UnknownEthertype => "unknown-ethertype",
    /// The frame is addressed neither to the switch nor to a group that the switch serves.
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
    /// The packet does not fit the state of its flow: a TCP segment outside any connection, a reset outside
    /// the window, a reply to nothing.
    InvalidState => "invalid-state",
    /// Policy of the source pod forbids it.
    PolicyEgress => "policy-egress",
    /// Policy of the destination pod forbids it.
    PolicyIngress => "policy-ingress",
    /// The tables do not contain the pod, or no tables are loaded.
    UnknownPod => "unknown-pod",
    /// A new flow from or to a port that is drained; established flows go on.
    Draining => "draining",
    /// The conntrack table has no slot for the flow, and no flow may be evicted for it.
    TableFull => "table-full",
    /// No route to the destination.
    NoRoute => "no-route",
    /// The TTL or hop limit ran out.
    TtlExceeded => "ttl-exceeded",
    /// Larger than the MTU of the port that it would leave by.
    TooBig => "too-big",
    /// The Ethernet address of the next hop is not known yet; the switch has solicited it.
    Unresolved => "unresolved",
    /// The transmit ring of the port is full: it takes frames slower than they arrive.
    TxFull => "tx-full",
    /// The port that it would leave by is closed.
    PortDown => "port-down",
    /// The Service has no backend for this protocol, port and address family. The sender gets a reset or an ICMP error.
    ServiceNoBackend => "service-no-backend",
    /// The flow comes from outside or from the node, and the Service has no backend on this node.
    ServiceRemote => "service-remote",
    /// The flow goes to an address of a load balancer that does not take its source (`loadBalancerSourceRanges`).
    ServiceSource => "service-source",
    /// The client's port has another flow to the same backend, by its own address or by another Service.
    ServiceCollision => "service-collision",
    /// A pod's packet to the outside that cannot be masqueraded: no external port is free for the destination, its protocol
    /// has no ports, or the routes to other nodes are awaited.
    Masquerade => "masquerade",
    /// A packet to an external port of masqueraded flows that no flow with its source has.
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
