//! Pods of the previous process that may be attached again.

use std::collections::BTreeMap;

use crate::ids::{AttachmentId, Generation};
use crate::net::address::Address;

/// Pods of the previous process that a snapshot reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct RestoredPods {
    /// Attachments of these pods, and the generations since which the pods have been there.
    pub since: BTreeMap<AttachmentId, Generation>,
    /// Addresses of pods that may still be attached again, in order.
    pub awaited: Vec<Address>,
    /// Deadline of the attachment.
    pub awaited_until_ms: u32,
}

impl RestoredPods {
    /// Whether a pod with this address may still be attached again.
    pub(crate) fn awaits(&self, address: Address, now_ms: u32) -> bool {
        self.awaited.binary_search(&address).is_ok() && is_before(now_ms, self.awaited_until_ms)
    }
}

pub(crate) fn is_before(now_ms: u32, until_ms: u32) -> bool {
    (until_ms.wrapping_sub(now_ms) as i32) > 0
}
