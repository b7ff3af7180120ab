//! Flow counts by port, and the share of the table that assured flows may take.
//!
//! A flow counts against its *quota owner*: the port that its first packet came from. It is *unassured* until
//! both sides have sent packets (a TCP handshake is complete, a datagram answered), and may be evicted for
//! another flow. An *assured* flow is not. A flow that has *ended* (reset, closed by both sides) is evicted
//! first.
//!
//! Of `C` slots, assured flows of all ports take `R = 3/4 C` at most. A port's flow becomes assured only
//! while
//!
//! ```text
//!   assured flows of the port  <  a * (R - assured flows of all ports)        a = q / (100 - q), q = pod_quota_percent
//! ```
//!
//! which is the dynamic threshold of Choudhury and Hahne ("Dynamic Queue Length Thresholds for Shared-Memory
//! Packet Switches", 1998): with 50 per cent a single port has up to R/2, two that grow together have R/3
//! each, n have R/(n + 1) each. Each worker may exceed it by one flow, because it reads the counts before it
//! adds to them.
//!
//! A flow beyond that stays unassured; the sweep, which visits every flow within two seconds, tries again. The sweep makes
//! flows unassured that have been idle for [`ASSURED_IDLE_MAX_MS`]: they live on while nobody needs their slots.
//! Eviction shares the quarter of the slots that is never assured: see [`super::table`].

use std::sync::atomic::Ordering::Relaxed;

use super::entry::QuotaOwner;
use super::parts::{AtomicU32, PORTS_MAX};
use super::state::QuotaClass;
use crate::ids::PortId;

/// Idle time after which a flow is no longer assured: the timeout of an established connection "MUST NOT be less than 2 hours 4
/// minutes" (RFC 5382 REQ-5).
pub(super) const ASSURED_IDLE_MAX_MS: u32 = 7_440_000;

/// Flow counts by port and class.
pub(super) struct Quotas {
    ports: Box<[PortFlows]>,
    /// Number of assured flows of all ports.
    assured: AtomicU32,
    assured_max: u32,
    percent: u8,
}

/// Flow counts of one port, by class. No count is ever lower than the number of flows: workers add before
/// they insert a flow or change its class, and subtract afterwards.
#[derive(Default)]
struct PortFlows([AtomicU32; 3]);

impl Quotas {
    /// Makes the counts of a table with this many slots.
    pub(super) fn new(slots: usize, percent: u8) -> Quotas {
        Quotas {
            ports: (0..PORTS_MAX).map(|_| PortFlows::default()).collect(),
            assured: AtomicU32::new(0),
            assured_max: (slots - slots / 4) as u32,
            percent: percent.min(100),
        }
    }

    /// Counts a flow.
    pub(super) fn add(&self, owner: QuotaOwner) {
        self.count_of(owner.port, owner.class).fetch_add(1, Relaxed);
        if owner.class == QuotaClass::Assured {
            self.assured.fetch_add(1, Relaxed);
        }
    }

    /// Counts a flow no longer.
    pub(super) fn remove(&self, owner: QuotaOwner) {
        self.count_of(owner.port, owner.class).fetch_sub(1, Relaxed);
        if owner.class == QuotaClass::Assured {
            self.assured.fetch_sub(1, Relaxed);
        }
    }

    /// Whether one more flow of the port may become assured.
    pub(super) fn may_assure(&self, port: PortId) -> bool {
        let left = u64::from(self.assured_max.saturating_sub(self.assured.load(Relaxed)));
        let of_port = u64::from(self.flows(port, QuotaClass::Assured));
        of_port * u64::from(100 - self.percent) < left * u64::from(self.percent)
    }

    /// Number of flows of a port in a class.
    pub(super) fn flows(&self, port: PortId, class: QuotaClass) -> u32 {
        self.count_of(port, class).load(Relaxed)
    }

    fn count_of(&self, port: PortId, class: QuotaClass) -> &AtomicU32 {
        &self.ports[port.index()].0[class as usize]
    }
}
