//! TCP connections opened and closed per second, with both ends generated: no stack of a pod is in the way.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ipnet::Ipv4Net;
use palisade::pktgen::{ConnectionReport, FlowSpace, Rate, TcpSession, TcpTraffic};
use serde_json::json;

use super::stream::{next_hop, place, refused};
use super::{Measures, Trial};
use crate::bed::TRAFFIC_CORE;
use crate::policy::OPEN_PORTS;
use crate::results;
use crate::tool::Trouble;

/// Time before what is measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// Connections at a time.
const CONCURRENT: u32 = 256;

pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, Trouble> {
    let (client, server) = (trial.bed.pod("client")?, trial.bed.pod("server")?);
    let dialogue = TcpTraffic {
        src_mac: client.plan().mac,
        dst_mac: next_hop(trial)?,
        vlan: None,
        space: FlowSpace {
            src: Ipv4Net::from(client.v4()).into(),
            dst: Ipv4Net::from(server.v4()).into(),
            src_ports: 10_000..=59_999,
            dst_ports: OPEN_PORTS,
        },
        concurrent: CONCURRENT,
    };
    let cores = [TRAFFIC_CORE; 2];
    let mut connections =
        TcpSession::open(&place(&client), &place(&server), dialogue, &cores).map_err(refused)?;
    // The first burst finds queues that have not shown yet what they need; a connection that it loses would keep its place
    // for a second. What it loses is told.
    let first = connections.trial(Rate::Max, WARM_UP, &AtomicBool::new(false)).map_err(refused)?;
    let time = Duration::from_secs(trial.seconds);
    let (connected, cost) =
        trial.cost_of(|| connections.trial(Rate::Max, time, &AtomicBool::new(false)).map_err(refused))?;
    let report = ConnectionReport::from(&connected);
    if report.completed == 0 {
        return Err(Trouble::Other(
            "no connection is completed: AF_XDP at the pods' interfaces receives nothing".to_owned(),
        ));
    }
    let mut measures = cost.fields();
    measures.extend(results::fields(json!({
        "connections_per_s": report.completed_per_s,
        "connections": report.completed,
        "failed": report.opened - report.completed,
        "failed_at_first": first.opened - first.completed,
        "p50_us": report.setup_p50_us,
        "p99_us": report.setup_p99_us,
    })));
    Ok(measures)
}
