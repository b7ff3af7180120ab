//! Raw Ethernet frames to and from an interface, by a packet socket (packet(7)).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use palisade::netlink::Interface;

/// Packet socket of one interface.
pub(crate) struct RawSocket {
    fd: OwnedFd,
}

impl RawSocket {
    /// Opens a socket on an interface of the calling thread's namespace. `receive` waits this long.
    pub(crate) fn open(name: &str, timeout: Duration) -> RawSocket {
        let index = Interface::find(name).unwrap().index;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain system calls; the address and the time outlive them; the descriptor is ours alone.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(all));
            assert!(fd >= 0, "packet sockets need CAP_NET_RAW");
            let socket = RawSocket { fd: OwnedFd::from_raw_fd(fd) };
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = index as i32;
            let size = size_of_val(&address) as u32;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), size), 0);
            let time = libc::timeval {
                tv_sec: timeout.as_secs() as i64,
                tv_usec: i64::from(timeout.subsec_micros()),
            };
            let size = size_of_val(&time) as u32;
            let set =
                libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), size);
            assert_eq!(set, 0);
            // Buffer for a burst that arrives faster than the test reads.
            let room: libc::c_int = 16 << 20;
            let size = size_of_val(&room) as u32;
            let set =
                libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const room).cast(), size);
            assert_eq!(set, 0);
            socket
        }
    }

    /// Sends a frame; `false` if the interface's queue is full.
    pub(crate) fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: the buffer outlives the call.
        unsafe {
            libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) == frame.len() as isize
        }
    }

    /// Receives the next frame of the test's own ethertype; `None` after the wait.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        self.receive_with(0)
    }

    /// Takes the next frame of the test's own ethertype that has come.
    pub(crate) fn try_receive(&self) -> Option<Vec<u8>> {
        self.receive_with(libc::MSG_DONTWAIT)
    }

    fn receive_with(&self, flags: libc::c_int) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 1 << 17];
        loop {
            // SAFETY: the buffer outlives the call and is as long as said.
            let got =
                unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
            let length = usize::try_from(got).ok()?;
            if is_ours(&buffer[..length]) {
                buffer.truncate(length);
                return Some(buffer);
            }
        }
    }
}

/// Builds a frame of the ethertype for local experiments (IEEE 802), which no network stack answers.
pub(crate) fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|place| (place as u32).wrapping_mul(number | 1) as u8).collect();
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Tells whether a frame is one of [`frame`].
pub(crate) fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x88, 0xb5])
}

/// Builds a UDP datagram over IPv4 between two pods, of the flow with this source port.
pub(crate) fn datagram(source_port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(source_port, 9)
        .write(&mut packet, b"palisade")
        .unwrap();
    packet
}
