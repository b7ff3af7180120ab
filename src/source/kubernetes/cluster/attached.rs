//! Addresses of pods that the switch knows before the API does: those of its attachments.
//!
//! The kubelet tells the API a pod's addresses after its runtime has made the pod's network. Until then the tables would not
//! know the pod, and drop all that it sends.

use std::collections::BTreeMap;

use crate::policy::objects::{Object, Pod};
use crate::policy::{Change, ObjectName};
use crate::source::kubernetes::target::Attachments;
use crate::tables::PodName;

/// Attached pods, and the objects that lack their addresses.
#[derive(Default)]
pub(super) struct Attached {
    /// This node, if it is known.
    node: Option<String>,
    attachments: Attachments,
    /// Attachments that take effect when no policy is away.
    next: Option<Attachments>,
    /// Pods without addresses, as the API has them.
    unaddressed: BTreeMap<PodName, Pod>,
}

impl Attached {
    pub(super) fn new(node: Option<String>) -> Attached {
        Attached { node, ..Attached::default() }
    }

    /// Notes the attached pods of the switch.
    pub(super) fn note(&mut self, attachments: Attachments) {
        self.next = Some(attachments);
    }

    /// Gives a pod the addresses of its attachment where its object has none.
    pub(super) fn complete(&mut self, change: Change) -> Change {
        match change {
            Change::Upsert(Object::Pod(pod)) => {
                let is_elsewhere = self.node.is_some() && self.node != pod.node;
                if !pod.addresses.is_empty() || pod.host_network || pod.finished || is_elsewhere {
                    self.unaddressed.remove(&pod.name);
                    return Change::Upsert(Object::Pod(pod));
                }
                self.unaddressed.insert(pod.name.clone(), pod.clone());
                Change::Upsert(Object::Pod(self.completed(pod)))
            }
            Change::Remove(ObjectName::Pod(name)) => {
                self.unaddressed.remove(&name);
                Change::Remove(ObjectName::Pod(name))
            }
            other => other,
        }
    }

    /// Pods without addresses whose attachments have changed since the last call.
    pub(super) fn changed(&mut self) -> Vec<Pod> {
        let Some(next) = self.next.take() else { return Vec::new() };
        let before = std::mem::replace(&mut self.attachments, next);
        let has_changed = |pod: &&Pod| before.get(&pod.name) != self.attachments.get(&pod.name);
        self.unaddressed.values().filter(has_changed).map(|pod| self.completed(pod.clone())).collect()
    }

    fn completed(&self, pod: Pod) -> Pod {
        let addresses = self.attachments.get(&pod.name).cloned().unwrap_or_default();
        Pod { addresses, ..pod }
    }
}
