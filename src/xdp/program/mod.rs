//! XDP program of a port: it is loaded, registers sockets, and is attached to the interface
//! ([`super::program::attach`]).
//!
//! The order protects a running owner. The kernel gives each queue of an interface to one AF_XDP socket,
//! which ends with its process. A process that opens the queues before it attaches never replaces the program
//! of a running switch.

pub(super) mod attach;
pub(super) mod constants;
pub(super) mod drop_counter;
pub(super) mod node_marker;
pub(super) mod prefixes;
pub(super) mod services;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use self::attach::{Attachment, Earlier, earlier_on};
pub use self::attach::{Mode, has_program_of_switch};
use self::constants::UplinkConstants;
use self::prefixes::Prefixes;
use self::services::{ServiceDestinations, ServiceMaps};
use super::error::{XdpError, check_mtu};
use super::libbpf::kernel_log;
use super::libbpf::link::{Pins, program_with};
use super::libbpf::wait::wait_for_programs;
use super::offload::{OffloadMaps, Placement};
use crate::ids::PortId;
use crate::limits::{EXCEPTIONS_MAX, MTU_MAX, UPLINK_PREFIXES_MAX};
use crate::netlink::Interface;

/// `bpf/port.bpf.c`, compiled by build.rs.
static PORT_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
/// `bpf/uplink.bpf.c`, compiled by build.rs.
static UPLINK_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));
/// Name of an uplink's program.
const UPLINK: &str = "palisade_uplink";

/// An XDP program of an interface. A dropped one stays attached.
pub struct Program {
    interface: Interface,
    code: OwnedFd,
    sockets: Arc<MapHandle>,
    /// Prefix maps of an uplink's program.
    prefixes: Option<Prefixes>,
    /// Exceptions of masquerading in an uplink's program.
    exceptions: Option<Box<Prefixes>>,
    /// Service maps of an uplink's program.
    services: Option<Box<ServiceMaps>>,
    /// Attachment, from [`Program::take`] on.
    attachment: Option<Attachment>,
    /// Program of an earlier run that this one has replaced.
    earlier: Option<OwnedFd>,
}

impl Program {
    /// Loads the program of a port that only the switch uses. Fails if the interface has a program of another
    /// owner. Nothing is attached before [`Program::take`].
    pub fn load(interface: &Interface, queues: u16) -> Result<Program, XdpError> {
        Program::with(interface, PORT_OBJECT, queues, &UplinkConstants::default(), None)
    }

    /// Loads the program of a NIC that the switch shares with the kernel, see [`Program::load`]. It redirects
    /// frames for `prefixes` and for the external ends of `constants`, and passes the rest to the kernel. Single addresses of an earlier run's program are included, so that they stay closed
    /// until their pods are attached again. With `offload` it leaves packets of recorded flows to the tc program there.
    pub fn load_uplink(
        interface: &Interface,
        queues: u16,
        constants: &UplinkConstants,
        prefixes: &BTreeSet<IpNet>,
        offload: Option<(&OffloadMaps, PortId)>,
    ) -> Result<Program, XdpError> {
        let mut program = Program::with(interface, UPLINK_OBJECT, queues, constants, offload)?;
        if let Some(maps) = &mut program.prefixes {
            maps.set(prefixes)?;
        }
        Ok(program)
    }

    fn with(
        interface: &Interface,
        object: &[u8],
        queues: u16,
        constants: &UplinkConstants,
        offload: Option<(&OffloadMaps, PortId)>,
    ) -> Result<Program, XdpError> {
        check_mtu(interface, MTU_MAX)?;
        earlier_on(interface)?;
        let offload = offload
            .map(|(maps, port)| (maps, Placement { port, index: interface.index, upcall_index: None }));
        let Loaded { code, sockets, prefixes, exceptions, services } =
            load(object, queues, constants, offload)?;
        let (interface, sockets) = (interface.clone(), Arc::new(sockets));
        Ok(Program {
            interface,
            code,
            sockets,
            prefixes,
            exceptions,
            services,
            attachment: None,
            earlier: None,
        })
    }

