use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::entry::{Entry, QuotaOwner};
use super::table::{BUCKET_SLOTS, FREE, TOMBSTONE, TagMatch};
use super::tcp::TcpSide;
use super::timeouts::timeouts_ms;
use super::{
    Conntrack, FlowState, InsertOutcome, Key, NewFlow, Outcome, QuotaClass, Segment, Side, Slot, TcpFlow,
    WorkerState,
};
use crate::dataplane::{ConntrackSettings, Timeouts};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::RETIRED_FLOWS_MAX;
use crate::net::address::from_v4;
use crate::net::flow::Protocol;
use crate::net::tcp::Flags;

mod entries;
mod eviction;
mod insert;
mod map_model;
mod reclamation;
mod reference_model;

fn settings(flows_max: usize, pod_quota_percent: u8) -> ConntrackSettings {
    ConntrackSettings { flows_max, pod_quota_percent, ..ConntrackSettings::default() }
}

/// The key of the UDP flow from 10.0.0.1 with this source port.
fn key(port: u32) -> Key {
    let high = from_v4(0x0a00_0002 + (port >> 16));
    Key::new(from_v4(0x0a00_0001), high, word(port as u16, Protocol::UDP))
}

fn word(port: u16, protocol: Protocol) -> u64 {
    u64::from(port) | 53 << 16 | u64::from(protocol.0) << 32
}

fn flow(owner_port: u16, state: FlowState) -> NewFlow {
    NewFlow {
        opened_by_low: true,
        by_node_socket: false,
        pods: [true, false],
        owner_port: PortId(owner_port),
        policy_epoch: Generation(1),
        state,
        tcp: None,
        virtual_end: None,
        hops: [None; 2],
    }
}

/// A table and its workers.
struct Fixture {
    table: Conntrack,
    workers: Vec<WorkerState>,
}

impl Fixture {
    fn new(settings: &ConntrackSettings, workers: usize) -> Fixture {
        let worker_state = |worker| WorkerState::new(WorkerId(worker as u16), workers);
        let mut fixture = Fixture {
            table: Conntrack::new(settings, false).unwrap(),
            workers: (0..workers).map(worker_state).collect(),
        };
        fixture.start_batches();
        fixture
    }

    fn start_batch(&mut self, worker: usize) {
        self.table.start_batch(&mut self.workers[worker]);
    }

    /// Starts batches of every worker until all removed slots are free.
    fn start_batches(&mut self) {
        for _ in 0..4 {
            (0..self.workers.len()).for_each(|worker| self.start_batch(worker));
        }
    }

    /// Inserts a flow. A flow that begins in a state of answered flows becomes assured, as if an answer had
    /// come.
    fn insert(&mut self, key: &Key, flow: &NewFlow, now_ms: u32) -> InsertOutcome {
        let expected = self.match_tags(key);
        let outcome = self.table.insert(key, self.table.hash(key), flow, now_ms, &mut self.workers[0]);
        if let InsertOutcome::Inserted(slot) = outcome {
            if let TagMatch::None(place) = expected {
                assert_eq!(slot, place, "the insertion takes another slot than the lookup loads");
            }
            self.table.on_state_change(slot, FlowState::SynSent, flow.state);
        }
        outcome
    }

    /// Number of assured and of unassured flows of a port.
    fn flows_of(&self, port: u16) -> [u32; 2] {
        [QuotaClass::Assured, QuotaClass::Unassured].map(|class| self.table.flows_of(PortId(port), class))
    }

    /// The match of tags, as a batch lookup makes it.
    fn match_tags(&self, key: &Key) -> TagMatch {
        let hash = self.table.hash(key);
        match self.table.match_tags(hash, true) {
            TagMatch::SecondBucket => self.table.match_second_bucket(hash),
            known => known,
        }
    }

    fn find(&self, key: &Key) -> Option<Slot> {
        let hash = self.table.hash(key);
        let found = match self.match_tags(key) {
            TagMatch::Slot(slot) => self.table.find(key, true, slot),
            TagMatch::None(_) => None,
            TagMatch::SecondBucket => unreachable!("both buckets have been asked"),
        };
        assert_eq!(found, self.table.look_up(key, hash));
        let at_primary_slot = self.table.at_primary_slot(key, false);
        if let Some(primary_slot) = at_primary_slot {
            assert_eq!(
                (found, self.match_tags(key)),
                (at_primary_slot, TagMatch::Slot(primary_slot)),
                "tags are compared from the primary slot on"
            );
        }
        found
    }

    /// Inserts twice as many flows as there are slots, in this state. Returns the keys of those that the
    /// table then has.
    fn fill(&mut self, flows_max: usize, state: FlowState) -> Vec<Key> {
        let keys: Vec<Key> = (0..2 * flows_max as u32).map(key).collect();
        for key in &keys {
            self.insert(key, &flow(0, state), 0);
            self.start_batches();
        }
        let keys: Vec<Key> = keys.into_iter().filter(|key| self.find(key).is_some()).collect();
        assert_eq!(keys.len(), self.table.len());
        keys
    }
}
