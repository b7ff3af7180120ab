//! Solicitations that a worker is to send, and the rate limits of solicitations and ICMP errors.

use crate::ids::PortId;
use crate::limits::{
    ICMP_ERRORS_PER_SECOND_MAX, PORT_ICMP_ERRORS_PER_SECOND, PORT_SOLICITS_PER_SECOND, PORTS_MAX,
};
use crate::net::address::Address;

/// Solicitations and rate limits of one worker. Both are bounded, whatever the switch receives.
pub(crate) struct RateLimits {
    /// Solicitations of the current batch.
    pub solicitations: Vec<Solicitation>,
    /// Time of the last solicitation, by port.
    solicited_ms: Box<[Option<u32>]>,
    /// Neighbours on uplinks that were solicited last, by a hash of the address.
    solicited_uplink: Box<[Option<Solicited>]>,
    /// Solicitations on uplinks for packets from each port.
    solicited_by_port: Box<[Budget]>,
    /// ICMP errors to the station behind each port, from the port's own budget.
    icmp_errors_by_port: Box<[Budget]>,
    /// ICMP errors beyond these, from the budget that all ports share.
    icmp_errors: Budget,
}

/// Solicitation that is to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Solicitation {
    /// Port of the packet that misses the neighbour.
    pub by: PortId,
    /// Port that the neighbour is behind.
    pub port: PortId,
    /// Address of the neighbour.
    pub address: Address,
}

/// Count of messages sent in the current second.
#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    second: u32,
    sent: u32,
}

impl Budget {
    /// Whether one more may be sent in this second, of at most `max`. Counts it if so.
    fn consume(&mut self, second: u32, max: u32) -> bool {
        if self.second != second {
            *self = Budget { second, sent: 0 };
        }
        let may = self.sent < max;
        self.sent += u32::from(may);
        may
    }
}

/// A neighbour on an uplink, and the time of its solicitation.
#[derive(Debug, Clone, Copy)]
struct Solicited {
    who: (PortId, Address),
    at_ms: u32,
}

/// Time between two solicitations of one neighbour.
const SOLICIT_INTERVAL_MS: u32 = 100;
/// Slots for the neighbours on uplinks that were solicited last.
const UPLINK_SOLICITED_SLOTS: usize = 64;

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits {
            solicitations: Vec::with_capacity(PORTS_MAX),
            solicited_ms: vec![None; PORTS_MAX].into(),
            solicited_uplink: vec![None; UPLINK_SOLICITED_SLOTS].into(),
            solicited_by_port: vec![Budget::default(); PORTS_MAX].into(),
            icmp_errors_by_port: vec![Budget::default(); PORTS_MAX].into(),
            icmp_errors: Budget::default(),
        }
    }

    /// Adds a solicitation of `address` behind `port`, unless the port has had one within the interval.
    pub(crate) fn solicit(&mut self, port: PortId, address: Address, now_ms: u32) {
        let solicited = &mut self.solicited_ms[port.index()];
        let waits = solicited.is_some_and(|solicited| now_ms.wrapping_sub(solicited) < SOLICIT_INTERVAL_MS);
        if !waits && self.solicitations.len() < self.solicitations.capacity() {
            *solicited = Some(now_ms);
            self.solicitations.push(Solicitation { by: port, port, address });
        }
    }

    /// Adds a solicitation of a neighbour on an uplink for a packet from the port `by`, unless the neighbour has had one within
    /// the interval. Many neighbours of an uplink may be solicited at once. Two that share a slot may exceed the rate.
    pub(crate) fn solicit_on_uplink(&mut self, by: PortId, port: PortId, address: Address, now_ms: u32) {
        let mixed = (address as u64 ^ (address >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let solicited = &mut self.solicited_uplink[mixed as usize % UPLINK_SOLICITED_SLOTS];
        let who = (port, address);
        let waits = solicited.is_some_and(|solicited| {
            solicited.who == who && now_ms.wrapping_sub(solicited.at_ms) < SOLICIT_INTERVAL_MS
        });
        if !waits
            && self.solicitations.len() < self.solicitations.capacity()
            && self.solicited_by_port[by.index()].consume(now_ms / 1000, PORT_SOLICITS_PER_SECOND)
        {
            *solicited = Some(Solicited { who, at_ms: now_ms });
            self.solicitations.push(Solicitation { by, port, address });
        }
    }

    /// Whether one more ICMP error may be sent to the station behind `port`: from the port's own budget,
    /// which other ports cannot use up, then from the shared one. "A router SHOULD also be able to limit the
    /// rate at which it sends other sorts of ICMP error messages" (RFC 1812 section 4.3.2.8).
    pub(crate) fn allow_icmp_error(&mut self, port: PortId, now_ms: u32) -> bool {
        let second = now_ms / 1000;
        self.icmp_errors_by_port[port.index()].consume(second, PORT_ICMP_ERRORS_PER_SECOND)
            || self.icmp_errors.consume(second, ICMP_ERRORS_PER_SECOND_MAX)
    }
}
