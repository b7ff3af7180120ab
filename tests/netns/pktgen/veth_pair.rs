//! Veth pair between the test's network namespace and another one, removed on drop.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use palisade::pktgen::Target;

use crate::support::namespace::{output, run};

/// Two interfaces: `tx0` with 10.0.0.1 and `fd00::1` in a namespace that a sleeping process holds open, and
/// `rx0` with 10.0.0.2 and `fd00::2` in the calling thread's.
pub(crate) struct Pair {
    keeper: Child,
    pub(crate) tx: Target,
    pub(crate) rx: Target,
}

impl Pair {
    pub(crate) fn new(queues: u8) -> Pair {
        let keeper = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .expect("setpriv and unshare (util-linux) are installed");
        let namespace = format!("/proc/{}/ns/net", keeper.id());
        let tx = Target { interface: "tx0".to_owned(), namespace: Some(namespace.clone()) };
        let pair = Pair { keeper, tx, rx: Target { interface: "rx0".to_owned(), namespace: None } };
        wait_for_namespace(&namespace);
        let (pid, q) = (pair.keeper.id(), format!("numrxqueues {queues} numtxqueues {queues}"));
        run(&format!("ip link add rx0 {q} type veth peer name tx0 {q} netns {pid}"));
        run("ip address add 10.0.0.2/24 dev rx0");
        run("ip address add fd00::2/64 dev rx0 nodad");
        run("ip link set rx0 up");
        pair.tx_run("ip address add 10.0.0.1/24 dev tx0");
        pair.tx_run("ip address add fd00::1/64 dev tx0 nodad");
        pair.tx_run("ip link set tx0 up");
        pair
    }

    /// Runs a system command in the sender's namespace.
    pub(crate) fn tx_run(&self, line: &str) {
        run(&format!("nsenter --net=/proc/{}/ns/net {line}", self.keeper.id()));
    }

    /// Output of `ip link` for the sending interface.
    pub(crate) fn tx_link(&self) -> String {
        output(&format!("nsenter --net=/proc/{}/ns/net ip -details link show dev tx0", self.keeper.id()))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn wait_for_namespace(theirs: &str) {
    let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    while std::fs::read_link(theirs).is_ok_and(|link| link == ours) {
        assert!(Instant::now() < deadline, "unshare has made no network namespace: is this root?");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Output of `ip link` for the receiving interface.
pub(crate) fn rx_link() -> String {
    output("ip -details link show dev rx0")
}
