//! Connections of the server: bounded in number, and closed after some time of idleness, or of slow reading.
//!
//! A connection is idle while its task waits for the client: for a request, the rest of one, or buffer space
//! for a response. A handler runs within the task, so a request that waits for the workers is not idle.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use dashmap::DashMap;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::paced_stream::PacedStream;

/// Interval at which a new connection looks for an idle one again while all others have requests under way.
const EVICTION_RETRY: Duration = Duration::from_millis(20);
/// Wait after a failed `accept`, whose most likely cause is a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Interval between two warnings that the limit is reached.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);
/// Least number of connections that the server accepts.
const CONNECTIONS_MIN: u64 = 8;

/// Limits on the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Most connections.
    connections: usize,
    /// Longest time without any transfer on a connection, and for the head of a request.
    idle: Duration,
    /// Least number of bytes that a reader takes in that time while more wait for it.
    bytes_min: usize,
}

impl Limits {
    /// Takes a quarter of the process's descriptor limit, at most `connections_max`. Ports need the other
    /// descriptors.
    pub(super) fn for_process(connections_max: usize, idle: Duration, bytes_min: usize) -> Limits {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let connections = (descriptors / 4).clamp(CONNECTIONS_MIN, connections_max as u64);
        Limits { connections: connections as usize, idle, bytes_min }
    }
}

/// Listening socket.
pub(super) trait Listener {
    /// Connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Name of the listener in the log.
    const NAME: &str;

    /// Accepts the next connection.
    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    const NAME: &str = "the control socket";

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    const NAME: &str = "the HTTP listener";

    async fn accept(&self) -> io::Result<TcpStream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn raise_descriptor_limit() {
    let limits = getrlimit(Resource::Nofile);
    if let Err(error) =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limits.maximum, ..limits })
    {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limits.current);
    }
}

/// Serves each connection with its own router until `stopping` changes, and then until the requests under way
/// have ended.
pub(super) async fn serve<L: Listener>(
    listener: L,
    router: impl Fn(&L::Stream) -> Router,
    limits: Limits,
    mut stopping: watch::Receiver<()>,
) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let open = Arc::new(ConnectionTable::default());
    let mut warned: Option<Instant> = None;
    let accept = async {
        loop {
            let stream = match listener.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!("{} does not accept a connection: {error}", L::NAME);
                    open.evict_longest_idle();
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let slot = loop {
                let now = room.clone().try_acquire_owned();
                if let Ok(slot) = now {
                    break slot;
                }
                if warned.is_none_or(|warned| warned.elapsed() > WARNING_INTERVAL) {
                    warned = Some(Instant::now());
                    tracing::warn!(
                        "{} connections to {} are open: each new one closes the one that has been idle for the longest time",
                        limits.connections,
                        L::NAME
                    );
                }
                open.evict_longest_idle();
                if let Ok(Ok(slot)) = timeout(EVICTION_RETRY, room.clone().acquire_owned()).await {
                    break slot;
                }
            };
            let (open, router, stopping) = (open.clone(), router(&stream), stopping.clone());
            tokio::spawn(async move {
                let (number, connection) = open.add();
                serve_connection(stream, router, &connection, limits, stopping).await;
                open.remove(number);
                drop(slot);
            });
        }
    };
    let mut stop = stopping.clone();
    tokio::select! {
        () = accept => {}
        _ = stop.changed() => {}
    }
    drop(listener);
    stopping.mark_unchanged();
    // All permits are back when all connections have ended. Nothing closes the semaphore.
    let _ = room.acquire_many(limits.connections as u32).await;
}

/// Serves the requests of one connection until it ends, is idle for too long, or is evicted.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    connection: &Connection,
    limits: Limits,
    mut stopping: watch::Receiver<()>,
) {
    let idle_max = limits.idle;
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle_max);
    let stream = PacedStream::new(stream, idle_max, limits.bytes_min);
    let mut exchange = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let mut idle = pin!(sleep(idle_max));
    let mut evicted = pin!(connection.evicted.notified());
    let mut stop = pin!(stopping.changed());
    let mut stops = false;
    poll_fn(|context| {
        if evicted.as_mut().poll(context).is_ready() || idle.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !stops && stop.as_mut().poll(context).is_ready() {
            stops = true;
            exchange.as_mut().graceful_shutdown();
        }
        if !connection.begin_work() {
            return Poll::Ready(());
        }
        let done = exchange.as_mut().poll(context);
        connection.end_work();
        idle.as_mut().reset(Instant::now() + idle_max);
        if done.is_pending() {
            // The timer is not ready yet, and wakes this task when it is.
            let _ = idle.as_mut().poll(context);
        }
        // An error of the client needs no report here: its own connection shows it.
        done.map(drop)
    })
    .await;
}

/// Open connection.
#[derive(Debug)]
struct Connection {
    activity: Mutex<Activity>,
    evicted: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Waits for the client since this time.
    Idle(Instant),
    /// Runs its task.
    Working,
    /// Closed in favour of another connection.
    Evicted,
}

impl Connection {
    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Protects the connection from eviction. Returns whether it may go on.
    fn begin_work(&self) -> bool {
        let mut activity = self.activity();
        if *activity == Activity::Evicted {
            return false;
        }
        *activity = Activity::Working;
        true
    }

