//! Counters as the control side reads them, and the vocabulary of drops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{PortId, WorkerId};
use crate::tables::{RuleOrigin, Verdict};
use crate::xdp::LostFrames;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal,)+) => {
        /// Why a frame was dropped: the index of its counter, and the operator's vocabulary.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)+];

            /// The name that operators see.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)+ }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(DropReason::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The frame ends before its headers do.
    Truncated => "truncated",
    /// Longer than any packet may be, or the kernel has lost a part of it.
    Oversized => "oversized",
    /// A header contradicts itself or the frame: version, lengths, flags.
    Malformed => "malformed",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad-ip-checksum",
    /// The transport checksum of a packet that would open a flow or change its state is wrong.
    BadChecksum => "bad-checksum",
    /// The packet says which way it wants to go: an IPv4 source route, an IPv6 routing header of type 0.
    SourceRoute => "source-route",
    /// An IPv4 option that asks routers to write down the way: record route, timestamp.
    IpOption => "ip-option",
    /// Neither IPv4, IPv6 nor ARP.
    UnknownEthertype => "unknown-ethertype",
    /// The frame is not addressed to the switch, or to a group that it serves.
    NotForUs => "not-for-us",
    /// An 802.1Q tag that the port does not carry, or none where it carries one.
    Vlan => "vlan",
    /// The source address does not belong to the port that the packet came from.
    Spoofed => "spoofed",
    /// Multicast or broadcast, which the switch does not forward.
    Multicast => "multicast",
    /// A fragment that no datagram can have: it ends behind 65,535 bytes, or between two multiples of eight.
    Fragment => "fragment",
    /// A fragment that repeats a part of its datagram; where it repeats only some of it, with all that follow (RFC 5722).
    FragmentOverlap => "fragment-overlap",
    /// A first fragment without its whole transport header, or one of TCP that begins within it (RFC 1858, RFC 3128).
    FragmentTiny => "fragment-tiny",
    /// A fragment whose datagram's first fragment has not come in time.
    FragmentTimeout => "fragment-timeout",
    /// A fragment that came before the first of its datagram and found no place to wait, or lost it to others.
    FragmentStoreFull => "fragment-store-full",
    /// Does not fit the state of its flow: a TCP segment outside any connection, a reset outside the window, a reply to nothing.
    InvalidState => "invalid-state",
    /// Policy of the source pod forbids it.
    PolicyEgress => "policy-egress",
    /// Policy of the destination pod forbids it.
    PolicyIngress => "policy-ingress",
    /// The tables do not know the pod, or no tables are loaded.
    UnknownPod => "unknown-pod",
    /// The conntrack table has no place for the flow, and none that may be evicted for it.
    TableFull => "table-full",
    /// No route to the destination.
    NoRoute => "no-route",
    /// The TTL or hop limit ran out on the way.
    TtlExceeded => "ttl-exceeded",
    /// Larger than the MTU of the port that it would leave by.
    TooBig => "too-big",
    /// The Ethernet address of the next hop is not known yet; the switch has asked.
    Unresolved => "unresolved",
    /// The transmit ring of the port is full: it takes frames slower than they come.
    TxFull => "tx-full",
    /// The port that it would leave by is closed.
    PortDown => "port-down",
}

/// Places where the kernel loses frames before a worker has them: the operator's word, and its meaning.
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
    /// By the names of [`LOSSES`], without zeros.
    pub(super) fn by_name(self) -> BTreeMap<String, u64> {
        let counts = [self.no_frame, self.ring_full, self.socket, self.no_socket, self.interface];
        let named = LOSSES.iter().zip(counts).filter(|(_, count)| *count > 0);
        named.map(|((name, _), count)| ((*name).to_owned(), count)).collect()
    }
}

/// All counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// By port.
    pub ports: BTreeMap<PortId, PortCounters>,
    /// By worker.
    pub workers: BTreeMap<WorkerId, WorkerCounters>,
    /// New flows by what decided on them.
    pub decisions: Vec<DecisionCount>,
}

/// Of the frames that one port received, all workers together:
/// `received = forwarded + consumed + sum(drops)`. What the kernel lost before is in none of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames that workers took from the port and decided on. The station behind it has sent these, and the lost ones.
    pub received: u64,
    /// Bytes of those, Ethernet header included.
    pub received_bytes: u64,
    /// Of those, given to another port.
    pub forwarded: u64,
    /// Of those, meant for the switch itself: ARP, neighbour discovery, echo to the gateway.
    pub consumed: u64,
    /// Of those, dropped, by [`DropReason::name`]; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// Frames that the kernel dropped before a worker had them, as far as it tells, by the names of [`LOSSES`]; those that never
    /// occurred are left out.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    /// Frames sent out of this port, answers of the switch itself included.
    pub transmitted: u64,
    /// Bytes of those.
    pub transmitted_bytes: u64,
    /// Flows that count against this port at the moment and are not evicted: both sides were heard.
    #[serde(default)]
    pub flows_assured: u64,
    /// Flows that count against this port at the moment and may be evicted for others.
    #[serde(default)]
    pub flows_unassured: u64,
}

/// What one worker did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Core that it is pinned to.
    pub core: usize,
    /// Frames taken from its queues.
    pub received: u64,
    /// Batches with at least one frame.
    pub batches: u64,
    /// Times it went to sleep in the kernel.
    pub sleeps: u64,
    /// Flows that it entered into conntrack.
    pub flows_entered: u64,
    /// Flows that ended: time-outs, closed connections, policy.
    pub flows_ended: u64,
    /// Of those, unassured ones that were evicted before their time, for others.
    #[serde(default)]
    pub flows_evicted: u64,
    /// Frames of its UMEM.
    pub frames: u64,
    /// Of those, neither in a ring nor in a batch.
    pub frames_free: u64,
    /// Fragments that wait for the first of their datagram: received, and counted when they are decided on.
    #[serde(default)]
    pub fragments_waiting: u64,
}

/// How often something decided on a new flow, or a denied packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCount {
    /// What came of it.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub origin: RuleOrigin,
    /// Packets that it decided on: first packets of allowed flows, every packet of denied ones.
    pub packets: u64,
}
