//! Thread that gives the node's own sockets the Services of the switch, where no kube-proxy does it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::periodic::Periodic;
use crate::connect::{self, ConnectError, NodeSockets};
use crate::control::server::avoid_worker_cores;
use crate::control::switch::{NodePart, Switch};
use crate::limits::SOCKET_SERVICES_MAX;
use crate::tables::ServiceSet;
use crate::xdp::Pins;

/// Interval of looks at the Services.
const INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Gives the sockets of the calling thread's network namespace the Services of a switch. They keep the last ones when the thread
/// ends. Without the setting, those of an earlier start are taken away.
pub(crate) fn keep_node_sockets(switch: &Arc<Switch>) -> io::Result<Periodic> {
    let switch = switch.clone();
    Periodic::start("palisade-sockets", move |ticks| {
        avoid_worker_cores(&switch.settings.cores);
        let Some(cgroup) = &switch.settings.socket_cgroup else { return detach_node_sockets(&switch) };
        let mut sockets: Option<NodeSockets> = None;
        // Those that the sockets have, or have failed to get, and the time of a failure.
        let mut last: Option<(Arc<ServiceSet>, Option<Instant>)> = None;
        while ticks.wait(INTERVAL) {
            let Some(services) = switch.state.load().services.as_ref().map(|loaded| loaded.set.clone())
            else {
                continue;
            };
            let is_current = last.as_ref().is_some_and(|(last, failed)| match failed {
                None => Arc::ptr_eq(last, &services),
                Some(failed) => failed.elapsed() < RETRY_INTERVAL,
            });
            if is_current {
                continue;
            }
            let result = set(&mut sockets, cgroup, &switch, &services);
            let failed = result.is_err().then(Instant::now);
            switch.set_node_problem(NodePart::Sockets, problem(result));
            last = Some((services, failed));
        }
    })
}

/// Takes the Services of a switch from the sockets of the node.
pub(crate) fn detach_node_sockets(switch: &Switch) {
    let root = &switch.settings.pin_directory;
    if root.is_dir()
        && let Ok(pins) = Pins::open(root)
    {
        connect::detach(&pins);
    }
}

fn set(
    sockets: &mut Option<NodeSockets>,
    cgroup: &Path,
    switch: &Switch,
    services: &Arc<ServiceSet>,
) -> Result<usize, ConnectError> {
    let sockets = match sockets {
        Some(sockets) => sockets,
        None => sockets.insert(NodeSockets::load(cgroup, Pins::open(&switch.settings.pin_directory).ok())?),
    };
    sockets.set(services)
}

fn problem(result: Result<usize, ConnectError>) -> Option<String> {
    match result {
        Ok(0) => None,
        Ok(count) => Some(format!(
            "processes of the node do not reach {count} addresses of Services: they find {SOCKET_SERVICES_MAX}, and as \
             many backends"
        )),
        Err(error) => Some(format!("processes of the node may not reach Services: {error}")),
    }
}
