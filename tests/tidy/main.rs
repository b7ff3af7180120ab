//! The repository's own text, held to its rules: who may import whom, where unsafe code may be, how long a file may get.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `src` and which of them each may import. `control`, `source`, `config`, `lab` and `cli` build on all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("net", &["limits", "ids"]),
    ("tables", &["net", "mem", "limits", "ids", "printable"]),
    ("policy", &["tables", "net", "limits", "ids", "printable"]),
    ("xdp", &["net", "netlink", "mem", "limits", "ids"]),
    ("netlink", &["net"]),
    ("dataplane", &["net", "tables", "xdp", "netlink", "threads", "mem", "limits", "ids"]),
    ("pktgen", &["net", "netlink", "xdp", "mem", "limits", "ids"]),
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

/// Folders whose files a packet goes through, but for [`OFF_THE_PATH`].
const PATH: [&str; 4] = ["dataplane", "net", "tables", "xdp"];

/// Files of these folders that no packet goes through.
const OFF_THE_PATH: &[(&str, &str)] = &[
    (
        "the control side's half of the dataplane",
        "dataplane/core dataplane/endpoints dataplane/engine dataplane/knock dataplane/mod dataplane/path dataplane/resolver \
         dataplane/settings dataplane/uplink",
    ),
    (
        "tests and what they drive",
        "dataplane/flow_table dataplane/simulation dataplane/model dataplane/conntrack/model xdp/memory",
    ),
    (
        "tables as documents: read, compared and laid out before a worker sees them",
        "tables/document/canonical tables/document/persistent_map tables/document/rule_tables tables/prefix_set \
         tables/prefix_trie/build",
    ),
    (
        "opening, closing and asking the kernel about interfaces",
        "xdp/anchor xdp/attach xdp/drop_counter xdp/driver_counters xdp/error xdp/kernel_log xdp/link xdp/lost xdp/prefixes xdp/program",
    ),
];

/// Words that allocate, lock, log, read a clock or panic. A failed `expect` says what had been proved.
const FORBIDDEN: [&str; 12] = [
    "Mutex",
    "RwLock",
    "tracing",
    "println",
    "Instant::now",
    "Box::new(",
    "Vec::new(",
    "to_vec(",
    "format!",
    "vec![",
    ".unwrap()",
    ".expect(\"",
];

/// Words that files of the path have all the same, with the reason why no packet pays for them.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    ("dataplane/batch", &["Box::new("], "columns, made with the worker"),
    ("dataplane/classify", &["Box::new("], "made with the worker"),
    ("dataplane/conntrack/state", &["vec!["], "time-outs, made with the table"),
    ("dataplane/conntrack/storage", &["to_vec("], "the header of the file, when it is opened"),
    ("dataplane/fragments/datagrams", &["vec!["], "made with the worker"),
    ("dataplane/handover", &["Box::new(", "Vec::new(", "vec!["], "made with the port"),
    ("dataplane/port_list", &["vec!["], "made with the worker"),
    ("dataplane/publication", &["RwLock"], "taken for a view that has just come; nobody waits for it"),
    (
        "dataplane/rules",
        &["Box::new(", ".expect(\""],
        "a generation's classifier, of tables that were checked",
    ),
    ("dataplane/speech", &["vec!["], "made with the worker"),
    ("dataplane/view", &["vec!["], "a generation, made by the control side"),
    (
        "dataplane/worker",
        &["Instant::now", "vec!["],
        "one reading of the clock a batch; made with the worker",
    ),
    ("dataplane/world", &["Vec::new("], "what a generation is made of"),
    ("net/ipv6", &[".expect(\""], "the header is as long as its type"),
    ("net/mac", &["format!"], "an address for people"),
    ("tables/acl_store", &["Vec::new("], "a generation's tables, as they are made"),
    ("tables/arena", &[".expect(\""], "pages hold whole blocks; a wrong number must not read another table"),
    ("tables/prefix_table", &["Vec::new("], "a generation's tables, as they are made"),
    ("tables/document/row", &["Vec::new("], "a row of the document"),
    (
        "tables/row_store",
        &["Vec::new(", "to_vec(", ".expect(\""],
        "a generation's tables, as they are made; a block is as long as its type",
    ),
    ("xdp/ledger", &["vec!["], "made with the UMEM"),
    (
        "xdp/region",
        &["Mutex", "Box::new(", ".expect(\""],
        "made with the UMEM; constants that limits.rs asserts",
    ),
    (
        "xdp/socket",
        &["Instant::now", "format!", ".expect(\""],
        "when a socket is opened; a socket has a UMEM",
    ),
    (
        "xdp/umem",
        &["Mutex", "Vec::new(", "vec![", ".expect(\""],
        "made with the UMEM; accounts of queues that come and go",
    ),
];

#[test]
fn the_packet_path_takes_no_lock_and_writes_no_log() {
    let off_the_path: Vec<&str> =
        OFF_THE_PATH.iter().flat_map(|(_, files)| files.split_whitespace()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = vec![];
    let mut used = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for path in PATH.iter().flat_map(|folder| sources(&format!("src/{folder}"))) {
        let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
        seen.insert(name.clone());
        if name.split('/').any(|part| part == "tests") || off_the_path.contains(&name.as_str()) {
            continue;
        }
        for word in FORBIDDEN {
            let is_code = |line: &&str| line.split("//").next().is_some_and(|code| code.contains(word));
            if !code_of(&name).lines().any(|line| is_code(&line)) {
                continue;
            }
            let exception =
                EXCEPTIONS.iter().position(|(file, words, _)| *file == name && words.contains(&word));
            match exception {
                Some(exception) => drop(used.insert((exception, word))),
                None => wrong.push(format!("{name} uses {word}")),
            }
        }
    }
    for (number, (file, words, _)) in EXCEPTIONS.iter().enumerate() {
        let idle = words.iter().filter(|word| !used.contains(&(number, **word)));
        wrong.extend(idle.map(|word| format!("{file} may use {word}, and does not: take the exception out")));
    }
    let gone = off_the_path.iter().filter(|file| !seen.contains(**file));
    wrong.extend(gone.map(|file| format!("{file} is off the packet path, and not there")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let worker = code_of("dataplane/worker");
    let (_, run) = worker.split_once("fn run(").expect("what a worker does after it was made");
    assert_eq!(run.matches("Instant::now").count(), 1, "a batch reads the clock once");
}

/// A file without its tests.
fn code_of(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/{file}.rs"));
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}
