//! Publication of snapshots to workers, and their release.
//!
//! The control side replaces the current snapshot, stores its number in `newest`, wakes sleeping workers, and
//! waits. A worker compares `newest` with the number of its own snapshot at the start of each batch, which is
//! one load. If they differ, it takes the current snapshot and stores its number in `observed`. After all
//! workers have done so, none of them evaluates packets by the earlier snapshot or counts in it. Then the
//! control side frees that one; a worker never frees a snapshot.
//!
//! A worker never waits: while the control side replaces the snapshot, the worker keeps its own for one more
//! batch. `loom_tests.rs` explores the interleavings.

use std::mem::replace;
use std::sync::{PoisonError, TryLockError};

use super::parts::{Arc, AtomicU32, Ordering, RwLock};
use crate::ids::{Generation, WorkerId};

/// A value that can be published. Its number is greater than that of the one before.
pub(crate) trait Numbered {
    /// Number of the generation.
    fn generation(&self) -> Generation;
}

/// The current snapshot, and the generation that each worker has observed.
pub(crate) struct Publication<V> {
    current: RwLock<Arc<V>>,
    /// Generation of `current`, except for the moment after its replacement.
    newest: AtomicU32,
    /// Generation that each worker uses.
    observed: Box<[AtomicU32]>,
}

impl<V: Numbered> Publication<V> {
    /// Begins with a first snapshot. A worker uses it after [`Publication::register`].
    pub(crate) fn new(first: V, workers: usize) -> Publication<V> {
        let generation = first.generation().0;
        Publication {
            current: RwLock::new(Arc::new(first)),
            newest: AtomicU32::new(generation),
            observed: (0..workers).map(|_| AtomicU32::new(generation)).collect(),
        }
    }

    /// The current snapshot. The call may wait for the control side, and the result keeps the snapshot from
    /// being freed: running workers do not call it.
    pub(crate) fn current(&self) -> Arc<V> {
        // No code under this lock can panic, so a poisoned lock guards a whole value.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes `next` the current snapshot, by one thread at a time. Returns the one before, to be kept until
    /// all workers have observed a later one ([`Publication::wait`]), so that no worker frees it. The caller
    /// wakes sleeping workers.
    #[must_use]
    pub(crate) fn publish(&self, next: V) -> Arc<V> {
        let (generation, next) = (next.generation(), Arc::new(next));
        let before = replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next);
        // A worker that reads this finds the lock free: it does not try again before it is woken.
        self.newest.store(generation.0, Ordering::Release);
        before
    }

    /// Registers a worker, before its first batch, and returns the current snapshot.
    pub(crate) fn register(&self, worker: WorkerId) -> Arc<V> {
        let own = self.current();
        self.observed[worker.index()].store(own.generation().0, Ordering::Release);
        own
    }

    /// Replaces the snapshot `own` of a worker by the current one, if that is another, between two batches.
    /// Returns whether it has.
    #[inline]
    pub(crate) fn observe(&self, worker: WorkerId, own: &mut Arc<V>) -> bool {
        self.newest.load(Ordering::Acquire) > own.generation().0 && self.take_current(worker, own)
    }

    #[cold]
    fn take_current(&self, worker: WorkerId, own: &mut Arc<V>) -> bool {
        let next = match self.current.try_read() {
            Ok(current) => Arc::clone(&current),
            Err(TryLockError::Poisoned(poisoned)) => Arc::clone(&poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        };
        // The control side keeps the earlier snapshot until it reads this.
        *own = next;
        self.observed[worker.index()].store(own.generation().0, Ordering::Release);
        true
    }

    /// Generation that a worker uses.
    pub(crate) fn observed(&self, worker: WorkerId) -> Generation {
        Generation(self.observed[worker.index()].load(Ordering::Acquire))
    }

    /// Waits until every worker uses `generation` or a later one, and returns true. `pause` waits between two
    /// checks, and ends the wait by returning false.
    pub(crate) fn wait(&self, generation: Generation, mut pause: impl FnMut() -> bool) -> bool {
        loop {
            if self.observed.iter().all(|observed| observed.load(Ordering::Acquire) >= generation.0) {
                return true;
            }
            if !pause() {
                return false;
            }
        }
    }
}
