//! The XDP program of a port, in the kernel: loaded, told its sockets, and attached to the interface ([`super::program::attach`]).
//!
//! The order is the owner's protection: the kernel gives each queue of an interface to one AF_XDP socket, which ends with its
//! process. Whoever opens the queues first, and attaches then, never replaces the program of a switch that runs.

pub(super) mod attach;
pub(super) mod drop_counter;
pub(super) mod link;
pub(super) mod prefixes;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject};

use self::attach::{Attachment, Earlier, earlier_on};
use self::link::{Pins, program_with};
use self::prefixes::Prefixes;
use super::error::{XdpError, check_mtu};
use super::kernel_log;
use crate::limits::{MTU_MAX, UPLINK_PREFIXES_MAX};
use crate::netlink::Interface;

/// `bpf/port.bpf.c`, compiled by build.rs.
static PORT_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
/// `bpf/uplink.bpf.c`, compiled by build.rs.
static UPLINK_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));
/// The name of an uplink's program.
const UPLINK: &str = "palisade_uplink";

/// An XDP program of an interface. Dropping it leaves it attached.
pub struct Program {
    interface: Interface,
    code: OwnedFd,
    sockets: Arc<MapHandle>,
    /// Of an uplink's program.
    prefixes: Option<Prefixes>,
    /// From [`Program::take`] on.
    attachment: Option<Attachment>,
    /// The program of an earlier run in whose place this one is.
    earlier: Option<OwnedFd>,
}

/// Where a program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mode {
    /// In the driver, before the kernel makes a socket buffer of the frame; otherwise in the generic hook, after.
    pub native: bool,
    /// Where not in the driver: the kernel's reason.
    pub fallback: Option<String>,
}

impl Program {
    /// Loads the program of a port that belongs to the switch alone. Fails where the interface has somebody else's program. Nothing is
    /// attached before [`Program::take`].
    pub fn load(interface: &Interface, queues: u16) -> Result<Program, XdpError> {
        Program::with(interface, PORT_OBJECT, queues, 0)
    }

    /// Loads the program of a NIC that the switch shares with the kernel, as [`Program::load`] does. It takes what is
    /// for `prefixes`, without a tag or with the 802.1Q identifier `vlan` (0 for none), and the rest is the kernel's. Single
    /// addresses that a program of an earlier run took are taken too, so that they stay closed until their pods are back.
    pub fn load_uplink(
        interface: &Interface,
        queues: u16,
        vlan: u16,
        prefixes: &BTreeSet<IpNet>,
    ) -> Result<Program, XdpError> {
        let mut program = Program::with(interface, UPLINK_OBJECT, queues, vlan)?;
        if let Some(maps) = &mut program.prefixes {
            maps.set(prefixes)?;
        }
        Ok(program)
    }

    fn with(interface: &Interface, object: &[u8], queues: u16, vlan: u16) -> Result<Program, XdpError> {
        check_mtu(interface, MTU_MAX)?;
        earlier_on(interface)?;
        let Loaded { code, sockets, prefixes } = load(object, queues, vlan)?;
        let (interface, sockets) = (interface.clone(), Arc::new(sockets));
        Ok(Program { interface, code, sockets, prefixes, attachment: None, earlier: None })
    }

    /// Attaches it: in the place of a program of an earlier run, or in the driver if it can, in the generic hook otherwise.
    /// Refuses to replace anybody else's. With `pins`, a link holds it that only its owner takes off.
    pub fn take(&mut self, pins: Option<&Pins>) -> Result<Mode, XdpError> {
        let earlier = earlier_on(&self.interface)?;
        if let (Some(earlier), Some(prefixes)) = (&earlier, &self.prefixes)
            && earlier.name == UPLINK
        {
            prefixes.inherit(earlier.id());
        }
        // Kept while this one is in its place, for `undo`; where it is gone meanwhile, taking fails.
        let before = earlier.as_ref().and_then(|earlier| program_with(earlier.id()).ok());
        let (attachment, mode) =
            Attachment::take(&self.interface, self.code.as_fd(), earlier.as_ref(), pins)?;
        (self.attachment, self.earlier) = (Some(attachment), before);
        Ok(mode)
    }

