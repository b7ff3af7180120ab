//! What became of the first fragment of a datagram, and so becomes of the later ones.

use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::ids::Generation;
use crate::net::flow::Protocol;

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstVerdict {
    /// It has not come.
    Unknown,
    /// It may pass, as of this generation, as part of this flow.
    Allowed(Generation, Flow),
    /// It was dropped.
    Denied(DropReason),
}

impl FirstVerdict {
    /// Judges the flow again where another generation has policy_epoch it.
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

/// What one worker tells the others of a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstRecord {
    /// What became of it.
    pub first: FirstVerdict,
    /// Unit of eight bytes behind its last.
    pub end_unit: usize,
}

const ALLOWED: u64 = 1;
const DENIED: u64 = 2;

impl FirstRecord {
    /// In 64 bits, from the low ones up: destination port, protocol, kind, whether the flow was opened by the
    /// datagram's sender, reason, length. And the generation.
    pub(super) fn pack(&self, key: &Key) -> (u64, u32) {
        let to = (self.end_unit as u64) << 48;
        match self.first {
            FirstVerdict::Unknown => (to, 0),
            FirstVerdict::Denied(reason) => (to | DENIED << 24 | (reason as u64) << 32, 0),
            FirstVerdict::Allowed(generation, flow) => {
                let by_sender = u64::from(flow.src == key.low()) << 26;
                let flow = u64::from(flow.dst_port) | u64::from(flow.protocol.0) << 16;
                (to | ALLOWED << 24 | by_sender | flow, generation.0)
            }
        }
    }

    pub(super) fn unpack(key: &Key, word: u64, generation: u32) -> FirstRecord {
        let by_sender = word >> 26 & 1 != 0;
        let (src, dst) = if by_sender { (key.low(), key.high()) } else { (key.high(), key.low()) };
        let reason = DropReason::ALL.get((word >> 32 & 0xff) as usize);
        let first = match (word >> 24 & 3, reason) {
            (ALLOWED, _) => {
                let protocol = Protocol((word >> 16) as u8);
                FirstVerdict::Allowed(
                    Generation(generation),
                    Flow { src, dst, protocol, dst_port: word as u16 },
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
    fn what_is_told_survives_packing() {
        let key = Key::new(10, 20, 3);
        let protocol = Protocol::UDP;
        let flow = |src, dst| Flow { src, dst, protocol, dst_port: 65_535 };
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
