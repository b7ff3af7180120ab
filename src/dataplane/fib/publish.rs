//! How a view reaches the workers, and when the one before is freed.
//!
//! The control side replaces the current view, then says its number in `newest`, wakes who sleeps, and waits. A worker compares that number
//! with the one of its own view at the start of each batch: one load. Where it differs the worker takes the view, and says so in `observed`. When all have
//! said so, nobody judges by the earlier view or counts in it, and the control side frees it: a worker never does.
//!
//! A worker never waits either: while the view is just being replaced it goes on by its own, and hears of the next one after. `model.rs` runs
//! all this in the orders that matter.

use std::mem::replace;
use std::sync::{PoisonError, TryLockError};

use super::parts::{Arc, AtomicU32, Ordering, RwLock};
use crate::ids::{Generation, WorkerId};

/// What can be published: it knows its number, which is greater than that of the one before.
pub(crate) trait Numbered {
    /// Its number.
    fn generation(&self) -> Generation;
}

/// The current view, and how far the workers are.
pub(crate) struct Publication<V> {
    current: RwLock<Arc<V>>,
    /// Generation of `current`, but for the moment after it is replaced.
    newest: AtomicU32,
    /// Generation that each worker judges by.
    observed: Box<[AtomicU32]>,
}

impl<V: Numbered> Publication<V> {
    /// The first view. Nobody judges by it before it has entered.
    pub(crate) fn new(first: V, workers: usize) -> Publication<V> {
        let generation = first.generation().0;
        Publication {
            current: RwLock::new(Arc::new(first)),
            newest: AtomicU32::new(generation),
            observed: (0..workers).map(|_| AtomicU32::new(generation)).collect(),
        }
    }

    /// The current view. May wait for the control side, and keeps the view from being freed: not for workers at work.
    pub(crate) fn current(&self) -> Arc<V> {
        // Nothing that holds the lock can panic, so there is no half of anything.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a view the current one; one thread at a time does. The one before comes back, to be kept until all workers
    /// have observed to a later one ([`Publication::wait`]), so that none of them frees it. Those that sleep are to be woken.
    #[must_use]
    pub(crate) fn publish(&self, next: V) -> Arc<V> {
        let (generation, next) = (next.generation(), Arc::new(next));
        let before = replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next);
        // A worker that reads this finds the lock free: it does not look again before it is woken.
        self.newest.store(generation.0, Ordering::Release);
        before
    }

    /// Lets a worker judge by the current view, before its first batch.
    pub(crate) fn register(&self, worker: WorkerId) -> Arc<V> {
        let own = self.current();
        self.observed[worker.index()].store(own.generation().0, Ordering::Release);
        own
    }

    /// Lets a worker that judges by `own` judge by the current view, if that is another. Whether it is. Between two batches.
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
        // The control side keeps the earlier view until it hears of this.
        *own = next;
        self.observed[worker.index()].store(own.generation().0, Ordering::Release);
        true
    }

    /// The generation that a worker judges by.
    pub(crate) fn observed(&self, worker: WorkerId) -> Generation {
        Generation(self.observed[worker.index()].load(Ordering::Acquire))
    }

    /// Waits until every worker judges by `generation` or a later one. `pause` lets some time go by between two looks; when it
    /// says false it has been long enough. Whether all have come to it.
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
