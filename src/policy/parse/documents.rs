//! Documents, lists and kinds: selects the parser of each object.

mod deduplicate;
mod unrendered;

use std::collections::HashSet;

use super::cursor::{Cursor, Diagnostics, Fields};
use super::diagnostic::{Diagnostic, Severity};
use super::metadata::{self, Identity, Scope, display_name};
use super::parsed::{Parsed, Skipped};
use super::source::{Location, Source};
use super::tree::{self, Key, Node, Span, Value};
use super::{admin_network_policy, cluster_network_policy, cluster_objects, network_policy, service};
use crate::limits::{DIAGNOSTICS_MAX, OBJECT_BYTES_MAX};
use crate::policy::objects::Object;
use crate::tables::PolicyKind;

/// Kinds whose objects are read alike in another version.
const OTHER_VERSIONS: [(&str, &str); 1] = [("ClusterNetworkPolicy", "policy.networking.k8s.io/v1beta1")];

/// Supported kinds with their version.
const KINDS: [(&str, &str, Scope); 16] = [
    ("NetworkPolicy", "networking.k8s.io/v1", Scope::Namespaced),
    ("ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2", Scope::Cluster),
    ("AdminNetworkPolicy", "policy.networking.k8s.io/v1alpha1", Scope::Cluster),
    ("BaselineAdminNetworkPolicy", "policy.networking.k8s.io/v1alpha1", Scope::Cluster),
    ("Pod", "v1", Scope::Namespaced),
    ("Namespace", "v1", Scope::Cluster),
    ("Node", "v1", Scope::Cluster),
    ("Deployment", "apps/v1", Scope::Namespaced),
    ("StatefulSet", "apps/v1", Scope::Namespaced),
    ("DaemonSet", "apps/v1", Scope::Namespaced),
    ("ReplicaSet", "apps/v1", Scope::Namespaced),
    ("ReplicationController", "v1", Scope::Namespaced),
    ("Job", "batch/v1", Scope::Namespaced),
    ("CronJob", "batch/v1", Scope::Namespaced),
    ("Service", "v1", Scope::Namespaced),
    ("EndpointSlice", "discovery.k8s.io/v1", Scope::Namespaced),
];

/// Parser of manifests, which collects objects and diagnostics.
pub(crate) struct ManifestParser {
    parsed: Parsed,
    errors: Vec<Diagnostic>,
    omitted: usize,
    unambiguous: Severity,
}

impl ManifestParser {
    /// Creates a parser. `unambiguous` is the severity of a value that the API server rejects although its
    /// meaning is unambiguous: a name in capitals, a range that ends beyond the last port. Policy tests use a
    /// warning, because test data of other projects contains such values.
    pub(crate) fn new(unambiguous: Severity) -> ManifestParser {
        ManifestParser { parsed: Parsed::default(), errors: Vec::new(), omitted: 0, unambiguous }
    }

    /// Parses all documents of a text.
    pub(crate) fn source(&mut self, source: &Source) {
        let (nodes, syntax_errors) = tree::parse(source.text(), source.is_json());
        let before = self.errors.len();
        for node in nodes.iter().filter(|node| !node.is_null()) {
            match unrendered::part_of(node, source.name()) {
                Some((message, help)) => {
                    let diagnostics = Diagnostics::new(source, "");
                    Cursor::root(node, &diagnostics).warn(message, help);
                    self.absorb(diagnostics);
                }
                None => self.object(node, source, ""),
            }
        }
        let has_syntax_errors = !syntax_errors.is_empty();
        self.absorb(syntax_diagnostics(source, syntax_errors));
        if let Some(action) = unrendered::template(source, &self.errors[before..], has_syntax_errors) {
            self.errors.truncate(before);
            let ((message, help), diagnostics) = (unrendered::TEMPLATE, Diagnostics::new(source, ""));
            let (message, help) = (message.to_owned(), Some(help.to_owned()));
            diagnostics.add(Severity::Error, action, String::new(), message, help);
            self.absorb(diagnostics);
        }
        self.errors[before..].sort_by_key(|error| error.location.offset());
    }

    /// Parses an object, or the objects of a list. `context` precedes the name of the object in diagnostics.
    pub(crate) fn object(&mut self, node: &Node<'_>, source: &Source, context: &str) {
        self.object_or_item(node, source, context, None);
    }

    /// Adds what another parser has found.
    pub(crate) fn extend(&mut self, other: &ManifestParser) {
        let Parsed { objects, warnings, skipped, ignored_checks } = &other.parsed;
        self.parsed.objects.extend_from_slice(objects);
        self.parsed.skipped.extend_from_slice(skipped);
        self.parsed.ignored_checks.extend_from_slice(ignored_checks);
        self.omitted += other.omitted;
        warnings.iter().chain(&other.errors).for_each(|diagnostic| self.keep(diagnostic.clone()));
    }

