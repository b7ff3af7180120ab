//! Bandwidth of a pod: a rate and a burst in each direction.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize as DeriveDeserialize, Serialize};

use crate::limits::{BITS_PER_SECOND_MAX, BITS_PER_SECOND_MIN, PACKET_BYTES_MAX};

/// Burst without one in the request, in parts of a second. A TCP sender that has lost its window is silent for 200 ms at
/// least (`TCP_RTO_MIN` of Linux), and keeps its rate only if the bucket holds the tokens of that time.
const BURST_PARTS: u64 = 2;
/// Least such burst: two of the largest packets.
const BURST_MIN: u64 = 2 * 8 * PACKET_BYTES_MAX as u64;

/// Number of bits, or of bits per second: a number, or a quantity of Kubernetes such as `10M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bits(pub u64);

/// Suffixes of quantities (`k8s.io/apimachinery/pkg/api/resource`), and their factors.
const SUFFIXES: [(&str, u64); 10] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

impl FromStr for Bits {
    type Err = String;

    fn from_str(text: &str) -> Result<Bits, String> {
        let of = |(suffix, factor): &(&str, u64)| Some((text.strip_suffix(suffix)?, *factor));
        let (number, factor) = SUFFIXES.iter().find_map(of).unwrap_or((text, 1));
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let bits =
            number.parse::<u64>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(factor));
        bits.map(Bits)
            .ok_or_else(|| format!("{text:?} is not a whole number of bits, such as 10M, 500k or 1000000"))
    }
}

impl fmt::Display for Bits {
    /// Writes the shortest quantity with a decimal suffix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let text = match SUFFIXES[5..].iter().rev().find(fitting) {
            Some((suffix, factor)) => format!("{}{suffix}", self.0 / factor),
            None => self.0.to_string(),
        };
        f.pad(&text)
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bits, D::Error> {
        struct BitsVisitor;

        impl Visitor<'_> for BitsVisitor {
            type Value = Bits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of bits, such as 1000000 or \"10M\"")
            }

            fn visit_u64<E: Error>(self, bits: u64) -> Result<Bits, E> {
                Ok(Bits(bits))
            }

            fn visit_i64<E: Error>(self, bits: i64) -> Result<Bits, E> {
                let unsigned =
                    u64::try_from(bits).map_err(|_| E::invalid_value(Unexpected::Signed(bits), &self));
                unsigned.map(Bits)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Bits, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(BitsVisitor)
    }
}

/// Bandwidth of a pod. A direction without a rate has no limit. The directions are those of policy: ingress is to the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bandwidth {
    /// Rate of packets to the pod, bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_rate: Option<Bits>,
    /// Bits to the pod that may come at once; those of half a second where absent, 128 KiB at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_burst: Option<Bits>,
    /// Rate of packets from the pod, bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_rate: Option<Bits>,
    /// Bits from the pod that may come at once; as for the other direction where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_burst: Option<Bits>,
}

impl fmt::Display for Bandwidth {
    /// Writes the rates and their bursts: `ingress 10M, egress 1G (burst 100M)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = |name: &str, rate: Option<Bits>, burst: Option<Bits>| {
            let burst = burst.map(|burst| format!(" (burst {burst})")).unwrap_or_default();
            rate.map(|rate| format!("{name} {rate}{burst}"))
        };
        let ingress = direction("ingress", self.ingress_rate, self.ingress_burst);
        let egress = direction("egress", self.egress_rate, self.egress_burst);
        let limits: Vec<String> = ingress.into_iter().chain(egress).collect();
        f.pad(&if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") })
    }
}

/// Limit of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits per second.
    pub rate: u64,
    /// Bits that may come at once.
    pub burst: u64,
}

impl Bandwidth {
    /// Whether neither direction has a limit.
    pub fn is_unlimited(&self) -> bool {
        *self == Bandwidth::default()
    }

