//! Server of the control API, on a runtime of its own off the workers' cores. One thread serves at a time.
//!
//! A request that waits for the workers keeps the thread that has read it, and another thread serves
//! meanwhile. A change starts as soon as it is read, without a hand-over to a second thread.

mod connections;
mod error;
mod handlers;
mod socket_file;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use self::connections::Limits;
use self::socket_file::SocketFile;
use super::Switch;
use crate::threads;

pub(crate) use connections::raise_descriptor_limit;
pub use error::ServerError;

/// Time that requests under way have to end after a stop.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Socket that is bound and not served yet: requests wait. Dropping it removes the socket.
pub struct BoundSocket {
    listener: std::os::unix::net::UnixListener,
    file: SocketFile,
}

/// Running server. Dropping it stops the server.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _file: SocketFile,
}

impl Server {
    /// Binds the socket `path` with permissions `mode`. Fails if a running switch serves that path.
    pub fn bind(path: &Path, mode: u32) -> Result<BoundSocket, ServerError> {
        let (listener, file) = socket_file::bind(path, mode)?;
        Ok(BoundSocket { listener, file })
    }

    /// Combines [`Server::bind`] and [`BoundSocket::serve`].
    pub fn start(path: &Path, mode: u32, switch: Arc<Switch>) -> Result<Server, ServerError> {
        Server::bind(path, mode)?.serve(switch)
    }
}

impl BoundSocket {
    /// Serves `switch` on the socket.
    pub fn serve(self, switch: Arc<Switch>) -> Result<Server, ServerError> {
        let BoundSocket { listener, file } = self;
        let path = file.path().to_owned();
        let failed = |source| ServerError::Socket { path: path.clone(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let cores = switch.status().cores;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .on_thread_start(move || avoid_worker_cores(&cores))
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::from_std(listener).map_err(failed)?
        };
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            avoid_worker_cores(&switch.status().cores);
            runtime.block_on(serve(listener, switch, stopped));
        };
        let thread = threads::spawn("control", serve).map_err(failed)?;
        Ok(Server { stop: Some(stop), thread: Some(thread), _file: file })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has ended the process.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves until the sender of `stopped` is dropped, and a little longer for requests under way.
async fn serve(listener: UnixListener, switch: Arc<Switch>, stopped: oneshot::Receiver<()>) {
    let (begin_stop, stopping) = tokio::sync::watch::channel(());
    let router = handlers::router(switch);
    let router = move |stream: &UnixStream| handlers::with_peer(&router, stream);
    let server = connections::serve(listener, router, Limits::for_process(), stopping);
    let impatient = async {
        // The sender is dropped to stop the server.
        let _ = stopped.await;
        let _ = begin_stop.send(());
        tokio::time::sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        () = server => {}
        () = impatient => {}
    }
}

/// Moves this thread, and the threads that it starts, off the workers' cores where there are other cores.
pub(crate) fn avoid_worker_cores(workers: &[usize]) {
    let Ok(mut cores) = sched_getaffinity(None) else { return };
    for &core in workers.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        cores.unset(core);
    }
    if cores.count() > 0
        && let Err(error) = sched_setaffinity(None, &cores)
    {
        tracing::debug!(%error, "the control thread stays on all cores");
    }
}
