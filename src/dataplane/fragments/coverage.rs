//! Parts of a datagram that have come, in units of eight bytes: "The fragment offset is measured in units of
//! 8 octets (64 bits)" (RFC 791 section 3.1).

/// Number of units of the largest datagram.
const UNITS: usize = 8192;

/// Units that have come, a bit each.
#[derive(Debug, Clone)]
pub(super) struct Coverage {
    words: [u64; UNITS / 64],
    units: usize,
}

/// Extent to which a part had come before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    None,
    Partial,
    Full,
}

impl Coverage {
    pub(super) const NONE: Coverage = Coverage { words: [0; UNITS / 64], units: 0 };

    /// Marks the units from `first_unit` up to `end_unit`. Returns the extent to which they were marked
    /// before.
    pub(super) fn mark(&mut self, first_unit: usize, end_unit: usize) -> Overlap {
        let end_unit = end_unit.min(UNITS);
        let mut before = 0;
        for word in first_unit / 64..end_unit.div_ceil(64) {
            let start = first_unit.saturating_sub(word * 64);
            let end = (end_unit - word * 64).min(64);
            let mask = u64::MAX >> (64 - (end - start)) << start;
            before += (self.words[word] & mask).count_ones() as usize;
            self.words[word] |= mask;
        }
        let units = end_unit.saturating_sub(first_unit);
        self.units += units - before;
        match before {
            0 => Overlap::None,
            _ if before == units => Overlap::Full,
            _ => Overlap::Partial,
        }
    }

    /// Whether all units are marked.
    pub(super) fn is_complete(&self) -> bool {
        self.units == UNITS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn coverage_agrees_with_a_set_of_units(
            parts in proptest::collection::vec((0_usize..8192, 1_usize..200), 1..40),
        ) {
            let mut coverage = Coverage::NONE;
            let mut set = std::collections::BTreeSet::new();
            for (from, len) in parts {
                let to = (from + len).min(8192);
                let before = (from..to).filter(|unit| set.contains(unit)).count();
                let expected = match before {
                    0 => Overlap::None,
                    n if n == to - from => Overlap::Full,
                    _ => Overlap::Partial,
                };
                prop_assert_eq!(coverage.mark(from, to), expected);
                set.extend(from..to);
                prop_assert_eq!(coverage.is_complete(), set.len() == 8192);
            }
        }
    }

    #[test]
    fn a_datagram_is_complete_when_every_unit_was_seen_in_any_order() {
        let mut coverage = Coverage::NONE;
        for (from, to) in [(185, 370), (370, 8192), (0, 185)] {
            assert!(!coverage.is_complete());
            assert_eq!(coverage.mark(from, to), Overlap::None);
        }
        assert!(coverage.is_complete());
    }
}
