//! Network policies by namespace, and by a label that they ask for.

use std::collections::HashMap;

use crate::policy::objects::{NetworkPolicy, Requirement};

/// Network policies by namespace, and by the first requirement of their selector.
#[derive(Default)]
pub(super) struct PolicyIndex<'a> {
    by_requirement: HashMap<(&'a str, Option<&'a Requirement>), Vec<usize>>,
}

impl<'a> PolicyIndex<'a> {
    /// Index of these policies.
    pub(super) fn new(policies: &[&'a NetworkPolicy]) -> PolicyIndex<'a> {
        let mut index = PolicyIndex::default();
        for (number, policy) in policies.iter().enumerate() {
            let key = (policy.namespace.as_str(), policy.pod_selector.requirements.first());
            index.by_requirement.entry(key).or_default().push(number);
        }
        index
    }

    /// Numbers of the policies that may apply to all pods of a policy, itself included, in their order: the requirements
    /// of their selectors are among its own.
    pub(super) fn may_cover(&self, policy: &NetworkPolicy) -> Vec<usize> {
        let own = policy.pod_selector.requirements.iter().map(Some);
        let keys = own.chain([None]).map(|requirement| (policy.namespace.as_str(), requirement));
        let mut found: Vec<usize> =
            keys.filter_map(|key| self.by_requirement.get(&key)).flatten().copied().collect();
        found.sort_unstable();
        found
    }
}
