//! Explanation of connections to a Service of the running switch.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::cli::CliError;
use crate::control::Client;
use crate::control::explain::PathReport;
use crate::control::protocol::{ServiceReport, ServicesReport};
use crate::net::flow::Protocol;
use crate::policy::explain::ServiceVerdict;
use crate::policy::objects::ServiceName;
use crate::policy::testcase::Endpoint;
use crate::tables::ServicePort;

/// Most backends that the switch is asked about.
const BACKENDS_MAX: usize = 64;

/// Paths of the connections that a Service of the running switch makes of a client's.
#[derive(Debug, Serialize)]
pub(super) struct ServicePaths {
    service: String,
    from: String,
    protocol: Protocol,
    port: u16,
    pub(super) verdict: ServiceVerdict,
    addresses: Vec<SocketAddr>,
    backends: Vec<SocketAddr>,
    /// Path to each backend, up to a limit.
    paths: Vec<PathReport>,
}

/// Explains the path of a connection to each backend of a Service.
pub(super) fn paths(
    client: &Client,
    from: &Endpoint,
    name: &ServiceName,
    protocol: Protocol,
    port: u16,
) -> Result<ServicePaths, CliError> {
    let report = client.services()?;
    let found = find(&report, name, protocol, port)?;
    let outside = outside_address(client, from, &report.node_addresses)?;
    let (addresses, backends) = addressed(&found.port, outside, port);
    let mut paths = Vec::new();
    for backend in backends.iter().take(BACKENDS_MAX) {
        let Some(by) = addresses.iter().find(|by| by.is_ipv4() == backend.is_ipv4()) else { continue };
        let to = Endpoint::Ip(by.ip());
        // A client without an address of the family does not get this backend.
        match client.explain([from, &to], protocol, Some(by.port()), Some(*backend)) {
            Ok(of_backend) => paths.extend(of_backend),
            Err(error) if backends.iter().any(|other| other.is_ipv4() != backend.is_ipv4()) => drop(error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ServicePaths {
        service: name.to_string(),
        from: from.to_string(),
        protocol,
        port,
        verdict: ServiceVerdict::of(paths.iter().map(|path| path.verdict)),
        addresses,
        backends: backends.to_vec(),
        paths,
    })
}

/// Address of a client that is neither the node nor a pod.
fn outside_address(
    client: &Client,
    from: &Endpoint,
    node_addresses: &[IpAddr],
) -> Result<Option<IpAddr>, CliError> {
    let Endpoint::Ip(address) = from else { return Ok(None) };
    let is_pod = client.pods()?.iter().any(|pod| pod.addresses.contains(address));
    Ok(Some(*address).filter(|address| !is_pod && !node_addresses.contains(address)))
}

/// Virtual addresses of a port that a client sends to, and their backends for it.
fn addressed(service: &ServicePort, outside: Option<IpAddr>, port: u16) -> (Vec<SocketAddr>, &[SocketAddr]) {
    let serves = |address: &&SocketAddr| address.port() == port;
    let outer: Vec<SocketAddr> = service.external.iter().filter(serves).copied().collect();
    let inner: Vec<SocketAddr> = service.cluster.iter().filter(serves).copied().collect();
    match (outside, outer.is_empty(), inner.is_empty()) {
        (Some(source), false, _) => {
            let reached: Vec<SocketAddr> =
                outer.into_iter().filter(|at| service.admits(at, source)).collect();
            let backends: &[SocketAddr] = if reached.is_empty() { &[] } else { &service.external_backends };
            (reached, backends)
        }
        (None, false, true) => {
            (outer, service.short_circuit_backends.as_ref().unwrap_or(&service.external_backends))
        }
        _ => (inner, &service.internal_backends),
    }
}

fn find<'a>(
    report: &'a ServicesReport,
    name: &ServiceName,
    protocol: Protocol,
    port: u16,
) -> Result<&'a ServiceReport, CliError> {
    let of_service = || {
        report
            .ports
            .iter()
            .filter(|found| (&found.service.namespace, &found.service.name) == (&name.namespace, &name.name))
    };
    let numbers = |found: &ServiceReport| -> Vec<u16> {
        found.port.cluster.iter().chain(&found.port.external).map(SocketAddr::port).collect()
    };
    let is_asked =
        |found: &&ServiceReport| found.service.protocol == protocol && numbers(found).contains(&port);
    of_service().find(is_asked).ok_or_else(|| {
        let mut known: Vec<String> = of_service()
            .filter_map(|found| Some(format!("{} {}", found.service.protocol, numbers(found).first()?)))
            .collect();
        known.dedup();
        CliError::Message(if of_service().next().is_none() {
            format!("the switch has no Service {name}: see `palisade show services`")
        } else {
            format!("service {name} has no {protocol} port {port} in the switch: it has {}", known.join(", "))
        })
    })
}

impl fmt::Display for ServicePaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServicePaths { service, from, protocol, port, verdict, addresses, backends, paths } = self;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "{verdict}: {protocol} from {from} to service {service} port {port} ({})",
            addresses.join(", ")
        )?;
        match backends.len() {
            0 if addresses.is_empty() => {
                writeln!(f, "  loadBalancerSourceRanges do not have this client: its packets are dropped")?;
            }
            0 => writeln!(f, "  the Service has no backend: the switch refuses connections")?,
            count => writeln!(f, "  backends: {count}; each connection goes to one of them")?,
        }
        for path in paths {
            path.to_string().lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        if backends.len() > BACKENDS_MAX {
            writeln!(f, "  {} more backends are not asked about", backends.len() - BACKENDS_MAX)?;
        }
        Ok(())
    }
}
