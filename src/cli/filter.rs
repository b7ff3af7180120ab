//! Filters of packets and flows: the same words in every command.

use std::time::Duration;

use clap::Args;

use crate::control::protocol::{AddressPrefix, EndFilter, FlowQuery, PacketFilter, PortRange};
use crate::dataplane::DropReason;
use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Filters of packets and flows, which have to pass all of them.
#[derive(Debug, Args)]
pub(super) struct FilterArguments {
    /// Only what comes from this pod or prefix: the source of a packet, the end that has opened a flow
    #[arg(long, value_name = "POD|PREFIX")]
    from: Option<EndFilter>,
    /// Only what goes to this pod or prefix
    #[arg(long, value_name = "POD|PREFIX")]
    to: Option<EndFilter>,
    /// Only what comes from or goes to this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Only what comes from or goes to an address of this prefix
    #[arg(long, value_name = "PREFIX")]
    address: Option<AddressPrefix>,
    /// Only ports of TCP, UDP or SCTP in this range, at either end
    #[arg(long, value_name = "N[-M]")]
    port: Option<PortRange>,
    /// Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long)]
    protocol: Option<Protocol>,
}

impl FilterArguments {
    pub(super) fn filter(&self) -> PacketFilter {
        let FilterArguments { from, to, pod, address, port, protocol } = self;
        PacketFilter {
            from: from.clone(),
            to: to.clone(),
            pod: pod.clone(),
            address: *address,
            port: *port,
            protocol: *protocol,
        }
    }
}

/// Filters of flows.
#[derive(Debug, Args)]
pub(super) struct FlowFilterArguments {
    #[command(flatten)]
    filter: FilterArguments,
    /// Only flows in this state: established, syn-sent, udp-two-way, ...
    #[arg(long)]
    state: Option<String>,
}

impl FlowFilterArguments {
    /// Query with these filters.
    pub(super) fn query(&self) -> FlowQuery {
        FlowQuery { state: self.state.clone(), ..FlowQuery::of(self.filter.filter()) }
    }
}

/// Filters of single packets.
#[derive(Debug, Args)]
pub(super) struct PacketFilterArguments {
    #[command(flatten)]
    pub(super) filter: FilterArguments,
    /// Only packets that come from this port of the switch
    #[arg(long, value_name = "PORT")]
    pub(super) interface: Option<String>,
    /// Only packets that are dropped for this reason
    #[arg(long, value_name = "REASON", value_parser = reason)]
    pub(super) reason: Option<DropReason>,
}

fn reason(text: &str) -> Result<DropReason, String> {
    let known = DropReason::ALL.iter().find(|reason| reason.name() == text);
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        format!("no such reason: it is one of {}", names.join(", "))
    })
}

/// Parses a time that has passed: `30s`, `5m`, `2h`, `1d`, or seconds.
pub(super) fn ago(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok().filter(|_| seconds > 0);
    let time = number.and_then(|number| number.checked_mul(seconds)).map(Duration::from_secs);
    time.ok_or_else(|| "give a number with a unit: 30s, 5m, 2h or 1d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_taken_by_its_name() {
        assert_eq!(reason("policy-ingress"), Ok(DropReason::PolicyIngress));
        assert!(reason("ingress").unwrap_err().contains("policy-ingress"));
    }

    #[test]
    fn a_time_has_a_unit() {
        for (text, seconds) in [("90", 90), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(ago(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "5 m", "-5m", "5y", "99999999999999999d"] {
            assert!(ago(text).is_err(), "{text}");
        }
    }
}
