//! Renderings decide as the tables do, in interpreters that are written from the manuals of the systems: over the
//! conformance cases and over random clusters; and a difference leads to the state of the whole.

mod contiv;
mod golden;
mod identity;
mod identity_maps;
mod kuryr;
mod nft;
mod openflow;
mod reload;
mod security_groups;
mod tables;
mod vpp;
mod vpp_acl;
mod vpptcp;
mod xtables;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::ops::Range;

use contiv::Contiv;
use identity::Cilium;
use nft::Nft;
use openflow::Bridge;
use palisade::net::flow::FlowKey;
use palisade::policy::objects::Object;
use palisade::policy::testcase::ProbeExpansion;
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderError, RenderOptions, difference, render};
use palisade::tables::{Classifier, Direction, PodName, RuleTables};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use security_groups::Neutron;
use vpp_acl::Plugin;
use vpptcp::Sessions;
use xtables::Xtables;

use crate::conformance::{corpus, own_cases, read};
use crate::incremental_compile::{History, flow, history};
use crate::random::histories;

/// Number of random histories.
const HISTORIES: u64 = 5;
/// Seeds that are always played. The shares of the renderings are theirs.
const SEEDS: Range<u64> = 0..15;

/// System that has loaded its rules. Its debug text is its state.
trait System: Debug {
    /// Loads parts of a whole or of a difference.
    fn load(&mut self, parts: &[Part]);

    /// Tests whether a flow passes that comes in at the first interface and leaves by the second.
    fn passes(&self, flow: &FlowKey, interfaces: [&str; 2]) -> bool;

    /// Tests the same with what the system says of sources at interfaces. `None` where its interpreter does not read that.
    fn passes_bindings(&self, _flow: &FlowKey, _interfaces: [&str; 2]) -> Option<bool> {
        None
    }

    /// Tests whether the system can tell the flow from others. If not, it may drop a flow that the tables allow.
    fn is_exact(&self, _flow: &FlowKey) -> bool {
        true
    }
}

/// Interpreters by format.
fn system(format: Format) -> Box<dyn System> {
    match format {
        Format::Nftables => Box::<Nft>::default(),
        Format::Iptables => Box::<Xtables>::default(),
        Format::Contiv => Box::<Contiv>::default(),
        Format::VppAcl => Box::<Plugin>::default(),
        Format::Vpptcp => Box::<Sessions>::default(),
        Format::Openflow => Box::<Bridge>::default(),
        Format::SecurityGroups => Box::<Neutron>::default(),
        Format::Identity => Box::<Cilium>::default(),
    }
}

/// Rendering, unless the format cannot express the state, and refuses it by name.
fn unless_refused(format: Format, rendering: Result<Vec<Part>, RenderError>) -> Option<Vec<Part>> {
    match (format, rendering) {
        (
            Format::Contiv | Format::VppAcl | Format::Vpptcp | Format::Openflow,
            Err(RenderError::Inexpressible { .. }),
        )
        | (Format::SecurityGroups, Err(RenderError::GroupTooLarge { .. })) => None,
        (_, Err(error)) => panic!("{format:?}: {error}"),
        (_, Ok(parts)) => Some(parts),
    }
}

/// State of each system whose format expresses the policies.
#[derive(Debug)]
struct Systems(BTreeMap<Format, Box<dyn System>>);

impl Systems {
    fn of(state: ClusterState, options: &RenderOptions) -> Systems {
        let mut systems = Systems(BTreeMap::new());
        for format in Format::ALL {
            if let Some(parts) = unless_refused(format, render(format, state, options)) {
                systems.0.entry(format).or_insert_with(|| system(format)).load(&parts);
            }
        }
        systems
    }

    /// Loads the parts of each format, and removes the systems of those without.
    fn load(&mut self, parts: impl Fn(Format) -> Option<Vec<Part>>) {
        self.0.retain(|format, system| {
            parts(*format).is_some_and(|parts| {
                system.load(&parts);
                true
            })
        });
    }

