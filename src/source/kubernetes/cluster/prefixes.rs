//! Bounds on the prefixes in the `ipBlock`s of the `NetworkPolicies` of a namespace, and of all of them.

use std::collections::{BTreeMap, HashMap};

use crate::policy::objects::{AssignedMetadata, NetworkPolicy, Object};
use crate::source::kubernetes::object::{Entry, Issue, prefixes_of};
use crate::source::kubernetes::parse::Key;

/// Most prefixes of a namespace's policies.
const NAMESPACE_PREFIXES_MAX: usize = 20_000;
/// Most prefixes of all policies: a quarter of those that the tables may have.
const PREFIXES_MAX: usize = 250_000;

/// Prefixes of the policies that are enforced as written, and policies for which there is no room.
#[derive(Default)]
pub(super) struct Prefixes {
    of_policy: HashMap<Key, usize>,
    of_namespace: HashMap<String, usize>,
    all: usize,
    /// Policies without room, of at most [`PREFIXES_MAX`] prefixes. Others stay closed until they are listed again.
    waiting: BTreeMap<Key, Entry>,
    of_waiting: usize,
    /// Whether prefixes have gone since the last look at the policies that wait.
    has_room: bool,
}

impl Prefixes {
    /// Takes a policy. Returns it, or, without room, a substitute that allows nothing.
    pub(super) fn admit(&mut self, entry: Entry) -> Entry {
        self.remove(&entry.key);
        let count = count(&entry);
        if count == 0 {
            return entry;
        }
        let Err(message) = self.room(&entry.key, count) else {
            *self.of_namespace.entry(entry.key.namespace.clone()).or_default() += count;
            self.of_policy.insert(entry.key.clone(), count);
            self.all += count;
            return entry;
        };
        let substitute = closed(&entry, message);
        if self.of_waiting + count <= PREFIXES_MAX {
            self.of_waiting += count;
            self.waiting.insert(entry.key.clone(), entry);
        }
        substitute
    }

    /// Removes a policy.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.remove(key) {
            self.of_waiting -= count(&waiting);
        }
        let Some(count) = self.of_policy.remove(key) else { return };
        self.all -= count;
        self.has_room = true;
        if let Some(of_namespace) = self.of_namespace.get_mut(&key.namespace) {
            *of_namespace -= count;
            if *of_namespace == 0 {
                self.of_namespace.remove(&key.namespace);
            }
        }
    }

    /// Takes a policy out that has waited, and has room now.
    pub(super) fn next(&mut self) -> Option<Entry> {
        if !self.has_room {
            return None;
        }
        let fitting = self.waiting.iter().find(|(key, entry)| self.room(key, count(entry)).is_ok());
        let Some(key) = fitting.map(|(key, _)| key.clone()) else {
            self.has_room = false;
            return None;
        };
        let entry = self.waiting.remove(&key)?;
        self.of_waiting -= count(&entry);
        Some(entry)
    }

    /// Tests whether there is room for so many prefixes of a policy. The error names the bound.
    fn room(&self, key: &Key, count: usize) -> Result<(), String> {
        let of_namespace = self.of_namespace.get(&key.namespace).copied().unwrap_or_default();
        if of_namespace + count > NAMESPACE_PREFIXES_MAX {
            return Err(format!(
                "with it the policies of its namespace have more than {NAMESPACE_PREFIXES_MAX} prefixes in their \
                 ipBlocks"
            ));
        }
        if self.all + count > PREFIXES_MAX {
            return Err(format!(
                "with it the policies of all namespaces have more than {PREFIXES_MAX} prefixes in their ipBlocks"
            ));
        }
        Ok(())
    }
}

/// Prefixes of an entry. Audited policies are not enforced.
fn count(entry: &Entry) -> usize {
    match &entry.object {
        Some(Object::NetworkPolicy(policy)) if !policy.audited => prefixes_of(policy),
        _ => 0,
    }
}

