//! Compiled ACL tables: the decision for a class and a service, from one cache line if the row is short.
//!
//! A table names few of the classes; all others have its default row. A table is a hash table of the named
//! classes, in buckets of one cache line. The table header (sixteen bytes, nearly always cached) gives the
//! position of the bucket, and the bucket tells whether the class is named. Memory grows with the named
//! classes, not with tables times classes.
//!
//! Most rows are short: they decide one interval of services, and decide all other services like the default
//! row or uniformly. The bucket contains the decision of such a row, which saves the load of the row: with
//! large tables each cache line is a memory access. For other rows the bucket contains the id. The header
//! contains the default in the same form.
//!
//! A bucket with more than four classes continues in an overflow bucket, whose unit replaces its last class.
//! Buckets contain one or two classes on average; one in thirty overflows.

use std::collections::BTreeMap;
use std::hint::select_unpredictable;

use super::arena::{Arena, Unit, first_word};
use super::document::Acl;
use super::row_store::{DENY_ALL, ROW, RowForm, RowStore, Service, Slot};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::CLASSES_MAX;
use crate::mem::{place_of, prefetch_read};

const BUCKET_WORDS: usize = 16;
const ENTRIES: usize = 4;
/// Maximum number of classes per bucket of a table with several buckets.
const LOAD_MAX: usize = 2;

/// Class word of a free entry.
const FREE: u32 = 1 << 30;
/// Flag of the unit of an overflow bucket.
const OVERFLOW: u32 = 1 << 31;

const _: () = assert!(CLASSES_MAX < FREE as usize, "a class is neither free nor overflow");
const _: () = assert!(size_of::<Entry>() * ENTRIES == size_of::<u32>() * BUCKET_WORDS);

/// Columns of the entries: classes, first services, and so on.
type Bucket = [u32; BUCKET_WORDS];

/// Class and its decision: `slot` for services from `first` to `first + last_offset`, the default of the
/// table for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    class: u32,
    first: u32,
    last_offset: u32,
    slot: Slot,
}

const NOTHING: Entry = Entry { class: FREE, first: 0, last_offset: 0, slot: DENY_ALL };

const EMPTY: Bucket = {
    let mut bucket = [0; BUCKET_WORDS];
    let mut i = 0;
    while i < ENTRIES {
        bucket[i] = NOTHING.class;
        bucket[3 * ENTRIES + i] = NOTHING.slot;
        i += 1;
    }
    bucket
};

impl Entry {
    /// Entry of a class with row `row`, in a table with default `other`.
    fn new(class: ClassId, row: RowId, other: Slot, rows: &RowStore) -> Entry {
        let on_all = |slot| Entry { class: class.0, first: 0, last_offset: u32::MAX, slot };
        match rows.form(row) {
            RowForm::Uniform(decision) => on_all(decision.to_bits()),
            RowForm::Span { first, last_offset, decision, other: of_row } if of_row.to_bits() == other => {
                Entry { class: class.0, first, last_offset, slot: decision.to_bits() }
            }
            RowForm::Span { .. } | RowForm::Long => on_all(ROW | row.0),
        }
    }
}

/// Header of a table.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// Default of the table: a decision, or a row.
    other: Slot,
    /// First of the contiguous buckets.
    buckets: Unit,
    /// Number of low bits of the hash that do not select the bucket.
    shift: u32,
    /// Number of named classes.
    named: u32,
    /// Default row.
    default: RowId,
}

const HEADER_WORDS: usize = 4;

/// Number of bits of `shift` in the header word that it shares with `named`.
const SHIFT_BITS: u32 = 6;

/// Reference to the bucket of a class, and the default of its table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    bucket: &'a Bucket,
    other: Slot,
}

impl Cell<'_> {
    /// Cell of an empty table that denies.
    pub(super) const NONE: Cell<'static> = Cell { bucket: &EMPTY, other: DENY_ALL };

    /// Prefetches the bucket.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch_read(self.bucket);
    }
}

/// All ACL tables, by id. A clone is cheap and shares unchanged pages.
#[derive(Clone)]
pub(super) struct AclStore {
    /// Headers by id, absent tables included, up to the end of a page.
    headers: Arena,
    /// Buckets. The first is the shared empty bucket.
    buckets: Arena,
}

impl Default for AclStore {
    fn default() -> AclStore {
        let mut buckets = Arena::default();
        let none = buckets.put(&EMPTY);
        debug_assert_eq!(none, NO_BUCKETS, "the first block of an arena is its first");
        AclStore { headers: Arena::default(), buckets }
    }
}

/// Empty bucket, shared by all tables that name no class.
const NO_BUCKETS: Unit = 0;

impl Header {
    /// Header of an absent table.
    const NOWHERE: Header = Header::empty(DENY_ALL, RowId(u32::MAX));

