//! Attachment of XDP programs: one owner per interface, and no gap without a program when the owner changes.
//!
//! A pinned BPF link ([`Pins`]) holds a program where there is a BPF file system. Otherwise it is attached by
//! netlink, which any process with the capability can undo. Both outlive the process. A program of an earlier
//! start is replaced in its hook, and only if it is still the one that was read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::libbpf_sys::{
    self, XDP_FLAGS_DRV_MODE, XDP_FLAGS_REPLACE, XDP_FLAGS_SKB_MODE, XDP_FLAGS_UPDATE_IF_NOEXIST,
    bpf_xdp_attach_opts,
};
use libbpf_rs::query::ProgInfoIter;

use crate::netlink::{Interface, xdp_programs};
use crate::xdp::error::XdpError;
use crate::xdp::libbpf::kernel_log;
use crate::xdp::libbpf::link::{Link, Pins, program_with};

/// Prefix of the names of our programs.
const OURS: &str = "palisade_";

/// Hook of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mode {
    /// Whether it runs in the driver, before the kernel allocates a socket buffer. The generic hook comes
    /// after.
    pub native: bool,
    /// The kernel's reason for the generic hook.
    pub fallback: Option<String>,
}

/// A program on an interface.
pub(in crate::xdp) struct Attachment {
    index: u32,
    name: String,
    native: bool,
    /// The kernel's id of the program.
    id: u32,
    /// Link that holds the program, and its pin.
    link: Option<(Link, PathBuf)>,
}

/// A program of an earlier start on an interface.
#[derive(Debug)]
pub(in crate::xdp) struct Earlier {
    id: u32,
    /// Name of the program.
    pub(in crate::xdp) name: String,
    native: bool,
}

impl Earlier {
    /// The kernel's id of the program.
    pub(in crate::xdp) fn id(&self) -> u32 {
        self.id
    }
}

/// Returns our program on an interface, if there is one. Fails for a program of another owner.
pub(in crate::xdp) fn earlier_on(interface: &Interface) -> Result<Option<Earlier>, XdpError> {
    let found = attached(interface)?;
    let hooks = [(found.native, true), (found.generic, false), (found.offloaded, true)];
    let mut ours = None;
    for (id, native) in hooks.into_iter().filter(|(id, _)| *id != 0) {
        let name = ProgInfoIter::default()
            .find(|info| info.id == id)
            .map_or_else(|| "without a name".into(), |info| info.name.to_string_lossy().into_owned());
        if !name.starts_with(OURS) || id == found.offloaded {
            return Err(XdpError::ForeignProgram { interface: interface.name.clone(), id, name });
        }
        ours = Some(Earlier { id, name, native });
    }
    Ok(ours)
}

/// Tests whether an interface has a program of a switch. Fails for a program of another owner, and for each program if the
/// process may not see their names (`CAP_BPF`).
pub fn has_program_of_switch(interface: &Interface) -> Result<bool, XdpError> {
    earlier_on(interface).map(|earlier| earlier.is_some())
}

/// Ids of the programs of an interface by hook; 0 is none.
#[derive(Default, PartialEq, Eq)]
struct Hooks {
    native: u32,
    generic: u32,
    offloaded: u32,
}

fn attached(interface: &Interface) -> Result<Hooks, XdpError> {
    let [native, generic, offloaded] = xdp_programs(interface)?;
    Ok(Hooks { native, generic, offloaded })
}

impl Attachment {
    /// Attaches a program: it replaces an earlier one, or takes the free hook of the driver, or else the
    /// generic one. With `pins` a link holds it.
    pub(in crate::xdp) fn take(
        interface: &Interface,
        code: BorrowedFd<'_>,
        earlier: Option<&Earlier>,
        pins: Option<&Pins>,
    ) -> Result<(Attachment, Mode), XdpError> {
        let id = libbpf_rs::Program::id_from_fd(code)
            .map_err(|error| attach_error(interface, "tell the id of the XDP program for", &error, &[]))?;
        let (index, name) = (interface.index, interface.name.clone());
        let mut attachment = Attachment { index, name, native: true, id, link: None };
        let mode = match earlier {
            Some(earlier) => attachment.replace(interface, code, earlier, pins)?,
            None => attachment.put(interface, code, pins)?,
        };
        Ok((attachment, mode))
    }

