//! Store: the current objects, and the slots that each change affects.
//!
//! The store keeps pods to which no policy applies (on the host's network, finished, or without an address)
//! outside of its indices: see [`Store::is_live`].

mod affected;
mod apply;
mod change;
mod entries;
mod interner;
mod label_index;
mod lookup;
mod slots;
pub(crate) mod sorted;

pub(crate) use affected::Affected;
pub use change::{Change, ObjectName};
pub(crate) use entries::{StoredPod, Versioned};
pub(crate) use interner::{Interner, Sweep};
pub(crate) use label_index::LabelIndex;
pub(crate) use lookup::Store;
pub(crate) use slots::{GroupId, NamespaceSlot, NodeSlot, PodSlot, PortUseId, RuleSetId, Slot, Slots};
