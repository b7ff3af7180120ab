//! Rig of a simulated switch: three pods, the node and an uplink on memory ports.

pub(crate) mod assertions;
pub(crate) mod model;
pub(crate) mod rule_lists;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, NodeAttachment, PodAttachment, PortCounters,
    PortKind, Route, Settings, SimulatedPort, Simulation, TunnelSettings,
};
use palisade::ids::{AttachmentId, PortId};
use palisade::tables::PodName;

use self::rule_lists::PodRules;
use crate::frames::Spec;

/// Ports in the order of opening; the first three are the pods'.
pub(crate) const PODS: usize = 3;
pub(crate) const HOST: PortId = PortId(3);
pub(crate) const UPLINK: PortId = PortId(4);
pub(crate) const PORTS: usize = 5;
/// 802.1Q identifier of the uplink.
pub(crate) const UPLINK_VLAN: u16 = 7;
/// MTU of the last pod; the others have [`MTU`].
pub(crate) const SMALL_MTU: u16 = 600;
pub(crate) const MTU: u16 = 1500;

/// Longest time that a SYN waits for the end of the connection that has its ports.
pub(crate) const EARLY_SYN_TIMEOUT: Duration =
    Duration::from_millis(palisade::limits::EARLY_SYN_TIMEOUT_MS as u64);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Addresses of a pod: IPv4, IPv6.
pub(crate) fn pod_address(pod: usize) -> [IpAddr; 2] {
    [ip(&format!("10.0.0.{}", pod + 2)), ip(&format!("fd00::{}", pod + 2))]
}

pub(crate) fn gateway_address() -> [IpAddr; 2] {
    [ip("10.0.0.1"), ip("fd00::1")]
}

pub(crate) fn node_address() -> [IpAddr; 2] {
    [ip("10.0.0.254"), ip("fd00::fe")]
}

/// Tells whether an address lies in the pods' prefixes.
pub(crate) fn is_among_pods(address: IpAddr) -> bool {
    pod_prefixes().iter().any(|prefix| prefix.contains(&address))
}

/// Prefixes of the node's pods. They contain the gateway's addresses.
pub(crate) fn pod_prefixes() -> [ipnet::IpNet; 2] {
    ["10.0.0.0/29", "fd00::/125"].map(|prefix| prefix.parse().unwrap())
}

/// Address of a host behind the uplink.
pub(crate) fn outside_address(number: usize) -> [IpAddr; 2] {
    [ip(&format!("198.51.100.{number}")), ip(&format!("2001:db8::{number}"))]
}

/// Ethernet address of the switch on a port: on the uplink, the NIC's.
pub(crate) fn switch_mac(port: PortId) -> [u8; 6] {
    if port == UPLINK { [2, 0, 0, 0, 0xbb, 4] } else { gateway_mac() }
}

/// Addresses of the router on the uplink: IPv4, IPv6.
pub(crate) fn router_address() -> [IpAddr; 2] {
    [ip("192.0.2.1"), ip("fe80::99")]
}

pub(crate) fn gateway_mac() -> [u8; 6] {
    Gateway::default().mac.0
}

/// Ethernet address of the station behind a port.
pub(crate) fn mac(port: PortId) -> [u8; 6] {
    [2, 0, 0, 0, 0xaa, port.0 as u8]
}

pub(crate) fn pod_name(pod: usize) -> PodName {
    PodName::new("default", ["a", "b", "c"][pod])
}

/// Desired state of the switch in terms of the tests.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Rules of each pod; `None` for a pod that the tables do not contain.
    pub(crate) rules: [Option<PodRules>; PODS],
    /// Loads tables at all.
    pub(crate) loaded: bool,
    pub(crate) fail_open: bool,
    /// Attachment id of each pod.
    pub(crate) attachments: [Option<AttachmentId>; PODS],
    pub(crate) draining: BTreeSet<PortId>,
    pub(crate) bandwidths: [Bandwidth; PODS],
    /// Services whose packets are translated.
    pub(crate) services: Option<Arc<palisade::tables::ServiceSet>>,
    /// Masquerading of what pods send outside.
    pub(crate) masquerade: Option<Arc<palisade::dataplane::Masquerade>>,
    /// Tunnels to other nodes.
    pub(crate) tunnel: Option<TunnelSettings>,
    /// Routes to the pods of other nodes: prefixes and nodes.
    pub(crate) nodes: Vec<(ipnet::IpNet, IpAddr)>,
}

