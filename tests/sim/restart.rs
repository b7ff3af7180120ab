//! Flows kept over a restart of the switch: the packets that pass afterwards, and those that do not.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade::dataplane::{ConntrackSettings, DesiredState, DropReason, FlowMemory, Settings, Simulation};
use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::tables::PodName;

use crate::frames::{Spec, Transport};
use crate::rig::model::{ACK, SYN};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{PODS, Rig, Setting, forwarded, pod_address, pod_name};

const A: PortId = PortId(0);
const B: PortId = PortId(1);

/// Switch with the directory of its flow table.
struct Restarted {
    rig: Option<Rig>,
    directory: PathBuf,
}

impl Restarted {
    /// Starts a switch with a connection from `a` to `b` on these ports, and datagrams both ways.
    fn connected(ports: [u16; 2]) -> Restarted {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(format!("/dev/shm/palisade-sim-{}-{number}", std::process::id()));
        let mut switch = Restarted { rig: None, directory };
        switch.restart(&Setting::open());
        let [client, server] = ports;
        switch.passes(A, B, &tcp(SYN, 0, [client, server], [100, 0]));
        switch.passes(B, A, &tcp(SYN | ACK, 1, [server, client], [500, 101]));
        switch.passes(A, B, &tcp(ACK, 0, [client, server], [101, 501]));
        switch.passes(A, B, &udp(0, [5000, 53]));
        switch.passes(B, A, &udp(1, [53, 5000]));
        switch
    }

    /// Drops the switch without a shutdown, as a kill does, and starts another one.
    fn restart(&mut self, setting: &Setting) {
        self.rig = None;
        self.rig = Some(Rig::with_settings(&self.settings(), setting));
    }

    fn settings(&self) -> Settings {
        let memory = FlowMemory::Directory { path: self.directory.clone(), fallback: None };
        let conntrack =
            ConntrackSettings { flows_max: 1024, tcp_pickup: false, memory, ..ConntrackSettings::default() };
        Settings { frames_per_worker: 1024, huge_pages: false, conntrack, ..Settings::default() }
    }

    fn rig(&mut self) -> &mut Rig {
        self.rig.as_mut().unwrap()
    }

    fn publish(&mut self, desired: DesiredState) {
        self.rig().sim.publish(desired);
        self.rig().sim.step();
    }

    #[track_caller]
    fn passes(&mut self, from: PortId, to: PortId, spec: &Spec) {
        let before = self.rig().counters(from);
        let frames = self.rig().send(from, spec);
        let drops = self.rig().drops_since(from, &before);
        assert_eq!(frames, [(to, forwarded(to, spec))], "drops: {drops:?}");
    }

    #[track_caller]
    fn is_dropped(&mut self, from: PortId, spec: &Spec, reason: DropReason) {
        let before = self.rig().counters(from);
        assert_eq!(self.rig().send(from, spec), []);
        let drops = self.rig().drops_since(from, &before);
        assert_eq!(drops, [(reason.name().to_owned(), 1)].into());
    }

