//! Captures of Ethernet frames, read from pcap files (pcap-savefile(5)) and pcapng files.

use std::fs;
use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapParser, PcapTsResolution};
use pcap_file::pcapng::{Block, PcapNgParser};

use crate::limits::ONE_FRAME_BYTES_MAX;
use crate::net::ethernet;
use crate::pktgen::PktgenError;

/// Largest file that is read: its frames are kept in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Type of a pcapng section header block, with which the file begins.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A capture of Ethernet frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// All frames' bytes, one after the other.
    bytes: Vec<u8>,
    /// End of each frame in these.
    ends: Vec<usize>,
    /// Time of each frame since the first one, nanoseconds; never falling.
    times: Vec<u64>,
    /// Time of the first frame, nanoseconds since the epoch.
    first_ns: u64,
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

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// A sentence that names the frame, counted from 1, and what is wrong with it.
    pub fn read(file: &[u8]) -> Result<Capture, String> {
        let capture = if file.starts_with(&PCAPNG_MAGIC) { read_pcapng(file)? } else { read_pcap(file)? };
        if capture.ends.is_empty() { Err("it has no frame".to_owned()) } else { Ok(capture) }
    }

    /// Adds a frame that was captured so many nanoseconds after the epoch, and was `length` bytes long on its
    /// link.
    fn add(&mut self, time_ns: u64, frame: &[u8], length: u32) -> Result<(), String> {
        let wrong = |reason: String| Err(format!("frame {}: {reason}", self.ends.len() + 1));
        let kept = frame.len();
        if kept < length as usize {
            return wrong(format!(
                "only {kept} of its {length} bytes were recorded (`tcpdump -s0` keeps all)"
            ));
        }
        if kept > ONE_FRAME_BYTES_MAX {
            return wrong(format!(
                "its {kept} bytes are more than the {ONE_FRAME_BYTES_MAX} that can be sent"
            ));
        }
        if kept < ethernet::HEADER_BYTES {
            return wrong(format!("its {kept} bytes are no Ethernet header"));
        }
        if self.ends.is_empty() {
            self.first_ns = time_ns;
        }
        let since = time_ns.saturating_sub(self.first_ns);
        self.times.push(since.max(self.times.last().copied().unwrap_or(0)));
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
        Ok(())
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

    /// Frame `number`, to be changed.
    pub(crate) fn frame_mut(&mut self, number: usize) -> &mut [u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &mut self.bytes[start..self.ends[number]]
    }

    /// Time of each frame since the first one, nanoseconds.
    pub(crate) fn times(&self) -> &[u64] {
        &self.times
    }

    /// Bytes of the largest frame.
    pub(crate) fn largest(&self) -> usize {
        (0..self.len()).map(|number| self.frame(number).len()).max().unwrap_or(0)
    }
}

/// Reads a pcap file, of either byte order, with time in microseconds or nanoseconds.
fn read_pcap(file: &[u8]) -> Result<Capture, String> {
    let (mut rest, parser) =
        PcapParser::new(file).map_err(|error| format!("it is no pcap or pcapng file ({error})"))?;
    check_link_type(parser.header().datalink)?;
    let unit_ns = match parser.header().ts_resolution {
        PcapTsResolution::MicroSecond => 1000,
        PcapTsResolution::NanoSecond => 1,
    };
    let mut capture = Capture::default();
    while !rest.is_empty() {
        let (behind, packet) = parser.next_raw_packet(rest).map_err(|error| {
            format!("frame {}: the file ends within it ({error})", capture.ends.len() + 1)
        })?;
        let time_ns = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit_ns;
        capture.add(time_ns, &packet.data, packet.orig_len)?;
        rest = behind;
    }
    Ok(capture)
}

/// Reads the enhanced packet blocks of a pcapng file. Blocks of other kinds, without the time of a frame, are
/// left out.
fn read_pcapng(file: &[u8]) -> Result<Capture, String> {
    let (mut rest, mut parser) =
        PcapNgParser::new(file).map_err(|error| format!("it is no pcapng file ({error})"))?;
    let mut capture = Capture::default();
    while !rest.is_empty() {
        let (behind, block) = parser
            .next_block(rest)
            .map_err(|error| format!("behind {} frames: {error}", capture.ends.len()))?;
        if let Block::EnhancedPacket(packet) = block {
            check_link_type(
                parser.packet_interface(&packet).map_or(DataLink::NULL, |interface| interface.linktype),
            )?;
            let time_ns = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
            capture.add(time_ns, &packet.data, packet.original_len)?;
        }
        rest = behind;
    }
    Ok(capture)
}

/// Fails unless frames are Ethernet frames. The upper four bits of the type in a pcap file describe frame
/// check sequences.
fn check_link_type(link_type: DataLink) -> Result<(), String> {
    match u32::from(link_type) & 0x0fff_ffff {
        ETHERNET => Ok(()),
        other => Err(format!("its frames are not Ethernet frames (link type {other})")),
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
    fn a_pcapng_file_is_read_as_a_pcap_file_is() {
        use pcap_file::pcapng::PcapNgWriter;
        use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
        use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 65535);
        writer.write_block(&Block::InterfaceDescription(interface)).unwrap();
        for (time_ns, bytes) in frames() {
            let mut packet = EnhancedPacketBlock::default();
            (packet.timestamp, packet.original_len) =
                (std::time::Duration::from_nanos(time_ns), bytes.len() as u32);
            packet.data = bytes.into();
            writer.write_block(&Block::EnhancedPacket(packet)).unwrap();
        }
        let file = writer.into_inner();
        let expected = Capture::read(&self::file(true, false, &frames())).unwrap();
        assert_eq!(Capture::read(&file), Ok(expected));
        for length in 0..file.len() {
            let frames = Capture::read(&file[..length]).map_or(0, |capture| capture.len());
            assert!(frames < 3, "{length}");
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
