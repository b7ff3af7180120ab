//! Rate limits of a worker: solicitations of neighbours and ICMP errors, bounded whatever the worker
//! receives.

use crate::ids::PortId;
use crate::limits::{ANSWERS_PER_SECOND_MAX, PORT_ANSWERS_PER_SECOND, PORTS_MAX};
use crate::net::address::Address;

/// Pending solicitations, and the budgets of solicitations and ICMP errors.
pub(crate) struct RateLimits {
    /// Addresses to solicit, by port; at most one for each port and batch.
    pub solicitations: Vec<(PortId, Address)>,
    /// Time of the last solicitation, by port.
    solicited_ms: Box<[Option<u32>]>,
    /// Last solicited neighbours on uplinks, by a hash of the address.
    solicited_uplink: Box<[Option<Solicited>]>,
    /// Budget of ICMP errors of each port.
    icmp_errors_by_port: Box<[Budget]>,
    /// Budget of further ICMP errors, shared by all ports.
    icmp_errors: Budget,
}

/// ICMP errors sent in a second.
#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    second: u32,
    sent: u32,
}

impl Budget {
    /// Takes one of `max` errors a second. Returns whether one was left.
    fn consume(&mut self, second: u32, max: u32) -> bool {
        if self.second != second {
            *self = Budget { second, sent: 0 };
        }
        let may = self.sent < max;
        self.sent += u32::from(may);
        may
    }
}

/// Neighbour on an uplink, and the time of its last solicitation.
#[derive(Debug, Clone, Copy)]
struct Solicited {
    who: (PortId, Address),
    at_ms: u32,
}

/// Least time between two solicitations of the same target (Linux: `retrans_time_ms` of arp(7) is a second).
const SOLICIT_INTERVAL_MS: u32 = 100;
/// Slots for neighbours on uplinks whose last solicitation is remembered.
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

    /// Enqueues a solicitation of `address` behind `port`, unless the last one there is too recent.
    pub(crate) fn solicit(&mut self, port: PortId, address: Address, now_ms: u32) {
        let solicited = &mut self.solicited_ms[port.index()];
        let waits = solicited.is_some_and(|solicited| now_ms.wrapping_sub(solicited) < SOLICIT_INTERVAL_MS);
        if !waits && self.solicitations.len() < self.solicitations.capacity() {
            *solicited = Some(now_ms);
            self.solicitations.push((port, address));
        }
    }

    /// Enqueues a solicitation of a neighbour on an uplink, unless its last one is too recent. Many
    /// neighbours may be solicited at once: each has its own interval, except those that share a slot.
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

    /// Takes an ICMP error to the sender behind `port` from the budgets, and returns whether one was left
    /// (RFC 1812 section 4.3.2.8: "A router SHOULD also be able to limit the rate at which it sends other
    /// sorts of ICMP error messages"; RFC 4443 section 2.4 (f)). The port's own budget comes first, which no
    /// other port can use up, then the shared one.
    pub(crate) fn allow_icmp_error(&mut self, port: PortId, now_ms: u32) -> bool {
        let second = now_ms / 1000;
        self.icmp_errors_by_port[port.index()].consume(second, PORT_ANSWERS_PER_SECOND)
            || self.icmp_errors.consume(second, ANSWERS_PER_SECOND_MAX)
    }
}
