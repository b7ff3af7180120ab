//! The table: found by hash, shared by all workers, never locked.
//!
//! ```text
//!   tags      [16 tags of 8 bits] [16 tags] [16 tags] ...      one bucket: 16 bytes, two atomic words
//!                 |
//!   entries   [16 x 128 bytes   ] [       ] [       ] ...      the slot of a tag has its entry
//! ```
//!
//! **Primary slot.** The hash of a key names a slot. Nearly every flow of a table that is not nearly full
//! lies there, and a lookup finds it without a look at the tags.
//!
//! **Two buckets.** A key whose primary slot is taken goes to another slot of that bucket, or of its second
//! bucket where the first is crowded and the second is less so. A lookup compares the tags of a bucket in a
//! few instructions and reads entries whose tag matches. The top bits of the first word of tags count the
//! keys that went on to their second bucket, so that a lookup reads the second bucket only where it must.
//!
//! **Claiming and publishing.** A worker claims a slot by writing its tag with compare-and-swap, fills the
//! entry, and makes it visible by storing its head. Two workers may publish the same key at once: each then
//! searches for the other's entry, and the one that comes first in lookup order stays.
//!
//! **Reclamation.** A slot that one worker frees may be in use by another one until the end of its batch. So
//! its tag turns into a tombstone, and the slot becomes free only when every worker has started a batch since
//! (quiescent-state-based reclamation). Within a batch a slot number therefore always means the same flow.
//!
//! **Eviction.** For the same reason a slot cannot be evicted and filled at once, so flows are evicted ahead:
//! see [`evict`].

mod evict;
mod half_list;
mod insert;
mod layout;
mod lookup;
mod lookup_batch;
mod lookup_tags_first;
mod offloaded;
mod pass_segment;
mod placement;
mod quota_class;
mod remove;
mod slot;
mod sweep;
mod tags;

pub(crate) use insert::InsertOutcome;
pub(crate) use layout::Conntrack;
pub(crate) use lookup_batch::{Hit, LookupBatch, LookupVisitor, PacketFlow};
pub(crate) use remove::{WorkerState, event};
pub(crate) use slot::Slot;

#[cfg(test)]
pub(super) use lookup::TagMatch;
pub(super) use slot::BUCKET_SLOTS;
pub(super) use tags::{BucketTags, FREE, TOMBSTONE, tag_of};
