//! Memory of the table, and the buckets and slots that the hash of a key names.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::entry::{self, Entry};
use super::super::forward_counts::ForwardCounts;
use super::super::key::{HashSeed, Key};
use super::super::parts::{AtomicU64, WORKERS_MAX};
use super::super::quota::Quotas;
use super::super::state::{QuotaClass, Side};
use super::super::timeouts::timeouts_ms;
use super::super::virtual_end::{FrontEnd, VirtualEnd};
use super::slot::{BUCKET_SLOTS, Slot};
use super::tags::{BucketTags, TOMBSTONE};
use crate::dataplane::offload::Offload;
use crate::dataplane::{ConntrackSettings, FlowCount};
use crate::ids::PortId;
use crate::mem::{HugeArray, prefetch_read};
use crate::net::address::unpack;
use crate::net::flow::FlowKey;

/// The connection tracking table. All workers share it, without locks.
pub(crate) struct Conntrack {
    pub(super) buckets: HugeArray<BucketTags>,
    pub(super) entries: HugeArray<Entry>,
    pub(super) virtual_ends: HugeArray<VirtualEnd>,
    /// Counts of translated flows that are not in the entries.
    forward_counts: Option<Arc<dyn ForwardCounts>>,
    /// Records of the flows that the kernel forwards.
    pub(super) offload: Option<Arc<Offload>>,
    seed: HashSeed,
    /// Time at which the flow in each slot was inserted, milliseconds; zero for one that was restored.
    opened_ms: Box<[std::sync::atomic::AtomicU32]>,
    /// Idle time, milliseconds, after which a flow ends, by number of its state.
    timeouts_ms: Vec<u32>,
    pub(in crate::dataplane::conntrack) quotas: Quotas,
    /// Epoch of the reclamation of slots: grows when every worker has seen the last value.
    pub(super) reclaim_epoch: AtomicU64,
    /// The epoch that each worker has seen; [`u64::MAX`] while it is offline or does not exist.
    pub(super) seen_epochs: Box<[AtomicU64]>,
    tcp_pickup: bool,
    tcp_reset_unknown: bool,
}

impl Conntrack {
    /// Makes an empty table, on huge pages if `huge_pages` and the kernel has any. Fails where there is no
    /// memory for it.
    pub(crate) fn new(settings: &ConntrackSettings, huge_pages: bool) -> io::Result<Conntrack> {
        Conntrack::with_seed(settings, huge_pages, HashSeed::random())
    }

    /// Makes an empty table for a few flows, with the hashes of this one.
    pub(crate) fn small_copy(&self, flows: usize) -> io::Result<Conntrack> {
        let settings = ConntrackSettings { flows_max: flows, ..ConntrackSettings::default() };
        Conntrack::with_seed(&settings, false, self.seed)
    }

    fn with_seed(settings: &ConntrackSettings, huge_pages: bool, seed: HashSeed) -> io::Result<Conntrack> {
        let buckets = Conntrack::buckets_for(settings);
        let entries = HugeArray::new(buckets * BUCKET_SLOTS, huge_pages)?;
        let virtual_ends = HugeArray::new(buckets * BUCKET_SLOTS, huge_pages)?;
        let buckets = HugeArray::new(buckets, huge_pages)?;
        Ok(Conntrack::of(buckets, (entries, virtual_ends), seed, settings))
    }

    /// Number of buckets of a table with these settings.
    pub(in crate::dataplane::conntrack) fn buckets_for(settings: &ConntrackSettings) -> usize {
        settings.flows_max.div_ceil(BUCKET_SLOTS).max(2)
    }

    /// Makes a table of these buckets and their entries, which are empty or still to be
    /// [recovered](Conntrack::recover).
    pub(in crate::dataplane::conntrack) fn of(
        buckets: HugeArray<BucketTags>,
        (entries, virtual_ends): (HugeArray<Entry>, HugeArray<VirtualEnd>),
        seed: HashSeed,
        settings: &ConntrackSettings,
    ) -> Conntrack {
        let quotas = Quotas::new(entries.len(), settings.pod_quota_percent);
        // The models of loom need no orders of these: the control side alone reads them.
        let opened_ms = (0..entries.len()).map(|_| 0.into()).collect();
        Conntrack {
            buckets,
            entries,
            virtual_ends,
            forward_counts: None,
            offload: None,
            seed,
            opened_ms,
            timeouts_ms: timeouts_ms(&settings.timeouts),
            quotas,
            reclaim_epoch: AtomicU64::new(0),
            seen_epochs: (0..WORKERS_MAX).map(|_| AtomicU64::new(u64::MAX)).collect(),
            tcp_pickup: settings.tcp_pickup,
            tcp_reset_unknown: settings.tcp_reset_unknown,
        }
    }

