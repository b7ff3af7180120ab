//! Difference of two rulesets as one transaction: elements of sets and maps, and rules of changed chains.

use std::fmt::Write;

use super::{Chain, FILE, Ruleset, TABLE, Table};
use crate::render::output::Part;

impl Ruleset {
    /// Transaction that leads from `old` to this ruleset.
    pub(super) fn transaction_since(&self, old: &Ruleset) -> Vec<Part> {
        let mut text = "# Load with: nft -f FILE. All changes take effect at once.\n".to_owned();
        self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.print_since(old, &mut text));
        vec![Part { file: FILE, text }]
    }
}

impl Table {
    fn print_since(&self, old: &Table, text: &mut String) {
        let table = format!("{} {TABLE}", self.word());
        match (old.chains.is_empty(), self.chains.is_empty()) {
            (true, true) => return,
            (true, false) => return self.print(text),
            (false, true) => {
                let _ = writeln!(text, "delete table {table}");
                return;
            }
            (false, false) => {}
        }
        // Additions first, since rules refer to sets, and maps to chains; deletions last.
        for name in self.counters.difference(&old.counters) {
            let _ = writeln!(text, "add counter {table} {name}");
        }
        for name in self.chains.keys().filter(|name| !old.chains.contains_key(*name)) {
            let _ = writeln!(text, "add chain {table} {name}");
        }
        for (name, collection) in
            self.collections.iter().filter(|(name, _)| !old.collections.contains_key(*name))
        {
            collection.print_declaration(&table, name, text);
        }
        for (name, collection) in &self.collections {
            collection.print_changes(old.collections.get(name), &table, name, text);
        }
        for (name, chain) in &self.chains {
            print_rules(&table, name, chain, old.chains.get(name), text);
        }
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
}

/// Replaces the rules of a chain that has others.
fn print_rules(table: &str, name: &str, chain: &Chain, old: Option<&Chain>, text: &mut String) {
    if old == Some(chain) {
        return;
    }
    if old.is_some() {
        let _ = writeln!(text, "flush chain {table} {name}");
    }
    for rule in &chain.rules {
        let _ = writeln!(text, "add rule {table} {name} {rule}");
    }
}
