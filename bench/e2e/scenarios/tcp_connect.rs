//! TCP connections a second, opened and closed by the kernel's stacks in the pods.
//!
//! The server closes first, so it keeps the sockets in TIME-WAIT, and the client's ports are free at once.
//! Client and server run on the core of the traffic.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, scope, spawn};
use std::time::{Duration, Instant};

use palisade::lab::Pod;
use rustix::net::Shutdown;
use serde_json::json;

use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::policy::OPEN_PORTS;
use crate::common::statistics::rounded;
use crate::error::BenchError;
use crate::rig::{TRAFFIC_CORE, pin_to_core};
use crate::scenario::{Measures, Trial};

/// Ports that the server listens on, each of which the client can reach from all its ports.
const LISTENERS: u16 = 8;
/// Time after which a connection has failed. The first retransmission of a SYN comes after one second (RFC
/// 6298, section 2).
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Measures with this many clients, each of which has one connection at a time.
pub(super) fn measure(trial: &Trial<'_>, clients: u16) -> Result<Measures, BenchError> {
    let (client, server) = (trial.rig.pod("client")?, trial.rig.pod("server")?);
    let listeners = Listeners::start(&server)?;
    let to = server.v4();
    let failed = AtomicU64::new(0);
    let latencies = Mutex::new(Latencies::default());
    let (spent, cost) = trial.measure_cpu(|| {
        let start = Instant::now();
        let end = start + Duration::from_secs(trial.seconds);
        scope(|scope| {
            for number in 0..clients {
                let (client, latencies, failed) = (&client, &latencies, &failed);
                scope.spawn(move || client.run(|| connect_until(end, number, to, latencies, failed)));
            }
        });
        Ok(start.elapsed())
    })?;
    drop(listeners);
    let latencies = latencies.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut measures = cost.fields();
    let fields = json!({
        "clients": clients,
        "connections_per_s": latencies.len() as f64 / spent.as_secs_f64(),
        "connections": latencies.len(),
        "failed": failed.into_inner(),
        "p50_us": rounded(latencies.us(0.5), 0),
        "p99_us": rounded(latencies.us(0.99), 0),
    });
    measures.extend(json_lines::fields(fields));
    Ok(measures)
}

/// Threads that accept connections and close them.
struct Listeners {
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Listeners {
    fn start(server: &Pod) -> Result<Listeners, BenchError> {
        let mut listeners = Listeners { listeners: vec![], threads: vec![] };
        for port in ports() {
            let listener = server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
            listeners.listeners.push(listener.try_clone()?);
            listeners.threads.push(spawn(move || {
                pin_to_core(TRAFFIC_CORE);
                // A dropped connection is closed.
                while listener.accept().is_ok() {}
            }));
        }
        Ok(listeners)
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // On Linux shutdown(2) wakes a thread in accept(2).
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn ports() -> impl Iterator<Item = u16> {
    OPEN_PORTS.take(usize::from(LISTENERS))
}

fn connect_until(end: Instant, first: u16, to: Ipv4Addr, latencies: &Mutex<Latencies>, failed: &AtomicU64) {
    pin_to_core(TRAFFIC_CORE);
    let mut own = Latencies::default();
    let mut port = first;
    let mut start = Instant::now();
    while start < end {
        port = (port + 1) % LISTENERS;
        let address = SocketAddr::new(to.into(), OPEN_PORTS.start() + port);
        let done = connect(address);
        let now = Instant::now();
        if done {
            own.record(now.duration_since(start));
        } else {
            failed.fetch_add(1, Ordering::Relaxed);
        }
        start = now;
    }
    let mut all = latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.add(&own);
}

/// Opens a connection and waits for its end.
fn connect(to: SocketAddr) -> bool {
    let Ok(mut connection) = TcpStream::connect_timeout(&to, TIMEOUT) else { return false };
    connection.set_read_timeout(Some(TIMEOUT)).is_ok() && matches!(connection.read(&mut [0]), Ok(0))
}
