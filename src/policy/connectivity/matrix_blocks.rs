//! Matrix blocks: values by source and destination, with equal rows and equal columns merged.

use std::collections::BTreeMap;

/// Block of sources times destinations that have one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MatrixBlock<T> {
    /// Indices of sources.
    pub(super) sources: Vec<usize>,
    /// Indices of destinations.
    pub(super) destinations: Vec<usize>,
    /// Value of each pair.
    pub(super) value: T,
}

/// Divides all pairs with a value that is not empty into blocks. Each such pair is in exactly one block.
pub(super) fn matrix_blocks<E, T: Clone + Ord>(
    items: &[E],
    mut value: impl FnMut(&E, &E) -> T,
    is_empty: impl Fn(&T) -> bool,
) -> Vec<MatrixBlock<T>> {
    let mut values: BTreeMap<T, usize> = BTreeMap::new();
    let mut rows: Vec<BTreeMap<usize, usize>> = Vec::new();
    for from in items {
        let mut row = BTreeMap::new();
        for (to, destination) in items.iter().enumerate() {
            let value = value(from, destination);
            if !is_empty(&value) {
                let next = values.len();
                row.insert(to, *values.entry(value).or_insert(next));
            }
        }
        rows.push(row);
    }
    let sources = group(rows.iter().enumerate().filter(|(_, row)| !row.is_empty()));
    let mut columns: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for (at, (row, _)) in sources.iter().enumerate() {
        for (&to, &value) in *row {
            columns.entry(to).or_default().insert(at, value);
        }
    }
    let by_number: BTreeMap<usize, T> = values.into_iter().map(|(value, number)| (number, value)).collect();
    let mut found = Vec::new();
    for (column, destinations) in group(columns.iter().map(|(to, column)| (*to, column))) {
        let mut by_value: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (&at, &value) in column {
            by_value.entry(value).or_default().extend(&sources[at].1);
        }
        for (value, mut sources) in by_value {
            sources.sort_unstable();
            let value = by_number[&value].clone();
            found.push(MatrixBlock { sources, destinations: destinations.clone(), value });
        }
    }
    found
}

/// Groups equal lines, in the order of their first occurrence.
fn group<'l>(
    lines: impl Iterator<Item = (usize, &'l BTreeMap<usize, usize>)>,
) -> Vec<(&'l BTreeMap<usize, usize>, Vec<usize>)> {
    let mut known: BTreeMap<&BTreeMap<usize, usize>, usize> = BTreeMap::new();
    let mut groups: Vec<(&BTreeMap<usize, usize>, Vec<usize>)> = Vec::new();
    for (at, line) in lines {
        let next = groups.len();
        let group = *known.entry(line).or_insert(next);
        if group == next {
            groups.push((line, Vec::new()));
        }
        groups[group].1.push(at);
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn every_pair_that_is_not_void_is_in_exactly_one_rectangle(
            cells in prop::collection::vec(prop::collection::vec(0..3_u8, 5), 5),
        ) {
            let items: Vec<usize> = (0..5).collect();
            let mut covered = vec![vec![0; 5]; 5];
            for block in matrix_blocks(&items, |&from, &to| cells[from][to], |value| *value == 0) {
                for &from in &block.sources {
                    for &to in &block.destinations {
                        prop_assert_eq!(covered[from][to], 0);
                        covered[from][to] = block.value;
                    }
                }
            }
            prop_assert_eq!(covered, cells);
        }
    }

    #[test]
    fn lines_that_are_alike_are_one_rectangle() {
        let found = matrix_blocks(&[0, 1, 2, 3], |from, to| from / 2 != to / 2, |differs| !differs);
        let pairs: Vec<_> =
            found.iter().map(|one| (one.sources.as_slice(), one.destinations.as_slice())).collect();
        assert_eq!(pairs, [(&[2, 3][..], &[0, 1][..]), (&[0, 1][..], &[2, 3][..])]);
    }
}
