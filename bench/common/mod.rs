//! What the benchmarks share: random numbers that are the same in every run, the rate of the time-stamp counter,
//! and rule tables of any size.

#![allow(dead_code)] // Each benchmark uses its part.

pub(crate) mod policy;
pub(crate) mod rule_tables;
pub(crate) mod simulated_node;
pub(crate) mod traffic;

use std::time::{Duration, Instant};

/// xorshift64*: the same tables and queries in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn bits(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 32) * end >> 32
    }
}

/// Rate of the time-stamp counter, measured against the clock.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tsc_ghz() -> f64 {
    // SAFETY: every x86-64 processor has the instruction, and it has no effect.
    let ticks = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, from) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(50));
    (ticks() - from) as f64 / start.elapsed().as_nanos() as f64
}

/// Without a time-stamp counter: a cycle is a nanosecond.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn tsc_ghz() -> f64 {
    1.0
}
