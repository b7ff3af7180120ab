//! Memory of a million UDP flows from the client to the server.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use palisade::lab::Pod;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::common::json_lines;
use crate::common::policy::OPEN_PORTS;
use crate::error::BenchError;
use crate::scenario::{Measures, Trial};
use crate::system::FlowMemory;

/// Sockets of the client, each of which sends to every open port.
const SOURCES: usize = 1000;
/// Files that the benchmark may open: the sockets of both pods, and some more.
const FILES: u64 = 4096;
/// Datagrams between two pauses, fewer than a ring has slots.
const BURST: usize = 500;
/// Pause after a burst: a system that takes a million packets a second keeps up.
const PAUSE: Duration = Duration::from_micros(500);

pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    let before = match trial.running.flow_memory(trial.rig)? {
        FlowMemory::Unknown(why) => return Err(BenchError::Other(why.to_owned())),
        FlowMemory::Reserved(bytes) => {
            let fields = json!({"bytes_per_flow": bytes, "mb_per_million_flows": bytes, "reserved": true});
            return Ok(json_lines::fields(fields));
        }
        FlowMemory::Grows(bytes) => bytes,
    };
    raise_file_limit()?;
    let (client, server) = (trial.rig.pod("client")?, trial.rig.pod("server")?);
    let known_before = trial.running.flows(trial.rig)?;
    let sinks = server.run(|| OPEN_PORTS.map(sink).collect::<io::Result<Vec<_>>>())??;
    client.run(|| open_flows(&server))??;
    sleep(Duration::from_millis(200));
    let FlowMemory::Grows(after) = trial.running.flow_memory(trial.rig)? else {
        return Err(BenchError::Other("its memory cannot be told any more".to_owned()));
    };
    let sent = (SOURCES * sinks.len()) as u64;
    let flows = match (known_before, trial.running.flows(trial.rig)?) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => sent,
    };
    let bytes = after.saturating_sub(before) as f64 / flows.max(1) as f64;
    let fields = json!({
        "bytes_per_flow": bytes, "mb_per_million_flows": bytes, "flows": flows, "flows_sent": sent,
    });
    Ok(json_lines::fields(fields))
}

/// Opens a socket that nobody reads, with the smallest buffer.
fn sink(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    // The kernel raises it to its minimum (socket(7)).
    set_socket_recv_buffer_size(&socket, 1)?;
    Ok(socket)
}

/// Sends one datagram on each flow.
fn open_flows(server: &Pod) -> io::Result<()> {
    let sources = (0..SOURCES).map(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let sources = sources.collect::<io::Result<Vec<_>>>()?;
    let mut sent = 0;
    for source in &sources {
        for port in OPEN_PORTS {
            source.send_to(b"flow", (server.v4(), port))?;
            sent += 1;
            if sent % BURST == 0 {
                sleep(PAUSE);
            }
        }
    }
    Ok(())
}

fn raise_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < FILES) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum: limit.maximum })?;
    }
    Ok(())
}
