//! Prefetch instructions.

#![allow(unsafe_code)]

use std::ptr;

/// Prefetches the cache line of `value` for reading.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub fn prefetch_read<T>(value: &T) {
    prefetch_address(ptr::from_ref(value).cast());
}

/// Prefetches the cache line at an address for reading. The address may be invalid.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub(crate) fn prefetch_address(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache line of `value` for writing.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost more than the instruction.
pub fn prefetch_write<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_changes_nothing() {
        let value = [1u64, 2, 3];
        prefetch_read(&value);
        prefetch_write(&value);
        assert_eq!(value, [1, 2, 3]);
    }
}
