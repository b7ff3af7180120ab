//! Threads that the switch cannot run without: a panic in one of them ends the process.
//!
//! A switch without one of its workers, or without its interface monitor, would enforce policy only in part.
//! The XDP programs stay attached and drop the pods' frames until the next start.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

/// Exit code of a process in which such a thread has panicked.
pub const EXIT_PANICKED: i32 = 3;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Starts a thread whose panic logs an error and ends the process with [`EXIT_PANICKED`].
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || vital(&name, work))
}

/// Runs work on the calling thread under this name. A panic ends the process in the same way.
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

/// Counts panics from this call on, contained ones (of a request, for example) included.
pub fn count_panics() {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
}

/// Number of panics since [`count_panics`].
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Extracts the message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
