//! Queues whose sockets this process has closed. The kernel releases such a queue later, in a kernel worker that waits for
//! the lock of the network configuration (`xp_put_pool` of `net/xdp/xsk_buff_pool.c`): on a busy machine after seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a queue that another process has, or had.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a queue whose last socket was one of this process.
const OWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Index of an interface, and queue.
type Queue = (u32, u16);

/// Queues of closed sockets, with the time of the close.
static CLOSED: Mutex<Vec<(Queue, Instant)>> = Mutex::new(Vec::new());

/// Queue that a socket of this process is bound to. The last field of the socket: dropped behind its descriptors.
pub(super) struct BoundQueue(Queue);

impl BoundQueue {
    pub(super) fn of(interface: u32, queue: u16) -> BoundQueue {
        BoundQueue((interface, queue))
    }
}

impl Drop for BoundQueue {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut closed = recent(now);
        closed.retain(|(queue, _)| *queue != self.0);
        closed.push((self.0, now));
    }
}

/// Longest wait for a queue that is taken.
pub(super) fn timeout(interface: u32, queue: u16) -> Duration {
    let is_own = recent(Instant::now()).iter().any(|(closed, _)| *closed == (interface, queue));
    if is_own { OWN_TIMEOUT } else { TIMEOUT }
}

/// Queues that the kernel may have yet to release.
fn recent(now: Instant) -> MutexGuard<'static, Vec<(Queue, Instant)>> {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    closed.retain(|(_, at)| now.duration_since(*at) < OWN_TIMEOUT);
    closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_waited_for_longer_once_a_socket_of_this_process_was_bound_to_it() {
        let bound = BoundQueue::of(u32::MAX, 3);
        assert_eq!(timeout(u32::MAX, 3), TIMEOUT, "its socket is open");
        drop(bound);
        assert_eq!(timeout(u32::MAX, 3), OWN_TIMEOUT);
        assert_eq!(timeout(u32::MAX, 2), TIMEOUT);
        assert_eq!(timeout(u32::MAX - 1, 3), TIMEOUT);
    }
}
