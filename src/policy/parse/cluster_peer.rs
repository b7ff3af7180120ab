//! Subjects and peers of cluster-wide policies.
//!
//! A peer of an unknown kind belongs to a newer version of the API. The policy then fails closed: an Accept
//! rule matches nothing, a Deny or Pass rule denies everything (comment of
//! `ClusterNetworkPolicyIngressPeer`).

mod legacy_namespaces;

use super::cursor::{Cursor, Fields, is_similar};
use super::network_policy::cidr;
use super::selector::selector;
use crate::policy::objects::{ClusterAction, ClusterPeer, ClusterPort, LabelSelector, PodScope, Tier};

/// Outcome of parsing a part of a policy.
pub(super) enum Outcome<T> {
    /// Parsed value.
    Known(T),
    /// Unknown kind; reported as a warning.
    Unknown,
    /// Invalid value; reported as an error.
    Invalid,
}

impl<T> Outcome<T> {
    /// Collects values: invalid if one is invalid, unknown if one is unknown.
    pub(super) fn all(list: Vec<Outcome<T>>) -> Outcome<Vec<T>> {
        let mut known = Vec::new();
        let mut is_unknown = false;
        for found in list {
            match found {
                Outcome::Known(value) => known.push(value),
                Outcome::Unknown => is_unknown = true,
                Outcome::Invalid => return Outcome::Invalid,
            }
        }
        if is_unknown { Outcome::Unknown } else { Outcome::Known(known) }
    }

    /// Applies a function to the value.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Known(value) => Outcome::Known(change(value)),
            Outcome::Unknown => Outcome::Unknown,
            Outcome::Invalid => Outcome::Invalid,
        }
    }
}

impl<T> From<Option<T>> for Outcome<T> {
    /// Converts `None`, which follows a report, to [`Outcome::Invalid`].
    fn from(value: Option<T>) -> Outcome<T> {
        value.map_or(Outcome::Invalid, Outcome::Known)
    }
}

/// Version of the API.
#[derive(Clone, Copy)]
pub(super) enum Dialect<'t> {
    /// v1alpha2.
    Cluster,
    /// v1alpha1, with the namespaces of the subject, to which `sameLabels` refers.
    Admin(&'t LabelSelector),
}

/// `subject`: the pods that the policy selects.
pub(super) fn subject(at: &Cursor<'_>, dialect: Dialect<'_>) -> Option<PodScope> {
    let fields = at.fields(&["namespaces", "pods"]);
    match (fields.get("namespaces"), fields.get("pods")) {
        (Some(namespaces), None) => {
            Some(PodScope { namespaces: selector(&namespaces), pods: LabelSelector::default() })
        }
        (None, Some(pods)) => pods_in(&pods, dialect),
        _ => {
            at.error_help(
                "Invalid value: exactly one of namespaces and pods must be given",
                "\"namespaces: {}\" is every pod of the cluster",
            );
            None
        }
    }
}

/// `from` or `to`.
pub(super) fn peers(
    rule: &Fields<'_>,
    name: &'static str,
    action: Option<ClusterAction>,
    dialect: Dialect<'_>,
    most: usize,
) -> Outcome<Vec<ClusterPeer>> {
    let Some(at) = rule.required(name) else { return Outcome::Invalid };
    let items = at.items();
    rule.limit_items(name, items.len(), most);
    if items.is_empty() {
        at.error_help(
            "Invalid value: must have at least 1 item",
            "name a peer; \"namespaces: {}\" is every pod of the cluster",
        );
        return Outcome::Invalid;
    }
    let read = items.iter().map(|at| peer(at, name == "to", action, dialect));
    Outcome::all(read.collect()).map(|lists| lists.into_iter().flatten().collect())
}

