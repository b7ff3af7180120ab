//! Compiled ACL tables: what a table decides on a service of a class, by one cache line where its row is short.
//!
//! A table names few of the classes; every other one has its default row. So each is a hash table of the classes that it
//! names, cut into buckets of one cache line. The line that holds the answer is known from
//! the table's header (sixteen bytes, nearly always near), and says by itself whether the class is named. Memory follows
//! what tables say, not tables times classes.
//!
//! Most rows say little: on one port, or some side by side, one thing is decided, and on all else what is for any class; or on
//! everything alike. What such a row decides stands in the bucket, and the row is not looked at: of the lines that a
//! decision touches, each is the whole cost once tables are large. Of other rows the bucket has the id. The same goes for
//! the default row, in the header.
//!
//! A bucket with more than four classes goes on in a overflow one, whose position stands where its last class would. Buckets
//! hold one or two classes on average, so that one in thirty does.

use std::collections::BTreeMap;
use std::hint::select_unpredictable;

use super::Acl;
use super::arena::{Arena, Unit, first_word};
use super::row_store::{DENY_ALL, ROW, RowForm, RowStore, Service, Slot};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::CLASSES_MAX;
use crate::mem::{place_of, prefetch_read};

const BUCKET_WORDS: usize = 16;
const ENTRIES: usize = 4;
/// Most classes for each bucket of a table with more than one.
const LOAD_MAX: usize = 2;

/// Stands where no class is.
const FREE: u32 = 1 << 30;
/// Marks the position of the bucket in which this one goes on.
const OVERFLOW: u32 = 1 << 31;

const _: () = assert!(CLASSES_MAX < FREE as usize, "a class is neither free nor overflow");
const _: () = assert!(size_of::<Entry>() * ENTRIES == size_of::<u32>() * BUCKET_WORDS);

/// A word of each entry side by side: classes, first services, and so on.
type Bucket = [u32; BUCKET_WORDS];

/// A class, and what is decided on its flows: on services from the first on, so many last_offset it, what the slot says; on all others
/// as for classes that the table does not name.
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
    /// What `row` decides on flows of `class`, in a table that decides `other` on those of classes that it does not name.
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

/// What is to be known of a table before its buckets.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// What is decided on classes that it does not name: a decision, or a row.
    other: Slot,
    /// The first of its buckets, which lie side by side.
    buckets: Unit,
    /// Bits of a class's hash that do not number its bucket.
    shift: u32,
    /// Number of classes that it names.
    named: u32,
    /// The row of classes that it does not name.
    default: RowId,
}

const HEADER_WORDS: usize = 4;

/// Bits of a header's word that has shift and number.
const SHIFT_BITS: u32 = 6;

/// Where what is decided on a class stands, if its table names it, and what is decided otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    bucket: &'a Bucket,
    other: Slot,
}

impl Cell<'_> {
    /// Of no class in no table.
    pub(super) const NONE: Cell<'static> = Cell { bucket: &EMPTY, other: DENY_ALL };

    /// Brings it near.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch_read(self.bucket);
    }
}

/// All ACL tables, by id. A clone is cheap and shares what does not change.
#[derive(Clone)]
pub(super) struct AclStore {
    /// By id; also those of tables that are not there, up to the end of a page.
    headers: Arena,
    /// First the bucket of all tables that name no class.
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

/// The bucket of all tables that name no class.
const NO_BUCKETS: Unit = 0;

impl Header {
    /// Of a table that is not there.
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

    /// The first word of the bucket of a class.
    #[inline]
    fn bucket(self, class: ClassId) -> usize {
        // The upper bits of the product spread classes side by side evenly, and others nearly so.
        let hash = class.0.wrapping_mul(0x9e37_79b1);
        first_word(self.buckets) + (u64::from(hash) >> self.shift) as usize * BUCKET_WORDS
    }

    fn len(self) -> usize {
        if self.buckets == NO_BUCKETS { 0 } else { 1 << (32 - self.shift) }
    }
}

/// Number of buckets for so many classes.
fn buckets_for(named: usize) -> usize {
    match named {
        0 => 0,
        1..=ENTRIES => 1,
        _ => named.div_ceil(LOAD_MAX).next_power_of_two(),
    }
}

/// Look-up.
impl AclStore {
    /// What table `id` decides on a service of `class`: a decision, or a row with [`ROW`]. A table that is not there is closed.
    #[inline]
    pub(super) fn slot(&self, id: AclId, class: ClassId, service: Service) -> Slot {
        self.slot_at(self.cell(id, class), class, service)
    }

    /// The position of a cell: known before the cell is near.
    #[inline]
    pub(super) fn cell(&self, id: AclId, class: ClassId) -> Cell<'_> {
        let header = self.header(id);
        Cell { bucket: self.buckets.block_at(header.bucket(class)), other: header.other }
    }

