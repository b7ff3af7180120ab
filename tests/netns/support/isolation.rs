//! Isolation of tests: each has a network, mounts and shared memory of its own, so that nothing that it does is visible
//! to another one.

use std::ffi::CStr;
use std::fs;
use std::thread;

use palisade::lab::require_root;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::namespace::run;

/// File systems of a test: type and place. The kernel's `sysfs` shows the interfaces of the network namespace in which
/// it is mounted.
const FILE_SYSTEMS: [(&CStr, &str); 4] =
    [(c"tmpfs", "/run"), (c"sysfs", "/sys"), (c"bpf", "/sys/fs/bpf"), (c"tmpfs", "/dev/shm")];

/// Settings of a node that forwards, as nodes of Kubernetes do.
const FORWARDING: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];
/// Routes of the node by its second card.
const ROUTES: [&str; 4] = [
    "ip neigh add 192.0.2.254 lladdr 02:00:00:00:00:aa dev card nud permanent",
    "ip neigh add fe80::aa lladdr 02:00:00:00:00:aa dev card nud permanent",
    "ip route add default via 192.0.2.254 dev card onlink",
    "ip route add default via fe80::aa dev card",
];

/// Test in namespaces of its own. A test that panics prints the command that repeats it.
pub(crate) struct Isolated(());

/// Moves the calling thread, and the threads and processes that it starts, to namespaces of their own, of a node that
/// forwards and has another card. `None` if the run leaves out tests that need root.
pub(crate) fn isolated() -> Option<Isolated> {
    if !is_root() {
        return None;
    }
    // SAFETY: the file descriptor table stays shared; only this thread changes its namespaces.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }.expect("root may make namespaces");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    for (kind, place) in FILE_SYSTEMS {
        mount(kind, place, kind, MountFlags::empty(), None)
            .unwrap_or_else(|error| panic!("mount {place}: {error}"));
    }
    run("ip link set lo up");
    FORWARDING.into_iter().for_each(|setting| fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap());
    add_card(run);
    ROUTES.into_iter().for_each(run);
    Some(Isolated(()))
}

/// Gives a node a card that is no port of the switch. The other end of its cable is `wire`.
pub(crate) fn add_card(run: impl Fn(&str)) {
    let lines = ["ip link add card type veth peer name wire", "ip link set card up", "ip link set wire up"];
    lines.into_iter().for_each(run);
}

impl Drop for Isolated {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = std::env::var("NEXTEST_TEST_NAME").ok();
            let name = name.or_else(|| thread::current().name().map(str::to_owned)).unwrap_or_default();
            eprintln!("repeat it alone, as root: cargo test --test netns -- --exact {name}");
        }
    }
}

/// Fails without root, unless `PALISADE_SKIP_NETNS=1` leaves these tests out.
fn is_root() -> bool {
    if std::env::var_os("PALISADE_SKIP_NETNS").is_some_and(|value| value == "1") {
        eprintln!("skipped: PALISADE_SKIP_NETNS=1");
        return false;
    }
    require_root().expect("run the netns tests as root, or go without them: PALISADE_SKIP_NETNS=1");
    true
}