    const fn empty(other: Slot, default: RowId) -> Header {
        Header { other, buckets: NO_BUCKETS, shift: 32, named: 0, default }
    }

    #[inline]
    fn of([other, buckets, sizes, default]: [u32; HEADER_WORDS]) -> Header {
        let (shift, named) = (sizes % (1 << SHIFT_BITS), sizes >> SHIFT_BITS);
        Header { other, buckets, shift, named, default: RowId(default) }
    }

    fn words(self) -> [u32; HEADER_WORDS] {
        [self.other, self.buckets, self.shift | self.named << SHIFT_BITS, self.default.0]
    }

    /// First word of the bucket of a class.
    #[inline]
    fn bucket(self, class: ClassId) -> usize {
        // Multiplicative hash: the upper bits of the product distribute consecutive classes evenly, and
        // others nearly so.
        let hash = class.0.wrapping_mul(0x9e37_79b1);
        first_word(self.buckets) + (u64::from(hash) >> self.shift) as usize * BUCKET_WORDS
    }

    fn len(self) -> usize {
        if self.buckets == NO_BUCKETS { 0 } else { 1 << (32 - self.shift) }
    }
}

/// Number of buckets for a number of classes.
fn buckets_for(named: usize) -> usize {
    match named {
        0 => 0,
        1..=ENTRIES => 1,
        _ => named.div_ceil(LOAD_MAX).next_power_of_two(),
    }
}

/// Lookup.
impl AclStore {
    /// Decision of table `id` for a class and a service, or a row marked with [`ROW`]. An absent table
    /// denies.
    #[inline]
    pub(super) fn slot(&self, id: AclId, class: ClassId, service: Service) -> Slot {
        self.slot_at(self.cell(id, class), class, service)
    }

    /// Reference to the bucket of a class, without an access to the bucket.
    #[inline]
    pub(super) fn cell(&self, id: AclId, class: ClassId) -> Cell<'_> {
        let header = self.header(id);
        Cell { bucket: self.buckets.block_at(header.bucket(class)), other: header.other }
    }

    /// Decision or row from a cell that [`AclStore::cell`] returned.
    #[inline]
    pub(super) fn slot_at(&self, cell: Cell<'_>, class: ClassId, service: Service) -> Slot {
        let [classes, firsts, behinds, slots] = columns(cell.bucket);
        let position = place_of(classes, class.0);
        let is_named = position < ENTRIES;
        if !is_named & (classes[ENTRIES - 1] & OVERFLOW != 0) {
            return self.slot_in_overflow(cell, class, service);
        }
        let position = position % ENTRIES;
        let is_about = service.number().wrapping_sub(firsts[position]) <= behinds[position];
        select_unpredictable(is_named & is_about, slots[position], cell.other)
    }

    #[cold]
    fn slot_in_overflow(&self, cell: Cell<'_>, class: ClassId, service: Service) -> Slot {
        let overflow = overflow(cell.bucket).map(|overflow| self.buckets.block(overflow));
        overflow.map_or(cell.other, |bucket| self.slot_at(Cell { bucket, ..cell }, class, service))
    }

    #[inline]
    fn header(&self, id: AclId) -> Header {
        self.headers.find_block(header_word(id)).map_or(Header::NOWHERE, |&words| Header::of(words))
    }
}

#[inline(always)]
fn columns(bucket: &Bucket) -> [&[u32; ENTRIES]; 4] {
    let [classes, firsts, behinds, slots] = bucket.as_chunks().0 else { unreachable!("sixteen words") };
    [classes, firsts, behinds, slots]
}

#[inline]
fn header_word(id: AclId) -> usize {
    id.index() * HEADER_WORDS
}

/// Updates.
impl AclStore {
    /// Sets or removes a table. Its rows must be in `rows`.
    pub(super) fn set(&mut self, id: AclId, acl: Option<&Acl>, rows: &RowStore) {
        self.make_header(id);
        self.free_buckets(self.header(id));
        let header = acl.map_or(Header::NOWHERE, |acl| self.build(acl, rows));
        self.headers.write(header_word(id), &header.words());
    }

    /// Sets the rows of some classes of an existing table; `None` is the default row. `acl` is the resulting
    /// table.
    pub(super) fn set_rows(
        &mut self,
        id: AclId,
        changes: &BTreeMap<ClassId, Option<RowId>>,
        acl: &Acl,
        rows: &RowStore,
    ) {
        let mut header = self.header(id);
        for (&class, &row) in changes {
            // A class with the default row is not named.
            let row = row.filter(|&row| row != header.default);
            let (bucket, position) = match (self.position(header.bucket(class), class), row) {
                (None, None) => continue,
                (None, Some(_)) if buckets_for(header.named as usize + 1) > header.len() => {
                    return self.set(id, Some(acl), rows);
                }
                (None, Some(_)) => {
                    header.named += 1;
                    self.free_position(header.bucket(class))
                }
                (Some(at), row) => {
                    header.named -= u32::from(row.is_none());
                    at
                }
            };
            let entry = row.map_or(NOTHING, |row| Entry::new(class, row, header.other, rows));
            self.write_entry(bucket, position, entry);
        }
        self.headers.write(header_word(id), &header.words());
        // A table that loses most of its classes is rebuilt smaller.
        if 4 * buckets_for(header.named as usize) < header.len() {
            self.set(id, Some(acl), rows);
        }
    }

