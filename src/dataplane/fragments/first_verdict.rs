//! Verdict on the first fragment of a datagram, which holds for the later ones, and its form in the shared
//! table.

use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::ids::Generation;
use crate::net::flow::Protocol;

/// Verdict on a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstVerdict {
    /// The fragment has not come.
    Unknown,
    /// This generation has allowed it, as part of this flow.
    Allowed(Generation, Flow),
    /// It was dropped.
    Denied(DropReason),
}

impl FirstVerdict {
    /// Evaluates the flow again where an earlier generation has evaluated it.
    pub(super) fn revalidate(&mut self, snapshot: &Snapshot, worker: usize) {
        let FirstVerdict::Allowed(policy_epoch, flow) = self else { return };
        if *policy_epoch >= snapshot.generation {
            return;
        }
        let reason = match (snapshot.port_of_address(flow.src), snapshot.port_of_address(flow.dst)) {
            (Some((_, from)), Some((_, to))) => snapshot.evaluate(flow, from, to, Some(worker)),
            _ => Some(DropReason::NoRoute),
        };
        match reason {
            None => *policy_epoch = snapshot.generation,
            Some(reason) => *self = FirstVerdict::Denied(reason),
        }
    }
}

/// Record of a first fragment that one worker publishes for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstRecord {
    /// The verdict on it.
    pub first: FirstVerdict,
    /// The unit of eight bytes behind its last one.
    pub end_unit: usize,
}

const ALLOWED: u64 = 1;
const DENIED: u64 = 2;

impl FirstRecord {
    /// Packs the record into 64 bits and the generation. From the low bits up: destination port, 16 bits;
    /// protocol, 8; kind, 2; whether the datagram's sender opened the flow, at bit 26; whether a socket of
    /// the node did, at bit 27; drop reason, 8 bits from bit 32; end unit, 16.
    pub(super) fn pack(&self, key: &Key) -> (u64, u32) {
        let to = (self.end_unit as u64) << 48;
        match self.first {
            FirstVerdict::Unknown => (to, 0),
            FirstVerdict::Denied(reason) => (to | DENIED << 24 | (reason as u64) << 32, 0),
            FirstVerdict::Allowed(generation, flow) => {
                let by_sender = u64::from(flow.src == key.low()) << 26;
                let by_node_socket = u64::from(flow.by_node_socket) << 27;
                let flow = u64::from(flow.dst_port) | u64::from(flow.protocol.0) << 16;
                (to | ALLOWED << 24 | by_sender | by_node_socket | flow, generation.0)
            }
        }
    }

    /// The record in the words of [`FirstRecord::pack`], for a datagram with this key.
    pub(super) fn unpack(key: &Key, word: u64, generation: u32) -> FirstRecord {
        let by_sender = word >> 26 & 1 != 0;
        let (src, dst) = if by_sender { (key.low(), key.high()) } else { (key.high(), key.low()) };
        let reason = DropReason::ALL.get((word >> 32 & 0xff) as usize);
        let first = match (word >> 24 & 3, reason) {
            (ALLOWED, _) => {
                let protocol = Protocol((word >> 16) as u8);
                FirstVerdict::Allowed(
                    Generation(generation),
                    Flow { src, dst, protocol, dst_port: word as u16, by_node_socket: word >> 27 & 1 != 0 },
                )
            }
            (DENIED, Some(reason)) => FirstVerdict::Denied(*reason),
            _ => FirstVerdict::Unknown,
        };
        FirstRecord { first, end_unit: (word >> 48) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_packing() {
        let key = Key::new(10, 20, 3);
        let protocol = Protocol::UDP;
        let flow = |src, dst| Flow { src, dst, protocol, dst_port: 65_535, by_node_socket: src < dst };
        let first_fragments = [
            FirstVerdict::Unknown,
            FirstVerdict::Allowed(Generation(u32::MAX), flow(10, 20)),
            FirstVerdict::Allowed(Generation(1), flow(20, 10)),
            FirstVerdict::Denied(DropReason::PortDown),
        ];
        for first in first_fragments {
            let record = FirstRecord { first, end_unit: 8191 };
            let (word, generation) = record.pack(&key);
            assert_eq!(FirstRecord::unpack(&key, word, generation), record);
        }
    }
}
