use proptest::collection::vec;
use proptest::prelude::*;

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::*;
use crate::dataplane::PortKind;
use crate::dataplane::{Bandwidth, Gateway, PodAttachment};
use crate::ids::AttachmentId;
use crate::net::flow::Protocol;
use crate::tables::tests::arbitrary;
use crate::tables::{PodName, RuleTables};

const PORTS: u16 = 4;

fn open() -> BTreeMap<PortId, PortView> {
    let view = PortView::new(PortKind::Pod, None, 1500, None);
    (0..PORTS).map(|port| (PortId(port), view.clone())).collect()
}

/// Successive desired states. Most tables come from the tables before, with a part changed.
fn states() -> impl Strategy<Value = Vec<DesiredState>> {
    let step =
        (prop::option::weighted(0.9, arbitrary::rule_tables()), any::<[bool; 4]>(), 0..12_u32, 0..9_u8);
    vec(step, 2..8).prop_map(|steps| {
        let mut desired = DesiredState { gateway: Gateway::default(), ..DesiredState::default() };
        desired.pods = (0..u32::from(PORTS)).map(pod).collect();
        let mut states = Vec::new();
        for (tables, parts, one, other) in steps {
            let last = desired.tables.take();
            desired.tables = tables.map(|tables| match last {
                Some(last) if other < 8 => Arc::new(part_of(&last, &tables, parts)),
                _ => Arc::new(tables),
            });
            if one == 0 {
                desired.pods[0].id.0 += 10;
            }
            desired.fail_open = one == 1;
            states.push(desired.clone());
        }
        states
    })
}

fn pod(number: u32) -> PodAttachment {
    PodAttachment {
        id: AttachmentId(1 + number),
        pod: PodName::new("default", format!("pod{number}")),
        port: PortId(number as u16),
        addresses: vec![
            format!("10.0.{number}.1").parse().unwrap(),
            format!("fd00::{number}:1").parse().unwrap(),
        ],
        mac: None,
        bandwidth: Bandwidth::default(),
    }
}

fn part_of(last: &RuleTables, next: &RuleTables, [rows, acls, prefixes, pods]: [bool; 4]) -> RuleTables {
    let mut diff = last.difference(next);
    let keep = |kept: bool, id: u32| kept || id == 1;
    diff.rows.retain(|id, _| keep(rows, id.0));
    diff.acls.retain(|id, _| keep(acls, id.0));
    diff.acl_rows.retain(|id, _| keep(acls, id.0));
    let mut count = 0;
    diff.prefixes.retain(|_, _| {
        count += 1;
        keep(prefixes, count)
    });
    diff.pods.retain(|_, _| pods);
    let mut tables = last.clone();
    tables.apply(&diff);
    tables
}

/// Evaluation of a flow between pods, without counters.
fn verdict(snapshot: &Snapshot, from: u16, to: u16, protocol: Protocol, dst_port: u16) -> Option<DropReason> {
    let [from, to] = [from, to].map(|port| snapshot.port(PortId(port)).unwrap());
    let flow =
        Flow { src: from.addresses()[0], dst: to.addresses()[0], protocol, dst_port, by_node_socket: false };
    snapshot.evaluate(&flow, from, to, None)
}

proptest! {
    #![proptest_config(crate::random::cases(20))]

    #[test]
    fn an_updated_snapshot_evaluates_as_a_fresh_one_and_current_evaluations_stay_right(
        states in states(),
        flows in vec((0..PORTS, 0..PORTS, arbitrary::flow()), 30),
    ) {
        let mut followed = Snapshot::new(&states[0], Generation(1), &open(), 1);
        let mut before = &states[0];
        let mut epoch: Vec<Option<(Generation, Option<DropReason>)>> = vec![None; flows.len()];
        for desired in &states {
            followed = followed.next(before, desired, &open(), true, 1, Arc::default);
            before = desired;
            let fresh = Snapshot::new(desired, followed.generation, &open(), 1);
            if let Some(rules) = &fresh.rules {
                for port in followed.ports.iter().flatten() {
                    for &address in port.addresses() {
                        prop_assert_eq!(port.class_of_pod(address, is_v4(address)), Some(rules.class(address)));
                    }
                }
            }
            for ((from, to, flow), epoch) in flows.iter().zip(&mut epoch) {
                let says = verdict(&fresh, *from, *to, flow.protocol, flow.dst_port);
                prop_assert_eq!(verdict(&followed, *from, *to, flow.protocol, flow.dst_port), says);
                if let Some((since, said)) = *epoch
                    && since >= followed.policy_epoch(PortId(*from), PortId(*to))
                {
                    prop_assert_eq!(said, says, "evaluated under {} and not again under {}", since, followed.generation);
                } else {
                    *epoch = Some((followed.generation, says));
                }
            }
        }
    }
}

#[test]
fn the_same_tables_are_laid_out_once_and_their_evaluations_stay_current() {
    let tables = Some(Arc::new(RuleTables::default()));
    let desired = DesiredState { tables, pods: vec![pod(0)], ..DesiredState::default() };
    let first = Snapshot::new(&desired, Generation(1), &open(), 1);
    let same = first.next(&desired, &desired, &open(), true, 1, Arc::default);
    assert!(Arc::ptr_eq(first.rules().unwrap(), same.rules().unwrap()));
    assert_eq!(same.policy_epoch(PortId(0), PortId(1)), Generation(1));
    let other_ports = same.next(&desired, &desired, &open(), false, 1, Arc::default);
    assert!(Arc::ptr_eq(first.rules().unwrap(), other_ports.rules().unwrap()));
    assert_eq!(other_ports.policy_epoch(PortId(0), PortId(1)), Generation(3));
}