    fn replace(
        &mut self,
        interface: &Interface,
        code: BorrowedFd<'_>,
        earlier: &Earlier,
        pins: Option<&Pins>,
    ) -> Result<Mode, XdpError> {
        let refused = |error: &io::Error| refused(interface, "replace the XDP program of", error, &[]);
        let before = program_with(earlier.id).map_err(|error| refused(&error))?;
        self.native = earlier.native;
        self.link = pins.and_then(|pins| {
            let pin = pins.path(self.index);
            let link = Link::open(&pin).ok()?;
            (link.info().ok()? == (self.index, earlier.id)).then_some((link, pin))
        });
        self.swap(code, &before).map_err(|(error, said)| match error.raw_os_error() {
            Some(libc::EBUSY) => XdpError::HeldElsewhere { interface: interface.name.clone() },
            _ => super::attach::refused(interface, "replace the XDP program of", &error, &said),
        })?;
        let fallback = (!self.native).then(|| {
            format!(
                "an earlier start has put it there, and it is not moved while pods are closed by it; to try the driver, stop the \
                 switch and run `ip link set dev {} xdp off`",
                interface.name
            )
        });
        Ok(Mode { native: self.native, fallback })
    }

    /// Replaces another program atomically in the same hook.
    fn swap(&self, code: BorrowedFd<'_>, before: &OwnedFd) -> Result<(), (io::Error, Vec<String>)> {
        if let Some((link, _)) = &self.link {
            return link.update(code, before.as_fd()).map_err(|error| (error, Vec::new()));
        }
        let flags = self.mode_flag() | XDP_FLAGS_REPLACE;
        by_netlink(self.index, code.as_raw_fd(), flags, before.as_raw_fd())
    }

    fn put(
        &mut self,
        interface: &Interface,
        code: BorrowedFd<'_>,
        pins: Option<&Pins>,
    ) -> Result<Mode, XdpError> {
        let reason = if interface.is_bond() {
            "its driver runs programs at its members, whose frames no socket of it receives".to_owned()
        } else {
            // Not all callers have counted the queues of the interface. The driver of veth raises none.
            let is_veth = interface.kind.as_deref() == Some("veth");
            let before = if is_veth { None } else { self.receive_queues() };
            match self.put_in(code, pins) {
                Ok(()) => match self.raised_queues(before) {
                    None => return Ok(Mode { native: true, fallback: None }),
                    Some(reason) => {
                        self.take_off(code).map_err(|error| {
                            refused(interface, "detach the XDP program from", &error, &[])
                        })?;
                        reason
                    }
                },
                Err((error, said)) => match refused(interface, "attach the XDP program to", &error, &said) {
                    XdpError::Refused { reason, .. } => reason,
                    error => return Err(error),
                },
            }
        };
        self.native = false;
        self.put_in(code, pins)
            .map_err(|(error, said)| refused(interface, "attach the XDP program to", &error, &said))?;
        Ok(Mode { native: false, fallback: Some(reason) })
    }

    /// Reason against the driver's hook where the driver has more receive queues with a program than before, and would spread
    /// frames over queues without a socket (`virtnet_xdp_set` of `drivers/net/virtio_net.c` adds one for each processor).
    fn raised_queues(&self, before: Option<u16>) -> Option<String> {
        let (before, now) = (before?, self.receive_queues()?);
        (now > before)
            .then(|| format!("with a program its driver raises its {before} receive queues to {now}"))
    }

    fn receive_queues(&self) -> Option<u16> {
        Some(Interface::with_index(self.index).ok()?.rx_queues)
    }

    /// Takes the program off again that was just put into a free hook.
    fn take_off(&mut self, code: BorrowedFd<'_>) -> io::Result<()> {
        let Some((link, pin)) = self.link.take() else {
            let flags = self.mode_flag() | XDP_FLAGS_REPLACE;
            return by_netlink(self.index, -1, flags, code.as_raw_fd()).map_err(|(error, _)| error);
        };
        // The generic hook pins a link of its own.
        let _ = fs::remove_file(pin);
        link.detach()
    }

    fn put_in(&mut self, code: BorrowedFd<'_>, pins: Option<&Pins>) -> Result<(), (io::Error, Vec<String>)> {
        let Some(pins) = pins else {
            let flags = self.mode_flag() | XDP_FLAGS_UPDATE_IF_NOEXIST;
            return by_netlink(self.index, code.as_raw_fd(), flags, -1);
        };
        let plain = |error| (error, Vec::new());
        let link = Link::create(code, self.index, self.native).map_err(plain)?;
        let pin = pins.path(self.index);
        // The hook was free, so the link of the file holds no program on this interface.
        let _ = fs::remove_file(&pin);
        // An error closes the link, which detaches the program.
        link.pin(&pin).map_err(plain)?;
        self.link = Some((link, pin));
        Ok(())
    }

