//! Packet sockets (packet(7)) that send whole frames, and capture frames that reach a stack.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Size of the receive buffer, bytes.
const RECEIVE_BYTES: libc::c_int = 32 << 20;
/// `PACKET_VNET_HDR` of `linux/if_packet.h`: a virtio-net header precedes each frame.
const PACKET_VNET_HDR: libc::c_int = 15;
const FRAME_BYTES_MAX: usize = 1 << 16;

/// Packet socket of one interface.
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's namespace. It receives all frames that the
    /// interface's stack receives, and none that are sent.
    pub(crate) fn open(interface: &str) -> io::Result<PacketSocket> {
        let name = CString::new(interface)?;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the name ends with a zero; the descriptor is new and nobody else's.
        let (index, socket) = unsafe {
            let index = libc::if_nametoindex(name.as_ptr());
            let socket =
                libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
            (index, socket)
        };
        if index == 0 || socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let socket = PacketSocket(unsafe { OwnedFd::from_raw_fd(socket) });
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BYTES)?;
        // SAFETY: all-zero bytes are a value of this structure; it outlives the call.
        let bound = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = index as i32;
            let bytes = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.0.as_raw_fd(), (&raw const address).cast(), bytes)
        };
        if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes each frame to be sent begin with a virtio-net header.
    pub(crate) fn with_virtio_headers(self) -> io::Result<PacketSocket> {
        self.set(libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        Ok(self)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the option's value is one `int`, which outlives the call.
        let done = unsafe {
            let bytes = size_of_val(&value) as libc::socklen_t;
            libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), bytes)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a whole frame unchanged.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes outlive the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        match usize::try_from(sent) {
            Ok(bytes) if bytes == frame.len() => Ok(()),
            Ok(bytes) => Err(io::Error::other(format!("{bytes} of {} bytes were sent", frame.len()))),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Frames received since the last call.
    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        let mut frames = vec![];
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        loop {
            // SAFETY: the buffer is as long as it says.
            let bytes =
                unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            if let Ok(bytes) = usize::try_from(bytes) {
                frames.push(buffer[..bytes].to_vec());
            } else {
                let error = io::Error::last_os_error();
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "a packet socket does not hear: {error}");
                return frames;
            }
        }
    }

    /// Receives until there are `count` frames, for at most `timeout`.
    pub(crate) fn hear(&self, count: usize, timeout: Duration) -> Vec<Vec<u8>> {
        let start = Instant::now();
        let mut frames = self.heard();
        while frames.len() < count && start.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(1));
            frames.extend(self.heard());
        }
        frames
    }

    /// Frames dropped because the receive buffer was full.
    pub(crate) fn lost(&self) -> u32 {
        let mut statistics = [0u32; 2];
        let mut bytes = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: `struct tpacket_stats` of `linux/if_packet.h` is two numbers, `tp_packets` and `tp_drops`,
        // and outlives the call.
        let done = unsafe {
            let (fd, to) = (self.0.as_raw_fd(), statistics.as_mut_ptr().cast());
            libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut bytes)
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        statistics[1]
    }
}
