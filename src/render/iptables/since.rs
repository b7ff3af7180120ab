//! Inputs that lead from one state to another: entries of sets, changed chains, and then the chains and sets that nothing names any
//! more.

use std::fmt::Write;

use super::{Chains, State, print_entry, print_rules};
use crate::render::output::Part;

impl State {
    /// Inputs that lead from `old` to this state.
    pub(super) fn inputs_since(&self, old: &State) -> Vec<Part> {
        let mut sets = "# 1. Load with: ipset -exist restore -file FILE\n".to_owned();
        for (name, set) in &self.sets {
            let Some(before) = old.sets.get(name).map(|set| &set.entries) else {
                set.print_whole(name, &mut sets);
                continue;
            };
            for prefix in before.keys() {
                if before.get(prefix) != set.entries.get(prefix) {
                    print_entry("del", name, *prefix, true, &mut sets);
                }
            }
            for (prefix, is_in) in &set.entries {
                if before.get(prefix) != Some(is_in) {
                    print_entry("add", name, *prefix, *is_in, &mut sets);
                }
            }
        }
        let ([new4, new6], [old4, old6]) = (&self.families, &old.families);
        vec![
            Part { file: "palisade.ipset", text: sets },
            Part { file: "palisade.iptables", text: new4.text_since(old4, "iptables-restore") },
            Part { file: "palisade.ip6tables", text: new6.text_since(old6, "ip6tables-restore") },
            self.removal_of_unused(),
        ]
    }
}

impl Chains {
    /// Input of `program` with changed chains. A chain that is named in it is emptied first; one that is gone stays empty, so
    /// that no chain of a former state, which may jump to it, keeps the change from being loaded.
    fn text_since(&self, old: &Chains, program: &str) -> String {
        let mut text = format!("# 2. Load with: {program} --noflush FILE\n");
        for (table, new, old) in [("raw", &self.raw, &old.raw), ("filter", &self.filter, &old.filter)] {
            let changed: Vec<_> = new.iter().filter(|(name, rules)| old.get(*name) != Some(rules)).collect();
            let gone: Vec<_> = old.keys().filter(|name| !new.contains_key(*name)).collect();
            if changed.is_empty() && gone.is_empty() {
                continue;
            }
            // Writing to a string cannot fail.
            let _ = writeln!(text, "*{table}");
            let named = changed.iter().map(|(name, _)| *name).chain(gone.iter().copied());
            named.for_each(|name| _ = writeln!(text, ":{name} - [0:0]"));
            changed.iter().for_each(|(name, rules)| print_rules(name, rules, &mut text));
            text.push_str("COMMIT\n");
        }
        text
    }
}
