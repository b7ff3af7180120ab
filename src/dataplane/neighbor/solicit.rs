//! What a worker wants to ask neighbours, and how many errors it may still send: bounded, whatever is received.

use crate::ids::PortId;
use crate::limits::{ANSWERS_PER_SECOND_MAX, PORT_ANSWERS_PER_SECOND, PORTS_MAX};
use crate::net::address::Address;

/// Questions to ask and answers that may be given: bounded, whatever is received.
pub(crate) struct RateLimits {
    /// Address to ask for, by port; at most one a port and batch.
    pub questions: Vec<(PortId, Address)>,
    /// When a question was last asked, by port.
    asked_ms: Box<[Option<u32>]>,
    /// Neighbours on uplinks that were asked for last, by a hash of the address.
    asked_on_links: Box<[Option<Asked>]>,
    /// Errors to what is behind each port, out of its own budget.
    port_errors: Box<[Budget]>,
    /// Errors beyond these, out of the budget that all ports share.
    errors: Budget,
}

/// ICMP errors sent in a second.
#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    second: u32,
    sent: u32,
}

impl Budget {
    /// Whether one more may be sent in this second, of so many.
    fn take(&mut self, second: u32, max: u32) -> bool {
        if self.second != second {
            *self = Budget { second, sent: 0 };
        }
        let may = self.sent < max;
        self.sent += u32::from(may);
        may
    }
}

/// A neighbour on an uplink, and when it was asked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    who: (PortId, Address),
    at_ms: u32,
}

/// Time between two questions for what is behind a port.
const ASK_INTERVAL_MS: u32 = 100;
/// Neighbours on uplinks of which a worker knows when it asked.
const ON_LINKS_REMEMBERED: usize = 64;

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits {
            questions: Vec::with_capacity(PORTS_MAX),
            asked_ms: vec![None; PORTS_MAX].into(),
            asked_on_links: vec![None; ON_LINKS_REMEMBERED].into(),
            port_errors: vec![Budget::default(); PORTS_MAX].into(),
            errors: Budget::default(),
        }
    }

    /// Notes that the Ethernet address of `address` behind `port` is wanted.
    pub(crate) fn ask(&mut self, port: PortId, address: Address, now_ms: u32) {
        let asked = &mut self.asked_ms[port.index()];
        let waits = asked.is_some_and(|asked| now_ms.wrapping_sub(asked) < ASK_INTERVAL_MS);
        if !waits && self.questions.len() < self.questions.capacity() {
            *asked = Some(now_ms);
            self.questions.push((port, address));
        }
    }

    /// Notes that the Ethernet address of a neighbour on an uplink is wanted. Many may be wanted at once: each has its
    /// own pause, but for those that share a place.
    pub(crate) fn ask_on_link(&mut self, port: PortId, address: Address, now_ms: u32) {
        let mixed = (address as u64 ^ (address >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let asked = &mut self.asked_on_links[mixed as usize % ON_LINKS_REMEMBERED];
        let who = (port, address);
        let waits =
            asked.is_some_and(|asked| asked.who == who && now_ms.wrapping_sub(asked.at_ms) < ASK_INTERVAL_MS);
        if !waits && self.questions.len() < self.questions.capacity() {
            *asked = Some(Asked { who, at_ms: now_ms });
            self.questions.push(who);
        }
    }

    /// Whether one more error may be sent to what is behind `port` (RFC 1812 section 4.3.2.8): out of the port's own budget, which
    /// nobody else can use up, and then out of the one that all share.
    pub(crate) fn may_report(&mut self, port: PortId, now_ms: u32) -> bool {
        let second = now_ms / 1000;
        self.port_errors[port.index()].take(second, PORT_ANSWERS_PER_SECOND)
            || self.errors.take(second, ANSWERS_PER_SECOND_MAX)
    }
}
