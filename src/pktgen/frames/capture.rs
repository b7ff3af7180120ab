//! Reading recordings in the classic format of libpcap (`pcap-savefile(5)`): either byte order, micro- or nanoseconds.

use std::fs;
use std::path::Path;

use crate::limits::ONE_FRAME_BYTES_MAX;
use crate::pktgen::PktgenError;

/// Largest file that is read: its frames are kept in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the file's header, and of a frame's.
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;

/// A recording of Ethernet frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// All frames' bytes, one after the other.
    bytes: Vec<u8>,
    /// By frame, where it ends in these.
    ends: Vec<usize>,
    /// By frame, when it was recorded after the first one, nanoseconds; never falling.
    times: Vec<u64>,
}

/// How the file writes numbers.
#[derive(Clone, Copy)]
struct Format {
    big: bool,
    /// Nanoseconds of the smaller unit of time.
    fraction_ns: u64,
}

impl Capture {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Capture, PktgenError> {
        let wrong = |reason: String| PktgenError::Capture { file: path.display().to_string(), reason };
        let size = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
        if size > FILE_BYTES_MAX {
            return Err(wrong(format!(
                "{size} bytes are more than {FILE_BYTES_MAX}: split it (`editcap -c`)"
            )));
        }
        let file = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        Capture::read(&file).map_err(wrong)
    }

    /// Reads a file's bytes; or says what is wrong with them.
    pub fn read(file: &[u8]) -> Result<Capture, String> {
        let header: &[u8; HEADER_BYTES] =
            file.first_chunk().ok_or("the file is shorter than the header of a recording")?;
        let format = Format::of(header)?;
        let link = format.number(header, 20) & 0x0fff_ffff;
        if link != ETHERNET {
            return Err(format!("its frames are not Ethernet frames (link type {link})"));
        }
        let mut recording = Capture { bytes: Vec::new(), ends: Vec::new(), times: Vec::new() };
        let (mut rest, mut first) = (&file[HEADER_BYTES..], None);
        while !rest.is_empty() {
            let number = recording.ends.len() + 1;
            let (time, frame, behind) =
                format.record(rest).map_err(|why| format!("frame {number}: {why}"))?;
            let since = time.saturating_sub(*first.get_or_insert(time));
            recording.times.push(since.max(recording.times.last().copied().unwrap_or(0)));
            recording.bytes.extend_from_slice(frame);
            recording.ends.push(recording.bytes.len());
            rest = behind;
        }
        if recording.ends.is_empty() { Err("it has no frame".to_owned()) } else { Ok(recording) }
    }

    /// Number of frames: one at least.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Frame `number`, counted from 0.
    #[inline]
    pub(crate) fn frame(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[start..self.ends[number]]
    }

    /// The same, to be changed.
    pub(crate) fn frame_mut(&mut self, number: usize) -> &mut [u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &mut self.bytes[start..self.ends[number]]
    }

    /// By frame, nanoseconds after the first one.
    pub(crate) fn times(&self) -> &[u64] {
        &self.times
    }

    /// Bytes of the largest frame.
    pub(crate) fn largest(&self) -> usize {
        (0..self.len()).map(|number| self.frame(number).len()).max().unwrap_or(0)
    }
}

impl Format {
    fn of(header: &[u8; HEADER_BYTES]) -> Result<Format, String> {
        let [a, b, c, d, ..] = *header;
        let format = |big, fraction_ns| Ok(Format { big, fraction_ns });
        match [a, b, c, d] {
            [0xa1, 0xb2, 0xc3, 0xd4] => format(true, 1000),
            [0xd4, 0xc3, 0xb2, 0xa1] => format(false, 1000),
            [0xa1, 0xb2, 0x3c, 0x4d] => format(true, 1),
            [0x4d, 0x3c, 0xb2, 0xa1] => format(false, 1),
            [0x0a, 0x0d, 0x0d, 0x0a] => {
                Err("it is a pcapng file: `editcap -F pcap` makes a classic one of it".to_owned())
            }
            magic => Err(format!("it is no recording of libpcap (it begins with {magic:02x?})")),
        }
    }

