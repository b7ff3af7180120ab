//! Flow offload: tc programs at the interfaces of pods and uplinks forward the packets of flows that the switch has recorded in
//! maps, and hand every other packet to it (`bpf/offload.bpf.c`).
//!
//! The maps are arrays that the switch maps into its memory, so that a record costs a worker no system call.

pub mod layout;
mod program;

#[cfg(test)]
pub(crate) use program::load_program_of_pod;
pub use program::{OffloadProgram, Placement};

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use self::layout::{
    Bucket, Counted, GATEWAYS, Gateway, LAYOUT, Lease, PortWords, Record, SERVICE_EPOCHS, Seed, ServiceWords,
    WAYS,
};
use super::error::XdpError;
use super::libbpf::link::{Pins, check_tcx};
use crate::limits::PORTS_MAX;
use crate::mem::{FileMemory, HugeArray};

/// Files that keep the maps for the next process of one switch.
pub struct MapPins {
    pins: Pins,
    /// Beginning of their names.
    prefix: String,
}

impl MapPins {
    /// Files of the switch that has its flow table in this directory, which belongs to one process at a time.
    pub fn of(pins: &Pins, flow_table: &Path) -> MapPins {
        // FNV-1a. A file of a BPF file system has no dot in its name, and no path.
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = flow_table.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add);
        MapPins { pins: pins.clone(), prefix: format!("offload-{hash:016x}-") }
    }

    /// Removes the files. The maps stay while programs use them.
    pub fn remove(&self) {
        // One that stays is found again by the next start.
        self.pins.named(&self.prefix).into_iter().for_each(|file| _ = fs::remove_file(file));
    }

    /// Removes the files, and the directories that they leave empty.
    pub fn remove_all(&self) {
        self.remove();
        self.pins.remove_empty();
    }

    fn path(&self, map: &str) -> PathBuf {
        self.pins.file(&format!("{}{map}", self.prefix))
    }
}

/// Maps of the program, and the memory that they lie in.
pub struct OffloadMaps {
    /// Buckets of the records, a power of two.
    pub buckets: HugeArray<Bucket>,
    /// Records of flows.
    pub records: HugeArray<Record>,
    /// By record, what its flow has counted.
    pub counted: HugeArray<Counted>,
    /// Ports by number.
    pub ports: HugeArray<PortWords>,
    /// Epochs of Services.
    pub services: HugeArray<ServiceWords>,
    /// Next hops of flows by uplinks.
    pub gateways: HugeArray<Gateway>,
    /// The lease.
    pub lease: HugeArray<Lease>,
    /// Secret of the hash.
    pub seed: Seed,
    /// Maps of the kernel by name; none of those in memory of the process.
    maps: Vec<(&'static str, MapHandle)>,
    /// Whether they are those that the process before has left.
    are_left: bool,
}

impl OffloadMaps {
    /// Opens the maps for so many flows that the process before has left in files, or makes them.
    pub fn open(flows: usize, pins: Option<&MapPins>) -> Result<OffloadMaps, XdpError> {
        check_tcx().map_err(|error| XdpError::from_io("offload flows", &error))?;
        let left = |name: &'static str, count: usize, bytes: usize| {
            let pin = pins.ok_or(io::ErrorKind::NotFound)?.path(name);
            let map = MapHandle::from_pinned_path(pin).map_err(io::Error::other)?;
            let is_same = (map.max_entries() as usize, map.value_size() as usize) == (count, bytes);
            if is_same { Ok(map) } else { Err(io::ErrorKind::InvalidData.into()) }
        };
        if let Ok(maps) = OffloadMaps::of_kernel(flows, left)
            && maps.lease[0].layout.load(Relaxed) == LAYOUT
        {
            return Ok(OffloadMaps { are_left: true, ..maps });
        }
        if let Some(pins) = pins {
            // The XDP program of an uplink goes on by the former maps until another one takes its place.
            end_lease(&pins.path("leases"));
            pins.remove();
        }
        let made = OffloadMaps::of_kernel(flows, |name, count, bytes| {
            let mut map = create(name, count, bytes)?;
            match pins {
                Some(pins) => map.pin(pins.path(name)).map(|()| map).map_err(io::Error::other),
                None => Ok(map),
            }
        });
        made.map_err(|error| {
            pins.iter().for_each(|pins| pins.remove_all());
            XdpError::from_io("make the maps of offloaded flows".to_owned(), &error)
        })
    }

