//! Pods, namespaces and nodes, and workloads, which are converted to pods.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::cursor::{Cursor, Fields};
use super::metadata::Identity;
use super::network_policy::{PROTOCOLS, check_port_name};
use super::selector::check_labels;
use super::tree::Value;
use super::{syntax, typed};
use crate::limits::POD_ADDRESSES_MAX;
use crate::net::flow::Protocol;
use crate::policy::objects::replicas;
use crate::policy::objects::{ContainerPort, Labels, NAMESPACE_NAME_LABEL, Namespace, Node, Pod, Readiness};
use crate::tables::PodName;

/// Annotation of a workload or of its pod template: addresses of its pod, separated by commas. Without it the
/// pod has no address.
pub const ADDRESSES_ANNOTATION: &str = "palisade/addresses";

/// Parses a pod. The caller has parsed its metadata.
pub(super) fn pod(object: &Fields<'_>, identity: Identity) -> Pod {
    let spec: Option<core::PodSpec> = object.get("spec").and_then(|at| typed::parse(&at));
    let status: Option<core::PodStatus> = object.get("status").and_then(|at| typed::parse(&at));
    let ports = object.get("spec").map(|at| container_ports(&at)).unwrap_or_default();
    let phase = status.and_then(|status| status.phase);
    Pod {
        name: PodName::new(identity.namespace, identity.name),
        labels: identity.labels,
        addresses: object.get("status").map(|at| pod_addresses(&at)).unwrap_or_default(),
        placeholder: false,
        node: spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty()),
        host_ips: object.get("status").map(|at| host_addresses(&at)).unwrap_or_default(),
        host_network: spec.is_some_and(|spec| spec.host_network == Some(true)),
        finished: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
        readiness: readiness(object),
        ports,
    }
}

fn readiness(object: &Fields<'_>) -> Readiness {
    fn text<'t>(at: &Cursor<'t>, name: &str) -> Option<&'t str> {
        at.child(name)?.node.text()
    }
    let conditions = object.get("status").map(|at| at.child_items("conditions")).unwrap_or_default();
    let ready = conditions.iter().find(|at| text(at, "type") == Some("Ready"));
    Readiness {
        unready: ready.is_some_and(|at| text(at, "status") != Some("True")),
        terminating: object.get("metadata").is_some_and(|at| at.child("deletionTimestamp").is_some()),
    }
}

/// Parses a namespace.
pub(super) fn namespace(object: &Fields<'_>, identity: Identity) -> Namespace {
    let _: Option<core::NamespaceSpec> = object.get("spec").and_then(|at| typed::parse(&at));
    let _: Option<core::NamespaceStatus> = object.get("status").and_then(|at| typed::parse(&at));
    let mut labels = identity.labels;
    labels.insert(NAMESPACE_NAME_LABEL.to_owned(), identity.name.clone());
    Namespace { name: identity.name, labels }
}

/// Parses a node.
pub(super) fn node(object: &Fields<'_>, identity: Identity) -> Node {
    let _: Option<core::NodeSpec> = object.get("spec").and_then(|at| typed::parse(&at));
    let _: Option<core::NodeStatus> = object.get("status").and_then(|at| typed::parse(&at));
    let mut addresses = Vec::new();
    for item in object.get("status").map(|at| at.child_items("addresses")).unwrap_or_default() {
        let is_address =
            item.node.get("type").and_then(|node| node.text()).is_some_and(|text| text.ends_with("IP"));
        if let Some(address) = item.child("address").filter(|_| is_address) {
            addresses.extend(address_of(&address));
        }
    }
    dedup(&mut addresses);
    Node { name: identity.name, labels: identity.labels, addresses }
}

/// Path of the pod template in the `spec` of a workload kind.
pub(super) fn template_path(kind: &str) -> &'static [&'static str] {
    if kind == "CronJob" { &["jobTemplate", "spec", "template"] } else { &["template"] }
}

/// Kinds that make pods of templates without `spec.containers`, with their API groups.
const OTHER_WORKLOADS: [(&str, &str); 6] = [
    ("argoproj.io", "CronWorkflow"),
    ("argoproj.io", "Workflow"),
    ("kubevirt.io", "VirtualMachine"),
    ("kubevirt.io", "VirtualMachineInstance"),
    ("tekton.dev", "PipelineRun"),
    ("tekton.dev", "TaskRun"),
];

