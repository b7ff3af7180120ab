//! A lab, its switch and its answerer, on which cases are played one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::client::call;
use super::placement::{NODE, OUTSIDE, Placement, Site, can_be_sent};
use super::responder::Responder;
use super::{LiveCase, LiveProbe, LiveResult, LiveSpec};
use crate::control::protocol::{CountersReport, PodRequest, PortRequest};
use crate::dataplane::PortKind;
use crate::lab::traffic::{Outcome, ping};
use crate::lab::{GATEWAY_V4, Lab, LabError, LabSpec, Pod, Switch, SwitchSpec};
use crate::tables::{PodName, Verdict};

/// How long silence is waited for: a SYN that got lost is sent again after one second.
const SILENCE: Duration = Duration::from_millis(1300);
/// How long an answer is waited for, on a machine that has other things to do as well.
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls at once.
const CALLS_MAX: usize = 128;
/// The port outside.
const OUTSIDE_PORT: &str = "outside";

/// What the switch counted while a case was played.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CounterDelta {
    /// Packets denied, by what denied them.
    pub denied: BTreeMap<String, u64>,
    /// Packets dropped on all ports, by reason.
    pub dropped: BTreeMap<String, u64>,
}

/// A lab with a running switch. Fields are dropped in this order.
pub(super) struct Rig {
    // Who asks for no answers any more, then the switch, then where it ran.
    answerer: Responder,
    switch: Switch,
    lab: Lab,
    places: Placement,
    /// Where each place is in the lab.
    sites: Vec<Pod>,
    attached: BTreeMap<PodName, Site>,
    calls: AtomicU32,
}

