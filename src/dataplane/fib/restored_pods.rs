//! Pods of the previous process that may be attached again.

use std::collections::BTreeMap;

use crate::ids::{AttachmentId, Generation};
use crate::net::address::Address;

/// Pods of the process before, as workers need to know them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RestoredPods {
    /// Attachments that are such pods, and since when these have been there.
    pub since: BTreeMap<AttachmentId, Generation>,
    /// Addresses of those that may still come back, in order.
    pub awaited: Vec<Address>,
    /// The end of their time.
    pub awaited_until_ms: u32,
}

impl RestoredPods {
    /// Whether an address is that of a pod which may still come back.
    pub(crate) fn awaits(&self, address: Address, now_ms: u32) -> bool {
        self.awaited.binary_search(&address).is_ok() && is_before(now_ms, self.awaited_until_ms)
    }
}

pub(crate) fn is_before(now_ms: u32, until_ms: u32) -> bool {
    (until_ms.wrapping_sub(now_ms) as i32) > 0
}
