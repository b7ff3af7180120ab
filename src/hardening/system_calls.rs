//! System calls that a switch never makes, denied by a filter (seccomp(2)).
//!
//! The list names the dangerous ones and admits all others: the C library and the kernel's own interfaces change, and a
//! list of admitted calls would stop the switch after an update. The kernel remembers which calls the filter admits
//! (since Linux 5.11), so that a worker's calls do not run it.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use seccompiler::{BackendError, BpfProgram, Error, SeccompAction, SeccompFilter, TargetArch};

/// System calls that start programs, denied unless the backend needs `nft`.
const PROGRAMS: [libc::c_long; 2] = [libc::SYS_execve, libc::SYS_execveat];
/// System calls that are always denied.
#[rustfmt::skip]
const DENIED: &[libc::c_long] = &[
    // Memory and descriptors of other processes.
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_getfd,
    libc::SYS_kcmp, libc::SYS_process_madvise, libc::SYS_perf_event_open, libc::SYS_userfaultfd,
    // The kernel itself.
    libc::SYS_kexec_load, libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module,
    libc::SYS_reboot, libc::SYS_syslog, libc::SYS_acct, libc::SYS_swapon, libc::SYS_swapoff,
    // Mounts, and files by handle, which Landlock does not see.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_move_mount,
    libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_fsmount, libc::SYS_fsconfig, libc::SYS_fspick,
    libc::SYS_mount_setattr, libc::SYS_open_by_handle_at, libc::SYS_quotactl, libc::SYS_fanotify_init,
    // Settings of the node.
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex,
    libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_vhangup,
    // Keys, another personality, and rings of system calls that no filter sees.
    libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl, libc::SYS_personality,
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
];
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[libc::c_long] =
    &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[libc::c_long] = &[libc::SYS_kexec_file_load];

/// `__X32_SYSCALL_BIT` of `asm/unistd.h`: the second set of numbers of this architecture.
const X32_BIT: i64 = 0x4000_0000;
/// Numbers of calls that differ in that set.
const X32_ONLY: std::ops::Range<i64> = 512..548;

/// Denies the system calls for all threads of this process, now and later. Returns their number.
pub(super) fn deny(starts_programs: bool) -> Result<usize, Error> {
    seccompiler::apply_filter_all_threads(&program(starts_programs)?)?;
    Ok(denied(starts_programs).count())
}

fn denied(starts_programs: bool) -> impl Iterator<Item = libc::c_long> + Clone {
    let programs = PROGRAMS.into_iter().filter(move |_| !starts_programs);
    DENIED.iter().chain(DENIED_HERE).copied().chain(programs)
}

fn program(starts_programs: bool) -> Result<BpfProgram, BackendError> {
    let ordinary = denied(starts_programs);
    let x32 = ordinary.clone().chain(X32_ONLY).map(|number| number | X32_BIT).filter(|_| ARCH == "x86_64");
    let rules: BTreeMap<i64, Vec<_>> = ordinary.chain(x32).map(|number| (number, Vec::new())).collect();
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, denied, TargetArch::try_from(ARCH)?)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_behind_the_filter_starts_no_program_and_does_everything_else() {
        let thread = thread::spawn(|| {
            Command::new("true").status().unwrap();
            seccompiler::apply_filter(&program(false).unwrap()).unwrap();
            let refused = Command::new("true").status().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
            std::fs::read("/proc/self/status").unwrap();
            thread::spawn(|| Command::new("true").status().unwrap_err()).join().unwrap();
        });
        thread.join().unwrap();
        Command::new("true").status().unwrap();
    }
}