/// Labels of the pods that an object of a kind that is not read makes, by template: of a pod template below its `spec`, such as
/// `template` or `workerTemplate`. `None` if it makes none; empty for kinds that are known to make pods of other templates.
/// Policies of admission controllers quote templates, and make no pods.
pub(super) fn labels_of_made_pods(object: &Cursor<'_>, group: &str, kind: &str) -> Option<Vec<Labels>> {
    fn add_templates(at: &Cursor<'_>, found: &mut Vec<Labels>) {
        match &at.node.value {
            Value::Sequence(_) => at.items().iter().for_each(|item| add_templates(item, found)),
            Value::Mapping(_) => {
                for (key, _, below) in at.entries() {
                    let containers = || below.child("spec")?.child("containers");
                    let is_named_so = ["template", "Template"].iter().any(|end| key.ends_with(end));
                    if is_named_so
                        && containers().is_some_and(|at| matches!(at.node.value, Value::Sequence(_)))
                    {
                        found.push(below.child("metadata").as_ref().map(labels).unwrap_or_default());
                    } else {
                        add_templates(&below, found);
                    }
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if !kind.ends_with("Policy")
        && let Some(spec) = object.child("spec")
    {
        add_templates(&spec, &mut found);
    }
    (!found.is_empty() || OTHER_WORKLOADS.contains(&(group, kind))).then_some(found)
}

/// Parses the pods of a workload: labels and ports of its template under the name of the workload. A workload
/// that may have several pods yields two: a property of these two holds for any two of them.
pub(super) fn workload(object: &Fields<'_>, identity: Identity, kind: &str) -> Option<Vec<Pod>> {
    let spec = object.required("spec")?;
    check_workload_spec(&spec, kind);
    let template = template_path(kind).iter().try_fold(spec.clone(), |at, name| {
        let found = at.child(name);
        if found.is_none() {
            at.required(name, "a workload has a pod template");
        }
        found
    })?;
    let metadata = template.child("metadata");
    let pod_spec = template.child("spec");
    if let Some(labels) = metadata.as_ref().and_then(|at| at.child("labels")) {
        check_labels(&labels);
    }
    let flag = |name| pod_spec.as_ref().and_then(|at| at.child(name));
    let name = PodName::new(identity.namespace, identity.name);
    let first = Pod {
        addresses: annotated_addresses(object, metadata.as_ref()),
        node: flag("nodeName")
            .and_then(|at| at.node.text().map(str::to_owned))
            .filter(|name| !name.is_empty()),
        host_network: flag("hostNetwork")
            .is_some_and(|at| matches!(at.node.value, super::tree::Value::Bool(true))),
        ports: pod_spec.as_ref().map(container_ports).unwrap_or_default(),
        ..Pod::new(name, metadata.as_ref().map(labels).unwrap_or_default())
    };
    Some(if has_replicas(&spec, kind) { replicas::replica_pair(first).into() } else { vec![first] })
}

/// Tests whether a workload may have several pods at once. A `DaemonSet` has one on every node.
fn has_replicas(spec: &Cursor<'_>, kind: &str) -> bool {
    let (holder, name) = match kind {
        "DaemonSet" => return true,
        "Job" => (Some(spec.clone()), "parallelism"),
        "CronJob" => (spec.child("jobTemplate").and_then(|at| at.child("spec")), "parallelism"),
        _ => (Some(spec.clone()), "replicas"),
    };
    // The check of the spec has reported a value that is no number.
    let count = holder.as_ref().and_then(|at| at.child(name)).and_then(|at| match &at.node.value {
        super::tree::Value::Number(text) => text.parse::<u64>().ok(),
        _ => None,
    });
    count.is_some_and(|count| count > 1)
}

/// Checks all fields of the `spec` of a workload.
fn check_workload_spec(spec: &Cursor<'_>, kind: &str) {
    use k8s_openapi::api::{apps::v1 as apps, batch::v1 as batch};
    match kind {
        "Deployment" => drop(typed::parse::<apps::DeploymentSpec>(spec)),
        "StatefulSet" => drop(typed::parse::<apps::StatefulSetSpec>(spec)),
        "DaemonSet" => drop(typed::parse::<apps::DaemonSetSpec>(spec)),
        "ReplicaSet" => drop(typed::parse::<apps::ReplicaSetSpec>(spec)),
        "ReplicationController" => drop(typed::parse::<core::ReplicationControllerSpec>(spec)),
        "Job" => drop(typed::parse::<batch::JobSpec>(spec)),
        "CronJob" => drop(typed::parse::<batch::CronJobSpec>(spec)),
        _ => {}
    }
}

fn labels(metadata: &Cursor<'_>) -> Labels {
    let entries = metadata.child("labels").map(|at| at.entries()).unwrap_or_default();
    entries
        .iter()
        .map(|(key, _, at)| ((*key).to_owned(), at.node.text().unwrap_or_default().to_owned()))
        .collect()
}

fn address_annotation<'t>(metadata: &Cursor<'t>) -> Option<Cursor<'t>> {
    metadata.child("annotations")?.child(ADDRESSES_ANNOTATION)
}

fn annotated_addresses(object: &Fields<'_>, template: Option<&Cursor<'_>>) -> Vec<IpAddr> {
    let own = object.get("metadata");
    let Some(at) = template.and_then(address_annotation).or_else(|| address_annotation(own.as_ref()?)) else {
        return Vec::new();
    };
    let mut addresses = Vec::new();
    for part in at.node.text().unwrap_or_default().split(',') {
        match syntax::ip(part.trim()) {
            Ok(address) => addresses.push(address),
            Err(wrong) => at.invalid(&wrong, "write addresses with commas between them"),
        }
    }
    dedup(&mut addresses);
    addresses
}

/// Ports of all containers, and of sidecars (init containers with `restartPolicy: Always`).
fn container_ports(spec: &Cursor<'_>) -> Vec<ContainerPort> {
    let is_sidecar = |at: &Cursor<'_>| {
        at.node.get("restartPolicy").and_then(|node| node.text()).is_some_and(|text| text == "Always")
    };
    let mut ports = Vec::new();
    for container in spec.child_items("containers") {
        ports.extend(ports_of(&container));
    }
    for container in spec.child_items("initContainers") {
        let of_init = ports_of(&container);
        if is_sidecar(&container) {
            ports.extend(of_init);
        }
    }
    ports
}

fn ports_of(container: &Cursor<'_>) -> Vec<ContainerPort> {
    let mut names: Vec<String> = Vec::new();
    let mut ports = Vec::new();
    for at in container.child_items("ports") {
        let name = at.child("name").filter(|name| name.node.text() != Some(""));
        if let Some((at, name)) = name.as_ref().and_then(|at| Some((at, at.node.text()?))) {
            check_port_name(at, name);
            if names.iter().any(|other| other == name) {
                at.error_help(
                    format!("Duplicate value: {name:?}"),
                    "name each port of a container differently",
                );
            }
            names.push(name.to_owned());
        }
        let name = name.and_then(|at| at.node.text().map(str::to_owned));
        if let (Some(port), Some(protocol)) = (number_of(&at), protocol_of(&at)) {
            ports.push(ContainerPort { name, protocol, port });
        }
    }
    ports
}

fn number_of(port: &Cursor<'_>) -> Option<u16> {
    let Some(at) = port.child("containerPort") else {
        port.required("containerPort", "a port number");
        return None;
    };
    // The check of the spec has reported a value that is no number.
    let super::tree::Value::Number(text) = &at.node.value else { return None };
    match syntax::port_number(text.parse().ok()?) {
        Ok(number) => Some(number),
        Err(wrong) => {
            at.invalid(&wrong, "write a port number");
            None
        }
    }
}

/// `protocol` of a port, TCP if absent.
pub(super) fn protocol_of(port: &Cursor<'_>) -> Option<Protocol> {
    let Some(at) = port.child("protocol").filter(|at| at.node.text() != Some("")) else {
        return Some(Protocol::TCP);
    };
    match at.node.text()? {
        "TCP" => Some(Protocol::TCP),
        "UDP" => Some(Protocol::UDP),
        "SCTP" => Some(Protocol::SCTP),
        _ => {
            at.unsupported(&PROTOCOLS);
            None
        }
    }
}

/// Addresses of the list `several`, or `one` if the list is empty.
fn listed<'t>(status: &Cursor<'t>, several: &str, one: &str) -> Vec<Cursor<'t>> {
    let listed: Vec<Cursor<'_>> =
        status.child_items(several).iter().filter_map(|item| item.child("ip")).collect();
    if listed.is_empty() { status.child(one).into_iter().collect() } else { listed }
}

