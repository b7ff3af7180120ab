//! `AdminNetworkPolicy` and `BaselineAdminNetworkPolicy` `policy.networking.k8s.io/v1alpha1`, converted to
//! [`ClusterNetworkPolicy`]: Allow becomes Accept, `ports` become protocols.

use super::cluster_network_policy::{named_port, port_range, priority, rule_name, rule_of};
use super::cluster_peer::{self, Dialect, Outcome};
use super::cursor::{Cursor, Fields};
use super::metadata::{self, Identity};
use super::network_policy::{port_number, protocol};
use crate::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPort, ClusterRule, LabelSelector, Tier,
};
use crate::tables::PolicyKind;

/// Maximum number of rules of a direction, peers of a rule, and ports of a rule.
const ITEMS_MAX: usize = 100;

/// Parses an object of either kind. The caller has parsed its metadata.
pub(super) fn parse(
    object: &Fields<'_>,
    identity: Identity,
    kind: PolicyKind,
) -> Option<ClusterNetworkPolicy> {
    let is_baseline = kind == PolicyKind::BaselineAdminNetworkPolicy;
    let spec = object.required("spec")?;
    let spec = if is_baseline {
        spec.fields(&["egress", "ingress", "subject"])
    } else {
        spec.fields(&["egress", "ingress", "priority", "subject"])
    };
    if is_baseline && !identity.name.is_empty() && identity.name != "default" {
        check_singleton(object);
    }
    let priority = if is_baseline { Some(0) } else { priority(&spec) };
    let everywhere = LabelSelector::default();
    let subject =
        spec.required("subject").and_then(|at| cluster_peer::subject(&at, Dialect::Admin(&everywhere)));
    let namespaces = subject.as_ref().map_or(&everywhere, |subject| &subject.namespaces);
    let rules = |direction, peers| {
        let items = spec.items(direction);
        spec.limit_items(direction, items.len(), ITEMS_MAX);
        items.iter().filter_map(|at| rule(at, peers, namespaces, is_baseline)).collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules("ingress", "from"), rules("egress", "to"));
    Some(ClusterNetworkPolicy {
        kind,
        name: identity.name,
        tier: if is_baseline { Tier::Baseline } else { Tier::Admin },
        priority: priority?,
        subject: subject?,
        ingress,
        egress,
        audited: metadata::is_audited(object),
    })
}

fn check_singleton(object: &Fields<'_>) {
    if let Some(name) = object.get("metadata").and_then(|at| at.child("name")) {
        name.invalid(
            "only one baseline admin network policy may exist, with the name default",
            "write \"name: default\"",
        );
    }
}

fn rule(
    at: &Cursor<'_>,
    peers: &'static str,
    subject_namespaces: &LabelSelector,
    is_baseline: bool,
) -> Option<ClusterRule> {
    let fields = at.fields(&["action", peers, "name", "ports"]);
    let name = rule_name(&fields);
    let action = fields.required("action").and_then(|at| match at.text()? {
        "Allow" => Some(ClusterAction::Accept),
        "Deny" => Some(ClusterAction::Deny),
        "Pass" if !is_baseline => Some(ClusterAction::Pass),
        _ => {
            at.unsupported(if is_baseline { &["Allow", "Deny"] } else { &["Allow", "Deny", "Pass"] });
            None
        }
    });
    let peers = cluster_peer::peers(&fields, peers, action, Dialect::Admin(subject_namespaces), ITEMS_MAX);
    let items = fields.items("ports");
    fields.limit_items("ports", items.len(), ITEMS_MAX);
    let ports = match items.as_slice() {
        // An empty list is equivalent to an absent one: all traffic.
        [] => Outcome::Known(None),
        items => Outcome::all(items.iter().map(port).collect()).map(Some),
    };
    let tier = if is_baseline { Tier::Baseline } else { Tier::Admin };
    cluster_peer::check_rule(at, Some(tier), &peers, &ports);
    rule_of(name, action?, peers, ports)
}

fn port(at: &Cursor<'_>) -> Outcome<ClusterPort> {
    let (name, value) = match cluster_peer::only_field(at, &["namedPort", "portNumber", "portRange"], "port")
    {
        Outcome::Known(field) => field,
        Outcome::Unknown => return Outcome::Unknown,
        Outcome::Invalid => return Outcome::Invalid,
    };
    match name {
        "namedPort" => named_port(&value),
        "portNumber" => {
            let fields = value.fields(&["port", "protocol"]);
            let port = fields.required("port").and_then(|at| port_number(&at));
            range(&fields, port.map(|port| (port, port)))
        }
        _ => {
            let fields = value.fields(&["end", "protocol", "start"]);
            range(&fields, port_range(&value, &fields, false))
        }
    }
    .into()
}

fn range(fields: &Fields<'_>, ports: Option<(u16, u16)>) -> Option<ClusterPort> {
    let protocol = protocol(fields)?;
    let (first, last) = ports?;
    Some(ClusterPort::Range { protocol, first, last })
}