    /// Attaches the program: it replaces that of an earlier run, or takes the driver's hook if it can, and
    /// the generic hook otherwise. It replaces no program of another owner. With `pins`, a link holds it,
    /// which only its owner detaches.
    pub fn take(&mut self, pins: Option<&Pins>) -> Result<Mode, XdpError> {
        let earlier = earlier_on(&self.interface)?;
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.name == UPLINK) {
            self.prefixes.iter().for_each(|prefixes| prefixes.inherit(earlier.id()));
            self.exceptions.iter_mut().for_each(|exceptions| exceptions.inherit_all(earlier.id()));
            self.services.iter_mut().for_each(|services| services.inherit(earlier.id()));
        }
        // The earlier program is kept for `undo`. If it is gone meanwhile, the attachment fails.
        let before = earlier.as_ref().and_then(|earlier| program_with(earlier.id()).ok());
        let (attachment, mode) =
            Attachment::take(&self.interface, self.code.as_fd(), earlier.as_ref(), pins)?;
        (self.attachment, self.earlier) = (Some(attachment), before);
        Ok(mode)
    }

    /// Loads and attaches without a link, see [`Program::load`] and [`Program::take`].
    pub fn attach(interface: &Interface, queues: u16) -> Result<(Program, Mode), XdpError> {
        let mut program = Program::load(interface, queues)?;
        let mode = program.take(None)?;
        Ok((program, mode))
    }

    /// Loads and attaches an uplink's program without a link, see [`Program::load_uplink`] and
    /// [`Program::take`].
    pub fn attach_uplink(
        interface: &Interface,
        queues: u16,
        constants: &UplinkConstants,
        prefixes: &BTreeSet<IpNet>,
    ) -> Result<(Program, Mode), XdpError> {
        let mut program = Program::load_uplink(interface, queues, constants, prefixes, None)?;
        let mode = program.take(None)?;
        Ok((program, mode))
    }

    /// Whether the program is still on its interface.
    pub fn holds(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::holds)
    }

    /// Whether a link holds the attached program.
    pub fn is_linked(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::is_linked)
    }

    /// The kernel's id of the attached program.
    pub fn id(&self) -> Option<u32> {
        self.attachment.as_ref().map(Attachment::id)
    }

    /// Closes the program of an earlier run, which [`Program::undo`] then no longer restores.
    pub fn keep(&mut self) {
        self.earlier = None;
    }

    /// Whether [`Program::undo`] restores the program of an earlier run.
    pub fn has_earlier(&self) -> bool {
        self.earlier.is_some()
    }

    /// Whether it is an uplink's program, which redirects frames for some prefixes only.
    pub fn has_prefixes(&self) -> bool {
        self.prefixes.is_some()
    }

    /// Sets the prefixes that an uplink's program redirects, by difference: missing ones are added before
    /// others are removed. Does nothing on any other port.
    pub fn set_prefixes(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), XdpError> {
        self.prefixes.as_mut().map_or(Ok(()), |prefixes| prefixes.set(wanted))
    }

    /// Sets the destinations to which pods keep their addresses, by difference. Until then an uplink's program has those of
    /// an earlier run's. Does nothing on any other port.
    pub fn set_exceptions(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), XdpError> {
        self.exceptions.as_mut().map_or(Ok(()), |exceptions| exceptions.set(wanted))
    }

    /// Sets the ports of Services that an uplink's program redirects, by difference. Until then it has those of an
    /// earlier run's program. Does nothing on any other port.
    pub fn set_services(
        &mut self,
        wanted: &Arc<ServiceDestinations>,
        keeps_others: bool,
    ) -> Result<(), XdpError> {
        self.services.as_mut().map_or(Ok(()), |services| services.set(wanted, keeps_others))
    }

    /// Facts of the interface at the time of loading.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Detaches the program, which gives the interface back to the kernel. Does nothing if another program
    /// has replaced it, or the interface is removed.
    pub fn detach(self) -> Result<(), XdpError> {
        let Program { code, attachment, .. } = self;
        attachment.map_or(Ok(()), |attachment| attachment.detach(code.as_fd()))
    }

    /// Restores the interface: without a program, or with that of an earlier run, which drops everything.
    pub fn undo(self) -> Result<(), XdpError> {
        match (self.attachment, self.earlier) {
            (Some(attachment), Some(before)) => attachment.give_back(self.code.as_fd(), &before),
            (Some(attachment), None) => attachment.detach(self.code.as_fd()),
            (None, _) => Ok(()),
        }
    }

    /// Registers a socket: the program redirects the frames of receive queue `queue` to it until it is closed
    /// or the registration ends.
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

/// Registration of a socket with a program, for one receive queue.
pub(super) struct Registration {
    sockets: Arc<MapHandle>,
    queue: u16,
}

impl Registration {
    fn key(&self) -> [u8; 4] {
        u32::from(self.queue).to_ne_bytes()
    }

    /// Ends the registration. When this returns, the socket receives nothing, even if another process has a
    /// descriptor of it.
    pub(super) fn end(self) -> libbpf_rs::Result<()> {
        self.sockets.delete(&self.key())?;
        wait_for_programs()
    }
}

/// A loaded program, not attached, and its maps.
struct Loaded {
    code: OwnedFd,
    sockets: MapHandle,
    prefixes: Option<Prefixes>,
    exceptions: Option<Box<Prefixes>>,
    services: Option<Box<ServiceMaps>>,
}

/// Loads a program object for so many queues. An object without prefix maps has no constants either.
fn load(
    object: &[u8],
    queues: u16,
    constants: &UplinkConstants,
    offload: Option<(&OffloadMaps, Placement)>,
) -> Result<Loaded, XdpError> {
    let (loaded, said) = kernel_log::captured(|| try_load(object, queues, constants, offload));
    loaded.map_err(|error| XdpError::from_bpf("load the XDP program", &error, &said))
}

