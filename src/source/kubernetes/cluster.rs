//! Objects of the cluster as far as they are known, their compiler, and the resolver of their Services.

mod acl_rows;
mod attached;
mod audit;
mod generations;
mod issues;
mod namespaces;
mod prefixes;
mod report;
mod services;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use self::acl_rows::AclRows;
use self::attached::Attached;
use self::audit::Audit;
use self::generations::Generations;
use self::namespaces::Namespaces;
use self::prefixes::Prefixes;
use self::services::ClusterServices;
use super::kinds::{KINDS, Kind};
use super::message::{Event, Message};
use super::object::{Entry, Issue, NodeNetwork};
use super::parse::Key;
use super::target::{Attachments, Target};
use crate::policy::objects::Object;
use crate::policy::{Change, Compiler, ObjectName, Options};
use crate::tables::{PodName, PolicyKind, RuleTables, TablesDiff};

/// Places of kinds in [`KINDS`].
const NAMESPACE: usize = 0;
const NETWORK_POLICY: usize = 2;
const POD: usize = 6;

/// Objects of a cluster.
pub(super) struct Cluster {
    options: Options,
    kinds: Vec<KindState>,
    /// Objects that are not enforced as written, by kind.
    issues: BTreeMap<(usize, Key), Issue>,
    nodes: BTreeMap<String, NodeNetwork>,
    compiler: Option<Compiler>,
    services: ClusterServices,
    audit: Audit,
    /// Changes that the compiler does not have yet: the last one of each object.
    changes: BTreeMap<ObjectName, Change>,
    /// New and changed pods and namespaces, while policies that may select them are not followed.
    held: BTreeMap<(usize, Key), Entry>,
    namespaces: Namespaces,
    attached: Attached,
    prefixes: Prefixes,
    acl_rows: AclRows,
    nodes_changed: bool,
    /// Policies that have conditions.
    generations: Generations,
    /// Objects with a new issue.
    fresh_issues: BTreeSet<(usize, Key)>,
}

/// State of one kind.
#[derive(Default)]
struct KindState {
    /// Known objects, with the number of the last snapshot that had them.
    known: HashMap<Key, u32>,
    snapshot: u32,
    /// Objects of a snapshot that is not complete.
    pending: Option<Vec<Event>>,
    /// Whether all objects have been listed, or the server does not have the kind.
    is_listed: bool,
    /// Whether objects may have changed since they were last followed.
    is_stale: bool,
    away: Option<(SystemTime, String)>,
}

/// Change of the tables.
pub(super) enum Step {
    /// First tables.
    Full,
    /// Difference to the tables before.
    Difference(TablesDiff),
}

impl Cluster {
    /// Creates a cluster without objects, as seen from a node. Its tables have `acl_entries_max` rows at most; policies that
    /// are closed for that and change are tried again after `reopen`.
    pub(super) fn new(node: Option<String>, acl_entries_max: usize, reopen: Duration) -> Cluster {
        Cluster {
            services: ClusterServices::new(node.clone()),
            attached: Attached::new(node.clone()),
            options: Options { node },
            kinds: KINDS.iter().map(|_| KindState::default()).collect(),
            issues: BTreeMap::new(),
            nodes: BTreeMap::new(),
            compiler: None,
            audit: Audit::default(),
            changes: BTreeMap::new(),
            held: BTreeMap::new(),
            namespaces: Namespaces::default(),
            prefixes: Prefixes::default(),
            acl_rows: AclRows::new(acl_entries_max, reopen),
            nodes_changed: false,
            generations: Generations::default(),
            fresh_issues: BTreeSet::new(),
        }
    }

