//! Privilege and concurrency of tests: a test with a switch runs alone, tests in namespaces of their own run
//! beside each other.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use palisade::lab::require_root;

/// Lock that a test with a switch takes for writing, and every other test for reading.
static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until no other test runs, and keeps others out: two switches at once on two cores would disturb each
/// other, and some tests count the labs of the machine. `None` if the run leaves out tests that need root.
pub(crate) fn alone() -> Option<RwLockWriteGuard<'static, ()>> {
    // A failed test has dropped its lab, too.
    is_root().then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner))
}

/// Like [`alone`], for tests of the host ends of veth pairs; `None` too in a run on tap devices.
pub(crate) fn alone_on_veth() -> Option<RwLockWriteGuard<'static, ()>> {
    if on_taps() {
        eprintln!("skipped on tap devices: a test of veth pairs");
        return None;
    }
    alone()
}

/// Whether labs have tap devices (`PALISADE_PORTS=tap`).
pub(crate) fn on_taps() -> bool {
    std::env::var_os("PALISADE_PORTS").is_some_and(|ports| ports == "tap")
}

/// Kind of the labs' ports, as the command line names it.
pub(crate) fn ports() -> &'static str {
    if on_taps() { "tap" } else { "veth" }
}

/// Waits until no test with a switch runs. `None` if the run leaves out tests that need root.
pub(crate) fn beside_others() -> Option<RwLockReadGuard<'static, ()>> {
    is_root().then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner))
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
