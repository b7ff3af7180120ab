//! The API server's verdicts on policy objects, and the texts of what is wrong with them.

use std::fs;
use std::path::{Path, PathBuf};

use palisade::policy::cases::read_cases;
use palisade::policy::read::{Source, read_value};

fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not here", path.display());
    None
}

#[test]
fn every_upstream_validation_case_gets_the_api_servers_verdict() {
    let Some(path) = shared("validation.json") else { return };
    let cases: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut judged = 0;
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let Some(valid) = case["valid"].as_bool() else { continue };
        let result = read_value(name, &case["object"]);
        assert_eq!(result.is_ok(), valid, "{name}: {:?}", result.map(|parsed| parsed.objects));
        if let Ok(parsed) = result {
            assert_eq!((parsed.objects.len(), parsed.skipped.len()), (1, 0), "{name}");
        }
        judged += 1;
    }
    assert!(judged > 40, "only {judged} cases");
}

#[test]
fn every_conformance_corpus_is_read_without_error() {
    for (name, cases, probes) in [
        ("k8s-e2e.json", 65, 506),
        ("cyclonus.json", 256, 109_956),
        ("knp.json", 38, 38),
        ("cnp-conformance.json", 96, 301),
    ] {
        let Some(path) = shared(name) else { continue };
        let read = read_cases(&Source::new(name, fs::read_to_string(path).unwrap()))
            .unwrap_or_else(|errors| panic!("{}", errors[0]));
        assert_eq!(read.cases.len(), cases, "{name}");
        assert_eq!(read.cases.iter().map(|case| case.probes.len()).sum::<usize>(), probes, "{name}");
        let known = |path: &str| path == "metadata.name" || path.ends_with(".endPort");
        let unexpected = read.warnings.iter().find(|warning| !known(&warning.path));
        assert!(unexpected.is_none(), "{name}: {}", unexpected.unwrap());
        assert!(
            read.skipped.iter().all(|skipped| skipped.kind == "Service"),
            "{name}: {:?}",
            read.skipped[0]
        );
    }
}
