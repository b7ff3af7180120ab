//! Thread that keeps routes of the switch in the node's own routing table: processes of the node reach the pods of other
//! nodes by them, and reverse path filters accept what these pods send.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::periodic::Periodic;
use crate::control::server::avoid_worker_cores;
use crate::control::switch::{NodePart, Switch};
use crate::netlink::{Interface, NODE_ROUTE_PROTOCOL, NetlinkError, NodeRoute, RouteSocket, VethPeer};

/// Interval of looks at the routes that are wanted.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval of looks at those of the kernel, which forgets the routes of an interface that is set down.
const KERNEL_INTERVAL: Duration = Duration::from_secs(5);
/// Time since the start during which routes of the process before stay: the agent lists the nodes meanwhile.
const EARLIER_STAY: Duration = Duration::from_mins(1);

/// Routes by prefix.
type Routes = BTreeMap<IpNet, NodeRoute>;

/// Keeps the routes of a switch in the table of the calling thread's network namespace. They stay when the thread ends.
pub(crate) fn keep_node_routes(switch: &Arc<Switch>) -> io::Result<Periodic> {
    let switch = switch.clone();
    Periodic::start("palisade-routes", move |ticks| {
        avoid_worker_cores(&switch.settings.cores);
        let start = Instant::now();
        // Those that the kernel has got in the last look, and the time of that.
        let mut last: Option<(Routes, Instant)> = None;
        // Prefixes to which this run has had a route.
        let mut own: BTreeSet<IpNet> = BTreeSet::new();
        while ticks.wait(INTERVAL) {
            let state = switch.state.load();
            let wanted = state.node_routes(&switch.settings);
            let is_current = last
                .as_ref()
                .is_some_and(|(routes, looked)| *routes == wanted && looked.elapsed() < KERNEL_INTERVAL);
            if !is_current {
                own.extend(wanted.keys());
                let removes = |prefix: &IpNet| start.elapsed() >= EARLIER_STAY || own.contains(prefix);
                let host_interface = state.host_port().map(|(_, port)| port.spec.interface.as_str());
                let problem = reconcile(&wanted, host_interface, removes);
                switch.set_node_problem(NodePart::Routes, problem);
                last = Some((wanted, Instant::now()));
            }
        }
    })
}

/// Removes all routes of the switch from the node's table.
pub(crate) fn remove_node_routes() {
    if let Some(problem) = reconcile(&Routes::new(), None, |_| true) {
        tracing::warn!("{problem}");
    }
}

/// Makes the routes of the switch in the kernel those that are wanted. Returns what is left to do, in one sentence. Routes
/// that nobody wants stay unless `removes` their prefix. `host_interface` is the switch's end to the node.
fn reconcile(
    wanted: &Routes,
    host_interface: Option<&str>,
    removes: impl Fn(&IpNet) -> bool,
) -> Option<String> {
    let mut failures: Vec<NetlinkError> = Vec::new();
    let kernel = RouteSocket::open().and_then(|kernel| Ok((kernel.node_routes()?, kernel)));
    let (present, kernel) = match kernel {
        Ok(kernel) => kernel,
        Err(error) => return Some(problem(&[error])),
    };
    for (prefix, gateway) in &present {
        if !wanted.contains_key(prefix) && removes(prefix) {
            failures.extend(kernel.remove_node_route(*prefix, *gateway).err());
        }
    }
    let uses_switch = wanted.values().any(|route| matches!(route, NodeRoute::Switch { .. }));
    let node_end = match host_interface.filter(|_| uses_switch).map(node_end) {
        None => 0,
        Some(Ok(index)) => index,
        Some(Err(error)) => return Some(problem(&[error])),
    };
    for (prefix, route) in wanted {
        let found = present.get(prefix);
        if found != Some(&route.gateway()) {
            failures.extend(kernel.put_node_route(*prefix, *route, node_end, found.is_some()).err());
        }
    }
    (!failures.is_empty()).then(|| problem(&failures))
}

/// Index of the node's end of the veth pair to the switch.
fn node_end(host_interface: &str) -> Result<u32, NetlinkError> {
    Ok(VethPeer::of(&Interface::find(host_interface)?)?.index)
}

fn problem(failures: &[NetlinkError]) -> String {
    let others = match failures.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let first = failures.first().map(ToString::to_string).unwrap_or_default();
    format!(
        "processes of the node may not reach the pods of other nodes: {first}{others} (`ip route show proto \
         {NODE_ROUTE_PROTOCOL}` lists the routes of the switch)"
    )
}