fn try_load(
    object: &[u8],
    queues: u16,
    constants: &UplinkConstants,
    offload: Option<(&OffloadMaps, Placement)>,
) -> libbpf_rs::Result<Loaded> {
    let mut open = ObjectBuilder::default().open_memory(object)?;
    prepare(&mut open, queues, constants)?;
    if let Some((maps, at)) = offload {
        maps.share_with(&mut open, at)?;
    }
    let loaded = open.load()?;
    let (Some(program), Some(sockets)) = (loaded.progs().next(), map_of(&loaded, "sockets")?) else {
        return Err(std::io::Error::other("the object lacks a program or its map").into());
    };
    let prefixes = |[v4, v6]: [&str; 2]| {
        Ok::<_, libbpf_rs::Error>(match (map_of(&loaded, v4)?, map_of(&loaded, v6)?) {
            (Some(v4), Some(v6)) => Some(Prefixes::of([v4, v6])),
            _ => None,
        })
    };
    let (prefixes, exceptions) = (prefixes(prefixes::MAPS)?, prefixes(prefixes::EXCEPTIONS)?.map(Box::new));
    let [(addresses, _), (ports, _)] = services::MAPS;
    let services = match (map_of(&loaded, addresses)?, map_of(&loaded, ports)?) {
        (Some(addresses), Some(ports)) => Some(Box::new(ServiceMaps::of([addresses, ports]))),
        _ => None,
    };
    Ok(Loaded { code: program.as_fd().try_clone_to_owned()?, sockets, prefixes, exceptions, services })
}

/// Sets the sizes of the maps, and the constants.
fn prepare(open: &mut OpenObject, queues: u16, constants: &UplinkConstants) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "sockets" {
            map.set_max_entries(u32::from(queues.max(1)))?;
        } else if prefixes::MAPS.contains(&name.as_str()) {
            map.set_max_entries(UPLINK_PREFIXES_MAX as u32)?;
        } else if prefixes::EXCEPTIONS.contains(&name.as_str()) {
            map.set_max_entries(EXCEPTIONS_MAX as u32)?;
        } else if let Some((_, entries)) = services::MAPS.iter().find(|(map, _)| *map == name) {
            map.set_max_entries(*entries as u32)?;
        } else if name.ends_with(".rodata.port") {
            map.set_initial_value(&constants.bytes())?;
        }
    }
    Ok(())
}

fn map_of(object: &Object, name: &str) -> libbpf_rs::Result<Option<MapHandle>> {
    object.maps().find(|map| map.name() == name).map(|map| MapHandle::try_from(&map)).transpose()
}

/// Detaches the program of a switch from an interface. Returns whether there was one. Fails for a program of another owner.
pub fn remove_program_of_switch(interface: &Interface, pins: Option<&Pins>) -> Result<bool, XdpError> {
    let Some(earlier) = earlier_on(interface)? else { return Ok(false) };
    let code = program_with(earlier.id()).map_err(|error| {
        XdpError::from_io(format!("open the XDP program of interface {}", interface.name), &error)
    })?;
    // The program replaces itself, and this attachment holds it from then on.
    let (attachment, _) = Attachment::take(interface, code.as_fd(), Some(&earlier), pins)?;
    attachment.detach(code.as_fd()).map(|()| true)
}

/// A program that drops every frame. It is loaded once, so that it is attached to a new interface without
/// delay.
pub struct Guard {
    code: OwnedFd,
    id: u32,
}

impl Guard {
    /// Loads the program.
    pub fn load() -> Result<Guard, XdpError> {
        let code = load(PORT_OBJECT, 1, &UplinkConstants::default(), None)?.code;
        let id = libbpf_rs::Program::id_from_fd(code.as_fd())
            .map_err(|error| XdpError::from_bpf("tell the id of an XDP program", &error, &[]))?;
        Ok(Guard { code, id })
    }

    /// Closes an interface without a program, or with the one with the id `own`. Another program of ours is
    /// left alone, and one of another owner is an error. Returns whether this program is on the interface.
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

    /// Closes a new interface, of which only index and name are known, with one request if it has no program.
    pub fn close_new(&self, index: u32, name: &str, pins: Option<&Pins>) -> Result<bool, XdpError> {
        let bare = Interface { name: name.to_owned(), index, ..Interface::default() };
        match Attachment::take(&bare, self.code.as_fd(), None, pins) {
            Ok(_) => Ok(true),
            Err(_) => self.close(&Interface::with_index(index)?, None, pins),
        }
    }

    /// Detaches the program from an interface.
    pub fn open(&self, interface: &Interface, pins: Option<&Pins>) -> Result<(), XdpError> {
        let Some(mine) = earlier_on(interface)?.filter(|earlier| earlier.id() == self.id) else {
            return Ok(());
        };
        // The program replaces itself, and this attachment holds it from then on.
        let (attachment, _) = Attachment::take(interface, self.code.as_fd(), Some(&mine), pins)?;
        attachment.detach(self.code.as_fd())
    }
}
