//! Numbered slots. The smallest free slot is reused first, so that numbers stay small.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::marker::PhantomData;

use crate::ids::{AclId, ClassId, RowId, RuleId};

/// Number of a slot.
pub(crate) trait Slot: Copy + Ord {
    /// Slot with this index.
    fn at(index: u32) -> Self;
    /// Index of the slot.
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

/// Pod in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodSlot(u32);

/// Namespace in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamespaceSlot(u32);

/// Node in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeSlot(u32);

/// Address group that rules refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(u32);

/// Use of a named port in rules about an address group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortUseId(u32);

/// Rule set: the rules of one direction that several pods share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleSetId(u32);

impl GroupId {
    /// Separator between the groups of two owners of one address.
    pub(crate) const OR: GroupId = GroupId(u32::MAX);
}

slot!(PodSlot, NamespaceSlot, NodeSlot, GroupId, PortUseId, RuleSetId, ClassId, RowId, RuleId, AclId);

/// Items in numbered slots.
#[derive(Debug, Clone)]
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

    /// Item in a slot.
    pub(crate) fn get(&self, slot: S) -> Option<&T> {
        self.items.get(slot.position())?.as_ref()
    }

    /// Mutable item in a slot.
    pub(crate) fn get_mut(&mut self, slot: S) -> Option<&mut T> {
        self.items.get_mut(slot.position())?.as_mut()
    }

    /// Items, by slot.
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