impl Rig {
    pub(super) fn up(spec: &LiveSpec, places: Placement) -> Result<Rig, LabError> {
        let addresses = places.addresses();
        let names: Vec<String> = (0..addresses.len()).map(site_name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let plan = LabSpec::of(&names)?;
        let given = plan.pods.iter().cloned().zip(addresses).collect();
        let mut lab = Lab::up(&LabSpec { workers: spec.workers, given, ..plan })?;
        let sites: Vec<Pod> = lab.pods().collect();
        let services = sites.iter().enumerate();
        let services: Vec<_> =
            services.map(|(place, site)| (site.clone(), places.services(place).collect())).collect();
        let answerer = Responder::start(&services)?;
        let switch = SwitchSpec { config: outside_config(&sites[OUTSIDE]), ..SwitchSpec::of(&spec.program) };
        let switch = Switch::start(&mut lab, &switch)?;
        let stage =
            Rig { answerer, switch, lab, places, sites, attached: BTreeMap::new(), calls: AtomicU32::new(0) };
        stage.open_ports()?;
        Ok(stage)
    }

    /// Plays a case.
    pub(super) fn play(&mut self, case: &LiveCase) -> Result<LiveResult, LabError> {
        self.set(case)?;
        let before = self.switch.client().counters()?;
        let mut outcomes = vec![];
        for probes in case.probes.chunks(CALLS_MAX) {
            outcomes.extend(self.probe_all(case, probes)?);
        }
        let counted = CounterDelta::between(&before, &self.switch.client().counters()?);
        Ok(LiveResult { outcomes, counted })
    }

    /// Takes everything down, and says so when the switch did not end well.
    pub(super) fn down(self) -> Result<(), LabError> {
        drop(self.answerer);
        let status = self.switch.stop()?;
        if !status.success() {
            return Err(LabError::Switch(format!("the switch did not stop cleanly ({status})")));
        }
        let errors = self.lab.remove().errors;
        if errors.is_empty() { Ok(()) } else { Err(LabError::Plan(errors.join("; "))) }
    }

    fn open_ports(&self) -> Result<(), LabError> {
        for site in &self.sites[OUTSIDE + 1..] {
            let port = PortRequest { kind: PortKind::Pod, interface: None, vlan: None, addresses: vec![] };
            self.switch.client().put_port(&site.plan().host_interface, &port)?;
        }
        // The switch learns the Ethernet address outside from the first frame that comes from there.
        match ping(&self.sites[OUTSIDE], GATEWAY_V4.into(), PATIENCE)? {
            Outcome::Allowed => Ok(()),
            other => Err(LabError::Switch(format!("the switch does not answer from outside: ping {other}"))),
        }
    }

    /// Attaches the pods of a case and loads its tables.
    fn set(&mut self, case: &LiveCase) -> Result<(), LabError> {
        let client = self.switch.client();
        let place = |(pod, addresses): (&PodName, &Vec<IpAddr>)| {
            // The places were planned from these very addresses.
            self.places.of_pod(addresses).map(|place| (pod.clone(), place))
        };
        let wanted: BTreeMap<PodName, Site> = case.pods_to_make().filter_map(place).collect();
        for pod in self.attached.iter().filter(|(pod, place)| wanted.get(pod) != Some(place)) {
            client.delete_pod(pod.0)?;
        }
        // Of a case that takes the place of another one, tables may know none of the pods that both have.
        client.put_tables_that_close(&case.tables)?;
        for (pod, place) in wanted.iter().filter(|(pod, place)| self.attached.get(pod) != Some(place)) {
            let plan = self.sites[*place].plan();
            let request = PodRequest {
                port: plan.host_interface.clone(),
                addresses: plan.addresses.clone(),
                mac: Some(plan.mac),
            };
            client.put_pod(pod, &request)?;
        }
        self.attached = wanted;
        Ok(())
    }

    /// Calls all at once, since those that are denied take their time.
    fn probe_all(&self, case: &LiveCase, probes: &[LiveProbe]) -> Result<Vec<Option<Outcome>>, LabError> {
        thread::scope(|scope| {
            let calls: Vec<_> =
                probes.iter().map(|probe| scope.spawn(move || self.probe_one(case, probe))).collect();
            calls.into_iter().map(|call| call.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    fn probe_one(&self, case: &LiveCase, probe: &LiveProbe) -> Result<Option<Outcome>, LabError> {
        if !can_be_sent(case, &probe.flow) {
            return Ok(None);
        }
        let site = &self.sites[self.places.of_address(case, probe.flow.src)];
        let patience = if probe.expect == Verdict::Allow { PATIENCE } else { SILENCE };
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        call(site, &probe.flow, number, patience).map(Some)
    }
}

fn site_name(place: Site) -> String {
    if place == OUTSIDE { "outside".to_owned() } else { format!("place{place}") }
}

/// Whatever is no pod's is outside: behind a host port, whose own address no case uses.
fn outside_config(site: &Pod) -> String {
    let interface = &site.plan().host_interface;
    let port = format!(
        "[[ports]]\nname = \"{OUTSIDE_PORT}\"\nkind = \"host\"\ninterface = \"{interface}\"\naddresses = [\"{NODE}\"]\n"
    );
    let route = |prefix: &str| format!("[[routes]]\nprefix = \"{prefix}\"\nport = \"{OUTSIDE_PORT}\"\n");
    port + &route("0.0.0.0/0") + &route("::/0")
}

impl CounterDelta {
    fn between(before: &CountersReport, after: &CountersReport) -> CounterDelta {
        CounterDelta {
            denied: grown(&denied(before), denied(after)),
            dropped: grown(&dropped(before), dropped(after)),
        }
    }
}

fn denied(counters: &CountersReport) -> BTreeMap<String, u64> {
    let denials = counters.decisions.iter().filter(|decision| decision.verdict == Verdict::Deny);
    sums(denials.map(|denial| (denial.origin.to_string(), denial.packets)))
}

fn dropped(counters: &CountersReport) -> BTreeMap<String, u64> {
    sums(counters.ports.values().flat_map(|port| port.drops.clone()))
}

fn sums(counts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    counts.fold(BTreeMap::new(), |mut sums, (what, packets)| {
        *sums.entry(what).or_default() += packets;
        sums
    })
}

fn grown(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let less = |(what, packets): (String, u64)| {
        let packets = packets.saturating_sub(before.get(&what).copied().unwrap_or(0));
        (packets > 0).then_some((what, packets))
    };
    after.into_iter().filter_map(less).collect()
}

impl fmt::Display for CounterDelta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = 0;
        for (what, packets) in &self.denied {
            writeln!(f, "{packets} denied: {what}")?;
            lines += 1;
        }
        for (reason, packets) in &self.dropped {
            writeln!(f, "{packets} dropped: {reason}")?;
            lines += 1;
        }
        if lines == 0 { writeln!(f, "no packet denied, none dropped") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_grew_is_told() {
        let counts =
            |list: &[(&str, u64)]| sums(list.iter().map(|(what, count)| ((*what).to_owned(), *count)));
        let dropped = grown(&counts(&[("a", 2), ("b", 3)]), counts(&[("a", 2), ("b", 5), ("c", 1)]));
        let counted = CounterDelta { denied: BTreeMap::new(), dropped };
        assert_eq!(counted.to_string(), "2 dropped: b\n1 dropped: c\n");
        assert_eq!(CounterDelta::default().to_string(), "no packet denied, none dropped\n");
    }
}
