//! Tasks that go on after a panic, and the waits between panics.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::source::kubernetes::message::Message;
use crate::threads;

/// Wait after the first panic.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest wait after a panic.
const WAIT_MAX: Duration = Duration::from_mins(5);
/// Time without a panic after which the next one is a first one.
const CALM: Duration = Duration::from_mins(10);

/// Waits after panics; each is longer than the one before.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    count: u32,
    last: Option<Instant>,
}

impl Restarts {
    /// Wait after a panic.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now.saturating_duration_since(last) > CALM) {
            self.count = 0;
        }
        let wait = WAIT_MIN.saturating_mul(1 << self.count.min(16)).min(WAIT_MAX);
        self.count = self.count.saturating_add(1);
        self.last = Some(now + wait);
        wait
    }
}

/// Runs the follower of a kind until it ends by itself. After a panic its kind is away, and it starts again.
pub(super) async fn supervise<F: Future<Output = ()> + Send + 'static>(
    index: usize,
    sender: mpsc::Sender<(usize, Message)>,
    start: impl Fn() -> F,
) {
    let mut restarts = Restarts::default();
    while let Err(error) = tokio::spawn(start()).await {
        // A task that is cancelled ends with its runtime.
        let Ok(panic) = error.try_into_panic() else { return };
        let message = threads::message(panic.as_ref());
        let reason = format!("internal error of the agent, please report it: {message}");
        if sender.send((index, Message::Away(reason))).await.is_err() {
            return;
        }
        tokio::time::sleep(restarts.wait(Instant::now())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn panics_that_repeat_wait_longer_and_a_calm_time_forgets_them() {
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        let waits: Vec<u64> = (0..12)
            .map(|_| {
                let wait = restarts.wait(now);
                now += wait;
                wait.as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(restarts.wait(now + CALM + WAIT_MIN), WAIT_MIN);
    }

    #[tokio::test]
    async fn a_follower_that_panics_is_reported_and_starts_again() {
        let (sender, mut messages) = mpsc::channel(4);
        let starts = Arc::new(AtomicU32::new(0));
        let counted = starts.clone();
        supervise(3, sender, move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(number > 0, "first start") }
        })
        .await;
        assert_eq!(starts.load(Ordering::Relaxed), 2);
        let Some((3, Message::Away(reason))) = messages.recv().await else { panic!("no report") };
        assert!(reason.contains("first start"), "{reason}");
    }
}