    fn number(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    /// The first frame of `rest`: when, nanoseconds; its bytes; and what follows it.
    fn record(self, rest: &[u8]) -> Result<(u64, &[u8], &[u8]), String> {
        let header: &[u8; RECORD_BYTES] = rest.first_chunk().ok_or("the file ends within its header")?;
        let (seconds, fraction) = (u64::from(self.number(header, 0)), u64::from(self.number(header, 4)));
        let (kept, was) = (self.number(header, 8) as usize, self.number(header, 12) as usize);
        if kept < was {
            return Err(format!("only {kept} of its {was} bytes were recorded (`tcpdump -s0` keeps all)"));
        }
        if kept > ONE_FRAME_BYTES_MAX {
            return Err(format!("its {kept} bytes are more than the {ONE_FRAME_BYTES_MAX} that can be sent"));
        }
        if kept < crate::net::ethernet::HEADER_BYTES {
            return Err(format!("its {kept} bytes are no Ethernet header"));
        }
        let body = &rest[RECORD_BYTES..];
        let (frame, behind) = body.split_at_checked(kept).ok_or("the file ends within it")?;
        Ok((seconds * 1_000_000_000 + fraction * self.fraction_ns, frame, behind))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file with these frames: time in nanoseconds, bytes.
    pub(crate) fn file(big: bool, nanoseconds: bool, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let number = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        let mut file = [number(magic), version, [0; 4], [0; 4], number(65535), number(ETHERNET)].concat();
        for (time, bytes) in frames {
            let fraction = (time % 1_000_000_000) as u32 / if nanoseconds { 1 } else { 1000 };
            let length = number(bytes.len() as u32);
            file.extend([number((time / 1_000_000_000) as u32), number(fraction), length, length].concat());
            file.extend(bytes);
        }
        file
    }

    fn frames() -> Vec<(u64, Vec<u8>)> {
        vec![
            (1_700_000_000_999_999_000, vec![1; 60]),
            (1_700_000_001_000_001_000, vec![2; 1514]),
            (1_700_000_000_000_000_000, vec![3; 14]),
        ]
    }

    #[test]
    fn all_four_forms_are_read_alike_and_time_never_falls() {
        for (big, nanoseconds) in [(true, true), (true, false), (false, true), (false, false)] {
            let recording = Capture::read(&file(big, nanoseconds, &frames())).unwrap();
            assert_eq!((recording.len(), recording.largest()), (3, 1514));
            assert_eq!(recording.times(), [0, 2000, 2000]);
            for (number, (_, bytes)) in frames().iter().enumerate() {
                assert_eq!(recording.frame(number), bytes);
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused_or_ends_between_two_frames() {
        let whole = file(false, false, &frames());
        for length in 0..whole.len() {
            match Capture::read(&whole[..length]) {
                Ok(recording) => {
                    assert!([24 + 76, 24 + 76 + 1530].contains(&length), "{length}: {recording:?}");
                }
                Err(reason) => assert!(!reason.is_empty()),
            }
        }
    }

    #[test]
    fn what_cannot_be_sent_is_named_with_its_frame() {
        let refusal =
            |frame: Vec<u8>| Capture::read(&file(true, true, &[(0, vec![0; 60]), (1, frame)])).unwrap_err();
        assert!(refusal(vec![0; 13]).starts_with("frame 2: "));
        assert!(refusal(vec![0; ONE_FRAME_BYTES_MAX + 1]).starts_with("frame 2: "));
        let mut cut = file(true, true, &[(0, vec![0; 60])]);
        cut[24 + 15] += 1;
        assert!(Capture::read(&cut).unwrap_err().contains("only 60 of its 61 bytes"));
        let mut other = file(true, true, &[(0, vec![0; 60])]);
        other[23] = 101;
        assert!(Capture::read(&other).unwrap_err().contains("link type 101"));
        assert!(Capture::read(&[0x0a; 24]).is_err());
    }
}
