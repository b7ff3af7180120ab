//! tc program at the node's end of a host port, which marks the frames of the node's own sockets.
//!
//! A pinned BPF link holds it (tcx, Linux 6.6), or a filter of the qdisc clsact where there is no BPF file system or the
//! kernel is older. Both outlive the process, and the next start replaces the program. The program marks a frame once,
//! so that both may be there.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::ObjectBuilder;
use libbpf_rs::libbpf_sys::{
    self, BPF_TC_EGRESS, BPF_TC_F_REPLACE, BPF_TCX_EGRESS, bpf_tc_hook, bpf_tc_opts,
};

use crate::netlink::{Interface, VethPeer};
use crate::xdp::error::XdpError;
use crate::xdp::libbpf::kernel_log;
use crate::xdp::libbpf::link::{Link, Pins, program_with};

/// `bpf/node.bpf.c`, compiled by build.rs.
static NODE_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node.bpf.o"));
/// Number of the filter below its priority, as in the output of `tc filter show`.
const FILTER_HANDLE: u32 = 0x50;
/// Priority of the filter, behind those of others.
const FILTER_PRIORITY: u32 = 0xc000;

/// The program at the other end of a host port's interface. A dropped one stays attached.
#[derive(Debug)]
pub struct NodeMarker {
    peer: VethPeer,
    /// The kernel's id of the program.
    id: u32,
    hook: Hook,
    /// Whether an earlier start has left a program there.
    was_there: bool,
}

#[derive(Debug)]
enum Hook {
    /// Link, and its pin.
    Link(Link, PathBuf),
    /// Filter of the qdisc clsact.
    Filter,
}

impl NodeMarker {
    /// Loads the program, and attaches it to the other end of `interface`, in place of that of an earlier start.
    pub fn attach(interface: &Interface, pins: Option<&Pins>) -> Result<NodeMarker, XdpError> {
        let peer = VethPeer::of(interface)?;
        let (loaded, said) = kernel_log::captured(load);
        let code = loaded.map_err(|error| {
            XdpError::from_bpf("load the program that marks the node's sockets", &error, &said)
        })?;
        let id = libbpf_rs::Program::id_from_fd(code.as_fd())
            .map_err(|error| XdpError::from_bpf("tell the id of a tc program", &error, &[]))?;
        let attached = peer.run(|| put(code.as_fd(), peer.index, pins)).and_then(|result| result);
        let (hook, was_there) = attached.map_err(|error| {
            let action = format!("mark the node's sockets at the other end of interface {}", interface.name);
            XdpError::from_io(action, &error)
        })?;
        Ok(NodeMarker { peer, id, hook, was_there })
    }

    /// Whether the program is still attached.
    pub fn holds(&self) -> bool {
        match &self.hook {
            Hook::Link(link, pin) => {
                let holds = link.info().is_ok_and(|info| info == (self.peer.index, self.id));
                // Without the file the program would end with the process. One that cannot be made again is no lack now.
                if holds && !pin.exists() {
                    let _ = link.pin(pin);
                }
                holds
            }
            Hook::Filter => {
                let index = self.peer.index;
                self.peer.run(|| filter_program(index)).is_ok_and(|found| found.ok() == Some(self.id))
            }
        }
    }

    /// Detaches the program. Does nothing if the interface is removed.
    pub fn detach(self) -> Result<(), XdpError> {
        let detached = match &self.hook {
            Hook::Link(link, pin) => {
                let has_program = link.info().is_ok_and(|info| info == (self.peer.index, self.id));
                let detached = if has_program { link.detach() } else { Ok(()) };
                let _ = fs::remove_file(pin);
                pin.ancestors().skip(1).take(2).for_each(|directory| _ = fs::remove_dir(directory));
                detached
            }
            Hook::Filter if self.holds() => {
                let index = self.peer.index;
                self.peer.run(|| remove_filter(index)).and_then(|result| result)
            }
            Hook::Filter => Ok(()),
        };
        detached
            .map_err(|error| XdpError::from_io("detach the program that marks the node's sockets", &error))
    }

