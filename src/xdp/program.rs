//! The XDP program of a port, in the kernel: loaded, attached to the interface, told its sockets.
//!
//! It is attached by netlink and not by a BPF link, so that it outlives the process: while there is no switch, the
//! port's frames are dropped, on an uplink those for pods. The next start finds the program by its name and puts its own
//! in its place.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, Xdp, XdpFlags};

use super::error::XdpError;
use super::interface::Interface;
use super::kernel_log;
use super::prefixes::{self, Prefixes};
use crate::limits::{MTU_MAX, UPLINK_PREFIXES_MAX};

/// `bpf/port.bpf.c`, compiled by build.rs.
static PORT_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
/// `bpf/uplink.bpf.c`, compiled by build.rs.
static UPLINK_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));
/// What the names of our programs begin with.
const OURS: &str = "palisade_";
/// The name of an uplink's program.
const UPLINK: &str = "palisade_uplink";

/// An XDP program that is attached to an interface. Dropping it leaves it attached.
pub struct Program {
    interface: Interface,
    mode: Mode,
    code: OwnedFd,
    id: u32,
    sockets: Arc<MapHandle>,
    /// Of an uplink's program.
    prefixes: Option<Prefixes>,
    replaced: bool,
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
    /// Attaches the program of a port that belongs to the switch alone. In the driver if it can; in the generic hook
    /// otherwise. Replaces a program of an earlier run, and refuses to replace anybody else's.
    pub fn attach(interface: &Interface, queues: u16) -> Result<(Program, Mode), XdpError> {
        interface.check_mtu(MTU_MAX)?;
        Program::put(interface, load(PORT_OBJECT, queues, 0)?)
    }

    /// Attaches the program of a NIC that the switch shares with the kernel, as [`Program::attach`] does. It takes what is
    /// for `prefixes`, without a tag or with the 802.1Q identifier `vlan` (0 for none), and the rest is the kernel's. Single
    /// addresses that a program of an earlier run took are taken too, so that they stay closed until their pods are back.
    pub fn attach_uplink(
        interface: &Interface,
        queues: u16,
        vlan: u16,
        prefixes: &BTreeSet<IpNet>,
    ) -> Result<(Program, Mode), XdpError> {
        interface.check_mtu(MTU_MAX)?;
        let mut loaded = load(UPLINK_OBJECT, queues, vlan)?;
        if let Some(maps) = &mut loaded.prefixes {
            maps.set(prefixes)?;
        }
        Program::put(interface, loaded)
    }

    fn put(interface: &Interface, loaded: Loaded) -> Result<(Program, Mode), XdpError> {
        let Loaded { code, sockets, prefixes } = loaded;
        let slot = Slot { interface, code: code.as_fd() };
        let id = libbpf_rs::Program::id_from_fd(slot.code)
            .map_err(|error| slot.refusal("tell the id of the XDP program for", &error, &[]))?;
        let earlier = slot.attached()?;
        let names = slot.refuse_foreign(&earlier)?;
        if let Some(prefixes) = &prefixes {
            names.iter().filter(|(_, name)| name == UPLINK).for_each(|(id, _)| prefixes.inherit(*id));
        }
        let mode = slot.attach_best(&earlier)?;
        let replaced = earlier != Attached::default();
        let (interface, sockets) = (interface.clone(), Arc::new(sockets));
        Ok((Program { interface, mode: mode.clone(), code, id, sockets, prefixes, replaced }, mode))
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
        let slot = Slot { interface: &self.interface, code: self.code.as_fd() };
        match slot.attached() {
            Ok(attached) if attached.in_mode(self.mode.native) == self.id => slot.clear(self.mode.native),
            Ok(_) | Err(XdpError::NoInterface { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Leaves the interface as it was found: without a program, or, where this one has replaced one of an earlier run,
    /// with one that drops everything.
    pub fn undo(self) -> Result<(), XdpError> {
        if self.replaced { Ok(()) } else { self.detach() }
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

/// Ids of the programs that an interface has, by hook; 0 is none.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Attached {
    native: u32,
    generic: u32,
    offloaded: u32,
}

impl Attached {
    fn in_mode(&self, native: bool) -> u32 {
        if native { self.native } else { self.generic }
    }
}

/// The place of an interface where an XDP program goes, and the one that shall go there.
pub(super) struct Slot<'a> {
    pub(super) interface: &'a Interface,
    pub(super) code: BorrowedFd<'a>,
}

impl Slot<'_> {
    fn index(&self) -> i32 {
        self.interface.index.cast_signed()
    }

    pub(super) fn attached(&self) -> Result<Attached, XdpError> {
        let answer = Xdp::new(self.code).query(self.index(), XdpFlags::NONE);
        let found = answer.map_err(|error| self.refusal("tell the XDP programs of", &error, &[]))?;
        // With one program only, older kernels give its id and hook alone; libbpf puts it where it belongs.
        Ok(Attached { native: found.drv_prog_id, generic: found.skb_prog_id, offloaded: found.hw_prog_id })
    }

    /// Ids and names of the programs that are there; fails where one is not ours.
    pub(super) fn refuse_foreign(&self, attached: &Attached) -> Result<Vec<(u32, String)>, XdpError> {
        let mut ours = Vec::new();
        for id in [attached.native, attached.generic, attached.offloaded].into_iter().filter(|id| *id != 0) {
            let name = ProgInfoIter::default()
                .find(|info| info.id == id)
                .map_or_else(|| "without a name".into(), |info| info.name.to_string_lossy().into_owned());
            if !name.starts_with(OURS) {
                return Err(XdpError::ForeignProgram { interface: self.interface.name.clone(), id, name });
            }
            ours.push((id, name));
        }
        Ok(ours)
    }

    /// Puts the program into the driver, or else into the generic hook.
    pub(super) fn attach_best(&self, earlier: &Attached) -> Result<Mode, XdpError> {
        // The kernel allows one hook at a time: between the two calls there is no program. In the same hook it
        // replaces the earlier one at once.
        if earlier.generic != 0 {
            self.clear(false)?;
        }
        let refusal = match self.set(true) {
            Ok(()) => return Ok(Mode { native: true, fallback: None }),
            Err(refusal @ XdpError::Refused { .. }) if earlier.native == 0 => refusal,
            Err(error) => return Err(error),
        };
        self.set(false)?;
        let XdpError::Refused { reason, .. } = refusal else { unreachable!("matched above") };
        Ok(Mode { native: false, fallback: Some(reason) })
    }

    fn set(&self, native: bool) -> Result<(), XdpError> {
        let flags = if native { XdpFlags::DRV_MODE } else { XdpFlags::SKB_MODE };
        let (set, said) = kernel_log::captured(|| Xdp::new(self.code).attach(self.index(), flags));
        set.map_err(|error| self.refusal("attach the XDP program to", &error, &said))
    }

    pub(super) fn clear(&self, native: bool) -> Result<(), XdpError> {
        let flags = if native { XdpFlags::DRV_MODE } else { XdpFlags::SKB_MODE };
        let (cleared, said) = kernel_log::captured(|| Xdp::new(self.code).detach(self.index(), flags));
        cleared.map_err(|error| self.refusal("detach the XDP program from", &error, &said))
    }

    fn refusal(&self, verb: &str, error: &libbpf_rs::Error, said: &[String]) -> XdpError {
        let name = &self.interface.name;
        match Interface::find(name) {
            Ok(there) if there.index == self.interface.index => {
                XdpError::from_bpf(format!("{verb} interface {name}"), error, said)
            }
            Ok(_) => XdpError::NoInterface { interface: name.clone() },
            Err(why) => why,
        }
    }
}
