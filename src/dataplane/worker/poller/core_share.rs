//! Share of a worker's core that other threads get while the worker does not sleep.

use std::time::{Duration, Instant};

use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec};

use crate::dataplane::Scheduling;

/// Longest time that a real-time worker runs before it rests.
const RUN_MAX: Duration = Duration::from_micros(380);
/// Rest of a real-time worker, in which other threads of its core run: a twentieth of the time, in small pieces. The
/// kernel otherwise takes that twentieth in one piece of 50 ms (its deadline server for `SCHED_OTHER`, Linux 6.12).
const REST_NANOS: i64 = 20_000;

/// Rule by which a worker that does not sleep leaves its core to others.
#[derive(Debug)]
pub(in crate::dataplane::worker) struct CoreShare {
    scheduling: Scheduling,
    /// End of the last rest or sleep; `None` after a sleep of unknown end.
    running_since: Option<Instant>,
}

impl CoreShare {
    pub(in crate::dataplane::worker) fn new(scheduling: Scheduling) -> CoreShare {
        CoreShare { scheduling, running_since: None }
    }

    /// Notes that the worker has slept.
    pub(in crate::dataplane::worker) fn slept(&mut self) {
        self.running_since = None;
    }

    /// Lets other threads of the core run, if it is their turn.
    pub(in crate::dataplane::worker) fn leave_to_others(&mut self, now: Instant, had_work: bool) {
        match self.scheduling {
            // Another thread of this core runs while there is nothing to do. Without one, this is a short system call.
            Scheduling::Fair if !had_work => rustix::thread::sched_yield(),
            Scheduling::Fair => (),
            Scheduling::RealTime => {
                if now.duration_since(*self.running_since.get_or_insert(now)) >= RUN_MAX {
                    rest();
                    self.running_since = None;
                }
            }
        }
    }
}

fn rest() {
    let time = Timespec { tv_sec: 0, tv_nsec: REST_NANOS };
    // A signal handler ends the rest early.
    let _: NanosleepRelativeResult = rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &time);
}
