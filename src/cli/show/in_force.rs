//! Commands `palisade show classes`, `show policies` and `show routes`.

use std::fmt::Write;

use super::acl::peers;
use super::named::named;
use super::status::{policy_line, rejected_lines, source_lines};
use crate::cli::CliError;
use crate::cli::output::{Output, json, list, or_dash, render, table, text};
use crate::control::Client;
use crate::control::protocol::{AuditedPolicy, ClassInfo, RouteInfo};
use crate::dataplane::RouteOrigin;
use crate::printable;
use crate::tables::PolicyRef;

pub(super) fn classes(client: &Client, output: Output) -> Result<(), CliError> {
    let report = client.classes()?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    let mut table = table(["class", "addresses", "policies"]);
    for class in &report.classes {
        let ClassInfo { class, members, policies, policies_left_out } = class;
        let more = (*policies_left_out > 0).then(|| format!("{policies_left_out} more"));
        let policies = policies.iter().map(ToString::to_string).chain(more);
        table.add_row([class.to_string(), peers(members), list(policies)]);
    }
    let none = "No rule tables are loaded: `palisade apply FILE` loads some.";
    Ok(text(&(render(&table, none) + &left_out(report.left_out, "classes")))?)
}

pub(super) fn policies(client: &Client, policy: Option<&str>, output: Output) -> Result<(), CliError> {
    let mut report = client.policies()?;
    report.policies = named(report.policies, policy, "policies", |found| {
        let PolicyRef { namespace, name, .. } = &found.policy;
        if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
    })?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    let mut out = match &report.status {
        Some(status) => policy_line(status) + "\n",
        None => "No rule tables are loaded: `palisade apply FILE` loads some.\n".to_owned(),
    };
    out += &source_lines(report.source.as_ref());
    out += &rejected_lines(report.rejected_reload.as_ref());
    if report.status.is_some() {
        let mut table =
            table(["namespace", "policy", "kind", "pods", "rules", "allowed flows", "denied packets"])
                .left_out_first(&["rules", "pods"]);
        for found in &report.policies {
            let namespace = Some(&found.policy.namespace).filter(|namespace| !namespace.is_empty());
            table.add_row([
                or_dash(namespace.map(|namespace| printable::line(namespace))),
                printable::line(&found.policy.name).into_owned(),
                found.policy.kind.to_string(),
                found.pods.to_string(),
                found.rules.to_string(),
                found.allowed_flows.to_string(),
                found.denied_packets.to_string(),
            ]);
        }
        out += &render(&table, "No policy has an effect on a pod of this switch.");
    }
    out += &left_out(report.left_out, "policies");
    for audited in &report.audited {
        let AuditedPolicy { policy, flows, running, .. } = audited;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "audit, not enforced: {policy}: would have denied {flows} flows, of which {running} run (`palisade audit report`)"
        );
    }
    // Writing to a string cannot fail.
    report.warnings.iter().for_each(|warning| _ = writeln!(out, "warning: {warning}"));
    Ok(text(&out)?)
}

pub(in crate::cli) fn routes(client: &Client, output: Output) -> Result<(), CliError> {
    let routes = client.routes()?;
    if output == Output::Json {
        return Ok(json(&routes)?);
    }
    let mut table = table(["prefix", "origin", "port", "pod", "next hop", "mtu", "neighbour", "state"])
        .left_out_first(&["mtu", "origin", "neighbour"]);
    for route in &routes {
        table.add_row([
            route.prefix.to_string(),
            route.origin.to_string(),
            place(route),
            or_dash(route.pod.as_ref()),
            next_hop(route),
            or_dash(route.mtu),
            neighbor(route),
            state(route).to_owned(),
        ]);
    }
    Ok(text(&render(&table, "The switch has no routes."))?)
}

fn place(route: &RouteInfo) -> String {
    match &route.port {
        Some(port) => port.clone(),
        None if route.origin == RouteOrigin::Gateway => "(the switch)".to_owned(),
        None => "(no pod)".to_owned(),
    }
}

fn next_hop(route: &RouteInfo) -> String {
    let by = if route.tunnel { " (tunnel)" } else { "" };
    route.next_hop.map_or_else(|| "-".to_owned(), |next_hop| format!("{next_hop}{by}"))
}

fn neighbor(route: &RouteInfo) -> String {
    let Some(neighbor) = route.neighbor else { return "-".to_owned() };
    match neighbor.mac {
        Some(mac) => format!("{mac} ({})", neighbor.state),
        None => neighbor.state.to_string(),
    }
}

fn state(route: &RouteInfo) -> &'static str {
    match (route.in_force, route.port_state) {
        (true, _) => "in force",
        (false, None) => "waits for its port",
        (false, Some(_)) => "not in force",
    }
}

fn left_out(count: usize, what: &str) -> String {
    if count > 0 { format!("{count} more {what} are not shown.\n") } else { String::new() }
}