    fn mode_flag(&self) -> u32 {
        if self.native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE }
    }

    /// The kernel's id of the program.
    pub(in crate::xdp) fn id(&self) -> u32 {
        self.id
    }

    /// Whether a link holds the program.
    pub(in crate::xdp) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the program is still on its interface. Pins the link again if its file was removed.
    pub(in crate::xdp) fn holds(&self) -> bool {
        match &self.link {
            Some((link, pin)) => {
                let holds = link.info().is_ok_and(|info| info == (self.index, self.id));
                if holds
                    && !pin.exists()
                    && let Err(error) = link.pin(pin)
                {
                    tracing::error!(
                        "{} does not keep the XDP program of interface {}, which goes with this process: {error}",
                        pin.display(),
                        self.name
                    );
                }
                holds
            }
            None => attached(&self.interface())
                .is_ok_and(|hooks| (if self.native { hooks.native } else { hooks.generic }) == self.id),
        }
    }

    /// Detaches the program. Does nothing if another program has replaced it, or the interface is removed.
    pub(in crate::xdp) fn detach(self, code: BorrowedFd<'_>) -> Result<(), XdpError> {
        if let Some((link, pin)) = &self.link {
            let ours = link.info().is_ok_and(|info| info == (self.index, self.id));
            let is_gone = link.info().is_ok_and(|info| info.0 == 0);
            if ours {
                link.detach().map_err(|error| {
                    refused(&self.interface(), "detach the XDP program from", &error, &[])
                })?;
            }
            if ours || is_gone {
                // The next start removes a pin without a program.
                let _ = fs::remove_file(pin);
                pin.ancestors().skip(1).take(2).for_each(|directory| _ = fs::remove_dir(directory));
            }
            return Ok(());
        }
        if !self.holds() {
            return Ok(());
        }
        let taken = by_netlink(self.index, -1, self.mode_flag() | XDP_FLAGS_REPLACE, code.as_raw_fd());
        match taken
            .map_err(|(error, said)| refused(&self.interface(), "detach the XDP program from", &error, &said))
        {
            Err(XdpError::NoInterface { .. }) => Ok(()),
            taken => taken,
        }
    }

    /// Restores the program that this one has replaced.
    pub(in crate::xdp) fn give_back(self, code: BorrowedFd<'_>, before: &OwnedFd) -> Result<(), XdpError> {
        let swapped = if let Some((link, _)) = &self.link {
            link.update(before.as_fd(), code).map_err(|error| (error, Vec::new()))
        } else {
            let flags = self.mode_flag() | XDP_FLAGS_REPLACE;
            by_netlink(self.index, before.as_raw_fd(), flags, code.as_raw_fd())
        };
        swapped.map_err(|(error, said)| {
            refused(&self.interface(), "give the earlier XDP program back to", &error, &said)
        })
    }

    /// Interface with the fields that errors name.
    fn interface(&self) -> Interface {
        Interface { name: self.name.clone(), index: self.index, ..Interface::default() }
    }
}

/// Attaches a program by netlink, or detaches one with -1. With `XDP_FLAGS_REPLACE` it replaces only
/// `expected`. Fails with the error and the lines that libbpf printed.
fn by_netlink(
    index: u32,
    code: libc::c_int,
    flags: u32,
    expected: libc::c_int,
) -> Result<(), (io::Error, Vec<String>)> {
    let size = size_of::<bpf_xdp_attach_opts>() as _;
    let options = bpf_xdp_attach_opts { sz: size, old_prog_fd: expected, ..Default::default() };
    let options = if flags & XDP_FLAGS_REPLACE == 0 { std::ptr::null() } else { &raw const options };
    // SAFETY: the descriptors are open, and the options are null or outlive the call.
    let (answer, said) = kernel_log::captured(|| unsafe {
        libbpf_sys::bpf_xdp_attach(index.cast_signed(), code, flags, options)
    });
    if answer < 0 { Err((io::Error::from_raw_os_error(-answer), said)) } else { Ok(()) }
}

fn refused(interface: &Interface, verb: &str, error: &io::Error, said: &[String]) -> XdpError {
    let name = &interface.name;
    if interface.is_there() {
        XdpError::from_kernel(format!("{verb} interface {name}"), error, said)
    } else {
        XdpError::NoInterface { interface: name.clone() }
    }
}

fn attach_error(interface: &Interface, verb: &str, error: &libbpf_rs::Error, said: &[String]) -> XdpError {
    let name = &interface.name;
    if interface.is_there() {
        XdpError::from_bpf(format!("{verb} interface {name}"), error, said)
    } else {
        XdpError::NoInterface { interface: name.clone() }
    }
}
