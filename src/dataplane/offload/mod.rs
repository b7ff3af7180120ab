//! Flow offload: records of flows that the kernel forwards between pods on veth pairs, while the workers decide on everything
//! else.
//!
//! A flow has the record with the number of its slot in conntrack. A worker that forwards a packet of an established flow
//! between two offloaded ports fills the record, and then names it in a bucket: from there on the program at the pod's
//! interface finds it. The end of the flow takes it out of the bucket.
//!
//! **Reuse.** The program may still read a record that no bucket names any more. So a removed record is filled again only
//! after every run of the program that could have found it has ended ([`Offload::pass_grace_period`]).
//!
//! **Revalidation.** A record has the generation that has evaluated each direction of its flow, as the flow word in conntrack
//! has it, and the maps have the policy epoch of each port. A change of policy stores the new epochs: from then on the packets of
//! flows that were evaluated before are upcalls, which a worker revalidates.
//!
//! **Counters.** The program counts packets and bytes of a record for ever. The switch adds the difference to its counters.

mod keeper;
#[cfg(test)]
mod tests;

pub(crate) use keeper::Keeper;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use crate::ids::{Generation, PortId};
use crate::limits::PORTS_MAX;
use crate::net::address::{Address, is_v4};
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::xdp::offload::OffloadMaps;
use crate::xdp::offload::layout::{Bucket, PortWords, Record, address_words, hash_of};

/// Bytes of an Ethernet header, which the program does not count.
const HEADER_BYTES: u64 = 14;

// States of a record. Greater numbers: it was removed in the grace period with that number.
const FREE: u32 = 0;
const BUSY: u32 = 1;
const LIVE: u32 = 2;
const RETIRED: u32 = 3;

/// A flow to record. The first end is the lower one of its key in conntrack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OffloadedFlow {
    /// Addresses of the ends.
    pub addresses: [Address; 2],
    /// Their transport ports.
    pub transport_ports: [u16; 2],
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Ports of the switch that the ends are behind.
    pub ports: [PortId; 2],
    /// By direction, from the end of its number, the generation that has evaluated it. `None`: packets of the direction are
    /// upcalls.
    pub epochs: [Option<Generation>; 2],
}

/// Values of an offloaded port in a snapshot. Without a place in it, all packets are upcalls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OffloadPort {
    /// Its policy epoch; `None`: all of its packets are upcalls.
    pub epoch: Option<Generation>,
    /// Ethernet address of the switch.
    pub own_mac: Mac,
}

/// Packets and bytes that the program has forwarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// Packets. One with segments counts once.
    pub packets: u64,
    /// Bytes from the IP header on.
    pub bytes: u64,
}

/// Records of flows, and what the program needs to know about ports.
pub(crate) struct Offload {
    maps: OffloadMaps,
    /// State of each record.
    states: Box<[AtomicU32]>,
    /// Number of the grace period.
    grace: AtomicU32,
    /// Grace period in which a record was removed last.
    retired_in: AtomicU32,
    /// By port, packets and bytes received from it and sent by it in the kernel.
    totals: Box<[[AtomicU64; 4]]>,
    /// Whether all packets are upcalls for now, because a capture wants to see them.
    is_suspended: AtomicBool,
    recorded: AtomicU64,
    live: AtomicU64,
    refused: AtomicU64,
}

