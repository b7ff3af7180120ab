//! Compiled ACL tables: the row of a class in a table, by index.
//!
//! The cells of a table, one for each class, are cut into pages of 256. A page in which every class has the default
//! row is shared by all tables with that default, so that memory follows what tables say, not tables times classes.

use std::collections::BTreeMap;

use super::Acl;
use super::arena::{Arena, BLOCK_WORDS_MAX, Unit, first_word};
use crate::ids::{AclId, ClassId, RowId};

const PAGE_CLASSES: usize = BLOCK_WORDS_MAX;

/// The row of every class in a table that is not there.
pub(super) const NOWHERE: RowId = RowId(u32::MAX);

/// A page that tables with the same default share.
#[derive(Clone)]
struct Shared {
    page: Unit,
    tables: usize,
}

/// All ACL tables, by id. A clone is cheap and shares what does not change.
#[derive(Clone, Default)]
pub(super) struct AclMatrix {
    cells: Arena,
    /// The page of each table and group of classes: table by table, `columns` each. The last column of a table
    /// is a page of its default, for all classes beyond.
    pages: Vec<Unit>,
    columns: usize,
    defaults: BTreeMap<RowId, Shared>,
}

impl AclMatrix {
    /// Sets a table, or clears it.
    pub(super) fn set(&mut self, id: AclId, acl: Option<&Acl>) {
        let last_class = acl.and_then(|acl| acl.rows.last_key_value());
        self.make_columns(last_class.map_or(0, |(class, _)| class.index() / PAGE_CLASSES + 1));
        while self.pages.len() < (id.index() + 1) * self.columns {
            let nowhere = self.take_default(NOWHERE);
            self.pages.extend(std::iter::repeat_n(nowhere, self.columns));
        }
        let first = id.index() * self.columns;
        let default = self.take_default(acl.map_or(NOWHERE, |acl| acl.default));
        self.release(first);
        self.pages[first..first + self.columns].fill(default);
        let cells: Vec<_> = acl.iter().flat_map(|acl| &acl.rows).collect();
        for group in cells.chunk_by(|(a, _), (b, _)| a.index() / PAGE_CLASSES == b.index() / PAGE_CLASSES) {
            let mut page = *self.cells.block::<PAGE_CLASSES>(default);
            group.iter().for_each(|(class, row)| page[class.index() % PAGE_CLASSES] = row.0);
            self.pages[first + group[0].0.index() / PAGE_CLASSES] = self.cells.put(&page);
        }
    }

    /// The row of `class` in table `id`; [`NOWHERE`] if there is no such table.
    #[inline]
    pub(super) fn row(&self, id: AclId, class: ClassId) -> RowId {
        self.cell(id, class).map_or(NOWHERE, |word| self.row_at(word))
    }

    /// The place of a cell: known before the cell is near. `None` if there is no such table.
    #[inline(always)]
    pub(super) fn cell(&self, id: AclId, class: ClassId) -> Option<usize> {
        let column = (class.index() / PAGE_CLASSES).min(self.columns.wrapping_sub(1));
        let page = self.pages.get(id.index() * self.columns + column)?;
        Some(first_word(*page) + class.index() % PAGE_CLASSES)
    }

    /// The row at a place that [`AclMatrix::cell`] gave.
    #[inline(always)]
    pub(super) fn row_at(&self, cell: usize) -> RowId {
        RowId(self.cells.word(cell))
    }

    /// Widens all tables to `columns` columns and the last.
    fn make_columns(&mut self, columns: usize) {
        if columns < self.columns {
            return;
        }
        // Twice as many, so that classes which come one at a time do not widen the tables each time.
        let wider = (columns + 1).max(2 * self.columns);
        let tables = std::mem::take(&mut self.pages);
        for table in tables.chunks(self.columns.max(1)) {
            self.pages.extend(table);
            self.pages.extend(std::iter::repeat_n(table[table.len() - 1], wider - table.len()));
        }
        self.columns = wider;
    }

    /// A page of `row` for one more table.
    fn take_default(&mut self, row: RowId) -> Unit {
        let cells = &mut self.cells;
        let shared = self.defaults.entry(row);
        let shared = shared.or_insert_with(|| Shared { page: cells.put(&[row.0; PAGE_CLASSES]), tables: 0 });
        shared.tables += 1;
        shared.page
    }

    /// Gives back the pages of the table whose first is at `first`.
    fn release(&mut self, first: usize) {
        let pages = &self.pages[first..first + self.columns];
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
        let class = prop_oneof![0..20_u32, 250..260_u32, 0..3000_u32].prop_map(ClassId);
        let rows = btree_map(class, (0..5_u32).prop_map(RowId), 0..20);
        (rows, 0..5_u32).prop_map(|(rows, default)| Acl { rows, default: RowId(default) })
    }

    proptest! {
        #[test]
        fn gives_the_rows_that_the_tables_give(
            changes in vec((0..6_u32, prop::option::of(acl())), 1..30),
            classes in vec(0..4000_u32, 30),
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
        assert!(matrix.cells.bytes() < 1 << 20, "{} bytes", matrix.cells.bytes());
        for id in 0..500 {
            matrix.set(AclId(id), None);
        }
        assert_eq!(matrix.defaults.len(), 1, "only tables that are not there are left");
    }
}
