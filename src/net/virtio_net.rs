//! Header in front of each packet of a tap device: `struct virtio_net_hdr` of `linux/virtio_net.h` (Virtual
//! I/O Device 1.2, section 5.1.6). Its fields have the byte order of the machine.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: "Use `csum_start`, `csum_offset`".
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`: "Not a GSO frame".
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`: "GSO frame, IPv4 TCP (TSO)".
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`: "GSO frame, IPv6 TCP".
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: "GSO frame, IPv4 & IPv6 UDP (USO)".
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: "TCP has ECN set".
pub const GSO_ECN: u8 = 0x80;

/// The header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VirtioNet {
    /// [`NEEDS_CSUM`] and others.
    pub flags: u8,
    /// One of the GSO types, with or without [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of the Ethernet, IP and transport headers: a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// First byte that the checksum covers, from the start of the packet.
    pub csum_start: u16,
    /// Position of the checksum, from `csum_start`.
    pub csum_offset: u16,
}

impl VirtioNet {
    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> VirtioNet {
        let field = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VirtioNet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: field(2),
            gso_size: field(4),
            csum_start: field(6),
            csum_offset: field(8),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let fields = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset];
        for (place, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    /// Whether the packet is to be cut into segments.
    #[inline]
    pub fn is_gso(&self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Number of segments of a packet of `bytes` bytes with this header.
    #[inline]
    pub fn segments(&self, bytes: usize) -> usize {
        if !self.is_gso() || self.gso_size == 0 {
            return 1;
        }
        bytes.saturating_sub(self.hdr_len.into()).div_ceil(self.gso_size.into()).max(1)
    }

    /// Whether the checksum is unfinished.
    #[inline]
    pub fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = VirtioNet {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..2], [1, 0x81]);
        assert_eq!(bytes[4..6], 1448_u16.to_ne_bytes());
        assert_eq!(VirtioNet::from_bytes(&bytes), header);
        assert!(header.is_gso() && header.needs_checksum());
        assert!(!VirtioNet::default().is_gso());
        let packets = [66, 67, 66 + 1448, 66 + 1449, 66 + 10 * 1448];
        assert_eq!(packets.map(|bytes| header.segments(bytes)), [1, 1, 1, 2, 10]);
        assert_eq!(packets.map(|bytes| VirtioNet::default().segments(bytes)), [1; 5]);
    }
}