    fn flows(&mut self) -> usize {
        self.rig().sim.flows_len()
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        self.rig = None;
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn tcp(flags: u8, from: usize, ports: [u16; 2], [sequence, acknowledgement]: [u32; 2]) -> Spec {
    let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
    Spec { payload: Vec::new(), ..Spec::new(pod_address(from)[0], pod_address(1 - from)[0], transport) }
}

fn udp(from: usize, ports: [u16; 2]) -> Spec {
    Spec::new(pod_address(from)[0], pod_address(1 - from)[0], Transport::Udp { ports })
}

/// Next segment of the connection from `a` to `b`, from one of its ends.
fn segment(from: usize, [client, server]: [u16; 2]) -> Spec {
    if from == 0 {
        tcp(ACK, 0, [client, server], [101, 501])
    } else {
        tcp(ACK, 1, [server, client], [501, 101])
    }
}

/// Ports of client and server: lower, higher, equal.
const PATTERNS: [[u16; 2]; 4] = [[40_000, 80], [80, 40_000], [40_001, 50_051], [700, 700]];

/// Rules of a pod that nobody may reach.
fn deaf() -> PodRules {
    PodRules { ingress: Some(vec![]), egress: None }
}

/// Desired state without one pod, and without the prefixes of pods.
fn without(pod: usize) -> DesiredState {
    let mut setting = Setting::open();
    setting.attachments[pod] = None;
    DesiredState { pod_prefixes: vec![], ..setting.desired() }
}

#[test]
fn connections_of_every_port_pattern_go_on_after_a_restart_whoever_speaks_first_and_strangers_stay_out() {
    for ports in PATTERNS {
        for speaker in [0, 1] {
            let mut switch = Restarted::connected(ports);
            let (from, to) = (PortId(speaker), PortId(1 - speaker));
            for _ in 0..3 {
                switch.restart(&Setting::open());
                assert_eq!(switch.flows(), 2);
                switch.passes(from, to, &segment(speaker.into(), ports));
                switch.passes(from, to, &segment(speaker.into(), ports));
                switch.passes(B, A, &udp(1, [53, 5000]));
                let stranger = segment(speaker.into(), [ports[0] + 1, ports[1]]);
                switch.is_dropped(from, &stranger, DropReason::InvalidState);
            }
        }
    }
}

#[test]
fn a_policy_that_was_tightened_meanwhile_ends_connections_of_every_port_pattern_in_both_directions() {
    for ports in PATTERNS {
        for speaker in [0, 1] {
            let mut switch = Restarted::connected(ports);
            switch.restart(&Setting::open().with(1, deaf()));
            switch.is_dropped(PortId(speaker), &segment(speaker.into(), ports), DropReason::PolicyIngress);
            // The connection is allowed again, but has no flow.
            switch.restart(&Setting::open());
            switch.is_dropped(PortId(speaker), &segment(speaker.into(), ports), DropReason::InvalidState);
            // The other flow is evaluated at its own next packet.
            switch.passes(B, A, &udp(1, [53, 5000]));
        }
    }
}

#[test]
fn what_only_the_reply_direction_would_allow_is_evaluated_from_the_original_one() {
    let mut switch = Restarted::connected([40_000, 80]);
    // The server may open no connection, the client every one: replies pass.
    let mute = PodRules { egress: Some(vec![]), ingress: None };
    switch.restart(&Setting::open().with(1, mute.clone()));
    switch.passes(B, A, &segment(1, [40_000, 80]));
    let serves = PodRules { ingress: Some(vec![Rule::port(Protocol::TCP, 80)]), egress: Some(vec![]) };
    switch.restart(&Setting::open().with(1, serves));
    switch.passes(B, A, &segment(1, [40_000, 80]));
    switch.is_dropped(B, &udp(1, [53, 5000]), DropReason::PolicyIngress);
    switch.restart(&Setting::open().with(0, mute));
    switch.is_dropped(B, &segment(1, [40_000, 80]), DropReason::PolicyEgress);
}

#[test]
fn while_no_tables_are_loaded_nothing_passes_and_flows_wait() {
    let mut switch = Restarted::connected([40_000, 80]);
    switch.restart(&Setting { loaded: false, ..Setting::open() });
    for (port, spec) in [(A, segment(0, [40_000, 80])), (B, udp(1, [53, 5000]))] {
        switch.is_dropped(port, &spec, DropReason::UnknownPod);
    }
    assert_eq!(switch.flows(), 2);
    switch.publish(Setting::open().desired());
    switch.passes(B, A, &segment(1, [40_000, 80]));
    switch.passes(A, B, &udp(0, [5000, 53]));
}

#[test]
fn flows_of_a_pod_that_is_not_attached_yet_wait_for_it_and_pass_to_nobody() {
    let mut switch = Restarted::connected([40_000, 80]);
    switch.restart(&Setting { attachments: [None; PODS], ..Setting::open() });
    switch.rig().wait(Duration::from_secs(10));
    // Its address is routed to the uplink meanwhile.
    switch.publish(without(1));
    switch.is_dropped(A, &segment(0, [40_000, 80]), DropReason::UnknownPod);
    switch.rig().wait(Duration::from_secs(100));
    assert_eq!(switch.flows(), 2);
    switch.publish(Setting::open().desired());
    switch.passes(A, B, &segment(0, [40_000, 80]));
}

#[test]
fn flows_wait_though_workers_look_at_them_before_anything_is_published() {
    let mut switch = Restarted::connected([40_000, 80]);
    switch.rig = None;
    let mut sim = Simulation::new(&switch.settings()).unwrap();
    for _ in 0..4 {
        sim.now += Duration::from_secs(1);
        sim.step();
    }
    assert_eq!(sim.flows_len(), 2);
    drop(sim);
    switch.restart(&Setting::open());
    switch.passes(A, B, &segment(0, [40_000, 80]));
}

#[test]
fn a_pod_that_does_not_come_back_takes_its_flows_with_it() {
    let mut switch = Restarted::connected([40_000, 80]);
    switch.restart(&Setting { attachments: [None; PODS], ..Setting::open() });
    switch.publish(without(1));
    switch.rig().wait(Duration::from_secs(119));
    assert_eq!(switch.flows(), 2);
    switch.rig().wait(Duration::from_secs(4));
    assert_eq!(switch.flows(), 0);
    switch.publish(Setting::open().desired());
    switch.is_dropped(A, &segment(0, [40_000, 80]), DropReason::InvalidState);
}

#[test]
fn another_pod_at_an_address_inherits_nothing_nor_does_the_first_one_when_it_is_back() {
    let mut switch = Restarted::connected([40_000, 80]);
    let mut desired = Setting::open().desired();
    desired.pods[1].pod = PodName::new("default", "other");
    let mut tables = (**desired.tables.as_ref().unwrap()).clone();
    let policy = tables.pods[&pod_name(1)].clone();
    tables.pods.insert(PodName::new("default", "other"), policy);
    desired.tables = Some(tables.into());
    switch.restart(&Setting { attachments: [None; PODS], ..Setting::open() });
    switch.publish(desired.clone());
    switch.is_dropped(B, &segment(1, [40_000, 80]), DropReason::InvalidState);
    // That ended the connection. The flow of the datagrams ends at the next sweep.
    switch.rig().wait(Duration::from_secs(2));
    assert_eq!(switch.flows(), 0);
    // Its own connection is no continuation of the first pod's.
    switch.passes(A, B, &tcp(SYN, 0, [40_000, 80], [100, 0]));
    switch.passes(B, A, &tcp(SYN | ACK, 1, [80, 40_000], [500, 101]));
    switch.passes(A, B, &segment(0, [40_000, 80]));
    switch.restart(&Setting::open());
    switch.is_dropped(B, &segment(1, [40_000, 80]), DropReason::InvalidState);
}

#[test]
fn flows_of_an_earlier_pod_at_an_address_are_not_the_later_ones_though_nothing_had_swept_them_before_the_restart()
 {
    let mut switch = Restarted::connected([40_000, 80]);
    let mut again = Setting::open();
    again.attachments[1] = Some(palisade::ids::AttachmentId(77));
    // The pod is attached again, and the switch dies before a sweep visits its flows.
    switch.rig().sim.publish(again.desired());
    assert_eq!(switch.flows(), 2);
    switch.restart(&Setting::open());
    assert_eq!(switch.flows(), 2);
    switch.is_dropped(B, &segment(1, [40_000, 80]), DropReason::InvalidState);
}
