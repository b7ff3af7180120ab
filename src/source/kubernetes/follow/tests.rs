//! Tests of waits and restarts of a follower.

use super::super::connection::Access;
use super::*;

fn follower(retry_min: Duration) -> (Follower, mpsc::Receiver<(usize, Message)>, watch::Sender<u64>) {
    let access = Access { kubeconfig: Some("/nonexistent/kubeconfig".into()), context: None };
    let timing = Timing { retry_min, retry_max: retry_min * 64, ..Timing::default() };
    let (sender, messages) = mpsc::channel(64);
    let (restart, restarts) = watch::channel(0);
    (Follower::new(0, Arc::new(Connection::new(access)), timing, sender, restarts), messages, restart)
}

async fn away(messages: &mut mpsc::Receiver<(usize, Message)>) -> bool {
    let next = tokio::time::timeout(Duration::from_mins(1), messages.recv()).await;
    matches!(next, Ok(Some((0, Message::Away(_)))))
}

#[tokio::test]
async fn a_restart_during_a_wait_begins_again_at_once() {
    let (follower, mut messages, restart) = follower(Duration::from_hours(1));
    let running = tokio::spawn(follower.run());
    assert!(away(&mut messages).await, "the credentials cannot be read");
    restart.send_modify(|count| *count += 1);
    assert!(away(&mut messages).await, "the wait of an hour ends");
    running.abort();
}

#[tokio::test]
async fn watches_that_are_too_old_again_and_again_wait_longer() {
    let (mut follower, _messages, _restart) = follower(Duration::from_secs(1));
    let gone = Failure::Status { code: 410, message: String::new(), retry_after: None };
    let mut waits = Vec::new();
    for _ in 0..8 {
        waits.push(follower.failed("watch", &gone).await.unwrap_or_default());
    }
    assert!(waits[0] <= Duration::from_secs(1), "{waits:?}");
    assert!(waits[7] >= Duration::from_secs(32), "{waits:?}");
}
