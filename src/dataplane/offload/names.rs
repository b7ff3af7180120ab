//! Names of records in buckets: by the hash of a flow's packets. A flow to a Service has one for each direction.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::Offload;
use super::flow::protocol_of;
use crate::xdp::offload::layout::{Bucket, Record, hash_of};

/// Names of a record: that of packets between its ends, and that of packets to its front end.
type Names = [Option<u64>; 2];

impl Offload {
    /// Names a record that is filled. Returns false, and does nothing, where a bucket has no way left.
    pub(super) fn name(&self, record: &Record, number: u32) -> bool {
        let names = self.hashes(record);
        let named = |hash: u64| {
            let word = name_of(hash, number);
            self.bucket(hash).ways.iter().any(|way| way.compare_exchange(0, word, SeqCst, Relaxed).is_ok())
        };
        let is_named = names.into_iter().flatten().all(named);
        if !is_named {
            self.unname(record, number);
        }
        is_named
    }

    /// Takes a record out of its buckets.
    pub(super) fn unname(&self, record: &Record, number: u32) {
        for hash in self.hashes(record).into_iter().flatten() {
            for way in &self.bucket(hash).ways {
                let _ = way.compare_exchange(name_of(hash, number), 0, SeqCst, Relaxed);
            }
        }
    }

    /// Whether a word of a bucket is a name of this record.
    pub(super) fn is_named_by(&self, record: &Record, number: u32, word: u64) -> bool {
        self.hashes(record).into_iter().flatten().any(|hash| word == name_of(hash, number))
    }

    fn hashes(&self, record: &Record) -> Names {
        let load = |words: &[AtomicU64; 2]| words.each_ref().map(|word| word.load(Relaxed));
        let addresses = record.addresses.each_ref().map(load);
        let head = record.head();
        let hash = |addresses, ports| hash_of(self.maps.seed, addresses, ports, protocol_of(&head).0);
        let front = head.client.map(|client| {
            let (mut addresses, mut ports) = (addresses, head.transport_ports);
            addresses[1 - client] = load(&record.front);
            ports[1 - client] = u16::from_be(record.front_port.load(Relaxed));
            hash(addresses, ports)
        });
        [Some(hash(addresses, head.transport_ports)), front]
    }

    pub(super) fn bucket(&self, hash: u64) -> &Bucket {
        &self.maps.buckets[hash as usize & (self.maps.buckets.len() - 1)]
    }
}

/// The word of a bucket that names a record.
fn name_of(hash: u64, number: u32) -> u64 {
    hash >> 32 << 32 | u64::from(number + 1)
}