    /// Limit of packets to the pod.
    pub fn ingress(&self) -> Option<RateLimit> {
        limit(self.ingress_rate, self.ingress_burst)
    }

    /// Limit of packets from the pod.
    pub fn egress(&self) -> Option<RateLimit> {
        limit(self.egress_rate, self.egress_burst)
    }

    /// Checks the values. The error names the field, and gives the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let directions = [
            ("ingress_rate", self.ingress_rate, "ingress_burst", self.ingress_burst),
            ("egress_rate", self.egress_rate, "egress_burst", self.egress_burst),
        ];
        for (rate_name, rate, burst_name, burst) in directions {
            let (least, most) = (Bits(BITS_PER_SECOND_MIN), Bits(BITS_PER_SECOND_MAX));
            if let Some(rate) = rate.filter(|rate| !(least..=most).contains(rate)) {
                return Err((
                    rate_name,
                    format!("is {rate}, and must be from {least} to {most} bits per second"),
                ));
            }
            if rate.is_none() && burst.is_some() {
                return Err((burst_name, format!("needs {rate_name}: a burst alone limits nothing")));
            }
        }
        Ok(())
    }
}

fn limit(rate: Option<Bits>, burst: Option<Bits>) -> Option<RateLimit> {
    let Bits(rate) = rate?;
    let burst = burst.map_or_else(|| (rate / BURST_PARTS).max(BURST_MIN), |Bits(burst)| burst);
    Some(RateLimit { rate, burst })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_written() {
        let read = |text: &str| text.parse::<Bits>().map(|Bits(bits)| bits);
        let of = ["0", "1500", "10k", "10M", "1G", "1Ki", "2Mi", "1P"].map(|text| read(text).unwrap());
        assert_eq!(of, [0, 1500, 10_000, 10_000_000, 1_000_000_000, 1024, 2 << 20, 1_000_000_000_000_000]);
        for wrong in ["", "M", "-1", "+1", "1.5M", "1m", "10 M", "10MB", "99999999999P", "1e3"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            [1500, 10_000, 3_000_000_000, 0].map(|bits| Bits(bits).to_string()),
            ["1500", "10k", "3G", "0"]
        );
    }

    #[test]
    fn limits_have_a_burst_and_a_range() {
        let read = |text: &str| serde_json::from_str::<Bandwidth>(text).unwrap();
        let both = read(r#"{"ingress_rate": "10M", "egress_rate": 100000, "egress_burst": "1M"}"#);
        assert_eq!(both.check(), Ok(()));
        assert_eq!(both.ingress(), Some(RateLimit { rate: 10_000_000, burst: 5_000_000 }));
        assert_eq!(both.egress(), Some(RateLimit { rate: 100_000, burst: 1_000_000 }));
        assert_eq!(read(r#"{"ingress_rate": "1G"}"#).ingress().unwrap().burst, 500_000_000);
        assert_eq!(read(r#"{"ingress_rate": "1M"}"#).ingress().unwrap().burst, BURST_MIN);
        assert_eq!(read("{}").ingress(), None);
        let texts = [both, Bandwidth::default()].map(|bandwidth| bandwidth.to_string());
        assert_eq!(texts, ["ingress 10M, egress 100k (burst 1M)", "no limit"]);
        for (wrong, field) in [
            (r#"{"ingress_rate": 999}"#, "ingress_rate"),
            (r#"{"egress_rate": "2P"}"#, "egress_rate"),
            (r#"{"egress_burst": "2M", "ingress_rate": "1M"}"#, "egress_burst"),
        ] {
            assert_eq!(read(wrong).check().unwrap_err().0, field);
        }
        for wrong in [r#"{"ingress": 1}"#, r#"{"ingress_rate": -1}"#, r#"{"ingress_rate": "x"}"#] {
            assert!(serde_json::from_str::<Bandwidth>(wrong).is_err(), "{wrong}");
        }
    }
}
