//! Stages that gave the packets of a captured batch their verdicts.

use super::disposition::Disposition;
use crate::limits::BATCH_FRAMES_MAX;

/// Notes on the packets of a batch.
pub(crate) struct StageNotes {
    is_on: bool,
    dispositions: [Disposition; BATCH_FRAMES_MAX],
    stages: [&'static str; BATCH_FRAMES_MAX],
    parsed: [bool; BATCH_FRAMES_MAX],
    new_flows: [bool; BATCH_FRAMES_MAX],
}

impl StageNotes {
    pub(super) fn new() -> StageNotes {
        StageNotes {
            is_on: false,
            dispositions: [Disposition::Pending; BATCH_FRAMES_MAX],
            stages: [""; BATCH_FRAMES_MAX],
            parsed: [false; BATCH_FRAMES_MAX],
            new_flows: [false; BATCH_FRAMES_MAX],
        }
    }

    /// Whether the batch is captured.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins the notes on a batch with these dispositions.
    pub(crate) fn begin(&mut self, dispositions: &[Disposition]) {
        self.is_on = true;
        self.dispositions[..dispositions.len()].copy_from_slice(dispositions);
        // A fragment may have its disposition already.
        self.stages.fill("fragments");
        self.parsed.fill(false);
        self.new_flows.fill(false);
    }

    /// Notes the packets whose dispositions `stage` has changed.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&mut self, stage: &'static str, dispositions: &[Disposition]) {
        for (i, disposition) in dispositions.iter().enumerate() {
            if *disposition != self.dispositions[i] {
                (self.dispositions[i], self.stages[i]) = (*disposition, stage);
            }
            // No packet has a later stage behind it that the parser has rejected.
            self.parsed[i] |= matches!(disposition, Disposition::Pending | Disposition::Held);
        }
    }

    /// Notes the packets of no known flow, which policy is to evaluate.
    #[cold]
    pub(crate) fn note_new_flows(&mut self, places: impl Iterator<Item = usize>) {
        places.for_each(|i| self.new_flows[i] = true);
    }

    /// Whether packet `i` was of no known flow, and policy evaluated it.
    pub(crate) fn is_new_flow(&self, i: usize) -> bool {
        self.new_flows[i]
    }

    /// Ends the notes.
    pub(crate) fn end(&mut self) {
        self.is_on = false;
    }

    /// Stage that gave packet `i` its disposition.
    pub(crate) fn stage_of(&self, i: usize) -> &'static str {
        self.stages[i]
    }

    /// Whether the headers of packet `i` were parsed.
    pub(crate) fn is_parsed(&self, i: usize) -> bool {
        self.parsed[i]
    }
}