    /// Result: all objects, or every error.
    pub(crate) fn finish(mut self) -> Result<Parsed, Vec<Diagnostic>> {
        if self.errors.is_empty() {
            deduplicate::keep_last(&mut self.parsed);
            return Ok(self.parsed);
        }
        note_omitted(&mut self.errors, self.omitted);
        Err(self.errors)
    }

    /// Parses an object. `inherited` is the kind and version of the items of a typed list, which carry none
    /// themselves.
    fn object_or_item(
        &mut self,
        node: &Node<'_>,
        source: &Source,
        context: &str,
        inherited: Option<(&str, &str)>,
    ) {
        let header = |name| node.get(name).and_then(|node| node.text());
        let kind = header("kind").or(inherited.map(|(kind, _)| kind));
        let version = header("apiVersion").or(inherited.map(|(_, version)| version));
        let known = KINDS.iter().find(|(known, ..)| Some(*known) == kind);
        let scope = known.map_or(Scope::Namespaced, |(.., scope)| *scope);
        let name = format!("{context}{}", display_name(node, scope));
        // A field of a newer version in a policy may deny. The cluster writes other objects, and may be newer.
        let is_strict = kind.is_none_or(|kind| is_list(kind) || kind.ends_with("NetworkPolicy"));
        let diagnostics = Diagnostics::new(source, name.as_str())
            .with_unambiguous(self.unambiguous)
            .with_unknown_fields(if is_strict { Severity::Error } else { Severity::Warning });
        let at = Cursor::root(node, &diagnostics);
        if !kind.is_some_and(is_list) {
            if node.span.end - node.span.start > OBJECT_BYTES_MAX {
                at.error_help(
                    format!("the object has more than {OBJECT_BYTES_MAX} bytes"),
                    "split it: the API server stores at most 1.5 MiB of one",
                );
                return self.absorb(diagnostics);
            }
            check_duplicates(&at, true);
        }
        match (kind, version, known) {
            (Some(kind), Some(version), _) if is_list(kind) => {
                self.list(&at, kind, version, source, context);
            }
            (Some(kind), Some(version), Some((_, wanted, _))) if is_of_another_system(version, wanted) => {
                self.pass_over(&at, (kind, version), &name, source);
            }
            (Some(kind), Some(version), Some((_, wanted, scope))) => {
                if version == *wanted || OTHER_VERSIONS.contains(&(kind, version)) {
                    let objects = parse_kind(&at, kind, *scope).into_iter().flatten();
                    let placed = objects.map(|object| (object, Location::new(source, node.span)));
                    self.parsed.objects.extend(placed);
                    if kind.ends_with("NetworkPolicy") || kind == "Service" {
                        self.parsed.ignored_checks.extend(metadata::ignored_checks(&at));
                    }
                } else {
                    wrong_version(&at, kind, version, wanted);
                }
            }
            (Some(kind), Some(version), None) => {
                let kind_at = at.child("kind").unwrap_or_else(|| at.clone());
                if let Some(meant) = misspelt(kind) {
                    kind_at.error_help(format!("unknown kind {kind:?}"), format!("did you mean {meant:?}?"));
                } else {
                    self.pass_over(&at, (kind, version), &name, source);
                }
            }
            _ => missing_header(&at),
        }
        self.absorb(diagnostics);
    }

    /// Passes over an object that this version does not read, with a warning where a reader may take it for another one.
    fn pass_over(&mut self, at: &Cursor<'_>, (kind, version): (&str, &str), name: &str, source: &Source) {
        let kind_at = at.child("kind").unwrap_or_else(|| at.clone());
        let mut made_pods = None;
        let is_known = KINDS.iter().any(|(known, ..)| *known == kind);
        if kind.ends_with("NetworkPolicy") {
            kind_at.warn(
                format!("a {kind} of {version} is another system's: nothing here enforces it"),
                "say the same with a NetworkPolicy or a ClusterNetworkPolicy",
            );
        } else if kind == "Kustomization" {
            kind_at.warn(unrendered::KUSTOMIZATION.0, unrendered::KUSTOMIZATION.1);
        } else if (kind, version) == ("Endpoints", "v1") {
            kind_at.warn(
                "Endpoints are passed over: the backends of a Service are its EndpointSlices",
                "give the EndpointSlices, which a cluster makes of Endpoints too",
            );
        } else if is_known {
            kind_at.warn(
                format!("a {kind} of {version} is another system's: it is passed over"),
                "give the objects of Kubernetes that it makes",
            );
        } else if let Some(labels) = cluster_objects::labels_of_made_pods(at, group(version), kind) {
            made_pods = Some(labels);
            kind_at.warn(
                format!("a {kind} of {version} is passed over: the pods that it makes are unknown here"),
                "give these pods, or a Deployment with their labels and ports",
            );
        }
        let location = Location::new(source, at.node.span);
        let (kind, name) = (kind.to_owned(), name.to_owned());
        self.parsed.skipped.push(Skipped { kind, name, location, made_pods });
    }

