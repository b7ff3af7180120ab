//! Frames for tests, built and checked by etherparse, which shares no code with the switch.

mod build;
mod check;
pub(crate) mod checksum;
mod describe;

pub(crate) use self::build::*;
pub(crate) use self::check::{check, unfinish};
pub(crate) use self::describe::describe;
