//! Requests to a tap device (`linux/if_tun.h`), and for the cookie of a network namespace. The unsafe blocks of this folder
//! are here: no safe interface of a library makes these requests.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::net::virtio_net::HEADER_BYTES;
use rustix::io;
use rustix::ioctl::{IntegerSetter, Ioctl, Opcode, Setter, Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SocketType, socket};

/// `TUNSETIFF`: attaches the descriptor to a device, which it makes if there is none of the name.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
/// `TUNSETPERSIST`: whether the device stays without descriptors.
const TUNSETPERSIST: Opcode = opcode::write::<c_int>(b'T', 203);
/// `TUNSETOWNER`: the user who may attach further descriptors.
const TUNSETOWNER: Opcode = opcode::write::<c_int>(b'T', 204);
/// `TUNSETVNETHDRSZ`: bytes of the header before each packet.
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
/// `TUNSETOFFLOAD`: packets that the reader of the device takes.
const TUNSETOFFLOAD: Opcode = opcode::write::<c_int>(b'T', 208);

/// `IFF_TAP`: frames with Ethernet headers.
const IFF_TAP: u16 = 0x0002;
/// `IFF_MULTI_QUEUE`: one descriptor for each queue.
const IFF_MULTI_QUEUE: u16 = 0x0100;
/// `IFF_NO_PI`: no header of four bytes with the protocol.
const IFF_NO_PI: u16 = 0x1000;
/// `IFF_VNET_HDR`: a virtio-net header before each packet.
const IFF_VNET_HDR: u16 = 0x4000;

/// `TUN_F_CSUM`: "You can hand me unchecksummed packets."
const TUN_F_CSUM: usize = 0x01;
/// `TUN_F_TSO4` and `TUN_F_TSO6`: "I can handle TSO for IPv4 packets", and for IPv6 ones.
const TUN_F_TSO: usize = 0x02 | 0x04;
/// `TUN_F_TSO_ECN`: "I can handle TSO with ECN bits."
const TUN_F_TSO_ECN: usize = 0x08;
/// `TUN_F_USO4` and `TUN_F_USO6`: "I can handle USO for IPv4 packets", and for IPv6 ones (Linux 6.2).
const TUN_F_USO: usize = 0x20 | 0x40;

/// Bytes of an interface's name, with the closing zero (`IFNAMSIZ` of `linux/if.h`).
const NAME_BYTES: usize = 16;

/// `struct ifreq` of `linux/if.h`, with the flags of `TUNSETIFF`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// Attaches an open `/dev/net/tun` to the device `name` of the calling thread's network namespace, as a queue.
pub(super) fn attach(queue: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = InterfaceRequest {
        name: [0; NAME_BYTES],
        flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE,
        rest: [0; 22],
    };
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= NAME_BYTES || bytes.contains(&0) {
        return Err(io::Errno::INVAL);
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: `TUNSETIFF` reads a `struct ifreq`, which the request is, and writes it back.
    request_of(queue, unsafe { Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request) })
}

/// Sets the properties of the device that an earlier process may have changed: its virtio-net headers have
/// [`HEADER_BYTES`], and only root attaches further queues.
pub(super) fn set_up(queue: BorrowedFd<'_>) -> io::Result<()> {
    let bytes = HEADER_BYTES as c_int;
    // SAFETY: `TUNSETVNETHDRSZ` reads an `int`.
    request_of(queue, unsafe { Setter::<TUNSETVNETHDRSZ, c_int>::new(bytes) })?;
    // SAFETY: `TUNSETOWNER` takes a user id as the argument.
    request_of(queue, unsafe { IntegerSetter::<TUNSETOWNER>::new_usize(0) })
}

/// Offers whole segments of TCP and UDP, and unfinished checksums, to the network stack of the device. Returns
/// whether the kernel takes the offer for UDP.
pub(super) fn offer_segments(queue: BorrowedFd<'_>) -> io::Result<bool> {
    let offer = |offloads: usize| {
        // SAFETY: `TUNSETOFFLOAD` takes its bits as the argument.
        request_of(queue, unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads) })
    };
    let tcp = TUN_F_CSUM | TUN_F_TSO | TUN_F_TSO_ECN;
    match offer(tcp | TUN_F_USO) {
        // A kernel before 6.2 knows no segments of UDP.
        Err(io::Errno::INVAL) => offer(tcp).map(|()| false),
        taken => taken.map(|()| true),
    }
}

/// Makes the device stay without descriptors, or end with the last one.
pub(super) fn set_persistent(queue: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    // SAFETY: `TUNSETPERSIST` takes a truth value as the argument.
    request_of(queue, unsafe { IntegerSetter::<TUNSETPERSIST>::new_usize(persistent.into()) })
}

/// Cookie of the calling thread's network namespace, which no later namespace has until a reboot (`SO_NETNS_COOKIE`, Linux
/// 5.14). The inode of a namespace that has ended goes to the next one.
pub fn namespace_cookie() -> io::Result<u64> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the cookie, which has that many.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if answer == 0 {
        return Ok(cookie);
    }
    Err(io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::IO))
}

fn request_of<R: Ioctl<Output = ()>>(queue: BorrowedFd<'_>, request: R) -> io::Result<()> {
    // SAFETY: the callers have paired number and argument as `linux/if_tun.h` does. The kernel writes to the argument
    // of an `Updater` alone, which is borrowed exclusively.
    unsafe { ioctl(queue, request) }
}
