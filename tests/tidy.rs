//! The repository's own text, held to its rules: who may import whom, where unsafe code may be, how long a file may get.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `src` and which of them each may import. `control`, `source`, `config`, `lab` and `cli` build on all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("net", &["limits", "ids"]),
    ("tables", &["net", "mem", "limits", "ids", "printable"]),
    ("policy", &["tables", "net", "limits", "ids", "printable"]),
    ("xdp", &["net", "mem", "limits", "ids"]),
    ("netlink", &["net"]),
    ("dataplane", &["net", "tables", "xdp", "netlink", "threads", "mem", "limits", "ids"]),
    ("pktgen", &["net", "xdp", "mem", "limits", "ids"]),
];

/// Longest source file, lines: an alarm, not a goal.
const LINES_MAX: usize = 800;

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources: the rule would check nothing");
    found
}

/// First segments of the `crate::` paths in a file.
fn imports(text: &str) -> Vec<&str> {
    let name_end = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| &rest[..name_end(rest)])
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn folders_import_only_what_the_architecture_allows() {
    let mut wrong = Vec::new();
    for (folder, allowed) in MAY_IMPORT {
        for path in sources(&format!("src/{folder}")) {
            let text = fs::read_to_string(&path).unwrap();
            for import in imports(&text) {
                if import != *folder && !allowed.contains(&import) {
                    wrong.push(format!("{} imports crate::{import}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_allowed_in_two_places_only() {
    for path in sources("src") {
        let text = fs::read_to_string(&path).unwrap();
        let place = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
        let may = place.starts_with("xdp") || place == Path::new("mem.rs");
        let allows = text.contains("allow(unsafe_code)");
        assert!(may || !allows, "{} allows unsafe code", path.display());
    }
}

#[test]
fn every_unsafe_block_gives_its_reason() {
    let alone = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mem.rs");
    for path in sources("src/xdp").into_iter().chain([alone]) {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let opens = code.contains("unsafe {") || code.contains("unsafe impl");
            let reasoned =
                lines[number.saturating_sub(8)..=number].iter().any(|line| line.contains("SAFETY:"));
            assert!(!opens || reasoned, "{}:{} has no SAFETY reason", path.display(), number + 1);
        }
    }
}

#[test]
fn no_source_file_is_a_book() {
    for path in sources("src") {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines: split it by idea", path.display());
    }
}

#[test]
fn the_packet_path_takes_no_lock_and_writes_no_log() {
    // The control side's half of the dataplane may; these files are what a packet goes through.
    let path = "stages answer batch calls classify flow_table follow handover hits neighbors packet packet/checksum packet/plain \
        port_list rewrite route speech stats view worker conntrack/entry conntrack/key conntrack/state conntrack/table \
        conntrack/tcp fragments/board fragments/coverage fragments/datagrams fragments/first fragments/mod \
        fragments/piece fragments/waiting";
    // Made before any packet comes; and the clock, which is read once a batch.
    let allowed = [
        ("batch", "Box::new("),
        ("classify", "Box::new("),
        ("handover", "Box::new("),
        ("worker", "Instant::now"),
    ];
    for file in path.split(' ') {
        let code = code_of(file);
        for word in ["Mutex", "RwLock", "tracing", "println", "Instant::now", "Box::new(", "format!"] {
            let found = code.lines().any(|line| line.contains(word) && !line.trim_start().starts_with("//"));
            assert!(!found || allowed.contains(&(file, word)), "{file} uses {word}");
        }
    }
    let worker = code_of("worker");
    let (_, run) = worker.split_once("fn run(").expect("what a worker does after it was made");
    assert_eq!(run.matches("Instant::now").count(), 1, "a batch reads the clock once");
}

/// A file of the dataplane without its tests.
fn code_of(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/dataplane/{file}.rs"));
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}
