//! Counters that the control side reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{PortId, WorkerId};
use crate::tables::{RuleOrigin, Verdict};
use crate::xdp::LostFrames;

/// Places where the kernel loses frames before a worker receives them: the name that operators read, and its
/// meaning.
pub const LOSSES: [(&str, &str); 6] = [
    ("no-frame", "The worker had given the port no frame to receive into: it is slower than they come."),
    ("ring-full", "The receive ring of the port was full: its worker is slower than they come."),
    ("socket", "The port's socket did not take it for another reason: it was longer than a packet may be."),
    ("no-socket", "The XDP program had no socket for the queue: the switch does not serve it."),
    (
        "interface",
        "The interface's driver dropped it on its way to the XDP program or from there to the socket, or the queue of the tap device was full.",
    ),
    (
        "refused",
        "The pod's network stack refused a packet that the switch gave its tap device: the interface is down.",
    ),
];

impl LostFrames {
    /// Counts by the names of [`LOSSES`], without zeros.
    pub(in crate::dataplane) fn by_name(self) -> BTreeMap<String, u64> {
        let counts =
            [self.no_frame, self.ring_full, self.socket, self.no_socket, self.interface, self.refused];
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
    /// Flow offload, if the kernel forwards established flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadCounters>,
}

/// Flows whose packets the kernel forwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadCounters {
    /// Flows at the moment.
    pub flows: u64,
    /// Flows that were offloaded since the start, one that came back and went again twice.
    pub recorded: u64,
    /// Times that a packet found no room for the record of its flow, or for its gateway: the flow stayed with the workers.
    pub refused: u64,
    /// Packets from uplinks that were dropped, because their flow had ended for another one since the kernel took them.
    #[serde(default)]
    pub lost: u64,
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
    /// Received frames as they would be on the wire: each segment of a packet of a tap device is one.
    #[serde(default)]
    pub received_on_wire: u64,
    /// Received frames that were forwarded to another port.
    pub forwarded: u64,
    /// Of these, those that the kernel has forwarded, without a worker.
    #[serde(default)]
    pub offloaded: u64,
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
    /// Transmitted frames as they would be on the wire: each segment of a packet for a tap device is one.
    #[serde(default)]
    pub transmitted_on_wire: u64,
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
    /// Frames in the rings of the worker's queues, lent to the kernel. The others are free, wait for transmission, or are
    /// those of waiting fragments.
    #[serde(default)]
    pub frames_in_rings: u64,
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