fn peer(
    at: &Cursor<'_>,
    is_egress: bool,
    action: Option<ClusterAction>,
    dialect: Dialect<'_>,
) -> Outcome<Vec<ClusterPeer>> {
    const EGRESS: [&str; 5] = ["namespaces", "pods", "networks", "nodes", "domainNames"];
    let known = if is_egress { &EGRESS[..] } else { &EGRESS[..2] };
    let (name, value) = match only_field(at, known, "peer") {
        Outcome::Known(field) => field,
        Outcome::Unknown => return Outcome::Unknown,
        Outcome::Invalid => return Outcome::Invalid,
    };
    let one = |peer: Option<ClusterPeer>| peer.map(|peer| vec![peer]);
    match name {
        "namespaces" => one(namespaces(&value, dialect).map(ClusterPeer::Pods)),
        "pods" => one(pods_in(&value, dialect).map(ClusterPeer::Pods)),
        "nodes" => one(Some(ClusterPeer::Nodes(selector(&value)))),
        "networks" => list(&value, |at| cidr(at).map(ClusterPeer::Network)),
        _ => domain_names(&value, action),
    }
    .into()
}

/// Only field of a mapping. A name similar to a known one is a misspelling; any other name belongs to a newer
/// API.
pub(super) fn only_field<'t>(at: &Cursor<'t>, known: &[&str], what: &str) -> Outcome<(&'t str, Cursor<'t>)> {
    let mut entries = at.entries();
    if entries.is_empty()
        && !matches!(at.node.value, super::tree::Value::Mapping(_) | super::tree::Value::Null)
    {
        return Outcome::Invalid;
    }
    entries.retain(|(_, _, value)| !value.node.is_null());
    let unknown = entries.iter().find(|(name, ..)| !known.contains(name));
    match (entries.as_slice(), unknown) {
        (_, Some((name, span, value))) if known.iter().any(|known| is_similar(name, known)) => {
            at.unknown_field(name, *span, &value.path, known);
            Outcome::Invalid
        }
        ([], _) | (_, Some(_)) => {
            let name = unknown.map_or("none".to_owned(), |(name, ..)| format!("{name:?}"));
            at.unenforced(
                format!("unknown kind of {what}: {name}: the rule fails closed: Accept matches nothing, Deny and Pass deny all"),
                format!("known here: {}", known.join(", ")),
            );
            Outcome::Unknown
        }
        ([(name, _, value)], None) => Outcome::Known((name, value.clone())),
        (_, None) => {
            at.error_help(
                format!("Invalid value: a {what} must have exactly one field"),
                "make them several entries of the list",
            );
            Outcome::Invalid
        }
    }
}

fn namespaces(at: &Cursor<'_>, dialect: Dialect<'_>) -> Option<PodScope> {
    let namespaces = match dialect {
        Dialect::Cluster => selector(at),
        Dialect::Admin(subject) => legacy_namespaces::parse(at, subject)?,
    };
    Some(PodScope { namespaces, pods: LabelSelector::default() })
}

/// `pods`: "`NamespaceSelector` follows standard label selector semantics; if empty, it selects all
/// Namespaces. +optional" (v1alpha2, `NamespacedPod`). v1alpha1 requires it. Both require `podSelector`.
fn pods_in(at: &Cursor<'_>, dialect: Dialect<'_>) -> Option<PodScope> {
    if let (Dialect::Admin(subject), Some(older)) = (dialect, at.child("namespaces")) {
        let fields = at.fields(&["namespaces", "podSelector"]);
        let namespaces = legacy_namespaces::parse(&older, subject);
        let pods = fields.required("podSelector").map(|at| selector(&at));
        return Some(PodScope { namespaces: namespaces?, pods: pods? });
    }
    let fields = at.fields(&["namespaceSelector", "podSelector"]);
    let namespaces = match dialect {
        Dialect::Cluster => Some(fields.get("namespaceSelector").map(|at| selector(&at)).unwrap_or_default()),
        Dialect::Admin(_) => fields.required("namespaceSelector").map(|at| selector(&at)),
    };
    let pods = fields.required("podSelector").map(|at| selector(&at));
    Some(PodScope { namespaces: namespaces?, pods: pods? })
}

