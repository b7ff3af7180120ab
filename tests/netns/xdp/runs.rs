//! Runs of XDP programs, counted by the kernel.

use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::query::ProgInfoIter;

use super::program::program_id;

/// Counts the runs of an interface's program while it exists.
pub(crate) struct Runs {
    _statistics: OwnedFd,
    interface: &'static str,
    before: u64,
}

impl Runs {
    /// Begins to count (`BPF_ENABLE_STATS` with `BPF_STATS_RUN_TIME`, bpf(2)).
    pub(crate) fn of(interface: &'static str) -> Runs {
        const BPF_ENABLE_STATS: libc::c_long = 32;
        const BPF_STATS_RUN_TIME: u64 = 0;
        let attributes = [BPF_STATS_RUN_TIME; 8];
        // SAFETY: the attributes outlive the call; the descriptor is ours alone.
        let statistics = unsafe {
            let fd = libc::syscall(
                libc::SYS_bpf,
                BPF_ENABLE_STATS,
                &raw const attributes,
                size_of_val(&attributes),
            );
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as i32)
        };
        let before = total(interface);
        Runs { _statistics: statistics, interface, before }
    }

    /// Runs since the beginning.
    pub(crate) fn count(&self) -> u64 {
        total(self.interface) - self.before
    }
}

fn total(interface: &str) -> u64 {
    let id = program_id(interface).expect("a program is attached");
    ProgInfoIter::default().find(|info| info.id == id).expect("the program exists").run_cnt
}
