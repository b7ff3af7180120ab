//! Calls of the plugin that are killed at one of their system calls.
//!
//! The plugin waits for its configuration on standard input. There the test takes hold of it (ptrace), counts its system
//! calls from then on, and kills it as it enters the chosen one. A call that runs to its end gives the number of all.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use super::rig::{Container, Network};
use crate::random::variable;
use crate::support::{eventually, isolated};

/// Places in each call, unless `PALISADE_KILLS` has another number.
const PLACES: usize = 4;

/// End of a call.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// It has made so many system calls.
    Exited(usize),
}

/// Makes a call, and kills it when it enters its system call number `at` after its configuration is there.
fn call_until(network: &Network, verb: &str, container: &Container, config: &Value, at: usize) -> End {
    let mut child = network.prepare_call(verb, container).spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let mut stdin = child.stdin.take().unwrap();
    // read(2) on x86-64 is call 0; the description of a file begins with its number.
    eventually("the plugin waits for its configuration", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        call.split(' ').take(2).collect::<Vec<_>>() == [READ, "0x0"]
    });
    ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).unwrap();
    ptrace::interrupt(pid).unwrap();
    let mut entered = 0;
    let (mut is_inside, mut is_restarted) = (false, false);
    stdin.write_all(config.to_string().as_bytes()).unwrap();
    drop(stdin);
    let end = loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Exited(..) => break End::Exited(entered),
            WaitStatus::PtraceSyscall(_) => {
                is_inside = !is_inside;
                entered += usize::from(is_inside && !is_restarted);
                if is_inside && entered == at {
                    child.kill().unwrap();
                    break End::Killed;
                }
                is_restarted = !is_inside && restarts(pid);
                ptrace::syscall(pid, None).unwrap();
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => {
                ptrace::syscall(pid, None).unwrap();
            }
            WaitStatus::Stopped(_, signal) => ptrace::syscall(pid, signal).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    // One that has exited is waited for already.
    let _ = child.wait();
    end
}

/// Whether the system call that ends is made again by the kernel: a write to `/proc/sys/net` waits in this way for the
/// lock of the network configuration, thousands of times beside other tests.
fn restarts(pid: Pid) -> bool {
    let info = ptrace::syscall_info(pid).unwrap();
    // SAFETY: the union has the member that `op` names.
    info.op == libc::PTRACE_SYSCALL_INFO_EXIT && unsafe { info.u.exit.sval } == -ERESTARTNOINTR
}

/// `ERESTARTNOINTR` of the kernel's `include/linux/errno.h`.
const ERESTARTNOINTR: i64 = 513;

/// Kills a call at one of its system calls. A call may end a few system calls before another one of the same kind.
#[track_caller]
fn kill(network: &Network, verb: &str, container: &Container, config: &Value, (at, calls): (usize, usize)) {
    let end = call_until(network, verb, container, config, at);
    assert!(end == End::Killed || at > calls - calls / 10, "{verb} at system call {at} of {calls}: {end:?}");
}

/// Number of read(2), as /proc shows it.
const READ: &str = if cfg!(target_arch = "x86_64") { "0" } else { "63" };

/// Places to kill a call of so many system calls at, in equal distances. `PALISADE_SEED` shifts them, so that runs take
/// different ones.
fn spread(calls: usize) -> impl Iterator<Item = usize> {
    let places = variable("PALISADE_KILLS").unwrap_or(PLACES).min(calls);
    let seed: u64 = variable("PALISADE_SEED").unwrap_or_else(|| RandomState::new().hash_one(calls));
    eprintln!("{places} kills of a call of {calls} system calls, PALISADE_SEED={seed}");
    let shift = (seed % (calls / places) as u64) as usize;
    (0..places).map(move |place| 1 + place * calls / places + shift)
}

/// GC by a runtime that knows no container of the network.
fn collect(network: &Network, by: &Container) {
    let answer = network.call("GC", by, &gc(network));
    assert!(answer.success, "{answer:?}");
}

