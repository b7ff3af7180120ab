//! Renderings decide as the tables do, in interpreters that are written from the manuals of the systems: over the
//! conformance cases and over random clusters; and a difference leads to the state of the whole.

mod golden;
mod nft;
mod openflow;
mod xtables;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use nft::Nft;
use openflow::Bridge;
use palisade::net::flow::FlowKey;
use palisade::policy::objects::Object;
use palisade::policy::testcase::ProbeExpansion;
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderOptions, difference, render};
use palisade::tables::{Classifier, PodName, RuleTables};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use xtables::Xtables;

use crate::conformance::{corpus, own_cases, read};
use crate::incremental_compile::{History, flow, history};

/// Number of random histories.
const HISTORIES: usize = if cfg!(debug_assertions) { 150 } else { 3_000 };

/// System that has loaded its rules. Its debug text is its state.
trait System: Debug {
    /// Loads parts of a whole or of a difference.
    fn load(&mut self, parts: &[Part]);

    /// Tests whether a flow passes that comes in at the first interface and leaves by the second.
    fn passes(&self, flow: &FlowKey, interfaces: [&str; 2]) -> bool;
}

/// Interpreters by format.
fn system(format: Format) -> Box<dyn System> {
    match format {
        Format::Nftables => Box::<Nft>::default(),
        Format::Iptables => Box::<Xtables>::default(),
        Format::Openflow => Box::<Bridge>::default(),
    }
}

/// State of each system.
#[derive(Debug)]
struct Systems(Vec<(Format, Box<dyn System>)>);

impl Systems {
    fn of(state: ClusterState, options: &RenderOptions) -> Systems {
        let mut systems = Systems(Format::ALL.map(|format| (format, system(format))).into());
        systems.load(|format| render(format, state, options).unwrap());
        systems
    }

    fn load(&mut self, parts: impl Fn(Format) -> Vec<Part>) {
        self.0.iter_mut().for_each(|(format, system)| system.load(&parts(*format)));
    }

    /// Asserts that each system decides as the tables.
    fn compare(&self, classifier: &Classifier, flow: &FlowKey, options: &RenderOptions) {
        let expected = classifier.decide_flow(flow).is_allow();
        let interface = |address: IpAddr| {
            let pod = classifier.pod_at(address).and_then(|pod| options.interfaces.get(pod));
            pod.map_or("uplink", String::as_str)
        };
        let interfaces = [interface(flow.src), interface(flow.dst)];
        for (format, system) in &self.0 {
            assert_eq!(system.passes(flow, interfaces), expected, "{format:?}: {flow} {interfaces:?}");
        }
    }

    /// Asserts that the states are the same.
    fn assert_same(&self, other: &Systems) {
        for ((format, left), (_, right)) in self.0.iter().zip(&other.0) {
            assert_eq!(format!("{left:?}"), format!("{right:?}"), "{format:?}: a difference and the whole");
        }
    }
}

/// Interfaces for every other pod, of those whose addresses no other pod claims.
fn some_interfaces(tables: &RuleTables, classifier: &Classifier) -> RenderOptions {
    let is_sole = |address: &IpAddr| classifier.pods_at(*address).count() == 1;
    let named = tables.pods.iter().filter(|(_, pod)| pod.addresses.iter().all(is_sole)).step_by(2);
    let interfaces = named.enumerate().map(|(number, (pod, _))| (pod.clone(), format!("veth{number}")));
    RenderOptions { pod: None, interfaces: interfaces.collect() }
}

/// Compares every probe of a file. Returns the number of probes.
fn compare_file(path: &std::path::Path) -> usize {
    let mut probes = 0;
    for (number, case) in read(path).into_iter().enumerate() {
        let expansion = ProbeExpansion::new(&case);
        let compiler = Compiler::from_objects(expansion.objects().iter().cloned(), Options::default());
        let tables = compiler.tables();
        let classifier = Classifier::new(tables).unwrap();
        let (without, with) = (RenderOptions::default(), some_interfaces(tables, &classifier));
        let options = if number % 2 == 0 { without } else { with };
        let systems = Systems::of(ClusterState { tables, objects: expansion.objects() }, &options);
        for probe in &case.probes {
            for flow in expansion.flows(probe).unwrap() {
                systems.compare(&classifier, &flow, &options);
            }
            probes += 1;
        }
    }
    probes
}

