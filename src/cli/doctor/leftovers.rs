//! Checks of the running switch, and of what an earlier one has left.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::geteuid;

use super::check::{AS_ROOT, Check, SEEING_ALL, start_or};
use crate::config::Config;
use crate::control::protocol::Status;
use crate::control::{Client, ClientError};
use crate::dataplane::FlowMemory;
use crate::netlink::{Interface, NODE_ROUTE_PROTOCOL, node_routes_of_the_switch};
use crate::xdp::{NoBpfFileSystem, PinDirectory, PinUse, pin_directories};

/// Most problems of the running switch in the report.
const PROBLEMS_MAX: usize = 20;
/// Most names of interfaces in one sentence.
const NAMES_MAX: usize = 8;

/// Checks sockets, pins and the flow table of a configuration. `used` is the use of the pins of this network namespace.
pub(super) fn checks(config: &Config, used: &PinUse) -> Vec<Check> {
    let control = &config.control;
    let mut checks = Vec::new();
    let is_running = socket(&control.socket, "control socket", &mut checks);
    let mut running = None;
    if is_running {
        let status = Client::new(&control.socket).status();
        // Process 0 is in no network namespace.
        running = Some(status.as_ref().map_or(0, |status| status.pid));
        checks.extend(problems(status));
    }
    if let Some(path) = &control.read_only_socket {
        socket(path, "read-only socket", &mut checks);
    }
    checks.extend(pins(&config.xdp.pin_directory, running));
    checks.push(node_routes(if is_running { &PinUse::Open } else { used }));
    if let FlowMemory::Directory { path, fallback } = config.flow_memory() {
        let there = [Some(&path), fallback.as_ref()].into_iter().flatten().find(|path| path.exists());
        checks.push(flows(there.unwrap_or(&path), is_running));
    }
    checks
}

/// Checks a socket, and tells whether a switch serves it.
fn socket(path: &Path, subject: &str, checks: &mut Vec<Check>) -> bool {
    let shown = path.display();
    let file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            checks.push(Check::ok(subject, format!("{shown} is not there: no switch runs")));
            return false;
        }
        Err(error) => {
            checks.push(Check::unseen(subject, format!("{shown}: {error}"), AS_ROOT));
            return false;
        }
        Ok(file) => file,
    };
    if !file.file_type().is_socket() {
        let remedy = "move it away, or set another path in [control]: a start fails";
        checks.push(Check::finding(subject, format!("{shown} is not a socket"), remedy));
        return false;
    }
    let access = format!("mode {:04o}, group {}", file.mode() & 0o7777, file.gid());
    let check = match UnixStream::connect(path).map_err(|error: io::Error| error.kind()) {
        Ok(_) if file.mode() & 0o002 != 0 => Check::finding(
            subject,
            format!("{shown} is open to every user ({access})"),
            "set [control] mode = \"0660\" and a group, and restart the switch",
        ),
        Ok(_) => Check::ok(subject, format!("a switch answers at {shown} ({access})")),
        Err(ErrorKind::PermissionDenied) => {
            let what = format!("{shown} is not open to this user ({access})");
            Check::unseen(subject, what, "run it as root, or as a member of the group")
        }
        Err(ErrorKind::ConnectionRefused) => Check::finding(
            subject,
            format!("{shown} is left of a switch that has ended without a stop"),
            format!("start the switch, which replaces it, or rm {shown}; its log has the reason of the end"),
        ),
        Err(error) => Check::unseen(subject, format!("{shown}: {error}"), AS_ROOT),
    };
    let serves = UnixStream::connect(path).is_ok();
    checks.push(check);
    serves
}

/// Problems that the running switch tells of.
fn problems(status: Result<Status, ClientError>) -> Vec<Check> {
    let subject = "switch";
    match status {
        Err(error) => vec![Check::finding(
            subject,
            error.to_string(),
            "its log says more; restart it if it does not answer",
        )],
        Ok(status) if status.problems.is_empty() => {
            let what = format!("{} runs as process {} and reports no problem", status.version, status.pid);
            vec![Check::ok(subject, what)]
        }
        Ok(status) => {
            let problems = status.problems.into_iter().take(PROBLEMS_MAX);
            problems.map(|problem| Check::finding(subject, problem, "see `palisade show status`")).collect()
        }
    }
}

