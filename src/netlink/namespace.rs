//! Network namespaces of others (`network_namespaces(7)`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Directory of named namespaces (ip-netns(8)).
pub(super) const DIRECTORY: &str = "/run/netns";

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
        // A named pipe in place of a namespace would wait for a writer.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let path = NetworkNamespace::path_of(name);
        OpenOptions::new().read(true).custom_flags(flags).open(path).map(NetworkNamespace)
    }

    /// Opens the namespace of the calling thread.
    pub fn own() -> io::Result<NetworkNamespace> {
        File::open("/proc/thread-self/ns/net").map(NetworkNamespace)
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

impl NetworkNamespace {
    /// Gives the namespace of a file a name, as `ip netns attach` does. Returns the path of the name.
    pub(crate) fn bind(file: &Path, name: &str) -> io::Result<PathBuf> {
        share_namespace_directory()?;
        let path = NetworkNamespace::path_of(name);
        File::create_new(&path)?;
        match mount_bind(file, &path) {
            Ok(()) => Ok(path),
            Err(error) => {
                std::fs::remove_file(&path)?;
                Err(error.into())
            }
        }
    }

    /// Removes the name of a namespace. A removed one has no effect.
    pub(crate) fn unbind(name: &str) -> io::Result<()> {
        let path = NetworkNamespace::path_of(name);
        match unmount(&path, UnmountFlags::DETACH) {
            // Nothing is bound on the file, or there is none.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Makes the directory of named namespaces a shared mount, as `ip netns add` does. Otherwise a later `ip netns add` binds
/// it on itself, and the names made before can no longer be removed.
pub(crate) fn share_namespace_directory() -> io::Result<()> {
    std::fs::create_dir_all(DIRECTORY)?;
    let share = || mount_change(DIRECTORY, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Err(Errno::INVAL) => {
            mount_bind_recursive(DIRECTORY, DIRECTORY)?;
            Ok(share()?)
        }
        result => Ok(result?),
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
