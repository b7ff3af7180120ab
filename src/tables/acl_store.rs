//! Compiled ACL tables: the row of a class in a table, by one cache line.
//!
//! A table names few of the classes; every other one has its default row. So each is a hash table of the classes that it
//! names, cut into buckets of one cache line: eight classes, then their rows. The line that holds the answer is known from
//! the table's header (sixteen bytes, nearly always near), and says by itself whether the class is named. Memory follows
//! what tables say, not tables times classes.
//!
//! A bucket with more than eight classes goes on in a further one, whose place stands where its last class would. Buckets
//! hold two to four classes on average, so that one in fifty does.

use super::Acl;
use super::arena::{Arena, Unit, first_word};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::CLASSES_MAX;
use crate::mem::prefetch_read;

/// The row of every class in a table that is not there.
pub(super) const NOWHERE: RowId = RowId(u32::MAX);

const BUCKET_WORDS: usize = 16;
const ENTRIES: usize = 8;
/// Most classes for each bucket of a table with more than one.
const LOAD_MAX: usize = 4;

/// Stands where no class is.
const FREE: u32 = 1 << 30;
/// Marks the place of the bucket in which this one goes on.
const FURTHER: u32 = 1 << 31;

const _: () = assert!(CLASSES_MAX < FREE as usize, "a class is neither free nor further");
const _: () = assert!(2 * ENTRIES == BUCKET_WORDS);

type Bucket = [u32; BUCKET_WORDS];

const EMPTY: Bucket = {
    let mut bucket = [0; BUCKET_WORDS];
    let mut i = 0;
    while i < ENTRIES {
        bucket[i] = FREE;
        i += 1;
    }
    bucket
};

/// What is to be known of a table before its buckets.
#[derive(Debug, Clone, Copy)]
struct Header {
    default: RowId,
    /// The first of its buckets, which lie side by side.
    buckets: Unit,
    /// Bits of a class's hash that do not number its bucket.
    shift: u32,
    /// Number of classes that it names.
    named: u32,
}

const HEADER_WORDS: usize = 4;

/// Where the row of a class stands, if its table names it, and the row that it has otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    bucket: &'a Bucket,
    default: u32,
}

impl Cell<'_> {
    /// Of no class in no table.
    pub(super) const NONE: Cell<'static> = Cell { bucket: &EMPTY, default: NOWHERE.0 };

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
    /// Words of a bucket: classes; then by class its row, exclusive-or the table's default, so that what is not found is the
    /// default without a branch. First the bucket of all tables that name no class.
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
    fn empty(default: RowId) -> Header {
        Header { default, buckets: NO_BUCKETS, shift: 32, named: 0 }
    }

    #[inline]
    fn of([default, buckets, shift, named]: [u32; HEADER_WORDS]) -> Header {
        Header { default: RowId(default), buckets, shift, named }
    }

    fn words(self) -> [u32; HEADER_WORDS] {
        [self.default.0, self.buckets, self.shift, self.named]
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
    /// The row of `class` in table `id`; [`NOWHERE`] if there is no such table.
    #[inline]
    pub(super) fn row(&self, id: AclId, class: ClassId) -> RowId {
        self.row_at(self.cell(id, class), class)
    }

    /// The place of a cell: known before the cell is near.
    #[inline]
    pub(super) fn cell(&self, id: AclId, class: ClassId) -> Cell<'_> {
        let header = self.header(id);
        Cell { bucket: self.buckets.block_at(header.bucket(class)), default: header.default.0 }
    }

    /// The row at a place that [`AclStore::cell`] gave for `class`.
    #[inline]
    pub(super) fn row_at(&self, cell: Cell<'_>, class: ClassId) -> RowId {
        let found = find(cell.bucket, class);
        let last = cell.bucket[ENTRIES - 1];
        if (last & FURTHER != 0) & (found == 0) {
            return self.row_further(last, cell.default, class);
        }
        RowId(found ^ cell.default)
    }

    #[cold]
    fn row_further(&self, further: u32, default: u32, class: ClassId) -> RowId {
        let bucket = self.buckets.block(further ^ FURTHER);
        self.row_at(Cell { bucket, default }, class)
    }

    #[inline]
    fn header(&self, id: AclId) -> Header {
        self.headers.find_block(header_word(id)).map_or(Header::empty(NOWHERE), |&words| Header::of(words))
    }
}

/// What stands for a class in a bucket; zero if nothing does. No branch: every place is compared.
#[inline]
fn find(bucket: &Bucket, class: ClassId) -> u32 {
    let (classes, rows) = bucket.split_at(ENTRIES);
    let row = |(&at, &row): (&u32, &u32)| if at == class.0 { row } else { 0 };
    classes.iter().zip(rows).map(row).fold(0, |found, row| found | row)
}

#[inline]
fn header_word(id: AclId) -> usize {
    id.index() * HEADER_WORDS
}

