//! Records that the process before has left: flows that the flow table still has go on without a gap.
//!
//! The program forwards their packets under the policy epochs of that process, until this one has tables and pods on all of
//! those ports that it has opened, or until the lease of that process would have ended. After the end of that lease their packets
//! are upcalls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use super::flow::protocol_of;
use super::{CLOSED, NONE, Offload, counts, keeper};
use crate::dataplane::Settings;
use crate::ids::PortId;
use crate::limits::PORTS_MAX;
use crate::net::address::Address;
use crate::net::flow::Protocol;
use crate::xdp::Pins;
use crate::xdp::offload::MapPins;
use crate::xdp::offload::layout::Record;

/// Flow of a record: addresses and transport ports of its ends, and its protocol.
pub(crate) type RecordedFlow = ([Address; 2], [u16; 2], Protocol);

impl Offload {
    /// Records for so many flows, if the settings have flow offload, or the reason for which there are none. `flow_table` is the
    /// directory of the flow table.
    pub(crate) fn of_settings(
        settings: &Settings,
        flows: usize,
        flow_table: Option<&Path>,
    ) -> (Option<Arc<Offload>>, Option<String>) {
        if settings.offload.is_none() {
            return (None, None);
        }
        let pins = Pins::open(&settings.pin_directory)
            .map_err(|reason| format!("its programs would end with the process: {reason}"));
        let opened = pins.and_then(|pins| {
            let pins = flow_table.map(|directory| MapPins::of(&pins, directory));
            Offload::open(flows, pins.as_ref()).map_err(|error| error.to_string())
        });
        match opened {
            Ok(offload) => (Some(Arc::new(offload)), None),
            Err(reason) => (None, Some(reason)),
        }
    }

    /// Takes over the records of the process before, and holds its ports, if its lease lasts. `slot_of` finds the slot of a flow
    /// whose first end is the lower one; records of other flows are removed. No worker runs yet.
    pub(crate) fn adopt(&self, slot_of: impl Fn(RecordedFlow) -> Option<u32>) {
        let mut is_adopted = vec![false; self.maps.records.len()];
        let mut taken = 0;
        for way in self.maps.buckets.iter().flat_map(|bucket| &bucket.ways) {
            let word = way.load(Relaxed);
            let Some(number) = (word as u32).checked_sub(1) else { continue };
            let is_second_name = is_adopted.get(number as usize) == Some(&true);
            if is_second_name && self.is_named_by(&self.maps.records[number as usize], number, word) {
                continue;
            }
            if is_second_name || !self.adopt_record(number, word, &slot_of) {
                way.store(0, SeqCst);
                continue;
            }
            is_adopted[number as usize] = true;
            taken = taken.max(number + 1);
        }
        for (number, record) in self.maps.records.iter().enumerate() {
            self.skip_port_counts(number, record);
        }
        self.taken.store(taken, Relaxed);
        self.free_gateways(taken);
        for number in (0..taken).filter(|number| !is_adopted[*number as usize]) {
            self.maps.records[number as usize].epochs.iter().for_each(|epoch| epoch.store(0, Relaxed));
            self.retired.push(number, &self.next);
        }
        let has_lease = self.maps.lease[0].until.load(Relaxed) >= keeper::now_ns();
        for (held, words) in self.held.iter().zip(self.maps.ports.iter()) {
            let is_served = words.index.load(Relaxed) != 0 && words.epoch.load(Relaxed) != CLOSED;
            held.store(is_served && has_lease, Relaxed);
            if !has_lease {
                words.epoch.store(CLOSED, SeqCst);
            }
        }
    }

    fn adopt_record(&self, number: u32, word: u64, slot_of: impl Fn(RecordedFlow) -> Option<u32>) -> bool {
        let Some(record) = self.maps.records.get(number as usize) else { return false };
        let head = record.head();
        let is_whole = self.is_named_by(record, number, word)
            && record.ports.iter().all(|port| usize::from(port.load(Relaxed)) < PORTS_MAX);
        let slot = slot_of((record.ends(), head.transport_ports, protocol_of(&head))).filter(|_| is_whole);
        let Some(slot) = slot.and_then(|slot| self.slots.get(slot as usize)) else { return false };
        if slot.load(Relaxed) != NONE {
            return false;
        }
        slot.store(number + 1, Relaxed);
        self.live.fetch_add(1, Relaxed);
        true
    }

    /// The counts of ports begin with the process.
    fn skip_port_counts(&self, number: usize, record: &Record) {
        for (end, counted) in self.counted_by_ports[number].iter().enumerate() {
            counts::catch_up(counted, record, end);
        }
    }

    /// Open ports for which the policy epoch of the process before holds.
    pub(crate) fn held_ports(&self) -> impl Iterator<Item = PortId> {
        let is_held =
            |port: &PortId| self.held[port.index()].load(Relaxed) && self.is_open[port.index()].load(Relaxed);
        (0..PORTS_MAX).map(|number| PortId(number as u16)).filter(is_held)
    }

    /// Gives the held ports the policy epochs of the published snapshot.
    pub(crate) fn release_held(&self) {
        if !self.is_held() {
            return;
        }
        for (number, held) in self.held.iter().enumerate() {
            if held.swap(false, SeqCst) {
                // A publication may change the epoch at the same time.
                loop {
                    let epoch = self.epochs[number].load(SeqCst);
                    self.maps.ports[number].epoch.store(epoch, SeqCst);
                    if self.epochs[number].load(SeqCst) == epoch {
                        break;
                    }
                }
            }
        }
        fence(SeqCst);
        self.store_service_epochs();
    }
}
