//! Network namespaces of single tests, and system commands in them.

use std::process::Command;
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs a test in a network namespace of its own beside other tests of this kind, unless the run leaves out
/// tests that need root.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if let Some(_beside_others) = super::beside_others() {
        on_thread_in_namespace(test);
    }
}

/// Runs a test on a thread in a network namespace of its own. The caller holds the lock.
pub(crate) fn on_thread_in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = thread::spawn(|| {
        // SAFETY: the file descriptor table stays shared; only this thread changes its namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make a network namespace");
        test();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a system command in the calling thread's namespace.
pub(crate) fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{line}: {status:?}");
}

/// Output of a system command.
pub(crate) fn output(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("the command starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
