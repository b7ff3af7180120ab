//! Pseudo-random byte pattern from a seed, which shows a byte that is lost, repeated, reordered or changed.

use std::io::{self, Read, Write};

/// Bytes made, sent and compared at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// Endless sequence of pseudo-random bytes: `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
struct Pattern {
    state: u64,
}

impl Pattern {
    fn fill(&mut self, chunk: &mut [u8]) {
        for word in chunk.chunks_mut(8) {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
        }
    }
}

/// Sends the first `bytes` bytes of the pattern.
pub(super) fn send(mut to: impl Write, seed: u64, bytes: u64) -> io::Result<()> {
    let mut pattern = Pattern { state: seed };
    let mut chunk = [0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK_BYTES as u64) as usize;
        pattern.fill(&mut chunk[..now]);
        to.write_all(&chunk[..now])?;
        left -= now as u64;
    }
    to.flush()
}

/// Reads `bytes` bytes, and returns the position of the first one that differs from the pattern.
pub(super) fn receive(mut from: impl Read, seed: u64, bytes: u64) -> io::Result<Option<u64>> {
    let mut pattern = Pattern { state: seed };
    let (mut wanted, mut seen) = ([0; CHUNK_BYTES], [0; CHUNK_BYTES]);
    let mut done = 0;
    let mut differs = None;
    while done < bytes {
        let now = (bytes - done).min(CHUNK_BYTES as u64) as usize;
        from.read_exact(&mut seen[..now])?;
        pattern.fill(&mut wanted[..now]);
        let first = wanted[..now].iter().zip(&seen[..now]).position(|(wanted, seen)| wanted != seen);
        differs = differs.or(first.map(|at| done + at as u64));
        done += now as u64;
    }
    Ok(differs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(bytes: u64) -> Vec<u8> {
        let mut sent = vec![];
        send(&mut sent, 7, bytes).unwrap();
        sent
    }

    #[test]
    fn what_was_sent_is_recognised() {
        for bytes in [0, 1, 7, 8, CHUNK_BYTES as u64, 100_003] {
            assert_eq!(receive(&sent(bytes)[..], 7, bytes).unwrap(), None);
        }
    }

    #[test]
    fn one_changed_one_lost_and_one_foreign_byte_are_seen() {
        let mut bytes = sent(100_000);
        bytes[77_777] ^= 1;
        assert_eq!(receive(&bytes[..], 7, 100_000).unwrap(), Some(77_777));
        let mut bytes = sent(100_000);
        bytes.remove(50_000);
        assert!(receive(&bytes[..], 7, 99_999).unwrap().is_some_and(|at| at >= 50_000));
        assert!(receive(&sent(100)[..], 8, 100).unwrap().is_some());
        assert_eq!(receive(&sent(99)[..], 7, 100).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
