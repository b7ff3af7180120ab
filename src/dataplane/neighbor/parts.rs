//! Primitives that slots are built on. The loom tests replace them with loom's.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) use crate::mem::SequenceLock;
