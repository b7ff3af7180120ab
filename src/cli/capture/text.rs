//! Captured packets in words.

use std::fmt::Write;

use crate::cli::output::time_of_day;
use crate::control::protocol::{PacketRecord, PacketVerdictName};
use crate::control::summarize;

/// Stages of the packet path, in order.
const STAGES: [&str; 10] = [
    "parse",
    "anti-spoof",
    "local-delivery",
    "translate",
    "lookup",
    "advance",
    "classify",
    "fragments",
    "police",
    "rewrite",
];

/// Verdict on a packet with its stage, reason and policy, in one line.
pub(super) fn comment(packet: &PacketRecord) -> String {
    format!("{}: {}", packet.stage, verdict(packet))
}

/// Verdict on a packet with its reason and policy: `dropped: policy-ingress (…); isolated for ingress by …`.
fn verdict(packet: &PacketRecord) -> String {
    let mut text = match packet.verdict {
        PacketVerdictName::Forwarded => {
            format!("forwarded by port {}", packet.egress_port.as_deref().unwrap_or("that is closed now"))
        }
        PacketVerdictName::Consumed => "for the switch itself".to_owned(),
        PacketVerdictName::Dropped => "dropped".to_owned(),
    };
    // Writing to a string cannot fail.
    if let Some(reason) = packet.reason {
        let _ = write!(text, ": {} ({})", reason.name(), reason.meaning().trim_end_matches('.'));
    }
    packet.decided_by.iter().for_each(|origin| _ = write!(text, "; {origin}"));
    text
}

/// Way of a packet through the stages, over several lines.
pub(super) fn describe(number: u64, packet: &PacketRecord) -> String {
    let time = time_of_day(packet.at_unix_ns / 1_000_000);
    let mut text =
        format!("packet {number}: {time}, {} bytes from port {}\n", packet.frame_bytes, packet.port);
    // Writing to a string cannot fail.
    let summary = summarize(&packet.bytes);
    let _ = match packet.flow.or(summary.flow) {
        Some(flow) => writeln!(text, "  {}: {flow}", summary.text),
        None => writeln!(text, "  {}", summary.text),
    };
    let names = [("from", &packet.source_pod), ("to", &packet.destination_pod)];
    for (end, pod) in names {
        if let Some(pod) = pod {
            let _ = writeln!(text, "  {end} pod {pod}");
        }
    }
    for stage in STAGES {
        if stage == packet.stage {
            break;
        }
        let found = match stage {
            "lookup" if packet.is_new_flow => "no known flow",
            "lookup" if packet.flow.is_some() && packet.reason.is_none() => "a known flow",
            "classify" if packet.is_new_flow => "allowed by policy",
            _ => "passed on",
        };
        let _ = writeln!(text, "  {stage:<15} {found}");
    }
    let _ = writeln!(text, "  {:<15} {}", packet.stage, verdict(packet));
    text
}
