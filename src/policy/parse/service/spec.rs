//! Service.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::addresses::{distinct, host_address, status_address};
use super::ports::ports;
use super::values::{choice, flag, number, text};
use crate::limits::SOURCE_RANGES_MAX;
use crate::policy::objects::{
    AddressFamily, LabelSelector, Requirement, Service, ServiceKind, TrafficDistribution, TrafficPolicy,
};
use crate::policy::parse::cursor::{Cursor, Fields};
use crate::policy::parse::metadata::Identity;
use crate::policy::parse::network_policy::cidr;
use crate::policy::parse::selector::check_labels;
use crate::policy::parse::{syntax, typed};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
/// Time-out of an affinity without one (`DefaultClientIPServiceAffinitySeconds`).
const AFFINITY_SECONDS: u32 = 10_800;
/// Largest time-out of an affinity (`MaxClientIPServiceAffinitySeconds`).
const AFFINITY_SECONDS_MAX: u32 = 86_400;

/// Parses a Service. The caller has parsed its metadata.
pub(in crate::policy::parse) fn service(object: &Fields<'_>, identity: Identity) -> Option<Service> {
    let spec = object.required("spec")?;
    let _: Option<core::ServiceSpec> = typed::parse(&spec);
    let status = object.get("status");
    let _: Option<core::ServiceStatus> = status.as_ref().and_then(typed::parse);
    check_name(object, &identity.name);
    let type_name = choice(&spec, "type", &TYPES).unwrap_or("ClusterIP");
    let (kind, cluster_ips) = cluster_ips(&spec, type_name);
    let external_ips = addresses(&spec, "externalIPs");
    let is_outside = matches!(type_name, "NodePort" | "LoadBalancer");
    check_external_policy(&spec, is_outside || !external_ips.is_empty());
    Some(Service {
        kind,
        selector: selector(&spec),
        cluster_ips,
        external_ips,
        load_balancer_ips: status.as_ref().map(load_balancer_ips).unwrap_or_default(),
        source_ranges: source_ranges(&spec, type_name),
        health_check_port: health_check_port(&spec),
        families: families(&spec),
        ports: ports(&spec, kind, is_outside),
        affinity_seconds: affinity(&spec),
        internal_traffic: traffic_policy(&spec, "internalTrafficPolicy"),
        external_traffic: traffic_policy(&spec, "externalTrafficPolicy"),
        publish_not_ready: flag(&spec, "publishNotReadyAddresses").unwrap_or_default(),
        distribution: distribution(&spec),
        namespace: identity.namespace,
        name: identity.name,
    })
}

/// Checks the form of the name. Newer API servers accept a digit at its beginning
/// (`RelaxedServiceNameValidation`).
fn check_name(object: &Fields<'_>, name: &str) {
    if let (Err(wrong), Some(at)) =
        (syntax::dns_label(name), object.get("metadata").and_then(|at| at.child("name")))
        && syntax::dns_subdomain(name).is_ok()
    {
        at.invalid(&wrong, "choose a name of this form");
    }
}

/// Kind and virtual addresses inside the cluster.
fn cluster_ips(spec: &Cursor<'_>, type_name: &str) -> (ServiceKind, Vec<IpAddr>) {
    let one = spec.child("clusterIP");
    let several = spec.child_items("clusterIPs");
    let is_none = |at: &Cursor<'_>| at.node.text() == Some("None");
    if type_name == "ExternalName" {
        for at in one.iter().chain(&several).filter(|at| at.node.text() != Some("")) {
            at.error_help("Forbidden: may not be set for ExternalName services", "remove it");
        }
        check_external_name(spec);
        return (ServiceKind::ExternalName, Vec::new());
    }
    if let (Some(one), Some(first)) = (&one, several.first())
        && one.node.text() != first.node.text()
    {
        first.invalid("first value must match `clusterIP`", "write the same address in both fields");
    }
    if several.len() > 2 {
        several[2]
            .error_help("Invalid value: may only hold up to 2 values", "keep one address of each family");
    }
    if one.iter().chain(&several).any(is_none) {
        if several.len() > 1 {
            several[1]
                .error_help("Invalid value: 'None' must be the first and only value", "remove the others");
        }
        if type_name != "ClusterIP"
            && let Some(at) = one.as_ref().or(several.first())
        {
            at.invalid(
                &format!("may not be set to 'None' for {type_name} services"),
                "write \"type: ClusterIP\", or remove it",
            );
        }
        return (ServiceKind::Headless, Vec::new());
    }
    let listed = if several.is_empty() { one.into_iter().collect() } else { several };
    let found: Vec<IpAddr> = listed.iter().take(2).filter_map(host_address).collect();
    if let ([first, second], Some(at)) = (found.as_slice(), listed.get(1))
        && first.is_ipv4() == second.is_ipv4()
    {
        at.invalid("may specify no more than one IP for each IP family", "keep one address of each family");
    }
    (ServiceKind::Virtual, found)
}

fn check_external_name(spec: &Cursor<'_>) {
    let Some((at, name)) = text(spec, "externalName") else {
        spec.required("externalName", "a Service of type ExternalName names another host");
        return;
    };
    if let Err(wrong) = syntax::dns_subdomain(name.strip_suffix('.').unwrap_or(name)) {
        at.invalid(&wrong, "write a DNS name");
    }
}

