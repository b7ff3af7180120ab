//! Grace period of BPF programs.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

/// Waits for every running BPF program to end, and with it the driver's NAPI poll, in which a redirected
/// frame is delivered (`XDP_REDIRECT`, a "three-step process", in `net/core/filter.c`).
///
/// The kernel waits for them when a map of maps is changed (`maybe_wait_bpf_programs` of
/// `kernel/bpf/syscall.c`, Linux 4.19).
pub(crate) fn wait_for_programs() -> libbpf_rs::Result<()> {
    const WORD_BYTES: u32 = size_of::<u32>() as u32;
    let create = |kind, options: &bpf_map_create_opts| {
        MapHandle::create(kind, Some("palisade_wait"), WORD_BYTES, WORD_BYTES, 1, options)
    };
    let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, ..Default::default() };
    let inner = create(MapType::Array, &options)?;
    let inner_fd = inner.as_fd().as_raw_fd();
    let outer = create(
        MapType::ArrayOfMaps,
        &bpf_map_create_opts { inner_map_fd: inner_fd.cast_unsigned(), ..options },
    )?;
    outer.update(&0_u32.to_ne_bytes(), &inner_fd.to_ne_bytes(), MapFlags::ANY)
}