    /// Takes a message of the follower of a kind.
    pub(super) fn take(&mut self, index: usize, message: Message) {
        let state = &mut self.kinds[index];
        match message {
            Message::Begin => {
                state.snapshot = state.snapshot.wrapping_add(1);
                state.pending = Some(Vec::new());
            }
            Message::Events(events) => match &mut state.pending {
                Some(pending) => pending.extend(events),
                None => events.into_iter().for_each(|event| self.apply(index, event)),
            },
            Message::End => self.end_snapshot(index),
            Message::Absent => {
                if !state.known.is_empty() {
                    let (name, objects) = (KINDS[index].name, state.known.len());
                    tracing::warn!(
                        kind = name,
                        objects,
                        "the API server no longer has the kind: its objects are removed"
                    );
                }
                state.snapshot = state.snapshot.wrapping_add(1);
                state.pending = Some(Vec::new());
                self.end_snapshot(index);
                self.kinds[index].away = None;
            }
            Message::Following => {
                state.is_stale = false;
                if let Some((since, _)) = state.away.take() {
                    let seconds = since.elapsed().unwrap_or_default().as_secs();
                    tracing::info!(kind = KINDS[index].name, "followed again after {seconds} s");
                }
            }
            Message::Away(reason) => {
                if state.away.as_ref().is_none_or(|(_, known)| *known != reason) {
                    tracing::warn!(kind = KINDS[index].name, "{reason}");
                }
                let since = state.away.take().map_or_else(SystemTime::now, |(since, _)| since);
                (state.away, state.is_stale) = (Some((since, reason)), true);
            }
        }
    }

    /// Compares a complete snapshot with the known objects.
    fn end_snapshot(&mut self, index: usize) {
        let Some(pending) = self.kinds[index].pending.take() else { return };
        self.kinds[index].is_stale = false;
        pending.into_iter().for_each(|event| self.apply(index, event));
        let state = &mut self.kinds[index];
        let snapshot = state.snapshot;
        let gone: Vec<Key> =
            state.known.iter().filter(|(_, seen)| **seen != snapshot).map(|(key, _)| key.clone()).collect();
        state.is_listed = true;
        gone.into_iter().for_each(|key| self.apply(index, Event::Delete(key)));
    }

    fn apply(&mut self, index: usize, event: Event) {
        match event {
            Event::Upsert(entry) => {
                let state = &mut self.kinds[index];
                state.known.insert(entry.key.clone(), state.snapshot);
                if is_selected(&KINDS[index]) && self.holds_selected() {
                    self.held.insert((index, entry.key.clone()), entry);
                } else {
                    // An older one must not follow it.
                    self.held.remove(&(index, entry.key.clone()));
                    self.upsert(index, entry);
                }
            }
            Event::Delete(key) => {
                self.kinds[index].known.remove(&key);
                self.held.remove(&(index, key.clone()));
                self.nodes_changed |= KINDS[index].name == "Node" && self.nodes.remove(&key.name).is_some();
                self.generations.remove(index, &key);
                self.set_issue(index, &key, None);
                match KINDS[index].name {
                    "Namespace" => return self.namespaces.removed(&key.name),
                    "Pod" => self.namespaces.pod_removed(&key),
                    "NetworkPolicy" => {
                        self.prefixes.remove(&key);
                        self.acl_rows.remove(&key);
                    }
                    _ => {}
                }
                self.change(index, &key, None);
            }
        }
    }

    fn upsert(&mut self, index: usize, entry: Entry) {
        let kind = KINDS[index].name;
        // All pods are there before the first tables, and wait for no namespace until then.
        if kind == "Pod" && self.compiler.is_some() && !self.namespaces.has(&entry.key.namespace) {
            return self.namespaces.hold(entry);
        }
        let entry = if kind == "NetworkPolicy" {
            self.acl_rows.note_version(&entry);
            self.acl_rows.admit(self.prefixes.admit(entry))
        } else {
            entry
        };
        self.enforce(index, entry);
    }

    /// Passes an object on to the compiler.
    fn enforce(&mut self, index: usize, entry: Entry) {
        let kind = KINDS[index].name;
        self.generations.note(index, &entry);
        let Entry { key, object, node, issue, .. } = entry;
        if let Some(network) = node {
            self.nodes_changed |= self.nodes.get(&key.name) != Some(&network);
            self.nodes.insert(key.name.clone(), network);
        }
        self.set_issue(index, &key, issue);
        if kind == "Namespace" {
            self.namespaces.found(&key.name);
        }
        if object.is_none() && keeps_readable(kind) {
            return;
        }
        self.change(index, &key, object);
        if kind == "Namespace" {
            let pods = self.namespaces.labelled(&key.name);
            pods.into_iter().for_each(|pod| self.upsert(POD, pod));
        }
    }

    /// Takes the pods of unknown namespaces out of the first changes.
    fn hold_first_pods(&mut self) {
        let namespaces = &mut self.namespaces;
        self.changes.retain(|name, change| {
            let (ObjectName::Pod(pod), Change::Upsert(object)) = (name, &*change) else { return true };
            let is_known = namespaces.has(&pod.namespace);
            if !is_known {
                let key = Key { namespace: pod.namespace.clone(), name: pod.name.clone() };
                let object = Some(object.clone());
                namespaces.hold(Entry { key, object, node: None, version: None, issue: None });
            }
            is_known
        });
    }

