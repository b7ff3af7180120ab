//! Reports on denied packets in the log: one line for each source, destination, port and rule in an interval.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

use super::protocol::DropRecord;
use crate::net::flow::Protocol;

/// Most lines of an interval.
const LINES_MAX: usize = 10;
/// Most connections that are told apart in an interval.
const CONNECTIONS_MAX: usize = 1024;

/// Denied packets of an interval.
pub(super) struct DenyLog {
    interval: Duration,
    since: Instant,
    connections: BTreeMap<Connection, u64>,
    /// Sampled packets of further connections.
    others: u64,
}

/// Denied connection: all packets of one line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    from: String,
    to: String,
    protocol: Protocol,
    port: u16,
    decided_by: String,
}

/// Report of an interval: the connections with most packets, and the numbers of the other ones and of their packets.
type Report = (Vec<(Connection, u64)>, usize, u64);

impl DenyLog {
    /// Reports in this interval; never if it is zero.
    pub(super) fn new(interval: Duration) -> DenyLog {
        DenyLog { interval, since: Instant::now(), connections: BTreeMap::new(), others: 0 }
    }

    /// Adds a sampled packet, if policy denied it.
    pub(super) fn add(&mut self, drop: &DropRecord) {
        let (Some(flow), Some(decided_by)) = (drop.flow, &drop.decided_by) else { return };
        if self.interval.is_zero() {
            return;
        }
        let end = |pod: &Option<_>, address| match pod {
            Some(pod) => format!("{pod} ({address})"),
            None => format!("{address}"),
        };
        let connection = Connection {
            from: end(&drop.source_pod, flow.src),
            to: end(&drop.destination_pod, flow.dst),
            protocol: flow.protocol,
            port: flow.dst_port,
            decided_by: decided_by.to_string(),
        };
        if let Some(packets) = self.connections.get_mut(&connection) {
            *packets += 1;
        } else if self.connections.len() < CONNECTIONS_MAX {
            self.connections.insert(connection, 1);
        } else {
            self.others += 1;
        }
    }

    /// Writes the report of an interval that is over.
    pub(super) fn report(&mut self) {
        let Some((lines, rest, packets)) = self.take_due(Instant::now()) else { return };
        for (Connection { from, to, protocol, port, decided_by }, sampled) in lines {
            tracing::info!(
                target: "palisade::denied",
                from, to, %protocol, port, decided_by, sampled,
                "denied"
            );
        }
        if packets > 0 {
            tracing::info!(target: "palisade::denied", connections = rest, sampled = packets, "denied others");
        }
    }

    /// Takes the report of an interval that is over, and begins the next one.
    fn take_due(&mut self, now: Instant) -> Option<Report> {
        if now.duration_since(self.since) < self.interval {
            return None;
        }
        self.since = now;
        Some(self.take())
    }

    fn take(&mut self) -> Report {
        let mut lines: Vec<_> = mem::take(&mut self.connections).into_iter().collect();
        lines.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
        let rest = lines.split_off(lines.len().min(LINES_MAX));
        let packets = rest.iter().map(|(_, packets)| packets).sum::<u64>() + mem::take(&mut self.others);
        (lines, rest.len(), packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::DropReason;
    use crate::net::flow::FlowKey;
    use crate::tables::{Direction, PodName, RuleOrigin};

    fn denied(port: u16) -> DropRecord {
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        DropRecord {
            number: 1,
            at_unix_ms: 0,
            port: "veth-a".to_owned(),
            reason: DropReason::PolicyIngress,
            frame_bytes: 60,
            frame: "IPv4 TCP SYN".to_owned(),
            flow: Some(FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1024, dst_port: port }),
            source_pod: Some(PodName::new("default", "a")),
            destination_pod: None,
            decided_by: Some(RuleOrigin::DefaultDeny { direction: Direction::Ingress, policies: vec![] }),
        }
    }

    #[test]
    fn a_report_has_the_connections_with_most_packets_and_the_number_of_the_others() {
        let mut log = DenyLog::new(Duration::from_secs(1));
        (0..3).for_each(|_| log.add(&denied(7)));
        (100..2000).for_each(|port| log.add(&denied(port)));
        let (lines, rest, packets) = log.take();
        assert_eq!((lines.len(), lines[0].1, lines[0].0.port), (LINES_MAX, 3, 7));
        assert_eq!(lines[0].0.from, "default/a (10.0.0.1)");
        assert_eq!(rest, CONNECTIONS_MAX - LINES_MAX);
        assert_eq!(lines.iter().map(|(_, packets)| packets).sum::<u64>() + packets, 1903);
        assert_eq!(log.take(), (vec![], 0, 0));
        // The log writes them, and those beyond.
        (100..2000).for_each(|port| log.add(&denied(port)));
        log.interval = Duration::from_nanos(1);
        log.report();
        assert_eq!(log.take(), (vec![], 0, 0));
    }

    #[test]
    fn an_interval_has_one_report() {
        let mut log = DenyLog::new(Duration::from_secs(10));
        log.add(&denied(7));
        let begin = log.since;
        let mut lines = |seconds| {
            log.add(&denied(8));
            log.take_due(begin + Duration::from_secs(seconds)).map(|(lines, ..)| lines.len())
        };
        assert_eq!([0, 9, 10, 11, 19, 20].map(&mut lines), [None, None, Some(2), None, None, Some(1)]);
    }

    #[test]
    fn nothing_is_kept_without_an_interval_or_without_a_rule() {
        let mut log = DenyLog::new(Duration::ZERO);
        log.add(&denied(7));
        assert_eq!(log.take(), (vec![], 0, 0));
        let mut log = DenyLog::new(Duration::from_secs(1));
        log.add(&DropRecord { decided_by: None, ..denied(7) });
        assert_eq!(log.take(), (vec![], 0, 0));
    }
}
