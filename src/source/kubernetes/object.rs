//! Objects of the API: a filtered text becomes a validated object, or the reason why it is none.

use std::cell::RefCell;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::closed::closed;
use super::filter::Piece;
use super::kinds::Kind;
use super::parse::{Key, Readable, parse};
use crate::limits::OBJECT_BYTES_MAX;
use crate::policy::objects::{NetworkPolicy, Object, Peer, Peers};
use crate::printable;

/// Longest name that an object may have (RFC 1123 subdomain).
const NAME_BYTES_MAX: usize = 253;
/// Most prefixes in the `ipBlock`s of a `NetworkPolicy`: less than a hundredth of those that the tables may have.
const POLICY_PREFIXES_MAX: usize = 10_000;
/// Annotation of the mode of a policy.
const MODE: &str = "palisade.dev/mode";
/// Longest message about one object, in characters.
const MESSAGE_CHARS_MAX: usize = 600;

/// Object of the API.
#[derive(Debug)]
pub(super) struct Entry {
    /// Name with its namespace.
    pub(super) key: Key,
    /// Object for the compiler. `None` for one that cannot be read and that no pod depends on.
    pub(super) object: Option<Object>,
    /// Addresses and prefixes of a node.
    pub(super) node: Option<NodeNetwork>,
    /// Version of a policy for which there may be no room in the tables, or that has conditions.
    pub(super) version: Option<Box<Version>>,
    /// Reason why it is not enforced as written.
    pub(super) issue: Option<Box<Issue>>,
}

/// Version of an object, for events about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_field_names)] // The fields are those of the API.
pub(super) struct Version {
    /// `metadata.uid`.
    pub(super) uid: String,
    /// `metadata.resourceVersion`.
    pub(super) resource_version: String,
    /// `metadata.generation`: number of the version of its `spec`.
    pub(super) generation: i64,
    /// Version of the API in which it was read.
    pub(super) api: &'static str,
}

/// Reason why an object is not enforced as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    /// Version that has it.
    pub(super) version: Version,
    /// Fields and reasons.
    pub(super) message: String,
    /// Consequence.
    pub(super) consequence: String,
}

/// Network of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeNetwork {
    /// `spec.podCIDRs`.
    pub(super) prefixes: Vec<IpNet>,
    /// Addresses of type `InternalIP`, in order.
    pub(super) addresses: Vec<IpAddr>,
}

/// `metadata` of an object.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default, rename = "resourceVersion")]
    pub(super) resource_version: String,
    #[serde(default)]
    generation: i64,
    #[serde(default)]
    pub(super) annotations: std::collections::BTreeMap<String, String>,
}

/// Text has no name, so that nothing can be said about its object.
#[derive(Debug, thiserror::Error)]
#[error("an object of kind {kind} has no readable metadata.name")]
pub(super) struct Nameless {
    kind: &'static str,
}

/// Reads an object of a version of the API.
pub(super) fn entry(kind: &'static Kind, api: &'static str, piece: &Piece) -> Result<Entry, Nameless> {
    entry_by(kind, api, piece, parse)
}

