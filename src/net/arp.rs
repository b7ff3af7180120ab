//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::be16;
use super::mac::Mac;

/// Bytes of a packet for Ethernet and IPv4.
pub const PACKET_BYTES: usize = 28;

const PREFIX: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4]; // Ethernet, IPv4, lengths of their addresses

/// Operation of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Request for the Ethernet address of the target.
    Request,
    /// Reply with the Ethernet address of the sender.
    Reply,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Operation: request or reply.
    pub operation: Operation,
    /// Ethernet address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// Ethernet address of the target; zero in a request.
    pub target_mac: Mac,
    /// IPv4 address of the target.
    pub target: Ipv4Addr,
}

/// Reads a packet; `None` for a short one, or one that is not ARP for IPv4 over Ethernet.
pub fn parse(payload: &[u8]) -> Option<Arp> {
    let packet: &[u8; PACKET_BYTES] = payload.first_chunk()?;
    let operation = match be16(packet, 6) {
        1 => Operation::Request,
        2 => Operation::Reply,
        _ => return None,
    };
    let mac = |at: usize| Mac([0, 1, 2, 3, 4, 5].map(|i: usize| packet[at + i]));
    let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|i: usize| packet[at + i]));
    packet.starts_with(&PREFIX).then(|| Arp {
        operation,
        sender_mac: mac(8),
        sender: address(14),
        target_mac: mac(18),
        target: address(24),
    })
}

impl Arp {
    /// Writes the packet to the start of `payload`, which has at least [`PACKET_BYTES`].
    pub fn write(&self, payload: &mut [u8]) {
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        payload[..6].copy_from_slice(&PREFIX);
        payload[6..8].copy_from_slice(&[0, operation]);
        payload[8..14].copy_from_slice(&self.sender_mac.0);
        payload[14..18].copy_from_slice(&self.sender.octets());
        payload[18..24].copy_from_slice(&self.target_mac.0);
        payload[24..28].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let arp = Arp {
            operation: Operation::Reply,
            sender_mac: Mac([2, 0, 0, 0, 0, 1]),
            sender: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: Mac([2, 0, 0, 0, 0, 2]),
            target: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut bytes = [0; PACKET_BYTES];
        arp.write(&mut bytes);
        assert_eq!(parse(&bytes), Some(arp));
        assert_eq!(parse(&bytes[1..]), None);
    }
}
