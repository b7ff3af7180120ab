//! Something that is nearly right: bytes at random come to the deeper ends of no parser.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bolero::TypeGenerator;
use serde::Serialize;

/// Bytes that an edit writes at most: with more, nothing gets past the first check.
const BYTES_MAX: usize = 4;

/// What is done to a seed.
#[derive(Debug, Clone, TypeGenerator)]
pub(crate) struct Edit {
    seed: u8,
    /// Bytes written, and where. Half of the places are among the first 64, where headers are.
    bytes: Vec<(u8, u16, u8)>,
    more: More,
}

#[derive(Debug, Clone, TypeGenerator)]
enum More {
    /// Bytes are put in.
    Insert(u16, Vec<u8>),
    /// It ends early.
    End(u16),
    Nothing,
    NothingEither,
}

impl Edit {
    /// The seed that it names, edited.
    pub(crate) fn of(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[usize::from(self.seed) % seeds.len()].clone();
        for &(near, place, byte) in self.bytes.iter().take(BYTES_MAX) {
            let len = if near % 2 == 0 { bytes.len().min(64) } else { bytes.len() };
            bytes[usize::from(place) % len] = byte;
        }
        match &self.more {
            More::Insert(place, inserted) => {
                let place = usize::from(*place) % bytes.len();
                bytes.splice(place..place, inserted.iter().copied());
            }
            More::End(end) => bytes.truncate(usize::from(*end) % (bytes.len() + 1)),
            More::Nothing | More::NothingEither => {}
        }
        bytes
    }
}

/// How many inputs were taken: were it none, the target would test the first check of a parser only.
#[derive(Default)]
pub(crate) struct Taken(AtomicU32);

impl Taken {
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn check(&self) {
        assert!(self.0.load(Relaxed) > 0, "no input was taken");
    }
}

pub(crate) fn json_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}