/// Reads an object with a parser.
fn entry_by(
    kind: &'static Kind,
    api: &'static str,
    piece: &Piece,
    parse: impl Fn(&Kind, &str) -> Result<Readable, String>,
) -> Result<Entry, Nameless> {
    let metadata = metadata_of(&piece.text).filter(|metadata| !metadata.name.is_empty());
    let metadata = metadata.ok_or(Nameless { kind: kind.name })?;
    let key = key_of(&metadata);
    let name_is_too_long = metadata.name.len() > NAME_BYTES_MAX || metadata.namespace.len() > NAME_BYTES_MAX;
    let outcome = if piece.is_cut {
        Err(format!("it has more than {OBJECT_BYTES_MAX} bytes"))
    } else if name_is_too_long {
        Err(format!("its name has more than {NAME_BYTES_MAX} bytes"))
    } else {
        guarded(|| parse(kind, &piece.text))
            .unwrap_or_else(Err)
            .and_then(|(object, unenforced)| Ok((bounded(object)?, unenforced)))
    };
    let node = (kind.name == "Node" && !piece.is_cut).then(|| network_of(&piece.text));
    let version = || Version {
        uid: printable::line(&metadata.uid).into_owned(),
        resource_version: metadata.resource_version.clone(),
        generation: metadata.generation,
        api,
    };
    let issue = |message: &str, consequence| {
        let message = printable::line(&printable::cut(message, MESSAGE_CHARS_MAX)).into_owned();
        Box::new(Issue { version: version(), message, consequence })
    };
    Ok(match outcome {
        Ok((object, unenforced)) => {
            let may_be_closed = matches!(&object, Object::NetworkPolicy(policy) if !policy.audited);
            let version = (may_be_closed || kind.has_conditions()).then(|| Box::new(version()));
            let issue = unenforced.map(|message| issue(&message, "all else is enforced".to_owned()));
            Entry { key, object: Some(object), node, version, issue }
        }
        Err(message) => {
            let (object, consequence) = if is_audited(kind, &metadata) {
                (None, "it is in audit mode, and denies nothing".to_owned())
            } else {
                let substitute = guarded(|| closed(kind, &key, &piece.text));
                // Without its text nothing is read of it.
                substitute.unwrap_or_else(|_| closed(kind, &key, ""))
            };
            Entry { key, object, node, version: None, issue: Some(issue(&message, consequence)) }
        }
    })
}

/// Refuses a policy of a namespace with so many prefixes that some of them fill the tables of the switch.
fn bounded(object: Object) -> Result<Object, String> {
    let Object::NetworkPolicy(policy) = &object else { return Ok(object) };
    let prefixes = prefixes_of(policy);
    if prefixes <= POLICY_PREFIXES_MAX {
        return Ok(object);
    }
    Err(format!("it has {prefixes} prefixes in its ipBlocks; {POLICY_PREFIXES_MAX} are possible"))
}

/// Number of prefixes in the `ipBlock`s of a policy.
pub(super) fn prefixes_of(policy: &NetworkPolicy) -> usize {
    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
    let peers = rules.flat_map(|rule| match &rule.peers {
        Peers::Any(peers) => peers.as_slice(),
        Peers::Everyone => &[],
    });
    peers
        .map(|peer| match peer {
            Peer::IpBlock(block) => 1 + block.except.len(),
            Peer::Pods { .. } => 0,
        })
        .sum()
}

/// Result of a function, or the message of its panic: an object that the parser fails on stops no other.
fn guarded<T>(function: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(function)).map_err(|panic| {
        let message = crate::threads::message(panic.as_ref());
        format!("internal error of the parser, please report it with the object: {message}")
    })
}

/// Tests for a policy in audit mode, which is not enforced even where it cannot be read.
fn is_audited(kind: &Kind, metadata: &Metadata) -> bool {
    let mode = metadata.annotations.get(MODE).map(String::as_str);
    kind.name.ends_with("NetworkPolicy") && mode == Some("audit")
}

/// Name of the object of a text.
pub(super) fn key(piece: &Piece) -> Option<Key> {
    metadata_of(&piece.text).filter(|metadata| !metadata.name.is_empty()).map(|metadata| key_of(&metadata))
}

/// Name for maps and messages: of bounded length, different for different objects.
fn key_of(metadata: &Metadata) -> Key {
    let bounded = |text: &str| {
        if text.len() <= NAME_BYTES_MAX {
            return text.to_owned();
        }
        // FNV-1a, so that the name is the same after a restart.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{}-{hash:016x}", &text[..text.floor_char_boundary(64)])
    };
    Key { namespace: bounded(&metadata.namespace), name: bounded(&metadata.name) }
}

/// `metadata` of a text that may be cut behind it.
pub(super) fn metadata_of(text: &str) -> Option<Metadata> {
    let found = RefCell::new(None);
    // The error of a cut text comes after its metadata.
    let _ = FindMetadata(&found).deserialize(&mut serde_json::Deserializer::from_str(text));
    found.into_inner()
}

struct FindMetadata<'f>(&'f RefCell<Option<Metadata>>);