/// Checks the pins. `running` is the process of the running switch.
fn pins(root: &Path, running: Option<u32>) -> Vec<Check> {
    let (subject, shown) = ("BPF pins", root.display());
    if let Some(NoBpfFileSystem { what, remedy }) = NoBpfFileSystem::at(root) {
        let what =
            format!("{what}: the programs have no links, and `ip link set dev NAME xdp off` takes them off");
        return vec![Check::finding(subject, what, remedy)];
    }
    let directories = match pin_directories(root) {
        Err(error) => return vec![Check::unseen(subject, format!("{shown}: {error}"), AS_ROOT)],
        Ok(directories) if directories.is_empty() => {
            return vec![Check::ok(subject, format!("none in {shown}"))];
        }
        Ok(directories) => directories,
    };
    // Interfaces that a switch has closed have pins that no process has open.
    let own_switch = running.map(is_in_own_network);
    let used = |directory: &PinDirectory| match own_switch {
        Some(true) if directory.is_own => PinUse::Open,
        Some(false) => PinUse::Open,
        _ => directory.used.clone(),
    };
    directories.iter().map(|directory| of_directory(subject, directory, used(directory))).collect()
}

/// Whether a process is in the network namespace of this one. False if that cannot be told.
fn is_in_own_network(process: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let other = of(&process.to_string());
    other.is_some() && other == of("self")
}

fn of_directory(subject: &str, directory: &PinDirectory, used: PinUse) -> Check {
    let (shown, count) = (directory.path.display(), directory.files.len());
    match used {
        PinUse::Open => return Check::ok(subject, format!("{count} of a running switch in {shown}")),
        PinUse::Unseen(reason) => {
            let what = format!("{count} in {shown}; whether their switch runs is not seen: {reason}");
            return Check::unseen(subject, what, SEEING_ALL);
        }
        PinUse::Left => {}
    }
    let names = directory.files.iter().filter_map(|file| file.file_name()?.to_str());
    let index = |name: &str| name.split('-').next().and_then(|index| index.parse::<u32>().ok());
    let mut links: Vec<u32> = names.filter_map(index).collect();
    links.dedup();
    let names: Vec<String> = links.iter().take(NAMES_MAX).map(|index| name_of(*index, directory)).collect();
    let closed = match names.len() {
        0 => "none holds a program at an interface".to_owned(),
        1 => format!("interface {} drops every frame", names[0]),
        _ if links.len() > names.len() => format!("interfaces {}, … drop every frame", names.join(", ")),
        _ => format!("interfaces {} drop every frame", names.join(", ")),
    };
    Check::finding(
        subject,
        format!("{count} in {shown} are of a switch that does not run: {closed}"),
        start_or(&format!("rm -r {shown}")),
    )
}

/// Name of an interface, where it is one of this network namespace.
fn name_of(index: u32, directory: &PinDirectory) -> String {
    let interface = directory.is_own.then(|| Interface::with_index(index).ok()).flatten();
    interface.map_or_else(|| index.to_string(), |interface| interface.name)
}

/// Checks the routes of a switch in the node's table. `used` is the use of its pins.
fn node_routes(used: &PinUse) -> Check {
    let subject = "node's routes";
    match (node_routes_of_the_switch(), used) {
        (Err(error), _) => Check::unseen(subject, error.to_string(), AS_ROOT),
        (Ok(0), _) => Check::ok(subject, "none is the switch's".to_owned()),
        (Ok(count), PinUse::Open) => {
            Check::ok(subject, format!("{count} to pods of other nodes are the switch's"))
        }
        (Ok(count), PinUse::Unseen(reason)) => {
            let what = format!("{count} are of a switch; whether that runs is not seen: {reason}");
            Check::unseen(subject, what, SEEING_ALL)
        }
        (Ok(count), PinUse::Left) => Check::finding(
            subject,
            format!("{count} are of a switch that does not run"),
            format!(
                "start the switch, or remove them: ip route flush proto {NODE_ROUTE_PROTOCOL}; ip -6 route flush proto \
                 {NODE_ROUTE_PROTOCOL}"
            ),
        ),
    }
}

fn flows(directory: &Path, is_running: bool) -> Check {
    let (subject, shown) = ("flow table", directory.display());
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Check::ok(subject, format!("none in {shown}: a start begins without flows"))
        }
        Err(error) => Check::unseen(subject, format!("{shown}: {error}"), AS_ROOT),
        Ok(file) if !file.is_dir() || file.mode() & 0o077 != 0 => Check::finding(
            subject,
            format!("{shown} is not a directory of one user alone (mode {:04o})", file.mode() & 0o7777),
            format!("rm -r {shown}: a start fails"),
        ),
        Ok(file) if geteuid().is_root() && file.uid() != 0 => Check::finding(
            subject,
            format!("{shown} belongs to user {}", file.uid()),
            format!("rm -r {shown}, or start the switch as that user"),
        ),
        Ok(_) if is_running => Check::ok(subject, format!("in {shown}")),
        Ok(_) => Check::ok(
            subject,
            format!("flows of the last switch are in {shown}: a start continues with them"),
        ),
    }
}