fn list(at: &Cursor<'_>, read: impl Fn(&Cursor<'_>) -> Option<ClusterPeer>) -> Option<Vec<ClusterPeer>> {
    /// Maximum number of networks or domain names of a peer.
    const MOST: usize = 25;
    let items = at.items();
    if items.is_empty() || items.len() > MOST {
        let message = format!("Invalid value: must have from 1 to {MOST} items, not {}", items.len());
        at.error_help(message, "split the list, or remove the peer");
        return None;
    }
    items.iter().enumerate().for_each(|(index, at)| unique(at, &items[..index]));
    items.iter().map(read).collect()
}

/// Reports an entry that the list already has: the list is a set (`+listType=set`).
fn unique(at: &Cursor<'_>, before: &[Cursor<'_>]) {
    if let Some(text) =
        at.node.text().filter(|text| before.iter().any(|other| other.node.text() == Some(text)))
    {
        at.error_help(format!("Duplicate value: {text:?}"), "remove one of them");
    }
}

/// Checks what a rule may not combine. `tier` is that of its policy.
pub(super) fn check_rule(
    at: &Cursor<'_>,
    tier: Option<Tier>,
    peers: &Outcome<Vec<ClusterPeer>>,
    ports: &Outcome<Option<Vec<ClusterPort>>>,
) {
    let Outcome::Known(peers) = peers else { return };
    let has_names = peers.iter().any(|peer| matches!(peer, ClusterPeer::DomainName(_)));
    if has_names && tier == Some(Tier::Baseline) {
        at.error_help(
            "Forbidden: domainNames may only be specified in the Admin tier",
            "write the rule in a policy of the Admin tier, or accept by networks",
        );
    }
    let has_no_ports = |peer: &ClusterPeer| !matches!(peer, ClusterPeer::Pods(_));
    let is_named = |port: &ClusterPort| matches!(port, ClusterPort::Named { .. });
    if let Outcome::Known(Some(ports)) = ports
        && ports.iter().any(is_named)
        && peers.iter().any(has_no_ports)
    {
        at.error_help(
            "Invalid value: networks/nodes/domainNames peer cannot be set with namedPorts since there are no namedPorts for \
             networks/nodes/domainNames",
            "write the numbers of the ports, or a rule of its own for pods",
        );
    }
}

fn domain_names(at: &Cursor<'_>, action: Option<ClusterAction>) -> Option<Vec<ClusterPeer>> {
    if action.is_some_and(|action| action != ClusterAction::Accept) {
        at.error_help(
            "Forbidden: domainNames may only be specified in rules that accept",
            "deny by networks: a denied name can be reached by address",
        );
    }
    at.unenforced(
        "domainNames are not enforced: the peer matches nothing",
        "accept the addresses by networks; without this peer the rule is enforced as written",
    );
    list(at, |item| {
        let name = item.text()?;
        let Some(name) = domain_name(name) else {
            item.invalid(
                "must be a domain name of two labels or more, or \"*.\" and one",
                "write example.com or *.example.com",
            );
            return None;
        };
        Some(ClusterPeer::DomainName(name))
    })
}

/// Domain name in lower case, without the final dot.
fn domain_name(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let name = text.strip_suffix('.').unwrap_or(&text);
    let bare = name.strip_prefix("*.").unwrap_or(name);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |part: &str| {
        let ends = [part.bytes().next(), part.bytes().next_back()];
        ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
            && part.len() <= 63
            && part.bytes().all(inner)
    };
    let is_name = bare.len() <= 253 && bare.contains('.') && bare.split('.').all(label);
    is_name.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_names_are_lower_case_and_have_two_labels() {
        assert_eq!(domain_name("WWW.Example.com."), Some("www.example.com".to_owned()));
        assert_eq!(domain_name("*.example.com"), Some("*.example.com".to_owned()));
        for text in ["", "com", "*.com", "*", "a..b", "-a.b", "a.b/", "*.*.b.c", "a.*.c"] {
            assert_eq!(domain_name(text), None, "{text}");
        }
    }
}
