//! Layout of the maps of `bpf/offload.h`, which has the same structures by the same names.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::mem::Atomics;

/// Version of this layout and of the hash. A process continues with no maps of another version.
pub const LAYOUT: u64 = 4;
/// Flows that a bucket names at most.
pub const WAYS: usize = 8;

/// Epochs of Services: those of a destination's page of the lookup, and one that does not change.
pub const SERVICE_EPOCHS: usize = 1025;
/// The epoch that does not change: that of front ends that are no Services.
pub const UNCHANGED: u16 = SERVICE_EPOCHS as u16 - 1;
/// Gateways behind uplinks.
pub const GATEWAYS: usize = 8192;

/// `struct record`: one flow. The ends are in no order. A flow to a Service has a front end too, to which its client sends in
/// place of the backend. So has a masqueraded one: to the node's address its other end sends in place of the pod.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Record {
    /// Address of each end in network byte order, IPv4 as `::ffff:a.b.c.d`.
    pub addresses: [[AtomicU64; 2]; 2],
    /// Transport port of each end in network byte order, version of IP, whether it is TCP, which end is the client, shift counts,
    /// and the gateway, as [`Head`] has them.
    pub head: AtomicU64,
    /// By direction, the generation that has evaluated it; zero: it is not offloaded.
    pub epochs: [AtomicU32; 2],
    /// Port of the switch that each end is behind.
    pub ports: [AtomicU16; 2],
    /// Generation that has compared the flow with the Services.
    pub service_epoch: AtomicU32,
    /// Number of the Service's epoch.
    pub service: AtomicU16,
    /// Transport port of the front end in network byte order.
    pub front_port: AtomicU16,
    /// Sum of the backend's address without that of the front end (RFC 1624), as 16-bit words in memory add up.
    pub difference: AtomicU16,
    /// TCP: the largest window that each end has offered, bytes, is no more than two to the power of this.
    pub windows: [AtomicU8; 2],
    /// Packets of each direction, which the program counts for ever, modulo 2^32.
    pub packets: [AtomicU32; 2],
    /// Segments of packets beyond the first of each.
    pub segments: [AtomicU32; 2],
    /// Bytes of packets from the IP header on.
    pub bytes: [AtomicU64; 2],
    /// TCP: one more than the highest sequence number of each direction.
    pub sequence_ends: [AtomicU32; 2],
    /// TCP: the highest number that the sender of each direction has acknowledged.
    pub acknowledged: [AtomicU32; 2],
    /// Address of the front end, as those of the ends.
    pub front: [AtomicU64; 2],
}

/// `struct bucket`: numbers of records.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bucket {
    /// In the upper half that of a flow's hash, in the lower one the number of its record and one; zero: free.
    pub ways: [AtomicU64; WAYS],
}

/// `struct port`: a port of the switch.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PortWords {
    /// In the order of memory: the last generation that changed the policy of the pod, and the index of its interface.
    pub epoch: AtomicU32,
    /// Index of the node's end of its veth pair; zero: no packet is forwarded to it.
    pub index: AtomicU32,
    /// Ethernet address of the pod, and the MTU, as [`PortWords::station_of`] has them.
    pub station: AtomicU64,
    /// Ethernet address of the switch, and whether it is an uplink, as [`PortWords::station_of`] has them.
    pub own_mac: AtomicU64,
}

/// `struct gateway`: next hop of flows by an uplink.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gateway {
    /// For the switch: whether the slot is taken.
    pub state: AtomicU32,
    rest: AtomicU32,
    /// Its address, as those of the ends of a record.
    pub address: [AtomicU64; 2],
}

/// `struct service`: an epoch of Services.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ServiceWords {
    /// The last generation that changed what becomes of packets to its destinations.
    pub epoch: AtomicU32,
    rest: AtomicU32,
}

/// `struct lease`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lease {
    /// Time by `CLOCK_MONOTONIC_COARSE`, nanoseconds, until which the program forwards packets.
    pub until: AtomicU64,
    /// Secret of the hash, for the next process.
    pub seed: [AtomicU64; 2],
    /// [`LAYOUT`] of the process that has made the maps.
    pub layout: AtomicU64,
    /// Packets that an uplink's tc program has dropped, because their record had become that of another flow.
    pub lost: AtomicU64,
}

