//! `OpenFlow`: flows of `ovs-ofctl` with connection tracking, for the pods of one bridge of Open vSwitch.
//!
//! A packet goes through tables in order: its sender, its connection, the rule list of its source, that of its
//! destination. A rule list is a number in `reg1`. The class of a peer, in `reg3`, stands for the sets that hold its
//! address, so that an exception in a block is a longer prefix of one table. Classes and ports meet in conjunctions.

mod classes;
mod guard;
mod rules;
mod tables;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use super::plan::{Endpoint, Family, Plan, comment, digest};
use crate::render::output::{Part, RenderError, RenderOptions};
use crate::render::rendering::{ClusterState, Rendering, plans};
use tables::{Side, Table};

/// Name of the file.
const FILE: &str = "palisade.flows";
/// Zone of the connections.
const ZONE: u16 = 0xf000;
/// Most rule lists of one address: each takes one of the 64 nested lookups of Open vSwitch.
const LISTS_MAX: usize = 32;

/// Flows by table, priority and match.
#[derive(Default)]
pub(super) struct Flows {
    flows: BTreeMap<FlowKey, Flow>,
    numbers: Numbers,
}

/// Table, priority and match of a flow, in the order of printing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FlowKey {
    table: Table,
    priority: Reverse<u16>,
    matches: String,
}

/// Actions of a flow.
struct Flow {
    actions: String,
    note: String,
}

impl Rendering for Flows {
    fn new(state: ClusterState, options: &RenderOptions) -> Result<Flows, RenderError> {
        let mut flows = Flows::default();
        flows.add_frame();
        for (plan, family) in plans(state.tables, options).iter().zip(Family::ALL) {
            flows.add_guard(plan, family, options);
            flows.add_rules(plan, family)?;
            flows.add_dispatch(plan, family)?;
        }
        Ok(flows)
    }

    /// Flows of a bridge that has no others.
    fn parts(&self) -> Vec<Part> {
        let mut text = "# Load with: ovs-ofctl -O OpenFlow15 --bundle replace-flows BRIDGE FILE\n".to_owned();
        let mut table = None;
        for (key, flow) in &self.flows {
            if table.replace(key.table) != Some(key.table) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "\n# {}", key.table.describe());
            }
            key.print(&mut text);
            let note = if flow.note.is_empty() { String::new() } else { format!(" # {}", flow.note) };
            let _ = writeln!(text, " actions={}{note}", flow.actions);
        }
        vec![Part { file: FILE, text }]
    }

    fn parts_since(&self, old: &Flows) -> Vec<Part> {
        let mut text = "# Load with: ovs-ofctl -O OpenFlow15 --bundle add-flows BRIDGE FILE\n".to_owned();
        for key in old.flows.keys().filter(|key| !self.flows.contains_key(*key)) {
            text.push_str("delete_strict ");
            key.print(&mut text);
            text.push('\n');
        }
        for (key, flow) in &self.flows {
            let verb = match old.flows.get(key) {
                None => "add",
                Some(before) if before.actions != flow.actions => "modify_strict",
                Some(_) => continue,
            };
            let _ = write!(text, "{verb} ");
            key.print(&mut text);
            let _ = writeln!(text, " actions={}", flow.actions);
        }
        vec![Part { file: FILE, text }]
    }
}

impl Flows {
    fn add(&mut self, table: Table, priority: u16, matches: &str, actions: &str, note: &str) {
        let key = FlowKey { table, priority: Reverse(priority), matches: matches.to_owned() };
        self.flows.insert(key, Flow { actions: actions.to_owned(), note: comment(note) });
    }

