//! Command `palisade show services`.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::cli::CliError;
use crate::cli::output::{Output, grouped, json, or_dash, render, table, text};
use crate::control::Client;
use crate::control::protocol::{ServiceReport, ServicesReport};
use crate::printable;
use crate::tables::PodName;

/// Most backends of a port to list. Their number is always shown, and JSON has all.
const BACKENDS_SHOWN: usize = 8;

pub(super) fn services(client: &Client, output: Output) -> Result<(), CliError> {
    let report = client.services()?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    Ok(text(&tables(&report))?)
}

fn tables(report: &ServicesReport) -> String {
    let mut services =
        table(["service", "protocol", "addresses", "node port", "affinity", "backends", "flows"])
            .left_out_first(&["affinity", "node port", "protocol"]);
    for found in &report.ports {
        let addresses: Vec<String> =
            found.port.cluster.iter().chain(&found.port.external).map(ToString::to_string).collect();
        services.add_row([
            printable::line(&found.service.to_string()).into_owned(),
            found.service.protocol.to_string(),
            if addresses.is_empty() { "-".to_owned() } else { addresses.join("\n") },
            or_dash(found.port.node_port),
            or_dash(found.port.affinity_seconds.map(|seconds| format!("{seconds} s"))),
            backends(found),
            grouped(found.flows_opened),
        ]);
    }
    let mut out = render(&services, "No Services are loaded: `palisade apply FILE` loads some.");
    if report.ports.iter().any(|found| found.port.node_port.is_some()) {
        let addresses: Vec<String> = report.node_addresses.iter().map(ToString::to_string).collect();
        let addresses = if addresses.is_empty() {
            "no address: the manifests have no Node with addresses for this node".to_owned()
        } else {
            addresses.join(", ")
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "node ports are served at {addresses}");
    }
    if !report.port_mappings.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n{}", mappings(&report.port_mappings));
    }
    out
}

/// Ports of the node that lead to pods.
fn mappings(found: &[ServiceReport]) -> String {
    let mut mappings = table(["port of the node", "protocol", "pod", "leads to", "flows"]);
    for ServiceReport { service, port, flows_opened, .. } in found {
        let lines = |list: &[SocketAddr]| -> String {
            let lines: Vec<String> = list.iter().map(ToString::to_string).collect();
            lines.join("\n")
        };
        let pod = PodName::new(&service.namespace, &service.name).to_string();
        mappings.add_row([
            lines(&port.mapped),
            service.protocol.to_string(),
            printable::line(&pod).into_owned(),
            lines(&port.internal_backends),
            grouped(*flows_opened),
        ]);
    }
    render(&mappings, "")
}

/// Backends with their flows, one a line. A backend that only some virtual addresses have says which.
fn backends(found: &ServiceReport) -> String {
    if found.backends.is_empty() {
        return "none: connections are refused".to_owned();
    }
    let has_outside = !found.port.external.is_empty() || found.port.node_port.is_some();
    let line = |backend: &crate::control::protocol::BackendReport| {
        let inside = found.port.internal_backends.contains(&backend.address);
        let outside = found.port.external_backends.contains(&backend.address);
        let of = match (inside, outside) {
            (true, false) if has_outside => " (inside only)",
            (false, true) => " (outside only)",
            (false, false) => " (outside only, for this node's pods)",
            _ => "",
        };
        format!("{} {}{of}", backend.address, grouped(backend.flows_opened))
    };
    let mut lines: Vec<String> = found.backends.iter().take(BACKENDS_SHOWN).map(line).collect();
    if found.backends.len() > BACKENDS_SHOWN {
        lines.push(format!("and {} more", found.backends.len() - BACKENDS_SHOWN));
    }
    lines.join("\n")
}
