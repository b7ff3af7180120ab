//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address; in text `02:00:00:00:00:01`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Broadcast address (IEEE 802.3).
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Returns the six bytes in the low bits of a number, the first one lowest, for storage in an atomic.
    #[inline]
    pub fn to_bits(self) -> u64 {
        // Two loads instead of six.
        let [a, b, c, d, e, f] = self.0;
        u64::from(u32::from_le_bytes([a, b, c, d])) | u64::from(u16::from_le_bytes([e, f])) << 32
    }

    /// Inverts [`Mac::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Mac {
        let [a, b, c, d, e, f, ..] = bits.to_le_bytes();
        Mac([a, b, c, d, e, f])
    }

    /// Whether the address is of a group of stations: the I/G bit, the lowest of the first byte, is set (IEEE
    /// 802).
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether the address is of one station: the I/G bit is clear, and the address is not all zero.
    #[inline]
    pub fn is_unicast(self) -> bool {
        !self.is_group() && self.to_bits() != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        f.pad(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let wrong = || format!("{text:?} is not an Ethernet address: write six bytes, 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Mac(bytes)) }
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Mac, String> {
        text.parse()
    }
}