/// Asserts that nothing is left of any call, in the switch, on the disk, in the container and in the node.
fn assert_nothing_left(network: &Network, (container, port): (&Container, &str), after: &str) {
    let left = || {
        let mut left: Vec<String> = ["attached", "pending"]
            .into_iter()
            .flat_map(|part| (0..network.records(part)).map(move |_| format!("a record: {part}")))
            .collect();
        left.extend(network.leases());
        left.extend(network.client().ports().unwrap().into_iter().map(|port| port.name));
        left.extend(network.client().pods().unwrap().into_iter().map(|pod| pod.pod.to_string()));
        left.extend(container.has_interface().then(|| "the container's interface".to_owned()));
        let link = crate::support::veth::try_ip(&format!("-oneline link show dev {port}"));
        left.extend(link.status.success().then(|| format!("interface {port}")));
        left
    };
    // An IPAM plugin of a killed call may still run.
    eventually(&format!("nothing is left: {after}"), || {
        let is_empty = left().is_empty();
        if !is_empty {
            collect(network, container);
        }
        is_empty
    });
}

#[test]
fn a_call_that_is_killed_at_any_system_call_leaves_nothing_behind_the_next_ones() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let web = Container::new("web");
    for kind in ["tap", "veth"] {
        let config = network.with("interface", kind);
        let calls = calls_of(&network, "ADD", &web, &config);
        assert!(web.has_interface() && calls > 100, "{calls}");
        let port = network.client().ports().unwrap().remove(0).name;
        network.del(&web);
        kill_adds(&network, (&web, &port), &config, calls);
        let calls = calls_of(&network, "DEL", &web, &config);
        assert!(calls > 50, "{calls}");
        kill_removals(&network, (&web, &port), ("DEL", &config), calls);
        network.add(&web, kind);
        let calls = calls_of(&network, "GC", &web, &gc(&network));
        assert!(calls > 50, "{calls}");
        kill_removals(&network, (&web, &port), ("GC", &config), calls);
    }
    network.assert_empty();
}

/// Number of the system calls of a call that comes to its end.
fn calls_of(network: &Network, verb: &str, container: &Container, config: &Value) -> usize {
    match call_until(network, verb, container, config, usize::MAX) {
        End::Exited(calls) => calls,
        End::Killed => panic!("it was not to be killed"),
    }
}

/// Kills ADD. The runtime tries again, or gives up, or has forgotten the container. An ADD afterwards succeeds and stays.
fn kill_adds(network: &Network, of: (&Container, &str), config: &Value, calls: usize) {
    let (container, _) = of;
    for (number, at) in spread(calls).enumerate() {
        let what = format!("ADD at system call {at} of {calls}: {}", config["interface"]);
        network.del(container);
        assert_nothing_left(network, of, &what);
        kill(network, "ADD", container, config, (at, calls));
        match number % 3 {
            0 => {}
            1 => network.del(container),
            _ => collect(network, container),
        }
        if number % 3 != 0 {
            assert_nothing_left(network, of, &what);
        }
        let answer = network.call("ADD", container, config);
        assert!(answer.success && container.has_interface(), "{what}: {answer:?}");
        let mut checked = config.clone();
        checked["prevResult"] = answer.json;
        let check = network.call("CHECK", container, &checked);
        assert!(check.success, "{what}: {check:?}");
    }
}

/// Kills DEL or GC, which others follow.
fn kill_removals(network: &Network, of: (&Container, &str), (verb, config): (&str, &Value), calls: usize) {
    let (container, _) = of;
    for (number, at) in spread(calls).enumerate() {
        let what = format!("{verb} at system call {at} of {calls}: {}", config["interface"]);
        assert_nothing_left(network, of, &what);
        let answer = network.call("ADD", container, config);
        assert!(answer.success, "{what}: {answer:?}");
        let config = if verb == "GC" { gc(network) } else { config.clone() };
        kill(network, verb, container, &config, (at, calls));
        if number % 2 == 0 {
            network.del(container);
        } else {
            collect(network, container);
        }
        assert_nothing_left(network, of, &what);
    }
}

fn gc(network: &Network) -> Value {
    let mut config = network.with("cniVersion", "1.1.0");
    config["cni.dev/valid-attachments"] = serde_json::json!([]);
    config
}
