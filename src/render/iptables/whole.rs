//! Inputs of a whole state, for a kernel with any former one. The chains of a family change at once, and so do their
//! sets: first the chains match temporary sets, which nothing matched before, and then, with the same members, those
//! that a difference knows.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Chains, State, print_rules};
use crate::render::output::Part;

/// Beginning of a match on a set of a family, and the same for its temporary set.
const MATCHES: [[&str; 2]; 2] =
    [["--match-set pal4-", "--match-set pal4t-"], ["--match-set pal6-", "--match-set pal6t-"]];

impl State {
    /// Inputs that lead from any state to this.
    pub(super) fn inputs(&self) -> Vec<Part> {
        let [v4, v6] = &self.families;
        vec![
            Part { file: "palisade.ipset", text: self.temporary_sets() },
            Part { file: "palisade.iptables", text: v4.temporary_text("iptables-restore") },
            Part { file: "palisade.ip6tables", text: v6.temporary_text("ip6tables-restore") },
            Part { file: "palisade.ipset-final", text: self.final_sets() },
            Part { file: "palisade.iptables-final", text: v4.final_text("iptables-restore") },
            Part { file: "palisade.ip6tables-final", text: v6.final_text("ip6tables-restore") },
            self.removal_of_unused(),
        ]
    }

    fn temporary_sets(&self) -> String {
        let mut text = "# 1. Load with: ipset -exist restore -file FILE\n".to_owned();
        for name in &self.guards {
            // The former guard and the next are in force until both tables have changed.
            self.sets[name].print_declaration(name, &mut text);
        }
        for (name, set) in &self.sets {
            set.print_whole(&temporary(name), &mut text);
        }
        text
    }

    fn final_sets(&self) -> String {
        let mut text = "# 3. Load with: ipset -exist restore -file FILE\n".to_owned();
        self.sets.iter().for_each(|(name, set)| set.print_whole(name, &mut text));
        text
    }
}

impl Chains {
    /// Input with all chains, which match temporary sets. The guard matches both.
    fn temporary_text(&self, program: &str) -> String {
        let iptables = program.trim_end_matches("-restore");
        let mut text = format!("# 2. Load with: {program} --noflush FILE\n");
        for hook in [
            "-t raw -I PREROUTING -j palisade-guard",
            "-I FORWARD -j palisade-forward",
            "-I INPUT -j palisade-input",
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#    Once after it: {iptables} {hook}");
        }
        let raw = self.raw.iter().map(|(name, rules)| (name, [rules.clone(), in_temporary(rules)].concat()));
        let filter = self.filter.iter().map(|(name, rules)| (name, in_temporary(rules)));
        print_table("raw", &raw.collect(), &mut text);
        print_table("filter", &filter.collect(), &mut text);
        text
    }

    /// Input with the chains that match sets.
    fn final_text(&self, program: &str) -> String {
        let mut text = format!("# 4. Load with: {program} --noflush FILE\n");
        for (table, chains) in [("raw", &self.raw), ("filter", &self.filter)] {
            let matching = chains.iter().filter(|(_, rules)| in_temporary(rules) != **rules);
            print_table(table, &matching.map(|(name, rules)| (name, rules.clone())).collect(), &mut text);
        }
        text
    }
}

/// Name of the temporary set.
fn temporary(name: &str) -> String {
    name.replacen('-', "t-", 1)
}

/// Rules that match temporary sets.
fn in_temporary(rules: &[String]) -> Vec<String> {
    let rename = |rule: &String| MATCHES.iter().fold(rule.clone(), |rule, [from, to]| rule.replace(from, to));
    rules.iter().map(rename).collect()
}

fn print_table(table: &str, chains: &BTreeMap<&String, Vec<String>>, text: &mut String) {
    if chains.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "*{table}");
    chains.keys().for_each(|name| _ = writeln!(text, ":{name} - [0:0]"));
    chains.iter().for_each(|(name, rules)| print_rules(name, rules, text));
    text.push_str("COMMIT\n");
}