    /// Whether they are those that the process before has left.
    pub fn are_left(&self) -> bool {
        self.are_left
    }

    /// Makes maps in memory of the process, which no program reads.
    pub fn in_memory(flows: usize) -> io::Result<OffloadMaps> {
        OffloadMaps::of(flows, |_, count, bytes| FileMemory::of_process(count * bytes))
    }

    fn of_kernel(
        flows: usize,
        mut map: impl FnMut(&'static str, usize, usize) -> io::Result<MapHandle>,
    ) -> io::Result<OffloadMaps> {
        let mut maps = Vec::new();
        let arrays = OffloadMaps::of(flows, |name, count, bytes| {
            let map = map(name, count, bytes)?;
            let memory = FileMemory::of_map(map.as_fd(), count * bytes)?;
            maps.push((name, map));
            Ok(memory)
        })?;
        Ok(OffloadMaps { maps, ..arrays })
    }

    fn of(
        flows: usize,
        mut memory: impl FnMut(&'static str, usize, usize) -> io::Result<FileMemory>,
    ) -> io::Result<OffloadMaps> {
        // Half of the ways stay free where each flow takes one.
        let buckets = (2 * flows).div_ceil(WAYS).next_power_of_two();
        let lease: HugeArray<Lease> = memory("leases", 1, size_of::<Lease>())?.take_shared(1)?;
        Ok(OffloadMaps {
            buckets: memory("buckets", buckets, size_of::<Bucket>())?.take_shared(buckets)?,
            records: memory("records", flows, size_of::<Record>())?.take_shared(flows)?,
            counted: memory("counted", flows, size_of::<Counted>())?.take_shared(flows)?,
            ports: memory("ports", PORTS_MAX, size_of::<PortWords>())?.take_shared(PORTS_MAX)?,
            services: memory("services", SERVICE_EPOCHS, size_of::<ServiceWords>())?
                .take_shared(SERVICE_EPOCHS)?,
            gateways: memory("gateways", GATEWAYS, size_of::<Gateway>())?.take_shared(GATEWAYS)?,
            seed: seed_of(&lease[0]),
            lease,
            maps: Vec::new(),
            are_left: false,
        })
    }

    /// The map of this name.
    pub(super) fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.iter().find(|(known, _)| *known == name).map(|(_, map)| map.as_fd())
    }
}

/// Ends the lease of maps of another layout, if there are any: of each the lease is the first word.
fn end_lease(pin: &Path) {
    let key = 0_u32.to_ne_bytes();
    if let Ok(leases) = MapHandle::from_pinned_path(pin)
        && let Ok(Some(mut lease)) = leases.lookup(&key, MapFlags::ANY)
        && let Some(until) = lease.get_mut(..8)
    {
        until.fill(0);
        // Without it packets of that process are lost at most.
        let _ = leases.update(&key, &lease, MapFlags::ANY);
    }
}

/// Secret of the hash: that of the process that has made the maps, or a new one.
fn seed_of(lease: &Lease) -> Seed {
    if lease.layout.load(Relaxed) == 0 {
        let seed = [0, 1].map(|i: u64| RandomState::new().hash_one(i));
        lease.seed.iter().zip(seed).for_each(|(word, value)| word.store(value, Relaxed));
        lease.layout.store(LAYOUT, Relaxed);
    }
    lease.seed.each_ref().map(|word| word.load(Relaxed))
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
