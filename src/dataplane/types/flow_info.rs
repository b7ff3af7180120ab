//! A flow as the control side sees it.

use serde::{Deserialize, Serialize};

use crate::ids::Generation;
use crate::net::flow::FlowKey;
use crate::tables::RuleOrigin;

/// A flow in conntrack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Five-tuple of the original direction.
    pub key: FlowKey,
    /// State: `syn-sent`, `established`, `fin-wait`, `time-wait`, `udp-one-way`, `udp-two-way`, ….
    pub state: String,
    /// Whether the flow is never evicted: both ends have sent packets, and the quota of its port allows it.
    #[serde(default)]
    pub assured: bool,
    /// Generation of the last evaluation.
    pub generation: Generation,
    /// Milliseconds since the last packet.
    pub idle_ms: u64,
    /// Packets in the original direction.
    pub packets: u64,
    /// Bytes of these packets, IP headers included.
    pub bytes: u64,
    /// Packets in the reply direction.
    pub reply_packets: u64,
    /// Bytes of these packets, IP headers included.
    pub reply_bytes: u64,
    /// Origin of the egress decision, if the source is a pod of this node.
    pub egress: Option<RuleOrigin>,
    /// Origin of the ingress decision, if the destination is a pod of this node.
    pub ingress: Option<RuleOrigin>,
}
