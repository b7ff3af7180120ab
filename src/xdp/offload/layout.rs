//! Layout of the maps of `bpf/offload.bpf.c`, which has the same structures by the same names.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Flows that a bucket names at most.
pub const WAYS: usize = 8;

/// `struct record`: one flow. The ends are in no order.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Record {
    /// Address of each end in network byte order, IPv4 as `::ffff:a.b.c.d`.
    pub addresses: [[AtomicU64; 2]; 2],
    /// Transport port of each end in network byte order, protocol and version of IP, as [`Record::head_of`] has them.
    pub head: AtomicU64,
    /// By direction, the generation that has evaluated it; zero: it is not offloaded.
    pub epochs: [AtomicU32; 2],
    /// Port of the switch that each end is behind.
    pub ports: [AtomicU16; 2],
    reserved: [AtomicU32; 3],
    /// Packets of each direction, which the program counts for ever.
    pub packets: [AtomicU64; 2],
    /// Their bytes from the IP header on.
    pub bytes: [AtomicU64; 2],
    /// Segments of packets beyond the first of each.
    pub segments: [AtomicU64; 2],
    rest: [AtomicU64; 2],
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
    /// Ethernet address of the switch.
    pub own_mac: AtomicU64,
}

/// `struct lease`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lease {
    /// Time by `CLOCK_MONOTONIC_COARSE`, nanoseconds, until which the program forwards packets.
    pub until: AtomicU64,
}

const _: () = assert!(size_of::<Record>() == 128 && size_of::<Bucket>() == 64);
const _: () = assert!(size_of::<PortWords>() == 24 && size_of::<Lease>() == 8);

/// Version number of a packet's IP header.
fn family(is_v4: bool) -> u8 {
    if is_v4 { 4 } else { 6 }
}

impl Record {
    /// The word of transport ports, protocol and family.
    pub fn head_of(transport_ports: [u16; 2], protocol: u8, is_v4: bool) -> u64 {
        let [[a, b], [c, d]] = transport_ports.map(u16::to_be_bytes);
        u64::from_ne_bytes([a, b, c, d, protocol, family(is_v4), 0, 0])
    }

    /// The record in these words of memory.
    pub(super) fn from_words(words: [u64; 16]) -> Record {
        let [a, b, c, d, head, epochs, tail @ ..] = words;
        let word = AtomicU64::new;
        let pair = |at: usize| [word(tail[at]), word(tail[at + 1])];
        let record = Record {
            addresses: [[word(a), word(b)], [word(c), word(d)]],
            head: word(head),
            packets: pair(2),
            bytes: pair(4),
            segments: pair(6),
            ..Record::default()
        };
        debug_assert_eq!((epochs, tail[0], tail[1]), (0, 0, 0), "the kernel makes maps of zeros");
        record
    }
}

impl Bucket {
    /// The bucket in these words of memory.
    pub(super) fn from_words(words: [u64; WAYS]) -> Bucket {
        Bucket { ways: words.map(AtomicU64::new) }
    }
}

impl PortWords {
    /// The word of an Ethernet address and an MTU.
    pub fn station_of([a, b, c, d, e, f]: [u8; 6], mtu: u16) -> u64 {
        let [g, h] = mtu.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    /// The port in these words of memory, which are zero.
    pub(super) fn from_words(_: [u64; 3]) -> PortWords {
        PortWords::default()
    }
}

impl Lease {
    /// The lease in this word of memory.
    pub(super) fn from_words([until]: [u64; 1]) -> Lease {
        Lease { until: AtomicU64::new(until) }
    }
}

/// An address as a record has it.
pub fn address_words(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64].map(u64::to_be)
}

/// Secret of the hash.
pub type Seed = [u64; 2];

fn mix(mut word: u64) -> u64 {
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
