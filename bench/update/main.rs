//! Benchmarks of changes: rule tables that change a thousand times a second beside traffic, policies that
//! come and go, files of the watched directory, and flows that age.
//!
//! Prints one JSON object a line. `--smoke` takes about two seconds; `--policy` measures only policies and
//! files.

mod ageing;
#[path = "../common/mod.rs"]
mod common;
mod policy_change;
mod table_updates;
mod watched_directory;

use std::time::Duration;

use policy_change::How;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let (rules, windows, window) =
        if smoke { (1_000, 4, Duration::from_millis(10)) } else { (10_000, 40, Duration::from_millis(100)) };
    for how in [How::Policy, How::Rule] {
        policy_change::measure(how, 1_000, if smoke { 100 } else { 2_000 });
    }
    for files in [0, if smoke { 100 } else { 5_000 }] {
        watched_directory::measure(1_000, files, if smoke { 20 } else { 500 });
    }
    if std::env::args().any(|argument| argument == "--policy") {
        return;
    }
    for flows in [100, 10_000] {
        table_updates::measure(rules, flows, windows, window);
    }
    ageing::measure(if smoke { 20_000 } else { 1_000_000 });
}
