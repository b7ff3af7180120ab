//! Primitives and bounds of the ring. Its loom tests replace them with loom's primitives and smaller bounds.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) use crate::limits::RING_SLOTS;
