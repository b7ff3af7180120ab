//! `ClusterNetworkPolicy` `policy.networking.k8s.io/v1alpha2`, validated like its CRD
//! (`apis/v1alpha2/clusternetworkpolicy_types.go` of kubernetes-sigs/network-policy-api).

use super::cluster_peer::{self, Dialect, Outcome};
use super::cursor::{Cursor, Fields};
use super::metadata::{self, Identity};
use super::network_policy::{check_port_name, port_number};
use crate::net::flow::Protocol;
use crate::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, LabelSelector,
    NAMESPACE_NAME_LABEL, PodScope, Requirement, Tier,
};
use crate::tables::PolicyKind;

/// Maximum number of rules of a direction, peers of a rule, networks of a peer, and protocols of a rule.
const ITEMS_MAX: usize = 25;
const PRIORITY_MAX: u32 = 1000;

/// Parses the object. The caller has parsed its metadata. Returns `None` after a report if a required part is
/// invalid.
pub(super) fn parse(object: &Fields<'_>, identity: Identity) -> Option<ClusterNetworkPolicy> {
    let spec = object.required("spec")?.fields(&["egress", "ingress", "priority", "subject", "tier"]);
    let tier = spec.required("tier").and_then(|at| match at.text()? {
        "Admin" => Some(Tier::Admin),
        "Baseline" => Some(Tier::Baseline),
        _ => {
            at.unsupported(&["Admin", "Baseline"]);
            None
        }
    });
    let priority = priority(&spec);
    let subject = spec.required("subject").and_then(|at| cluster_peer::subject(&at, Dialect::Cluster));
    let rules = |direction, peers| {
        let items = spec.items(direction);
        spec.limit_items(direction, items.len(), ITEMS_MAX);
        items.iter().filter_map(|at| rule(at, peers, tier)).collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules("ingress", "from"), rules("egress", "to"));
    Some(ClusterNetworkPolicy {
        kind: PolicyKind::ClusterNetworkPolicy,
        name: identity.name,
        tier: tier?,
        priority: priority?,
        subject: subject?,
        ingress,
        egress,
        audited: metadata::is_audited(object),
    })
}

/// `spec.priority`.
pub(super) fn priority(spec: &Fields<'_>) -> Option<u32> {
    let at = spec.required("priority")?;
    let priority = u32::try_from(at.integer()?).ok().filter(|priority| *priority <= PRIORITY_MAX);
    if priority.is_none() {
        at.invalid("must be between 0 and 1000, inclusive", "0 is asked first");
    }
    priority
}

fn rule(at: &Cursor<'_>, peers: &'static str, tier: Option<Tier>) -> Option<ClusterRule> {
    let fields = at.fields(&["action", peers, "name", "protocols"]);
    let name = rule_name(&fields);
    let action = fields.required("action").and_then(|at| match at.text()? {
        "Accept" => Some(ClusterAction::Accept),
        "Deny" => Some(ClusterAction::Deny),
        "Pass" => Some(ClusterAction::Pass),
        _ => {
            at.unsupported(&["Accept", "Deny", "Pass"]);
            None
        }
    });
    let peers = cluster_peer::peers(&fields, peers, action, Dialect::Cluster, ITEMS_MAX);
    let ports = match fields.get("protocols") {
        None => Outcome::Known(None),
        Some(at) => protocols(&fields, &at),
    };
    cluster_peer::check_rule(at, tier, &peers, &ports);
    rule_of(name, action?, peers, ports)
}

/// Creates a rule. If a part is of an unknown kind, the rule fails closed.
pub(super) fn rule_of(
    name: Option<String>,
    action: ClusterAction,
    peers: Outcome<Vec<ClusterPeer>>,
    ports: Outcome<Option<Vec<ClusterPort>>>,
) -> Option<ClusterRule> {
    match (peers, ports) {
        (Outcome::Invalid, _) | (_, Outcome::Invalid) => None,
        (Outcome::Known(peers), Outcome::Known(ports)) => Some(ClusterRule { name, action, peers, ports }),
        (Outcome::Unknown, _) | (_, Outcome::Unknown) => Some(match action {
            ClusterAction::Accept => ClusterRule { name, action, peers: vec![unmatched_peer()], ports: None },
            ClusterAction::Deny | ClusterAction::Pass => ClusterRule {
                name,
                action: ClusterAction::Deny,
                peers: vec![ClusterPeer::Everyone],
                ports: None,
            },
        }),
    }
}

