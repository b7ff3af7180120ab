//! Drop counter: an XDP program that counts and drops the frames of an interface, a receiver of next to no
//! cost.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};

use super::Mode;
use super::attach::{Attachment, earlier_on};
use crate::netlink::Interface;
use crate::xdp::error::XdpError;
use crate::xdp::libbpf::kernel_log;

/// `bpf/count.bpf.c`, compiled by build.rs.
static COUNT_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/count.bpf.o"));
/// Name of its program.
const COUNT: &str = "palisade_count";
/// `XDP_DROP` of `linux/bpf.h`: the map entry that counts dropped frames.
const XDP_DROP: u32 = 1;

/// The program on an interface. ARP and neighbour discovery reach the kernel's stack, uncounted.
/// [`detach`](DropCounter::detach) detaches it; a dropped one stays attached.
#[must_use = "a drop counter that is merely dropped stays attached: detach it"]
pub struct DropCounter {
    interface: Interface,
    attachment: Attachment,
    code: OwnedFd,
    verdicts: MapHandle,
}

/// Frames, and their bytes without the frame check sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Frames.
    pub frames: u64,
    /// Bytes of the frames.
    pub bytes: u64,
}

impl DropCounter {
    /// Attaches the program in the driver if it can, and in the generic hook otherwise. It replaces a counter
    /// of an earlier run, and no other program, such as that of a switch.
    pub fn attach(interface: &Interface) -> Result<(DropCounter, Mode), XdpError> {
        let earlier = earlier_on(interface)?;
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.name != COUNT) {
            let (id, name) = (earlier.id(), earlier.name.clone());
            return Err(XdpError::ForeignProgram { interface: interface.name.clone(), id, name });
        }
        let (loaded, said) = kernel_log::captured(load);
        let (code, verdicts) =
            loaded.map_err(|error| XdpError::from_bpf("load the XDP program that counts", &error, &said))?;
        let (attachment, mode) = Attachment::take(interface, code.as_fd(), earlier.as_ref(), None)?;
        Ok((DropCounter { interface: interface.clone(), attachment, code, verdicts }, mode))
    }

    /// Reads the counts since the attachment, of all CPUs, by a system call.
    pub fn dropped(&self) -> Result<Dropped, XdpError> {
        let action = || format!("tell what was dropped on {}", self.interface.name);
        let by_cpu = self
            .verdicts
            .lookup_percpu(&XDP_DROP.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| XdpError::from_bpf(action(), &error, &[]))?;
        Ok(by_cpu.iter().flatten().fold(Dropped::default(), |sum, count| Dropped {
            frames: sum.frames + word(count, 0),
            bytes: sum.bytes + word(count, 8),
        }))
    }

    /// Detaches the program. Does nothing if the interface is removed.
    pub fn detach(self) -> Result<(), XdpError> {
        self.attachment.detach(self.code.as_fd())
    }
}

fn load() -> libbpf_rs::Result<(OwnedFd, MapHandle)> {
    let loaded = ObjectBuilder::default().open_memory(COUNT_OBJECT)?.load()?;
    let (Some(program), Some(verdicts)) =
        (loaded.progs().next(), loaded.maps().find(|map| map.name() == "verdicts"))
    else {
        return Err(std::io::Error::other("the object lacks a program or its map").into());
    };
    Ok((program.as_fd().try_clone_to_owned()?, MapHandle::try_from(&verdicts)?))
}

/// A number of `struct count`.
fn word(count: &[u8], at: usize) -> u64 {
    let bytes = count.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(*bytes.expect("a value of the map has two numbers"))
}
