//! UMEM owner socket: the first socket of a UMEM, which carries no traffic and outlives every port.
//!
//! libxdp binds the first socket to the file descriptor that registered the UMEM (`xsk.c`,
//! `xsk_socket__create_shared`), and closes it with the UMEM and not with the socket. A port with that socket
//! could never be closed: the kernel would receive into frames that were given back. A socket that shares a
//! UMEM takes its mode from the first one (`net/xdp/xsk_buff_pool.c`, `xp_assign_dev_shared`): copy mode,
//! with the `need_wakeup` flag, and with multi-buffer packets if the kernel has them.
//!
//! So the first socket is bound to an interface without traffic: the loopback interface of a private network
//! namespace. The namespace lives as long as the socket, and ends with the process.
//!
//! Neither libxdp nor `xsk-rs` registers a UMEM with room for transmit metadata. Later sockets refer to the
//! UMEM by the first one's descriptor. So the same area is registered a second time with that room, and the
//! second socket replaces the first one behind the descriptor. The first registration stays, unused, for the
//! rings that libxdp has mapped.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::thread;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size, set_xdp_umem_reg,
};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use xsk_rs::config::{BindFlags, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::socket::Fd;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue};

use super::error::{XdpError, io_source};
use super::tx_metadata::TX_METADATA_BYTES;
use crate::limits::FRAME_BYTES;

/// Slots of the owner socket's rings: the least number that the kernel accepts.
const SLOTS: u32 = 2;
/// Index of the loopback interface in every network namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;
/// `XDP_UMEM_TX_METADATA_LEN` of `linux/if_xdp.h` (Linux 6.8).
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// The owner socket, which is kept and not used.
pub(super) struct OwnerSocket {
    _queues: Queues,
    takes_multi_buffer: bool,
    leaves_checksums: bool,
}

type Queues = (TxQueue, RxQueue, Option<(FillQueue, CompQueue)>);

/// Address range of a UMEM.
pub(super) struct Extent {
    /// First byte.
    pub(super) base: NonNull<u8>,
    /// Length, bytes.
    pub(super) bytes: usize,
}

impl OwnerSocket {
    /// Binds the first socket of `umem`, which has this address range, to the loopback interface of the
    /// calling thread's network namespace.
    pub(super) fn bind(umem: &xsk_rs::Umem, extent: &Extent) -> Result<OwnerSocket, XdpError> {
        let (queues, takes_multi_buffer) = match bind_first(umem, BindFlags::XDP_USE_SG) {
            Ok(queues) => (queues, true),
            // A kernel before 6.6 refuses the flag.
            Err(_) => (bind_first(umem, BindFlags::empty())?, false),
        };
        close_on_exec(queues.1.fd())?;
        let registered = takes_multi_buffer.then(|| register_again(extent)).transpose().ok().flatten();
        let leaves_checksums = registered.as_ref().is_some_and(|again| put_in_place(again, &queues));
        Ok(OwnerSocket { _queues: queues, takes_multi_buffer, leaves_checksums })
    }

    /// Whether sockets of the UMEM receive and send multi-buffer packets.
    pub(super) fn takes_multi_buffer(&self) -> bool {
        self.takes_multi_buffer
    }

    /// Whether sockets of the UMEM take transmit metadata, which leaves checksums to the kernel.
    pub(super) fn leaves_checksums(&self) -> bool {
        self.leaves_checksums
    }
}

fn bind_first(umem: &xsk_rs::Umem, more: BindFlags) -> Result<Queues, XdpError> {
    let slots = QueueSize::new(SLOTS).expect("a power of two");
    let config = SocketConfig::builder()
        .rx_queue_size(slots)
        .tx_queue_size(slots)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP | more)
        .build();
    let loopback = "lo".parse().expect("a name without a zero byte");
    // SAFETY: libxdp loads no program (INHIBIT_PROG_LOAD), as the contract demands.
    unsafe { Socket::new(config, umem, &loopback, 0) }
        .map_err(|error| XdpError::from_io("open an AF_XDP socket", &io_source(&error)))
}

/// Registers the area again, with room for metadata in front of each packet, and binds the socket like the
/// first one, in a namespace of its own. A kernel before 6.8 refuses it.
fn register_again(extent: &Extent) -> Result<OwnedFd, XdpError> {
    let registration = XdpUmemReg {
        addr: extent.base.as_ptr().expose_provenance() as u64,
        len: extent.bytes as u64,
        chunk_size: FRAME_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::from_bits_retain(XDP_UMEM_TX_METADATA_LEN),
        tx_metadata_len: TX_METADATA_BYTES as u32,
    };
    let open = || -> rustix::io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_xdp_umem_reg(&socket, registration)?;
        set_xdp_umem_fill_ring_size(&socket, SLOTS)?;
        set_xdp_umem_completion_ring_size(&socket, SLOTS)?;
        set_xdp_rx_ring_size(&socket, SLOTS)?;
        let flags = SocketAddrXdpFlags::XDP_COPY
            | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP
            | SocketAddrXdpFlags::XDP_USE_SG;
        bind(&socket, &SocketAddrXdp::new(flags, LOOPBACK_IFINDEX, 0))?;
        Ok(socket)
    };
    in_private_namespace(|| {
        open().map_err(|error| XdpError::from_io("register packet memory with metadata", &error.into()))
    })
}

/// Makes the descriptor of the first socket refer to `again`. Returns whether it did.
fn put_in_place(again: &OwnedFd, (_, first, _): &Queues) -> bool {
    let place = first.fd().as_raw_fd();
    // SAFETY: the descriptor is open. libxdp, which owns it, names it to the kernel for a socket that shares
    // the UMEM, and closes it in the end. Both are right for a descriptor of the socket that replaces the
    // first one.
    unsafe { libc::dup3(again.as_raw_fd(), place, libc::O_CLOEXEC) == place }
}

/// Runs `work` on a thread of its own in a new network namespace.
pub(super) fn in_private_namespace<T: Send>(
    work: impl FnOnce() -> Result<T, XdpError> + Send,
) -> Result<T, XdpError> {
    let on_thread = || {
        // SAFETY: the file descriptor table stays shared (no CLONE_FILES). Only this thread, which ends
        // below, leaves the process's network namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|error| XdpError::from_io("make a network namespace", &error.into()))?;
        work()
    };
    thread::scope(|scope| {
        scope.spawn(on_thread).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Sets the close-on-exec flag, since libxdp opens sockets without `SOCK_CLOEXEC`.
pub(super) fn close_on_exec(socket: &Fd) -> Result<(), XdpError> {
    // SAFETY: the descriptor is open as long as the ring that it was borrowed from.
    let socket = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    fcntl_setfd(socket, FdFlags::CLOEXEC)
        .map_err(|error| XdpError::from_io("keep an AF_XDP socket from other programs", &error.into()))
}
