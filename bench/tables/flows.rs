//! Flows for the classification benchmark, and the arrays that a worker classifies them with.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use palisade::ids::{AclId, ClassId, RuleId};
use palisade::net::flow::Protocol;
use palisade::tables::{Acl, Classifier, Decision, RuleTables, Service};

use crate::common::random::Random;
use crate::common::rule_tables::{Family, addresses_in};
use crate::comparison::BATCH;

/// Flow without its addresses.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) egress: AclId,
    pub(crate) ingress: AclId,
    pub(crate) protocol: Protocol,
    pub(crate) dst_port: u16,
}

impl Flow {
    pub(crate) fn random(tables: &RuleTables, random: &mut Random) -> Flow {
        let acl = |random: &mut Random| AclId(random.below(tables.acls.len() as u64) as u32);
        let protocol =
            [Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::ICMP][random.below(4) as usize];
        Flow { egress: acl(random), ingress: acl(random), protocol, dst_port: random.bits() as u16 }
    }
}

/// Flows without their addresses, in the order of their packets, one array for each field.
pub(crate) struct Columns {
    pub(crate) egress: Vec<AclId>,
    pub(crate) ingress: Vec<AclId>,
    pub(crate) ports: Vec<(Protocol, u16)>,
}

/// Prefixes that the peers of flows come from.
pub(crate) struct Peers<A> {
    by_class: BTreeMap<ClassId, Vec<(u128, u8)>>,
    all: Vec<(u128, u8)>,
    family: std::marker::PhantomData<A>,
}

impl<A: Family> Peers<A> {
    pub(crate) fn new(tables: &RuleTables) -> Peers<A> {
        let mut by_class: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut all = Vec::new();
        for (prefix, &class) in &tables.prefixes {
            if let Some(prefix) = of_family::<A>(prefix) {
                by_class.entry(class).or_default().push(prefix);
                all.push(prefix);
            }
        }
        Peers { by_class, all, family: std::marker::PhantomData }
    }

    /// Draws the address of a peer. Every second one is of a class that the table names.
    pub(crate) fn random(&self, acl: &Acl, random: &mut Random) -> A {
        let named = random.below(2 * acl.rows.len() as u64 + 1) as usize;
        let named = acl.rows.keys().nth(named).and_then(|class| self.by_class.get(class));
        addresses_in(named.unwrap_or(&self.all), 1, random)[0]
    }
}

/// Arrays of a worker, reused from batch to batch.
pub(crate) struct Scratch {
    pub(crate) from: [u32; BATCH],
    pub(crate) to: [u32; BATCH],
    services: [Service; BATCH],
    decisions: [Decision; BATCH],
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            from: [0; BATCH],
            to: [0; BATCH],
            services: [Service::OTHER; BATCH],
            decisions: [Decision::deny(RuleId(0)); BATCH],
        }
    }
}

impl Scratch {
    /// Looks up the classes of a batch, and returns a sum of them.
    pub(crate) fn classes<A: Family>(&mut self, classifier: &Classifier, from: &[A], to: &[A]) -> u64 {
        A::classes(classifier, from, &mut self.from[..from.len()]);
        A::classes(classifier, to, &mut self.to[..to.len()]);
        let sum = |sum: u32, &class: &u32| sum.wrapping_add(class);
        let from = self.from[..from.len()].iter().fold(0, sum);
        u64::from(self.to[..to.len()].iter().fold(from, sum))
    }

    /// Decides on a batch whose classes are known, and returns a sum of the decisions.
    pub(crate) fn decide(&mut self, classifier: &Classifier, flows: &Columns, batch: Range<usize>) -> u64 {
        let len = batch.len();
        for (&(protocol, port), service) in flows.ports[batch.clone()].iter().zip(&mut self.services) {
            *service = Service::new(protocol, port);
        }
        let sides = [(&flows.egress, &self.to), (&flows.ingress, &self.from)];
        let (services, decisions) = (&self.services[..len], &mut self.decisions[..len]);
        let mut sum: u32 = 0;
        for (acls, classes) in sides {
            classifier.decide_batch(&acls[batch.clone()], &classes[..len], services, decisions);
            sum = decisions.iter().fold(sum, |sum, decision| sum.wrapping_add(decision.to_bits()));
        }
        u64::from(sum)
    }
}

/// Selects items in this order.
pub(crate) fn select<T: Copy>(order: &[usize], distinct: &[T]) -> Vec<T> {
    order.iter().map(|&i| distinct[i]).collect()
}

/// Returns a prefix of the family as bits at the top of 128, and length.
fn of_family<A: Family>(prefix: &IpNet) -> Option<(u128, u8)> {
    let bits = match prefix.network() {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    (u32::from(prefix.max_prefix_len()) == A::WIDTH).then_some((bits, prefix.prefix_len()))
}
