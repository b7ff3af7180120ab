//! Flow offload: tc programs at the pods' interfaces forward the packets of flows that the switch has recorded in maps, and
//! hand every other packet to it (`bpf/offload.bpf.c`).
//!
//! The maps are arrays that the switch maps into its memory, so that a record costs a worker no system call.

pub mod layout;
mod program;

pub(crate) use super::program::wait_for_programs;
pub use program::{OffloadProgram, Placement};

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use self::layout::{Bucket, Lease, PortWords, Record, Seed, WAYS};
use super::error::XdpError;
use crate::limits::PORTS_MAX;
use crate::mem::{FileMemory, HugeArray};

/// Maps of the program, and the memory that they lie in.
pub struct OffloadMaps {
    /// Buckets of the records, a power of two.
    pub buckets: HugeArray<Bucket>,
    /// Records of flows.
    pub records: HugeArray<Record>,
    /// Ports by number.
    pub ports: HugeArray<PortWords>,
    /// The lease.
    pub lease: HugeArray<Lease>,
    /// Secret of the hash.
    pub seed: Seed,
    /// Maps of the kernel by name; none of those in memory of the process.
    maps: Vec<(&'static str, MapHandle)>,
}

impl OffloadMaps {
    /// Makes maps for so many flows.
    pub fn new(flows: usize) -> Result<OffloadMaps, XdpError> {
        let mut maps = Vec::new();
        let memory = |name: &'static str, count: usize, bytes: usize| {
            let map = create(name, count, bytes)?;
            let memory = FileMemory::of_map(map.as_fd(), count * bytes)?;
            maps.push((name, map));
            Ok(memory)
        };
        let made = OffloadMaps::of(flows, memory);
        let made =
            made.map_err(|error| XdpError::from_io("make the maps of offloaded flows".to_owned(), &error))?;
        Ok(OffloadMaps { maps, ..made })
    }

    /// Makes maps in memory of the process, which no program reads.
    pub fn in_memory(flows: usize) -> io::Result<OffloadMaps> {
        OffloadMaps::of(flows, |_, count, bytes| FileMemory::of_process(count * bytes))
    }

    fn of(
        flows: usize,
        mut memory: impl FnMut(&'static str, usize, usize) -> io::Result<FileMemory>,
    ) -> io::Result<OffloadMaps> {
        // Half of the ways stay free where each flow takes one.
        let buckets = (2 * flows).div_ceil(WAYS).next_power_of_two();
        Ok(OffloadMaps {
            buckets: memory("buckets", buckets, size_of::<Bucket>())?.take(buckets, Bucket::from_words)?,
            records: memory("records", flows, size_of::<Record>())?.take(flows, Record::from_words)?,
            ports: memory("ports", PORTS_MAX, size_of::<PortWords>())?
                .take(PORTS_MAX, PortWords::from_words)?,
            lease: memory("leases", 1, size_of::<Lease>())?.take(1, Lease::from_words)?,
            seed: [0, 1].map(|i: u64| RandomState::new().hash_one(i)),
            maps: Vec::new(),
        })
    }

    /// The map of this name.
    fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.iter().find(|(known, _)| *known == name).map(|(_, map)| map.as_fd())
    }
}

fn create(name: &str, count: usize, bytes: usize) -> io::Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        map_flags: BPF_F_MMAPABLE,
        ..Default::default()
    };
    let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
    MapHandle::create(MapType::Array, Some(name), size_of::<u32>() as u32, bytes as u32, count, &options)
        .map_err(io::Error::other)
}