    fn list(&mut self, at: &Cursor<'_>, kind: &str, version: &str, source: &Source, context: &str) {
        check_duplicates(at, false);
        let fields = at.fields(&["apiVersion", "items", "kind", "metadata"]);
        let item_kind = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
        for item in fields.items("items") {
            self.object_or_item(item.node, source, context, item_kind.map(|kind| (kind, version)));
        }
    }

    /// Adds the diagnostics of an object.
    pub(crate) fn absorb(&mut self, diagnostics: Diagnostics) {
        let (list, omitted) = diagnostics.into_list();
        self.omitted += omitted;
        list.into_iter().for_each(|diagnostic| self.keep(diagnostic));
    }

    fn keep(&mut self, diagnostic: Diagnostic) {
        let list = match diagnostic.severity {
            Severity::Error => &mut self.errors,
            Severity::Unenforced | Severity::Warning => &mut self.parsed.warnings,
        };
        if list.len() < DIAGNOSTICS_MAX {
            list.push(diagnostic);
        } else {
            self.omitted += 1;
        }
    }
}

/// Adds the number of omitted diagnostics to the last one.
pub(crate) fn note_omitted(errors: &mut [Diagnostic], omitted: usize) {
    if let Some(last) = errors.last_mut().filter(|_| omitted > 0) {
        let more = format!("{omitted} more findings are not shown");
        last.help = Some(last.help.take().map_or_else(|| more.clone(), |help| format!("{help}; {more}")));
    }
}

/// Diagnostics of syntax errors.
pub(crate) fn syntax_diagnostics(source: &Source, syntax_errors: Vec<tree::SyntaxError>) -> Diagnostics {
    let diagnostics = Diagnostics::new(source, "");
    for syntax_error in syntax_errors {
        diagnostics.add(
            Severity::Error,
            syntax_error.span,
            String::new(),
            syntax_error.message,
            syntax_error.help,
        );
    }
    diagnostics
}

/// Tests for `List`, and for lists of the supported kinds.
fn is_list(kind: &str) -> bool {
    kind.strip_suffix("List")
        .is_some_and(|item| item.is_empty() || KINDS.iter().any(|(known, ..)| *known == item))
}

/// Known kind that a name misspells. A policy of a misspelled kind must not be skipped: it would allow flows
/// that it denies. Up to two edits count as a misspelling; more may be the kind of another system
/// (`MultiNetworkPolicy`).
fn misspelt(kind: &str) -> Option<&'static str> {
    KINDS.iter().map(|(known, ..)| *known).find(|known| {
        let is_near = || kind.len() <= 2 * known.len() && strsim::damerau_levenshtein(kind, known) <= 2;
        kind.eq_ignore_ascii_case(known) || known.ends_with("NetworkPolicy") && is_near()
    })
}

/// API group of a version: `apps` of `apps/v1`; empty for the core group.
fn group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// Tests whether a version is of a group of another system. "All domains ending in .k8s.io [...] are reserved" (API
/// conventions of Kubernetes), and a group that resembles the wanted one is a misspelling: neither is passed over, because a
/// policy would not be enforced.
fn is_of_another_system(version: &str, wanted: &str) -> bool {
    let (found, wanted) = (group(version), group(wanted));
    let is_reserved = found.rsplit('.').take(2).eq(["io", "k8s"]);
    // A comparison takes memory for the product of the lengths.
    let resembles = || found.len() <= wanted.len() + 2 && strsim::damerau_levenshtein(found, wanted) <= 2;
    found.contains('.') && !is_reserved && !resembles()
}

fn wrong_version(at: &Cursor<'_>, kind: &str, version: &str, wanted: &str) {
    let at = at.child("apiVersion").unwrap_or_else(|| at.clone());
    at.error_help(
        format!("Unsupported value: {version:?}: a {kind} is read as {wanted}"),
        format!("write \"apiVersion: {wanted}\""),
    );
}

