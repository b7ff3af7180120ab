//! Errors of UMEMs, programs and queues: one sentence for the operator each.

use std::io;

use super::libbpf::kernel_log;
use crate::limits::MTU_MAX;
use crate::netlink::{Interface, NetlinkError};

/// An error of the set-up of AF_XDP. The failed step leaves nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// No such interface in the network namespace of the calling thread.
    #[error("interface {interface} does not exist: create it first, or correct its name")]
    NoInterface {
        /// The interface.
        interface: String,
    },
    /// An MTU above that of the switch.
    #[error(
        "interface {interface} has MTU {mtu}, and the switch takes at most {max}{}: \
         `ip link set {interface} mtu {max}` (and the same on the peer)",
        one_frame(*max)
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// MTU of the interface, bytes.
        mtu: u32,
        /// Largest MTU that works, bytes.
        max: usize,
    },
    /// A queue number that the interface does not have.
    #[error(
        "interface {interface} has {queues} queues, and queue {queue} (counted from 0) is wanted: create a veth with \
         `numrxqueues` and `numtxqueues` at both ends, set a NIC's with `ethtool -L {interface} combined`"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u16,
        /// Queues of the interface that work in both directions.
        queues: u16,
    },
    /// Another AF_XDP socket has the queue.
    #[error(
        "queue {queue} of interface {interface} is taken by another AF_XDP socket: \
         stop the program that has it (`ss --xdp -p` names it)"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u16,
    },
    /// The interface has an XDP program that is not ours.
    #[error(
        "interface {interface} has another XDP program, {name} (id {id}): \
         stop what attached it, or remove it with `ip link set dev {interface} xdp off`"
    )]
    ForeignProgram {
        /// The interface.
        interface: String,
        /// The kernel's id of the program.
        id: u32,
        /// Name of the program.
        name: String,
    },
    /// A BPF link without a pin that this process knows holds our program.
    #[error(
        "the XDP program of interface {interface} is held by a BPF link of another Palisade: stop that one, or give this one the \
         same `[xdp] pin_directory` (`bpftool link show` lists links)"
    )]
    HeldElsewhere {
        /// The interface.
        interface: String,
    },
    /// A BPF link holds our program, and this process cannot read pins.
    #[error(
        "the XDP program of interface {interface} is held by a BPF link whose pin this process does not see: {reason}"
    )]
    PinUnseen {
        /// The interface.
        interface: String,
        /// Reason, and the step that ends it.
        reason: String,
    },
    /// Another interface has taken the name meanwhile.
    #[error("interface {interface} has changed while it was attached to: try again")]
    Changed {
        /// The interface.
        interface: String,
    },
    /// The process lacks a capability.
    #[error(
        "no privilege to {action}: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_SYS_ADMIN and CAP_IPC_LOCK"
    )]
    Privilege {
        /// Action that the kernel refused.
        action: String,
    },
    /// The kernel is built without AF_XDP.
    #[error(
        "this kernel has no AF_XDP sockets: use one built with CONFIG_XDP_SOCKETS=y (any distribution's since 2019)"
    )]
    NoAfXdp,
    /// Not enough memory, or not enough of it may be locked.
    #[error(
        "no memory to {action} ({bytes} bytes): configure fewer frames, or raise the limit of locked memory \
         (`ulimit -l unlimited`, LimitMEMLOCK=infinity)"
    )]
    Memory {
        /// Action that the kernel refused.
        action: String,
        /// Bytes wanted.
        bytes: usize,
    },
    /// A queue of an interface on a UMEM that is not registered with the kernel.
    #[error(
        "the UMEM is in memory only and serves memory ports: interface {interface} needs one registered with the kernel"
    )]
    MemoryOnly {
        /// The interface.
        interface: String,
    },
    /// Every queue id of the UMEM is in use.
    #[error("the UMEM has as many queues as it can have: close a port first")]
    TooManyQueues,
    /// Any other refusal of the kernel.
    #[error("the kernel refuses to {action}: {reason}")]
    Refused {
        /// Action that the kernel refused.
        action: String,
        /// The kernel's reason.
        reason: String,
    },
}

