//! Programs of an offloaded port: at the node's end of a pod's veth pair and at the upcall device, or at an uplink.
//!
//! Pinned BPF links hold them (tcx, Linux 6.6), which the next start gives its own programs.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, BPF_TCX_INGRESS};
use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use super::OffloadMaps;
use crate::ids::PortId;
use crate::xdp::error::XdpError;
use crate::xdp::libbpf::kernel_log;
use crate::xdp::libbpf::link::{Link, Pins, program_with};

/// `bpf/offload.bpf.c`, compiled by build.rs.
static OFFLOAD_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/offload.bpf.o"));
/// Program of the object at a pod's interface.
const POD: &str = "palisade_pod";
/// Program at an uplink.
const WIRE: &str = "palisade_wire";
/// Programs at an upcall device: for what the worker writes, and for what it reads.
const UPCALLS: [(&str, u32); 2] = [("palisade_up", BPF_TCX_INGRESS), ("palisade_upcall", BPF_TCX_EGRESS)];

/// Interfaces of an offloaded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its number.
    pub port: PortId,
    /// Index of the interface: the node's end of a pod's veth pair, or an uplink.
    pub index: u32,
    /// Index of the upcall device of a pod's port.
    pub upcall_index: Option<u32>,
}

/// The programs of an offloaded port. Dropped ones stay attached.
#[derive(Debug)]
pub struct OffloadProgram {
    interface: Hold,
    upcalls: Vec<Hold>,
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
        let loaded =
            loaded.map_err(|error| XdpError::from_bpf("load the programs of flow offload", &error, &said))?;
        // A program before that of an uplink could write to a packet, and the kernel would clear its mark.
        let is_first = at.upcall_index.is_none();
        let mut holds = loaded.into_iter().map(|(code, index, hook)| {
            Hold::put(code.as_fd(), index, hook, is_first, pins).map_err(|error| {
                XdpError::from_io(format!("attach a program of flow offload to interface {index}"), &error)
            })
        });
        let upcalls: Result<_, _> = holds.by_ref().take(upcall_programs(at)).collect();
        let upcalls = upcalls?;
        let interface = holds.next().transpose()?.ok_or_else(|| {
            let error = io::Error::other("the object lacks a program");
            XdpError::from_io("attach a program of flow offload".to_owned(), &error)
        })?;
        Ok(OffloadProgram { interface, upcalls })
    }

    /// Detaches the program of an earlier start from an interface, if there is one, after a pause: to the program of an uplink the
    /// kernel may still lead packets that it puts together. Returns whether there was one.
    pub fn remove_from(index: u32, pins: &Pins, pause: Duration) -> Result<bool, XdpError> {
        let pin = pins.ingress_path(index);
        let Ok(link) = Link::open(&pin) else { return Ok(false) };
        thread::sleep(pause);
        let detached = if link.info().is_ok_and(|(of, _)| of == index) { link.detach() } else { Ok(()) };
        let _ = fs::remove_file(&pin);
        detached
            .map(|()| true)
            .map_err(|error| XdpError::from_io("detach a program of flow offload".to_owned(), &error))
    }

    /// Whether all programs are still attached.
    pub fn holds(&self) -> bool {
        self.interface.holds() && self.upcalls.iter().all(Hold::holds)
    }

    /// The kernel's id of the program at the interface.
    pub fn id(&self) -> u32 {
        self.interface.id
    }

    /// Detaches the programs. Does nothing where an interface is removed.
    pub fn detach(self) -> Result<(), XdpError> {
        let detached =
            self.upcalls.iter().fold(self.interface.detach(), |done, hold| done.and(hold.detach()));
        detached.map_err(|error| XdpError::from_io("detach the programs of flow offload".to_owned(), &error))
    }
}

impl Hold {
    fn put(code: BorrowedFd<'_>, index: u32, hook: u32, is_first: bool, pins: &Pins) -> io::Result<Hold> {
        let pin = if hook == BPF_TCX_EGRESS { pins.egress_path(index) } else { pins.ingress_path(index) };
        let id = libbpf_rs::Program::id_from_fd(code).map_err(io::Error::other)?;
        if let Ok(link) = Link::open(&pin)
            && let Ok((of, program)) = link.info()
            && of == index
        {
            link.update(code, program_with(program)?.as_fd())?;
            return Ok(Hold { index, id, link, pin });
        }
        let link = Link::create_tc(code, index, hook, is_first)?;
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

/// Number of the programs at the upcall device of a port.
fn upcall_programs(at: Placement) -> usize {
    at.upcall_index.map_or(0, |_| UPCALLS.len())
}

/// Loads the programs of a port on the given maps: each with the index of its interface, and its hook. The one of the port's
/// interface comes last.
fn load(maps: &OffloadMaps, at: Placement) -> libbpf_rs::Result<Vec<(OwnedFd, u32, u32)>> {
    let main = if at.upcall_index.is_some() { POD } else { WIRE };
    let upcalls = UPCALLS.into_iter().filter_map(|(name, hook)| Some((name, at.upcall_index?, hook)));
    let wanted: Vec<_> = upcalls.chain([(main, at.index, BPF_TCX_INGRESS)]).collect();
    let loaded = load_object(maps, at, |name| wanted.iter().any(|(wanted, ..)| name == *wanted))?;
    let program = |(name, index, hook): (&str, u32, u32)| {
        let found = loaded.progs().find(|program| program.name() == name);
        let found = found.ok_or_else(|| io::Error::other(format!("the object lacks the program {name}")))?;
        Ok((found.as_fd().try_clone_to_owned()?, index, hook))
    };
    wanted.into_iter().map(program).collect()
}

/// Loads the object with the programs of these names.
fn load_object(
    maps: &OffloadMaps,
    at: Placement,
    is_wanted: impl Fn(&OsStr) -> bool,
) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(OFFLOAD_OBJECT)?;
    maps.share_with(&mut open, at)?;
    for mut program in open.progs_mut() {
        let is_wanted = is_wanted(program.name());
        program.set_autoload(is_wanted);
    }
    open.load()
}

/// Loads the program of a pod's port, for tests that run it on packets.
#[cfg(test)]
pub(crate) fn load_program_of_pod(maps: &OffloadMaps, at: Placement) -> libbpf_rs::Result<Object> {
    load_object(maps, at, |name| name == POD)
}

impl OffloadMaps {
    /// Has an object that is not loaded yet use these maps, for the port of a placement.
    pub(in crate::xdp) fn share_with(&self, object: &mut OpenObject, at: Placement) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(shared) = self.map(&name) {
                map.reuse_fd(shared)?;
            } else if name.ends_with(".rodata.offload") {
                map.set_initial_value(&constants(self, at))?;
            }
        }
        Ok(())
    }
}

/// `struct offload_constants` of the programs.
fn constants(maps: &OffloadMaps, at: Placement) -> Vec<u8> {
    let mask = maps.buckets.len() as u32 - 1;
    let numbers = [mask, u32::from(at.port.0), at.index, at.upcall_index.unwrap_or(0)];
    let seed = maps.seed.iter().flat_map(|word| word.to_ne_bytes());
    seed.chain(numbers.into_iter().flat_map(u32::to_ne_bytes)).collect()
}