fn missing_header(at: &Cursor<'_>) {
    if !matches!(at.node.value, Value::Mapping(_)) {
        at.error_help(
            format!("Invalid value: a document must be a Kubernetes object, not {}", at.node.type_name()),
            "write apiVersion, kind, metadata and spec",
        );
        return;
    }
    for name in ["apiVersion", "kind"] {
        match at.child(name) {
            None => at.required(name, "a Kubernetes object names its kind and version"),
            Some(at) if at.node.text().is_none() => at.wrong_type("a string"),
            Some(_) => {}
        }
    }
}

/// Objects of a document: two pods for a workload with replicas, else one object.
fn parse_kind(at: &Cursor<'_>, kind: &str, scope: Scope) -> Option<Vec<Object>> {
    let before = at.diagnostics().errors();
    let fields = match kind {
        "EndpointSlice" => at.fields(&service::ENDPOINT_SLICE_FIELDS),
        _ => at.fields(&["apiVersion", "kind", "metadata", "spec", "status"]),
    };
    let identity = metadata::parse(&fields, scope);
    // An object without metadata is parsed for its other errors.
    let is_anonymous = identity.is_none();
    let objects = typed_objects(&fields, identity.unwrap_or_else(Identity::unknown), kind)?;
    (!is_anonymous && at.diagnostics().errors() == before).then_some(objects)
}

fn typed_objects(fields: &Fields<'_>, identity: Identity, kind: &str) -> Option<Vec<Object>> {
    let admin = |kind, identity| {
        admin_network_policy::parse(fields, identity, kind).map(Object::ClusterNetworkPolicy)
    };
    let object = match kind {
        "NetworkPolicy" => Object::NetworkPolicy(network_policy::parse(fields, identity)),
        "ClusterNetworkPolicy" => {
            Object::ClusterNetworkPolicy(cluster_network_policy::parse(fields, identity)?)
        }
        "AdminNetworkPolicy" => admin(PolicyKind::AdminNetworkPolicy, identity)?,
        "BaselineAdminNetworkPolicy" => admin(PolicyKind::BaselineAdminNetworkPolicy, identity)?,
        "Pod" => Object::Pod(cluster_objects::pod(fields, identity)),
        "Namespace" => Object::Namespace(cluster_objects::namespace(fields, identity)),
        "Node" => Object::Node(cluster_objects::node(fields, identity)),
        "Service" => Object::Service(service::service(fields, identity)?),
        "EndpointSlice" => Object::EndpointSlice(service::endpoint_slice(fields, identity)?),
        _ => {
            let pods = cluster_objects::workload(fields, identity, kind)?;
            return Some(pods.into_iter().map(Object::Pod).collect());
        }
    };
    Some(vec![object])
}

/// Reports duplicate keys of a mapping, with `deep` at any depth: one of the two would silently win.
pub(crate) fn check_duplicates(at: &Cursor<'_>, deep: bool) {
    let Value::Mapping(entries) = &at.node.value else {
        if deep && matches!(at.node.value, Value::Sequence(_)) {
            at.items()
                .iter()
                .filter(|item| has_duplicates(item.node))
                .for_each(|item| check_duplicates(item, deep));
        }
        return;
    };
    let below = || entries.iter().any(|(_, node)| has_duplicates(node));
    if !(has_double_key(entries) || deep && below()) {
        return;
    }
    let mut seen = HashSet::new();
    for (name, span, child) in at.entries() {
        if !seen.insert(name) {
            duplicate(&child, name, span);
        }
        if deep {
            check_duplicates(&child, deep);
        }
    }
}

/// Tests for duplicate keys at any depth, without the cost of paths.
fn has_duplicates(node: &Node<'_>) -> bool {
    match &node.value {
        Value::Sequence(items) => items.iter().any(has_duplicates),
        Value::Mapping(entries) => {
            has_double_key(entries) || entries.iter().any(|(_, node)| has_duplicates(node))
        }
        _ => false,
    }
}

fn has_double_key(entries: &[(Key<'_>, Node<'_>)]) -> bool {
    /// Number of keys up to which a pairwise comparison is cheaper than hashing.
    const FEW: usize = 12;
    if entries.len() > FEW {
        let mut seen = HashSet::new();
        return !entries.iter().all(|(key, _)| seen.insert(&*key.name));
    }
    let is_double = |at: usize| entries[..at].iter().any(|(key, _)| key.name == entries[at].0.name);
    (1..entries.len()).any(is_double)
}

fn duplicate(at: &Cursor<'_>, name: &str, span: Span) {
    let message = format!("the key {name:?} stands here twice");
    let help = Some("remove one of them".to_owned());
    at.diagnostics().add(Severity::Error, span, at.path.to_string(), message, help);
}