    /// [`Program::load`] and [`Program::take`] in one, without a link.
    pub fn attach(interface: &Interface, queues: u16) -> Result<(Program, Mode), XdpError> {
        let mut program = Program::load(interface, queues)?;
        let mode = program.take(None)?;
        Ok((program, mode))
    }

    /// [`Program::load_uplink`] and [`Program::take`] in one, without a link.
    pub fn attach_uplink(
        interface: &Interface,
        queues: u16,
        vlan: u16,
        prefixes: &BTreeSet<IpNet>,
    ) -> Result<(Program, Mode), XdpError> {
        let mut program = Program::load_uplink(interface, queues, vlan, prefixes)?;
        let mode = program.take(None)?;
        Ok((program, mode))
    }

    /// Whether it is on its interface still.
    pub fn holds(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::holds)
    }

    /// Whether a link holds it, once it is attached.
    pub fn is_linked(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::is_linked)
    }

    /// The kernel's id of it, once it is attached.
    pub fn id(&self) -> Option<u32> {
        self.attachment.as_ref().map(Attachment::id)
    }

    /// Lets go of the program of an earlier run: [`Program::undo`] does not bring it back any more.
    pub fn keep(&mut self) {
        self.earlier = None;
    }

    /// Whether it is an uplink's, which takes only what is for some prefixes.
    pub fn has_prefixes(&self) -> bool {
        self.prefixes.is_some()
    }

    /// Makes `wanted` the prefixes that an uplink's program takes from the kernel, by difference: what is missing is added
    /// before what is no longer wanted goes. Does nothing on any other port.
    pub fn set_prefixes(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), XdpError> {
        self.prefixes.as_mut().map_or(Ok(()), |prefixes| prefixes.set(wanted))
    }

    /// The interface that it is attached to, as it was then.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Takes the program off the interface, which is the kernel's again. Does nothing when another program has taken
    /// its place, or the interface is gone.
    pub fn detach(self) -> Result<(), XdpError> {
        let Program { code, attachment, .. } = self;
        attachment.map_or(Ok(()), |attachment| attachment.detach(code.as_fd()))
    }

    /// Leaves the interface as it was found: without a program, or, where this one has replaced one of an earlier run,
    /// with that one, which drops everything.
    pub fn undo(self) -> Result<(), XdpError> {
        match (self.attachment, self.earlier) {
            (Some(attachment), Some(before)) => attachment.give_back(self.code.as_fd(), &before),
            (Some(attachment), None) => attachment.detach(self.code.as_fd()),
            (None, _) => Ok(()),
        }
    }

    /// Sends the frames of receive queue `queue` to the socket, until that is closed or the registration ended.
    pub(super) fn register(&self, queue: u16, socket: BorrowedFd<'_>) -> Result<Registration, XdpError> {
        let registration = Registration { sockets: self.sockets.clone(), queue };
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets.update(&registration.key(), &value, MapFlags::ANY).map_err(|error| {
            let action = format!("send queue {queue} of {} to its AF_XDP socket", self.interface.name);
            XdpError::from_bpf(action, &error, &[])
        })?;
        Ok(registration)
    }
}

/// That a program sends the frames of a receive queue to a socket.
pub(super) struct Registration {
    sockets: Arc<MapHandle>,
    queue: u16,
}

impl Registration {
    fn key(&self) -> [u8; 4] {
        u32::from(self.queue).to_ne_bytes()
    }

    /// Ends it. When this returns, nothing is received by the socket any more, whoever else has a descriptor of it.
    pub(super) fn end(self) -> libbpf_rs::Result<()> {
        self.sockets.delete(&self.key())?;
        wait_for_programs()
    }
}

