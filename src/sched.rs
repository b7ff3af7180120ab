//! The scheduler: how long a thread wants to run at a time.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

/// Asks for turns of this length for the calling thread, and for those that it will start: the share of its core stays the same,
/// but a thread with short turns has them soon after it wakes, where others would wait for the end of a long one
/// (`sched_setattr` and `sched_runtime`; Linux 6.12, before that it changes nothing). Between 0.1 and 100 ms.
///
/// A thread that has a real-time or idle policy has been given it by somebody, and keeps it.
pub(crate) fn wish_turn(turn: Duration) -> io::Result<()> {
    let mut attributes = attributes()?;
    let policy = attributes.sched_policy as i32;
    if policy == libc::SCHED_OTHER || policy == libc::SCHED_BATCH {
        attributes.sched_runtime = turn.as_nanos() as u64;
        // SAFETY: the kernel reads a structure that lives as long as the call and says its own size; thread 0 is the caller.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    }
    Ok(())
}

/// The calling thread's: policy, nice level and all, so that what is not to change stays.
fn attributes() -> io::Result<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of_val(&attributes);
    // SAFETY: the kernel writes no more than `size` bytes, which the structure has; thread 0 is the caller.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

fn done(answer: libc::c_long) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_changes_the_turn_and_nothing_else_and_threads_inherit_it() {
        let before = attributes().unwrap();
        let turn = Duration::from_micros(300);
        wish_turn(turn).unwrap();
        let after = attributes().unwrap();
        let inherited = std::thread::spawn(|| attributes().unwrap()).join().unwrap();
        for now in [after, inherited] {
            assert_eq!((now.sched_policy, now.sched_nice), (before.sched_policy, before.sched_nice));
            assert_eq!(now.sched_flags, before.sched_flags);
            // A kernel before 6.12 knows no wish, and says nothing of turns.
            assert!([0, turn.as_nanos() as u64].contains(&now.sched_runtime), "{}", now.sched_runtime);
        }
    }
}