/// `hostIPs`, or `hostIP` if the list is empty.
fn host_addresses(status: &Cursor<'_>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> =
        listed(status, "hostIPs", "hostIP").iter().filter_map(address_of).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// `podIPs`, or `podIP` if the list is empty.
fn pod_addresses(status: &Cursor<'_>) -> Vec<IpAddr> {
    let all = listed(status, "podIPs", "podIP");
    if let Some(first) = all.get(POD_ADDRESSES_MAX) {
        first.error_help(
            format!("Too many: a pod has at most {POD_ADDRESSES_MAX} addresses here"),
            "remove the ones that carry no traffic",
        );
    }
    let mut addresses: Vec<IpAddr> = all.iter().take(POD_ADDRESSES_MAX).filter_map(address_of).collect();
    dedup(&mut addresses);
    addresses
}

/// Address; `None` for an empty text.
pub(super) fn address_of(at: &Cursor<'_>) -> Option<IpAddr> {
    // An empty address is not known yet.
    let text = at.node.text().filter(|text| !text.is_empty())?;
    match syntax::ip(text) {
        Ok(address) => Some(address),
        Err(wrong) => {
            at.invalid(&wrong, "write an address without a prefix length");
            None
        }
    }
}

fn dedup(addresses: &mut Vec<IpAddr>) {
    let mut seen = Vec::new();
    addresses.retain(|address| {
        let is_first = !seen.contains(address);
        seen.push(*address);
        is_first
    });
}
