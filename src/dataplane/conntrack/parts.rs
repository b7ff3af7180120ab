//! Atomics and bounds that entries and table are built on. The loom tests replace them with loom's atomics
//! and smaller bounds.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(super) use crate::limits::{PORTS_MAX, WORKERS_MAX};
