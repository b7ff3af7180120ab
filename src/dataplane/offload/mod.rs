//! Flow offload: records of flows that the kernel forwards between pods on veth pairs, and between these and uplinks, while the
//! workers decide on everything else.
//!
//! A worker that forwards a packet of an established flow between two offloaded ports takes a free record, fills it, and then
//! names it in a bucket: from there on the program at the pod's interface finds it. The end of the flow takes it out of the
//! bucket. The slot of the flow in conntrack has the number of its record.
//!
//! **Reuse.** The program may still read a record that no bucket names any more. So a removed record is free again only
//! after every run of the program that could have found it has ended ([`Offload::end_grace_period`]). The record that was freed
//! last is taken first: those in use lie close together, in few pages.
//!
//! **Revalidation.** A record has the generation that has evaluated each direction of its flow, as the flow word in conntrack
//! has it, and the maps have the policy epoch of each port. A change of policy stores the new epochs: from then on the packets of
//! flows that were evaluated before are upcalls, which a worker revalidates.
//!
//! **Services.** A flow to a Service has two names: that of its client's packets, by the front end, and that of the backend's. Its
//! record has the generation that has compared it with the Services, and the maps have the last change of these.
//!
//! **Counters.** The program counts packets and bytes of a record for ever. The switch adds the difference to its counters.

mod adoption;
mod counts;
mod flow;
mod gateways;
mod keeper;
mod names;
mod record_list;
mod services;
#[cfg(test)]
mod tests;
mod upcall_device;

pub(crate) use counts::Forwarded;
pub(crate) use flow::{Gateway, OffloadedFlow, OffloadedFront, TcpNumbers};
pub(crate) use keeper::Keeper;
pub(crate) use upcall_device::{is_upcall_device, remove_abandoned_devices, upcall_device};

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use self::counts::Counts;
use self::flow::log_of_window;
use self::record_list::RecordList;
use crate::dataplane::OffloadCounters;
use crate::ids::{Generation, PortId};
use crate::limits::PORTS_MAX;
use crate::net::mac::Mac;
use crate::xdp::XdpError;
use crate::xdp::offload::layout::{PortWords, UNCHANGED};
use crate::xdp::offload::{MapPins, OffloadMaps};

/// Bytes of an Ethernet header, which the program does not count.
const HEADER_BYTES: u64 = 14;

/// Epoch of a port whose packets are all upcalls.
const CLOSED: u32 = u32::MAX;
/// Word of a slot without a record.
const NONE: u32 = 0;
/// Word of a slot whose record is being filled or removed. Any other word is the number of a record, and one.
const BUSY: u32 = u32::MAX;

/// Values of an offloaded port in a snapshot. Without a place in it, all packets are upcalls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OffloadPort {
    /// Its policy epoch; `None`: all of its packets are upcalls.
    pub epoch: Option<Generation>,
    /// Ethernet address of the switch.
    pub own_mac: Mac,
}

/// Records of flows, and what the program needs to know about ports.
pub(crate) struct Offload {
    maps: OffloadMaps,
    /// By slot of conntrack, its record.
    slots: Box<[AtomicU32]>,
    free: RecordList,
    /// Removed records, which the program may still read.
    retired: RecordList,
    /// By record, the next one in the list that it is in.
    next: Box<[AtomicU32]>,
    /// Number of records that were taken at least once: those before it.
    taken: AtomicU32,
    /// By record and end, what its ports have counted.
    counted_by_ports: Box<[[Counts; 2]]>,
    /// By port, what the kernel has received from it, and sent by it.
    totals: Box<[[Counts; 2]]>,
    /// By port, the policy epoch of the published snapshot.
    epochs: Box<[AtomicU32]>,
    /// By port, whether the epoch of the process before stays in the maps: see [`Offload::adopt`].
    held: Box<[AtomicBool]>,
    /// By port, whether this process has opened it.
    is_open: Box<[AtomicBool]>,
    /// Whether all packets are upcalls for now, because a capture wants to see them.
    is_suspended: AtomicBool,
    /// Epochs of Services of the published snapshot.
    service_epochs: Box<[AtomicU32]>,
    recorded: AtomicU64,
    live: AtomicU64,
    refused: AtomicU64,
}