#[test]
fn the_cases_of_other_projects_pass() {
    for (name, probes) in
        [("k8s-e2e.json", 506), ("cyclonus.json", 109_956), ("knp.json", 38), ("cnp-conformance.json", 301)]
    {
        let Some(path) = corpus(name) else { continue };
        assert_eq!(compare_file(&path), probes, "{name}");
    }
}

#[test]
fn our_own_cases_pass() {
    assert!(own_cases().iter().map(|path| compare_file(path)).sum::<usize>() >= 130);
}

#[test]
fn random_clusters_and_the_differences_of_their_changes_pass() {
    let mut runner = TestRunner::deterministic();
    let (mut flows, mut changes) = (BTreeMap::new(), 0);
    for _ in 0..HISTORIES {
        let mut replayed = History::new();
        let mut before: Option<(RuleTables, Vec<Object>, Systems)> = None;
        for (step, picks) in history().new_tree(&mut runner).unwrap().current() {
            replayed.apply(step);
            let tables = &replayed.tables;
            let objects: Vec<Object> = replayed.objects.values().cloned().collect();
            let state = ClusterState { tables, objects: &objects };
            // The numbers of an incremental compile do not show.
            let scratch = Compiler::from_objects(objects.iter().cloned(), Options::default());
            let scratch = ClusterState { tables: scratch.tables(), objects: &objects };
            let options = some_interfaces(tables, &replayed.classifier);
            for format in Format::ALL {
                let whole = render(format, state, &options).unwrap();
                assert_eq!(whole, render(format, scratch, &options).unwrap());
            }
            let systems = Systems::of(state, &options);
            let addresses = replayed.addresses();
            for pick in picks {
                let flow = flow(&addresses, pick);
                systems.compare(&replayed.classifier, &flow, &options);
                *flows.entry(replayed.classifier.decide_flow(&flow).is_allow()).or_insert(0) += 1;
            }
            let same = RenderOptions::default();
            let whole = Systems::of(state, &same);
            if let Some((tables, objects, mut changed)) = before.take() {
                let old = ClusterState { tables: &tables, objects: &objects };
                changed.load(|format| difference(format, old, state, &same).unwrap());
                changed.assert_same(&whole);
                changes += 1;
            }
            before = Some((tables.clone(), objects, whole));
        }
    }
    assert!(flows.len() == 2 && flows.values().all(|count| *count > HISTORIES), "{flows:?}");
    assert!(changes > HISTORIES / 2, "{changes}");
}

#[test]
fn a_rendering_of_one_pod_has_its_rules_alone() {
    let path = &own_cases()[0];
    let case = &read(path)[0];
    let expansion = ProbeExpansion::new(case);
    let compiler = Compiler::from_objects(expansion.objects().iter().cloned(), Options::default());
    let tables = compiler.tables();
    let objects = expansion.objects();
    let state = ClusterState { tables, objects };
    for pod in tables.pods.keys() {
        let options = RenderOptions { pod: Some(pod.clone()), interfaces: BTreeMap::new() };
        let mut alone = tables.clone();
        let others: Vec<PodName> = tables.pods.keys().filter(|other| *other != pod).cloned().collect();
        others.iter().for_each(|other| _ = alone.pods.remove(other));
        for format in Format::ALL {
            let of_pod = render(format, state, &options).unwrap();
            let alone = ClusterState { tables: &alone, objects };
            assert_eq!(of_pod, render(format, alone, &RenderOptions::default()).unwrap());
        }
    }
    let unknown = RenderOptions { pod: Some(PodName::new("no", "pod")), interfaces: BTreeMap::new() };
    for format in Format::ALL {
        assert!(render(format, state, &unknown).unwrap_err().to_string().contains("no/pod"));
    }
}