    /// [`AclStore::slot`] by the position that [`AclStore::cell`] gave.
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

/// Building.
impl AclStore {
    /// Sets a table, or clears it. Its rows are those of `rows`.
    pub(super) fn set(&mut self, id: AclId, acl: Option<&Acl>, rows: &RowStore) {
        self.make_header(id);
        self.free_buckets(self.header(id));
        let header = acl.map_or(Header::NOWHERE, |acl| self.build(acl, rows));
        self.headers.write(header_word(id), &header.words());
    }

    /// Sets the rows of some classes in a table that is there, with which it becomes `acl`; `None` is the table's default.
    pub(super) fn set_rows(
        &mut self,
        id: AclId,
        changes: &BTreeMap<ClassId, Option<RowId>>,
        acl: &Acl,
        rows: &RowStore,
    ) {
        let mut header = self.header(id);
        for (&class, &row) in changes {
            // A class that has the default is not named.
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
        // Tables that lose most of their classes give memory back.
        if 4 * buckets_for(header.named as usize) < header.len() {
            self.set(id, Some(acl), rows);
        }
    }

    /// Makes the header of a table that is not there, and of those up to it.
    fn make_header(&mut self, id: AclId) {
        while self.headers.words() <= header_word(id) {
            let page = self.headers.reserve_pages(HEADER_WORDS, 0);
            let headers = (page..self.headers.words()).step_by(HEADER_WORDS);
            headers.for_each(|at| self.headers.write(at, &Header::NOWHERE.words()));
        }
    }

    /// Makes the buckets of a table.
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

    /// The bucket, of those that a first one goes on in, and the position in there that a class has.
    fn position(&self, first: usize, class: ClassId) -> Option<(usize, usize)> {
        let mut chain = self.chain(first).into_iter();
        chain.find_map(|(at, bucket)| Some((at, bucket[..ENTRIES].iter().position(|&at| at == class.0)?)))
    }

    /// A free position for a class, made if there is none.
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

    /// A bucket and those that it goes on in.
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

    /// Gives back the buckets of a table.
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

/// The bucket in which this one goes on.
fn overflow(bucket: &Bucket) -> Option<Unit> {
    let last = bucket[ENTRIES - 1];
    (last & OVERFLOW != 0).then_some(last ^ OVERFLOW)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::ids::RuleId;
    use crate::net::flow::Protocol;
    use crate::tables::row_store::is_block;
    use crate::tables::{Decision, PortSpan, Row};

    /// Rows of every form; of some, all but a few services are as in the first.
    fn rows() -> Vec<Row> {
        let [closed, open, of_port] =
            [Decision::deny(RuleId(0)), Decision::allow(RuleId(1)), Decision::allow(RuleId(2))];
        let span = |first, last| vec![PortSpan { first, last, decision: of_port }];
        let none = Row::uniform(closed);
        vec![
            none.clone(),
            Row::uniform(open),
            Row { tcp: span(80, 80), ..none.clone() },
            Row { udp: span(53, 60), ..none.clone() },
            Row { tcp: span(0, 0), ..none.clone() },
            Row { sctp: span(0, 65_535), ..none.clone() },
            // One interval of services.
            Row { tcp: span(65_535, 65_535), udp: span(0, 0), ..none.clone() },
            Row { tcp: span(80, 80), udp: span(53, 53), ..none },
            Row { tcp: span(80, 80), ..Row::uniform(open) },
        ]
    }

    fn row_store() -> RowStore {
        let mut store = RowStore::default();
        (0..).zip(rows()).for_each(|(id, row)| store.set(RowId(id), Some(&row)));
        store
    }

    fn row_id() -> impl Strategy<Value = RowId> {
        (0..rows().len() as u32).prop_map(RowId)
    }

    /// Many classes side by side, and some whose hash begins alike.
    fn class() -> impl Strategy<Value = ClassId> {
        let alike = (0..40_u32).prop_map(|i| (i << 12).wrapping_mul(0x0e8b_c451) & 0xf_ffff);
        prop_oneof![0..20_u32, 60..70_u32, 4090..4100_u32, 0..20_000_u32, alike].prop_map(ClassId)
    }

    fn acl() -> impl Strategy<Value = Acl> {
        (btree_map(class(), row_id(), 0..80), row_id())
            .prop_map(|(rows, default)| Acl { rows: rows.into(), default })
    }

    #[derive(Debug, Clone)]
    enum Change {
        Table(Option<Acl>),
        Rows(BTreeMap<ClassId, Option<RowId>>),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            prop::option::of(acl()).prop_map(Change::Table),
            btree_map(class(), prop::option::of(row_id()), 1..60).prop_map(Change::Rows),
        ]
    }

    fn change_rows(acl: &mut Acl, changes: &BTreeMap<ClassId, Option<RowId>>) {
        for (&class, &row) in changes {
            match row {
                Some(row) => acl.rows.insert(class, row),
                None => acl.rows.remove(&class),
            };
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn decides_what_the_rows_of_the_tables_decide_and_leaves_clones_alone(
            changes in vec((0..6_u32, change()), 1..20),
            classes in vec(0..30_000_u32, 30),
            ports in vec(prop_oneof![Just(0), Just(53), Just(61), Just(79), Just(80), Just(65_535), any::<u16>()], 3),
        ) {
            let (rows, compiled) = (rows(), row_store());
            let (mut store, mut naive) = (AclStore::default(), BTreeMap::<AclId, Option<Acl>>::new());
            let services: Vec<(Protocol, u16)> = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP]
                .into_iter()
                .flat_map(|protocol| ports.iter().map(move |&port| (protocol, port)))
                .collect();
            let agree = |store: &AclStore, naive: &BTreeMap<AclId, Option<Acl>>| {
                let named = naive.values().flatten().flat_map(|acl| acl.rows.keys().copied());
                let classes: Vec<ClassId> = named.chain(classes.iter().copied().map(ClassId)).collect();
                for (id, class) in (0..8).flat_map(|id| classes.iter().map(move |&class| (AclId(id), class))) {
                    let row = naive.get(&id).and_then(Option::as_ref).map(|acl| &rows[acl.row(class).index()]);
                    for &(protocol, port) in &services {
                        let service = Service::new(protocol, port);
                        let slot = store.slot(id, class, service);
                        let expected = row.map_or(Decision::deny(RuleId(0)), |row| row.decide(protocol, port));
                        prop_assert_eq!(compiled.decide(slot, service), expected);
                    }
                }
                Ok(())
            };
            let mut earlier = None;
            for (id, change) in changes {
                let id = AclId(id);
                match change {
                    Change::Table(acl) => {
                        store.set(id, acl.as_ref(), &compiled);
                        naive.insert(id, acl);
                    }
                    Change::Rows(changes) => {
                        let Some(Some(acl)) = naive.get_mut(&id) else { continue };
                        change_rows(acl, &changes);
                        store.set_rows(id, &changes, acl, &compiled);
                    }
                }
                earlier.get_or_insert_with(|| (store.clone(), naive.clone()));
            }
            agree(&store, &naive)?;
            let (store, naive) = earlier.unwrap_or_default();
            agree(&store, &naive)?;
        }
    }

    #[test]
    fn a_short_row_is_not_looked_at() {
        let (mut store, rows) = (AclStore::default(), row_store());
        let named = (0..9).map(|i| (ClassId(i), RowId(i))).collect();
        store.set(AclId(0), Some(&Acl { rows: named, default: RowId(0) }), &rows);
        let asks_row = |class| {
            let service = Service::new(Protocol::TCP, 80);
            is_block(store.slot(AclId(0), ClassId(class), service))
        };
        // The long one, and that whose other services are not as those of classes without a name.
        let asked: Vec<u32> = (0..10).filter(|&class| asks_row(class)).collect();
        assert_eq!(asked, [7, 8]);
    }

    #[test]
    fn tables_that_say_little_take_little() {
        let (mut store, row_store) = (AclStore::default(), row_store());
        for id in 0..500 {
            let rows = [(ClassId(19_999), RowId(1))].into();
            store.set(AclId(id), Some(&Acl { rows, default: RowId(0) }), &row_store);
        }
        let bytes = store.headers.bytes() + store.buckets.bytes();
        assert!(bytes < 64 << 10, "{bytes} bytes");
    }

    #[test]
    fn memory_of_classes_that_come_and_go_is_used_again() {
        let (mut store, rows) = (AclStore::default(), row_store());
        let acl = |named: u32| Acl {
            rows: (0..named).map(|i| (ClassId(3 * i), RowId(1))).collect(),
            default: RowId(0),
        };
        let mut first = acl(50_000);
        store.set(AclId(0), Some(&first), &rows);
        let bytes = store.buckets.bytes();
        for _ in 0..3 {
            for row in [None, Some(RowId(2))] {
                let changes = (0..49_000).map(|i| (ClassId(3 * i), row)).collect();
                change_rows(&mut first, &changes);
                store.set_rows(AclId(0), &changes, &first, &rows);
                store.set(AclId(1), row.is_none().then(|| acl(2_000)).as_ref(), &rows);
            }
        }
        assert!(store.buckets.bytes() <= 2 * bytes, "{bytes} bytes grew to {}", store.buckets.bytes());
    }
}