impl Offload {
    /// Opens the maps that the process before has left, or makes them, with so many records.
    pub(crate) fn open(flows: usize, pins: Option<&MapPins>) -> Result<Offload, XdpError> {
        OffloadMaps::open(flows, pins).map(Offload::new)
    }

    pub(crate) fn new(maps: OffloadMaps) -> Offload {
        let flows = maps.records.len();
        Offload {
            maps,
            slots: (0..flows).map(|_| AtomicU32::new(NONE)).collect(),
            free: RecordList::default(),
            retired: RecordList::default(),
            next: (0..flows).map(|_| AtomicU32::new(0)).collect(),
            taken: AtomicU32::new(0),
            counted_by_ports: (0..flows).map(|_| Default::default()).collect(),
            totals: (0..PORTS_MAX).map(|_| Default::default()).collect(),
            epochs: (0..PORTS_MAX).map(|_| AtomicU32::new(CLOSED)).collect(),
            held: (0..PORTS_MAX).map(|_| AtomicBool::new(false)).collect(),
            is_open: (0..PORTS_MAX).map(|_| AtomicBool::new(false)).collect(),
            is_suspended: AtomicBool::new(false),
            service_epochs: (0..UNCHANGED).map(|_| AtomicU32::new(CLOSED)).collect(),
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

    /// Whether the kernel forwards packets of a pod's port on this interface, which has no XDP program then.
    pub(crate) fn serves_interface(&self, index: u32) -> bool {
        self.maps.ports.iter().any(|words| !words.is_uplink() && words.index.load(SeqCst) == index)
    }

    fn port(&self, port: PortId) -> &PortWords {
        &self.maps.ports[port.index()]
    }

    /// Serves a port from now on. All of its packets are upcalls until its first snapshot, unless the process before has served
    /// the same interface.
    pub(crate) fn open_port(&self, port: PortId, index: u32, is_uplink: bool) {
        let words = self.port(port);
        self.is_open[port.index()].store(true, Relaxed);
        let is_same = words.index.load(Relaxed) == index && words.is_uplink() == is_uplink;
        if self.held[port.index()].load(Relaxed) && is_same {
            return;
        }
        self.held[port.index()].store(false, Relaxed);
        self.epochs[port.index()].store(CLOSED, Relaxed);
        words.epoch.store(CLOSED, SeqCst);
        words.station.store(0, Relaxed);
        words.own_mac.store(PortWords::station_of([0; 6], is_uplink.into()), SeqCst);
        words.index.store(index, SeqCst);
    }

    /// Serves a port no longer.
    pub(crate) fn close_port(&self, port: PortId) {
        let words = self.port(port);
        self.is_open[port.index()].store(false, Relaxed);
        self.held[port.index()].store(false, Relaxed);
        words.epoch.store(CLOSED, SeqCst);
        words.index.store(0, SeqCst);
    }

    /// Takes over the values of a port in a snapshot that is published.
    pub(crate) fn set_port(&self, port: PortId, values: OffloadPort) {
        let words = self.port(port);
        let OffloadPort { epoch, own_mac } = values;
        let epoch = epoch.map_or(CLOSED, |epoch| epoch.0);
        self.epochs[port.index()].store(epoch, SeqCst);
        if !self.held[port.index()].load(SeqCst) {
            let is_uplink = words.is_uplink().into();
            words.own_mac.store(PortWords::station_of(own_mac.0, is_uplink), Relaxed);
            words.epoch.store(epoch, SeqCst);
        }
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
        if let Some(number) = self.record_of(slot) {
            flow.store_epochs(&self.maps.records[number as usize]);
            return true;
        }
        let word = &self.slots[slot as usize];
        if word.compare_exchange(NONE, BUSY, AcqRel, Relaxed).is_err() {
            return false;
        }
        let Some(number) = self.take_free() else {
            word.store(NONE, Release);
            return false;
        };
        let record = &self.maps.records[number as usize];
        // Packets that the program has counted since the record was removed are of the flow before.
        self.count_ports_of(number as usize);
        self.take_record(number);
        flow.fill(record);
        if !self.name(record, number) {
            self.free.push(number, &self.next);
            word.store(NONE, Release);
            self.refused.fetch_add(1, Relaxed);
            return false;
        }
        word.store(number + 1, SeqCst);
        self.recorded.fetch_add(1, Relaxed);
        self.live.fetch_add(1, Relaxed);
        // The worker that ends the flow does that first, and looks for the record afterwards.
        fence(SeqCst);
        let is_still = still();
        if !is_still {
            self.remove(slot);
        }
        is_still
    }

    fn take_free(&self) -> Option<u32> {
        self.free.pop(&self.next).or_else(|| {
            let fresh = |taken: u32| ((taken as usize) < self.next.len()).then_some(taken + 1);
            self.taken.fetch_update(AcqRel, Relaxed, fresh).ok()
        })
    }

    /// Number of the record of the flow in a slot.
    #[inline]
    fn record_of(&self, slot: u32) -> Option<u32> {
        match self.slots[slot as usize].load(Acquire) {
            NONE | BUSY => None,
            word => Some(word - 1),
        }
    }

    /// Whether the record of the flow in a slot, if there is one, differs from the flow in more than its evaluation.
    pub(crate) fn is_changed(&self, slot: u32, flow: &OffloadedFlow) -> bool {
        self.record_of(slot).is_some_and(|number| !flow.is_in(&self.maps.records[number as usize]))
    }

    /// Whether the flow in a slot has a record.
    #[inline]
    pub(crate) fn is_recorded(&self, slot: u32) -> bool {
        self.record_of(slot).is_some()
    }

    /// Removes the record of the flow in a slot, if it has one: from now on its packets are upcalls. Returns what the kernel has
    /// forwarded since the last [`Offload::take`].
    #[inline]
    pub(crate) fn remove(&self, slot: u32) -> Option<[Forwarded; 2]> {
        fence(SeqCst);
        match self.slots[slot as usize].load(Relaxed) {
            NONE | BUSY => None,
            word => self.remove_record(slot, word),
        }
    }

    #[cold]
    fn remove_record(&self, slot: u32, word: u32) -> Option<[Forwarded; 2]> {
        self.slots[slot as usize].compare_exchange(word, BUSY, AcqRel, Relaxed).ok()?;
        let number = word - 1;
        let record = &self.maps.records[number as usize];
        record.epochs.iter().for_each(|epoch| epoch.store(0, Relaxed));
        self.unname(record, number);
        let forwarded = self.take_record(number);
        self.live.fetch_sub(1, Relaxed);
        self.slots[slot as usize].store(NONE, SeqCst);
        self.retired.push(number, &self.next);
        forwarded
    }

    /// Numbers of both ends of the TCP connection in a slot, with those of the segments that the kernel has forwarded. `None` if
    /// it has no record.
    #[inline]
    pub(crate) fn numbers(&self, slot: u32) -> Option<[TcpNumbers; 2]> {
        let record = &self.maps.records[self.record_of(slot)? as usize];
        record.head().is_tcp.then(|| [0, 1].map(|end| TcpNumbers::of(record, end)))
    }

    /// Changes the numbers of a TCP connection, one of whose segments a worker forwards, from those that [`Offload::numbers`] has
    /// returned. A number that the program has changed since stays: it is of a later segment.
    #[inline]
    pub(crate) fn set_numbers(&self, slot: u32, from: &[TcpNumbers; 2], to: &[TcpNumbers; 2]) {
        // A worker that records the flow at this time names the record first, and reads the numbers afterwards.
        fence(SeqCst);
        let Some(number) = self.record_of(slot) else { return };
        let record = &self.maps.records[number as usize];
        let set = |word: &AtomicU32, from: u32, to: u32| {
            if from != to {
                let _ = word.compare_exchange(from, to, Relaxed, Relaxed);
            }
        };
        for end in [0, 1] {
            set(&record.sequence_ends[end], from[end].end, to[end].end);
            set(&record.acknowledged[end], from[end].acknowledged, to[end].acknowledged);
            if from[end].max_window < to[end].max_window {
                record.windows[end].store(log_of_window(to[end].max_window), Relaxed);
            }
        }
    }

    /// Packets that the kernel has forwarded since the last call, by the end that sent them; `None` if the flow in the slot
    /// has no record, or there were none.
    #[inline]
    pub(crate) fn take(&self, slot: u32) -> Option<[Forwarded; 2]> {
        self.record_of(slot).and_then(|number| self.take_record(number))
    }

    fn take_record(&self, number: u32) -> Option<[Forwarded; 2]> {
        let (record, counted) = (&self.maps.records[number as usize], &self.maps.counted[number as usize]);
        let taken = [0, 1].map(|end| counts::catch_up(&counted.by_end[end], record, end));
        taken.iter().any(|end| end.packets > 0).then_some(taken)
    }

    /// Packets that the kernel has forwarded since the last [`Offload::take`], which will take them too.
    pub(crate) fn peek(&self, slot: u32) -> [Forwarded; 2] {
        let Some(number) = self.record_of(slot) else { return [Forwarded::default(); 2] };
        let (record, counted) = (&self.maps.records[number as usize], &self.maps.counted[number as usize]);
        [0, 1].map(|end| counts::behind(&counted.by_end[end], record, end))
    }

    /// Adds what the kernel has forwarded to the counts of the ports.
    pub(crate) fn count_ports(&self) {
        (0..self.taken.load(Acquire) as usize).for_each(|number| self.count_ports_of(number));
    }

    fn count_ports_of(&self, number: usize) {
        let (record, counted) = (&self.maps.records[number], &self.counted_by_ports[number]);
        let ports = record.ports.each_ref().map(|port| usize::from(port.load(Relaxed)));
        for end in [0, 1] {
            let mut count = counts::catch_up(&counted[end], record, end);
            if count.packets > 0 {
                count.bytes += HEADER_BYTES * count.packets;
                counts::add(&self.totals[ports[end]][0], count);
                counts::add(&self.totals[ports[1 - end]][1], count);
            }
        }
    }

    /// Frames that the kernel has received from a port, and sent by it, up to the last [`Offload::count_ports`].
    pub(crate) fn totals_of(&self, port: PortId) -> [Forwarded; 2] {
        self.totals[port.index()].each_ref().map(counts::get)
    }

    /// Sets the counts of a new port to zero.
    pub(crate) fn clear_totals(&self, port: PortId) {
        self.totals[port.index()].iter().for_each(counts::clear);
    }

    /// Counts of flows.
    pub(crate) fn counters(&self) -> OffloadCounters {
        let [flows, recorded, refused] =
            [&self.live, &self.recorded, &self.refused].map(|number| number.load(Relaxed));
        let lost = self.maps.lease[0].lost.load(Relaxed);
        OffloadCounters { flows, recorded, refused, lost }
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

    /// Frees the records that were removed before the call, after `wait` has waited for every running program. One thread at a
    /// time calls it.
    pub(crate) fn end_grace_period(&self, wait: impl FnOnce() -> bool) {
        let mut first = self.retired.take_all();
        if first == NONE {
            return;
        }
        let target = if wait() { &self.free } else { &self.retired };
        while first != NONE {
            let number = first - 1;
            first = self.next[number as usize].load(Relaxed);
            target.push(number, &self.next);
        }
    }
}