/// Building.
impl AclStore {
    /// Sets a table, or clears it.
    pub(super) fn set(&mut self, id: AclId, acl: Option<&Acl>) {
        self.make_header(id);
        self.release(self.header(id));
        let named = acl.into_iter().flat_map(|acl| acl.rows.iter().map(|(&class, &row)| (class, row)));
        let header = self.lay_out(acl.map_or(NOWHERE, |acl| acl.default), named);
        self.headers.write(header_word(id), &header.words());
    }

    /// Sets the row of one class in a table that is there; `None` is the table's default.
    pub(super) fn set_row(&mut self, id: AclId, class: ClassId, row: Option<RowId>) {
        let mut header = self.header(id);
        let value = row.map_or(0, |row| row.0 ^ header.default.0);
        let (bucket, place) = match self.place(header.bucket(class), class) {
            // A class that has the default is not named.
            None if value == 0 => return,
            None if buckets_for(header.named as usize + 1) > header.len() => {
                let mut named = self.named(header);
                named.push((class, RowId(value ^ header.default.0)));
                return self.lay_out_again(id, header, &named);
            }
            None => {
                header.named += 1;
                self.free_place(header.bucket(class))
            }
            Some(at) => {
                header.named -= u32::from(value == 0);
                at
            }
        };
        self.buckets.set(bucket + place, if value == 0 { FREE } else { class.0 });
        self.buckets.set(bucket + ENTRIES + place, value);
        self.headers.write(header_word(id), &header.words());
        // Tables that lose most of their classes give memory back.
        if 4 * buckets_for(header.named as usize) < header.len() {
            self.lay_out_again(id, header, &self.named(header));
        }
    }

    /// Makes the header of a table that is not there, and of those up to it.
    fn make_header(&mut self, id: AclId) {
        while self.headers.words() <= header_word(id) {
            let page = self.headers.reserve_pages(HEADER_WORDS, 0);
            let headers = (page..self.headers.words()).step_by(HEADER_WORDS);
            headers.for_each(|at| self.headers.write(at, &Header::empty(NOWHERE).words()));
        }
    }

    fn lay_out_again(&mut self, id: AclId, header: Header, named: &[(ClassId, RowId)]) {
        self.release(header);
        let header = self.lay_out(header.default, named.iter().copied());
        self.headers.write(header_word(id), &header.words());
    }

    /// Makes the buckets of a table.
    fn lay_out(&mut self, default: RowId, named: impl Iterator<Item = (ClassId, RowId)>) -> Header {
        let named: Vec<_> = named.filter(|&(_, row)| row != default).collect();
        let count = buckets_for(named.len());
        if count == 0 {
            return Header::empty(default);
        }
        let buckets = self.buckets.allocate(count * BUCKET_WORDS);
        let header =
            Header { default, buckets, shift: 32 - count.trailing_zeros(), named: named.len() as u32 };
        (0..count).for_each(|i| self.buckets.write(first_word(buckets) + i * BUCKET_WORDS, &EMPTY));
        for (class, row) in named {
            let (bucket, place) = self.free_place(header.bucket(class));
            self.buckets.set(bucket + place, class.0);
            self.buckets.set(bucket + ENTRIES + place, row.0 ^ default.0);
        }
        header
    }

    /// The bucket, of those that a first one goes on in, and the place in there that a class has.
    fn place(&self, first: usize, class: ClassId) -> Option<(usize, usize)> {
        self.chain(first)
            .into_iter()
            .find_map(|(at, bucket)| Some((at, bucket[..ENTRIES].iter().position(|&at| at == class.0)?)))
    }

    /// A free place for a class, made if there is none.
    fn free_place(&mut self, first: usize) -> (usize, usize) {
        let chain = self.chain(first);
        let free = chain
            .iter()
            .find_map(|(at, bucket)| Some((*at, bucket[..ENTRIES].iter().position(|&class| class == FREE)?)));
        free.unwrap_or_else(|| {
            let (at, bucket) = chain[chain.len() - 1];
            let (class, row) = (bucket[ENTRIES - 1], bucket[2 * ENTRIES - 1]);
            let mut further = EMPTY;
            (further[0], further[ENTRIES]) = (class, row);
            let further = self.buckets.put(&further);
            self.buckets.set(at + ENTRIES - 1, FURTHER | further);
            self.buckets.set(at + 2 * ENTRIES - 1, 0);
            (first_word(further), 1)
        })
    }

    /// A bucket and those that it goes on in.
    fn chain(&self, first: usize) -> Vec<(usize, Bucket)> {
        let mut chain = Vec::new();
        let mut next = Some(first);
        while let Some(at) = next {
            let bucket: Bucket = *self.buckets.block_at(at);
            chain.push((at, bucket));
            next = further(&bucket).map(first_word);
        }
        chain
    }

