//! Measurement of latency and throughput.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::service::Service;
use crate::lab::error::Context;
use crate::lab::{LabError, Pod};

/// Bytes of a message for a round trip.
const MESSAGE_BYTES: usize = 64;
/// Bytes written at once for throughput.
const WRITE_BYTES: usize = 128 * 1024;
/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Latency of single messages on one TCP connection, microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of round trips.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest round trip.
    pub max_us: f64,
}

/// Throughput of one TCP connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Bytes that the server received.
    pub bytes: u64,
    /// Time from the first byte to the server's receipt.
    pub seconds: f64,
    /// Gigabits per second: the quotient.
    pub gbit_per_s: f64,
}

/// Measures round trips to a [`super::Server`] for a time.
pub fn latency(pod: &Pod, to: IpAddr, port: u16, duration: Duration) -> Result<Latency, LabError> {
    let times = measure(pod, to, port, Service::Echo, |mut connection| {
        // Three significant digits.
        let mut times = Histogram::<u64>::new(3).map_err(io::Error::other)?;
        let (message, mut answer) = ([0x55; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
        let start = Instant::now();
        while start.elapsed() < duration {
            let sent = Instant::now();
            connection.write_all(&message)?;
            connection.read_exact(&mut answer)?;
            times.record(sent.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
        }
        Ok(times)
    })?;
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    Ok(Latency {
        count: times.len(),
        p50_us: microseconds(times.value_at_quantile(0.5)),
        p99_us: microseconds(times.value_at_quantile(0.99)),
        max_us: microseconds(times.max()),
    })
}

/// Measures throughput to a [`super::Server`] for a time.
pub fn throughput(pod: &Pod, to: IpAddr, port: u16, duration: Duration) -> Result<Throughput, LabError> {
    let (bytes, seconds) = measure(pod, to, port, Service::Sink, |mut connection| {
        let data = vec![0x55; WRITE_BYTES];
        let start = Instant::now();
        while start.elapsed() < duration {
            connection.write_all(&data)?;
        }
        connection.shutdown(Shutdown::Write)?;
        let mut received = [0; 8];
        connection.read_exact(&mut received)?;
        Ok((u64::from_be_bytes(received), start.elapsed().as_secs_f64()))
    })?;
    Ok(Throughput { bytes, seconds, gbit_per_s: bytes as f64 * 8.0 / seconds / 1e9 })
}

fn measure<T>(
    pod: &Pod,
    to: IpAddr,
    port: u16,
    service: Service,
    f: impl FnOnce(TcpStream) -> io::Result<T>,
) -> Result<T, LabError> {
    let connection = pod.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), TIMEOUT))?;
    let start = || -> io::Result<TcpStream> {
        let mut connection = connection?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        connection.write_all(&[service as u8])?;
        Ok(connection)
    };
    start().and_then(f).context(|| format!("measure from pod {} to {to} port {port}", pod.plan().pod))
}
