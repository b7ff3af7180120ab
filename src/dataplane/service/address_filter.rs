//! Filter of the addresses that may be virtual ones: one look for each packet.

use crate::net::address::Address;

/// Bits for each address, and in all.
const BITS_PER_ADDRESS: usize = 32;
const BITS: std::ops::RangeInclusive<usize> = 1024..=1 << 21;

/// Bits of a set of addresses.
#[derive(Default)]
pub(super) struct Filter {
    words: Box<[u64]>,
}

impl Filter {
    /// The filter of these addresses.
    pub(super) fn of(addresses: impl Iterator<Item = Address>) -> Filter {
        let addresses: Vec<Address> = addresses.collect();
        let bits = (addresses.len() * BITS_PER_ADDRESS).clamp(*BITS.start(), *BITS.end());
        let mut words = vec![0u64; bits.next_power_of_two() / 64];
        for address in addresses {
            let bit = Filter::bit(address) & (words.len() * 64 - 1);
            words[bit / 64] |= 1 << (bit % 64);
        }
        Filter { words: words.into() }
    }

    #[inline]
    fn bit(address: Address) -> usize {
        let folded = address as u64 ^ ((address >> 64) as u64).rotate_left(29);
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
    }

    /// Whether an address may be among them.
    #[inline]
    pub(super) fn may_have(&self, address: Address) -> bool {
        let bit = Filter::bit(address) & (self.words.len() * 64).wrapping_sub(1);
        self.words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}