impl Setting {
    /// Attaches all pods, isolates none.
    pub(crate) fn open() -> Setting {
        Setting {
            rules: std::array::from_fn(|_| Some(PodRules::default())),
            loaded: true,
            fail_open: false,
            attachments: std::array::from_fn(|pod| Some(AttachmentId(pod as u32 + 1))),
            draining: BTreeSet::new(),
            bandwidths: [Bandwidth::default(); PODS],
            services: None,
            masquerade: None,
            tunnel: None,
            nodes: Vec::new(),
        }
    }

    /// Replaces the rules of one pod.
    pub(crate) fn with(&self, pod: usize, rules: PodRules) -> Setting {
        let mut setting = self.clone();
        setting.rules[pod] = Some(rules);
        setting
    }

    /// Builds the desired state.
    pub(crate) fn desired(&self) -> DesiredState {
        let known = self.rules.iter().enumerate().filter_map(|(pod, rules)| {
            rules.clone().map(|rules| (pod_name(pod), (pod_address(pod).to_vec(), rules)))
        });
        let sides = self.rules.iter().flatten().flat_map(|rules| [&rules.ingress, &rules.egress]);
        let peers = sides.flatten().flatten().filter_map(|rule| rule.peers.clone()).flatten();
        let addresses: BTreeSet<IpAddr> = (0..PODS).flat_map(pod_address).chain(peers).collect();
        let addresses: Vec<IpAddr> = addresses.into_iter().collect();
        let tables = self.loaded.then(|| Arc::new(rule_lists::tables(&known.collect(), &addresses)));
        let pods = self.attachments.iter().enumerate().filter_map(|(pod, id)| {
            id.map(|id| PodAttachment {
                id,
                pod: pod_name(pod),
                port: PortId(pod as u16),
                addresses: pod_address(pod).to_vec(),
                mac: Some(palisade::net::mac::Mac(mac(PortId(pod as u16)))),
                bandwidth: self.bandwidths[pod],
            })
        });
        let route = |prefix: &str, next_hop: Option<IpAddr>| Route {
            prefix: prefix.parse().unwrap(),
            port: UPLINK,
            next_hop,
            node: false,
        };
        let nodes = self.nodes.iter().map(|(prefix, node)| Route {
            prefix: *prefix,
            port: UPLINK,
            next_hop: Some(*node),
            node: true,
        });
        let plain = [
            route("0.0.0.0/0", Some(router_address()[0])),
            route("::/0", Some(router_address()[1])),
            route("192.0.2.0/24", None),
        ];
        DesiredState {
            tables,
            fail_open: self.fail_open,
            rejects: false,
            gateway: Gateway { addresses: gateway_address().to_vec(), ..Gateway::default() },
            pods: pods.collect(),
            draining: self.draining.clone(),
            node: Some(NodeAttachment {
                port: HOST,
                addresses: node_address().to_vec(),
                mac: Some(palisade::net::mac::Mac(mac(HOST))),
            }),
            pod_prefixes: pod_prefixes().to_vec(),
            routes: plain.into_iter().chain(nodes).collect(),
            services: self.services.clone(),
            services_awaited: false,
            masquerade: self.masquerade.clone(),
            tunnel: self.tunnel.clone(),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) sim: Simulation,
    pub(crate) ports: Vec<SimulatedPort>,
    pub(crate) workers: usize,
    /// Marks a switch with a port that has fewer queues than there are workers.
    hands_over: bool,
}

/// Settings of a small flow table: that of the default size takes longer to make than most tests to run.
pub(crate) fn small_table() -> ConntrackSettings {
    ConntrackSettings { flows_max: 1024, ..ConntrackSettings::default() }
}

pub(crate) fn settings(workers: usize, conntrack: ConntrackSettings) -> Settings {
    Settings {
        cores: vec![0; workers],
        frames_per_worker: 1024,
        huge_pages: false,
        conntrack,
        ..Settings::default()
    }
}

impl Rig {
    /// Starts a switch with a resolved router on the uplink.
    pub(crate) fn new(workers: usize, setting: &Setting) -> Rig {
        Rig::with(workers, small_table(), setting)
    }

