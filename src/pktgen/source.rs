//! Where frames come from, one after the other.

use super::PktgenError;
use super::flows::{Flows, Share, Tuples};
use super::payload::Stamp;
use super::template::Template;
use super::traffic::Traffic;

/// Gives frames to send.
pub(super) trait Source {
    /// The next frame; `now_ns` is `CLOCK_MONOTONIC`.
    fn next(&mut self, now_ns: u64) -> &[u8];

    /// Tells that sending begins.
    fn start(&mut self, now_ns: u64);
}

/// Frames of a [`Traffic`].
#[derive(Debug)]
pub(super) struct Generated {
    templates: Vec<Template>,
    order: &'static [u8],
    at: usize,
    tuples: Tuples,
    flows: Flows,
    fresh: Fresh,
}

/// When a flow is to be a fresh one.
#[derive(Debug)]
struct Fresh {
    per_ns: f64,
    since_ns: u64,
    opened: u64,
}

impl Generated {
    /// This generator's share of the traffic. With `stamped`, every frame is large enough for a stamp.
    pub(super) fn new(traffic: &Traffic, stamped: bool, share: Share) -> Result<Generated, PktgenError> {
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

    /// Fresh flows since sending began.
    pub(super) fn opened(&self) -> u64 {
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
