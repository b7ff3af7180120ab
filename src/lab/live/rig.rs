//! Test rig: a lab with its switch and responder, on which cases run one after the other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::case::{LiveCase, LiveProbe};
use super::client::send_probe;
use super::counter_delta::CounterDelta;
use super::placement::{NODE, OUTSIDE, Placement, Site, can_be_sent};
use super::responder::Responder;
use crate::lab::traffic::{Outcome, ping};
use crate::lab::{GATEWAY_V4, Lab, LabError, LabSpec, Pod, PodPorts, Switch, SwitchSpec};
use crate::net::flow::FlowKey;
use crate::tables::{PodName, Verdict};

/// Wait for silence. A lost SYN is sent again after one second (RFC 6298 section 2), so it is longer than
/// that.
const SILENCE: Duration = Duration::from_millis(1300);
/// Longest wait for an answer on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Probes at the same time.
const PROBES_MAX: usize = 128;
/// Name of the port outside.
const OUTSIDE_PORT: &str = "outside";

/// Parameters of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSpec {
    /// The `palisade` program.
    pub program: PathBuf,
    /// Interfaces of the pods.
    pub ports: PodPorts,
    /// Workers of the switch.
    pub workers: u16,
}

/// Result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveResult {
    /// Outcome of each probe; `None` for one that no single host can send or receive.
    pub outcomes: Vec<Option<Outcome>>,
    /// Counters of the switch.
    pub counted: CounterDelta,
}

/// A lab with a running switch. Fields are dropped in this order.
pub(super) struct Rig {
    // The responder stops first, then the switch, then the lab that both run in.
    responder: Responder,
    switch: Switch,
    lab: Lab,
    placement: Placement,
    /// Pod of each site.
    hosts: Vec<Pod>,
    attached: BTreeMap<PodName, Site>,
    probes_sent: AtomicU32,
}

impl Rig {
    pub(super) fn up(spec: &LiveSpec, placement: Placement) -> Result<Rig, LabError> {
        let addresses = placement.addresses();
        let names: Vec<String> = (0..addresses.len()).map(site_name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let plan = LabSpec::of(&names)?;
        let given = plan.pods.iter().cloned().zip(addresses).collect();
        // The host outside is behind a port of the node, which is a veth.
        let ports_of = [(site_name(OUTSIDE), PodPorts::Veth)].into();
        let LiveSpec { ports, workers, .. } = *spec;
        let mut lab = Lab::up(&LabSpec { ports, ports_of, workers, given, ..plan })?;
        let hosts: Vec<Pod> = lab.pods().collect();
        let services = hosts.iter().enumerate();
        let services: Vec<_> =
            services.map(|(site, host)| (host.clone(), placement.services(site).collect())).collect();
        let responder = Responder::start(&services)?;
        let switch = SwitchSpec { config: outside_config(&hosts[OUTSIDE]), ..SwitchSpec::of(&spec.program) };
        let switch = Switch::start(&mut lab, &switch)?;
        let rig = Rig {
            responder,
            switch,
            lab,
            placement,
            hosts,
            attached: BTreeMap::new(),
            probes_sent: AtomicU32::new(0),
        };
        rig.open_ports()?;
        Ok(rig)
    }

    /// Runs a case.
    pub(super) fn run(&mut self, case: &LiveCase) -> Result<LiveResult, LabError> {
        self.set(case)?;
        let before = self.switch.client().counters()?;
        let mut outcomes = vec![];
        for probes in case.probes.chunks(PROBES_MAX) {
            outcomes.extend(self.probe_all(case, probes)?);
        }
        let counted = CounterDelta::between(&before, &self.switch.client().counters()?);
        Ok(LiveResult { outcomes, counted })
    }

    /// Removes everything. Fails when the switch does not end cleanly.
    pub(super) fn down(self) -> Result<(), LabError> {
        drop(self.responder);
        let status = self.switch.stop()?;
        if !status.success() {
            return Err(LabError::Switch(format!("the switch did not stop cleanly ({status})")));
        }
        let errors = self.lab.remove().errors;
        if errors.is_empty() { Ok(()) } else { Err(LabError::Plan(errors.join("; "))) }
    }

    fn open_ports(&self) -> Result<(), LabError> {
        for host in &self.hosts[OUTSIDE + 1..] {
            self.switch.client().put_port(&host.plan().host_interface, &host.plan().port_request())?;
        }
        // The switch learns the Ethernet address of the host outside from its first frame.
        match ping(&self.hosts[OUTSIDE], GATEWAY_V4.into(), TIMEOUT)? {
            Outcome::Allowed => Ok(()),
            other => Err(LabError::Switch(format!("the switch does not answer from outside: ping {other}"))),
        }
    }

    /// Attaches the pods of a case and loads its tables.
    fn set(&mut self, case: &LiveCase) -> Result<(), LabError> {
        let client = self.switch.client();
        let site = |(pod, addresses): (&PodName, &Vec<IpAddr>)| {
            // The sites were planned from these addresses.
            self.placement.of_pod(addresses).map(|site| (pod.clone(), site))
        };
        let wanted: BTreeMap<PodName, Site> = case.pods_to_make().filter_map(site).collect();
        for pod in self.attached.iter().filter(|(pod, site)| wanted.get(pod) != Some(site)) {
            client.delete_pod(pod.0)?;
        }
        // The tables may lack attached pods of the case before, which they close until this case attaches
        // them.
        client.put_tables_allow_empty(&case.tables)?;
        client.put_services(&case.services)?;
        for (pod, site) in wanted.iter().filter(|(pod, site)| self.attached.get(pod) != Some(site)) {
            client.put_pod(pod, &self.hosts[*site].plan().pod_request())?;
        }
        self.attached = wanted;
        Ok(())
    }

    /// Sends all probes at the same time, since a denied one takes until its time-out.
    fn probe_all(&self, case: &LiveCase, probes: &[LiveProbe]) -> Result<Vec<Option<Outcome>>, LabError> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                probes.iter().map(|probe| scope.spawn(move || self.probe_one(case, probe))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        })
    }

    fn probe_one(&self, case: &LiveCase, probe: &LiveProbe) -> Result<Option<Outcome>, LabError> {
        if !can_be_sent(case, &probe.flow) {
            return Ok(None);
        }
        let host = &self.hosts[self.placement.of_address(case, probe.flow.src)];
        let timeout = if probe.expect == Verdict::Allow { TIMEOUT } else { SILENCE };
        let number = self.probes_sent.fetch_add(1, Ordering::Relaxed);
        let sent = probe.through.map_or(probe.flow, |address| FlowKey {
            dst: address.ip(),
            dst_port: address.port(),
            ..probe.flow
        });
        send_probe(host, &sent, number, timeout).map(Some)
    }
}

fn site_name(site: Site) -> String {
    if site == OUTSIDE { "outside".to_owned() } else { format!("site{site}") }
}

/// Configures the host port outside and the routes to it. No case uses the port's own address.
fn outside_config(host: &Pod) -> String {
    let interface = &host.plan().host_interface;
    let port = format!(
        "[[ports]]\nname = \"{OUTSIDE_PORT}\"\nkind = \"host\"\ninterface = \"{interface}\"\naddresses = [\"{NODE}\"]\n"
    );
    let route = |prefix: &str| format!("[[routes]]\nprefix = \"{prefix}\"\nport = \"{OUTSIDE_PORT}\"\n");
    port + &route("0.0.0.0/0") + &route("::/0")
}