/// Peer that matches nothing: a label cannot be present and absent.
fn unmatched_peer() -> ClusterPeer {
    let key = NAMESPACE_NAME_LABEL.to_owned();
    let requirements = vec![Requirement::Exists { key: key.clone() }, Requirement::DoesNotExist { key }];
    ClusterPeer::Pods(PodScope { namespaces: LabelSelector { requirements }, pods: LabelSelector::default() })
}

/// `name` of a rule.
pub(super) fn rule_name(fields: &Fields<'_>) -> Option<String> {
    let at = fields.get("name")?;
    let name = at.text()?;
    if name.chars().count() > 100 {
        at.invalid("must be no more than 100 characters", "write a shorter name");
    }
    (!name.is_empty()).then(|| name.to_owned())
}

fn protocols(fields: &Fields<'_>, at: &Cursor<'_>) -> Outcome<Option<Vec<ClusterPort>>> {
    let items = at.items();
    fields.limit_items("protocols", items.len(), ITEMS_MAX);
    if items.is_empty() {
        at.error_help("Invalid value: must have at least 1 item", "leave protocols out to match all traffic");
        return Outcome::Invalid;
    }
    let read: Vec<Outcome<ClusterPort>> = items.iter().map(protocol).collect();
    Outcome::all(read).map(Some)
}

fn protocol(at: &Cursor<'_>) -> Outcome<ClusterPort> {
    const KNOWN: [&str; 4] = ["destinationNamedPort", "sctp", "tcp", "udp"];
    let (name, value) = match cluster_peer::only_field(at, &KNOWN, "protocol") {
        Outcome::Known(field) => field,
        Outcome::Unknown => return Outcome::Unknown,
        Outcome::Invalid => return Outcome::Invalid,
    };
    let protocol = match name {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "sctp" => Protocol::SCTP,
        _ => return named_port(&value).into(),
    };
    let fields = value.fields(&["destinationPort"]);
    let range = match fields.get("destinationPort") {
        // The CRD requires a property; the API documentation treats its absence as all ports.
        None => Some((0, u16::MAX)),
        Some(at) => destination_port(&at),
    };
    range.map(|(first, last)| ClusterPort::Range { protocol, first, last }).into()
}

/// `destinationNamedPort`, and `namedPort` of older kinds.
pub(super) fn named_port(at: &Cursor<'_>) -> Option<ClusterPort> {
    let name = at.text()?;
    check_port_name(at, name);
    Some(ClusterPort::Named { protocol: None, name: name.to_owned() })
}

fn destination_port(at: &Cursor<'_>) -> Option<(u16, u16)> {
    let fields = at.fields(&["number", "range"]);
    match (fields.get("number"), fields.get("range")) {
        (Some(number), None) => port_number(&number).map(|port| (port, port)),
        (None, Some(range)) => {
            let fields = range.fields(&["end", "start"]);
            port_range(&range, &fields, true)
        }
        _ => {
            at.error_help(
                "Invalid value: exactly one of number and range must be given",
                "write {number: 80}",
            );
            None
        }
    }
}

/// `start` and `end`. If `strict`, the end must be greater.
pub(super) fn port_range(at: &Cursor<'_>, fields: &Fields<'_>, strict: bool) -> Option<(u16, u16)> {
    let start = fields.required("start").and_then(|at| port_number(&at));
    let end = fields.required("end").and_then(|at| port_number(&at));
    let (start, end) = (start?, end?);
    if start > end || strict && start == end {
        at.error_help(
            format!("Invalid value: start {start} must be less than end {end}"),
            "write the lower port first; for one port, write number",
        );
        return None;
    }
    Some((start, end))
}