    /// Removes namespaces whose last pod has gone.
    fn remove_namespaces(&mut self) {
        for name in self.namespaces.gone(self.kinds[POD].known.keys()) {
            self.change(NAMESPACE, &Key { namespace: String::new(), name }, None);
        }
    }

    /// Notes a change for the compiler: an object, or its removal.
    fn change(&mut self, index: usize, key: &Key, object: Option<Object>) {
        let Some(name) = object_name(&KINDS[index], key) else { return };
        let change = object.map_or_else(|| Change::Remove(name.clone()), Change::Upsert);
        let change = self.attached.complete(change);
        let Some(change) = self.services.take(change) else { return };
        if self.compiler.is_none() && matches!(change, Change::Remove(_)) {
            self.changes.remove(&name);
        } else {
            self.changes.insert(name, change);
        }
    }

    /// Notes the pods that the switch has attached. A pod without addresses in the API has those.
    pub(super) fn note_attached(&mut self, attachments: Attachments) {
        self.attached.note(attachments);
    }

    /// Whether there may be policies, or labels of namespaces that they select, which are not known here.
    fn has_stale_policies(&self) -> bool {
        KINDS.iter().zip(&self.kinds).any(|(kind, state)| state.is_stale && selects(kind))
    }

    /// Whether objects that policies select are held. They leave together, in [`Cluster::compile`]: one that overtakes
    /// another would be seen with labels of another time.
    fn holds_selected(&self) -> bool {
        self.compiler.is_some() && (!self.held.is_empty() || self.has_stale_policies())
    }

    /// Compiles the changes. `None` without a change of the tables, and before the first ones while a kind is not
    /// listed or policies are not followed.
    pub(super) fn compile(&mut self) -> Option<Step> {
        let is_listed = |name: &str| {
            KINDS.iter().zip(&self.kinds).any(|(kind, state)| kind.name == name && state.is_listed)
        };
        let has_services = ["Service", "EndpointSlice", "Node"].into_iter().all(is_listed);
        self.services.apply(has_services);
        let has_stale_policies = self.has_stale_policies();
        if self.compiler.is_none() && (!self.is_listed() || has_stale_policies) {
            return None;
        }
        if !has_stale_policies {
            for ((index, _), entry) in std::mem::take(&mut self.held) {
                self.upsert(index, entry);
            }
            for pod in self.attached.changed() {
                self.changes.insert(ObjectName::Pod(pod.name.clone()), Change::Upsert(Object::Pod(pod)));
            }
        }
        self.remove_namespaces();
        while let Some(policy) = self.prefixes.next() {
            self.upsert(NETWORK_POLICY, policy);
        }
        let opened = self.compiler.as_ref().map(|compiler| self.acl_rows.reopen(compiler.tables()));
        opened.into_iter().flatten().for_each(|policy| self.enforce(NETWORK_POLICY, policy));
        if self.compiler.is_none() {
            self.hold_first_pods();
        }
        let changes: Vec<Change> = std::mem::take(&mut self.changes).into_values().collect();
        self.audit.take(&changes);
        // Policies in audit mode are not enforced.
        let changes = changes.into_iter().map(Change::enforced);
        if let Some(compiler) = &mut self.compiler {
            let difference = compiler.apply_all(changes);
            return (!difference.is_empty()).then(|| self.bounded(Step::Difference(difference)));
        }
        let mut compiler = Compiler::new(self.options.clone());
        drop(compiler.apply_all(changes));
        self.compiler = Some(compiler);
        Some(self.bounded(Step::Full))
    }

    /// Closes namespaces until the ACL tables have no more rows than a switch takes. Returns the change of the tables.
    fn bounded(&mut self, step: Step) -> Step {
        let mut is_closed = false;
        while let Some(compiler) = &mut self.compiler {
            let issue_of = |key: &Key| self.issues.get(&(NETWORK_POLICY, key.clone())).cloned();
            let Some(substitutes) = self.acl_rows.close_largest(compiler, issue_of) else { break };
            is_closed = true;
            let objects = substitutes.iter().filter_map(|entry| entry.object.clone());
            let changes: Vec<Change> = objects.map(Change::Upsert).collect();
            self.audit.take(&changes);
            drop(compiler.apply_all(changes));
            for Entry { key, issue, .. } in substitutes {
                self.set_issue(NETWORK_POLICY, &key, issue);
            }
        }
        if is_closed { Step::Full } else { step }
    }

