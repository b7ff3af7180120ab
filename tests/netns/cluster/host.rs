//! Hosts and pods: networks of their own, in which commands and threads run.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::eventually;
use crate::support::namespace::enter;

/// Network in which sockets can be opened.
pub(crate) trait Network {
    /// File of the network namespace.
    fn network(&self) -> PathBuf;

    /// Runs `work` on a thread in the network.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        enter(&self.network(), work)
    }
}

/// Host with a network and mounts of its own, among them `/run` and `/sys`.
pub(crate) struct Host {
    pub(crate) name: String,
    keeper: Child,
}

impl Host {
    pub(crate) fn new(name: &str) -> Host {
        let script = "mount -t tmpfs tmpfs /run && mkdir -p /run/netns && mount -t sysfs sysfs /sys \
                      && mount -t bpf bpf /sys/fs/bpf && mount -t cgroup2 cgroup2 /sys/fs/cgroup && ip link set lo up && touch /run/is-up && exec sleep infinity";
        let keeper = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "sh", "-c", script])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let host = Host { name: name.to_owned(), keeper };
        let ours = std::fs::read_link("/proc/thread-self/ns/mnt").unwrap();
        eventually("the host has its file systems", || {
            std::fs::read_link(format!("/proc/{}/ns/mnt", host.pid())).is_ok_and(|theirs| theirs != ours)
                && host.file("/run/is-up").exists()
        });
        host.set("net/ipv6/conf/default/accept_dad", "0");
        host
    }

    fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// Sets a kernel parameter of the network.
    pub(crate) fn set(&self, name: &str, value: &str) {
        self.enter(|| std::fs::write(format!("/proc/sys/{name}"), value)).unwrap();
    }

    /// Path of a file of the host, as this process sees it.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid()))
    }

    /// Prepares a command on the host.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid().to_string(), "-n", "-m", "setpriv", "--pdeathsig", "KILL", program]);
        command
    }

    /// Runs a command on the host. Returns its output.
    pub(crate) fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let output = self.command(words.next().unwrap()).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line} on {}: {said}", self.name);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Network for Host {
    fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
