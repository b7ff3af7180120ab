//! Port ranges as masked ports.

/// Ports with a mask that make up a range: first port, and number of leading bits that count.
pub(super) fn masked(first: u16, last: u16) -> Vec<(u16, u8)> {
    let mut masked = Vec::new();
    let (mut next, end) = (u32::from(first), u32::from(last));
    while next <= end {
        // The largest block that begins here and ends in the range.
        let mut host = next.trailing_zeros().min(16);
        while next + (1 << host) - 1 > end {
            host -= 1;
        }
        masked.push((next as u16, 16 - host as u8));
        next += 1 << host;
    }
    masked
}

/// Mask of a number of leading bits.
pub(super) fn mask(bits: u8) -> u16 {
    u16::MAX.checked_shl(16 - u32::from(bits)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_fewest_masked_ports() {
        assert_eq!(masked(0, 65_535), [(0, 0)]);
        assert_eq!(masked(443, 443), [(443, 16)]);
        assert_eq!(masked(65_535, 65_535), [(65_535, 16)]);
        assert_eq!(masked(1, 65_535).len(), 16);
        let thousand =
            [(6_000, 12), (6_016, 9), (6_144, 7), (6_656, 8), (6_912, 10), (6_976, 12), (6_992, 13)];
        assert_eq!(masked(6_000, 6_999), thousand);
        assert_eq!([0, 9, 16].map(mask), [0, 0xff80, 0xffff]);
    }

    #[test]
    fn masked_ports_match_the_range_alone() {
        for (first, last) in [(0, 0), (1, 2), (1000, 1000), (30_000, 32_767), (1, 65_534), (65_000, 65_535)] {
            let parts = masked(first, last);
            for port in 0..=u16::MAX {
                let found = parts.iter().filter(|(start, bits)| port & mask(*bits) == *start).count();
                assert_eq!(found, usize::from((first..=last).contains(&port)), "{first}-{last}: {port}");
            }
        }
    }
}
