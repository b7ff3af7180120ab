//! Network namespaces of others (`network_namespaces(7)`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Directory of named namespaces (ip-netns(8)).
const DIRECTORY: &str = "/run/netns";

/// A network namespace, by a file of it.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Path of a namespace: an absolute path as it is, and otherwise the name that `ip netns` gives it.
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(name)
    }

    /// Opens the namespace with this name or absolute path.
    pub fn open(name: &str) -> io::Result<NetworkNamespace> {
        File::open(NetworkNamespace::path_of(name)).map(NetworkNamespace)
    }

    /// Inode, which is the identity of the namespace while it exists.
    pub fn inode(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.ino())
    }

    /// Runs `f` on a thread of its own inside the namespace, and waits for it. The caller's thread does not
    /// enter it. Sockets that `f` opens stay in the namespace, whichever thread uses them.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let enter_and_run = || {
                move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(f())
            };
            let thread = thread::Builder::new().name("palisade-netns".to_owned());
            let thread = thread.spawn_scoped(scope, enter_and_run)?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_ip_netns_and_a_path_is_itself() {
        assert_eq!(NetworkNamespace::path_of("web"), Path::new("/run/netns/web"));
        assert_eq!(NetworkNamespace::path_of("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
        assert!(NetworkNamespace::open("a-namespace-that-is-not-there").is_err());
    }
}