    /// Extends the headers up to a table.
    fn make_header(&mut self, id: AclId) {
        while self.headers.words() <= header_word(id) {
            let page = self.headers.reserve_pages(HEADER_WORDS, 0);
            let headers = (page..self.headers.words()).step_by(HEADER_WORDS);
            headers.for_each(|at| self.headers.write(at, &Header::NOWHERE.words()));
        }
    }

    /// Builds the buckets of a table.
    fn build(&mut self, acl: &Acl, rows: &RowStore) -> Header {
        let other = match rows.form(acl.default) {
            RowForm::Uniform(decision) => decision.to_bits(),
            RowForm::Span { .. } | RowForm::Long => ROW | acl.default.0,
        };
        let named = || acl.rows.iter().filter(|&(_, &row)| row != acl.default);
        let named_len = named().count();
        let count = buckets_for(named_len);
        if count == 0 {
            return Header::empty(other, acl.default);
        }
        let buckets = self.buckets.allocate(count * BUCKET_WORDS);
        let shift = 32 - count.trailing_zeros();
        let header = Header { other, buckets, shift, named: named_len as u32, default: acl.default };
        (0..count).for_each(|i| self.buckets.write(first_word(buckets) + i * BUCKET_WORDS, &EMPTY));
        for (&class, &row) in named() {
            let (bucket, position) = self.free_position(header.bucket(class));
            self.write_entry(bucket, position, Entry::new(class, row, other, rows));
        }
        header
    }

    fn write_entry(&mut self, bucket: usize, position: usize, entry: Entry) {
        let words = [entry.class, entry.first, entry.last_offset, entry.slot];
        let at = (bucket + position..).step_by(ENTRIES);
        at.zip(words).for_each(|(at, word)| self.buckets.set(at, word));
    }

    /// Bucket in the chain from `first`, and the position in it, of a class.
    fn position(&self, first: usize, class: ClassId) -> Option<(usize, usize)> {
        let mut chain = self.chain(first).into_iter();
        chain.find_map(|(at, bucket)| Some((at, bucket[..ENTRIES].iter().position(|&at| at == class.0)?)))
    }

    /// Free position for a class; adds an overflow bucket if necessary.
    fn free_position(&mut self, first: usize) -> (usize, usize) {
        let chain = self.chain(first);
        let position = |bucket: &Bucket| bucket[..ENTRIES].iter().position(|&class| class == FREE);
        let free = chain.iter().find_map(|(at, bucket)| Some((*at, position(bucket)?)));
        free.unwrap_or_else(|| {
            let (at, bucket) = chain[chain.len() - 1];
            let [class, first, last_offset, slot] = columns(&bucket).map(|column| column[ENTRIES - 1]);
            let overflow = self.buckets.put(&EMPTY);
            self.write_entry(first_word(overflow), 0, Entry { class, first, last_offset, slot });
            self.write_entry(at, ENTRIES - 1, Entry { class: OVERFLOW | overflow, ..NOTHING });
            (first_word(overflow), 1)
        })
    }

    /// Bucket and its overflow buckets.
    fn chain(&self, first: usize) -> Vec<(usize, Bucket)> {
        let mut chain = Vec::new();
        let mut next = Some(first);
        while let Some(at) = next {
            let bucket: Bucket = *self.buckets.block_at(at);
            chain.push((at, bucket));
            next = overflow(&bucket).map(first_word);
        }
        chain
    }

    /// Frees the buckets of a table.
    fn free_buckets(&mut self, header: Header) {
        if header.len() == 0 {
            return;
        }
        for first in (0..header.len()).map(|i| first_word(header.buckets) + i * BUCKET_WORDS) {
            for (_, bucket) in self.chain(first) {
                overflow(&bucket).into_iter().for_each(|unit| self.buckets.free(unit, BUCKET_WORDS));
            }
        }
        self.buckets.free(header.buckets, header.len() * BUCKET_WORDS);
    }
}

/// Overflow bucket of a bucket.
fn overflow(bucket: &Bucket) -> Option<Unit> {
    let last = bucket[ENTRIES - 1];
    (last & OVERFLOW != 0).then_some(last ^ OVERFLOW)
}

#[cfg(test)]
mod tests;
