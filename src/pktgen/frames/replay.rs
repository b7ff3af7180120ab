//! Replay of a capture.

use std::sync::Arc;

use crate::net::mac::Mac;
use crate::pktgen::frames::Source;
use crate::pktgen::frames::capture::Capture;

/// A capture to be sent.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Frames.
    pub recording: Arc<Capture>,
    /// Rounds through the capture; 0 for as many as there is time for.
    pub rounds: u64,
}

impl Replay {
    /// Prepares a replay, with these Ethernet addresses in place of the captured ones where they are given.
    pub fn new(mut recording: Capture, src: Option<Mac>, dst: Option<Mac>, rounds: u64) -> Replay {
        for number in 0..recording.len() {
            let frame = recording.frame_mut(number);
            if let Some(Mac(mac)) = dst {
                frame[..6].copy_from_slice(&mac);
            }
            if let Some(Mac(mac)) = src {
                frame[6..12].copy_from_slice(&mac);
            }
        }
        Replay { recording: Arc::new(recording), rounds }
    }

    /// Counts the frames of all rounds.
    pub(crate) fn frames(&self) -> u64 {
        if self.rounds == 0 { u64::MAX } else { self.rounds.saturating_mul(self.recording.len() as u64) }
    }
}

/// Source of the frames of a capture, round after round. Each trial begins with the first frame.
#[derive(Debug)]
pub(crate) struct Replayed {
    recording: Arc<Capture>,
    at: usize,
}

impl Replayed {
    pub(crate) fn new(replay: &Replay) -> Replayed {
        Replayed { recording: replay.recording.clone(), at: 0 }
    }
}

impl Source for Replayed {
    #[inline]
    fn next(&mut self, _now_ns: u64) -> &[u8] {
        let at = self.at;
        self.at = if at + 1 == self.recording.len() { 0 } else { at + 1 };
        self.recording.frame(at)
    }

    fn start(&mut self, _now_ns: u64) {
        self.at = 0;
    }
}
