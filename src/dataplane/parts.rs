//! Primitives of snapshot publication and doorbells. Their loom tests replace this module by one of loom's primitives.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Arc, RwLock};

pub(super) use super::eventfd::EventFd;
pub(super) use crate::limits::PORTS_MAX;
