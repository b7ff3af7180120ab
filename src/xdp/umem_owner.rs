//! The first socket of a UMEM, which carries no traffic and outlives every port.
//!
//! libxdp makes the file descriptor that the UMEM was registered by the first socket's own (`xsk.c`,
//! `xsk_socket__create_shared`), and closes it with the UMEM, not with the socket. Were it a port's, that port could
//! never be closed: the kernel would go on to receive into frames that were given back. And a socket that shares a UMEM
//! takes its mode from the first one (`net/xdp/xsk_buff_pool.c`, `xp_assign_dev_shared`): copy, with the `need_wakeup` flag,
//! and with packets of several frames where the kernel has them.
//!
//! So the first socket is bound where nothing ever comes by: to the loopback interface of a network namespace that
//! nobody else is in. The namespace lives as long as the socket, and goes with the process.
//!
//! Neither libxdp nor `xsk-rs` registers a UMEM with room for transmit metadata on our terms. But every later socket finds the UMEM
//! by the first one's descriptor: so the same area is registered a second time, as we want it, and that socket takes the
//! place of the first behind the descriptor. The first registration stays, unused, for the rings that libxdp has mapped.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::thread;

use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size, set_xdp_umem_reg,
};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use xsk_rs::config::{BindFlags, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue};

use super::error::{XdpError, io_source};
use super::socket::close_on_exec;
use super::umem_area::TX_METADATA_BYTES;
use crate::limits::FRAME_BYTES;

/// Slots of the anchor's rings: the least that the kernel takes serves.
const SLOTS: u32 = 2;
/// The loopback interface of every network namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;
/// `XDP_UMEM_TX_METADATA_LEN` of `linux/if_xdp.h` (Linux 6.8).
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// The anchor. To be kept, not used.
pub(super) struct OwnerSocket {
    _queues: Queues,
    takes_multi_buffer: bool,
    leaves_checksums: bool,
}

type Queues = (TxQueue, RxQueue, Option<(FillQueue, CompQueue)>);

/// The memory of a UMEM.
pub(super) struct Extent {
    /// Where it begins.
    pub(super) base: NonNull<u8>,
    /// Its length.
    pub(super) bytes: usize,
}

impl OwnerSocket {
    /// Binds the first socket of `umem`, which is this area, to the loopback interface of the calling thread's network
    /// namespace.
    pub(super) fn bind(umem: &xsk_rs::Umem, extent: &Extent) -> Result<OwnerSocket, XdpError> {
        let (queues, takes_multi_buffer) = match bind_first(umem, BindFlags::XDP_USE_SG) {
            Ok(queues) => (queues, true),
            // A kernel before 6.6 does not know the flag.
            Err(_) => (bind_first(umem, BindFlags::empty())?, false),
        };
        close_on_exec(queues.1.fd())?;
        let registered = takes_multi_buffer.then(|| register_again(extent)).transpose().ok().flatten();
        let leaves_checksums = registered.as_ref().is_some_and(|again| put_in_place(again, &queues));
        Ok(OwnerSocket { _queues: queues, takes_multi_buffer, leaves_checksums })
    }

    /// Whether the sockets of the UMEM take and give packets of several frames.
    pub(super) fn takes_multi_buffer(&self) -> bool {
        self.takes_multi_buffer
    }

    /// Whether they take metadata, and so leave checksums to who receives what they send.
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
    // SAFETY: no program is loaded by libxdp (INHIBIT_PROG_LOAD), which is what the contract asks for.
    unsafe { Socket::new(config, umem, &loopback, 0) }
        .map_err(|error| XdpError::from_io("open an AF_XDP socket", &io_source(&error)))
}

/// Registers the area once more, with room for metadata before each packet, and binds the socket as the first one is, in
/// a namespace of its own. Refused by a kernel before 6.8.
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

/// Makes the descriptor of the first socket one of `again`; whether that is done.
fn put_in_place(again: &OwnedFd, (_, first, _): &Queues) -> bool {
    let place = first.fd().as_raw_fd();
    // SAFETY: the descriptor is open, and libxdp's: it names it to the kernel when a socket is to share the UMEM, and
    // closes it in the end; both is right of a descriptor of the socket that takes its place.
    unsafe { libc::dup3(again.as_raw_fd(), place, libc::O_CLOEXEC) == place }
}

/// Runs `work` on a thread of its own, in a network namespace that is made for it.
pub(super) fn in_private_namespace<T: Send>(
    work: impl FnOnce() -> Result<T, XdpError> + Send,
) -> Result<T, XdpError> {
    let on_thread = || {
        // SAFETY: the file descriptor table stays shared (no CLONE_FILES); only this thread, which ends below,
        // leaves the process's network namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|error| XdpError::from_io("make a network namespace", &error.into()))?;
        work()
    };
    thread::scope(|scope| {
        scope.spawn(on_thread).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