fn addresses(spec: &Cursor<'_>, field: &str) -> Vec<IpAddr> {
    distinct(spec.child_items(field).iter().filter_map(host_address))
}

/// Addresses of load balancers whose packets reach the node with these addresses (`ipMode: VIP`).
fn load_balancer_ips(status: &Cursor<'_>) -> Vec<IpAddr> {
    let ingress = status.child("loadBalancer").map(|at| at.child_items("ingress")).unwrap_or_default();
    let is_proxied = |at: &Cursor<'_>| text(at, "ipMode").is_some_and(|(_, mode)| mode == "Proxy");
    let shown = ingress.iter().filter(|at| !is_proxied(at));
    distinct(shown.filter_map(|at| status_address(&at.child("ip")?)))
}

/// Port of `healthCheckNodePort`; zero stands for none.
fn health_check_port(spec: &Cursor<'_>) -> Option<u16> {
    let (at, port) = number(spec, "healthCheckNodePort").filter(|(_, port)| *port != 0)?;
    let port = u16::try_from(port).ok();
    if port.is_none() {
        at.error_help("Invalid value: must be between 1 and 65535, inclusive", "name a port");
    }
    port
}

/// Sources of `loadBalancerSourceRanges`. A range of all addresses of a family limits none, as in kube-proxy.
fn source_ranges(spec: &Cursor<'_>, type_name: &str) -> Vec<IpNet> {
    let ranges = spec.child_items("loadBalancerSourceRanges");
    let Some(first) = ranges.first() else { return Vec::new() };
    if type_name != "LoadBalancer" {
        first.error_help("Forbidden: may only be used when `type` is 'LoadBalancer'", "remove it");
        return Vec::new();
    }
    if ranges.len() > SOURCE_RANGES_MAX {
        ranges[SOURCE_RANGES_MAX].error_help(
            format!("Too many: must have at most {SOURCE_RANGES_MAX} items"),
            "limit the sources with the ipBlock of a NetworkPolicy",
        );
    }
    let blocks: Vec<IpNet> = ranges.iter().take(SOURCE_RANGES_MAX).filter_map(cidr).collect();
    if blocks.iter().any(|block| block.prefix_len() == 0) { Vec::new() } else { blocks }
}

fn families(spec: &Cursor<'_>) -> Vec<AddressFamily> {
    let mut found = Vec::new();
    choice(spec, "ipFamilyPolicy", &["SingleStack", "PreferDualStack", "RequireDualStack"]);
    for at in spec.child_items("ipFamilies") {
        let family = match at.node.text() {
            Some("IPv4") => AddressFamily::V4,
            Some("IPv6") => AddressFamily::V6,
            _ => {
                at.unsupported(&["IPv4", "IPv6"]);
                continue;
            }
        };
        if found.contains(&family) {
            at.error_help(
                format!("Duplicate value: {:?}", at.node.text().unwrap_or_default()),
                "name each family once",
            );
        } else {
            found.push(family);
        }
    }
    found
}

fn selector(spec: &Cursor<'_>) -> Option<LabelSelector> {
    let at = spec.child("selector")?;
    check_labels(&at);
    let requirement = |(key, _, at): (&str, _, Cursor<'_>)| {
        let values = vec![at.node.text().unwrap_or_default().to_owned()];
        Requirement::In { key: key.to_owned(), values }
    };
    let mut requirements: Vec<Requirement> = at.entries().into_iter().map(requirement).collect();
    requirements.sort();
    (!requirements.is_empty()).then_some(LabelSelector { requirements })
}

fn affinity(spec: &Cursor<'_>) -> Option<u32> {
    let has_affinity = choice(spec, "sessionAffinity", &["ClientIP", "None"]) == Some("ClientIP");
    let config = spec.child("sessionAffinityConfig");
    if !has_affinity {
        if let Some(at) = config {
            at.error_help(
                "Forbidden: must not be set when session affinity is None",
                "write \"sessionAffinity: ClientIP\", or remove it",
            );
        }
        return None;
    }
    let seconds = config.and_then(|at| at.child("clientIP")).and_then(|at| number(&at, "timeoutSeconds"));
    let Some((at, seconds)) = seconds else { return Some(AFFINITY_SECONDS) };
    let valid = u32::try_from(seconds).ok().filter(|seconds| (1..=AFFINITY_SECONDS_MAX).contains(seconds));
    if valid.is_none() {
        at.invalid(
            &format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}"),
            "write a number of seconds",
        );
    }
    valid
}

fn traffic_policy(spec: &Cursor<'_>, field: &str) -> TrafficPolicy {
    match choice(spec, field, &["Cluster", "Local"]) {
        Some("Local") => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    }
}

fn check_external_policy(spec: &Cursor<'_>, is_outside: bool) {
    if let Some(at) = spec.child("externalTrafficPolicy").filter(|_| !is_outside) {
        at.error_help(
            "Invalid value: may only be set for externally-accessible services",
            "write \"type: NodePort\" or \"type: LoadBalancer\", or remove it",
        );
    }
}

fn distribution(spec: &Cursor<'_>) -> Option<TrafficDistribution> {
    match choice(spec, "trafficDistribution", &["PreferClose", "PreferSameZone", "PreferSameNode"])? {
        "PreferSameNode" => Some(TrafficDistribution::SameNode),
        _ => Some(TrafficDistribution::SameZone),
    }
}
