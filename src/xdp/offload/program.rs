//! Programs of an offloaded port: at the node's end of the pod's veth pair, and at the upcall device.
//!
//! Pinned BPF links hold them (tcx, Linux 6.6), which the next start gives its own programs.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::ObjectBuilder;
use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, BPF_TCX_INGRESS};

use super::OffloadMaps;
use crate::ids::PortId;
use crate::xdp::error::XdpError;
use crate::xdp::kernel_log;
use crate::xdp::program::link::{Link, Pins, program_with};

/// `bpf/offload.bpf.c`, compiled by build.rs.
static OFFLOAD_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/offload.bpf.o"));
/// Programs of the object: at the pod's interface, and at the upcall device for what the worker writes and for what it reads.
const NAMES: [&str; 3] = ["palisade_pod", "palisade_up", "palisade_upcall"];

/// Interfaces of an offloaded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its number.
    pub port: PortId,
    /// Index of the node's end of the pod's veth pair.
    pub pod_index: u32,
    /// Index of the upcall device.
    pub upcall_index: u32,
}

/// The programs of an offloaded port. Dropped ones stay attached.
#[derive(Debug)]
pub struct OffloadProgram {
    pod: Hold,
    upcalls: [Hold; 2],
}

/// A program at an interface.
#[derive(Debug)]
struct Hold {
    index: u32,
    /// The kernel's id of the program.
    id: u32,
    link: Link,
    pin: PathBuf,
}

impl OffloadProgram {
    /// Loads the programs, and attaches them in place of those of an earlier start: the one that delivers before the one that
    /// takes the pod's packets from the kernel.
    pub fn attach(maps: &OffloadMaps, at: Placement, pins: &Pins) -> Result<OffloadProgram, XdpError> {
        let (loaded, said) = kernel_log::captured(|| load(maps, at));
        let [pod, written, read] =
            loaded.map_err(|error| XdpError::from_bpf("load the programs of flow offload", &error, &said))?;
        let attach = |code: &OwnedFd, index, hook| {
            Hold::put(code.as_fd(), index, hook, pins).map_err(|error| {
                XdpError::from_io(format!("attach a program of flow offload to interface {index}"), &error)
            })
        };
        let upcalls = [
            attach(&written, at.upcall_index, BPF_TCX_INGRESS)?,
            attach(&read, at.upcall_index, BPF_TCX_EGRESS)?,
        ];
        Ok(OffloadProgram { pod: attach(&pod, at.pod_index, BPF_TCX_INGRESS)?, upcalls })
    }

    /// Detaches the program of an earlier start from a pod's interface. Returns whether there was one.
    pub fn remove_from(index: u32, pins: &Pins) -> Result<bool, XdpError> {
        let pin = pins.ingress_path(index);
        let Ok(link) = Link::open(&pin) else { return Ok(false) };
        let detached = if link.info().is_ok_and(|(of, _)| of == index) { link.detach() } else { Ok(()) };
        let _ = fs::remove_file(&pin);
        detached
            .map(|()| true)
            .map_err(|error| XdpError::from_io("detach a program of flow offload".to_owned(), &error))
    }

    /// Whether all programs are still attached.
    pub fn holds(&self) -> bool {
        self.pod.holds() && self.upcalls.iter().all(Hold::holds)
    }

    /// The kernel's id of the program at the pod's interface.
    pub fn id(&self) -> u32 {
        self.pod.id
    }

    /// Detaches the programs. Does nothing where an interface is removed.
    pub fn detach(self) -> Result<(), XdpError> {
        let detached = self.upcalls.iter().fold(self.pod.detach(), |done, hold| done.and(hold.detach()));
        detached.map_err(|error| XdpError::from_io("detach the programs of flow offload".to_owned(), &error))
    }
}

impl Hold {
    fn put(code: BorrowedFd<'_>, index: u32, hook: u32, pins: &Pins) -> io::Result<Hold> {
        let pin = if hook == BPF_TCX_EGRESS { pins.egress_path(index) } else { pins.ingress_path(index) };
        let id = libbpf_rs::Program::id_from_fd(code).map_err(io::Error::other)?;
        if let Ok(link) = Link::open(&pin)
            && let Ok((of, program)) = link.info()
            && of == index
        {
            link.update(code, program_with(program)?.as_fd())?;
            return Ok(Hold { index, id, link, pin });
        }
        let link = Link::create_tc(code, index, hook)?;
        // The link of the file has lost its interface.
        let _ = fs::remove_file(&pin);
        link.pin(&pin)?;
        Ok(Hold { index, id, link, pin })
    }

    fn holds(&self) -> bool {
        let holds = self.link.info().is_ok_and(|info| info == (self.index, self.id));
        // Without the file the program would end with the process. One that cannot be made again is no lack now.
        if holds && !self.pin.exists() {
            let _ = self.link.pin(&self.pin);
        }
        holds
    }

    fn detach(&self) -> io::Result<()> {
        let has_program = self.link.info().is_ok_and(|info| info == (self.index, self.id));
        let detached = if has_program { self.link.detach() } else { Ok(()) };
        let _ = fs::remove_file(&self.pin);
        detached
    }
}

/// Loads the object on the given maps.
fn load(maps: &OffloadMaps, at: Placement) -> libbpf_rs::Result<[OwnedFd; 3]> {
    let mut open = ObjectBuilder::default().open_memory(OFFLOAD_OBJECT)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(shared) = maps.map(&name) {
            map.reuse_fd(shared)?;
        } else if name.ends_with(".rodata.offload") {
            map.set_initial_value(&constants(maps, at))?;
        }
    }
    let loaded = open.load()?;
    let program = |name: &str| {
        let found = loaded.progs().find(|program| program.name() == name);
        let found = found.ok_or_else(|| io::Error::other(format!("the object lacks the program {name}")))?;
        Ok::<_, libbpf_rs::Error>(found.as_fd().try_clone_to_owned()?)
    };
    let [pod, written, read] = NAMES.map(program);
    Ok([pod?, written?, read?])
}

/// `struct constants` of the program.
fn constants(maps: &OffloadMaps, at: Placement) -> Vec<u8> {
    let mask = maps.buckets.len() as u32 - 1;
    let numbers = [mask, u32::from(at.port.0), at.upcall_index, at.pod_index];
    let seed = maps.seed.iter().flat_map(|word| word.to_ne_bytes());
    seed.chain(numbers.into_iter().flat_map(u32::to_ne_bytes)).collect()
}
