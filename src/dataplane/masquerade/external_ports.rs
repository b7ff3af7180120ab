//! External ports in use: from the ends of a reply to the slot of its flow in conntrack.
//!
//! ```text
//!   places  [8 words of 64 bits] [8 words] ...      one bucket: a cache line
//!   word    slot 32 bits | port 16 bits | part of the hash 16 bits, not zero
//! ```
//!
//! A word is a hint. The entry of its slot decides: a word whose slot has no flow with that external port is a free place, and
//! nobody clears it. So flows end without a look at this table, whoever ends them.
//!
//! A worker gives ports of its own alone: of two workers, none gives a port to the same destination as the other. Replies come
//! to any worker.

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::super::conntrack::{Conntrack, Key, Side, Slot};
use super::super::{Settings, StartError};
use crate::ids::PortId;
use crate::mem::{HugeArray, prefetch_read};
use crate::net::address::{Address, from_v4, is_v4};
use crate::net::flow::Protocol;

/// Words of a bucket.
const PLACES: usize = 8;
/// Places for each flow of the table.
const PLACES_PER_FLOW: usize = 2;
/// Ports that are tried of those that all pods share.
const TRIES: u32 = 32;
/// Parts of the ports that belong to one port of the switch each, by its number.
const OWN_PARTS: u32 = 256;

/// External end of a flow, and its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExternalEnd {
    /// Protocol.
    pub protocol: Protocol,
    /// External port or identifier.
    pub port: u16,
    /// Address of the destination.
    pub remote: Address,
    /// Its port; zero for ICMP.
    pub remote_port: u16,
}

impl ExternalEnd {
    /// Hash with the seed of the flow table.
    #[inline]
    pub(crate) fn hash(&self, conntrack: &Conntrack) -> u64 {
        let none = if is_v4(self.remote) { from_v4(0) } else { 0 };
        let ports = u64::from(self.port) | u64::from(self.remote_port) << 16;
        conntrack.hash(&Key::new(none, self.remote, ports | u64::from(self.protocol.0) << 32))
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Bucket([AtomicU64; PLACES]);

/// The table. All workers share it, without locks.
pub(crate) struct ExternalPorts(HugeArray<Bucket>);

/// Port that a new flow gets, and the place of its word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// The port.
    pub(crate) port: u16,
    hash: u64,
}

impl ExternalPorts {
    /// Makes the table if flows may be masqueraded, with the flows that a process before has left in conntrack.
    pub(crate) fn open(
        settings: &Settings,
        conntrack: &Conntrack,
    ) -> Result<Option<ExternalPorts>, StartError> {
        if settings.masquerade.is_none() {
            return Ok(None);
        }
        let ports =
            ExternalPorts::new(settings.conntrack.flows_max, settings.huge_pages).map_err(|error| {
                StartError::Setup(format!(
                    "no memory for the ports of masqueraded flows ({error}): configure fewer flows"
                ))
            })?;
        ports.restore(conntrack);
        Ok(Some(ports))
    }

    /// Makes an empty table for so many flows.
    pub(crate) fn new(flows_max: usize, huge_pages: bool) -> io::Result<ExternalPorts> {
        let buckets = (flows_max * PLACES_PER_FLOW).div_ceil(PLACES).max(1);
        Ok(ExternalPorts(HugeArray::new(buckets, huge_pages)?))
    }

    fn restore(&self, conntrack: &Conntrack) {
        conntrack.for_each(|slot, key, entry| {
            let flow_word = entry.flow_word(true);
            let port = conntrack.virtual_end(slot).external_port;
            if flow_word.is_translated() && port != 0 {
                let (remote, remote_port) = responder(key, flow_word.side(true) == Side::Initiator);
                let end = ExternalEnd { protocol: key.protocol(), port, remote, remote_port };
                self.insert(Choice { port, hash: end.hash(conntrack) }, slot, conntrack);
            }
            true
        });
    }

    /// Starts to load the bucket of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_read(self.bucket(hash));
    }

    /// Slot of the flow with this external end, whose hash is given, and the flow's own end: address, and port or identifier.
    #[inline]
    pub(crate) fn find(
        &self,
        conntrack: &Conntrack,
        end: &ExternalEnd,
        hash: u64,
    ) -> Option<(Slot, (Address, u16))> {
        let hint = word(Slot::NONE, end.port, hash) & HINT;
        self.bucket(hash).0.iter().find_map(|place| {
            let word = place.load(Relaxed);
            if word & HINT != hint {
                return None;
            }
            let slot = slot_of(word);
            Some((slot, own_end(conntrack, slot, end)?))
        })
    }

