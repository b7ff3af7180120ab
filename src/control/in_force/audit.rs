//! Audited policies: their tables, and the flows that they would deny.

use std::sync::Arc;

use crate::control::ApiError;
use crate::control::protocol::{AuditPatch, AuditReport, AuditTables};
use crate::control::state::State;
use crate::control::switch::Switch;
use crate::dataplane::CandidateTables;
use crate::ids::Generation;
use crate::limits::AUDIT_POLICIES_MAX;
use crate::tables::{PolicyRef, RuleTables, TablesError};

impl Switch {
    /// Loads audited policies, and tables in which they are enforced too, in place of earlier ones. `base` is any generation
    /// since the tables in force were loaded. Tables that failed to compile give the reason: then no flow is judged.
    pub fn load_audit(
        &self,
        base: Generation,
        policies: Vec<PolicyRef>,
        tables: Result<RuleTables, String>,
    ) -> Result<(), ApiError> {
        self.load_audit_of(None, base, policies, tables)
    }

    /// Loads an audit, in place of the one with this revision or of any.
    fn load_audit_of(
        &self,
        of: Option<u64>,
        base: Generation,
        policies: Vec<PolicyRef>,
        tables: Result<RuleTables, String>,
    ) -> Result<(), ApiError> {
        check_policies(&policies)?;
        if let Ok(tables) = &tables {
            tables.check()?;
        }
        let _writer = self.lock_writer();
        let state = self.state.load();
        check_base(&state, base)?;
        if let Some(of) = of {
            self.check_revision(of)?;
        }
        self.audit.load(state.tables_since, policies, tables, self.flows_evicted());
        Ok(())
    }

    /// The tables of the audit, if it has this revision.
    fn check_revision(&self, of: u64) -> Result<Arc<RuleTables>, ApiError> {
        let (current, tables) = self.audit.tables().unzip();
        let tables = tables.flatten().filter(|_| current == Some(of));
        tables.ok_or(ApiError::AuditRevision { of, current })
    }

    /// Loads audited policies on behalf of a client of the control socket.
    pub fn put_audit(&self, audit: AuditTables) -> Result<AuditReport, ApiError> {
        let AuditTables { base, policies, tables } = audit;
        self.load_audit(base, policies, Ok(tables))?;
        Ok(self.audit_report())
    }

    /// Changes the tables of the audited policies.
    pub fn patch_audit(&self, patch: AuditPatch) -> Result<AuditReport, ApiError> {
        let AuditPatch { base, of, policies, diff } = patch;
        let mut tables = RuleTables::clone(&*self.check_revision(of)?);
        tables.apply(&diff);
        self.load_audit_of(Some(of), base, policies, Ok(tables))?;
        Ok(self.audit_report())
    }

    /// Forgets the audit: no policy is audited.
    pub fn clear_audit(&self) {
        self.audit.forget();
    }

    /// Tests whether a policy is audited.
    pub fn has_audit(&self) -> bool {
        self.audit.base().is_some()
    }

    /// Tests whether there is an audit that stands beside the tables in force.
    pub fn has_current_audit(&self) -> bool {
        self.audit.base() == Some(self.state.load().tables_since)
    }

    /// Reports on the audited policies.
    pub fn audit_report(&self) -> AuditReport {
        self.audit.report(&self.state.load(), self.flows_evicted())
    }

    /// Judges all flows by the audited policies, if there are some and it is time.
    pub(in crate::control) fn walk_audit(&self, workers: &dyn CandidateTables) {
        // The thread of the walk collects samples, too, and must not wait for a change.
        let settled = || (!self.is_changing()).then(|| self.state.load_full());
        self.audit.walk(&self.state.load_full(), workers, settled);
    }

    fn flows_evicted(&self) -> u64 {
        self.dataplane.workers().map_or(0, |workers| workers.candidates().flows_evicted())
    }
}

fn check_base(state: &State, base: Generation) -> Result<(), ApiError> {
    if state.tables.is_none() {
        return Err(ApiError::NoBase);
    }
    if !(state.tables_since..=state.generation).contains(&base) {
        return Err(TablesError::Base { base, current: state.generation }.into());
    }
    Ok(())
}

fn check_policies(policies: &[PolicyRef]) -> Result<(), ApiError> {
    let reason = match policies.len() {
        0 => "name the audited policies; DELETE ends the audit".to_owned(),
        1..=AUDIT_POLICIES_MAX => return Ok(()),
        count => format!("{count} policies are in audit mode, and at most {AUDIT_POLICIES_MAX} may be"),
    };
    Err(ApiError::Field { field: "policies", reason })
}
