//! Checks of the running switch, and of what an earlier one has left.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::geteuid;

use super::check::{AS_ROOT, Check};
use crate::config::Config;
use crate::control::Client;
use crate::dataplane::FlowMemory;
use crate::netlink::{NODE_ROUTE_PROTOCOL, node_routes_of_the_switch};
use crate::xdp::is_on_bpf_file_system;

/// Most problems of the running switch in the report.
const PROBLEMS_MAX: usize = 20;

/// Checks sockets, pins and the flow table of a configuration.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let control = &config.control;
    let mut checks = Vec::new();
    let is_running = socket(&control.socket, "control socket", &mut checks);
    if is_running {
        checks.extend(running(&control.socket));
    }
    if let Some(path) = &control.read_only_socket {
        socket(path, "read-only socket", &mut checks);
    }
    checks.push(pins(&config.xdp.pin_directory, is_running));
    checks.push(node_routes(is_running));
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
fn running(socket: &Path) -> Vec<Check> {
    let subject = "switch";
    match Client::new(socket).status() {
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

fn pins(directory: &Path, is_running: bool) -> Check {
    let (subject, shown) = ("BPF links", directory.display());
    if !is_on_bpf_file_system(directory) {
        return Check::finding(
            subject,
            format!("{shown} is not on a BPF file system: `ip link set dev NAME xdp off` takes programs off"),
            "mount -t bpf bpf /sys/fs/bpf",
        );
    }
    let count = fs::read_dir(directory).map(|namespaces| {
        let pins = namespaces.flatten().map(|entry| fs::read_dir(entry.path()).map_or(0, Iterator::count));
        pins.sum::<usize>()
    });
    match count {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Check::unseen(subject, format!("{shown}: {error}"), AS_ROOT)
        }
        Ok(count @ 1..) if !is_running => Check::finding(
            subject,
            format!(
                "{count} pinned links are in {shown}, and no switch runs: their interfaces drop every frame"
            ),
            format!("start the switch, or give the interfaces up: rm -r {shown}"),
        ),
        Ok(count) => Check::ok(subject, format!("{count} pinned links in {shown}")),
        Err(_) => Check::ok(subject, format!("none in {shown}")),
    }
}

/// Checks the routes of a switch in the node's table.
fn node_routes(is_running: bool) -> Check {
    let subject = "node's routes";
    match node_routes_of_the_switch() {
        Err(error) => Check::unseen(subject, error.to_string(), AS_ROOT),
        Ok(0) => Check::ok(subject, "none is the switch's".to_owned()),
        Ok(count) if is_running => {
            Check::ok(subject, format!("{count} to pods of other nodes are the switch's"))
        }
        Ok(count) => Check::finding(
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
