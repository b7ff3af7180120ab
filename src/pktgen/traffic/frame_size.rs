//! Frame sizes, counted from the destination address to the frame check sequence (RFC 2544 section 9). The
//! network card adds that sequence: a frame of 64 bytes has 60 in memory.

use std::fmt;
use std::str::FromStr;

/// Bytes of the frame check sequence (IEEE 802.3 section 3.2.9).
pub const FCS_BYTES: usize = 4;
/// Bytes that a frame takes on a link besides: preamble, start delimiter and gap.
pub const WIRE_BYTES: usize = 20;

/// Sizes of the frames, bytes with the frame check sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameSize {
    /// One size.
    Fixed(usize),
    /// Simple Internet mix: of 12 frames 7 of 64 bytes, 4 of 594, 1 of 1518. Small frames are as large as
    /// their headers need.
    Imix,
}

/// Positions of the mix's sizes in [`FrameSize::sizes`], spread so that no two large ones follow each other.
const IMIX_ORDER: [u8; 12] = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1];
const IMIX_SIZES: [usize; 3] = [64, 594, 1518];

impl FrameSize {
    /// Returns the different sizes.
    pub(crate) fn sizes(self) -> Vec<usize> {
        match self {
            FrameSize::Fixed(size) => vec![size],
            FrameSize::Imix => IMIX_SIZES.to_vec(),
        }
    }

    /// Returns the cycle of the frames, as indices of [`FrameSize::sizes`].
    pub(crate) fn order(self) -> &'static [u8] {
        match self {
            FrameSize::Fixed(_) => &[0],
            FrameSize::Imix => &IMIX_ORDER,
        }
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameSize::Fixed(size) => size.fmt(f),
            FrameSize::Imix => f.write_str("imix"),
        }
    }
}

impl FromStr for FrameSize {
    type Err = String;

    fn from_str(text: &str) -> Result<FrameSize, String> {
        match text.parse() {
            Ok(size) => Ok(FrameSize::Fixed(size)),
            Err(_) if text.eq_ignore_ascii_case("imix") => Ok(FrameSize::Imix),
            Err(_) => Err(format!("{text:?} is not a frame size: write bytes (64 is the least) or imix")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_seven_to_four_to_one() {
        let mut counts = [0; 3];
        FrameSize::Imix.order().iter().for_each(|size| counts[usize::from(*size)] += 1);
        assert_eq!(counts, [7, 4, 1]);
    }

    #[test]
    fn sizes_parse_as_they_print() {
        for size in [FrameSize::Fixed(64), FrameSize::Imix] {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        assert!("large".parse::<FrameSize>().is_err());
    }
}
