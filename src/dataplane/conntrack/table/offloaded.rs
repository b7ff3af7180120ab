//! Flows that the kernel forwards: their packets are counted here, and their records end with them.

use std::sync::atomic::{Ordering::SeqCst, fence};

use super::super::entry::Entry;
use super::super::forward_counts::ForwardCount;
use super::super::state::{FlowState, Side};
use super::super::tcp::TcpFlow;
use super::layout::Conntrack;
use super::slot::Slot;
use crate::dataplane::offload::{Forwarded, Offload};

impl Conntrack {
    /// Counts the packets of a flow that the kernel has forwarded since the last call, as ones of this time.
    #[inline]
    pub(crate) fn count_offloaded(&self, slot: Slot, now_ms: u32) {
        if let Some(offload) = &self.offload
            && let Some(forwarded) = offload.take(slot.number())
        {
            self.add_offloaded(slot, forwarded, Some(now_ms));
        }
    }

    /// Makes the packets of a flow upcalls, and counts those that the kernel has forwarded.
    #[inline]
    pub(crate) fn end_offload(&self, slot: Slot) {
        let Some(offload) = &self.offload else { return };
        if offload.numbers(slot.number()).is_some() {
            let entry = self.entry(slot);
            let before = entry.load_tcp();
            let mut flow = before;
            self.take_over_numbers(slot, &mut flow);
            entry.store_tcp(&before, &flow);
        }
        if let Some(forwarded) = offload.remove(slot.number()) {
            self.add_offloaded(slot, forwarded, None);
        }
    }

    /// Takes over the numbers of the segments that the kernel has forwarded into the connection of a slot.
    #[inline]
    pub(crate) fn take_over_numbers(&self, slot: Slot, flow: &mut TcpFlow) {
        if let Some(offload) = &self.offload
            && let Some(numbers) = offload.numbers(slot.number())
        {
            flow.take_over(self.ends_as_sides(slot, numbers));
        }
    }

    /// Gives the kernel the numbers of a segment that a worker forwards, where they are other ones than before.
    #[inline]
    pub(crate) fn note_numbers(&self, slot: Slot, before: &TcpFlow, flow: &TcpFlow) {
        if let Some(offload) = &self.offload {
            let [from, to] = [before, flow].map(|flow| self.ends_as_sides(slot, flow.numbers()));
            offload.set_numbers(slot.number(), &from, &to);
        }
    }

    /// Values of the lower and the higher end as those of initiator and responder, or the other way round.
    #[inline]
    fn ends_as_sides<T>(&self, slot: Slot, [one, other]: [T; 2]) -> [T; 2] {
        let is_same = self.entry(slot).sender(true) == Side::Initiator;
        if is_same { [one, other] } else { [other, one] }
    }

    /// Packets and bytes that initiator and responder have sent, with those that the kernel has forwarded, and milliseconds since
    /// the last packet.
    pub(super) fn entry_counts(&self, slot: Slot, entry: &Entry, now_ms: u32) -> ([(u64, u64); 2], u32) {
        let (mut counts, mut idle_ms) = (entry.counts(), entry.idle_ms(now_ms));
        let Some(offload) = &self.offload else { return (counts, idle_ms) };
        for (is_low, Forwarded { packets, bytes, .. }) in
            [true, false].into_iter().zip(offload.peek(slot.number()))
        {
            let side = &mut counts[entry.sender(is_low) as usize];
            *side = (side.0 + packets, side.1 + bytes);
            idle_ms = if packets > 0 { 0 } else { idle_ms };
        }
        (counts, idle_ms)
    }

    /// Whether the kernel forwards packets of the flow in a slot.
    #[inline]
    pub(crate) fn is_offloaded(&self, slot: Slot) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.is_recorded(slot.number()))
    }

    /// The same after the caller has stored numbers: true if another worker that has recorded the flow meanwhile may not have seen
    /// them.
    #[inline]
    pub(crate) fn was_offloaded_meanwhile(&self, slot: Slot) -> bool {
        self.offload.as_ref().is_some_and(|offload| {
            // A worker that records a flow names the record first, and reads the numbers afterwards.
            fence(SeqCst);
            offload.is_recorded(slot.number())
        })
    }

    /// State of the flow in a slot: a connection whose third segment the kernel has forwarded is established.
    pub(crate) fn state_of(&self, slot: Slot) -> FlowState {
        let entry = self.entry(slot);
        let state = entry.state();
        let by_initiator = |offload: &Offload| {
            let is_low = entry.sender(true) == Side::Initiator;
            offload.peek(slot.number())[usize::from(!is_low)].packets > 0
        };
        match &self.offload {
            Some(offload) if state == FlowState::SynReceived && by_initiator(offload) => {
                FlowState::Established
            }
            _ => state,
        }
    }

    /// Adds packets to the counts of a flow. The acknowledgement of the responder's SYN has been among those of the initiator.
    #[inline(never)]
    fn add_offloaded(&self, slot: Slot, forwarded: [Forwarded; 2], now_ms: Option<u32>) {
        let entry = self.entry(slot);
        for (is_low, Forwarded { packets, bytes, .. }) in [true, false].into_iter().zip(forwarded) {
            if packets > 0 {
                entry.add_offloaded(is_low, ForwardCount { packets, bytes, last_seen_ms: 0 }, now_ms);
            }
            let is_initiator = entry.sender(is_low) == Side::Initiator;
            if packets > 0 && is_initiator && entry.state() == FlowState::SynReceived {
                entry.set_state(FlowState::SynReceived, FlowState::Established);
                self.on_state_change(slot, FlowState::SynReceived, FlowState::Established);
            }
        }
    }
}
