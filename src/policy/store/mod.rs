//! The store: the objects as they stand, and for each change what it can touch.
//!
//! A pod that can neither be isolated nor selected (on the host's network, finished, or without an address
//! yet) is kept, but stands in no index: see [`Store::is_live`].

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
#[cfg(test)]
pub(crate) use entries::NAMESPACE_NAME_LABEL;
pub(crate) use entries::{StoredPod, Versioned};
pub(crate) use interner::{Interner, Sweep};
pub(crate) use lookup::Store;
pub(crate) use slots::{GroupId, NamespaceSlot, NodeSlot, PodSlot, PortUseId, RuleSetId, Slot, Slots};
