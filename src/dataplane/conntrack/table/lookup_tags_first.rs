//! Lookup of keys by tags first, for tables in which a third of the flows are not in their primary slots.

use super::super::entry::Entry;
use super::super::key::Key;
use super::layout::Conntrack;

/// Lookups that wait for memory together.
const RUN: usize = 64;

/// A lookup in progress.
#[derive(Clone, Copy)]
struct TagLookup<'a> {
    key: Key,
    from_low: bool,
    hash: u64,
    /// The entry that tags name.
    entry: &'a Entry,
}

impl Conntrack {
    /// Looks up a key for each of `items`, and calls `hit` with each entry found and whether the packet comes
    /// from the lower endpoint of its key. Returns the number of hits.
    #[inline(always)]
    pub(crate) fn lookup_tags_first<T>(
        &self,
        items: &[T],
        key_of: impl Fn(&T) -> (Key, bool),
        hit: impl Fn(&Entry, bool),
    ) -> usize {
        let nothing =
            TagLookup { key: Key::default(), from_low: false, hash: 0, entry: self.probable_entry(0) };
        let mut run = [nothing; RUN];
        items.chunks(RUN).map(|items| self.lookup_run(items, &mut run[..items.len()], &key_of, &hit)).sum()
    }

    #[inline(always)]
    fn lookup_run<'a, T>(
        &'a self,
        items: &[T],
        run: &mut [TagLookup<'a>],
        key_of: &impl Fn(&T) -> (Key, bool),
        hit: &impl Fn(&Entry, bool),
    ) -> usize {
        for (lookup, item) in run.iter_mut().zip(items) {
            (lookup.key, lookup.from_low) = key_of(item);
            lookup.hash = self.hash(&lookup.key);
            self.prefetch_tags(lookup.hash);
        }
        for lookup in &mut *run {
            lookup.entry = self.probable_entry(lookup.hash);
            lookup.entry.prefetch(lookup.from_low, lookup.key.needs_both_halves());
        }
        let mut hits = 0;
        for TagLookup { key, from_low, hash, entry } in run {
            if !entry.matches(key, *from_low) {
                let Some(slot) = self.look_up(key, *hash) else { continue };
                *entry = self.entry(slot);
            }
            hit(entry, *from_low);
            hits += 1;
        }
        hits
    }
}
