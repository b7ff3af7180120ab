//! Teardown of a lab: it removes everything that the journal names and the mark confirms, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::LabError;
use super::journal::Journal;
use super::namespace::{Found, Namespace};
use super::process::Process;
use crate::netlink::RouteSocket;

/// Time that a switch has to stop. One that the kernel forwards for removes its rules meanwhile.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of a teardown.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Teardown {
    /// Labs that were removed.
    pub removed: Vec<String>,
    /// Labs of running processes, left alone.
    pub in_use: Vec<String>,
    /// Interfaces and namespaces with a name of a lab but without its mark, left alone.
    pub spared: Vec<String>,
    /// Failures. The journal of the lab stays, so that the next teardown finds the rest.
    pub errors: Vec<String>,
}

/// Removes the labs with these ids, or every lab without ids. Labs of running processes stay: those removed
/// were made to stay, or are of processes that ended without a teardown.
pub fn clean(ids: &[String]) -> Result<Teardown, LabError> {
    require_root()?;
    let (journals, errors) = if ids.is_empty() {
        Journal::all()?
    } else {
        (ids.iter().map(|id| Journal::of(id)).collect::<Result<_, _>>()?, vec![])
    };
    let mut teardown =
        Teardown { errors: errors.iter().map(ToString::to_string).collect(), ..Teardown::default() };
    for journal in journals {
        if journal.is_owned() {
            teardown.in_use.push(journal.id);
        } else {
            remove(&journal, &mut teardown);
        }
    }
    Ok(teardown)
}

/// Fails unless the caller may make and remove labs.
pub fn require_root() -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

/// Removes one lab.
pub(super) fn remove(journal: &Journal, teardown: &mut Teardown) {
    let failed_before = teardown.errors.len();
    let mut note =
        |result: Result<(), LabError>| teardown.errors.extend(result.err().map(|error| error.to_string()));
    for process in &journal.processes {
        note(
            process
                .stop(STOP_TIMEOUT)
                .map_err(|source| LabError::Kernel { what: format!("end process {}", process.pid), source }),
        );
    }
    let names = journal
        .pods
        .iter()
        .map(|pod| pod.netns.clone())
        .chain([journal.bridge_netns(), journal.node_netns()]);
    let namespaces: Vec<Namespace> = names.map(|name| Namespace::named(&name)).collect();
    // Interfaces come first: the removal of a host end removes the pod's end at once, whatever still runs in
    // the pod.
    for interface in journal.host_ends() {
        match remove_interface(interface, &journal.mark()) {
            Ok(true) => (),
            Ok(false) => teardown.spared.push(format!("interface {interface}")),
            Err(error) => teardown.errors.push(error.to_string()),
        }
    }
    // A switch that was killed leaves the pins of its BPF links.
    crate::xdp::sweep(&crate::dataplane::Settings::default().pin_directory);
    for namespace in namespaces {
        match remove_namespace(&namespace, &journal.mark()) {
            Ok(true) => (),
            Ok(false) => teardown.spared.push(format!("network namespace {}", namespace.name())),
            Err(error) => teardown.errors.push(error.to_string()),
        }
    }
    if teardown.errors.len() == failed_before {
        match journal.remove() {
            Ok(()) => teardown.removed.push(journal.id.clone()),
            Err(error) => teardown.errors.push(error.to_string()),
        }
    }
}

/// Removes an interface. Returns false for one without the mark, which stays.
fn remove_interface(name: &str, mark: &str) -> Result<bool, LabError> {
    let kernel = RouteSocket::open()?;
    match kernel.alias(name)? {
        None => Ok(true),
        Some(alias) if alias == mark => Ok(kernel.remove_link(name).map(|()| true)?),
        Some(_) => Ok(false),
    }
}

/// Removes a namespace. Returns false for one without the mark, which stays.
fn remove_namespace(namespace: &Namespace, mark: &str) -> Result<bool, LabError> {
    match namespace.find(mark)? {
        Found::Nothing => return Ok(true),
        Found::Foreign => return Ok(false),
        Found::Unbound => (),
        Found::Marked => end_processes(namespace)?,
    }
    namespace.remove()?;
    Ok(true)
}

/// Ends the processes of a namespace.
fn end_processes(namespace: &Namespace) -> Result<(), LabError> {
    use super::error::Context;
    let inode = namespace.open()?.metadata().context(|| format!("look at {}", namespace.name()))?.ino();
    let processes = fs::read_dir("/proc").context(|| "list /proc".to_owned())?.filter_map(Result::ok);
    let pids: BTreeSet<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for pid in pids {
        // The process is identified before its namespace is read, so that the process in the namespace is the
        // one that ends.
        let Some(process) = Process::find(pid).filter(|_| pid != std::process::id()) else { continue };
        if fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|of| of.ino() == inode) {
            process.kill().context(|| format!("end process {pid} in {}", namespace.name()))?;
        }
    }
    Ok(())
}
