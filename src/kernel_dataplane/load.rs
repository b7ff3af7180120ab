//! Loads of rules into the kernel, in steps between which packets pass.
//!
//! A transaction of nftables is not one instant: the kernel takes new rules into use before it publishes the elements of new
//! sets, and ends the elements of deleted maps while packets are in the old rules; and a packet in the old rules that a new
//! element leads to a new chain finds that chain empty. So new chains and sets are loaded before anything leads to them, and old
//! ones are removed when nothing leads to them and no packet is in them.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use super::KernelDataplane;
use super::counters::{Decisions, KernelCounters};
use super::rules::{Rules, Steps};
use super::table_names::{TableNames, is_ours};

/// Pause on kernels that cannot say when no packet is in earlier rules.
const PAUSE: Duration = Duration::from_millis(50);

impl KernelDataplane {
    /// Loads a change of the rules in force. Adds the packets that removed rules have decided on to `retired`.
    pub(super) fn load_change(
        &self,
        [added, changed, removed]: &Steps,
        before: &Rules,
        retired: &mut Decisions,
    ) -> Result<(), String> {
        for step in [added, changed] {
            if !step.is_empty() {
                self.nft.load(step)?;
            }
        }
        if removed.is_empty() {
            return Ok(());
        }
        wait_for_packets();
        // Counters end with their rules.
        let counted = KernelCounters::read(&self.nft);
        self.nft.load(removed)?;
        if let (Ok(counted), Ok(left)) = (counted, KernelCounters::read(&self.nft)) {
            counted.without(&left).add_decisions(&before.decisions(), retired);
        }
        Ok(())
    }

    /// Loads all rules into tables of other names than those in force, and removes these. A packet meets one of both, or both.
    /// Returns the rules with their names.
    pub(super) fn replace(&self, rules: Rules) -> Result<Rules, String> {
        let hooks = self.hooks()?;
        let is_free =
            |names: &TableNames| !hooks.iter().any(|(table, _)| names.all().contains(&table.as_str()));
        // After a load that was interrupted behind its second step both are in force, and either may go.
        let names = TableNames::BOTH.into_iter().find(is_free).unwrap_or_default();
        let rules = rules.named(names);
        let [added, changed, _] = rules.whole().map_err(|error| error.to_string())?;
        self.remove_tables(names)?;
        self.nft.load(&added)?;
        self.nft.load(&changed)?;
        wait_for_packets();
        self.remove_tables(names.other())?;
        Ok(rules)
    }

    /// Removes the chains at hooks, and then the tables.
    pub(super) fn remove_tables(&self, names: TableNames) -> Result<(), String> {
        let mut unhooked = String::new();
        for (table, chain) in self.hooks()?.iter().filter(|(table, _)| names.all().contains(&table.as_str()))
        {
            let _ = writeln!(unhooked, "flush chain {table} {chain}\ndelete chain {table} {chain}");
        }
        if !unhooked.is_empty() {
            self.nft.load(&unhooked)?;
            wait_for_packets();
        }
        let commands = names.all().map(|table| format!("add table {table}\ndelete table {table}\n"));
        self.nft.load(&commands.concat())
    }

    /// Tables of Palisade with the names of their chains at hooks.
    fn hooks(&self) -> Result<Vec<(String, String)>, String> {
        let listed = self.nft.list(&["chains"])?;
        let objects = listed["nftables"].as_array().into_iter().flatten().map(|object| &object["chain"]);
        let hooks = objects.filter(|chain| chain["hook"].is_string()).filter_map(|chain| {
            let [family, table, name] = ["family", "table", "name"].map(|key| chain[key].as_str());
            let (family, table, name) = (family?, table?, name?);
            is_ours(family, table).then(|| (format!("{family} {table}"), name.to_owned()))
        });
        Ok(hooks.collect())
    }
}

/// Waits until no packet is in rules that were in force before: for a grace period of RCU (membarrier(2)).
fn wait_for_packets() {
    if membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PAUSE);
    }
}
