//! Messages about single packets: dropped frames and captures.

use serde::{Deserialize, Serialize};

use super::PacketFilter;
use crate::dataplane::DropReason;
use crate::net::flow::FlowKey;
use crate::tables::{PodName, RuleOrigin};

/// Last dropped frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropsReport {
    /// Selected frames, in the order of their numbers.
    pub drops: Vec<DropRecord>,
    /// Number of the last dropped frame that was recorded, selected or not: the next request continues after it.
    pub last: u64,
    /// Sampled frames that were not recorded, because the control side was too slow.
    #[serde(default)]
    pub lost: u64,
}

/// Dropped frame. Workers sample some frames of each reason; counters count all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRecord {
    /// Number of the record, from 1 on.
    pub number: u64,
    /// Time of the drop: milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Name of the port that the frame came from.
    pub port: String,
    /// Reason of the drop.
    pub reason: DropReason,
    /// Length of the frame, bytes.
    pub frame_bytes: u16,
    /// Protocols of the frame: `IPv4 TCP SYN`, `ARP request`.
    pub frame: String,
    /// Flow of the packet, if the frame has an IP packet.
    pub flow: Option<FlowKey>,
    /// Pod behind the port.
    pub source_pod: Option<PodName>,
    /// Attached pod that has the destination address.
    pub destination_pod: Option<PodName>,
    /// Origin of the decision, if policy denied the packet and has not changed since; with the first 16 policies, if
    /// more isolate the pod.
    pub decided_by: Option<RuleOrigin>,
}

/// Packets to capture. A packet is captured if it has every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureRequest {
    /// Properties of the flow. Packets of both directions count.
    pub filter: PacketFilter,
    /// Port of the switch that the packets come from.
    pub interface: Option<String>,
    /// Whether only dropped packets count.
    pub drops: bool,
    /// Reason of their drop.
    pub reason: Option<DropReason>,
    /// Bytes of each packet, [`CAPTURE_BYTES`](crate::limits::CAPTURE_BYTES) where absent.
    pub bytes: Option<usize>,
}

/// Capture that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// Number of the capture.
    pub number: u64,
}

/// Packets of a capture since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Packets, in the order of their verdicts at each worker.
    pub packets: Vec<PacketRecord>,
    /// Packets since the start of the capture that found no buffer: the client was too slow.
    pub lost: u64,
}

/// Verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketVerdictName {
    /// The packet left by a port.
    Forwarded,
    /// The packet was for the switch.
    Consumed,
    /// The packet was dropped.
    Dropped,
}

/// Captured packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketRecord {
    /// Time of its reception: nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// Name of the port that the packet came from.
    pub port: String,
    /// Verdict.
    pub verdict: PacketVerdictName,
    /// Name of the port that it left by.
    pub egress_port: Option<String>,
    /// Reason of the drop.
    pub reason: Option<DropReason>,
    /// Stage of the packet path that gave the verdict.
    pub stage: String,
    /// Whether the packet was of no known flow, and policy evaluated it.
    pub is_new_flow: bool,
    /// Length at reception, bytes.
    pub frame_bytes: u16,
    /// Flow of an IP packet that was parsed.
    pub flow: Option<FlowKey>,
    /// Attached pod that has the source address.
    pub source_pod: Option<PodName>,
    /// Attached pod that has the destination address.
    pub destination_pod: Option<PodName>,
    /// Origins of the egress and ingress decision, if policy evaluated the packet as the first of a flow and has not
    /// changed since.
    pub decided_by: Vec<RuleOrigin>,
    /// First bytes, as they were received: hexadecimal digits.
    #[serde(with = "hexadecimal")]
    pub bytes: Vec<u8>,
}

/// Bytes as hexadecimal digits.
mod hexadecimal {
    use std::fmt::Write;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut digits, byte| {
            // Writing to a string cannot fail.
            let _ = write!(digits, "{byte:02x}");
            digits
        });
        serializer.serialize_str(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = digits.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
        bytes.ok_or_else(|| D::Error::custom("the bytes are not hexadecimal digits"))
    }
}
