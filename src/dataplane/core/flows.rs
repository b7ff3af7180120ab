//! Flows of the table for the control side: the walk over all of them, and the end of some.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;

use super::Core;
use crate::dataplane::conntrack::{Conntrack, Entry, FlowState, FrontEnd, Key, QuotaClass, Side, Slot};
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::masquerade::MasqueradeView;
use crate::dataplane::stats::FlowEventQueue;
use crate::dataplane::worker::mailbox::{Command, SlotAndKey};
use crate::dataplane::{EndedFlow, EndedFlows, FlowCount, FlowCounters, FlowInfo, FlowsLeft, path};
use crate::ids::WorkerId;
use crate::limits::ENDED_FLOWS_WAITING_MAX;
use crate::net::address::unpack;
use crate::net::flow::FlowKey;
use crate::tables::RuleOrigin;

/// Flows that a worker ends between two batches.
const FLOWS_ENDED_AT_ONCE: usize = 256;
/// Interval at which a worker is asked again that has retired as many flows as it may.
const RETRY: Duration = Duration::from_micros(200);

/// Names of all states of flows.
pub fn flow_states() -> impl Iterator<Item = &'static str> {
    FlowState::ALL.iter().map(|state| state.name())
}

/// Whether a flow in the state of this name has ended: none of its ends waits for the other.
pub fn flow_state_is_final(name: &str) -> bool {
    let state = FlowState::ALL.iter().find(|state| state.name() == name);
    state.is_some_and(|state| state.class() == QuotaClass::Ended)
}

impl Core {
    /// Passes all flows to `see`, in no order and without the origins of decisions, until it returns false. Workers are
    /// not disturbed: flows that come and go meanwhile may be missed.
    pub(in crate::dataplane) fn flows(&self, now_ms: u32, see: &mut dyn FnMut(FlowInfo) -> bool) {
        let conntrack = &self.shared.conntrack;
        let view = self.shared.snapshot.current().masquerade().cloned();
        conntrack.for_each(|slot, key, entry| {
            let [service, masquerade] = front_ends(conntrack, slot, key, entry, view.as_deref());
            see(FlowInfo { service, masquerade, ..info(conntrack, slot, key, entry, now_ms) })
        });
    }

    /// Origins of the egress and ingress decision on a flow under the tables in force. One that the table has no more is
    /// described as a new one.
    pub(in crate::dataplane) fn flow_origins(&self, key: &FlowKey) -> [Option<RuleOrigin>; 2] {
        let snapshot = self.shared.snapshot.current();
        let flow = path::new_flow(&snapshot, key);
        let by_node_socket = match self.entry_of(key) {
            Some(entry) => entry.flow_word(true).is_by_node_socket(),
            None => flow.by_node_socket,
        };
        snapshot.origins(&Flow { by_node_socket, ..flow })
    }

    /// Entry of a flow, given its original direction.
    fn entry_of(&self, flow: &FlowKey) -> Option<&Entry> {
        let conntrack = &self.shared.conntrack;
        let (key, _) = Key::of_flow(flow);
        conntrack.look_up(&key, conntrack.hash(&key)).map(|slot| conntrack.entry(slot))
    }

    /// Ends the flows for which `wanted` returns true: workers do, each for a part. Calls `run` with each worker that has
    /// got a part. Gives up when a worker does not take its part within `timeout`.
    pub(in crate::dataplane) fn end_flows(
        &self,
        now_ms: u32,
        wanted: &mut dyn FnMut(&FlowInfo) -> bool,
        timeout: Duration,
        run: &mut dyn FnMut(usize),
    ) -> Result<u64, FlowsLeft> {
        let conntrack = &self.shared.conntrack;
        let mut ending = Ending { core: self, timeout, run, worker: 0, ended: 0 };
        let (mut flows, mut result) = (Vec::with_capacity(FLOWS_ENDED_AT_ONCE), Ok(()));
        conntrack.for_each(|slot, key, entry| {
            if wanted(&info(conntrack, slot, key, entry, now_ms)) {
                flows.push((slot, *key));
            }
            if flows.len() == FLOWS_ENDED_AT_ONCE {
                result = ending.end(&mut flows);
            }
            result.is_ok()
        });
        result.and_then(|()| ending.end(&mut flows))?;
        Ok(ending.ended)
    }
}