    /// The classes that a table names.
    fn named(&self, header: Header) -> Vec<(ClassId, RowId)> {
        let firsts = (0..header.len()).map(|i| first_word(header.buckets) + i * BUCKET_WORDS);
        let buckets = firsts.flat_map(|first| self.chain(first));
        let entries =
            buckets.flat_map(|(_, bucket)| (0..ENTRIES).map(move |i| (bucket[i], bucket[ENTRIES + i])));
        let named = entries.filter(|(class, _)| class & (FREE | FURTHER) == 0);
        named.map(|(class, row)| (ClassId(class), RowId(row ^ header.default.0))).collect()
    }

    /// Gives back the buckets of a table.
    fn release(&mut self, header: Header) {
        if header.len() == 0 {
            return;
        }
        for first in (0..header.len()).map(|i| first_word(header.buckets) + i * BUCKET_WORDS) {
            for (_, bucket) in self.chain(first) {
                further(&bucket).into_iter().for_each(|unit| self.buckets.free(unit, BUCKET_WORDS));
            }
        }
        self.buckets.free(header.buckets, header.len() * BUCKET_WORDS);
    }
}

/// The bucket in which this one goes on.
fn further(bucket: &Bucket) -> Option<Unit> {
    let last = bucket[ENTRIES - 1];
    (last & FURTHER != 0).then_some(last ^ FURTHER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    /// Many classes side by side, and some whose hash begins alike.
    fn class() -> impl Strategy<Value = ClassId> {
        let alike = (0..40_u32).prop_map(|i| (i << 12).wrapping_mul(0x0e8b_c451) & 0xf_ffff);
        prop_oneof![0..20_u32, 60..70_u32, 4090..4100_u32, 0..20_000_u32, alike].prop_map(ClassId)
    }

    fn acl() -> impl Strategy<Value = Acl> {
        let rows = btree_map(class(), (0..5_u32).prop_map(RowId), 0..80);
        (rows, 0..5_u32).prop_map(|(rows, default)| Acl { rows: rows.into(), default: RowId(default) })
    }

    #[derive(Debug, Clone)]
    enum Change {
        Table(Option<Acl>),
        Rows(Vec<(ClassId, Option<RowId>)>),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            prop::option::of(acl()).prop_map(Change::Table),
            vec((class(), prop::option::of((0..5_u32).prop_map(RowId))), 1..60).prop_map(Change::Rows),
        ]
    }

    proptest! {
        #[test]
        fn gives_the_rows_that_the_tables_give_and_leaves_clones_alone(
            changes in vec((0..6_u32, change()), 1..30),
            classes in vec(0..30_000_u32, 30),
        ) {
            let (mut store, mut naive) = (AclStore::default(), BTreeMap::<AclId, Option<Acl>>::new());
            let agree = |store: &AclStore, naive: &BTreeMap<AclId, Option<Acl>>| {
                let named = naive.values().flatten().flat_map(|acl| acl.rows.keys().copied());
                let classes: Vec<ClassId> = named.chain(classes.iter().copied().map(ClassId)).collect();
                for (id, class) in (0..8).flat_map(|id| classes.iter().map(move |&class| (AclId(id), class))) {
                    let expected = naive.get(&id).and_then(Option::as_ref).map_or(NOWHERE, |acl| acl.row(class));
                    prop_assert_eq!(store.row(id, class), expected);
                }
                Ok(())
            };
            let mut earlier = None;
            for (id, change) in changes {
                let id = AclId(id);
                match change {
                    Change::Table(acl) => {
                        store.set(id, acl.as_ref());
                        naive.insert(id, acl);
                    }
                    Change::Rows(rows) => {
                        let Some(Some(acl)) = naive.get_mut(&id) else { continue };
                        for (class, row) in rows {
                            store.set_row(id, class, row);
                            match row {
                                Some(row) => acl.rows.insert(class, row),
                                None => acl.rows.remove(&class),
                            };
                        }
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
    fn tables_that_say_little_take_little() {
        let mut store = AclStore::default();
        for id in 0..500 {
            let rows = [(ClassId(19_999), RowId(1))].into();
            store.set(AclId(id), Some(&Acl { rows, default: RowId(0) }));
        }
        let bytes = store.headers.bytes() + store.buckets.bytes();
        assert!(bytes < 64 << 10, "{bytes} bytes");
    }

    #[test]
    fn memory_of_classes_that_come_and_go_is_used_again() {
        let mut store = AclStore::default();
        let acl = |named: u32| Acl {
            rows: (0..named).map(|i| (ClassId(3 * i), RowId(1))).collect(),
            default: RowId(0),
        };
        store.set(AclId(0), Some(&acl(50_000)));
        let bytes = store.buckets.bytes();
        for _ in 0..3 {
            (0..49_000).for_each(|i| store.set_row(AclId(0), ClassId(3 * i), None));
            store.set(AclId(1), Some(&acl(2_000)));
            (0..49_000).for_each(|i| store.set_row(AclId(0), ClassId(3 * i), Some(RowId(2))));
            store.set(AclId(1), None);
        }
        assert!(store.buckets.bytes() <= 2 * bytes, "{bytes} bytes grew to {}", store.buckets.bytes());
    }
}