    /// Loads a change of nftables step by step. Asserts that the first step changes no decision, and that the last one does not
    /// either. `classifiers` are those before and after the change.
    fn load_steps(
        &mut self,
        steps: &[Part],
        flows: &[FlowKey],
        classifiers: [&Classifier; 2],
        options: &RenderOptions,
    ) {
        let [before, after] = classifiers;
        assert_eq!(steps.len(), 3);
        for (step, classifier) in steps.iter().zip([before, after, after]) {
            let system = self.0.get_mut(&Format::Nftables).unwrap();
            system.load(std::slice::from_ref(step));
            flows.iter().for_each(|flow| self.compare_one(Format::Nftables, classifier, flow, options));
        }
    }

    /// Asserts that each system decides as the tables.
    fn compare(&self, classifier: &Classifier, flow: &FlowKey, options: &RenderOptions) {
        self.0.keys().for_each(|format| self.compare_one(*format, classifier, flow, options));
    }

    fn compare_one(&self, format: Format, classifier: &Classifier, flow: &FlowKey, options: &RenderOptions) {
        let (system, expected) = (&self.0[&format], classifier.decide_flow(flow).is_allow());
        let passes = ends(format, classifier, flow, options)
            .iter()
            .all(|[from, to]| system.passes(flow, [from.as_str(), to.as_str()]));
        let is_right = if system.is_exact(flow) { passes == expected } else { expected || !passes };
        assert!(is_right, "{format:?}: {flow} passes: {passes}");
    }

    /// Asserts that packets with this flow's ends pass at no interface of a pod that does not have its source.
    fn assert_bound(&self, tables: &RuleTables, flow: &FlowKey, options: &RenderOptions) -> usize {
        let mut forged = 0;
        for (pod, interface) in &options.interfaces {
            if tables.pods[pod].addresses.contains(&flow.src) {
                continue;
            }
            for (format, system) in &self.0 {
                let passes = system.passes_bindings(flow, [interface, "uplink"]);
                assert_ne!(passes, Some(true), "{format:?}: {flow} from {interface}, which is {pod}'s");
                forged += usize::from(passes.is_some());
            }
        }
        forged
    }

    /// Asserts that the states are the same.
    fn assert_same(&self, other: &Systems) {
        for (format, left) in &self.0 {
            let right = &other.0[format];
            assert_eq!(format!("{left:?}"), format!("{right:?}"), "{format:?}: a difference and the whole");
        }
    }
}

/// Names of both ends of a flow, in the terms of a format: interfaces, or namespaces of applications. Each of several
/// pods with one address may be the end.
fn ends(
    format: Format,
    classifier: &Classifier,
    flow: &FlowKey,
    options: &RenderOptions,
) -> Vec<[String; 2]> {
    let interface = |pod: &PodName| options.interfaces.get(pod).cloned();
    let uplink = || options.uplinks.first().cloned();
    let names = |address: IpAddr| -> Vec<String> {
        let pods: Vec<&PodName> = classifier.pods_at(address).collect();
        match (format, &pods[..]) {
            (Format::VppAcl, []) => vec![uplink().unwrap_or_else(|| "interface-of:uplink".to_owned())],
            (Format::VppAcl, pods) => {
                let name =
                    |pod: &&PodName| interface(pod).unwrap_or_else(|| format!("interface-of:{}", plain(pod)));
                pods.iter().map(name).collect()
            }
            (Format::Vpptcp, []) => vec![String::new()],
            (Format::Vpptcp, pods) => pods.iter().map(|pod| plain(pod)).collect(),
            (_, pods) => {
                let first = pods.first().and_then(|pod| interface(pod));
                vec![first.unwrap_or_else(|| "uplink".to_owned())]
            }
        }
    };
    let mut ends: Vec<[String; 2]> = Vec::new();
    for from in names(flow.src) {
        ends.extend(names(flow.dst).into_iter().map(|to| [from.clone(), to]));
    }
    if format == Format::VppAcl && classifier.pod_at(flow.src).is_some() {
        // A pod's packets to itself do not reach the interface.
        ends.retain(|[from, to]| from != to && flow.src != flow.dst);
    }
    ends
}

