//! What a worker wants to ask neighbours, and how many errors it may still send: bounded, whatever is received.

use crate::ids::PortId;
use crate::limits::{ANSWERS_PER_SECOND_MAX, PORT_ANSWERS_PER_SECOND, PORTS_MAX};
use crate::net::address::Address;

/// Questions to ask and answers that may be given: bounded, whatever is received.
pub(crate) struct RateLimits {
    /// Address to ask for, by port; at most one a port and batch.
    pub solicitations: Vec<(PortId, Address)>,
    /// When a question was last solicited, by port.
    solicited_ms: Box<[Option<u32>]>,
    /// Neighbours on uplinks that were solicited for last, by a hash of the address.
    solicited_uplink: Box<[Option<Solicited>]>,
    /// Errors to what is behind each port, out of its own budget.
    icmp_errors_by_port: Box<[Budget]>,
    /// Errors beyond these, out of the budget that all ports share.
    icmp_errors: Budget,
}

/// ICMP errors sent in a second.
#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    second: u32,
    sent: u32,
}

impl Budget {
    /// Whether one more may be sent in this second, of so many.
    fn consume(&mut self, second: u32, max: u32) -> bool {
        if self.second != second {
            *self = Budget { second, sent: 0 };
        }
        let may = self.sent < max;
        self.sent += u32::from(may);
        may
    }
}

/// A neighbour on an uplink, and when it was solicited for.
#[derive(Debug, Clone, Copy)]
struct Solicited {
    who: (PortId, Address),
    at_ms: u32,
}

/// Time between two solicitations for what is behind a port.
const SOLICIT_INTERVAL_MS: u32 = 100;
/// Neighbours on uplinks of which a worker knows when it solicited.
const UPLINK_SOLICITED_SLOTS: usize = 64;

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits {
            solicitations: Vec::with_capacity(PORTS_MAX),
            solicited_ms: vec![None; PORTS_MAX].into(),
            solicited_uplink: vec![None; UPLINK_SOLICITED_SLOTS].into(),
            icmp_errors_by_port: vec![Budget::default(); PORTS_MAX].into(),
            icmp_errors: Budget::default(),
        }
    }

    /// Notes that the Ethernet address of `address` behind `port` is wanted.
    pub(crate) fn solicit(&mut self, port: PortId, address: Address, now_ms: u32) {
        let solicited = &mut self.solicited_ms[port.index()];
        let waits = solicited.is_some_and(|solicited| now_ms.wrapping_sub(solicited) < SOLICIT_INTERVAL_MS);
        if !waits && self.solicitations.len() < self.solicitations.capacity() {
            *solicited = Some(now_ms);
            self.solicitations.push((port, address));
        }
    }

    /// Notes that the Ethernet address of a neighbour on an uplink is wanted. Many may be wanted at once: each has its
    /// own pause, but for those that share a place.
    pub(crate) fn solicit_on_uplink(&mut self, port: PortId, address: Address, now_ms: u32) {
        let mixed = (address as u64 ^ (address >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let solicited = &mut self.solicited_uplink[mixed as usize % UPLINK_SOLICITED_SLOTS];
        let who = (port, address);
        let waits = solicited.is_some_and(|solicited| {
            solicited.who == who && now_ms.wrapping_sub(solicited.at_ms) < SOLICIT_INTERVAL_MS
        });
        if !waits && self.solicitations.len() < self.solicitations.capacity() {
            *solicited = Some(Solicited { who, at_ms: now_ms });
            self.solicitations.push(who);
        }
    }

    /// Whether one more error may be sent to what is behind `port` (RFC 1812 section 4.3.2.8): out of the port's own budget, which
    /// nobody else can use up, and then out of the one that all share.
    pub(crate) fn allow_icmp_error(&mut self, port: PortId, now_ms: u32) -> bool {
        let second = now_ms / 1000;
        self.icmp_errors_by_port[port.index()].consume(second, PORT_ANSWERS_PER_SECOND)
            || self.icmp_errors.consume(second, ANSWERS_PER_SECOND_MAX)
    }
}