/// Change of a port and the pod behind it.
#[derive(Debug, Clone)]
enum Turn {
    Attach {
        addresses: BTreeSet<u8>,
        keeps_id: bool,
    },
    Detach,
    Close,
    /// Only rule tables change.
    Load,
}

fn turns() -> impl Strategy<Value = Vec<(u16, Turn)>> {
    let addresses = prop::collection::btree_set(0..6_u8, 1..3);
    let turn = prop_oneof![
        4 => (addresses, prop::bool::weighted(0.2))
            .prop_map(|(addresses, keeps_id)| Turn::Attach { addresses, keeps_id }),
        2 => Just(Turn::Detach),
        1 => Just(Turn::Close),
        2 => Just(Turn::Load),
    ];
    vec((0..PORTS, turn), 1..12)
}

/// Open ports, and the pods behind them.
#[derive(Debug, Clone, Default)]
struct Node {
    open: BTreeMap<PortId, PortView>,
    pods: BTreeMap<u16, PodAttachment>,
    tables: Option<Arc<RuleTables>>,
}

impl Node {
    fn take(&mut self, port: u16, turn: &Turn, new_id: u32) {
        match turn {
            Turn::Attach { addresses, keeps_id } => {
                self.open.insert(PortId(port), open()[&PortId(port)].clone());
                let id = self.pods.get(&port).map_or(AttachmentId(new_id), |pod| pod.id);
                let id = if *keeps_id { id } else { AttachmentId(new_id) };
                let addresses = addresses.iter().copied().map(address).collect();
                self.pods.insert(port, PodAttachment { id, addresses, ..pod(port.into()) });
            }
            Turn::Detach => drop(self.pods.remove(&port)),
            Turn::Close => drop(self.open.remove(&PortId(port))),
            Turn::Load => self.tables = Some(Arc::default()),
        }
    }

    fn desired(&self) -> DesiredState {
        let (pods, tables) = (self.pods.values().cloned().collect(), self.tables.clone());
        DesiredState { tables, pods, ..DesiredState::default() }
    }

    /// Pods with an open port.
    fn reachable(&self) -> impl Iterator<Item = &PodAttachment> {
        self.pods.values().filter(|pod| self.open.contains_key(&pod.port))
    }

    /// Pod that an address is routed to.
    fn pod_at(&self, address: IpAddr) -> Option<&PodAttachment> {
        let last = self.pods.values().rfind(|pod| pod.addresses.contains(&address));
        last.filter(|pod| self.open.contains_key(&pod.port))
    }

    /// Whether the pod is attached, and no other pod has one of its addresses.
    fn has_alone(&self, pod: &PodAttachment) -> bool {
        let is_shared =
            |address| self.reachable().filter(|other| other.addresses.contains(address)).count() > 1;
        self.reachable().any(|there| there == pod) && !pod.addresses.iter().any(is_shared)
    }
}

fn address(number: u8) -> IpAddr {
    if number.is_multiple_of(2) {
        IpAddr::from([10, 0, 0, number])
    } else {
        format!("fd00::{number}").parse().unwrap()
    }
}

proptest! {

    #![proptest_config(crate::random::cases(128))]

    #[test]
    fn an_endpoint_is_the_same_if_its_pod_has_been_the_sole_owner_since_or_if_it_never_was_a_pod(
        turns in turns(),
    ) {
        let mut nodes = vec![Node::default()];
        let mut snapshot = Snapshot::new(&nodes[0].desired(), Generation(0), &nodes[0].open, 1);
        let mut snapshots = vec![snapshot.clone()];
        for (number, (port, turn)) in turns.iter().enumerate() {
            let before = nodes[number].clone();
            let mut node = before.clone();
            node.take(*port, turn, 100 + number as u32);
            let same_ports = node.open.len() == before.open.len();
            let last_left = snapshot.pod_removed;
            snapshot = snapshot.next(&before.desired(), &node.desired(), &node.open, same_ports, 1, Arc::default);
            if before.reachable().all(|pod| before.has_alone(pod) && node.has_alone(pod)) {
                prop_assert_eq!(snapshot.pod_removed, last_left, "nobody left at {}", snapshot.generation);
            }
            nodes.push(node);
            snapshots.push(snapshot.clone());
            for (epoch, then) in nodes.iter().enumerate() {
                let generation = Generation(epoch as u32);
                for pod in then.reachable() {
                    let stayed = nodes[epoch..].iter().all(|node| node.has_alone(pod));
                    for address in &pod.addresses {
                        let same = stayed && nodes[number + 1].pod_at(*address) == Some(pod);
                        let says = snapshot.is_same_endpoint(pack(*address), true, generation);
                        prop_assert_eq!(says, same, "{:?} of {} at {}", pod, generation, snapshot.generation);
                        // Otherwise no sweep would look for the flows of a removed pod.
                        let was_same = snapshots[epoch].is_same_endpoint(pack(*address), true, generation);
                        prop_assert!(says || !was_same || generation < snapshot.pod_removed);
                    }
                }
                for address in (0..6).map(address) {
                    let is_pod = nodes[number + 1].pod_at(address).is_some();
                    prop_assert_eq!(snapshot.is_same_endpoint(pack(address), false, generation), !is_pod);
                }
            }
        }
    }
}
