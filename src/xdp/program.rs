//! The XDP program of a port, in the kernel: loaded, attached to the interface, told its sockets.
//!
//! It is attached by netlink and not by a BPF link, so that it outlives the process: while there is no switch, the
//! port's frames are dropped. The next start finds the program by its name and puts its own in its place.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder, Xdp, XdpFlags};

use super::error::XdpError;
use super::interface::Interface;
use super::kernel_log;
use crate::limits::MTU_MAX;

/// `bpf/port.bpf.c`, compiled by build.rs.
static PORT_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
/// What the names of our programs begin with.
const OURS: &str = "palisade_";

/// An XDP program that is attached to an interface. Dropping it leaves it attached.
pub struct Program {
    interface: Interface,
    mode: Mode,
    code: OwnedFd,
    id: u32,
    sockets: MapHandle,
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
        let (code, sockets) = load(PORT_OBJECT, queues)?;
        let slot = Slot { interface, code: code.as_fd() };
        let id = libbpf_rs::Program::id_from_fd(slot.code)
            .map_err(|error| slot.refusal("tell the id of the XDP program for", &error, &[]))?;
        let earlier = slot.attached()?;
        slot.refuse_foreign(&earlier)?;
        let mode = slot.attach_best(&earlier)?;
        let replaced = earlier != Attached::default();
        Ok((Program { interface: interface.clone(), mode: mode.clone(), code, id, sockets, replaced }, mode))
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

    /// Sends the frames of receive queue `queue` to the socket, until that is closed.
    pub(super) fn register(&self, queue: u16, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        let key = u32::from(queue).to_ne_bytes();
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets.update(&key, &value, MapFlags::ANY).map_err(|error| {
            let action = format!("send queue {queue} of {} to its AF_XDP socket", self.interface.name);
            XdpError::from_bpf(action, &error, &[])
        })
    }
}

/// Loads a program object: the program and its map of sockets.
fn load(object: &[u8], queues: u16) -> Result<(OwnedFd, MapHandle), XdpError> {
    let (loaded, said) = kernel_log::captured(|| try_load(object, queues));
    loaded.map_err(|error| XdpError::from_bpf("load the XDP program", &error, &said))
}

fn try_load(object: &[u8], queues: u16) -> libbpf_rs::Result<(OwnedFd, MapHandle)> {
    let mut open = ObjectBuilder::default().open_memory(object)?;
    for mut map in open.maps_mut().filter(|map| map.name() == "sockets") {
        map.set_max_entries(u32::from(queues.max(1)))?;
    }
    let loaded = open.load()?;
    let (Some(program), Some(sockets)) =
        (loaded.progs().next(), loaded.maps().find(|map| map.name() == "sockets"))
    else {
        return Err(std::io::Error::other("the object lacks a program or its map").into());
    };
    Ok((program.as_fd().try_clone_to_owned()?, MapHandle::try_from(&sockets)?))
}

/// Ids of the programs that an interface has, by hook; 0 is none.
#[derive(Default, PartialEq, Eq)]
struct Attached {
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
struct Slot<'a> {
    interface: &'a Interface,
    code: BorrowedFd<'a>,
}

impl Slot<'_> {
    fn index(&self) -> i32 {
        self.interface.index.cast_signed()
    }

    fn attached(&self) -> Result<Attached, XdpError> {
        let answer = Xdp::new(self.code).query(self.index(), XdpFlags::NONE);
        let found = answer.map_err(|error| self.refusal("tell the XDP programs of", &error, &[]))?;
        // With one program only, older kernels give its id and hook alone; libbpf puts it where it belongs.
        Ok(Attached { native: found.drv_prog_id, generic: found.skb_prog_id, offloaded: found.hw_prog_id })
    }

    fn refuse_foreign(&self, attached: &Attached) -> Result<(), XdpError> {
        for id in [attached.native, attached.generic, attached.offloaded].into_iter().filter(|id| *id != 0) {
            let name = ProgInfoIter::default()
                .find(|info| info.id == id)
                .map_or_else(|| "without a name".into(), |info| info.name.to_string_lossy().into_owned());
            if !name.starts_with(OURS) {
                return Err(XdpError::ForeignProgram { interface: self.interface.name.clone(), id, name });
            }
        }
        Ok(())
    }

    /// Puts the program into the driver, or else into the generic hook.
    fn attach_best(&self, earlier: &Attached) -> Result<Mode, XdpError> {
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

    fn clear(&self, native: bool) -> Result<(), XdpError> {
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
