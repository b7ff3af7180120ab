//! Threads that the switch cannot do without: a panic in one ends the process.
//!
//! A switch that has lost a worker, or whoever tells it of its interfaces, would go on with half of what it promises. The XDP
//! programs stay, so pods are closed until the next start.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

/// Exit code of a process in which such a thread has panicked.
pub const EXIT_PANICKED: i32 = 3;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Starts a thread whose panic ends the process with [`EXIT_PANICKED`] and a sentence.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || vital(&name, work))
}

/// Does work of a thread with this name, whose panic ends the process in the same way.
pub fn vital<T>(name: &str, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        tracing::error!(
            "thread {name} has panicked ({}): the switch ends with exit code {EXIT_PANICKED}, and its pods stay closed until the \
             next start; report this with the lines above",
            message(&*panic)
        );
        exit(EXIT_PANICKED)
    })
}

/// Counts panics from here on, those that are contained (of a request, say) as well.
pub fn count_panics() {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
}

/// Panics since [`count_panics`].
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