    /// Adds the flows that do not depend on policy.
    fn add_frame(&mut self) {
        let commit = format!("ct(commit,zone={ZONE}),NORMAL");
        for (word, family) in Family::ALL.map(|family| (tables::word(family), family)) {
            let pass = tables::goto(Table::Output);
            self.add(Table::State, 100, &format!("{word},ct_state=+trk+est"), &pass, "Replies");
            self.add(Table::State, 100, &format!("{word},ct_state=+trk+rel"), &pass, "Related ICMP errors");
            for side in [Side::From, Side::To] {
                // Its connection tracking calls each packet of other protocols invalid.
                for protocol in [6, 17, 132, if family == Family::V4 { 1 } else { 58 }] {
                    let invalid = format!("{word},ct_state=+trk+inv,nw_proto={protocol}");
                    self.add(side.rules(), 40, &invalid, "drop", "");
                }
            }
            self.add(Table::Output, 10, &format!("{word},ct_state=+trk+new"), &commit, "");
        }
        self.add(Table::State, 0, "", &tables::goto(Table::Source), "");
        self.add(Table::Source, 0, "", &tables::goto(Table::Destination), "");
        self.add(Table::DestinationClass, 0, "", "set_field:0x0->reg3,goto_table:6", "");
        self.add(Table::Destination, 0, "", &tables::goto(Table::Output), "");
        self.add(Table::SourceClass, 0, "", "set_field:0x0->reg3,goto_table:9", "");
        self.add(Table::Shared, 0, "", &tables::goto(Table::Output), "");
        self.add(Table::Output, 0, "", "NORMAL", "");
    }

    /// Adds the flows that lead from the address of a pod to its rule list.
    fn add_dispatch(&mut self, plan: &Plan, family: Family) -> Result<(), RenderError> {
        let word = tables::word(family);
        let [source, destination] = tables::address_fields(family);
        for (address, endpoint) in &plan.endpoints {
            let note = |list: &str| format!("{}: {list}", owner(endpoint));
            for other in &endpoint.own {
                let pair = format!("{word},{source}={address},{destination}={other}");
                self.add(Table::State, 90, &pair, &tables::goto(Table::Output), "A pod and itself");
            }
            for node in &endpoint.nodes {
                let pair = format!("{word},{source}={node},{destination}={address}");
                self.add(Table::Destination, 20, &pair, &tables::goto(Table::Output), "The pod's node");
            }
            for (side, field, lists) in
                [(Side::From, source, &endpoint.egress), (Side::To, destination, &endpoint.ingress)]
            {
                if lists.len() > LISTS_MAX {
                    let (found, max) = (lists.len(), LISTS_MAX);
                    return Err(RenderError::TooManyLists { address: *address, found, max });
                }
                let Some(first) = lists.first() else { continue };
                let actions = self.load(family, side, lists);
                let matches = format!("{word},{field}={address}");
                let actions = format!("{actions},{}", tables::goto(side.class()));
                self.add(side.dispatch(), 10, &matches, &actions, &note(first));
            }
        }
        Ok(())
    }

    /// Actions that load the first of these lists, and the number of the others. The last has none.
    fn load(&mut self, family: Family, side: Side, lists: &[String]) -> String {
        let list = self.list_number(family, &lists[0]);
        let [_, others @ ..] = lists else { unreachable!("a pod has a list") };
        if others.is_empty() {
            return format!("set_field:{list:#x}->reg1");
        }
        let name = format!("{family:?} {} {}", side.word(), others.join(" "));
        let number = self.numbers.of(&name);
        let next = self.load(family, side, others);
        let clear = if others.len() == 1 { ",set_field:0->reg2" } else { "" };
        let actions = format!("{next}{clear},resubmit(,{})", side.class() as u8);
        self.add(side.after(), 30, &format!("reg2={number:#x}"), &actions, &others.join(" "));
        format!("set_field:{list:#x}->reg1,set_field:{number:#x}->reg2")
    }

    fn list_number(&mut self, family: Family, name: &str) -> u32 {
        self.numbers.of(&format!("{family:?} {name}"))
    }
}

impl FlowKey {
    fn print(&self, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(text, "table={},priority={}", self.table as u8, self.priority.0);
        if !self.matches.is_empty() {
            let _ = write!(text, ",{}", self.matches);
        }
    }
}

fn owner(endpoint: &Endpoint) -> String {
    let pods: Vec<String> = endpoint.pods.iter().map(ToString::to_string).collect();
    pods.join(" and ")
}

/// Numbers of lists, classes and conjunctions: digests of their names. A number that is taken is counted up.
#[derive(Default)]
struct Numbers {
    by_name: HashMap<String, u32, foldhash::fast::RandomState>,
    taken: BTreeSet<u32>,
}

impl Numbers {
    fn of(&mut self, name: &str) -> u32 {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let text = digest(name);
        let mut number = u32::from_str_radix(&text[..8], 16).unwrap_or_default();
        // Zero is a register that is not set.
        while number == 0 || !self.taken.insert(number) {
            number = number.wrapping_add(1);
        }
        self.by_name.insert(name.to_owned(), number);
        number
    }
}