    fn end_work(&self) {
        *self.activity() = Activity::Idle(Instant::now());
    }

    fn idle_since(&self) -> Option<Instant> {
        match *self.activity() {
            Activity::Idle(since) => Some(since),
            Activity::Working | Activity::Evicted => None,
        }
    }

    /// Evicts the connection if it is still idle.
    fn evict(&self) {
        let mut activity = self.activity();
        if matches!(*activity, Activity::Idle(_)) {
            *activity = Activity::Evicted;
            self.evicted.notify_one();
        }
    }
}

/// Open connections by number. The task of each connection inserts and removes its own entry, and the
/// accepting task scans all of them.
#[derive(Debug, Default)]
struct ConnectionTable {
    last_number: AtomicU64,
    open: DashMap<u64, Arc<Connection>>,
}

impl ConnectionTable {
    fn add(&self) -> (u64, Arc<Connection>) {
        let activity = Mutex::new(Activity::Idle(Instant::now()));
        let connection = Arc::new(Connection { activity, evicted: Notify::new() });
        let number = 1 + self.last_number.fetch_add(1, Ordering::Relaxed);
        self.open.insert(number, connection.clone());
        (number, connection)
    }

    fn remove(&self, number: u64) {
        self.open.remove(&number);
    }

    fn evict_longest_idle(&self) {
        let idle =
            self.open.iter().filter_map(|entry| Some((entry.idle_since()?, *entry.key(), entry.clone())));
        if let Some((.., connection)) = idle.min_by_key(|(since, number, _)| (*since, *number)) {
            connection.evict();
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, put};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);

    /// Runs `test` against a server with these limits.
    fn served(limits: Limits, test: impl AsyncFnOnce(&std::path::Path)) {
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let directory = std::env::temp_dir().join(format!("palisade-accept-{process}-{thread:?}"));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("socket");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let body = |body: axum::body::Bytes| async move { body.len().to_string() };
            // Larger than the socket buffers of both ends.
            let router = Router::new()
                .route("/", get(async || "here"))
                .route("/", put(body))
                .route("/much", get(async || "x".repeat(1 << 23)));
            let router = move |_: &UnixStream| router.clone();
            let (stop, stopping) = watch::channel(());
            let server = tokio::spawn(serve(listener, router, limits, stopping));
            test(&path).await;
            stop.send(()).unwrap();
            timeout(TIMEOUT, server).await.expect("the server stops").unwrap();
        });
        std::fs::remove_dir_all(&directory).unwrap();
    }

    async fn connect(path: &std::path::Path, text: &str) -> UnixStream {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Reads until the server closes the connection.
    async fn rest(mut stream: UnixStream) -> String {
        let mut text = Vec::new();
        let read = timeout(TIMEOUT, stream.read_to_end(&mut text)).await;
        // A server that closes with unread data resets the connection.
        drop(read.expect("the server closes the connection"));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn what_is_idle_is_closed_wherever_its_request_is() {
        let limits = Limits { connections: 64, idle: Duration::from_millis(300), bytes_min: 1 << 20 };
        served(limits, async |path| {
            assert_eq!(rest(connect(path, "").await).await, "", "no request");
            let half = rest(connect(path, "GET / HT").await).await;
            assert!(half.is_empty() || half.starts_with("HTTP/1.1 4"), "half a head: {half}");
            let head = "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n12";
            assert_eq!(rest(connect(path, head).await).await, "", "half a body");
            let kept = rest(connect(path, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await).await;
            assert!(kept.ends_with("here"), "after an answer: {kept}");
            // The client reads nothing for a while.
            let unread = connect(path, "GET /much HTTP/1.1\r\nhost: x\r\n\r\n").await;
            tokio::time::sleep(4 * limits.idle).await;
            assert!(rest(unread).await.len() < 1 << 23, "the answer was cut off");
        });
    }

    #[test]
    fn a_reader_that_takes_a_little_now_and_then_is_cut_off() {
        let limits = Limits { connections: 64, idle: Duration::from_millis(400), bytes_min: 1 << 20 };
        served(limits, async |path| {
            let mut slow = connect(path, "GET /much HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let (mut some, mut taken) = (vec![0; 1 << 14], 0);
            // Never idle: eight reads in each time of idleness.
            while let Ok(length @ 1..) = slow.read(&mut some).await {
                taken += length;
                sleep(limits.idle / 8).await;
            }
            assert!(taken < 1 << 23, "a slow reader gets the whole answer");
            let steady = connect(path, "GET /much HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            assert!(rest(steady).await.len() > 1 << 23, "another reader has all of it");
        });
    }

    #[test]
    fn a_new_connection_evicts_the_one_that_has_been_idle_longest() {
        let limits = Limits { connections: 4, idle: TIMEOUT, bytes_min: 1 << 20 };
        served(limits, async |path| {
            let mut idle = vec![];
            for _ in 0..4 {
                let mut stream = connect(path, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                let mut answer = vec![0; 12];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(answer, b"HTTP/1.1 200");
                idle.push(stream);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let last = connect(path, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            assert!(rest(last).await.ends_with("here"));
            assert!(rest(idle.remove(0)).await.ends_with("here"), "the first is closed");
            for mut stream in idle {
                stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
                assert_eq!(rest(stream).await.matches("here").count(), 2, "the others live");
            }
        });
    }
}
