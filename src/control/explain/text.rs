//! Explanations as text.

use std::fmt;

use super::{PathReport, SideReport};
use crate::control::protocol::hits_text;
use crate::tables::Verdict;

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.dropped.map(|reason| format!(" ({})", reason.name())).unwrap_or_default();
        writeln!(f, "{}{why}: {}", word(self.verdict), self.flow)?;
        for step in &self.steps {
            writeln!(f, "  {}{}", if step.passes { "" } else { "DROPPED: " }, step.text)?;
        }
        for (end, route) in self.ends.iter().zip(&self.routes) {
            if let Some(route) = route {
                writeln!(f, "  {end} now: route {route}")?;
            }
        }
        self.egress.iter().chain(&self.ingress).try_for_each(|side| side.fmt(f))?;
        self.audit.iter().try_for_each(|origin| writeln!(f, "  would be denied by {origin} (audit)"))
    }
}

impl fmt::Display for SideReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hits = hits_text(self.verdict, self.hits);
        writeln!(
            f,
            "  {} of {}: {}: {} ({hits})",
            self.direction,
            self.pod,
            word(self.verdict),
            self.reason
        )?;
        let Some(class) = self.peer_class else { return Ok(()) };
        writeln!(f, "    the table on addresses like the other end (class {class}):")?;
        self.row.iter().try_for_each(|span| {
            let hits = hits_text(span.verdict, span.hits);
            writeln!(f, "      {}: {}: {} ({hits})", span.ports, word(span.verdict), span.reason)
        })
    }
}

fn word(verdict: Verdict) -> &'static str {
    if verdict == Verdict::Allow { "allow" } else { "deny" }
}
