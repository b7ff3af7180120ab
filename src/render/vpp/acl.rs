//! Input of `vppctl exec` for the ACL plugin: lists, and the interfaces at which they are.
//!
//! The first rule of a list that matches decides, and a packet that none matches is dropped. The plugin numbers lists
//! in the order in which they are made. `output` is to a pod: its interface has the local table there. A list at
//! its `input` permits everything with `permit+reflect`, so that replies pass the local table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::prefix;
use crate::render::contiv::cache::Cache;
use crate::render::contiv::rule::{Language, Rule};
use crate::render::output::{Part, RenderError, RenderOptions};
use crate::render::plan::{digest, identifier};
use crate::render::rendering::{ClusterState, Rendering, plans};
use crate::tables::{Direction, PodName};

/// Rules of the plugin have ranges of ports.
const LANGUAGE: Language = Language { name: "vpp-acl", has_ranges: true };

/// Name of the file.
const FILE: &str = "palisade.vpp-acl";

/// Tag of the list that permits everything and reflects it.
const REFLECT: &str = "palisade-reflect";

/// Ports of a rule that matches all of them.
const ALL_PORTS: (u16, u16) = (0, u16::MAX);

/// Lists by their tags, and the tags of the lists at interfaces.
pub(in crate::render) struct State {
    acls: BTreeMap<String, Acl>,
    bindings: BTreeMap<(String, Side), String>,
}

/// List.
struct Acl {
    /// Pods for which it is, in words.
    title: String,
    /// Rules in order.
    rules: String,
}

/// Side of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// Packets that come in at the interface.
    Input,
    /// Packets that leave by the interface.
    Output,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Side::Input { "input" } else { "output" })
    }
}

impl State {
    /// Binds a list to the output of an interface, and the list that reflects to its input.
    fn bind(&mut self, interface: String, tag: String) {
        let everything = ["0.0.0.0/0", "::/0"].map(|all| format!("permit+reflect src {all} dst {all}"));
        let reflect = Acl { title: "replies".to_owned(), rules: everything.join(", ") };
        self.acls.entry(REFLECT.to_owned()).or_insert(reflect);
        self.bindings.insert((interface.clone(), Side::Input), REFLECT.to_owned());
        self.bindings.insert((interface, Side::Output), tag);
    }

    /// Tags of the lists, in the order of their numbers after [`Rendering::parts`].
    fn tags(&self) -> impl Iterator<Item = &String> {
        self.acls.keys()
    }
}

impl Rendering for State {
    fn new(cluster: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        let cache = Cache::new(&plans(cluster.tables, options), Direction::Ingress, LANGUAGE)?;
        let mut state = State { acls: BTreeMap::new(), bindings: BTreeMap::new() };
        let mut pods: BTreeMap<&String, Vec<&PodName>> = BTreeMap::new();
        cache.assigned.iter().for_each(|(pod, id)| pods.entry(id).or_default().push(pod));
        for (id, rules) in &cache.tables {
            let acl = Acl { title: title(&pods[id]), rules: text(rules) };
            state.acls.insert(format!("palisade-{id}"), acl);
        }
        for (pod, id) in &cache.assigned {
            let named = options.interfaces.get(pod).cloned();
            let interface = named.unwrap_or_else(|| format!("interface-of:{}", identifier(&pod.to_string())));
            state.bind(interface, format!("palisade-{id}"));
        }
        if !cache.global.is_empty() {
            let rules = text(&cache.global);
            let tag = format!("palisade-global-{}", digest(&rules));
            state.acls.insert(tag.clone(), Acl { title: "uplinks".to_owned(), rules });
            let unnamed = ["interface-of:uplink".to_owned()];
            let uplinks = if options.uplinks.is_empty() { &unnamed[..] } else { &options.uplinks };
            uplinks.iter().for_each(|uplink| state.bind(uplink.clone(), tag.clone()));
        }
        Ok(state)
    }

    fn parts(&self) -> Vec<Part> {
        let text =
            "comment { Load with vppctl exec. For a VPP without lists of the ACL plugin. }\n".to_owned();
        self.change(text, &State { acls: BTreeMap::new(), bindings: BTreeMap::new() })
    }

    fn parts_since(&self, old: &State) -> Vec<Part> {
        let count = old.acls.len();
        let text = format!(
            "comment {{ Load with vppctl exec. For a VPP with the whole of the old state, whose lists have the \
             numbers below {count}. }}\n"
        );
        self.change(text, old)
    }
}

impl State {
    /// Adds the commands that lead from another state, which has been loaded as a whole. New lists are made and
    /// bound before the old ones go.
    fn change(&self, mut text: String, old: &State) -> Vec<Part> {
        let mut numbers: BTreeMap<&String, usize> = old.tags().zip(0..).collect();
        let added: Vec<&String> = self.tags().filter(|tag| !old.acls.contains_key(*tag)).collect();
        for tag in added {
            numbers.insert(tag, numbers.len());
            let Acl { title, rules } = &self.acls[tag];
            // Writing to a string cannot fail.
            let _ = write!(text, "comment {{ {title} }}\nset acl-plugin acl {rules} tag {tag}\n");
        }
        let places: BTreeSet<&(String, Side)> = self.bindings.keys().chain(old.bindings.keys()).collect();
        for place in places {
            let (before, after) = (old.bindings.get(place), self.bindings.get(place));
            if before == after {
                continue;
            }
            let (interface, side) = place;
            let mut bind = |tag: Option<&String>, end: &str| {
                let Some(tag) = tag else { return };
                _ = writeln!(text, "set acl-plugin interface {interface} {side} acl {}{end}", numbers[tag]);
            };
            bind(after, "");
            bind(before, " del");
        }
        for tag in old.tags().filter(|tag| !self.acls.contains_key(*tag)) {
            let _ = writeln!(text, "delete acl-plugin acl index {}", numbers[tag]);
        }
        vec![Part { file: FILE, text }]
    }
}

/// Pods of a table in words.
fn title(pods: &[&PodName]) -> String {
    let first = identifier(&pods[0].to_string());
    if pods.len() == 1 { first } else { format!("{first} and {} more", pods.len() - 1) }
}

/// Rules as the plugin reads them.
fn text(rules: &[Rule]) -> String {
    let rule = |rule: &Rule| {
        let action = if rule.permits { "permit" } else { "deny" };
        let mut text = format!("{action} src {} dst {}", prefix(&rule.source), prefix(&rule.destination));
        if let Some(protocol) = rule.protocol {
            let _ = write!(text, " proto {}", protocol.0);
        }
        match rule.ports {
            ALL_PORTS => {}
            (first, last) if first == last => _ = write!(text, " dport {first}"),
            (first, last) => _ = write!(text, " dport {first}-{last}"),
        }
        text
    };
    rules.iter().map(rule).collect::<Vec<String>>().join(", ")
}