    /// Adds counts that are not in the entries.
    pub(crate) fn add_forward_counts(&mut self, counts: Arc<dyn ForwardCounts>) {
        self.forward_counts = Some(counts);
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Adds records of flows that the kernel forwards, one for each slot, and takes over those that are left of these flows.
    pub(crate) fn add_offload(&mut self, offload: Arc<Offload>) {
        offload.adopt(|(addresses, transport_ports, protocol)| {
            let [(src, src_port), (dst, dst_port)] =
                [0, 1].map(|end| (unpack(addresses[end]), transport_ports[end]));
            let (key, from_low) = Key::of_flow(&FlowKey { src, dst, protocol, src_port, dst_port });
            let slot = self.look_up(&key, self.hash(&key)).filter(|_| from_low)?;
            Some(slot.number())
        });
        self.offload = Some(offload);
    }

    /// Whether a segment other than a SYN may open a TCP connection (`nf_conntrack_tcp_loose` of Linux).
    pub(crate) fn tcp_pickup(&self) -> bool {
        self.tcp_pickup
    }

    /// Whether a TCP segment of no flow is answered with a reset, if policy lets its sender open the connection.
    pub(crate) fn tcp_reset_unknown(&self) -> bool {
        self.tcp_reset_unknown
    }

    /// Hash of a key, keyed with this table's secret seed.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.seed.hash(key)
    }

