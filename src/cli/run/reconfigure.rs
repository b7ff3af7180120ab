//! Changes of the configuration while the switch runs: ports, pods and routes.

use tracing::subscriber::{NoSubscriber, with_default};

use crate::config::{Config, PortConfig};
use crate::control::protocol::PodInfo;
use crate::control::{ApiError, Switch};
use crate::daemon::{DaemonError, check, open_port, rejected};

/// Outcome of [`reconfigure`].
#[derive(Debug, Default)]
pub(super) struct Reconfigured {
    /// Changes that are in force, a few words each.
    pub(super) applied: Vec<String>,
    /// Changes that the switch has rejected, although they have passed the check.
    pub(super) failed: Vec<DaemonError>,
    /// Names of changed keys that a start reads only.
    pub(super) restart: Vec<&'static str>,
}

/// Applies the ports, pods and routes of `next` to a switch that runs with `config`, which becomes the configuration in
/// force. Those that the control socket has changed or removed are restored. Ports and routes stay that neither
/// configuration has. Nothing changes if a start would reject a part of `next`: returns the parts.
pub(super) fn reconfigure(
    switch: &Switch,
    config: &mut Config,
    next: &Config,
) -> Result<Reconfigured, Vec<DaemonError>> {
    // The log has the warnings about ports once they open.
    let wrong = with_default(NoSubscriber::default(), || check(next, None)).map_err(|error| vec![error])?;
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut done = Reconfigured { restart: config.restart_keys(next), ..Reconfigured::default() };
    for port in &mut config.ports {
        let same =
            |next: &&PortConfig| **next == PortConfig { pod_bandwidth: next.pod_bandwidth, ..port.clone() };
        if let Some(next) = next.ports.iter().find(same) {
            port.pod_bandwidth = next.pod_bandwidth;
        }
    }
    let removed = |port: &PortConfig| !next.ports.contains(port);
    let mut stuck = Vec::new();
    for port in config.ports.extract_if(.., |port| removed(port)).collect::<Vec<_>>() {
        // A port that opens again keeps its interface: no packet meets an open one meanwhile.
        let interface = |port: &PortConfig| {
            (port.interface.clone().unwrap_or_else(|| port.name.clone()), port.namespace.clone())
        };
        let opens_again = |next: &PortConfig| interface(next) == interface(&port);
        let detach = next.ports.iter().any(opens_again).then_some(false);
        match close_port(switch, &port, detach) {
            Ok(()) => done.applied.push(format!("port {} removed", port.name)),
            Err(error) => {
                done.failed.push(error);
                stuck.push(port);
            }
        }
    }
    let (pods, others): (Vec<_>, Vec<_>) = next.ports.iter().partition(|port| port.kind.has_pod());
    for port in others.into_iter().chain(pods) {
        let is_open = switch.has_port(&port.name, &port.port_request(), port.pod_request().as_ref());
        let was_configured = config.ports.contains(port);
        if is_open && !was_configured {
            config.ports.push(port.clone());
        }
        if is_open {
            match limit_pod(switch, port) {
                Ok(changed) => done.applied.extend(changed),
                Err(error) => done.failed.push(error),
            }
        }
        if is_open || stuck.iter().any(|stuck: &PortConfig| stuck.name == port.name) {
            continue;
        }
        match make_place(switch, port).and_then(|()| open_port(switch, port)) {
            Ok(()) if was_configured => done.applied.push(format!("port {} restored", port.name)),
            Ok(()) => {
                done.applied.push(format!("port {} added", port.name));
                config.ports.push(port.clone());
            }
            // A later reload opens it.
            Err(error) => done.failed.push(error),
        }
    }
    config.ports.append(&mut stuck);
    match switch.reload_routes(&config.port_routes(), next.port_routes()) {
        Ok(changed) => {
            done.applied.extend(changed.then(|| "routes replaced".to_owned()));
            config.routes.clone_from(&next.routes);
        }
        Err(error) => done.failed.push(rejected("routes".to_owned(), &error)),
    }
    Ok(done)
}

/// Gives the attached pod of a port its bandwidth. Returns a sentence where it had another one.
fn limit_pod(switch: &Switch, port: &PortConfig) -> Result<Option<String>, DaemonError> {
    let Some((pod, request)) = port.pod_request() else { return Ok(None) };
    let has_it = |info: &PodInfo| info.pod == pod && info.bandwidth == request.bandwidth;
    if switch.pods().iter().any(has_it) {
        return Ok(None);
    }
    switch.limit_pod(&pod, request.bandwidth).map_err(|error| rejected(format!("pod {pod}"), &error))?;
    Ok(Some(format!("bandwidth of pod {pod} changed")))
}

/// Closes the port that has the name of a configured one, and detaches its pod from another port.
fn make_place(switch: &Switch, port: &PortConfig) -> Result<(), DaemonError> {
    close_port(switch, port, Some(false))?;
    let Some(pod) = port.pod.as_ref() else { return Ok(()) };
    match switch.delete_pod(pod) {
        Ok(()) | Err(ApiError::NoPod { .. } | ApiError::PublishError(_)) => Ok(()),
        Err(error) => Err(rejected(format!("pod {pod}"), &error)),
    }
}

/// Detaches the pod behind a port, and closes the port. A port that is not there is closed.
/// `detach`, or else the settings, decide whether the kernel gets the interface back.
fn close_port(switch: &Switch, port: &PortConfig, detach: Option<bool>) -> Result<(), DaemonError> {
    let info = switch.ports().into_iter().find(|info| info.name == port.name);
    let Some(info) = info else { return Ok(()) };
    let detached = match info.pod.map_or(Ok(()), |pod| switch.delete_pod(&pod)) {
        // The pod is detached, and a late worker takes that when it goes on.
        Err(ApiError::PublishError(_)) => Ok(()),
        other => other,
    };
    match detached.and_then(|()| switch.delete_port(&port.name, detach)) {
        Ok(()) | Err(ApiError::NoPort { .. }) => Ok(()),
        Err(error) => Err(rejected(format!("port {:?}", port.name), &error)),
    }
}
