//! Policies in audit mode of a directory: their tables, which the switch gets after those in force.

use super::{PolicyDirectory, Tables};
use crate::control::Switch;
use crate::limits::AUDIT_POLICIES_MAX;
use crate::policy::{Change, Options};

impl PolicyDirectory {
    /// Notes changes of objects for the tables of the audit.
    pub(super) fn note_audited(&mut self, changes: &[Change]) {
        if !changes.is_empty() {
            self.audit.note(changes);
            self.audit_published = None;
        }
    }

    /// Forgets the tables of the audit: the next publication compiles all objects.
    pub(super) fn reset_audit(&mut self) {
        self.audit.clear();
        self.audit_published = None;
    }

    /// Gives the switch the audit of the tables that it has published, or ends the audit if no policy is audited. An audit that
    /// does not compile changes nothing about the tables in force: the switch reports the reason.
    ///
    /// Returns whether the audit has changed.
    pub(super) fn publish_audit(&mut self, switch: &Switch) -> bool {
        let Some(base) = self.published else { return false };
        let is_compiled = matches!(self.tables, Tables::Compiled(_));
        let policies = if is_compiled { self.manifests.audited() } else { Vec::new() };
        if policies.is_empty() {
            let was_audited = self.audit_published.is_some() || switch.has_audit();
            self.reset_audit();
            switch.clear_audit();
            return was_audited;
        }
        if self.audit_published.as_ref() == Some(&policies) && switch.has_current_audit() {
            return false;
        }
        let options = Options { node: self.options.node.clone() };
        let tables = self.audit.compile(self.manifests.objects(), options);
        let loaded = switch.load_audit(base, policies.clone(), tables.clone());
        let reason = tables.err().or(loaded.as_ref().err().map(ToString::to_string));
        if let Some(reason) = reason {
            let directory = self.root.display();
            tracing::error!(%directory, "no flow is judged by the policies in audit mode: {reason}");
            if loaded.is_err() {
                let some = policies.iter().take(AUDIT_POLICIES_MAX).cloned().collect();
                // A second refusal is one of the base: other tables have come by the control socket.
                let _ = switch.load_audit(base, some, Err(reason));
            }
        }
        self.audit_published = Some(policies);
        true
    }
}