/// Name of a pod as a word of a command: without other characters, but with a digest (FNV-1a) if it had any.
fn plain(pod: &PodName) -> String {
    let text = pod.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.-_".contains(c);
    if text.chars().all(is_plain) {
        return text;
    }
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{}-{digest:016x}", text.replace(|c| !is_plain(c), "_"))
}

/// Interfaces for every other pod, of those whose addresses no other pod claims.
fn some_interfaces(tables: &RuleTables, classifier: &Classifier) -> RenderOptions {
    let is_sole = |address: &IpAddr| classifier.pods_at(*address).count() == 1;
    let named = tables.pods.iter().filter(|(_, pod)| pod.addresses.iter().all(is_sole)).step_by(2);
    let interfaces = named.enumerate().map(|(number, (pod, _))| (pod.clone(), format!("veth{number}")));
    let uplinks = vec!["uplink".to_owned()];
    RenderOptions { interfaces: interfaces.collect(), uplinks, ..RenderOptions::default() }
}

/// Numbers of probes, or of states, that each format was compared on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally(BTreeMap<Format, usize>);

impl Tally {
    fn add(&mut self, systems: &Systems, count: usize) {
        systems.0.keys().for_each(|format| *self.0.entry(*format).or_default() += count);
    }

    /// Asserts that each format was compared on all, but `contiv`, `vpp-acl`, `vpptcp` and `openflow`, and `security-groups`, on
    /// these shares of it at least.
    fn assert_shares(&self, whole: usize, contiv_percent: [usize; 4], groups_percent: usize) {
        for format in Format::ALL {
            let percent = match format {
                Format::Contiv => contiv_percent[0],
                Format::VppAcl => contiv_percent[1],
                Format::Vpptcp => contiv_percent[2],
                Format::Openflow => contiv_percent[3],
                Format::SecurityGroups => groups_percent,
                Format::Nftables | Format::Iptables | Format::Identity => 100,
            };
            let found = self.0.get(&format).copied().unwrap_or(0);
            println!("{format:?} was compared on {found} of {whole}");
            assert!(found * 100 >= whole * percent, "{format:?} was compared on {found} of {whole}");
        }
    }
}

/// Compares every probe of a file. Returns the number of probes.
fn compare_file(path: &std::path::Path, tally: &mut Tally) -> usize {
    let mut probes = 0;
    for (number, case) in read(path).into_iter().enumerate() {
        let expansion = ProbeExpansion::new(&case);
        let compiler = Compiler::from_objects(expansion.objects().iter().cloned(), Options::default());
        let tables = compiler.tables();
        let classifier = Classifier::new(tables).unwrap();
        let (without, with) = (RenderOptions::default(), some_interfaces(tables, &classifier));
        let mut options = if number % 2 == 0 { without } else { with };
        options.direction = if number % 4 < 2 { Direction::Egress } else { Direction::Ingress };
        options.every_packet = number % 3 == 0;
        let systems = Systems::of(ClusterState { tables, objects: expansion.objects() }, &options);
        for probe in &case.probes {
            for flow in expansion.flows(probe).unwrap() {
                systems.compare(&classifier, &flow, &options);
            }
            probes += 1;
        }
        tally.add(&systems, case.probes.len());
    }
    probes
}

