//! Peer classes: addresses that lie in the same groups are one class.
//!
//! **An address that several live owners claim** (two pods while one of them is about to go, a pod and a node)
//! belongs to none of them for certain, so a flow with it passes only where it would pass whichever owner it
//! belongs to. Its class lists the groups of each owner, and its rows are what all of them allow.

use crate::ids::ClassId;
use crate::policy::store::{GroupId, Interner, Slot, Sweep, sorted};

/// The classes in use.
///
/// A class is the groups that its addresses are in, sorted; the groups of several owners stand apart by
/// [`GroupId::OR`].
#[derive(Debug, Default)]
pub(crate) struct Classes {
    classes: Interner<ClassId, [GroupId]>,
    in_group: Vec<Vec<ClassId>>,
}

impl Classes {
    /// No classes but the rest of the world.
    pub(crate) fn new() -> Classes {
        let mut classes = Classes::default();
        let world = classes.classes.intern(Vec::new());
        debug_assert_eq!(world, ClassId::WORLD);
        classes.classes.acquire(world);
        classes.classes.sweep();
        classes
    }

    /// Makes `held` the class of these groups: one address or prefix leaves the class it had and joins another.
    /// Whether that is another.
    pub(crate) fn reassign(&mut self, held: &mut ClassId, groups: &[GroupId]) -> bool {
        let class = self.classes.intern(groups);
        if class == *held {
            return false;
        }
        self.acquire(class);
        self.release(*held);
        *held = class;
        true
    }

    /// An address or prefix leaves a class.
    pub(crate) fn release(&mut self, class: ClassId) {
        if class != ClassId::WORLD {
            self.classes.release(class);
        }
    }

    fn acquire(&mut self, class: ClassId) {
        if class != ClassId::WORLD {
            self.classes.acquire(class);
        }
    }

    /// The groups of a class.
    pub(crate) fn groups(&self, class: ClassId) -> &[GroupId] {
        self.classes.key(class)
    }

    /// The groups of a class, if there is one with this number.
    pub(crate) fn get(&self, class: ClassId) -> Option<&[GroupId]> {
        self.classes.get(class).map(|groups| &**groups)
    }

    /// The classes whose addresses are in a group, sorted.
    pub(crate) fn in_group(&self, group: GroupId) -> &[ClassId] {
        self.in_group.get(group.position()).map_or(&[], Vec::as_slice)
    }

    /// The classes that added and dropped.
    pub(crate) fn sweep(&mut self) -> Sweep<ClassId, [GroupId]> {
        let swept = self.classes.sweep();
        for (class, groups) in &swept.removed {
            for group in groups_in(groups) {
                sorted::remove(&mut self.in_group[group.position()], class);
            }
        }
        for &class in &swept.added {
            for group in groups_in(self.classes.key(class)) {
                if self.in_group.len() <= group.position() {
                    self.in_group.resize_with(group.position() + 1, Vec::new);
                }
                sorted::insert(&mut self.in_group[group.position()], class);
            }
        }
        swept
    }

    /// Number of classes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }
}

/// The groups in the key of a class; one that several owners are in add_rule more than once.
pub(crate) fn groups_in(groups: &[GroupId]) -> impl Iterator<Item = GroupId> {
    groups.iter().copied().filter(|&group| group != GroupId::OR)
}

/// The key of an address whose owners are in these groups each: as few alternatives as say the same.
pub(crate) fn class_key(mut owners: Vec<Vec<GroupId>>) -> Vec<GroupId> {
    owners.sort_unstable();
    owners.dedup();
    owners.join(&GroupId::OR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_in_the_same_groups_are_as_one() {
        let [a, b] = [GroupId::at(3), GroupId::at(5)];
        assert_eq!(class_key(vec![vec![a, b], vec![a, b]]), [a, b]);
        assert_eq!(class_key(vec![vec![], vec![]]), []);
        assert_eq!(class_key(vec![vec![b], vec![a], vec![]]), [GroupId::OR, a, GroupId::OR, b]);
    }
}
