//! Egress isolation that blocks DNS: pods may connect to some addresses, but not to UDP port 53.
//!
//! Pods without any egress rule are not reported: their policies deny all egress on purpose.

use std::collections::{BTreeMap, HashSet};

use super::finding::{Check, LintFinding};
use super::objects::{LintObjects, selects};
use crate::net::flow::Protocol;
use crate::policy::evaluate::isolation;
use crate::policy::objects::{
    ClusterAction, ClusterPort, NetworkPolicy, NetworkPolicyRule, Pod, PortMatch, Ports, Tier,
};
use crate::tables::{Direction, PodName, PolicyRef};

const DNS: u16 = 53;

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    let mut blocked: BTreeMap<PolicyRef, Vec<&PodName>> = BTreeMap::new();
    let mut isolating: BTreeMap<&PodName, (&Pod, Vec<&NetworkPolicy>)> = BTreeMap::new();
    for policy in &objects.network {
        if isolation::rules(policy, Direction::Egress).is_none() {
            continue;
        }
        let pods = objects.pods.of_namespace(&policy.namespace, &policy.pod_selector);
        for pod in pods.filter(|pod| selects(policy, pod)) {
            isolating.entry(&pod.name).or_insert((pod, Vec::new())).1.push(policy);
        }
    }
    let names = UdpPortNames::of(objects);
    for (pod, isolating) in isolating.into_values() {
        let rules = || isolating.iter().flat_map(|policy| policy.egress.iter().flatten());
        if rules().next().is_none()
            || rules().any(|rule| allows_dns(rule, &names))
            || admin_accepts_dns(objects, pod)
        {
            continue;
        }
        for policy in
            isolating.iter().filter(|policy| policy.egress.as_ref().is_some_and(|rules| !rules.is_empty()))
        {
            blocked.entry(isolation::name(policy)).or_default().push(&pod.name);
        }
    }
    for (policy, pods) in blocked {
        let others = if pods.len() > 1 { format!(" and {} more", pods.len() - 1) } else { String::new() };
        let message = format!(
            "blocks DNS: pod {}{others} may connect to some places, but to UDP port {DNS} nowhere",
            pods[0]
        );
        found.push(LintFinding {
            policy: policy.into(),
            path: "spec.egress".to_owned(),
            check: Check::BlocksDns,
            message,
        });
    }
}

/// Names of UDP ports of the pods that are read: of port 53, and of others.
struct UdpPortNames<'a> {
    of_dns: HashSet<&'a str>,
    of_others: HashSet<&'a str>,
}

impl<'a> UdpPortNames<'a> {
    fn of(objects: &LintObjects<'a>) -> UdpPortNames<'a> {
        let mut names = UdpPortNames { of_dns: HashSet::new(), of_others: HashSet::new() };
        for port in objects.pods.all().flat_map(|pod| &pod.ports) {
            if let (Protocol::UDP, Some(name)) = (port.protocol, &port.name) {
                let of = if port.port == DNS { &mut names.of_dns } else { &mut names.of_others };
                of.insert(name);
            }
        }
        names
    }

    /// Whether a port of this name may be 53: that of a pod is, or no pod that is read has it.
    fn may_be_dns(&self, name: &str) -> bool {
        self.of_dns.contains(name) || !self.of_others.contains(name)
    }
}

/// Tests whether a rule allows UDP 53 to any peer.
fn allows_dns(rule: &NetworkPolicyRule, names: &UdpPortNames<'_>) -> bool {
    match &rule.ports {
        Ports::All => true,
        Ports::Any(ports) => ports.iter().any(|port| match port {
            PortMatch::Range { protocol, first, last } => {
                *protocol == Protocol::UDP && (*first..=*last).contains(&DNS)
            }
            PortMatch::Named { protocol, name } => *protocol == Protocol::UDP && names.may_be_dns(name),
        }),
    }
}

fn admin_accepts_dns(objects: &LintObjects<'_>, pod: &Pod) -> bool {
    let admin = objects.cluster.iter().filter(|policy| policy.tier == Tier::Admin);
    let of_pod = admin.filter(|policy| objects.evaluator.scope_selects(&policy.subject, pod));
    let accepting =
        of_pod.flat_map(|policy| &policy.egress).filter(|rule| rule.action == ClusterAction::Accept);
    accepting.into_iter().any(|rule| match &rule.ports {
        None => true,
        Some(ports) => ports.iter().any(|port| match port {
            ClusterPort::Range { protocol, first, last } => {
                *protocol == Protocol::UDP && (*first..=*last).contains(&DNS)
            }
            ClusterPort::Named { protocol, .. } => protocol.is_none_or(|protocol| protocol == Protocol::UDP),
        }),
    })
}
