//! Text form of an explanation.

use std::fmt::{self, Write};

use super::explanation::{ExemptPod, Exemption, Explanation, PolicyTrace, RuleTrace, SideExplanation};
use super::mismatch::Mismatch;
use crate::tables::Verdict;

/// Maximum number of mismatches shown for peers or ports of a rule.
const MISMATCHES_SHOWN: usize = 4;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, flow) = (word(self.verdict), &self.flow);
        write!(f, "{verdict}: {} from {} to {}", flow.protocol, self.from, self.to)?;
        if flow.protocol.has_ports() {
            write!(f, " port {}", flow.dst_port)?;
        }
        writeln!(f)?;
        if let Some(pod) = &self.hairpin {
            if self.egress.is_none() && self.ingress.is_none() {
                return writeln!(f, "  {pod} is both ends: a pod always reaches itself");
            }
            writeln!(f, "  {pod} is both ends: through a Service policies of the cluster apply to it")?;
        }
        self.exempt.iter().try_for_each(|pod| writeln!(f, "  {pod}"))?;
        if self.egress.is_none() && self.ingress.is_none() {
            writeln!(f, "  neither end is a pod that policy judges")?;
        }
        self.egress.iter().chain(&self.ingress).try_for_each(|side| side.fmt(f))?;
        self.audit.iter().try_for_each(|origin| writeln!(f, "  would be denied by {origin} (audit)"))
    }
}

impl fmt::Display for ExemptPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Exemption::HostNetwork => {
                "it is on the host's network (spec.hostNetwork): its traffic is its node's"
            }
            Exemption::Finished => "it has finished (status.phase): its addresses may be another pod's",
        };
        write!(f, "no policy is asked about pod {}: {why}", self.pod)
    }
}

impl fmt::Display for SideExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} of {}: {}: {}", self.direction, self.pod, word(self.verdict), self.reason)?;
        self.policies.iter().try_for_each(|policy| policy.fmt(f))
    }
}

impl fmt::Display for PolicyTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "    {}", self.policy)?;
        self.location.iter().try_for_each(|place| write!(f, " ({place})"))?;
        writeln!(
            f,
            "{}",
            match (self.evaluated, self.preempted) {
                (true, _) => "",
                (false, true) =>
                    ", not asked: a NetworkPolicy isolates the pod, which preempts the baseline tier",
                (false, false) => ", not asked: decided before",
            }
        )?;
        if self.rules.is_empty() {
            writeln!(f, "      isolates and has no rules")?;
        }
        self.rules.iter().try_for_each(|rule| rule.fmt(f))
    }
}

impl fmt::Display for RuleTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "      [{}]", self.index)?;
        self.name.iter().try_for_each(|name| write!(f, " {name:?}"))?;
        write!(f, " {}: ", self.action)?;
        if self.matches {
            return writeln!(f, "matches");
        }
        let near = if self.is_near() { " (came close)" } else { "" };
        writeln!(f, "no{near}: {}", halves(&self.peer_mismatches, &self.port_mismatches))
    }
}

fn halves(peers: &[Mismatch], ports: &[Mismatch]) -> String {
    let halves = [peers, ports].into_iter().filter(|half| !half.is_empty());
    halves.map(listed).collect::<Vec<_>>().join("; and ")
}

fn listed(mismatches_of: &[Mismatch]) -> String {
    let mut text = mismatches_of
        .iter()
        .take(MISMATCHES_SHOWN)
        .map(|mismatch| mismatch.text.clone())
        .collect::<Vec<_>>()
        .join("; ");
    if mismatches_of.len() > MISMATCHES_SHOWN {
        // Writing to a string cannot fail.
        let _ = write!(text, "; and {} more", mismatches_of.len() - MISMATCHES_SHOWN);
    }
    text
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}