/// Counts of a record that its flow has counted. The program does not have them.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counted {
    /// By end: packets, bytes, segments.
    pub by_end: [[AtomicU64; 3]; 2],
    rest: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Record>() == 128 && size_of::<Bucket>() == 64);
const _: () = assert!(size_of::<PortWords>() == 24 && size_of::<ServiceWords>() == 8);
const _: () = assert!(size_of::<Gateway>() == 24);
const _: () = assert!(size_of::<Lease>() == 40 && size_of::<Counted>() == 64);

/// The word of a record that tells its kind of flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Transport port of each end.
    pub transport_ports: [u16; 2],
    /// Whether it is a TCP connection; else UDP.
    pub is_tcp: bool,
    /// Whether it is over IPv4.
    pub is_v4: bool,
    /// Number of the end that is the client of a front end.
    pub client: Option<usize>,
    /// TCP: shift count of the windows of each end (RFC 7323), 14 at most.
    pub shifts: [u8; 2],
    /// Number of the gateway behind an uplink.
    pub gateway: Option<u16>,
}

/// Bit of TCP.
const TCP: u8 = 8;

impl Head {
    /// The word.
    pub fn word(self) -> u64 {
        let [[a, b], [c, d]] = self.transport_ports.map(u16::to_be_bytes);
        let family = if self.is_v4 { 4 } else { 6 };
        let client = self.client.map_or(0, |client| client as u8 + 1);
        let kind = family | if self.is_tcp { TCP } else { 0 } | client << 4;
        let [g, h] = self.gateway.map_or(0, |gateway| gateway + 1).to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, kind, self.shifts[0] | self.shifts[1] << 4, g, h])
    }

    /// Reads the word.
    pub fn of(word: u64) -> Head {
        let [a, b, c, d, kind, shifts, g, h] = word.to_ne_bytes();
        Head {
            transport_ports: [[a, b], [c, d]].map(u16::from_be_bytes),
            is_tcp: kind & TCP != 0,
            is_v4: kind & 7 == 4,
            client: usize::from(kind >> 4).checked_sub(1).filter(|client| *client < 2),
            shifts: [shifts & 0xf, shifts >> 4],
            gateway: u16::from_ne_bytes([g, h]).checked_sub(1),
        }
    }
}

impl Record {
    /// Its kind of flow.
    pub fn head(&self) -> Head {
        Head::of(self.head.load(Relaxed))
    }

    /// Number to add to the sum of a checksum when `to` takes the place of `from`: addresses as a record has them.
    pub fn difference_of(from: [u64; 2], to: [u64; 2]) -> u16 {
        let sum = |address: [u64; 2], flip: u16| {
            let words = address.into_iter().flat_map(|half| (0..4).map(move |i| (half >> (16 * i)) as u16));
            words.map(|word| u32::from(word ^ flip)).sum::<u32>()
        };
        let mut sum = sum(from, 0xffff) + sum(to, 0);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Addresses of the ends.
    pub fn ends(&self) -> [u128; 2] {
        self.addresses.each_ref().map(|words| {
            let [high, low] = words.each_ref().map(|word| u64::from_be(word.load(Relaxed)));
            u128::from(high) << 64 | u128::from(low)
        })
    }
}

impl PortWords {
    /// Whether it is an uplink.
    pub fn is_uplink(&self) -> bool {
        let [.., g, h] = self.own_mac.load(Relaxed).to_ne_bytes();
        u16::from_ne_bytes([g, h]) != 0
    }

    /// The word of an Ethernet address and a number: an MTU, or whether it is an uplink.
    pub fn station_of([a, b, c, d, e, f]: [u8; 6], number: u16) -> u64 {
        let [g, h] = number.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }
}

// SAFETY: each structure consists of atomics, and the sizes above leave no room for padding.
unsafe impl Atomics for Record {}
// SAFETY: as above.
unsafe impl Atomics for Bucket {}
// SAFETY: as above.
unsafe impl Atomics for PortWords {}
// SAFETY: as above.
unsafe impl Atomics for ServiceWords {}
// SAFETY: as above.
unsafe impl Atomics for Gateway {}
// SAFETY: as above.
unsafe impl Atomics for Lease {}
// SAFETY: as above.
unsafe impl Atomics for Counted {}

/// An address as a record has it.
pub fn address_words(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64].map(u64::to_be)
}

/// Secret of the hash.
pub type Seed = [u64; 2];

