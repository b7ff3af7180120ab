//! Named network namespaces: creation, entry on a thread of their own, removal.
//!
//! A name is a file in `/run/netns` on which the namespace is bound, as ip-netns(8) has it. A namespace is
//! marked before it gets its name: the alias of its loopback interface names the lab. A namespace without the
//! mark is not this lab's, whatever its name.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::LabError;
use super::error::{Context, write_setting};
use crate::netlink::{RouteSocket, share_namespace_directory};

/// Directory of named namespaces.
const DIRECTORY: &str = "/run/netns";
/// File of the network namespace of the thread that opens it.
pub(super) const OF_THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A named network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

/// State of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// A file without a namespace bound on it: the process ended while it made the namespace.
    Unbound,
    /// A namespace with the mark of the lab.
    Marked,
    /// Anything else.
    Foreign,
}

impl Namespace {
    /// Names a namespace, whether it exists or not.
    pub(super) fn named(name: &str) -> Namespace {
        Namespace { name: name.to_owned() }
    }

    /// Name, as ip-netns(8) takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File that the namespace is bound on.
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Creates the namespace, with its loopback interface marked and up. Its settings let pods use their
    /// addresses at once and take none from router advertisements.
    pub(super) fn create(name: &str, mark: &str) -> Result<Namespace, LabError> {
        let namespace = Namespace::named(name);
        share_namespace_directory().context(|| format!("prepare {DIRECTORY}"))?;
        on_a_thread(name, || {
            leave_namespace().context(|| "make a network namespace".to_owned())?;
            configure()?;
            let kernel = RouteSocket::open()?;
            kernel.set_alias("lo", mark)?;
            kernel.set_up("lo")?;
            File::create_new(namespace.path())
                .context(|| format!("create {}", namespace.path().display()))?;
            mount_bind(OF_THIS_THREAD, namespace.path())
                .context(|| format!("bind a namespace on {}", namespace.path().display()))
        })?;
        Ok(namespace)
    }

    /// Runs `f` on a thread of its own inside the namespace. The caller's thread does not enter it.
    ///
    /// Sockets and children that `f` makes stay in the namespace, whichever thread uses them.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let file = self.open()?;
        on_a_thread(&self.name, || {
            enter(&file).context(|| format!("enter network namespace {}", self.name))?;
            Ok(f())
        })
    }

    /// Opens the namespace as a file, for setns(2) and netlink.
    pub(super) fn open(&self) -> Result<File, LabError> {
        File::open(self.path()).context(|| format!("open network namespace {}", self.name))
    }

    /// Looks up the state of the name.
    pub(super) fn find(&self, mark: &str) -> Result<Found, LabError> {
        let file = match File::open(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            file => file.context(|| format!("open {}", self.path().display()))?,
        };
        let entered = on_a_thread(&self.name, || match enter(&file) {
            // The file is no namespace: setns(2).
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(error).context(|| format!("enter network namespace {}", self.name)),
            Ok(()) => Ok(Some(RouteSocket::open()?.alias("lo")?)),
        })?;
        let size = || file.metadata().map(|metadata| metadata.is_file() && metadata.len() == 0);
        Ok(match entered {
            None if size().context(|| format!("look at {}", self.path().display()))? => Found::Unbound,
            Some(Some(alias)) if alias == mark => Found::Marked,
            _ => Found::Foreign,
        })
    }

    /// Removes the name. The kernel removes the namespace with the last thread and file that refer to it.
    pub(super) fn remove(&self) -> Result<(), LabError> {
        match unmount(self.path(), UnmountFlags::DETACH) {
            // Nothing is bound on the file.
            Ok(()) | Err(Errno::INVAL) => (),
            Err(error) => return Err(error).context(|| format!("unbind {}", self.path().display())),
        }
        std::fs::remove_file(self.path()).context(|| format!("remove {}", self.path().display()))
    }
}

/// Opens the namespace of the calling thread.
pub(super) fn current() -> Result<File, LabError> {
    File::open(OF_THIS_THREAD).context(|| format!("open {OF_THIS_THREAD}"))
}

/// Runs `f` on a new thread and waits for it. Changes of the thread's namespaces end with the thread.
pub(super) fn on_a_thread<T: Send>(
    name: &str,
    f: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    thread::scope(|scope| {
        let thread = named(name).spawn_scoped(scope, f).context(|| "start a thread".to_owned())?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned())
}

fn enter(namespace: &File) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

#[expect(deprecated, reason = "what makes `unshare` unsafe is its flag FILES, and it stays unused here")]
fn leave_namespace() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNET)
}

/// Changes settings of the calling thread's namespace. Interfaces that are made later inherit them.
fn configure() -> Result<(), LabError> {
    // ICMP sockets without privilege, for every group (icmp(7), ping_group_range).
    write_setting("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")?;
    for (setting, value) in
        [("accept_ra", "0"), ("accept_dad", "0"), ("dad_transmits", "0"), ("router_solicitations", "0")]
    {
        write_setting(format!("/proc/sys/net/ipv6/conf/default/{setting}"), value)?;
    }
    Ok(())
}
