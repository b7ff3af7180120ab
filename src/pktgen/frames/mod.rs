//! Sources of frames: templates that are patched, and captures that are replayed.

mod headers;
pub(crate) mod payload_offset;
pub(crate) mod template;

pub(crate) mod capture;
pub(crate) mod replay;

use crate::pktgen::PktgenError;
use crate::pktgen::frames::template::Template;
use crate::pktgen::traffic::Traffic;
use crate::pktgen::traffic::flows::{Flows, Share, Tuples};
use crate::pktgen::traffic::stamp::Stamp;

/// A source of frames to send.
pub(crate) trait Source {
    /// Returns the next frame. `now_ns` is `CLOCK_MONOTONIC`.
    fn next(&mut self, now_ns: u64) -> &[u8];

    /// Begins a trial.
    fn start(&mut self, now_ns: u64);
}

/// Source of the frames of a [`Traffic`].
#[derive(Debug)]
pub(crate) struct Generated {
    templates: Vec<Template>,
    order: &'static [u8],
    at: usize,
    tuples: Tuples,
    flows: Flows,
    fresh: Fresh,
}

/// Rate of new flows.
#[derive(Debug)]
struct Fresh {
    per_ns: f64,
    since_ns: u64,
    opened: u64,
}

impl Generated {
    /// Builds the templates for this generator's share of the traffic. With `stamped`, every frame has room
    /// for a stamp.
    pub(crate) fn new(traffic: &Traffic, stamped: bool, share: Share) -> Result<Generated, PktgenError> {
        traffic.check(stamped)?;
        let per_generator = traffic.flows / share.of;
        if per_generator * share.of != traffic.flows {
            let (flows, of) = (traffic.flows, share.of);
            return Err(PktgenError::Traffic(format!(
                "{flows} flows cannot be shared evenly by {of} generators"
            )));
        }
        let sizes = traffic.sizes(stamped);
        Ok(Generated {
            templates: sizes.into_iter().map(|size| Template::new(traffic, size)).collect(),
            order: traffic.size.order(),
            at: 0,
            tuples: traffic.tuples(),
            flows: Flows::new(per_generator, traffic.distribution, traffic.seed, share),
            fresh: Fresh {
                per_ns: traffic.new_flows_per_s / f64::from(share.of) / 1e9,
                since_ns: 0,
                opened: 0,
            },
        })
    }

    /// Counts the new flows since the trial began.
    pub(crate) fn opened(&self) -> u64 {
        self.fresh.opened
    }
}

impl Fresh {
    #[inline]
    fn is_due(&mut self, now_ns: u64) -> bool {
        if self.per_ns == 0.0 {
            return false;
        }
        let due = now_ns.saturating_sub(self.since_ns) as f64 * self.per_ns;
        let is_due = self.opened < due as u64;
        self.opened += u64::from(is_due);
        is_due
    }
}

impl Source for Generated {
    #[inline]
    fn next(&mut self, now_ns: u64) -> &[u8] {
        let (flow, sequence) = self.flows.next(self.fresh.is_due(now_ns));
        let which = usize::from(self.order[self.at]);
        self.at = if self.at + 1 == self.order.len() { 0 } else { self.at + 1 };
        let stamp = Stamp { flow, sequence, sent_ns: now_ns };
        self.templates[which].patch(self.tuples.of(flow), stamp)
    }

    fn start(&mut self, now_ns: u64) {
        self.fresh = Fresh { since_ns: now_ns, opened: 0, ..self.fresh };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::net::mac::Mac;
    use crate::pktgen::{FlowSpace, FrameSize, Kind, frames::payload_offset};

    fn traffic(size: FrameSize, ipv6: bool) -> Traffic {
        let network = |v4: &str, v6: &str| if ipv6 { v6.parse() } else { v4.parse() }.unwrap();
        let space = FlowSpace {
            src: network("10.0.0.1/32", "fd00::1/128"),
            dst: network("10.0.0.2/32", "fd00::2/128"),
            src_ports: 1..=1000,
            dst_ports: 1..=1,
        };
        let [src_mac, dst_mac] = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
        Traffic { flows: 10, size, ..Traffic::new(Kind::Udp, src_mac, dst_mac, space) }
    }

    const ALONE: Share = Share { number: 0, of: 1 };

    #[test]
    fn the_mix_of_sizes_is_kept_and_its_small_frames_hold_a_stamp_whatever_the_headers() {
        for (ipv6, small) in [(false, 60), (true, 80)] {
            let mut source = Generated::new(&traffic(FrameSize::Imix, ipv6), true, ALONE).unwrap();
            let mut seen = HashMap::new();
            for _ in 0..1200 {
                let frame = source.next(0);
                assert!(payload_offset::payload(frame).and_then(Stamp::read).is_some());
                *seen.entry(frame.len()).or_insert(0) += 1;
            }
            assert_eq!(seen, HashMap::from([(small, 700), (590, 400), (1514, 100)]));
        }
    }

    #[test]
    fn fresh_flows_come_at_their_rate_and_at_most_one_a_frame() {
        let mut wanted = traffic(FrameSize::Fixed(64), false);
        wanted.new_flows_per_s = 1000.0;
        let mut source = Generated::new(&wanted, true, ALONE).unwrap();
        source.start(5_000_000_000);
        // A hundred frames a millisecond, of which one is of a fresh flow.
        for frame in 0..100_000u64 {
            source.next(5_000_000_000 + frame * 10_000);
        }
        assert_eq!(source.opened(), 999);
        source.start(9_000_000_000);
        for _ in 0..50 {
            source.next(10_000_000_000);
        }
        assert_eq!(source.opened(), 50, "a thousand are due, and fifty frames were sent");
    }

    #[test]
    fn flows_that_generators_cannot_share_are_refused() {
        let share = Share { number: 0, of: 3 };
        let error =
            Generated::new(&traffic(FrameSize::Fixed(64), false), true, share).unwrap_err().to_string();
        assert!(error.contains("10 flows") && error.contains('3'), "{error}");
    }
}
