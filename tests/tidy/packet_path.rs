//! The packet path: code that runs for every batch allocates nothing, takes no lock, writes no log, reads no
//! clock and does not panic.

use std::collections::BTreeSet;

use crate::modules::{Modules, production_code};

/// Folders and files of `src` that packets go through, but for [`OFF_THE_PATH`].
const PATH: &[&str] = &[
    "dataplane/conntrack",
    "dataplane/fib",
    "dataplane/fragments",
    "dataplane/neighbor",
    "dataplane/offload",
    "dataplane/packet",
    "dataplane/pipeline",
    "dataplane/service",
    "dataplane/stats",
    "dataplane/types/counters",
    "dataplane/worker",
    "net",
    "tables",
    "xdp",
];

/// Folders and files of these that no packet goes through, with the reason.
const OFF_THE_PATH: &[(&str, &[&str])] = &[
    (
        "the control side's half of neighbours and workers",
        &[
            "dataplane/neighbor/resolver",
            "dataplane/neighbor/uplink_table",
            "dataplane/offload/adoption",
            "dataplane/offload/keeper",
            "dataplane/offload/upcall_device",
            "dataplane/worker/reschedule",
            "dataplane/worker/thread",
        ],
    ),
    (
        "tables as documents: read, compared and laid out before a worker sees them",
        &[
            "tables/document/canonical",
            "tables/prefix_set",
            "tables/prefix_trie/build",
            "tables/document/rule_tables",
            "tables/document/persistent_map",
        ],
    ),
    ("ports in memory, for tests", &["xdp/memory_port"]),
    (
        "opening, closing and asking the kernel about interfaces",
        &[
            "xdp/error",
            "xdp/libbpf",
            "xdp/driver_counters",
            "xdp/offload/mod",
            "xdp/offload/program",
            "xdp/program",
            "xdp/socket/pending_release",
            "xdp/umem_owner",
        ],
    ),
];

/// Words that allocate, lock, log, read a clock or panic.
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

/// Words that folders and files of the path have all the same, with the reason why no packet pays for them.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    ("dataplane/conntrack/table/lookup_batch", &["Box::new("], "columns, made with the worker"),
    (
        "dataplane/conntrack/storage",
        &["to_vec(", "tracing"],
        "the header of the file, read when it is opened; the end of a failed start",
    ),
    ("dataplane/fib/layout", &["vec!["], "a generation, made by the control side"),
    ("dataplane/fib/desired_state", &["vec!["], "the content of a generation, made by the control side"),
    (
        "dataplane/fib/publish",
        &["RwLock"],
        "taken for a snapshot that has just been published; nobody waits for it",
    ),
    (
        "dataplane/fib/rules",
        &["Box::new(", ".expect(\""],
        "a generation's classifier, of tables that were checked",
    ),
    ("dataplane/fib/snapshot", &["vec!["], "a generation, made by the control side"),
    ("dataplane/fragments/datagrams", &["vec!["], "made with the worker"),
    ("dataplane/neighbor/solicit", &["vec!["], "made with the worker"),
    ("dataplane/pipeline/batch", &["Box::new("], "columns, made with the worker"),
    ("dataplane/pipeline/policy_batch", &["Box::new("], "made with the worker"),
    ("dataplane/pipeline/translate/forward", &["Box::new("], "a column, made with the worker"),
    (
        "dataplane/service/binding_file",
        &["format!", "vec!["],
        "the header of the file, read when it is opened",
    ),
    ("dataplane/service/address_filter", &["vec!["], "a generation, made by the control side"),
    ("dataplane/service/address_set", &["vec!["], "a generation, made by the control side"),
    ("dataplane/service/fib", &["vec![", "Vec::new("], "a generation, made by the control side"),
    ("dataplane/service/maglev", &["vec!["], "a generation, made by the control side"),
    (
        "tables/services/set",
        &["Box::new(", "to_vec(", "format!"],
        "the check of a document; packets only search it",
    ),
    (
        "tables/services/port_mapping",
        &["format!", "vec!["],
        "a document and its text; packets only search it",
    ),
    ("dataplane/worker/handoff", &["Box::new(", "Vec::new(", "vec!["], "made with the port"),
    (
        "dataplane/worker/mod",
        &["Instant::now", "vec!["],
        "two readings of the clock a batch; made with the worker",
    ),
    ("dataplane/worker/poller", &["Instant::now"], "one reading of the clock when the poller is made"),
    ("dataplane/worker/ports", &["vec!["], "made with the worker"),
    ("dataplane/stats/stage_clock", &["Instant::now"], "read in one batch of 64"),
    ("dataplane/stats/time_histogram", &["Box::new("], "made with the worker"),
    ("net/ipv6", &[".expect(\""], "the header is as long as its type"),
    ("net/mac", &["format!"], "the address in words"),
    ("tables/acl_store", &["Vec::new("], "a generation's tables, as they are made"),
    ("tables/arena", &[".expect(\""], "pages hold whole blocks; a wrong number must not read another table"),
    ("tables/prefix_table", &["Vec::new("], "a generation's tables, as they are made"),
    ("tables/document/row", &["Vec::new("], "a row of the document"),
    (
        "tables/row_store",
        &["Vec::new(", "to_vec(", ".expect(\""],
        "a generation's tables, as they are made; a block is as long as its type",
    ),
    ("xdp/frame_ownership", &["vec!["], "made with the UMEM"),
    ("xdp/socket", &["Instant::now", "format!", ".expect(\""], "an open of a socket, which has a UMEM"),
    ("xdp/tap_rings", &["vec!["], "made with the queue"),
    (
        "xdp/umem",
        &["Mutex", "Vec::new(", "vec![", ".expect(\""],
        "made with the UMEM; queue ids that come and go",
    ),
    (
        "xdp/umem_area",
        &["Mutex", "Box::new(", ".expect(\""],
        "made with the UMEM; constants that limits.rs asserts",
    ),
];

