//! Numbered slots. A slot that became free is the next one taken, the smallest first, so that numbers stay small.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::marker::PhantomData;

use crate::ids::{AclId, ClassId, RowId, RuleId};

/// A number that names a slot.
pub(crate) trait Slot: Copy + Ord {
    /// The slot with this index.
    fn at(index: u32) -> Self;
    /// Its index.
    fn position(self) -> usize;
}

macro_rules! slot {
    ($($name:ty),*) => {
        $(impl Slot for $name {
            fn at(index: u32) -> Self {
                Self(index)
            }
            fn position(self) -> usize {
                self.0 as usize
            }
        })*
    };
}

/// A pod in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodSlot(u32);

/// A namespace in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamespaceSlot(u32);

/// A node in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeSlot(u32);

/// A set of addresses that rules name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(u32);

/// The use of a named port in rules about a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortUseId(u32);

/// The rules of one direction that some pods share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleSetId(u32);

impl GroupId {
    /// Stands between the groups of one owner and those of the next, where several have one address.
    pub(crate) const OR: GroupId = GroupId(u32::MAX);
}

slot!(PodSlot, NamespaceSlot, NodeSlot, GroupId, PortUseId, RuleSetId, ClassId, RowId, RuleId, AclId);

/// Items in numbered slots.
#[derive(Debug)]
pub(crate) struct Slots<S, T> {
    items: Vec<Option<T>>,
    free: BinaryHeap<Reverse<u32>>,
    slot: PhantomData<S>,
}

impl<S, T> Default for Slots<S, T> {
    fn default() -> Slots<S, T> {
        Slots { items: Vec::new(), free: BinaryHeap::new(), slot: PhantomData }
    }
}

impl<S: Slot, T> Slots<S, T> {
    /// Puts an item into the smallest free slot.
    pub(crate) fn insert(&mut self, item: T) -> S {
        if let Some(Reverse(index)) = self.free.pop() {
            self.items[index as usize] = Some(item);
            return S::at(index);
        }
        self.items.push(Some(item));
        S::at(self.items.len() as u32 - 1)
    }

    /// Frees a slot.
    pub(crate) fn remove(&mut self, slot: S) -> Option<T> {
        let item = self.items.get_mut(slot.position())?.take();
        if item.is_some() {
            self.free.push(Reverse(slot.position() as u32));
        }
        item
    }

    /// The item in a slot.
    pub(crate) fn get(&self, slot: S) -> Option<&T> {
        self.items.get(slot.position())?.as_ref()
    }

    /// The item in a slot, to change.
    pub(crate) fn get_mut(&mut self, slot: S) -> Option<&mut T> {
        self.items.get_mut(slot.position())?.as_mut()
    }

    /// All items, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (S, &T)> {
        let items = self.items.iter().enumerate();
        items.filter_map(|(index, item)| Some((S::at(index as u32), item.as_ref()?)))
    }

    /// Number of items.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_free_slot_is_taken_first() {
        let mut slots: Slots<RowId, char> = Slots::default();
        let ids = ['a', 'b', 'c', 'd'].map(|item| slots.insert(item));
        assert_eq!(slots.remove(ids[2]), Some('c'));
        assert_eq!(slots.remove(ids[0]), Some('a'));
        assert_eq!(slots.remove(ids[0]), None);
        assert_eq!(slots.len(), 2);
        assert_eq!(['e', 'f', 'g'].map(|item| slots.insert(item)), [RowId(0), RowId(2), RowId(4)]);
    }
}
