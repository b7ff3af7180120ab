//! Primitives and bounds of the table that workers share. Its loom tests replace them with loom's primitives and smaller
//! bounds.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) use crate::limits::FIRST_VERDICTS_SHARED_MAX;
pub(super) use crate::mem::SequenceLock;

/// Number of slots, from the hash on, that may hold a datagram.
pub(super) const PROBES: usize = 4;
