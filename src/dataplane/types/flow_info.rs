//! A flow as the control side sees it.

use std::borrow::Cow;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;
use crate::tables::RuleOrigin;

/// A flow in conntrack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Five-tuple of the original direction.
    pub key: FlowKey,
    /// State: `syn-sent`, `established`, `fin-wait`, `time-wait`, `udp-one-way`, `udp-two-way`, ….
    pub state: Cow<'static, str>,
    /// Whether the flow is never evicted: both ends have sent packets, and the quota of its port allows it.
    #[serde(default)]
    pub assured: bool,
    /// Whether the kernel forwards its packets.
    #[serde(default)]
    pub offloaded: bool,
    /// Port that the flow counts against: its first packet came from there.
    #[serde(default)]
    pub port: PortId,
    /// Generation of the last evaluation.
    pub generation: Generation,
    /// Milliseconds since the first packet, up to 49 days. Absent: the flow was restored at the start of the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
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
    /// Virtual address of the Service that the source has sent to; the destination is the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<SocketAddr>,
    /// External end of a masqueraded flow: the source that the destination sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<SocketAddr>,
    /// Origin of the egress decision of the tables in force, if the source is a pod of this node.
    pub egress: Option<RuleOrigin>,
    /// Origin of the ingress decision of the tables in force, if the destination is a pod of this node.
    pub ingress: Option<RuleOrigin>,
}