impl Offload {
    pub(crate) fn new(maps: OffloadMaps) -> Offload {
        let flows = maps.records.len();
        Offload {
            maps,
            states: (0..flows).map(|_| AtomicU32::new(FREE)).collect(),
            grace: AtomicU32::new(RETIRED),
            retired_in: AtomicU32::new(0),
            totals: (0..PORTS_MAX).map(|_| Default::default()).collect(),
            is_suspended: AtomicBool::new(false),
            recorded: AtomicU64::new(0),
            live: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Maps of the program.
    pub(crate) fn maps(&self) -> &OffloadMaps {
        &self.maps
    }

    /// Whether the kernel forwards packets to and from a port.
    #[inline]
    pub(crate) fn serves(&self, port: PortId) -> bool {
        self.port(port).index.load(Relaxed) != 0
    }

    fn port(&self, port: PortId) -> &PortWords {
        &self.maps.ports[port.index()]
    }

    /// Serves a port from now on. All of its packets are upcalls until its first snapshot.
    pub(crate) fn open_port(&self, port: PortId, index: u32) {
        let words = self.port(port);
        words.epoch.store(u32::MAX, Relaxed);
        words.station.store(0, Relaxed);
        words.index.store(index, Release);
    }

    /// Serves a port no longer.
    pub(crate) fn close_port(&self, port: PortId) {
        let words = self.port(port);
        words.epoch.store(u32::MAX, SeqCst);
        words.index.store(0, SeqCst);
    }

    /// Takes over the values of a port in a snapshot that is published.
    pub(crate) fn set_port(&self, port: PortId, values: OffloadPort) {
        let words = self.port(port);
        let OffloadPort { epoch, own_mac } = values;
        words.own_mac.store(PortWords::station_of(own_mac.0, 0), Relaxed);
        words.epoch.store(epoch.map_or(u32::MAX, |epoch| epoch.0), SeqCst);
    }

    /// Sets the Ethernet address behind a port, and its MTU.
    #[inline]
    pub(crate) fn set_station(&self, port: PortId, mac: Mac, mtu: u16) {
        let (station, words) = (PortWords::station_of(mac.0, mtu), self.port(port));
        if words.station.load(Relaxed) != station {
            words.station.store(station, Relaxed);
        }
    }

    /// Records the flow in slot `slot` of conntrack, or the evaluation of a recorded one. `still` tells whether the flow is to be
    /// offloaded, and is asked again after the record can be found: another worker may have ended the flow meanwhile. Returns
    /// whether the kernel forwards its packets.
    pub(crate) fn record(&self, slot: u32, flow: &OffloadedFlow, still: impl Fn() -> bool) -> bool {
        let (state, record) = (&self.states[slot as usize], &self.maps.records[slot as usize]);
        let now = state.load(Acquire);
        if now == LIVE {
            store_epochs(record, flow);
            return true;
        }
        let is_free = now == FREE || now >= RETIRED && now.saturating_add(2) <= self.grace.load(Acquire);
        if !is_free || state.compare_exchange(now, BUSY, AcqRel, Relaxed).is_err() {
            return false;
        }
        // Packets that the program has counted since the record was removed are of the flow before.
        self.take_record(record);
        fill(record, flow);
        let hash = self.hash(record, flow.protocol);
        let is_named = name(self.bucket(hash), word_of(hash, slot));
        state.store(if is_named { LIVE } else { now }, SeqCst);
        if !is_named {
            self.refused.fetch_add(1, Relaxed);
            return false;
        }
        self.recorded.fetch_add(1, Relaxed);
        self.live.fetch_add(1, Relaxed);
        // The worker that ends the flow does that first, and looks at the state of the record afterwards.
        fence(SeqCst);
        if !still() {
            self.remove(slot);
            return false;
        }
        true
    }

    /// Whether the flow in a slot has a record.
    #[inline]
    pub(crate) fn is_recorded(&self, slot: u32) -> bool {
        self.states[slot as usize].load(Relaxed) == LIVE
    }

    /// Removes the record of the flow in a slot, if it has one: from now on its packets are upcalls.
    #[inline]
    pub(crate) fn remove(&self, slot: u32) {
        fence(SeqCst);
        if self.states[slot as usize].load(Relaxed) == LIVE {
            self.remove_live(slot);
        }
    }

    #[cold]
    fn remove_live(&self, slot: u32) {
        let (state, record) = (&self.states[slot as usize], &self.maps.records[slot as usize]);
        if state.compare_exchange(LIVE, BUSY, AcqRel, Relaxed).is_err() {
            return;
        }
        record.epochs.iter().for_each(|epoch| epoch.store(0, Relaxed));
        let protocol = Protocol(record.head.load(Relaxed).to_ne_bytes()[4]);
        let hash = self.hash(record, protocol);
        let word = word_of(hash, slot);
        for way in &self.bucket(hash).ways {
            let _ = way.compare_exchange(word, 0, SeqCst, Relaxed);
        }
        self.live.fetch_sub(1, Relaxed);
        // The period is read after the bucket has lost the name: a later one begins without a program that knows it.
        let grace = self.grace.load(SeqCst);
        self.retired_in.fetch_max(grace, SeqCst);
        state.store(grace, SeqCst);
    }

    /// Packets that the kernel has forwarded since the last call, by the end that sent them; `None` if the flow in the slot
    /// has no record, or there were none.
    #[inline]
    pub(crate) fn take(&self, slot: u32) -> Option<[Forwarded; 2]> {
        if self.states[slot as usize].load(Relaxed) < LIVE {
            return None;
        }
        self.take_record(&self.maps.records[slot as usize])
    }

    /// Packets that the kernel has forwarded since the last [`Offload::take`], which will take them too.
    pub(crate) fn peek(&self, slot: u32) -> [Forwarded; 2] {
        if self.states[slot as usize].load(Relaxed) != LIVE {
            return [Forwarded::default(); 2];
        }
        let record = &self.maps.records[slot as usize];
        [0, 1].map(|end| Forwarded {
            packets: since(&record.packets[end], &record.taken_packets[end]),
            bytes: since(&record.bytes[end], &record.taken_bytes[end]),
        })
    }

    fn take_record(&self, record: &Record) -> Option<[Forwarded; 2]> {
        let taken = [0, 1].map(|end| Forwarded {
            packets: take_since(&record.packets[end], &record.taken_packets[end]),
            bytes: take_since(&record.bytes[end], &record.taken_bytes[end]),
        });
        let is_any = taken.iter().any(|end| end.packets > 0);
        if is_any {
            let ports = [0, 1].map(|end| usize::from(record.ports[end].load(Relaxed)));
            for (end, count) in taken.iter().enumerate() {
                let bytes = count.bytes + HEADER_BYTES * count.packets;
                let (from, to) = (&self.totals[ports[end]], &self.totals[ports[1 - end]]);
                from[0].fetch_add(count.packets, Relaxed);
                from[1].fetch_add(bytes, Relaxed);
                to[2].fetch_add(count.packets, Relaxed);
                to[3].fetch_add(bytes, Relaxed);
            }
        }
        is_any.then_some(taken)
    }

    /// Packets and bytes of frames that the kernel has received from a port and sent by it.
    pub(crate) fn totals_of(&self, port: PortId) -> [u64; 4] {
        std::array::from_fn(|i| self.totals[port.index()][i].load(Relaxed))
    }

    /// Sets the counts of a new port to zero.
    pub(crate) fn clear_totals(&self, port: PortId) {
        self.totals[port.index()].iter().for_each(|total| total.store(0, Relaxed));
    }

    /// Number of recorded flows, of records made so far, and of flows that found no place.
    pub(crate) fn numbers(&self) -> [u64; 3] {
        [&self.live, &self.recorded, &self.refused].map(|number| number.load(Relaxed))
    }

    /// Makes all packets upcalls, or ends that.
    pub(crate) fn suspend(&self, is_suspended: bool) {
        self.is_suspended.store(is_suspended, SeqCst);
        if is_suspended {
            self.maps.lease[0].until.store(0, SeqCst);
        }
    }

    /// Whether all packets are upcalls.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Relaxed)
    }

    /// Lets the program forward packets until a time by `CLOCK_MONOTONIC_COARSE`, nanoseconds.
    fn renew_lease(&self, until: u64) {
        if !self.is_suspended.load(SeqCst) {
            self.maps.lease[0].until.store(until, SeqCst);
        }
        if self.is_suspended.load(SeqCst) {
            self.maps.lease[0].until.store(0, SeqCst);
        }
    }

    /// Ends the grace period after `wait` has waited for every running program, if a record was removed in it or in the one
    /// before.
    pub(crate) fn pass_grace_period(&self, wait: impl FnOnce() -> bool) {
        let grace = self.grace.load(SeqCst);
        if self.retired_in.load(SeqCst) + 2 > grace && wait() {
            self.grace.store(grace + 1, SeqCst);
        }
    }

    fn hash(&self, record: &Record, protocol: Protocol) -> u64 {
        let addresses =
            record.addresses.each_ref().map(|words| words.each_ref().map(|word| word.load(Relaxed)));
        let [a, b, c, d, ..] = record.head.load(Relaxed).to_ne_bytes();
        let transport_ports = [[a, b], [c, d]].map(u16::from_be_bytes);
        hash_of(self.maps.seed, addresses, transport_ports, protocol.0)
    }

    fn bucket(&self, hash: u64) -> &Bucket {
        &self.maps.buckets[hash as usize & (self.maps.buckets.len() - 1)]
    }
}

/// The word of a bucket that names a record.
fn word_of(hash: u64, slot: u32) -> u64 {
    hash >> 32 << 32 | u64::from(slot + 1)
}

/// Names a record in a bucket. Returns false where all ways are taken.
fn name(bucket: &Bucket, word: u64) -> bool {
    bucket.ways.iter().any(|way| way.compare_exchange(0, word, SeqCst, Relaxed).is_ok())
}

fn fill(record: &Record, flow: &OffloadedFlow) {
    for (words, address) in record.addresses.iter().zip(flow.addresses) {
        for (word, value) in words.iter().zip(address_words(address)) {
            word.store(value, Relaxed);
        }
    }
    let head = Record::head_of(flow.transport_ports, flow.protocol.0, is_v4(flow.addresses[0]));
    record.head.store(head, Relaxed);
    for (word, port) in record.ports.iter().zip(flow.ports) {
        word.store(port.0, Relaxed);
    }
    store_epochs(record, flow);
}

fn store_epochs(record: &Record, flow: &OffloadedFlow) {
    for (word, epoch) in record.epochs.iter().zip(flow.epochs) {
        let epoch = epoch.map_or(0, |epoch| epoch.0);
        if word.load(Relaxed) != epoch {
            word.store(epoch, Relaxed);
        }
    }
}

fn since(count: &AtomicU64, taken: &AtomicU64) -> u64 {
    count.load(Relaxed).saturating_sub(taken.load(Relaxed))
}

/// The growth of a count since the last call, given to one of several callers.
fn take_since(count: &AtomicU64, taken: &AtomicU64) -> u64 {
    let now = count.load(Relaxed);
    now.saturating_sub(taken.fetch_max(now, Relaxed))
}
