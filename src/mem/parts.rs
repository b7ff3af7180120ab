//! Primitives of the lock-free structures here. Their loom tests replace this module by one of loom's primitives.

pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