/// Substitute of a policy: it selects the same pods, and allows nothing in the same directions.
pub(super) fn closed(entry: &Entry, message: String) -> Entry {
    let Some(Object::NetworkPolicy(policy)) = &entry.object else {
        unreachable!("only policies have prefixes")
    };
    let nothing = |rules: &Option<Vec<_>>| rules.as_ref().map(|_| Vec::new());
    let (ingress, egress) = (nothing(&policy.ingress), nothing(&policy.egress));
    let directions = match (&ingress, &egress) {
        (Some(_), Some(_)) => "ingress and egress",
        (Some(_), None) => "ingress",
        _ => "egress",
    };
    let issue = Issue {
        version: entry.version.as_deref().cloned().unwrap_or_default(),
        message,
        consequence: format!("it allows the pods that it selects no {directions}"),
    };
    let policy = NetworkPolicy {
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
        pod_selector: policy.pod_selector.clone(),
        ingress,
        egress,
        ignored: Vec::new(),
        audited: false,
        assigned: AssignedMetadata::default(),
    };
    Entry {
        key: entry.key.clone(),
        object: Some(Object::NetworkPolicy(policy)),
        node: None,
        version: None,
        issue: Some(Box::new(issue)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::objects::{IpBlock, LabelSelector, NetworkPolicyRule, Peer, Peers, Ports};

    fn policy(namespace: &str, name: &str, prefixes: u32) -> Entry {
        let block = |i: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + i);
            Peer::IpBlock(IpBlock { cidr: std::net::IpAddr::from(address).into(), except: Vec::new() })
        };
        let rule =
            NetworkPolicyRule { peers: Peers::Any((0..prefixes).map(block).collect()), ports: Ports::All };
        let policy = NetworkPolicy {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            pod_selector: LabelSelector::default(),
            ingress: Some(vec![rule]),
            egress: None,
            ignored: Vec::new(),
            audited: false,
            assigned: AssignedMetadata::default(),
        };
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let object = Some(Object::NetworkPolicy(policy));
        Entry { key, object, node: None, version: None, issue: None }
    }

    fn is_closed(entry: &Entry) -> bool {
        let Some(Object::NetworkPolicy(policy)) = &entry.object else { panic!() };
        assert_eq!(policy.egress, None, "the other direction stays");
        assert_eq!(entry.issue.is_some(), policy.ingress == Some(Vec::new()));
        entry.issue.is_some()
    }

    #[test]
    fn a_namespace_is_bounded_and_the_others_are_not_affected() {
        let mut prefixes = Prefixes::default();
        assert!(!is_closed(&prefixes.admit(policy("a", "one", 10_000))));
        assert!(!is_closed(&prefixes.admit(policy("a", "two", 10_000))));
        assert!(is_closed(&prefixes.admit(policy("a", "three", 1))));
        assert!(!is_closed(&prefixes.admit(policy("b", "one", 10_000))));
        assert!(prefixes.next().is_none());
        // A new version is counted instead of the one before.
        assert!(!is_closed(&prefixes.admit(policy("a", "one", 9_999))));
        let freed = prefixes.next().unwrap();
        assert_eq!(freed.key.name, "three");
        assert!(!is_closed(&prefixes.admit(freed)));
        assert!(prefixes.next().is_none());
    }

    #[test]
    fn all_namespaces_together_are_bounded_and_those_that_wait_too() {
        let mut prefixes = Prefixes::default();
        let count = PREFIXES_MAX / 10_000;
        for i in 0..count {
            assert!(!is_closed(&prefixes.admit(policy(&format!("n{i}"), "p", 10_000))));
        }
        for i in 0..count + 5 {
            assert!(is_closed(&prefixes.admit(policy(&format!("m{i}"), "p", 10_000))));
        }
        assert_eq!(prefixes.waiting.len(), count);
        prefixes.remove(&policy("n0", "p", 0).key);
        let freed = prefixes.next().unwrap();
        assert!(!is_closed(&prefixes.admit(freed)));
        assert!(prefixes.next().is_none());
        assert_eq!((prefixes.all, prefixes.waiting.len()), (PREFIXES_MAX, count - 1));
    }

    #[test]
    fn a_policy_that_waits_and_goes_is_not_admitted_later() {
        let mut prefixes = Prefixes::default();
        drop(prefixes.admit(policy("a", "one", 10_000)));
        drop(prefixes.admit(policy("a", "two", 10_000)));
        drop(prefixes.admit(policy("a", "three", 10_000)));
        prefixes.remove(&policy("a", "three", 0).key);
        prefixes.remove(&policy("a", "one", 0).key);
        assert!(prefixes.next().is_none());
        prefixes.remove(&policy("a", "two", 0).key);
        assert_eq!((prefixes.all, prefixes.of_waiting, prefixes.of_namespace.len()), (0, 0, 0));
    }
}
