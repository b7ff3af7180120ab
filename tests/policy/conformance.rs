//! Conformance cases: those of other projects, if their files are present, and our own for the clauses that
//! those leave out.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use palisade::net::flow::FlowKey;
use palisade::policy::evaluate::TableEvaluator;
use palisade::policy::evaluate::{ObjectIndex, ReferenceEvaluator};
use palisade::policy::objects::Object;
use palisade::policy::parse::Source;
use palisade::policy::testcase::ProbeExpansion;
use palisade::policy::testcase::{Case, parse_cases};
use palisade::policy::{Compiler, Options};

pub(crate) fn read(path: &Path) -> Vec<Case> {
    let source = Source::new(path.display().to_string(), fs::read_to_string(path).unwrap());
    parse_cases(&source).whole().unwrap_or_else(|errors| panic!("{}", errors[0])).cases
}

/// Path of another project's cases. Without them the test is skipped, unless the run demands them
/// (`PALISADE_REQUIRE_CONFORMANCE=1`).
pub(crate) fn corpus(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance").join(name);
    if path.exists() {
        return Some(path);
    }
    let is_demanded = std::env::var_os("PALISADE_REQUIRE_CONFORMANCE").is_some_and(|value| value == "1");
    assert!(!is_demanded, "{} is not here, and PALISADE_REQUIRE_CONFORMANCE=1 demands it", path.display());
    eprintln!(
        "skipped: {} is not here (PALISADE_REQUIRE_CONFORMANCE=1 makes this a failure)",
        path.display()
    );
    None
}

/// Evaluates every probe of a file by the compiled tables and by the reference evaluator, which agree on the
/// reason, too. Returns the number of probes.
fn evaluate_file(path: &Path) -> usize {
    let mut probes = 0;
    for case in read(path) {
        let trial = ProbeExpansion::new(&case);
        let reference = ReferenceEvaluator::new(trial.objects());
        let compiler = Compiler::from_objects(trial.objects().iter().cloned(), Options::default());
        let tables = TableEvaluator::new(compiler.tables().clone()).unwrap();
        for probe in &case.probes {
            let flows = trial.flows(probe).unwrap_or_else(|error| panic!("{}: {error}", probe.location));
            for flow in flows {
                let (compiled, naive) = (tables.evaluate(&flow), reference.evaluate(&flow));
                let told = || format!("{}: case {:?}: {flow}", probe.location, case.name);
                assert_eq!(compiled.verdict(), probe.expect, "{}: {compiled:?}", told());
                if !is_shared(trial.objects(), &flow) {
                    assert_eq!(compiled, naive, "{}", told());
                }
                assert_eq!(compiled.verdict(), naive.verdict(), "{}", told());
            }
            probes += 1;
        }
    }
    probes
}

/// Tells whether several objects claim one of the addresses. Then any of their reasons is correct.
fn is_shared(objects: &[Object], flow: &FlowKey) -> bool {
    let claims = |address: IpAddr| {
        let claims = objects.iter().filter(|object| match object {
            Object::Pod(pod) => ObjectIndex::is_live(pod) && pod.addresses.contains(&address),
            Object::Node(node) => node.addresses.contains(&address),
            _ => false,
        });
        claims.count()
    };
    claims(flow.src) > 1 || claims(flow.dst) > 1
}

#[test]
fn the_kubernetes_e2e_tests_pass() {
    let Some(path) = corpus("k8s-e2e.json") else { return };
    assert_eq!(evaluate_file(&path), 506);
}

#[test]
fn the_cases_of_cyclonus_pass() {
    let Some(path) = corpus("cyclonus.json") else { return };
    assert_eq!(evaluate_file(&path), 109_956);
}

#[test]
fn the_packet_tables_of_kube_network_policies_pass() {
    let Some(path) = corpus("knp.json") else { return };
    assert_eq!(evaluate_file(&path), 38);
}

#[test]
fn the_conformance_tests_of_cluster_network_policy_pass() {
    let Some(path) = corpus("cnp-conformance.json") else { return };
    assert_eq!(evaluate_file(&path), 301);
}

/// Paths of our own cases.
pub(crate) fn own_cases() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.collect();
    files.sort();
    files
}

#[test]
fn our_own_cases_pass() {
    let files = own_cases();
    let probes: usize = files.iter().map(|path| evaluate_file(path)).sum();
    assert!(files.len() >= 7 && probes >= 130, "{} files, {probes} probes", files.len());
}
