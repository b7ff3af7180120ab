//! Thread that gives the node's own sockets the Services of the switch: beside a kube-proxy the ports of pods alone.

use std::io;
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
/// ends. Those of an earlier start are taken away if there are none for them.
pub(crate) fn keep_node_sockets(switch: &Arc<Switch>) -> io::Result<Periodic> {
    let switch = switch.clone();
    Periodic::start("palisade-sockets", move |ticks| {
        avoid_worker_cores(&switch.settings.cores);
        let mut sockets: Option<NodeSockets> = None;
        // Those that the sockets have, or have failed to get, and the time of a failure.
        let mut last: Option<(Arc<ServiceSet>, Option<Instant>)> = None;
        while ticks.wait(INTERVAL) {
            let Some(services) = services_for_sockets(&switch) else { continue };
            let is_current = last.as_ref().is_some_and(|(last, failed)| match failed {
                None => Arc::ptr_eq(last, &services),
                Some(failed) => failed.elapsed() < RETRY_INTERVAL,
            });
            if is_current {
                continue;
            }
            let has_none = !switch.settings.replaces_kube_proxy && services.is_empty();
            let result = if has_none {
                sockets = None;
                detach_node_sockets(&switch);
                Ok(0)
            } else {
                set(&mut sockets, &switch, &services)
            };
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

/// Services that the sockets get. `None`: they keep those that they have, because Services are awaited.
fn services_for_sockets(switch: &Switch) -> Option<Arc<ServiceSet>> {
    let state = switch.state.load();
    if switch.settings.replaces_kube_proxy {
        state.served.all.clone().filter(|_| state.services.is_some())
    } else {
        Some(state.served.mapped.clone())
    }
}

fn set(
    sockets: &mut Option<NodeSockets>,
    switch: &Switch,
    services: &Arc<ServiceSet>,
) -> Result<usize, ConnectError> {
    if sockets.is_none() {
        let pins = Pins::open(&switch.settings.pin_directory).ok();
        *sockets = Some(NodeSockets::load(&switch.settings.socket_cgroup, pins)?);
    }
    sockets.as_mut().map_or(Ok(0), |sockets| sockets.set(services))
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
