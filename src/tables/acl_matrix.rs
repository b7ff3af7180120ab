//! Compiled ACL tables: the row of a class in a table, by index.
//!
//! The cells of a table, one for each class, are cut into pages of 64. A page in which every class has the default row is
//! shared by all tables with that default, so that memory follows what tables say, not tables times classes. A
//! directory gives the page of each table and 64 classes.

use std::collections::BTreeMap;
use std::hint::select_unpredictable;

use super::Acl;
use super::arena::{Arena, Unit, first_word};
use crate::ids::{AclId, ClassId, RowId};

const PAGE_CLASSES: usize = 64;

/// The row of every class in a table that is not there.
pub(super) const NOWHERE: RowId = RowId(u32::MAX);

/// A page that tables with the same default share.
#[derive(Clone)]
struct Shared {
    page: Unit,
    tables: usize,
}

/// All ACL tables, by id. A clone is cheap and shares what does not change.
#[derive(Clone)]
pub(super) struct AclMatrix {
    cells: Arena,
    /// A page of [`NOWHERE`]; then the pages table by table, `columns` each. The last column of a table is a
    /// page of its default, for all classes beyond.
    directory: Arena,
    tables: usize,
    columns: usize,
    defaults: BTreeMap<RowId, Shared>,
}

impl Default for AclMatrix {
    fn default() -> AclMatrix {
        let mut matrix = AclMatrix {
            cells: Arena::default(),
            directory: Arena::default(),
            tables: 0,
            columns: 1,
            defaults: BTreeMap::new(),
        };
        let nowhere = matrix.take_default(NOWHERE);
        matrix.directory.reserve_pages(1, nowhere);
        matrix
    }
}

/// Look-up.
impl AclMatrix {
    /// The row of `class` in table `id`; [`NOWHERE`] if there is no such table.
    #[inline]
    pub(super) fn row(&self, id: AclId, class: ClassId) -> RowId {
        self.row_at(self.cell(id, class))
    }

    /// The place of a cell: known before the cell is near.
    #[inline]
    pub(super) fn cell(&self, id: AclId, class: ClassId) -> usize {
        let column = (class.index() / PAGE_CLASSES).min(self.columns - 1);
        let known = id.index() < self.tables;
        let page = select_unpredictable(known, self.first_column(id) + column, 0);
        first_word(self.directory.word(page)) + class.index() % PAGE_CLASSES
    }

    /// The row at a place that [`AclMatrix::cell`] gave.
    #[inline]
    pub(super) fn row_at(&self, cell: usize) -> RowId {
        RowId(self.cells.word(cell))
    }

    /// Brings a cell near.
    #[inline]
    pub(super) fn prefetch(&self, cell: usize) {
        self.cells.prefetch(cell);
    }

    #[inline]
    fn first_column(&self, id: AclId) -> usize {
        1 + id.index() * self.columns
    }
}

/// Building.
impl AclMatrix {
    /// Sets a table, or clears it.
    pub(super) fn set(&mut self, id: AclId, acl: Option<&Acl>) {
        let last_class = acl.and_then(|acl| acl.rows.last_key_value());
        self.make_columns(last_class.map_or(0, |(class, _)| class.index() / PAGE_CLASSES + 1));
        while self.tables <= id.index() {
            let nowhere = self.take_default(NOWHERE);
            self.push_table(&vec![nowhere; self.columns]);
        }
        let before = self.pages(id);
        let default = self.take_default(acl.map_or(NOWHERE, |acl| acl.default));
        let mut pages = vec![default; self.columns];
        let cells: Vec<_> = acl.iter().flat_map(|acl| &acl.rows).collect();
        for part in cells.chunk_by(|(a, _), (b, _)| a.index() / PAGE_CLASSES == b.index() / PAGE_CLASSES) {
            let mut page = *self.cells.block::<PAGE_CLASSES>(default);
            for (class, row) in part {
                page[class.index() % PAGE_CLASSES] = row.0;
            }
            pages[part[0].0.index() / PAGE_CLASSES] = self.cells.put(&page);
        }
        self.release(&before);
        let first = self.first_column(id);
        pages.into_iter().enumerate().for_each(|(column, page)| self.directory.set(first + column, page));
    }

