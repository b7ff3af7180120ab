//! Renderings decide as the tables do, in interpreters that are written from the manuals of the systems: over the
//! conformance cases and over random clusters; and a difference leads to the state of the whole.

mod golden;
mod nft;
mod xtables;

use std::collections::BTreeMap;
use std::net::IpAddr;

use nft::Nft;
use palisade::net::flow::FlowKey;
use palisade::policy::testcase::ProbeExpansion;
use palisade::policy::{Compiler, Options};
use palisade::render::{Format, Part, RenderOptions, difference, render};
use palisade::tables::{Classifier, PodName, RuleTables};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use xtables::Xtables;

use crate::conformance::{corpus, own_cases, read};
use crate::incremental_compile::{History, flow, history};

const FORMATS: [Format; 2] = [Format::Nftables, Format::Iptables];
/// Number of random histories.
const HISTORIES: usize = if cfg!(debug_assertions) { 150 } else { 3_000 };

/// Kernel state of both systems.
#[derive(Debug, Default, PartialEq)]
struct Kernel {
    nft: Nft,
    xtables: Xtables,
}

impl Kernel {
    fn of(tables: &RuleTables, options: &RenderOptions) -> Kernel {
        let mut kernel = Kernel::default();
        FORMATS.iter().for_each(|format| kernel.load(&render(*format, tables, options).unwrap()));
        kernel
    }

    fn load(&mut self, parts: &[Part]) {
        for part in parts {
            match part.file {
                "palisade.nft" => self.nft.load(&part.text),
                file => self.xtables.load(file, &part.text),
            }
        }
    }

    /// Asserts that both systems decide as the tables.
    fn compare(&self, classifier: &Classifier, flow: &FlowKey, options: &RenderOptions) {
        let expected = classifier.decide_flow(flow).is_allow();
        let interface = |address: IpAddr| {
            let pod = classifier.pod_at(address).and_then(|pod| options.interfaces.get(pod));
            pod.map_or("uplink", String::as_str)
        };
        assert_eq!(self.nft.passes(flow), expected, "nftables: {flow}");
        let interfaces = [interface(flow.src), interface(flow.dst)];
        assert_eq!(self.xtables.passes(flow, interfaces), expected, "iptables: {flow} {interfaces:?}");
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
        let kernel = Kernel::of(tables, &options);
        for probe in &case.probes {
            for flow in expansion.flows(probe).unwrap() {
                kernel.compare(&classifier, &flow, &options);
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
        let mut before: Option<(RuleTables, Kernel, RenderOptions)> = None;
        for (step, picks) in history().new_tree(&mut runner).unwrap().current() {
            replayed.apply(step);
            let tables = &replayed.tables;
            // The numbers of an incremental compile do not show.
            let scratch = Compiler::from_objects(replayed.objects.values().cloned(), Options::default());
            let options = some_interfaces(tables, &replayed.classifier);
            for format in FORMATS {
                let whole = render(format, tables, &options).unwrap();
                assert_eq!(whole, render(format, scratch.tables(), &options).unwrap());
            }
            let kernel = Kernel::of(tables, &options);
            let addresses = replayed.addresses();
            for pick in picks {
                let flow = flow(&addresses, pick);
                kernel.compare(&replayed.classifier, &flow, &options);
                *flows.entry(replayed.classifier.decide_flow(&flow).is_allow()).or_insert(0) += 1;
            }
            if let Some((old, mut changed, same)) = before.take() {
                for format in FORMATS {
                    changed.load(&difference(format, &old, tables, &same).unwrap());
                }
                assert_eq!(changed, Kernel::of(tables, &same), "a difference and the whole");
                changes += 1;
            }
            let valid = RenderOptions::default();
            before = Some((tables.clone(), Kernel::of(tables, &valid), valid));
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
    for pod in tables.pods.keys() {
        let options = RenderOptions { pod: Some(pod.clone()), interfaces: BTreeMap::new() };
        let mut alone = tables.clone();
        let others: Vec<PodName> = tables.pods.keys().filter(|other| *other != pod).cloned().collect();
        others.iter().for_each(|other| _ = alone.pods.remove(other));
        for format in FORMATS {
            let of_pod = render(format, tables, &options).unwrap();
            assert_eq!(of_pod, render(format, &alone, &RenderOptions::default()).unwrap());
        }
    }
    let unknown = RenderOptions { pod: Some(PodName::new("no", "pod")), interfaces: BTreeMap::new() };
    assert!(render(Format::Nftables, tables, &unknown).unwrap_err().to_string().contains("no/pod"));
}