    /// Detaches the program, unless an earlier start had left one.
    pub fn undo(self) -> Result<(), XdpError> {
        if self.was_there { Ok(()) } else { self.detach() }
    }
}

fn load() -> libbpf_rs::Result<OwnedFd> {
    let loaded = ObjectBuilder::default().open_memory(NODE_OBJECT)?.load()?;
    let program = loaded.progs().next().ok_or_else(|| io::Error::other("the object lacks a program"))?;
    Ok(program.as_fd().try_clone_to_owned()?)
}

/// Attaches the program in the calling thread's network namespace, and tells whether one was there.
fn put(code: BorrowedFd<'_>, index: u32, pins: Option<&Pins>) -> io::Result<(Hook, bool)> {
    if let Some(pins) = pins.and_then(|pins| pins.of_this_namespace().ok()) {
        match put_link(code, index, &pins) {
            // EINVAL: a kernel without tcx.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            other => return other,
        }
    }
    put_filter(code, index)
}

fn put_link(code: BorrowedFd<'_>, index: u32, pins: &Pins) -> io::Result<(Hook, bool)> {
    let pin = pins.egress_path(index);
    if let Ok(link) = Link::open(&pin)
        && let Ok((of, program)) = link.info()
        && of == index
    {
        link.update(code, program_with(program)?.as_fd())?;
        return Ok((Hook::Link(link, pin), true));
    }
    let link = Link::create_tc(code, index, BPF_TCX_EGRESS, false)?;
    // The link of the file has lost its interface.
    let _ = fs::remove_file(&pin);
    link.pin(&pin)?;
    Ok((Hook::Link(link, pin), false))
}

fn put_filter(code: BorrowedFd<'_>, index: u32) -> io::Result<(Hook, bool)> {
    let was_there = filter_program(index).is_ok();
    let mut hook = hook_of(index);
    // SAFETY: the structure is complete, and outlives the call.
    let (made, said) = kernel_log::captured(|| unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) });
    // Another program may have made the qdisc.
    if made != -libc::EEXIST {
        answer(made, &said)?;
    }
    let mut filter = filter();
    (filter.prog_fd, filter.flags) = (code.as_raw_fd(), BPF_TC_F_REPLACE);
    // SAFETY: the descriptor is open; the structures are complete, and outlive the call.
    let (put, said) =
        kernel_log::captured(|| unsafe { libbpf_sys::bpf_tc_attach(&raw const hook, &raw mut filter) });
    answer(put, &said)?;
    Ok((Hook::Filter, was_there))
}

/// The kernel's id of the filter's program.
fn filter_program(index: u32) -> io::Result<u32> {
    let (hook, mut filter) = (hook_of(index), filter());
    // SAFETY: the structures are complete, and outlive the call.
    let (found, said) =
        kernel_log::captured(|| unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut filter) });
    answer(found, &said).map(|()| filter.prog_id)
}

fn remove_filter(index: u32) -> io::Result<()> {
    let (hook, filter) = (hook_of(index), filter());
    // SAFETY: the structures are complete, and outlive the call.
    let (removed, said) =
        kernel_log::captured(|| unsafe { libbpf_sys::bpf_tc_detach(&raw const hook, &raw const filter) });
    answer(removed, &said)
}

fn hook_of(index: u32) -> bpf_tc_hook {
    bpf_tc_hook {
        sz: size_of::<bpf_tc_hook>() as _,
        ifindex: index.cast_signed(),
        attach_point: BPF_TC_EGRESS,
        ..bpf_tc_hook::default()
    }
}

fn filter() -> bpf_tc_opts {
    bpf_tc_opts {
        sz: size_of::<bpf_tc_opts>() as _,
        handle: FILTER_HANDLE,
        priority: FILTER_PRIORITY,
        ..bpf_tc_opts::default()
    }
}

/// Converts the answer of libbpf, with the lines that it printed.
fn answer(answer: libc::c_int, said: &[String]) -> io::Result<()> {
    if answer >= 0 {
        return Ok(());
    }
    tracing::debug!("tc: {}", said.join("; "));
    Err(io::Error::from_raw_os_error(-answer))
}