    /// The pages of a table.
    fn pages(&self, id: AclId) -> Vec<Unit> {
        let first = self.first_column(id);
        (first..first + self.columns).map(|at| self.directory.word(at)).collect()
    }

    fn push_table(&mut self, pages: &[Unit]) {
        let first = self.first_column(AclId(self.tables as u32));
        if let Some(missing) = (first + pages.len()).checked_sub(self.directory.words()) {
            self.directory.reserve_pages(missing, 0);
        }
        pages.iter().enumerate().for_each(|(column, &page)| self.directory.set(first + column, page));
        self.tables += 1;
    }

    /// Widens all tables to `columns` columns and the last.
    fn make_columns(&mut self, columns: usize) {
        if columns < self.columns {
            return;
        }
        let tables: Vec<Vec<Unit>> = (0..self.tables).map(|id| self.pages(AclId(id as u32))).collect();
        // Twice as many, so that classes which come one at a time do not widen the tables each time.
        self.columns = (columns + 1).max(2 * self.columns);
        let nowhere = self.directory.word(0);
        self.directory = Arena::default();
        self.directory.reserve_pages(1, nowhere);
        self.tables = 0;
        for mut pages in tables {
            pages.resize(self.columns, pages[pages.len() - 1]);
            self.push_table(&pages);
        }
    }

    /// A page of `row` for one more table.
    fn take_default(&mut self, row: RowId) -> Unit {
        let cells = &mut self.cells;
        let shared = self.defaults.entry(row);
        let shared = shared.or_insert_with(|| Shared { page: cells.put(&[row.0; PAGE_CLASSES]), tables: 0 });
        shared.tables += 1;
        shared.page
    }

    /// Gives back the pages of a table.
    fn release(&mut self, pages: &[Unit]) {
        let default = pages[pages.len() - 1];
        pages.iter().filter(|&&page| page != default).for_each(|&page| self.cells.free(page, PAGE_CLASSES));
        let row = RowId(self.cells.word(first_word(default)));
        if let Some(shared) = self.defaults.get_mut(&row) {
            shared.tables -= 1;
            if shared.tables == 0 {
                self.defaults.remove(&row);
                self.cells.free(default, PAGE_CLASSES);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn acl() -> impl Strategy<Value = Acl> {
        let class = prop_oneof![0..20_u32, 60..70_u32, 4090..4100_u32, 0..20_000_u32].prop_map(ClassId);
        let rows = btree_map(class, (0..5_u32).prop_map(RowId), 0..20);
        (rows, 0..5_u32).prop_map(|(rows, default)| Acl { rows, default: RowId(default) })
    }

    proptest! {
        #[test]
        fn gives_the_rows_that_the_tables_give(
            changes in vec((0..6_u32, prop::option::of(acl())), 1..30),
            classes in vec(0..30_000_u32, 30),
        ) {
            let (mut matrix, mut naive) = (AclMatrix::default(), BTreeMap::new());
            for (id, acl) in changes {
                matrix.set(AclId(id), acl.as_ref());
                naive.insert(AclId(id), acl);
            }
            let named = naive.values().flatten().flat_map(|acl| acl.rows.keys().copied());
            let classes: Vec<ClassId> = named.chain(classes.into_iter().map(ClassId)).collect();
            for (id, class) in (0..8).flat_map(|id| classes.iter().map(move |&class| (AclId(id), class))) {
                let expected = naive.get(&id).and_then(Option::as_ref).map_or(NOWHERE, |acl| acl.row(class));
                prop_assert_eq!(matrix.row(id, class), expected);
            }
        }
    }

    #[test]
    fn tables_that_say_little_take_little() {
        let mut matrix = AclMatrix::default();
        for id in 0..500 {
            let rows = BTreeMap::from([(ClassId(19_999), RowId(1))]);
            matrix.set(AclId(id), Some(&Acl { rows, default: RowId(0) }));
        }
        assert!(
            matrix.cells.bytes() + matrix.directory.bytes() < 2 << 20,
            "{} bytes",
            matrix.cells.bytes() + matrix.directory.bytes()
        );
        for id in 0..500 {
            matrix.set(AclId(id), None);
        }
        assert_eq!(matrix.defaults.len(), 1, "only tables that are not there are left");
    }
}
