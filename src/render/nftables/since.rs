//! Difference of two rulesets: elements of sets and maps, and rules of changed chains.

use std::fmt::Write;

use super::steps::Steps;
use super::{Chain, Ruleset, Table};
use crate::render::output::Part;

impl Ruleset {
    /// Parts that lead from `old` to this ruleset.
    pub(super) fn steps_since(&self, old: &Ruleset) -> Vec<Part> {
        let mut steps = Steps::default();
        self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.print_since(old, &mut steps));
        steps.parts("One transaction has all changes.", self.every_packet())
    }
}

impl Table {
    fn print_since(&self, old: &Table, steps: &mut Steps) {
        match (old.chains.is_empty(), self.chains.is_empty()) {
            (true, true) => return,
            (true, false) => return self.print(steps),
            (false, true) => return old.print_end(steps),
            (false, false) => {}
        }
        let table = self.full_name();
        // Rules refer to sets and chains, and maps to chains.
        let text = &mut steps.added;
        for name in self.counters.difference(&old.counters) {
            let _ = writeln!(text, "add counter {table} {name}");
        }
        let new_chains = || self.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name));
        new_chains().for_each(|(name, _)| _ = writeln!(text, "add chain {table} {name}"));
        let is_new = |name: &String| !old.collections.contains_key(name);
        for (name, collection) in self.collections.iter().filter(|(name, _)| is_new(name)) {
            collection.print_declaration(&table, name, text);
            collection.print_changes(None, &table, name, text);
        }
        new_chains().for_each(|(name, chain)| chain.print_rules(&table, name, text));
        let text = &mut steps.changed;
        for (name, collection) in self.collections.iter().filter(|(name, _)| !is_new(name)) {
            collection.print_changes(old.collections.get(name), &table, name, text);
        }
        for (name, chain) in &self.chains {
            if old.chains.get(name).is_some_and(|old| old != chain) {
                let _ = writeln!(text, "flush chain {table} {name}");
                chain.print_rules(&table, name, text);
            }
        }
        let text = &mut steps.removed;
        let gone = || old.chains.keys().filter(|name| !self.chains.contains_key(*name));
        gone().for_each(|name| _ = writeln!(text, "flush chain {table} {name}"));
        gone().for_each(|name| _ = writeln!(text, "delete chain {table} {name}"));
        for (name, collection) in
            old.collections.iter().filter(|(name, _)| !self.collections.contains_key(*name))
        {
            collection.print_deletion(&table, name, text);
        }
        for name in old.counters.difference(&self.counters) {
            let _ = writeln!(text, "delete counter {table} {name}");
        }
    }

    /// Prints the commands that remove the table.
    fn print_end(&self, steps: &mut Steps) {
        let table = self.full_name();
        for (name, _) in self.chains.iter().filter(|(_, chain)| chain.hook.is_some()) {
            let _ = writeln!(steps.changed, "flush chain {table} {name}\ndelete chain {table} {name}");
        }
        let _ = writeln!(steps.removed, "delete table {table}");
    }
}

impl Chain {
    fn print_rules(&self, table: &str, name: &str, text: &mut String) {
        self.rules.iter().for_each(|rule| _ = writeln!(text, "add rule {table} {name} {rule}"));
    }
}