    /// Starts the same with these numbers of queues of the pods' ports.
    pub(crate) fn new_with_queues(workers: usize, setting: &Setting, queues: [usize; PODS]) -> Rig {
        Rig::with_queues(&settings(workers, small_table()), setting, queues)
    }

    pub(crate) fn with(workers: usize, conntrack: ConntrackSettings, setting: &Setting) -> Rig {
        Rig::with_settings(&settings(workers, conntrack), setting)
    }

    pub(crate) fn with_settings(settings: &Settings, setting: &Setting) -> Rig {
        Rig::with_queues(settings, setting, [settings.cores.len(); PODS])
    }

    /// Starts a switch with these numbers of queues of the pods' ports, at most one for each worker. Other
    /// ports have one for each worker.
    pub(crate) fn with_queues(settings: &Settings, setting: &Setting, queues: [usize; PODS]) -> Rig {
        Rig::open(settings, setting, MTU, queues)
    }

    /// Starts a switch with this MTU on all ports but the last pod's, and these numbers of queues of the
    /// pods' ports.
    pub(crate) fn open(settings: &Settings, setting: &Setting, mtu: u16, queues: [usize; PODS]) -> Rig {
        Rig::open_with_taps(settings, setting, mtu, queues, &[])
    }

    /// Starts the same with tap ports for some pods.
    pub(crate) fn open_with_taps(
        settings: &Settings,
        setting: &Setting,
        mtu: u16,
        queues: [usize; PODS],
        taps: &[PortId],
    ) -> Rig {
        Rig::open_with_uplink(settings, setting, [mtu, mtu], queues, taps)
    }

    /// Starts the same with an MTU of the uplink's own behind that of other ports.
    pub(crate) fn open_with_uplink(
        settings: &Settings,
        setting: &Setting,
        [mtu, uplink_mtu]: [u16; 2],
        queues: [usize; PODS],
        taps: &[PortId],
    ) -> Rig {
        let workers = settings.cores.len();
        let mut sim = Simulation::new(settings).unwrap();
        let mut ports = Vec::new();
        for port in 0..PORTS {
            let (kind, vlan) = match PortId(port as u16) {
                HOST => (PortKind::Host, None),
                UPLINK => (PortKind::Uplink, Some(UPLINK_VLAN)),
                tap if taps.contains(&tap) => (PortKind::Tap, None),
                _ => (PortKind::Pod, None),
            };
            let mtu = if port == PODS - 1 { SMALL_MTU } else { mtu };
            let port = if kind == PortKind::Uplink {
                sim.open_uplink(palisade::net::mac::Mac(switch_mac(UPLINK)), vlan, uplink_mtu)
            } else {
                let queues = queues.get(port).map_or(workers, |queues| workers.min(*queues));
                sim.open_port_with(kind, vlan, mtu, queues)
            };
            ports.push(port.unwrap());
        }
        sim.publish(setting.desired());
        let hands_over = queues.iter().any(|queues| *queues < workers);
        let mut rig = Rig { sim, ports, workers, hands_over };
        rig.sim.step();
        rig.collect();
        rig.know_router(true);
        rig
    }

    /// Sets or clears the Ethernet address of the router on the uplink.
    pub(crate) fn know_router(&mut self, known: bool) {
        let mac = known.then(|| palisade::net::mac::Mac(mac(UPLINK)));
        router_address().into_iter().for_each(|router| self.sim.resolve(UPLINK, router, mac));
    }

    /// Publishes a snapshot and lets every worker load it.
    pub(crate) fn publish(&mut self, setting: &Setting) {
        self.sim.publish(setting.desired());
        self.sim.step();
    }

