//! Counters that the control side reads, and the reasons of drops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{PortId, WorkerId};
use crate::tables::{RuleOrigin, Verdict};
use crate::xdp::LostFrames;

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
    /// A first fragment without its whole transport header, or one of TCP that begins within it (RFC 1858,
    /// RFC 3128).
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
}

/// Places where the kernel loses frames before a worker receives them: the name that operators read, and its
/// meaning.
pub const LOSSES: [(&str, &str); 5] = [
    ("no-frame", "The worker had given the port no frame to receive into: it is slower than they come."),
    ("ring-full", "The receive ring of the port was full: its worker is slower than they come."),
    ("socket", "The port's socket did not take it for another reason: it was longer than a packet may be."),
    ("no-socket", "The XDP program had no socket for the queue: the switch does not serve it."),
    (
        "interface",
        "The interface's driver dropped it on its way to the XDP program or from there to the socket.",
    ),
];

impl LostFrames {
    /// Counts by the names of [`LOSSES`], without zeros.
    pub(super) fn by_name(self) -> BTreeMap<String, u64> {
        let counts = [self.no_frame, self.ring_full, self.socket, self.no_socket, self.interface];
        let named = LOSSES.iter().zip(counts).filter(|(_, count)| *count > 0);
        named.map(|((name, _), count)| ((*name).to_owned(), count)).collect()
    }
}

/// All counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Counters of each port, summed over workers.
    pub ports: BTreeMap<PortId, PortCounters>,
    /// Counters of each worker.
    pub workers: BTreeMap<WorkerId, WorkerCounters>,
    /// First packets of flows, and denied packets, by the rule that decided.
    pub decisions: Vec<DecisionCount>,
}

/// Counters of the frames that one port received, summed over workers: `received = forwarded + consumed +
/// sum(drops)`. Frames that the kernel lost before count in none of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames that workers took from the port and decided on. The station behind the port has sent these, and
    /// the lost ones.
    pub received: u64,
    /// Bytes of the received frames, Ethernet header included.
    pub received_bytes: u64,
    /// Received frames that were forwarded to another port.
    pub forwarded: u64,
    /// Received frames addressed to the switch itself: ARP, neighbour discovery, echo to the gateway.
    pub consumed: u64,
    /// Received frames that were dropped, by [`DropReason::name`]; reasons with a count of zero are left out.
    pub drops: BTreeMap<String, u64>,
    /// Frames that the kernel dropped before a worker received them, as far as the kernel reports, by the
    /// names of [`LOSSES`]; zeros are left out.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    /// Frames sent out of this port, replies of the switch itself included.
    pub transmitted: u64,
    /// Bytes of the transmitted frames.
    pub transmitted_bytes: u64,
    /// Flows in the table whose quota owner is this port and that are not evicted: both directions have been
    /// seen (Linux conntrack: ASSURED).
    #[serde(default)]
    pub flows_assured: u64,
    /// Flows in the table whose quota owner is this port and that may be evicted for others.
    #[serde(default)]
    pub flows_unassured: u64,
}

/// Counters of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Core that the worker is pinned to.
    pub core: usize,
    /// Frames taken from the worker's receive queues.
    pub received: u64,
    /// Batches with at least one frame.
    pub batches: u64,
    /// Times that the worker went to sleep in the kernel.
    pub sleeps: u64,
    /// Flows that the worker inserted into conntrack.
    pub flows_entered: u64,
    /// Flows that the worker removed from conntrack: time-outs, closed connections, policy.
    pub flows_ended: u64,
    /// Ended flows that were unassured and evicted for others before their time-out.
    #[serde(default)]
    pub flows_evicted: u64,
    /// Frames of the worker's UMEM.
    pub frames: u64,
    /// Frames of the UMEM that are neither in a ring nor in a batch.
    pub frames_free: u64,
    /// Fragments that wait for the first of their datagram. They are in `received`, and in the other counters
    /// once they are decided on.
    #[serde(default)]
    pub fragments_waiting: u64,
}

/// Number of packets that one rule decided on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCount {
    /// Verdict of the rule.
    pub verdict: Verdict,
    /// Rule, or other origin of the decision.
    pub origin: RuleOrigin,
    /// Packets: first packets of allowed flows, every packet of denied flows.
    pub packets: u64,
}