    /// Tables, once all kinds are listed.
    pub(super) fn tables(&self) -> Option<&RuleTables> {
        self.compiler.as_ref().map(Compiler::tables)
    }

    /// Whether all kinds are listed on which policy depends.
    pub(super) fn is_listed(&self) -> bool {
        let mut kinds = KINDS.iter().zip(&self.kinds);
        kinds.all(|(kind, state)| state.is_listed || matches!(kind.name, "Service" | "EndpointSlice"))
    }

    /// Services and their publication.
    pub(super) fn services(&mut self) -> &mut ClusterServices {
        &mut self.services
    }

    /// Loads the policies in audit mode beside the tables that the switch has.
    pub(super) fn publish_audit(&mut self, target: &mut dyn Target, interval: Duration) {
        self.compiler.iter().for_each(|compiler| self.audit.publish(compiler, target, interval));
    }

    /// Notes that the switch has got all tables and Services anew.
    pub(super) fn forget_publications(&mut self) {
        self.services.forget();
        self.audit.forget();
    }

    /// Number of objects and of policies.
    pub(super) fn counts(&self) -> (usize, usize) {
        let policies = KINDS.iter().zip(&self.kinds).filter(|(kind, _)| kind.name.ends_with("NetworkPolicy"));
        (
            self.kinds.iter().map(|kind| kind.known.len()).sum(),
            policies.map(|(_, kind)| kind.known.len()).sum(),
        )
    }

    /// Networks of the nodes, if they have changed since the last call.
    pub(super) fn changed_nodes(&mut self) -> Option<&BTreeMap<String, NodeNetwork>> {
        let is_listed =
            KINDS.iter().zip(&self.kinds).any(|(kind, state)| kind.name == "Node" && state.is_listed);
        (is_listed && std::mem::take(&mut self.nodes_changed)).then_some(&self.nodes)
    }

    /// Networks of the nodes.
    pub(super) fn nodes(&self) -> &BTreeMap<String, NodeNetwork> {
        &self.nodes
    }
}

/// Whether policies select objects of a kind.
fn is_selected(kind: &Kind) -> bool {
    matches!(kind.name, "Pod" | "Namespace")
}

/// Whether the last readable version of an object stays while the current one cannot be read: the compiler takes an
/// absent object for one without labels.
fn keeps_readable(kind: &str) -> bool {
    matches!(kind, "Namespace" | "Node")
}

/// Whether a pod may be open without the objects of a kind: policies, and namespaces, whose labels policies select.
fn selects(kind: &Kind) -> bool {
    kind.name == "Namespace" || kind.name.ends_with("NetworkPolicy")
}

/// Kind and name for messages.
fn shown(index: usize, key: &Key) -> String {
    let namespace = if key.namespace.is_empty() { String::new() } else { format!("{}/", key.namespace) };
    let text = format!("{} {namespace}{}", KINDS[index].name, key.name);
    crate::printable::line(&text).into_owned()
}

/// Name of an object for the compiler.
fn object_name(kind: &Kind, key: &Key) -> Option<ObjectName> {
    let Key { namespace, name } = key.clone();
    let cluster = |kind| ObjectName::ClusterNetworkPolicy { kind, name: key.name.clone() };
    Some(match kind.name {
        "Namespace" => ObjectName::Namespace(name),
        "Node" => ObjectName::Node(name),
        "Pod" => ObjectName::Pod(PodName::new(namespace, name)),
        "NetworkPolicy" => ObjectName::NetworkPolicy { namespace, name },
        "Service" => ObjectName::Service { namespace, name },
        "EndpointSlice" => ObjectName::EndpointSlice { namespace, name },
        "ClusterNetworkPolicy" => cluster(PolicyKind::ClusterNetworkPolicy),
        "AdminNetworkPolicy" => cluster(PolicyKind::AdminNetworkPolicy),
        "BaselineAdminNetworkPolicy" => cluster(PolicyKind::BaselineAdminNetworkPolicy),
        _ => return None,
    })
}

#[cfg(test)]
#[path = "cluster/tests.rs"]
mod tests;