fn is_in(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Production files of the path, below `src` and without their extension.
fn on_the_path(production: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    let off = || OFF_THE_PATH.iter().flat_map(|(_, places)| *places);
    let names = production.iter().map(|file| file.trim_start_matches("src/").trim_end_matches(".rs"));
    names.filter(move |file| {
        PATH.iter().any(|place| is_in(file, place)) && !off().any(|place| is_in(file, place))
    })
}

#[test]
fn the_packet_path_allocates_nothing_takes_no_lock_and_writes_no_log() {
    let production = Modules::files();
    let mut wrong = vec![];
    let mut used = BTreeSet::new();
    for file in on_the_path(&production) {
        let code = production_code(&format!("src/{file}.rs"));
        for word in FORBIDDEN.iter().filter(|word| code.contains(**word)) {
            let excepted =
                |(place, words, _): &(&str, &[&str], &str)| is_in(file, place) && words.contains(word);
            match EXCEPTIONS.iter().position(excepted) {
                Some(exception) => drop(used.insert((exception, *word))),
                None => wrong.push(format!("{file} uses {word}")),
            }
        }
    }
    for (number, (place, words, _)) in EXCEPTIONS.iter().enumerate() {
        let idle = words.iter().filter(|word| !used.contains(&(number, **word)));
        wrong
            .extend(idle.map(|word| format!("{place} may use {word}, and does not: take the exception out")));
    }
    let places = PATH.iter().chain(OFF_THE_PATH.iter().flat_map(|(_, places)| *places));
    let is_there = |place: &str| {
        production.iter().any(|file| is_in(file.trim_start_matches("src/").trim_end_matches(".rs"), place))
    };
    wrong.extend(
        places.filter(|place| !is_there(place)).map(|place| format!("{place} is listed, and not there")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_batch_reads_the_clock_at_its_beginning_and_at_its_end() {
    let production = Modules::files();
    let loops: Vec<String> = production
        .iter()
        .filter(|file| file.starts_with("src/dataplane/worker/"))
        .filter_map(|file| Some(production_code(file).split_once("fnrun(")?.1.to_owned()))
        .collect();
    assert_eq!(loops.len(), 1, "the loop of a worker is `fn run`");
    assert_eq!(loops[0].matches("Instant::now").count(), 2);
}
