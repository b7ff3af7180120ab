//! `EndpointSlice`.

use std::collections::HashSet;

use k8s_openapi::api::discovery::v1 as discovery;
use serde::Deserialize;

use super::addresses::host_address;
use super::values::{choice, flag, number, text};
use crate::limits::{SLICE_ENDPOINTS_MAX, SLICE_PORTS_MAX};
use crate::policy::objects::{AddressFamily, Endpoint, EndpointPort, EndpointSlice};
use crate::policy::parse::cluster_objects::protocol_of;
use crate::policy::parse::cursor::{Cursor, Fields};
use crate::policy::parse::metadata::Identity;
use crate::policy::parse::{syntax, typed};

/// Fields of the object.
pub(in crate::policy::parse) const FIELDS: [&str; 6] =
    ["addressType", "apiVersion", "endpoints", "kind", "metadata", "ports"];

/// Label with the name of the Service (`discovery.LabelServiceName`).
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// "addresses ... must contain at least one address but no more than 100" (`discovery/v1/types.go`).
const ADDRESSES_MAX: usize = 100;
/// "May contain a maximum of 8 entries" (`forZones`, `forNodes`).
const HINTS_MAX: usize = 8;

/// Parses a slice. The caller has parsed its metadata.
pub(in crate::policy::parse) fn endpoint_slice(
    object: &Fields<'_>,
    mut identity: Identity,
) -> Option<EndpointSlice> {
    let type_name = choice(&object.at, "addressType", &["IPv4", "IPv6", "FQDN"]);
    if object.get("addressType").is_none() {
        object.at.required("addressType", "IPv4 or IPv6");
    }
    let family = match type_name? {
        "IPv4" => Some(AddressFamily::V4),
        "IPv6" => Some(AddressFamily::V6),
        _ => None,
    };
    let endpoints = checked_items::<discovery::Endpoint>(object, "endpoints", SLICE_ENDPOINTS_MAX);
    let ports = checked_items::<discovery::EndpointPort>(object, "ports", SLICE_PORTS_MAX);
    let endpoints = family.map(|family| endpoints.iter().filter_map(|at| endpoint(at, family)).collect());
    Some(EndpointSlice {
        service: identity.labels.remove(SERVICE_LABEL).filter(|name| !name.is_empty()),
        endpoints: endpoints.unwrap_or_default(),
        ports: named_ports(&ports),
        namespace: identity.namespace,
        name: identity.name,
    })
}

/// Items of a list, each checked as a Kubernetes type.
fn checked_items<'t, T: Deserialize<'t>>(object: &Fields<'t>, name: &str, most: usize) -> Vec<Cursor<'t>> {
    let items = object.items(name);
    if let Some(at) = items.get(most) {
        at.error_help(format!("Too many: must have at most {most} items"), "split it into several slices");
    }
    let items: Vec<_> = items.into_iter().take(most).collect();
    for at in &items {
        let _: Option<T> = typed::parse(at);
    }
    items
}

fn endpoint(at: &Cursor<'_>, family: AddressFamily) -> Option<Endpoint> {
    let addresses = at.child_items("addresses");
    if addresses.is_empty() {
        at.required("addresses", "must contain at least 1 address");
    }
    limit(&addresses, ADDRESSES_MAX, "addresses");
    let mut first = None;
    for item in addresses.iter().take(ADDRESSES_MAX) {
        let Some(address) = host_address(item) else { continue };
        if AddressFamily::of(address) == family {
            first = first.or(Some(address));
        } else {
            item.invalid("must be of the family of `addressType`", "move it to a slice of its family");
        }
    }
    let conditions = at.child("conditions");
    let condition = |name, absent| conditions.as_ref().and_then(|at| flag(at, name)).unwrap_or(absent);
    let hints = |list| {
        let items = at.child("hints").map(|at| at.child_items(list)).unwrap_or_default();
        limit(&items, HINTS_MAX, "hints");
        items.iter().take(HINTS_MAX).filter_map(|at| Some(text(at, "name")?.1.to_owned())).collect()
    };
    Some(Endpoint {
        address: first?,
        ready: condition("ready", true),
        serving: condition("serving", true),
        terminating: condition("terminating", false),
        node: text(at, "nodeName").map(|(_, name)| name.to_owned()),
        zone_hints: hints("forZones"),
        node_hints: hints("forNodes"),
    })
}

fn limit(items: &[Cursor<'_>], most: usize, what: &str) {
    if let Some(at) = items.get(most) {
        at.error_help(format!("Too many: must have at most {most} {what}"), "remove the others");
    }
}

fn named_ports(items: &[Cursor<'_>]) -> Vec<EndpointPort> {
    let mut names = HashSet::new();
    let mut port = |at: &Cursor<'_>| {
        let name = text(at, "name").map(|(at, name)| {
            if let Err(wrong) = syntax::dns_label(name) {
                at.invalid(&wrong, "choose a name of this form");
            }
            name
        });
        let name = name.unwrap_or_default();
        if !names.insert(name.to_owned()) {
            at.error_help(format!("Duplicate value: {name:?}"), "name each port differently");
        }
        let protocol = protocol_of(at);
        // Without a number the ports are "not restricted", which no port of a Service can stand for.
        let (number_at, number) = number(at, "port")?;
        match syntax::port_number(number) {
            Ok(port) => Some(EndpointPort { name: name.to_owned(), protocol: protocol?, port }),
            Err(wrong) => {
                number_at.invalid(&wrong, "write a port number");
                None
            }
        }
    };
    items.iter().filter_map(&mut port).collect()
}
