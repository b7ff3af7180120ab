//! TCP connections a second with both ends generated, without the stacks of the pods.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ipnet::Ipv4Net;
use palisade::pktgen::{ConnectionReport, FlowSpace, Rate, TcpSession, TcpTraffic};
use serde_json::json;

use super::stream::{next_hop, pktgen_error, target};
use crate::common::json_lines;
use crate::common::policy::OPEN_PORTS;
use crate::error::BenchError;
use crate::rig::TRAFFIC_CORE;
use crate::scenario::{Measures, Trial};

/// Warm-up before the measurement.
const WARM_UP: Duration = Duration::from_millis(200);
/// Concurrent connections.
const CONCURRENT: u32 = 256;

pub(super) fn measure(trial: &Trial<'_>) -> Result<Measures, BenchError> {
    let (client, server) = (trial.rig.pod("client")?, trial.rig.pod("server")?);
    let traffic = TcpTraffic {
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
        TcpSession::open(&target(&client), &target(&server), traffic, &cores).map_err(pktgen_error)?;
    // The first burst meets fill rings of the initial size. A connection that it loses would keep its slot
    // for a second. The field `failed_at_first` counts them.
    let first = connections.trial(Rate::Max, WARM_UP, &AtomicBool::new(false)).map_err(pktgen_error)?;
    let time = Duration::from_secs(trial.seconds);
    let (connected, cost) = trial
        .measure_cpu(|| connections.trial(Rate::Max, time, &AtomicBool::new(false)).map_err(pktgen_error))?;
    let report = ConnectionReport::from(&connected);
    if report.completed == 0 {
        return Err(BenchError::Other(
            "no connection is completed: AF_XDP at the pods' interfaces receives nothing".to_owned(),
        ));
    }
    let mut measures = cost.fields();
    measures.extend(json_lines::fields(json!({
        "connections_per_s": report.completed_per_s,
        "connections": report.completed,
        "failed": report.opened - report.completed,
        "failed_at_first": first.opened - first.completed,
        "p50_us": report.setup_p50_us,
        "p99_us": report.setup_p99_us,
    })));
    Ok(measures)
}
