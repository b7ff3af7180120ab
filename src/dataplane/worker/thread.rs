//! Thread of a worker, with its core and its scheduling policy.

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

use thread_priority::{
    RealtimeThreadSchedulePolicy, ScheduleParams, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy,
};

use super::Worker;
use crate::dataplane::{Scheduling, StartError};
use crate::threads;
use crate::xdp::PortQueue;

/// Priority of workers under a real-time policy: above all threads that have none, below all others.
const REAL_TIME_PRIORITY: i32 = 1;

impl Worker {
    /// Starts the worker's thread on a core. Fails if the kernel refuses the thread or its policy.
    pub(crate) fn start(
        self,
        core: usize,
        scheduling: Scheduling,
    ) -> Result<JoinHandle<Vec<PortQueue>>, StartError> {
        let name = format!("palisade-w{}", self.id().index());
        let run = move || {
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
            self.run()
        };
        let thread = threads::spawn(name, run).map_err(|error| {
            StartError::Setup(format!("the kernel gives no thread for a worker: {error}"))
        })?;
        if scheduling == Scheduling::RealTime {
            set_real_time(&thread)?;
        }
        Ok(thread)
    }
}

fn set_real_time<T>(thread: &JoinHandle<T>) -> Result<(), StartError> {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriority::from_posix(ScheduleParams { sched_priority: REAL_TIME_PRIORITY });
    set_thread_priority_and_policy(thread.as_pthread_t(), priority, policy).map_err(|error| {
        StartError::Setup(format!(
            "the kernel refuses workers a real-time policy ({error}): give the switch CAP_SYS_NICE, or set \
             `workers.scheduling` to \"fair\""
        ))
    })
}
