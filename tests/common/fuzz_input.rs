//! Inputs of fuzz targets: valid seeds with random edits. Random bytes alone reach only the first checks of a
//! parser.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bolero::TypeGenerator;
use serde::Serialize;

/// Longest time of a fuzz target in an ordinary run, whose number of inputs ends it before. The default of one second
/// leaves a loaded machine too few inputs.
pub(crate) const TIME_MAX: Duration = Duration::from_mins(2);
/// Most bytes that an edit writes. An input with more fails the first check of its parser.
const BYTES_MAX: usize = 4;

/// Edit of a seed.
#[derive(Debug, Clone, TypeGenerator)]
pub(crate) struct Edit {
    seed: u8,
    /// Bytes to write: nearness, place, value. Half of the places are among the first 64, the place of
    /// headers.
    bytes: Vec<(u8, u16, u8)>,
    more: More,
}

#[derive(Debug, Clone, TypeGenerator)]
enum More {
    /// Inserts bytes.
    Insert(u16, Vec<u8>),
    /// Truncates the input.
    End(u16),
    Nothing,
    NothingEither,
}

impl Edit {
    /// Applies the edit to the seed that it names.
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

/// Counter of accepted inputs. A target that accepts none tests the first check of its parser only.
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