    /// Injects a frame on a port, with the addresses of such frames, and returns the transmitted frames by
    /// port.
    pub(crate) fn send(&mut self, port: PortId, spec: &Spec) -> Vec<(PortId, Vec<u8>)> {
        self.send_on(0, port, &[addressed(port, spec).bytes()])
    }

    /// Injects frames on a worker's queue of a port in one batch; if the worker has no queue there, on that
    /// of another worker. A SYN that waits for the end of a connection waits for all of its time.
    pub(crate) fn send_on(
        &mut self,
        worker: usize,
        port: PortId,
        frames: &[Vec<u8>],
    ) -> Vec<(PortId, Vec<u8>)> {
        let peers = &self.ports[port.index()].peers;
        let worker = worker % peers.len();
        for frame in frames {
            assert!(peers[worker].inject(frame), "a frame is lost before the switch");
        }
        self.sim.step_worker(worker);
        self.check();
        if self.hands_over {
            self.sim.step();
            self.check();
        }
        if self.sim.early_syns() > 0 {
            self.sim.now += EARLY_SYN_TIMEOUT;
            self.sim.step();
            self.check();
            if self.hands_over {
                self.sim.step();
                self.check();
            }
        }
        self.collect()
    }

    /// Takes the transmitted frames.
    pub(crate) fn collect(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut out = Vec::new();
        for port in &self.ports {
            for peer in &port.peers {
                out.extend(peer.collect().into_iter().map(|frame| (port.id, frame)));
            }
        }
        out
    }

    /// Advances the clock. Two seconds are enough for a sweep of every flow.
    pub(crate) fn wait(&mut self, time: Duration) {
        assert!(time >= Duration::from_secs(2));
        self.sim.now += time;
        self.sim.step();
        // A batch sweeps a part of the table only. The second step sweeps the rest.
        self.sim.step();
        self.check();
    }

    pub(crate) fn counters(&self, port: PortId) -> PortCounters {
        self.sim.port_counters().remove(&port).unwrap_or_default()
    }

    /// Drops at a port since `before`, by reason.
    pub(crate) fn drops_since(&self, port: PortId, before: &PortCounters) -> BTreeMap<String, u64> {
        let mut drops = self.counters(port).drops;
        for (reason, count) in &before.drops {
            drops.entry(reason.clone()).and_modify(|now| *now -= count);
        }
        drops.retain(|_, count| *count != 0);
        drops
    }

    /// Checks the invariants: every frame has one verdict, and no UMEM frame is lost.
    pub(crate) fn check(&self) {
        for (port, counters) in self.sim.port_counters() {
            let drops: u64 = counters.drops.values().sum();
            let verdicts = counters.forwarded + counters.consumed + drops;
            assert_eq!(counters.received, verdicts, "port {port}: {counters:?}");
        }
        for worker in 0..self.workers {
            let (total, lent, held) = self.sim.frames(worker);
            assert_eq!(lent + held, total, "frames of worker {worker}");
        }
    }
}

/// Sets the Ethernet addresses and the tag of frames that arrive on a port. Those from the node's addresses have the mark
/// of the node's sockets.
pub(crate) fn addressed(port: PortId, spec: &Spec) -> Spec {
    let vlan = (port == UPLINK).then_some(UPLINK_VLAN);
    let mut src_mac = mac(port);
    src_mac[0] |= u8::from(port == HOST && node_address().contains(&spec.src));
    Spec { src_mac, dst_mac: switch_mac(port), vlan, ..spec.clone() }
}

/// Builds the frame of a packet that the node forwards, which has no mark.
pub(crate) fn forwarded_by_node(spec: &Spec) -> Vec<u8> {
    Spec { src_mac: mac(HOST), ..addressed(HOST, spec) }.bytes()
}

/// Builds the frame as which a packet leaves by a port.
pub(crate) fn forwarded(port: PortId, spec: &Spec) -> Vec<u8> {
    let vlan = (port == UPLINK).then_some(UPLINK_VLAN);
    Spec { src_mac: switch_mac(port), dst_mac: mac(port), vlan, ttl: spec.ttl - 1, ..spec.clone() }.bytes()
}