#[test]
fn the_cases_of_other_projects_pass() {
    for (name, probes, percent) in [
        ("k8s-e2e.json", 506, [95, 95, 100, 95]),
        ("cyclonus.json", 109_956, [90, 90, 100, 90]),
        ("knp.json", 38, [80, 100, 80, 80]),
        ("cnp-conformance.json", 301, [30, 50, 100, 50]),
    ] {
        let Some(path) = corpus(name) else { continue };
        let mut tally = Tally::default();
        assert_eq!(compare_file(&path, &mut tally), probes, "{name}");
        tally.assert_shares(probes, percent, 100);
    }
}

#[test]
fn our_own_cases_pass() {
    let mut tally = Tally::default();
    let probes = own_cases().iter().map(|path| compare_file(path, &mut tally)).sum::<usize>();
    assert!(probes >= 130);
    tally.assert_shares(probes, [60, 95, 95, 60], 100);
}

#[test]
fn random_clusters_and_the_differences_of_their_changes_pass() {
    let (mut flows, mut changes, mut tally) = (BTreeMap::new(), 0, Tally::default());
    let mut forged = 0;
    for seed in histories("renderings", SEEDS, HISTORIES) {
        let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), seed.rng());
        let every_packet = seed.number % 2 == 0;
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
            let options = RenderOptions { every_packet, ..options };
            for format in Format::ALL {
                assert_eq!(render(format, state, &options), render(format, scratch, &options));
            }
            let systems = Systems::of(state, &options);
            let addresses = replayed.addresses();
            let picked: Vec<FlowKey> = picks.into_iter().map(|pick| flow(&addresses, pick)).collect();
            for flow in &picked {
                systems.compare(&replayed.classifier, flow, &options);
                forged += systems.assert_bound(tables, flow, &options);
                let is_allowed = replayed.classifier.decide_flow(flow).is_allow();
                *flows.entry(is_allowed).or_insert(0) += u64::from(seed.is_committed);
            }
            let same = RenderOptions { every_packet, ..RenderOptions::default() };
            let whole = Systems::of(state, &same);
            if let Some((tables, objects, mut changed)) = before.take() {
                let old = ClusterState { tables: &tables, objects: &objects };
                if every_packet {
                    let steps = difference(Format::Nftables, old, state, &same).unwrap();
                    let former = Classifier::new(old.tables).unwrap();
                    changed.load_steps(&steps, &picked, [&former, &replayed.classifier], &same);
                }
                changed.load(|format| {
                    if every_packet && format == Format::Nftables {
                        return Some(Vec::new());
                    }
                    unless_refused(format, difference(format, old, state, &same))
                });
                changed.assert_same(&whole);
                picked.iter().for_each(|flow| changed.compare(&replayed.classifier, flow, &same));
                if seed.is_committed {
                    tally.add(&changed, 1);
                    changes += 1;
                }
            }
            before = Some((tables.clone(), objects, whole));
        }
    }
    // A run with a seed of its own plays no committed ones.
    if changes > 0 {
        assert!(flows.len() == 2 && flows.values().all(|count| *count > SEEDS.end), "{flows:?}");
        assert!(changes > SEEDS.end as usize / 2, "{changes}");
        assert!(forged > 300, "{forged} forged packets");
        tally.assert_shares(changes, [70, 80, 85, 60], 95);
    }
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
        let options = RenderOptions { pod: Some(pod.clone()), ..RenderOptions::default() };
        let mut alone = tables.clone();
        let others: Vec<PodName> = tables.pods.keys().filter(|other| *other != pod).cloned().collect();
        others.iter().for_each(|other| _ = alone.pods.remove(other));
        for format in Format::ALL {
            let of_pod = render(format, state, &options);
            let alone = ClusterState { tables: &alone, objects };
            assert_eq!(of_pod, render(format, alone, &RenderOptions::default()));
        }
    }
    let unknown = RenderOptions { pod: Some(PodName::new("no", "pod")), ..RenderOptions::default() };
    for format in Format::ALL {
        assert!(render(format, state, &unknown).unwrap_err().to_string().contains("no/pod"));
    }
}