    /// Chooses a port of a range for a new flow from the port `owner` of the switch. The last quarter of the range has a part
    /// for each owner, so that no pod takes all ports to a destination. `worker`: number of the worker, and how many there are.
    pub(crate) fn choose(
        &self,
        conntrack: &Conntrack,
        end: &ExternalEnd,
        range: &RangeInclusive<u16>,
        owner: PortId,
        (worker, workers): (usize, usize),
        flow_hash: u64,
    ) -> Option<Choice> {
        let (first, count) = (u32::from(*range.start()), u32::from(range.end() - range.start()) + 1);
        let (worker, workers) = (worker as u32, workers as u32);
        // TcpNumbers of this worker: worker, worker + workers, ...
        let numbers = count.saturating_sub(worker).div_ceil(workers);
        let shared = numbers - numbers / 4;
        let own = numbers - shared;
        let of_shared = (0..TRIES.min(shared))
            .map(|n| ((flow_hash >> 16) as u32).wrapping_add(n.wrapping_mul(STEP)) % shared);
        let part = owner.index() as u32 % OWN_PARTS;
        let of_own = (shared..numbers).skip(part as usize).step_by(OWN_PARTS as usize);
        // A range with less than a port for each part: several owners share one.
        let least = (own > 0 && own <= part).then(|| shared + part % own);
        of_shared.chain(of_own).chain(least).find_map(|number| {
            let port = (first + number * workers + worker) as u16;
            let end = ExternalEnd { port, ..*end };
            let hash = end.hash(conntrack);
            // Ports whose buckets are full of other flows are as good as taken.
            let is_given = self.find(conntrack, &end, hash).is_some();
            (!is_given && self.has_room(conntrack, hash)).then_some(Choice { port, hash })
        })
    }

    /// Whether the bucket of a hash has a free place.
    fn has_room(&self, conntrack: &Conntrack, hash: u64) -> bool {
        self.bucket(hash).0.iter().any(|place| is_free(conntrack, place.load(Relaxed)))
    }

    /// Leads from a chosen external end to the flow in a slot. Returns false if another worker has filled its bucket.
    pub(crate) fn insert(&self, choice: Choice, slot: Slot, conntrack: &Conntrack) -> bool {
        let new = word(slot, choice.port, choice.hash);
        let bucket = self.bucket(choice.hash);
        bucket.0.iter().any(|place| {
            let word = place.load(Relaxed);
            is_free(conntrack, word) && place.compare_exchange(word, new, Release, Relaxed).is_ok()
        })
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &Bucket {
        &self.0[(((hash & 0xffff_ffff) * self.0.len() as u64) >> 32) as usize]
    }
}

/// Distance of the ports that are tried: odd, and far from any pattern of a client's own.
const STEP: u32 = 2_654_435_761;
/// Bits of a word that stand for the external end.
const HINT: u64 = 0xffff_ffff;

#[inline]
fn word(slot: Slot, port: u16, hash: u64) -> u64 {
    let part = hash >> 48 | 1;
    u64::from(slot.number()) << 32 | u64::from(port) << 16 | part
}

#[inline]
fn slot_of(word: u64) -> Slot {
    Slot::of_number((word >> 32) as u32)
}

/// End of the responder of a flow, as an external end has it.
fn responder(key: &Key, opened_by_low: bool) -> (Address, u16) {
    let (address, port) =
        if opened_by_low { (key.high(), key.high_port()) } else { (key.low(), key.low_port()) };
    (address, if key.protocol().has_ports() { port } else { 0 })
}

/// End of the initiator of the flow in a slot, if that has this external end.
#[inline]
fn own_end(conntrack: &Conntrack, slot: Slot, end: &ExternalEnd) -> Option<(Address, u16)> {
    let entry = conntrack.entry_at(slot)?;
    let key = entry.key()?;
    let flow_word = entry.flow_word(true);
    let opened_by_low = flow_word.side(true) == Side::Initiator;
    let is_its = key.protocol() == end.protocol
        && responder(&key, opened_by_low) == (end.remote, end.remote_port)
        && flow_word.is_translated()
        && conntrack.virtual_end(slot).external_port == end.port;
    let own = if opened_by_low { (key.low(), key.low_port()) } else { (key.high(), key.high_port()) };
    is_its.then_some(own)
}

/// Whether a word leads to no flow: the slot has none with its port.
fn is_free(conntrack: &Conntrack, word: u64) -> bool {
    let slot = slot_of(word);
    let is_of_flow = || {
        conntrack.entry_at(slot).is_some_and(|entry| {
            entry.key().is_some()
                && entry.flow_word(true).is_translated()
                && conntrack.virtual_end(slot).external_port == (word >> 16) as u16
        })
    };
    word == 0 || !is_of_flow()
}
