//! Counters of the decisions of each rule. They outlive a generation while a rule keeps its meaning.

use std::sync::Arc;

use crate::dataplane::stats::Counter;
use crate::ids::RuleId;
use crate::tables::Decision;

/// Rules of one page. A page of counters is shared between generations, or begins at zero, as a whole.
const PAGE_RULES: usize = 256;

/// Counters of the rules of one generation. Unchanged rules share those of the generation before.
pub(crate) struct RuleCounters {
    workers: usize,
    pages: Vec<Arc<Page>>,
}

/// Counters by worker, rule, and verdict: allowed, denied.
type Page = [[[Counter; 2]; PAGE_RULES]];

fn new_page(workers: usize) -> Arc<Page> {
    (0..workers).map(|_| std::array::from_fn(|_| Default::default())).collect()
}

impl RuleCounters {
    /// Counters at zero for rules below `end`.
    pub(crate) fn new(end: usize, workers: usize) -> RuleCounters {
        let pages = (0..end.div_ceil(PAGE_RULES)).map(|_| new_page(workers)).collect();
        RuleCounters { workers, pages }
    }

    /// Counters for rules below `end`. Those of `renamed` rules, and of the others on their pages, begin at
    /// zero.
    pub(crate) fn next(&self, end: usize, renamed: impl Iterator<Item = RuleId>) -> RuleCounters {
        let mut pages = self.pages.clone();
        pages.resize_with(end.div_ceil(PAGE_RULES), || new_page(self.workers));
        for rule in renamed {
            if let Some(page) = pages.get_mut(rule.index() / PAGE_RULES) {
                *page = new_page(self.workers);
            }
        }
        RuleCounters { workers: self.workers, pages }
    }

    /// Counts a decision. Only the worker with this number calls it.
    #[inline]
    pub(crate) fn count(&self, worker: usize, decision: Decision) {
        let rule = decision.rule().index();
        if let Some(page) = self.pages.get(rule / PAGE_RULES) {
            page[worker][rule % PAGE_RULES][usize::from(!decision.is_allow())].add(1);
        }
    }

    /// Calls `see` with each decision that was taken, and its count.
    pub(crate) fn for_each(&self, mut see: impl FnMut(Decision, u64)) {
        (0..self.pages.len()).for_each(|page| self.for_each_in(page, &mut see));
    }

    /// Calls `see` as [`RuleCounters::for_each`] does, for the counters that `next` does not share.
    pub(crate) fn for_each_retired(&self, next: Option<&RuleCounters>, mut see: impl FnMut(Decision, u64)) {
        let goes_on = |page: usize| {
            let next = next.and_then(|next| next.pages.get(page));
            next.is_some_and(|next| Arc::ptr_eq(next, &self.pages[page]))
        };
        (0..self.pages.len())
            .filter(|&page| !goes_on(page))
            .for_each(|page| self.for_each_in(page, &mut see));
    }

    fn for_each_in(&self, page: usize, see: &mut impl FnMut(Decision, u64)) {
        for place in 0..PAGE_RULES {
            let rule = RuleId((page * PAGE_RULES + place) as u32);
            for (verdict, decision) in [Decision::allow(rule), Decision::deny(rule)].into_iter().enumerate() {
                let times: u64 = self.pages[page].iter().map(|worker| worker[place][verdict].get()).sum();
                if times != 0 {
                    see(decision, times);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rule_counters: &RuleCounters) -> Vec<(Decision, u64)> {
        let mut counts = Vec::new();
        rule_counters.for_each(|decision, times| counts.push((decision, times)));
        counts
    }

    #[test]
    fn a_rule_that_stays_counts_on_and_one_that_is_renamed_begins_anew() {
        let (stays, renamed) = (Decision::deny(RuleId(3)), Decision::allow(RuleId(700)));
        let before = RuleCounters::new(800, 2);
        [stays, stays, renamed].into_iter().for_each(|decision| before.count(1, decision));
        let next = before.next(900, [RuleId(700)].into_iter());
        before.count(0, stays);
        next.count(1, renamed);
        assert_eq!(counts(&next), [(stays, 3), (renamed, 1)]);
        let mut left = Vec::new();
        before.for_each_retired(Some(&next), |decision, times| left.push((decision, times)));
        assert_eq!(left, [(renamed, 1)]);
    }

    #[test]
    fn without_a_next_generation_all_is_left() {
        let rule_counters = RuleCounters::new(1, 1);
        rule_counters.count(0, Decision::allow(RuleId(0)));
        rule_counters.count(0, Decision::allow(RuleId(999)));
        let mut left = 0;
        rule_counters.for_each_retired(None, |_, times| left += times);
        assert_eq!(left, 1, "there is no rule 999");
    }
}