/// Returns when every BPF program that was running has come to its end, and with it the driver's turn, in which a frame is
/// delivered where its program has sent it (`XDP_REDIRECT`, a "three-step process", in `net/core/filter.c`).
///
/// The kernel waits so for whoever changes a map of maps (`maybe_wait_bpf_programs` of `kernel/bpf/syscall.c`, Linux 4.19).
fn wait_for_programs() -> libbpf_rs::Result<()> {
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

/// A program in the kernel, attached nowhere yet, and its maps.
struct Loaded {
    code: OwnedFd,
    sockets: MapHandle,
    prefixes: Option<Prefixes>,
}

/// Loads a program object for so many queues. An object without prefix maps knows no tag either.
fn load(object: &[u8], queues: u16, vlan: u16) -> Result<Loaded, XdpError> {
    let (loaded, said) = kernel_log::captured(|| try_load(object, queues, vlan));
    loaded.map_err(|error| XdpError::from_bpf("load the XDP program", &error, &said))
}

fn try_load(object: &[u8], queues: u16, vlan: u16) -> libbpf_rs::Result<Loaded> {
    let mut open = ObjectBuilder::default().open_memory(object)?;
    prepare(&mut open, queues, vlan)?;
    let loaded = open.load()?;
    let (Some(program), Some(sockets)) = (loaded.progs().next(), map_of(&loaded, "sockets")?) else {
        return Err(std::io::Error::other("the object lacks a program or its map").into());
    };
    let [v4, v6] = prefixes::MAPS;
    let prefixes = match (map_of(&loaded, v4)?, map_of(&loaded, v6)?) {
        (Some(v4), Some(v6)) => Some(Prefixes::of([v4, v6])),
        _ => None,
    };
    Ok(Loaded { code: program.as_fd().try_clone_to_owned()?, sockets, prefixes })
}

/// Sets the sizes of the maps, and the constant that the program compares tags with.
fn prepare(open: &mut OpenObject, queues: u16, vlan: u16) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "sockets" {
            map.set_max_entries(u32::from(queues.max(1)))?;
        } else if prefixes::MAPS.contains(&name.as_str()) {
            map.set_max_entries(UPLINK_PREFIXES_MAX as u32)?;
        } else if name.ends_with(".rodata.port") {
            map.set_initial_value(&vlan.to_ne_bytes())?;
        }
    }
    Ok(())
}

fn map_of(object: &Object, name: &str) -> libbpf_rs::Result<Option<MapHandle>> {
    object.maps().find(|map| map.name() == name).map(|map| MapHandle::try_from(&map)).transpose()
}

/// A program that drops all that an interface receives: loaded once, to be attached in no time to interfaces that have just come.
pub struct Guard {
    code: OwnedFd,
    id: u32,
}

impl Guard {
    /// Loads it.
    pub fn load() -> Result<Guard, XdpError> {
        let code = load(PORT_OBJECT, 1, 0)?.code;
        let id = libbpf_rs::Program::id_from_fd(code.as_fd())
            .map_err(|error| XdpError::from_bpf("tell the id of an XDP program", &error, &[]))?;
        Ok(Guard { code, id })
    }

    /// Closes an interface that has no program, or the one with the id `own`. Another one of ours, whatever it does, is left alone;
    /// somebody else's is an error. Whether this one is there now.
    pub fn close(
        &self,
        interface: &Interface,
        own: Option<u32>,
        pins: Option<&Pins>,
    ) -> Result<bool, XdpError> {
        let earlier = earlier_on(interface)?;
        match earlier.as_ref().map(Earlier::id) {
            Some(id) if id == self.id => return Ok(true),
            Some(id) if Some(id) != own => return Ok(false),
            _ => {}
        }
        Attachment::take(interface, self.code.as_fd(), earlier.as_ref(), pins).map(|_| true)
    }

    /// The same for an interface that has only just come, of which nothing but the number is known: with one request of the kernel,
    /// where all is as expected.
    pub fn close_new(&self, index: u32, name: &str, pins: Option<&Pins>) -> Result<bool, XdpError> {
        let bare = Interface { name: name.to_owned(), index, ..Interface::default() };
        match Attachment::take(&bare, self.code.as_fd(), None, pins) {
            Ok(_) => Ok(true),
            Err(_) => self.close(&Interface::with_index(index)?, None, pins),
        }
    }

    /// Takes it off an interface where it is.
    pub fn open(&self, interface: &Interface, pins: Option<&Pins>) -> Result<(), XdpError> {
        let Some(mine) = earlier_on(interface)?.filter(|earlier| earlier.id() == self.id) else {
            return Ok(());
        };
        // In its own place: from here on this attachment holds it.
        let (attachment, _) = Attachment::take(interface, self.code.as_fd(), Some(&mine), pins)?;
        attachment.detach(self.code.as_fd())
    }
}
