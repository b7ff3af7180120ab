//! Pods of AF_XDP tests: network namespaces on veth pairs, removed on drop.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::namespace::run;

/// Network namespace that a sleeping process holds open, with `eth0`. The other end of the veth pair is
/// `host`, in the test's namespace.
pub(crate) struct Pod {
    keeper: Child,
    pub(crate) host: &'static str,
}

impl Pod {
    /// Makes a pod with address 10.0.0.`number` on a veth pair with this number of queues at each end.
    pub(crate) fn new(host: &'static str, number: u8, queues: u8) -> Pod {
        let keeper = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .expect("setpriv and unshare (util-linux) are installed");
        let pod = Pod { keeper, host };
        pod.wait_for_namespace();
        let (pid, q) = (pod.keeper.id(), format!("numrxqueues {queues} numtxqueues {queues}"));
        run(&format!("ip link add {host} {q} type veth peer name eth0 {q} netns {pid}"));
        run(&format!("ip link set {host} up"));
        pod.run(&format!("ip address add 10.0.0.{number}/24 dev eth0"));
        pod.run("ip link set eth0 up");
        pod
    }

    fn wait_for_namespace(&self) {
        let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", self.keeper.id());
        let deadline = Instant::now() + Duration::from_mins(1);
        while std::fs::read_link(&theirs).is_ok_and(|link| link == ours) {
            assert!(Instant::now() < deadline, "unshare has made no network namespace: is this root?");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a system command in the pod.
    pub(crate) fn run(&self, line: &str) {
        run(&format!("nsenter --net=/proc/{}/ns/net {line}", self.keeper.id()));
    }

    /// Runs `work` on a thread in the pod.
    pub(crate) fn enter<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
