//! Prefixes of the tables as a tree, and sets of classes as sets of addresses.

use std::collections::HashMap;

use ipnet::IpNet;

use super::types::{AddressSet, Family};
use crate::ids::ClassId;
use crate::tables::RuleTables;

/// Prefixes of one family with their classes and the prefixes directly below them.
pub(super) struct PrefixTree {
    prefixes: Vec<IpNet>,
    classes: Vec<ClassId>,
    parents: Vec<Option<usize>>,
    children: Vec<Vec<usize>>,
    of_class: HashMap<ClassId, Vec<usize>, foldhash::fast::RandomState>,
}

impl PrefixTree {
    pub(super) fn new(tables: &RuleTables, family: Family) -> PrefixTree {
        let mut tree = PrefixTree {
            prefixes: Vec::new(),
            classes: Vec::new(),
            parents: Vec::new(),
            children: Vec::new(),
            of_class: HashMap::default(),
        };
        // A prefix follows the prefixes that contain it.
        let mut above: Vec<usize> = Vec::new();
        for (&prefix, &class) in tables.prefixes.iter().filter(|(prefix, _)| family.holds(prefix.addr())) {
            while above.last().is_some_and(|&last| !tree.prefixes[last].contains(&prefix)) {
                above.pop();
            }
            let index = tree.prefixes.len();
            let parent = above.last().copied();
            tree.prefixes.push(prefix);
            tree.classes.push(class);
            tree.parents.push(parent);
            tree.children.push(Vec::new());
            tree.of_class.entry(class).or_default().push(index);
            parent.into_iter().for_each(|parent| tree.children[parent].push(index));
            above.push(index);
        }
        tree
    }

    /// Classes that have a prefix.
    pub(super) fn classes(&self) -> impl Iterator<Item = ClassId> {
        self.of_class.keys().copied()
    }

    /// Addresses of these classes, sorted and without [`ClassId::WORLD`].
    pub(super) fn addresses_of(&self, classes: &[ClassId]) -> AddressSet {
        let is_member = |index: usize| classes.binary_search(&self.classes[index]).is_ok();
        let mut addresses = AddressSet::new();
        for &index in classes.iter().filter_map(|class| self.of_class.get(class)).flatten() {
            if !self.parents[index].is_some_and(is_member) {
                addresses.push((self.prefixes[index], true));
            }
            let others = self.children[index].iter().filter(|&&child| !is_member(child));
            addresses.extend(others.map(|&child| (self.prefixes[child], false)));
        }
        addresses.sort_unstable();
        addresses
    }
}
