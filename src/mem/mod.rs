//! Memory primitives: page mappings, arrays in huge pages, arrays in mapped files, copy-on-write blocks,
//! a sequence lock, prefetch and SIMD comparisons. It holds all unsafe code outside [`xdp`](crate::xdp).

mod copy_on_write;
mod holders;
mod huge_array;
mod mapped_file;
mod pages;
mod parts;
mod prefetch;
mod sequence_lock;
mod simd;

#[cfg(test)]
mod loom_tests;

pub(crate) use copy_on_write::{SHARED_WORDS, SharedWords};
pub use huge_array::HugeArray;
pub(crate) use mapped_file::{Atomics, FileMemory};
pub(crate) use pages::{HUGE_PAGE_BYTES, Pages};
pub(crate) use prefetch::prefetch_address;
pub use prefetch::{prefetch_read, prefetch_write};
pub(crate) use sequence_lock::SequenceLock;
pub(crate) use simd::{bytes_equal, count_below, place_of};