    /// The entry in a slot.
    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[slot.0 as usize]
    }

    /// The entry in a slot whose number may be wrong.
    #[inline]
    pub(crate) fn entry_at(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot.0 as usize)
    }

    /// Front end of the translated flow in a slot.
    #[inline]
    pub(crate) fn virtual_end(&self, slot: Slot) -> FrontEnd {
        self.virtual_ends[slot.0 as usize].get()
    }

    /// Starts to load the virtual end of the flow in a slot.
    #[inline]
    pub(crate) fn prefetch_virtual_end(&self, slot: Slot) {
        if let Some(virtual_end) = self.virtual_ends.get(slot.0 as usize) {
            prefetch_read(virtual_end);
        }
    }

    /// The slot that a hash names: a new flow takes it where it is free.
    #[inline]
    pub(super) fn primary_slot(&self, hash: u64) -> Slot {
        Slot((((hash & 0xffff_ffff) * self.entries.len() as u64) >> 32) as u32)
    }

    /// The bucket of the primary slot.
    #[inline]
    pub(in crate::dataplane::conntrack) fn first_bucket(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The other bucket in which a key may lie.
    #[inline]
    pub(in crate::dataplane::conntrack) fn second_bucket(&self, hash: u64) -> usize {
        // Other bits of the hash than the first bucket's and the tag's decide; never the first bucket again.
        let others = self.buckets.len() as u64 - 1;
        let step = 1 + (((hash >> 24 & 0xffff_ffff) * others) >> 32) as usize;
        let bucket = self.first_bucket(hash) + step;
        if bucket >= self.buckets.len() { bucket - self.buckets.len() } else { bucket }
    }

    /// The tag of a slot.
    pub(in crate::dataplane::conntrack) fn tag(&self, slot: Slot) -> u8 {
        self.buckets[slot.bucket()].tag(slot.position())
    }

    /// Replaces the tag of a slot.
    pub(in crate::dataplane::conntrack) fn set_tag(&self, slot: Slot, tag: u8) {
        self.buckets[slot.bucket()].set(slot.position(), tag);
    }

    /// Whether a key whose first bucket this is may lie in its second one.
    #[inline]
    pub(in crate::dataplane::conntrack) fn has_overflow(&self, bucket: usize) -> bool {
        self.buckets[bucket].has_overflow()
    }

    /// Changes the number of keys that lie in their second bucket and have this one as their first.
    pub(in crate::dataplane::conntrack) fn add_overflow(&self, bucket: usize, change: i16) {
        self.buckets[bucket].add_overflow(change);
    }

    /// Sets the overflow counts of all buckets to zero.
    pub(in crate::dataplane::conntrack) fn clear_overflow(&self) {
        self.buckets.iter().for_each(BucketTags::clear_overflow);
    }

    /// Whether a slot holds a flow. A slot that is claimed and not yet published holds none: its entry still
    /// has the words of the flow before.
    pub(in crate::dataplane::conntrack) fn holds_flow(&self, slot: Slot) -> bool {
        self.tag(slot) > TOMBSTONE && self.entry(slot).is_flow()
    }

    /// Slots of a bucket that hold a flow.
    pub(super) fn flow_slots(&self, bucket: usize) -> impl Iterator<Item = Slot> + '_ {
        (0..BUCKET_SLOTS)
            .map(move |position| Slot::at(bucket, position))
            .filter(|slot| self.holds_flow(*slot))
    }

    /// Whether a flow has had no packet for longer than its state allows.
    pub(super) fn is_idle(&self, slot: Slot, now_ms: u32) -> bool {
        let entry = self.entry(slot);
        let timeout_ms = self.timeouts_ms[entry.state() as usize];
        entry.is_idle_for(timeout_ms, now_ms) && self.counts(slot, now_ms).1 > timeout_ms
    }

    /// All slots.
    pub(in crate::dataplane::conntrack) fn all_slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.entries.len() as u32).map(Slot)
    }

    /// Notes the time at which the flow in a slot was inserted.
    #[inline]
    pub(super) fn note_opened(&self, slot: Slot, now_ms: u32) {
        self.opened_ms[slot.0 as usize].store(now_ms.max(1), Relaxed);
    }

    /// Time since the insertion of the flow in a slot, milliseconds, `None` for one that was restored.
    pub(crate) fn age_ms(&self, slot: Slot, now_ms: u32) -> Option<u32> {
        let opened_ms = self.opened_ms[slot.0 as usize].load(Relaxed);
        let age = now_ms.wrapping_sub(opened_ms);
        (opened_ms != 0).then_some(if age > u32::MAX - 1000 { 0 } else { age })
    }

    /// Counters of the flow in a slot, which counts against `port`.
    pub(crate) fn count_of(&self, slot: Slot, key: &Key, port: PortId, now_ms: u32) -> FlowCount {
        let entry = self.entry(slot);
        let opened_ms = self.opened_ms[slot.0 as usize].load(Relaxed);
        let (counts, idle_ms) = self.counts(slot, now_ms);
        FlowCount {
            key: key.flow(entry.sender(true) == Side::Initiator),
            port,
            opened_ms: (opened_ms != 0).then_some(opened_ms),
            last_seen_ms: now_ms.wrapping_sub(idle_ms),
            counts,
        }
    }

    /// Packets and bytes that initiator and responder of the flow in a slot have sent, and milliseconds since its last packet.
    pub(crate) fn counts(&self, slot: Slot, now_ms: u32) -> ([(u64, u64); 2], u32) {
        let entry = self.entry(slot);
        let ([(packets, bytes), responder], idle_ms) = self.entry_counts(slot, entry, now_ms);
        let count =
            self.forward_counts_of(slot).map(|(counts, binding)| counts.count_of(binding, slot.number()));
        let Some(count) = count.filter(|count| count.packets > 0) else {
            return ([(packets, bytes), responder], idle_ms);
        };
        let idle_ms = idle_ms.min(entry::idle_ms(count.last_seen_ms, now_ms));
        ([(packets + count.packets, bytes + count.bytes), responder], idle_ms)
    }

    fn forward_counts_of(&self, slot: Slot) -> Option<(&dyn ForwardCounts, u32)> {
        let entry = self.entry(slot);
        if ![true, false].into_iter().any(|is_low| entry.flow_word(is_low).needs_no_entry()) {
            return None; // Its virtual end is another cache line.
        }
        let binding = self.virtual_ends[slot.0 as usize].binding()?;
        Some((&**self.forward_counts.as_ref()?, binding))
    }

    /// Takes the count of the flow in a slot over that lies beside its binding.
    pub(crate) fn take_forward_count(&self, slot: Slot) {
        if let Some((counts, binding)) = self.forward_counts_of(slot) {
            self.entry(slot).add_forward_count(&counts.take_count(binding, slot.number()));
        }
    }

    /// Ends the cached hop of the flow in a slot, and takes its count over.
    pub(super) fn end_cached_hop(&self, slot: Slot) {
        if let Some((counts, binding)) = self.forward_counts_of(slot) {
            counts.end_hop(binding, slot.number());
            self.entry(slot).add_forward_count(&counts.take_count(binding, slot.number()));
        }
    }

    /// Notes the binding beside which packets of the flow in a slot are counted.
    pub(crate) fn note_binding(&self, slot: Slot, binding: u32) {
        let virtual_end = &self.virtual_ends[slot.0 as usize];
        if virtual_end.binding() != Some(binding) {
            self.end_cached_hop(slot);
            virtual_end.set_binding(binding);
        }
    }

    /// Calls `see` for each flow until it returns false. The control side uses it: flows that come and go
    /// meanwhile may be missed.
    pub(crate) fn for_each(&self, mut see: impl FnMut(Slot, &Key, &Entry) -> bool) {
        for slot in self.all_slots() {
            let entry = self.entry(slot);
            if let Some(key) = entry.key()
                && entry.key() == Some(key)
                && !see(slot, &key, entry)
            {
                return;
            }
        }
    }

    /// Number of flows of a port in a quota class.
    pub(crate) fn flows_of(&self, port: PortId, class: QuotaClass) -> u32 {
        self.quotas.flows(port, class)
    }

    /// Number of flows.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.key().is_some()).count()
    }

    /// Bytes of tags, entries and virtual ends.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.entries) + size_of_val(&*self.virtual_ends)
    }
}
