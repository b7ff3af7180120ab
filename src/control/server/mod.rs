//! Server of the control API, on a runtime of its own off the workers' cores. One thread serves at a time. A
//! read-only [`HttpListener`] and a read-only socket may be beside the control socket.
//!
//! A request that waits for the workers keeps the thread that has read it, and another thread serves
//! meanwhile. A change starts as soon as it is read, without a hand-over to a second thread.

mod connections;
mod dashboard;
mod error;
mod handlers;
mod http_access;
mod http_listener;
mod http_routes;
mod paced_stream;
mod peer;
mod read_only;
mod rehearsal;
mod services;
mod socket_file;
mod source;
mod steering;
mod unread;

use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};

use self::connections::Limits;
use self::http_access::Access;
use self::socket_file::SocketFile;
use super::Switch;
use crate::limits::{CONTROL_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX};
use crate::threads;

pub(crate) use connections::raise_descriptor_limit;
pub use error::ServerError;
pub(crate) use error::http_needs_token;
pub(crate) use http_access::needs_token;
pub use http_listener::HttpListener;
pub use socket_file::SocketPlace;

/// Time that requests under way have to end after a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time without any transfer on a connection to the control socket.
const CONTROL_IDLE: Duration = Duration::from_secs(30);
/// Least number of bytes that a reader of the control socket takes in that time. The largest responses that wait for a
/// reader ([`UNREAD_BYTES_MAX`](crate::limits::UNREAD_BYTES_MAX)) wait for two minutes at most.
const CONTROL_BYTES_MIN: usize = 32 << 20;
/// Longest time without any transfer on a connection to the HTTP listener. Scrapers keep theirs open between scrapes.
const HTTP_IDLE: Duration = Duration::from_secs(20);
/// Least number of bytes that a reader of the HTTP listener takes in that time: its network may be slow.
const HTTP_BYTES_MIN: usize = 1 << 20;

/// Socket that is bound and not served yet: requests wait. Dropping it removes the socket.
pub struct BoundSocket {
    socket: (StdListener, SocketFile),
    read_only: Option<(StdListener, SocketFile)>,
    http: Option<HttpListener>,
}

/// Running server. Dropping it stops the server.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _files: Vec<SocketFile>,
}

/// Listeners of a server, in its runtime.
struct Listeners {
    control: UnixListener,
    /// Beside the path of the control socket, which takes the changes.
    read_only: Option<(UnixListener, PathBuf)>,
    http: Option<(TcpListener, Access)>,
}

impl Server {
    /// Binds the socket `path` with permissions `mode`. Fails if a running switch serves that path.
    pub fn bind(path: &Path, mode: u32) -> Result<BoundSocket, ServerError> {
        Server::bind_at(&SocketPlace { path: path.to_owned(), mode, group: None })
    }

    /// Binds the control socket. Fails if a running switch serves that path.
    pub fn bind_at(place: &SocketPlace) -> Result<BoundSocket, ServerError> {
        Ok(BoundSocket { socket: socket_file::bind(place)?, read_only: None, http: None })
    }

    /// Combines [`Server::bind`] and [`BoundSocket::serve`].
    pub fn start(path: &Path, mode: u32, switch: Arc<Switch>) -> Result<Server, ServerError> {
        Server::bind(path, mode)?.serve(switch)
    }
}

impl BoundSocket {
    /// Binds a read-only socket too, whose clients change nothing.
    pub fn with_read_only(self, place: Option<&SocketPlace>) -> Result<BoundSocket, ServerError> {
        Ok(BoundSocket { read_only: place.map(socket_file::bind).transpose()?, ..self })
    }

    /// Serves a listener too.
    #[must_use]
    pub fn with_http(self, http: Option<HttpListener>) -> BoundSocket {
        BoundSocket { http, ..self }
    }

    /// Address of the HTTP listener, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpListener::address)
    }

    /// Serves `switch` on the sockets.
    pub fn serve(self, switch: Arc<Switch>) -> Result<Server, ServerError> {
        let BoundSocket { socket: (listener, file), read_only, http } = self;
        let path = file.path().to_owned();
        let failed = |source| ServerError::Socket { path: path.clone(), source };
        let cores = switch.status().cores;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .on_thread_start(move || avoid_worker_cores(&cores))
            .enable_all()
            .build()
            .map_err(failed)?;
        let mut files = vec![file];
        let listeners = {
            let _entered = runtime.enter();
            let take = |listener: StdListener| {
                listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener)).map_err(failed)
            };
            let read_only = match read_only {
                Some((listener, file)) => {
                    files.push(file);
                    Some((take(listener)?, path.clone()))
                }
                None => None,
            };
            let http = http.map(HttpListener::into_parts).transpose()?;
            Listeners { control: take(listener)?, read_only, http }
        };
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            avoid_worker_cores(&switch.status().cores);
            runtime.block_on(serve(listeners, switch, stopped));
            // A computation for the dashboard may go on for longer.
            runtime.shutdown_timeout(STOP_TIMEOUT);
        };
        let thread = threads::spawn("control", serve).map_err(failed)?;
        Ok(Server { stop: Some(stop), thread: Some(thread), _files: files })
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
async fn serve(listeners: Listeners, switch: Arc<Switch>, stopped: oneshot::Receiver<()>) {
    let Listeners { control, read_only, http } = listeners;
    let (begin_stop, stopping) = watch::channel(());
    let http = serve_http(http, switch.clone(), stopping.clone());
    let health_checks = services::health_checks::serve(switch.clone(), stopping.clone());
    let streams = switch.clone();
    let limits = Limits::for_process(CONTROL_CONNECTIONS_MAX, CONTROL_IDLE, CONTROL_BYTES_MIN);
    let others =
        rehearsal::routes().merge(services::routes()).merge(source::routes()).merge(steering::routes());
    let router = handlers::router(switch, others);
    let reading = read_only.map(|(listener, main)| (listener, read_only::router(router.clone(), main)));
    let read_only_stopping = stopping.clone();
    let read_only = async {
        let Some((listener, router)) = reading else { return };
        connections::serve(listener, |_: &UnixStream| router.clone(), limits, read_only_stopping).await;
    };
    let router = peer::log_changes(router);
    let router = move |stream: &UnixStream| peer::with_peer(&router, stream);
    let control = connections::serve(control, router, limits, stopping);
    let impatient = async {
        // The sender is dropped to stop the server.
        let _ = stopped.await;
        let _ = begin_stop.send(());
        streams.close_streams();
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        _ = async { tokio::join!(control, read_only, http, health_checks) } => {}
        () = impatient => {}
    }
}

async fn serve_http(http: Option<(TcpListener, Access)>, switch: Arc<Switch>, stopping: watch::Receiver<()>) {
    let Some((listener, access)) = http else { return };
    let router = http_routes::router(switch, access);
    let limits = Limits::for_process(HTTP_CONNECTIONS_MAX, HTTP_IDLE, HTTP_BYTES_MIN);
    connections::serve(listener, |_| router.clone(), limits, stopping).await;
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