impl<'de> DeserializeSeed<'de> for FindMetadata<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FindMetadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match &*key {
                "metadata" => *self.0.borrow_mut() = Some(map.next_value()?),
                // The object of an event of a watch.
                "object" => map.next_value_seed(FindMetadata(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Network of a node. Values that cannot be read are left out.
fn network_of(text: &str) -> NodeNetwork {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Node {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        #[serde(rename = "podCIDR")]
        pod_cidr: String,
        #[serde(rename = "podCIDRs")]
        pod_cidrs: Vec<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        addresses: Vec<Address>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Address {
        r#type: String,
        address: String,
    }
    let Node { spec, status } = serde_json::from_str(text).unwrap_or_default();
    let prefixes = if spec.pod_cidrs.is_empty() { vec![spec.pod_cidr] } else { spec.pod_cidrs };
    let internal = status.addresses.iter().filter(|address| address.r#type == "InternalIP");
    NodeNetwork {
        prefixes: prefixes
            .iter()
            .filter_map(|text| text.parse::<IpNet>().ok())
            .map(|net| net.trunc())
            .collect(),
        addresses: internal.filter_map(|address| address.address.parse().ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::KINDS;
    use super::*;
    use crate::policy::objects::{ClusterAction, NetworkPolicy, Tier};

    fn read(kind: &str, spec: &str) -> Entry {
        let kind = KINDS.iter().find(|found| found.name == kind).unwrap();
        let namespace = if kind.name == "NetworkPolicy" { r#","namespace":"shop""# } else { "" };
        let text = format!(r#"{{"metadata":{{"name":"default"{namespace}}},"spec":{spec}}}"#);
        entry(kind, kind.versions[0], &Piece { text, is_cut: false, is_item: true }).unwrap()
    }

    fn network(spec: &str) -> (NetworkPolicy, String) {
        let entry = read("NetworkPolicy", spec);
        let Some(Object::NetworkPolicy(policy)) = entry.object else { panic!("{spec}") };
        (policy, entry.issue.map(|issue| issue.consequence).unwrap_or_default())
    }

    #[test]
    fn a_direction_that_cannot_be_read_allows_nothing_and_the_other_stays() {
        let egress = r#""egress":[{"ports":[{"port":53,"protocol":"UDP"}]}]"#;
        let (policy, said) = network(&format!(
            r#"{{"podSelector":{{"matchLabels":{{"a":"b"}}}},"ingress":[{{"fromService":"x"}}],{egress}}}"#
        ));
        assert_eq!(said, "it allows the pods that it selects no ingress");
        assert_eq!(policy.ingress, Some(vec![]));
        assert_eq!(policy.egress.unwrap().len(), 1);
        assert_eq!(policy.pod_selector.requirements.len(), 1);
        assert_eq!((policy.namespace.as_str(), policy.name.as_str()), ("shop", "default"));
    }

    #[test]
    fn an_unknown_field_of_the_spec_closes_both_directions_that_it_isolates() {
        let (policy, said) = network(r#"{"podSelector":{},"newField":1,"ingress":[{}]}"#);
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), None));
        assert_eq!(said, "it allows the pods that it selects no ingress");
        let (policy, _) = network(r#"{"podSelector":{},"policyTypes":["Forward"],"ingress":[{}]}"#);
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
    }

    #[test]
    fn an_unreadable_selector_closes_the_namespace() {
        for spec in [r#"{"podSelector":{"matchCel":"x"},"ingress":[{}]}"#, "[]", r#"{"ingress":[{}],"x":1}"#]
        {
            let (policy, said) = network(spec);
            assert!(policy.pod_selector.is_everything(), "{spec}");
            assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])), "{spec}");
            assert_eq!(said, "it allows all pods of namespace shop no ingress and egress");
        }
    }

    #[test]
    fn a_cluster_policy_denies_where_it_cannot_be_read() {
        let spec = r#"{"priority":7,"subject":{"namespaces":{}},"ingress":[{"action":"Log","from":[{"namespaces":{}}]}]}"#;
        let entry = read("AdminNetworkPolicy", spec);
        let Some(Object::ClusterNetworkPolicy(policy)) = entry.object else { panic!() };
        assert_eq!((policy.priority, policy.tier), (7, Tier::Admin));
        assert_eq!(policy.ingress[0].action, ClusterAction::Deny);
        assert_eq!(policy.egress, []);
        let entry = read("ClusterNetworkPolicy", r#"{"tier":"Admin","priority":7,"subject":{"x":{}}}"#);
        let Some(Object::ClusterNetworkPolicy(policy)) = entry.object else { panic!() };
        assert_eq!((policy.priority, policy.ingress.len(), policy.egress.len()), (0, 1, 1));
        assert_eq!(entry.issue.unwrap().consequence, "it denies all pods all ingress and egress");
        let entry = read("BaselineAdminNetworkPolicy", r#"{"subject":{"namespaces":{}},"egress":[{}]}"#);
        let Some(Object::ClusterNetworkPolicy(policy)) = entry.object else { panic!() };
        assert_eq!((policy.tier, policy.egress.len(), policy.ingress.len()), (Tier::Baseline, 1, 0));
    }

    #[test]
    fn a_part_of_a_policy_that_is_not_enforced_is_told_and_the_rest_is_enforced() {
        let names = r#"{"action":"Accept","to":[{"domainNames":["example.com"]}]}"#;
        let deny = r#"{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}"#;
        for (rule, says) in [
            (
                names,
                "spec.egress[0].to[0].domainNames: domainNames are not enforced: the peer matches nothing",
            ),
            (r#"{"action":"Accept","to":[{"planets":{}}]}"#, "spec.egress[0].to[0]: unknown kind of peer"),
        ] {
            let spec = format!(
                r#"{{"tier":"Admin","priority":7,"subject":{{"namespaces":{{}}}},"egress":[{rule},{deny}]}}"#
            );
            let entry = read("ClusterNetworkPolicy", &spec);
            let Some(Object::ClusterNetworkPolicy(policy)) = entry.object else { panic!() };
            assert_eq!(policy.egress[1].action, ClusterAction::Deny);
            let issue = entry.issue.unwrap();
            assert!(issue.message.starts_with(says), "{}", issue.message);
            assert_eq!(issue.consequence, "all else is enforced");
        }
    }

    #[test]
    fn of_many_parts_that_are_not_enforced_the_first_are_named() {
        let rule = r#"{"action":"Accept","to":[{"domainNames":["example.com"]}]}"#;
        let rules = [rule; 6].join(",");
        let spec =
            format!(r#"{{"tier":"Admin","priority":7,"subject":{{"namespaces":{{}}}},"egress":[{rules}]}}"#);
        let issue = read("ClusterNetworkPolicy", &spec).issue.unwrap();
        assert!(issue.message.ends_with("; and 2 more"), "{}", issue.message);
    }

    #[test]
    fn a_policy_with_too_many_prefixes_is_closed() {
        let spec = |count: usize| {
            let block = r#"{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}"#;
            format!(r#"{{"podSelector":{{}},"ingress":[{{"from":[{}]}}]}}"#, vec![block; count].join(","))
        };
        let (policy, said) = network(&spec(POLICY_PREFIXES_MAX / 2));
        assert_eq!((policy.ingress.unwrap().len(), said.as_str()), (1, ""));
        let (policy, said) = network(&spec(POLICY_PREFIXES_MAX / 2 + 1));
        assert_eq!(policy.ingress, Some(vec![]));
        assert_eq!(said, "it allows the pods that it selects no ingress and egress");
    }

    #[test]
    fn an_object_that_the_parser_fails_on_is_closed() {
        let kind = KINDS.iter().find(|found| found.name == "NetworkPolicy").unwrap();
        let text = r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"podSelector":{},"ingress":[{}]}}"#;
        let piece = Piece { text: text.to_owned(), is_cut: false, is_item: true };
        let entry = entry_by(kind, kind.versions[0], &piece, |_, _| panic!("index out of bounds")).unwrap();
        let Some(Object::NetworkPolicy(policy)) = entry.object else { panic!() };
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
        assert!(entry.issue.unwrap().message.contains("internal error of the parser"));
    }

    #[test]
    fn a_cut_text_has_its_name_and_its_pods_are_closed() {
        let kind = KINDS.iter().find(|found| found.name == "NetworkPolicy").unwrap();
        let text =
            r#"{"metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"podSelector":{},"ingress":[{"fr"#;
        let piece = Piece { text: text.to_owned(), is_cut: true, is_item: true };
        let entry = entry(kind, kind.versions[0], &piece).unwrap();
        assert_eq!((entry.key.namespace.as_str(), entry.key.name.as_str()), ("n", "a"));
        let Some(Object::NetworkPolicy(policy)) = entry.object else { panic!() };
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
    }
}
