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

/// Edit of a document with one value a line, YAML or JSON. Few parsers accept edited bytes; edited lines keep the syntax, and
/// reach the code that reads the values.
#[derive(Debug, Clone, TypeGenerator)]
pub(crate) enum DocumentEdit {
    Bytes(Edit),
    Lines { seed: u8, edits: [LineEdit; LINES] },
}

/// Edits of lines in one document.
const LINES: usize = 2;

/// Edit of lines, by their numbers modulo the length of the document.
#[derive(Debug, Clone, TypeGenerator)]
pub(crate) enum LineEdit {
    Remove(u16),
    /// Inserts a copy of the first line before the second.
    Repeat(u16, u16),
    /// Exchanges the values behind the last colons of two lines.
    Exchange(u16, u16),
    /// Writes a printable character.
    Write(u16, u16, u8),
    Nothing,
}

impl DocumentEdit {
    /// Applies the edit to the seed that it names.
    pub(crate) fn of(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Self::Bytes(edit) => edit.of(seeds),
            Self::Lines { seed, edits } => {
                let text = std::str::from_utf8(&seeds[usize::from(*seed) % seeds.len()])
                    .expect("documents are text");
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                edits.iter().for_each(|edit| edit.apply(&mut lines));
                lines.join("\n").into_bytes()
            }
        }
    }
}

impl LineEdit {
    fn apply(&self, lines: &mut Vec<String>) {
        let at = |number: u16| usize::from(number) % lines.len();
        match *self {
            Self::Remove(line) => {
                lines.remove(at(line));
            }
            Self::Repeat(line, before) => lines.insert(at(before), lines[at(line)].clone()),
            Self::Exchange(one, other) => {
                let (one, other) = (at(one), at(other));
                let value =
                    |line: &str| line.rfind(": ").map(|colon| (colon + 2, line.trim_end_matches(',').len()));
                let (Some((a, b)), Some((c, d))) = (value(&lines[one]), value(&lines[other])) else { return };
                if one != other {
                    let (former, new) = (lines[one][a..b].to_owned(), lines[other][c..d].to_owned());
                    lines[one].replace_range(a..b, &new);
                    lines[other].replace_range(c..d, &former);
                }
            }
            Self::Write(line, place, character) => {
                let line = at(line);
                if lines[line].is_ascii() && !lines[line].is_empty() {
                    let place = usize::from(place) % lines[line].len();
                    let printable = char::from(b' ' + character % 95);
                    lines[line].replace_range(place..=place, printable.encode_utf8(&mut [0; 4]));
                }
            }
            Self::Nothing => {}
        }
    }
}

/// Counter of accepted inputs. A target that accepts few tests the first checks of its parser only.
#[derive(Default)]
pub(crate) struct Accepted(AtomicU32);

impl Accepted {
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Asserts that this many inputs were accepted. A `least` far below the mean of a run never fails by chance.
    pub(crate) fn check(&self, least: u32) {
        let accepted = self.0.load(Relaxed);

        assert!(accepted >= least, "{accepted} inputs were accepted, fewer than {least}");
    }
}

/// JSON with one value a line.
pub(crate) fn json_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap()
}