/// Fails when the MTU is above `max`, which is [`Binder::mtu_max`](super::Binder::mtu_max) for ports of a
/// UMEM.
pub(crate) fn check_mtu(interface: &Interface, max: usize) -> Result<(), XdpError> {
    if interface.mtu as usize > max {
        return Err(XdpError::Mtu { interface: interface.name.clone(), mtu: interface.mtu, max });
    }
    Ok(())
}

/// Explains a small largest MTU; empty for the ordinary one.
pub(crate) fn one_frame(max: usize) -> &'static str {
    if max < MTU_MAX {
        " on this kernel, whose AF_XDP knows no packets of several buffers (Linux 6.6 does)"
    } else {
        ""
    }
}

impl XdpError {
    /// Converts an error number of `action`.
    pub(super) fn from_io(action: impl Into<String>, error: &io::Error) -> XdpError {
        let action = action.into();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::Privilege { action },
            Some(libc::EAFNOSUPPORT) => XdpError::NoAfXdp,
            _ => XdpError::Refused { action, reason: error.to_string() },
        }
    }

    /// Converts an error number, with the kernel's own message before it.
    pub(super) fn from_kernel(action: impl Into<String>, error: &io::Error, said: &[String]) -> XdpError {
        match XdpError::from_io(action, error) {
            XdpError::Refused { action, reason } => {
                XdpError::Refused { action, reason: kernel_log::reason(said, &reason) }
            }
            other => other,
        }
    }

    /// Converts an error of libbpf-rs, which has a kind and a text, with the kernel's own message before it.
    pub(super) fn from_bpf(action: impl Into<String>, error: &libbpf_rs::Error, said: &[String]) -> XdpError {
        let action = action.into();
        if let Some(refused) = kernel_log::verifier_reason(said) {
            return XdpError::Refused { action, reason: refused };
        }
        match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => XdpError::Privilege { action },
            _ => XdpError::Refused { action, reason: kernel_log::reason(said, &format!("{error:#}")) },
        }
    }
}

impl From<NetlinkError> for XdpError {
    fn from(error: NetlinkError) -> XdpError {
        match error {
            NetlinkError::NoInterface { interface } => XdpError::NoInterface { interface },
            NetlinkError::Refused { action, source } => XdpError::from_io(action, &source),
        }
    }
}

/// Returns the error number inside an error of xsk-rs, which has it as its source.
pub(super) fn io_source(error: &dyn std::error::Error) -> io::Error {
    match error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error)
    {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MTU_OF_ONE_FRAME_MAX;

    fn sentence(number: i32) -> String {
        XdpError::from_io("open a socket", &io::Error::from_raw_os_error(number)).to_string()
    }

    #[test]
    fn an_mtu_that_no_frame_holds_is_refused_with_the_largest_that_works() {
        for max in [MTU_MAX, MTU_OF_ONE_FRAME_MAX] {
            let mut interface = Interface { name: "lo".to_owned(), mtu: max as u32, ..Interface::default() };
            check_mtu(&interface, max).unwrap();
            interface.mtu += 1;
            let sentence = check_mtu(&interface, max).unwrap_err().to_string();
            assert!(sentence.contains(&format!("ip link set lo mtu {max}")), "{sentence}");
        }
    }

    #[test]
    fn a_missing_capability_names_the_capabilities() {
        assert!(sentence(libc::EPERM).contains("CAP_NET_ADMIN"));
        assert!(sentence(libc::EACCES).contains("CAP_BPF"));
    }

    #[test]
    fn a_kernel_without_af_xdp_is_told_what_it_lacks() {
        assert!(sentence(libc::EAFNOSUPPORT).contains("CONFIG_XDP_SOCKETS"));
    }

    #[test]
    fn any_other_refusal_keeps_the_kernels_reason() {
        assert_eq!(
            sentence(libc::EINVAL),
            "the kernel refuses to open a socket: Invalid argument (os error 22)"
        );
    }
}
