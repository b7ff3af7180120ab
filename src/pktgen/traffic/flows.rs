//! Flows: the space of five-tuples, and the flow of the next frame.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::pktgen::traffic::random::{Random, Zipf};

/// Distribution of frames over flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Round robin.
    Sequence,
    /// Uniform random choice.
    Uniform,
    /// Zipf distribution: the flow of rank k is as likely as k to the power of minus this exponent.
    Zipf(f64),
}

/// Space of five-tuples. From one flow to the next the source port varies first, then the destination port,
/// then the source address, then the destination address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSpace {
    /// Source addresses. The first and the last address of a network of more than two are left out.
    pub src: IpNet,
    /// Destination addresses, likewise.
    pub dst: IpNet,
    /// Source ports; identifiers of ICMP echoes.
    pub src_ports: RangeInclusive<u16>,
    /// Destination ports, unused by ICMP.
    pub dst_ports: RangeInclusive<u16>,
}

/// Source and destination address of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Addresses {
    V4(u32, u32),
    V6(u128, u128),
}

/// Addresses and ports of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    pub(crate) addresses: Addresses,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
}

/// [`FlowSpace`] in a form that is cheap to index for every frame.
#[derive(Debug, Clone)]
pub(crate) struct Tuples {
    first: Addresses,
    srcs: u64,
    dsts: u64,
    src_ports: (u16, u32),
    dst_ports: (u16, u32),
}

impl FlowSpace {
    /// Counts the different five-tuples.
    pub fn len(&self) -> u64 {
        Tuples::new(self).len()
    }

    /// Whether a range of ports is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tuples {
    pub(crate) fn new(space: &FlowSpace) -> Tuples {
        let ports = |range: &RangeInclusive<u16>| (*range.start(), range.len() as u32);
        let (src, srcs) = addresses(space.src);
        let (dst, dsts) = addresses(space.dst);
        let first = match space.src {
            IpNet::V4(_) => Addresses::V4(src as u32, dst as u32),
            IpNet::V6(_) => Addresses::V6(src, dst),
        };
        Tuples { first, srcs, dsts, src_ports: ports(&space.src_ports), dst_ports: ports(&space.dst_ports) }
    }

    pub(crate) fn len(&self) -> u64 {
        u64::from(self.src_ports.1)
            * u64::from(self.dst_ports.1)
            * self.srcs.saturating_mul(self.dsts).min(1 << 32)
    }

    /// Returns the five-tuple of a flow. Numbers behind the end of the space begin again with its first.
    #[inline]
    pub(crate) fn of(&self, flow: u32) -> Tuple {
        let (src_port, rest) = (flow % self.src_ports.1, flow / self.src_ports.1);
        let (dst_port, rest) = (rest % self.dst_ports.1, u64::from(rest / self.dst_ports.1));
        let (src, dst) = if rest == 0 { (0, 0) } else { (rest % self.srcs, rest / self.srcs % self.dsts) };
        let addresses = match self.first {
            Addresses::V4(a, b) => Addresses::V4(a + src as u32, b + dst as u32),
            Addresses::V6(a, b) => Addresses::V6(a + u128::from(src), b + u128::from(dst)),
        };
        Tuple {
            addresses,
            src_port: self.src_ports.0 + src_port as u16,
            dst_port: self.dst_ports.0 + dst_port as u16,
        }
    }
}

/// Returns the first usable address of a network, and the number of usable ones, at most 2^32.
fn addresses(network: IpNet) -> (u128, u64) {
    let (first, bits) = match network {
        IpNet::V4(net) => (u128::from(u32::from(net.network())), 32 - net.prefix_len()),
        IpNet::V6(net) => (u128::from(net.network()), 128 - net.prefix_len()),
    };
    match bits {
        0 | 1 => (first, 1 << bits),
        bits => (first + 1, (1u64 << bits.min(32)) - 2),
    }
}

/// Sequence of flows of one generator, with a sequence number within each flow.
///
/// The number of flows is constant: a new flow replaces the oldest. Of n generators each has every nth flow,
/// so no two share one.
#[derive(Debug)]
pub(crate) struct Flows {
    /// Flows by slot: the number among those of this generator, and the next sequence number.
    places: Vec<(u32, u32)>,
    order: Order,
    random: Random,
    /// Slot of the oldest flow.
    oldest: u32,
    share: Share,
}

/// Number of a generator, and the number of generators.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) number: u32,
    pub(crate) of: u32,
}

#[derive(Debug)]
enum Order {
    Sequence(u32),
    Uniform,
    Zipf(Zipf),
}

impl Flows {
    /// Begins `count` flows of this generator.
    pub(crate) fn new(count: u32, distribution: Distribution, seed: u64, share: Share) -> Flows {
        let order = match distribution {
            Distribution::Sequence => Order::Sequence(0),
            Distribution::Uniform => Order::Uniform,
            Distribution::Zipf(exponent) => Order::Zipf(Zipf::new(count, exponent)),
        };
        let random = Random::new(seed.wrapping_add(u64::from(share.number) << 32));
        Flows { places: (0..count).map(|flow| (flow, 0)).collect(), order, random, oldest: 0, share }
    }

