//! Tests without a lab, and system commands in the calling thread's namespace.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs a test in namespaces of its own, unless the run leaves out tests that need root.
pub(crate) fn in_namespace(test: impl FnOnce()) {
    if let Some(_isolated) = super::isolated() {
        test();
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

/// Runs `work` on a thread in the network of this file. Sockets that it opens stay there.
pub(crate) fn enter<T: Send>(network: &Path, work: impl FnOnce() -> T + Send) -> T {
    let network = File::open(network).unwrap();
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
