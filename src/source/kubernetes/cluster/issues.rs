//! Objects that are not enforced as written, and the conditions of policies that follow from that.

use super::{Cluster, KINDS, shown};
use crate::source::kubernetes::kinds::Kind;
use crate::source::kubernetes::object::Issue;
use crate::source::kubernetes::parse::Key;
use crate::source::kubernetes::status::Condition;

/// Most new issues that are passed on at once. The report has the number of all.
const FRESH_ISSUES_MAX: usize = 64;

impl Cluster {
    /// Conditions of all policies that have some, if they may have changed since the last call.
    pub(in crate::source::kubernetes) fn changed_conditions(&mut self) -> Option<Vec<Condition>> {
        // Before the first tables nothing is enforced.
        if self.compiler.is_none() || !self.generations.take_changed() {
            return None;
        }
        let conditions = self.generations.iter().map(|(place, generation)| {
            let issue = self.issues.get(place);
            Condition {
                kind: place.0,
                name: place.1.name.clone(),
                generation: *generation,
                problem: issue.map(|Issue { message, consequence, .. }| format!("{message}: {consequence}")),
            }
        });
        Some(conditions.collect())
    }

    pub(super) fn set_issue(&mut self, index: usize, key: &Key, issue: Option<Box<Issue>>) {
        self.generations.note_issue(index);
        let Some(issue) = issue else {
            if !self.issues.is_empty() {
                self.issues.remove(&(index, key.clone()));
            }
            return;
        };
        let place = (index, key.clone());
        if self.issues.get(&place).is_none_or(|known| known.message != issue.message) {
            let Issue { message, consequence, .. } = &*issue;
            tracing::warn!("{} is not enforced as written: {message}: {consequence}", shown(index, key));
            if self.fresh_issues.len() < FRESH_ISSUES_MAX {
                self.fresh_issues.insert(place.clone());
            }
        }
        self.issues.insert(place, *issue);
    }

    /// Objects that are not enforced as written since the last call.
    pub(in crate::source::kubernetes) fn fresh_issues(
        &mut self,
    ) -> impl Iterator<Item = (&'static Kind, &Key, &Issue)> {
        let places = std::mem::take(&mut self.fresh_issues);
        let entries = places.into_iter().filter_map(|place| self.issues.get_key_value(&place));
        entries.map(|((index, key), issue)| (&KINDS[*index], key, issue))
    }
}