    /// Returns the flow and the sequence number of the next frame; with `fresh`, the first of a new flow.
    #[inline]
    pub(crate) fn next(&mut self, fresh: bool) -> (u32, u32) {
        let count = self.places.len() as u32;
        let at = if fresh {
            let at = self.oldest;
            self.oldest = if at + 1 == count { 0 } else { at + 1 };
            let place = &mut self.places[at as usize];
            *place = (place.0.wrapping_add(count), 0);
            at
        } else {
            self.pick(count)
        };
        let place = &mut self.places[at as usize];
        let sequence = place.1;
        place.1 = sequence.wrapping_add(1);
        (place.0.wrapping_mul(self.share.of).wrapping_add(self.share.number), sequence)
    }

    #[inline]
    fn pick(&mut self, count: u32) -> u32 {
        match &mut self.order {
            Order::Sequence(next) => {
                let at = *next;
                *next = if at + 1 == count { 0 } else { at + 1 };
                at
            }
            Order::Uniform => self.random.below(count),
            Order::Zipf(zipf) => zipf.draw(&mut self.random) - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn space(
        src: &str,
        dst: &str,
        src_ports: RangeInclusive<u16>,
        dst_ports: RangeInclusive<u16>,
    ) -> FlowSpace {
        FlowSpace { src: src.parse().unwrap(), dst: dst.parse().unwrap(), src_ports, dst_ports }
    }

    const ALONE: Share = Share { number: 0, of: 1 };

    #[test]
    fn every_flow_of_a_space_has_its_own_tuple_and_then_they_begin_anew() {
        for space in [
            space("10.0.0.0/29", "10.1.0.0/30", 1000..=1009, 80..=82),
            space("fd00::/126", "fd00:1::/127", 1..=7, 5..=5),
        ] {
            let tuples = Tuples::new(&space);
            let all: HashSet<Tuple> = (0..space.len() as u32).map(|flow| tuples.of(flow)).collect();
            assert_eq!(all.len() as u64, space.len());
            assert_eq!(tuples.of(space.len() as u32), tuples.of(0));
        }
    }

    #[test]
    fn a_network_leaves_its_first_and_last_address_out_and_a_host_is_itself() {
        let all = |space: &FlowSpace| {
            let tuples = Tuples::new(space);
            (0..space.len() as u32)
                .map(|flow| match tuples.of(flow).addresses {
                    Addresses::V4(src, _) => src & 0xff,
                    Addresses::V6(..) => unreachable!("the space is of IPv4"),
                })
                .collect::<HashSet<u32>>()
        };
        assert_eq!(all(&space("10.0.0.8/30", "10.0.0.1/32", 1..=1, 1..=1)), HashSet::from([9, 10]));
        assert_eq!(all(&space("10.0.0.8/32", "10.0.0.1/32", 1..=1, 1..=1)), HashSet::from([8]));
        assert_eq!(all(&space("10.0.0.8/31", "10.0.0.1/32", 1..=1, 1..=1)), HashSet::from([8, 9]));
    }

    #[test]
    fn a_million_flows_between_two_addresses_are_distinct() {
        let space = space("10.0.0.1/32", "10.0.0.2/32", 1024..=65535, 9000..=9015);
        assert!(space.len() >= 1_000_000);
        let tuples = Tuples::new(&space);
        let all: HashSet<(u16, u16)> =
            (0..1_000_000).map(|flow| (tuples.of(flow).src_port, tuples.of(flow).dst_port)).collect();
        assert_eq!(all.len(), 1_000_000);
    }

    #[test]
    fn the_sequence_takes_each_flow_in_turn_and_counts_its_frames() {
        let mut flows = Flows::new(3, Distribution::Sequence, 1, ALONE);
        let taken: Vec<_> = (0..7).map(|_| flows.next(false)).collect();
        assert_eq!(taken, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]);
    }

    #[test]
    fn the_uniform_distribution_reaches_every_flow_and_the_seed_repeats_it() {
        let draw = |seed| {
            let mut flows = Flows::new(100, Distribution::Uniform, seed, ALONE);
            (0..5_000).map(|_| flows.next(false)).collect::<Vec<_>>()
        };
        assert_eq!(draw(5).iter().map(|(flow, _)| *flow).collect::<HashSet<_>>().len(), 100);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn a_fresh_flow_takes_the_oldest_ones_place_and_begins_at_zero() {
        let mut flows = Flows::new(2, Distribution::Sequence, 1, ALONE);
        flows.next(false);
        assert_eq!([flows.next(true), flows.next(true), flows.next(true)], [(2, 0), (3, 0), (4, 0)]);
        // Flows 4 and 3 are left; the sequence goes on where it was.
        assert_eq!([flows.next(false), flows.next(false)], [(3, 1), (4, 1)]);
    }

    #[test]
    fn two_generators_share_no_flow() {
        let flows_of = |number| {
            let mut flows = Flows::new(50, Distribution::Uniform, 1, Share { number, of: 2 });
            (0..1_000).map(|n| flows.next(n % 3 == 0).0).collect::<HashSet<_>>()
        };
        assert!(flows_of(0).is_disjoint(&flows_of(1)));
    }
}
