//! Tests in network namespaces of their own, and the system's commands there.

use std::process::Command;
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs a test on a thread of its own in a network namespace of its own, unless the run is told to go without.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if std::env::var("PALISADE_SKIP_NETNS").is_ok_and(|value| value == "1") {
        eprintln!("skipped: PALISADE_SKIP_NETNS=1");
        return;
    }
    let outcome = thread::spawn(|| {
        // SAFETY: the file descriptor table stays shared; only this thread changes its namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("this test needs root (a network namespace); PALISADE_SKIP_NETNS=1 leaves it out");
        test();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command of the system in the calling thread's namespace.
pub(crate) fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{line}: {status:?}");
}

/// What a command of the system prints.
#[allow(dead_code)] // Each test that includes this file uses what it needs of it.
pub(crate) fn output(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("the command starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
