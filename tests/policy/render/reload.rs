//! Loading of a whole state of `iptables` over another: no command shows a verdict that neither state gives.

use std::ops::Range;

use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_sources};
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderOptions, difference, render};
use palisade::tables::RuleTables;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

use super::System;
use super::xtables::Xtables;
use crate::incremental_compile::{History, flow, history};
use crate::random::histories;

/// Number of random histories.
const HISTORIES: u64 = 10;
/// Seeds that are always played.
const SEEDS: Range<u64> = 0..20;

/// Parts of a file that change at once: a line of ipset, a table of iptables.
fn steps(part: &Part) -> Vec<String> {
    match part.file {
        "palisade.unused" => vec![part.text.clone()],
        file if file.starts_with("palisade.ipset") => part.text.lines().map(str::to_owned).collect(),
        _ => part.text.split_inclusive("COMMIT\n").map(str::to_owned).collect(),
    }
}

/// Verdicts on each flow, if its source is where the node's routes say, and if it is forged.
fn verdicts(system: &Xtables, flows: &[FlowKey]) -> Vec<[bool; 2]> {
    let uplinks = ["uplink"; 2];
    flows.iter().map(|flow| [system.passes(flow, uplinks), system.passes_forged(flow, uplinks)]).collect()
}

fn loaded(parts: &[Part]) -> Xtables {
    let mut system = Xtables::default();
    system.load(parts);
    system
}

/// Loads one state over another, and asserts that each verdict after each step is that of one of them. Returns the number
/// of steps, and of flows that the states decide otherwise.
fn check_steps(old: &[Part], new: &[Part], flows: &[FlowKey]) -> (usize, usize) {
    let mut system = loaded(old);
    let (from, to) = (verdicts(&system, flows), verdicts(&loaded(new), flows));
    let mut count = 0;
    for (part, step) in new.iter().flat_map(|part| steps(part).into_iter().map(move |step| (part, step))) {
        system.run_file(part.file, &step);
        for (index, now) in verdicts(&system, flows).iter().enumerate() {
            let is_known = (0..2).all(|kind| now[kind] == from[index][kind] || now[kind] == to[index][kind]);
            assert!(is_known, "{}: {now:?} after {}: {step}", flows[index], part.file);
        }
        count += 1;
    }
    assert_eq!(verdicts(&system, flows), to);
    (count, from.iter().zip(&to).filter(|(from, to)| from != to).count())
}

fn whole(tables: &RuleTables) -> Vec<Part> {
    render(Format::Iptables, ClusterState { tables, objects: &[] }, &RenderOptions::default()).unwrap()
}

fn since(old: &RuleTables, new: &RuleTables) -> Vec<Part> {
    let state = |tables| ClusterState { tables, objects: &[] };
    difference(Format::Iptables, state(old), state(new), &RenderOptions::default()).unwrap()
}

#[test]
fn a_reload_of_ipsets_shows_no_verdict_that_neither_state_gives() {
    let (mut steps, mut changed) = (0, 0);
    for seed in histories("reloads", SEEDS, HISTORIES) {
        let mut runner = TestRunner::new_with_rng(Config::default(), seed.rng());
        let mut replayed = History::new();
        let mut before: Option<Vec<Part>> = None;
        for (step, picks) in history().new_tree(&mut runner).unwrap().current() {
            replayed.apply(step);
            let parts = whole(&replayed.tables);
            if let Some(old) = before.replace(parts.clone()) {
                let addresses = replayed.addresses();
                let flows: Vec<FlowKey> = picks.into_iter().map(|pick| flow(&addresses, pick)).collect();
                let (more, differing) = check_steps(&old, &parts, &flows);
                if seed.is_committed {
                    (steps, changed) = (steps + more, changed + differing);
                }
            }
        }
    }
    // A run with a seed of its own plays no committed ones.
    let seeds = SEEDS.end as usize;
    assert!(steps == 0 || steps > 20 * seeds && changed > seeds, "{steps} {changed}");
}

#[test]
fn any_history_of_loads_leaves_the_last_state_alone() {
    for seed in histories("loads", SEEDS, HISTORIES) {
        let mut runner = TestRunner::new_with_rng(Config::default(), seed.rng());
        let mut replayed = History::new();
        let (mut system, mut with_leftovers) = (Xtables::default(), Xtables::default());
        let mut before: Option<RuleTables> = None;
        for (number, (step, picks)) in
            history().new_tree(&mut runner).unwrap().current().into_iter().enumerate()
        {
            replayed.apply(step);
            let tables = &replayed.tables;
            // A state is loaded as a whole over the one before, and then changed.
            let parts = match before.replace(tables.clone()) {
                Some(old) if number % 2 == 0 => since(&old, tables),
                _ => whole(tables),
            };
            let expected = loaded(&whole(tables));
            system.load(&parts);
            assert_eq!(system, expected, "load {number}");
            // An operator who leaves the last step out has chains of former states, which decide on nothing.
            let [steps @ .., _] = parts.as_slice() else { unreachable!() };
            with_leftovers.load(steps);
            let addresses = replayed.addresses();
            let flows: Vec<FlowKey> = picks.into_iter().map(|pick| flow(&addresses, pick)).collect();
            assert_eq!(verdicts(&with_leftovers, &flows), verdicts(&expected, &flows), "load {number}");
        }
    }
}

/// A pod, in a namespace that another document has.
fn pod(name: &str, address: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default, labels: {{app: {name}}}}}
spec: {{containers: [{{name: c, image: i}}]}}
status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}
"
    )
}

#[test]
fn the_guard_of_both_states_is_in_force_until_rules_and_guard_have_changed() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n";
    let isolated = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: default}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
";
    let state = |text: String| {
        let parsed = parse_sources(&[Source::new("manifests", &text)]).unwrap();
        let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
        whole(Compiler::from_objects(objects, Options::default()).tables())
    };
    let db = pod("db", "10.0.0.2");
    // The old guard drops the address of the other pod, and the new rules drop everything to the database.
    let old = state(format!("{namespace}{db}{}", pod("other", "10.0.0.3")));
    let new = state(format!("{namespace}{db}{isolated}"));
    let flow = FlowKey {
        src: "10.0.0.3".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        src_port: 40_000,
        dst_port: 80,
        protocol: Protocol::TCP,
    };
    assert_eq!(verdicts(&loaded(&old), &[flow]), [[true, false]]);
    assert_eq!(verdicts(&loaded(&new), &[flow]), [[false, false]]);
    check_steps(&old, &new, &[flow]);
    check_steps(&new, &old, &[flow]);
}
