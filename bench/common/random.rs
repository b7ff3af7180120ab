//! Generators of random numbers with a fixed sequence, so that all runs measure the same tables, queries and
//! clusters.

/// Seed of tables, queries, traffic and clusters.
pub(crate) const SEED: u64 = 0x9a11_5ade;

/// The generator xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators,
/// scrambled", 2014). Its state must not be zero.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns 128 random bits.
    pub(crate) fn bits(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// Returns a number less than `end`, which is at most 2^32.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 32) * end >> 32
    }
}

/// The generator `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014). The clusters of the compiler benchmark come from its sequence.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Returns a number less than `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