/// Word each bit of which depends on all bits of another.
pub fn mix(mut word: u64) -> u64 {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    for _ in 0..2 {
        word ^= word >> 32;
        word = word.wrapping_mul(FACTOR);
    }
    word ^ word >> 32
}

/// Hash of a flow: the same for both directions, as `hash_of` of the program.
pub fn hash_of(seed: Seed, addresses: [[u64; 2]; 2], transport_ports: [u16; 2], protocol: u8) -> u64 {
    let end = |i: usize| {
        let [high, low] = addresses[i];
        let first = mix(high ^ seed[0]).wrapping_add(low);
        mix(first ^ seed[1] ^ u64::from(transport_ports[i].to_be()) << 40)
    };
    mix(end(0).wrapping_add(end(1)).wrapping_add(u64::from(protocol)))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};

    use super::*;

    /// A structure of the program: its name, some members with their offsets, and its size, bytes.
    type Expected<'a> = (&'a str, &'a [(&'a str, usize)], usize);

    /// Names and offsets, bytes, of the members of a structure of the program, and its size.
    fn layout_of(name: &str) -> (Vec<(String, usize)>, usize) {
        let btf = Btf::from_path(concat!(env!("OUT_DIR"), "/offload.bpf.o")).unwrap();
        let structure = btf.type_by_name::<Struct<'_>>(name).unwrap();
        let members = structure.iter().map(|member| {
            let bits = match member.attr {
                MemberAttr::Normal { offset } => offset,
                MemberAttr::BitField { .. } => panic!("{name} has a bit field"),
            };
            (member.name.unwrap().to_string_lossy().into_owned(), bits as usize / 8)
        });
        (members.collect(), structure.size())
    }

    #[test]
    fn the_structures_are_those_of_the_program() {
        let expected: [Expected<'_>; 6] = [
            (
                "record",
                &[
                    ("addresses", offset_of!(Record, addresses)),
                    ("transport_ports", offset_of!(Record, head)),
                    ("kind", offset_of!(Record, head) + 4),
                    ("shifts", offset_of!(Record, head) + 5),
                    ("gateway", offset_of!(Record, head) + 6),
                    ("epochs", offset_of!(Record, epochs)),
                    ("ports", offset_of!(Record, ports)),
                    ("service_epoch", offset_of!(Record, service_epoch)),
                    ("service", offset_of!(Record, service)),
                    ("front_port", offset_of!(Record, front_port)),
                    ("difference", offset_of!(Record, difference)),
                    ("windows", offset_of!(Record, windows)),
                    ("packets", offset_of!(Record, packets)),
                    ("bytes", offset_of!(Record, bytes)),
                    ("segments", offset_of!(Record, segments)),
                    ("sequence_ends", offset_of!(Record, sequence_ends)),
                    ("acknowledged", offset_of!(Record, acknowledged)),
                    ("front", offset_of!(Record, front)),
                ],
                size_of::<Record>(),
            ),
            ("bucket", &[("ways", offset_of!(Bucket, ways))], size_of::<Bucket>()),
            (
                "port",
                &[
                    ("epoch", offset_of!(PortWords, epoch)),
                    ("index", offset_of!(PortWords, index)),
                    ("mac", offset_of!(PortWords, station)),
                    ("mtu", offset_of!(PortWords, station) + 6),
                    ("own_mac", offset_of!(PortWords, own_mac)),
                    ("is_uplink", offset_of!(PortWords, own_mac) + 6),
                ],
                size_of::<PortWords>(),
            ),
            ("service", &[("epoch", offset_of!(ServiceWords, epoch))], size_of::<ServiceWords>()),
            ("gateway", &[("address", offset_of!(Gateway, address))], size_of::<Gateway>()),
            (
                "lease",
                &[
                    ("until", offset_of!(Lease, until)),
                    ("seed", offset_of!(Lease, seed)),
                    ("layout", offset_of!(Lease, layout)),
                    ("lost", offset_of!(Lease, lost)),
                ],
                size_of::<Lease>(),
            ),
        ];
        for (name, members, size) in expected {
            let (found, bytes) = layout_of(name);
            assert_eq!(bytes, size, "{name}");
            for (member, offset) in members {
                let member = (member.to_string(), *offset);
                assert!(found.contains(&member), "{name}: {member:?} is none of {found:?}");
            }
        }
    }
}
