//! The first socket of a UMEM, which carries no traffic and outlives every port.
//!
//! libxdp makes the file descriptor that the UMEM was registered by the first socket's own (`xsk.c`,
//! `xsk_socket__create_shared`), and closes it with the UMEM, not with the socket. Were it a port's, that port could
//! never be closed: the kernel would go on to receive into frames that were given back. And a socket that shares a UMEM
//! takes its mode from the first one (`net/xdp/xsk_buff_pool.c`, `xp_assign_dev_shared`): copy, and with the `need_wakeup` flag.
//!
//! So the first socket is bound where nothing ever comes by: to the loopback interface of a network namespace that
//! nobody else is in. The namespace lives as long as the socket, and goes with the process.

use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};
use xsk_rs::config::{BindFlags, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue};

use super::error::{XdpError, io_source};

/// Slots of the anchor's rx and tx rings: the least that the kernel takes serves.
const SLOTS: u32 = 2;

/// The anchor. To be kept, not used.
pub(super) struct Anchor {
    _queues: (TxQueue, RxQueue, Option<(FillQueue, CompQueue)>),
}

impl Anchor {
    /// Binds the first socket of `umem` to the loopback interface of the calling thread's network namespace.
    pub(super) fn bind(umem: &xsk_rs::Umem) -> Result<Anchor, XdpError> {
        let slots = QueueSize::new(SLOTS).expect("a power of two");
        let config = SocketConfig::builder()
            .rx_queue_size(slots)
            .tx_queue_size(slots)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
            .build();
        let loopback = "lo".parse().expect("a name without a zero byte");
        // SAFETY: no program is loaded by libxdp (INHIBIT_PROG_LOAD), which is what the contract asks for.
        let queues = unsafe { Socket::new(config, umem, &loopback, 0) }
            .map_err(|error| XdpError::from_io("open an AF_XDP socket", &io_source(&error)))?;
        Ok(Anchor { _queues: queues })
    }
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
