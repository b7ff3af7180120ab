//! Values whose type is not enough: ranges, permissions, cores. Their errors list the allowed values.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

use crate::limits::WORKERS_MAX;

/// Cores of the workers, and so the number of workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Cores {
    /// One worker, on the last core that the process may run on.
    #[default]
    Auto,
    /// Worker `i` on core `i` of the list.
    List(Vec<usize>),
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cores, D::Error> {
        struct CoresVisitor;

        impl<'de> Visitor<'de> for CoresVisitor {
            type Value = Cores;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a list of core numbers, such as [2, 3]")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Cores, E> {
                match text {
                    "auto" => Ok(Cores::Auto),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cores, A::Error> {
                let mut cores = Vec::new();
                while let Some(core) = list.next_element()? {
                    cores.push(core);
                }
                match cores.len() {
                    1..=WORKERS_MAX => Ok(Cores::List(cores)),
                    count => Err(A::Error::custom(format!(
                        "the list has {count} cores, and a switch has 1 to {WORKERS_MAX} workers"
                    ))),
                }
            }
        }

        deserializer.deserialize_any(CoresVisitor)
    }
}

/// Deserializes a whole number from `LOW` to `HIGH`.
pub(super) fn within<'de, D, T, const LOW: i64, const HIGH: i64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    struct Within<T, const LOW: i64, const HIGH: i64>(PhantomData<T>);

    impl<T: TryFrom<i64>, const LOW: i64, const HIGH: i64> Visitor<'_> for Within<T, LOW, HIGH> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from {LOW} to {HIGH}")
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
            let fitting = (LOW..=HIGH).contains(&value).then(|| T::try_from(value).ok()).flatten();
            fitting.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
        }
    }

    deserializer.deserialize_i64(Within::<T, LOW, HIGH>(PhantomData))
}

/// Deserializes permissions in the notation of chmod(1): three octal digits in quotes, with or without a
/// leading zero.
pub(super) fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Mode;

    impl Visitor<'_> for Mode {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("octal permissions in quotes, such as \"0660\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u32, E> {
            let digits = if text.len() == 4 { text.strip_prefix('0').unwrap_or(text) } else { text };
            let octal = digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
            let mode = octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
            mode.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    deserializer.deserialize_str(Mode)
}

/// Deserializes an address with a port, or an empty text for none.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    let expected = &"an IP address and a port, such as \"127.0.0.1:9640\", or \"\"";
    text.parse().map(Some).map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), expected))
}