impl FlowCounters for Core {
    fn read(&self, see: &mut dyn FnMut(&FlowCount) -> bool) {
        let (conntrack, now_ms) = (&self.shared.conntrack, self.clock_ms());
        conntrack.for_each(|slot, key, entry| {
            let port = entry.quota_owner().map(|owner| owner.port).unwrap_or_default();
            let count = || conntrack.count_of(slot, key, port, now_ms);
            let flow = count();
            // Another flow may have taken the slot while the counters were read.
            let is_same = entry.key() == Some(*key) && count().opened_ms == flow.opened_ms;
            !is_same || see(&flow)
        });
    }

    fn follow_ended(&self, is_followed: bool) {
        self.shared.flow_events.follow_ended(is_followed);
    }

    fn take_ended(&self) -> EndedFlows {
        let queues = || self.shared.flow_events.all();
        let waiting = |queue: &'_ FlowEventQueue| -> Vec<EndedFlow> {
            (0..ENDED_FLOWS_WAITING_MAX).map_while(|_| queue.take_ended()).collect()
        };
        EndedFlows {
            flows: queues().flat_map(waiting).collect(),
            now_ms: self.clock_ms(),
            lost: queues().map(FlowEventQueue::lost_ended).sum(),
        }
    }
}

/// End of many flows by the workers.
struct Ending<'a> {
    core: &'a Core,
    timeout: Duration,
    run: &'a mut dyn FnMut(usize),
    /// Worker that gets the next part.
    worker: usize,
    ended: u64,
}

impl Ending<'_> {
    /// Has workers end these flows, until the list is empty.
    fn end(&mut self, flows: &mut Vec<SlotAndKey>) -> Result<(), FlowsLeft> {
        let deadline = Instant::now() + self.timeout;
        while !flows.is_empty() {
            let worker = self.worker;
            self.worker = (worker + 1) % self.core.workers();
            let left = FlowsLeft { ended: self.ended, worker: WorkerId(worker as u16) };
            let (reply, answer) = bounded(1);
            // A worker that takes no command has many of them waiting.
            let sent = self.core.shared.mailboxes[worker].send(Command::End(std::mem::take(flows), reply));
            if let Err(Command::End(back, _)) = sent {
                *flows = back;
            } else {
                (self.run)(worker);
                let (ended, rest) = answer.recv_timeout(self.timeout).map_err(|_| left.clone())?;
                self.ended += ended as u64;
                *flows = rest;
            }
            if !flows.is_empty() {
                if Instant::now() > deadline {
                    return Err(left);
                }
                std::thread::sleep(RETRY);
            }
        }
        Ok(())
    }
}

/// Describes the flow in a slot.
fn info(conntrack: &Conntrack, slot: Slot, key: &Key, entry: &Entry, now_ms: u32) -> FlowInfo {
    let ([(packets, bytes), (reply_packets, reply_bytes)], idle_ms) = conntrack.counts(slot, now_ms);
    let owner = entry.quota_owner();
    FlowInfo {
        key: key.flow(entry.sender(true) == Side::Initiator),
        state: conntrack.state_of(slot).name().into(),
        offloaded: conntrack.is_offloaded(slot),
        assured: owner.is_some_and(|owner| owner.class == QuotaClass::Assured),
        port: owner.map(|owner| owner.port).unwrap_or_default(),
        generation: entry.policy_epoch(),
        age_ms: conntrack.age_ms(slot, now_ms).map(u64::from),
        idle_ms: idle_ms.into(),
        packets,
        bytes,
        reply_packets,
        reply_bytes,
        egress: None,
        ingress: None,
        service: None,
        masquerade: None,
    }
}

/// Virtual address that the initiator of a flow has sent to, and external end that the responder sees, where there are such.
fn front_ends(
    conntrack: &Conntrack,
    slot: Slot,
    key: &Key,
    entry: &Entry,
    masquerade: Option<&MasqueradeView>,
) -> [Option<SocketAddr>; 2] {
    let FrontEnd { address, port, external_port, .. } = conntrack.virtual_end(slot);
    // Another flow may have taken the slot while the address was read.
    if !entry.flow_word(true).is_translated() || entry.key() != Some(*key) {
        return [None, None];
    }
    // A flow to no virtual address may be translated for its source.
    let is_virtual = [(key.low(), key.low_port()), (key.high(), key.high_port())]
        .iter()
        .all(|end| *end != (address, port));
    let external = masquerade.filter(|_| external_port != 0).and_then(|view| view.address(key.is_v4()));
    [
        is_virtual.then(|| SocketAddr::new(unpack(address), port)),
        external.map(|address| SocketAddr::new(unpack(address), external_port)),
    ]
}
