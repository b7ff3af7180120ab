//! Peer classes: addresses with equal groups form one class.
//!
//! **An address with several live owners** (two pods during a hand-over, a pod and a node) belongs to none of
//! them for certain. A flow with it passes only if it passes for each owner. The class lists the groups of
//! each owner, and its rows are the intersection of theirs.

use crate::ids::ClassId;
use crate::policy::store::{GroupId, Interner, Slot, Sweep, sorted};

/// Classes in use.
///
/// The key of a class is the sorted list of its groups; [`GroupId::OR`] separates the groups of several
/// owners.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes {
    classes: Interner<ClassId, [GroupId]>,
    in_group: Vec<Vec<ClassId>>,
}

impl Classes {
    /// Set of classes with the world class only.
    pub(crate) fn new() -> Classes {
        let mut classes = Classes::default();
        let world = classes.classes.intern(Vec::new());
        debug_assert_eq!(world, ClassId::WORLD);
        classes.classes.acquire(world);
        classes.classes.sweep();
        classes
    }

    /// Moves one address or prefix from class `held` to the class of these groups. Returns `true` if the
    /// class changes.
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

    /// Releases one address or prefix of a class.
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

    /// Groups of a class.
    pub(crate) fn groups(&self, class: ClassId) -> &[GroupId] {
        self.classes.key(class)
    }

    /// Groups of a class, if the number is in use.
    pub(crate) fn get(&self, class: ClassId) -> Option<&[GroupId]> {
        self.classes.get(class).map(|groups| &**groups)
    }

    /// Classes with addresses in a group, sorted.
    pub(crate) fn in_group(&self, group: GroupId) -> &[ClassId] {
        self.in_group.get(group.position()).map_or(&[], Vec::as_slice)
    }

    /// Added and removed classes.
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

/// Groups in the key of a class; a group of several owners occurs several times.
pub(crate) fn groups_in(groups: &[GroupId]) -> impl Iterator<Item = GroupId> {
    groups.iter().copied().filter(|&group| group != GroupId::OR)
}

/// Key of an address with these owners, without duplicate alternatives.
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
