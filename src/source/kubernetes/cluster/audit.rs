//! Policies in audit mode, and tables in which they are enforced too.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::super::object::prefixes_of;
use super::super::target::{Target, TargetError};
use crate::limits::AUDIT_POLICIES_MAX;
use crate::policy::objects::Object;
use crate::policy::{Change, Compiler, ObjectName, policy_of};
use crate::tables::{PolicyRef, RuleTables};
use crate::threads;

/// Most prefixes in the `ipBlock`s of policies in audit mode: as many as the enforced policies of a namespace may have.
const PREFIXES_MAX: usize = 20_000;

/// Policies in audit mode of a cluster.
#[derive(Default)]
pub(in crate::source::kubernetes) struct Audit {
    policies: BTreeMap<ObjectName, Object>,
    /// Compiler of all objects, the audited policies among them, while there are any.
    compiler: Option<Box<Compiler>>,
    /// Whether the switch has an audit from here.
    is_published: bool,
    /// Whether the switch has the audit that belongs to its tables.
    is_current: bool,
    next: Option<Instant>,
    problem: Option<String>,
}

impl Audit {
    /// Takes the changes of objects that the compiler of the tables in force gets, too.
    pub(super) fn take(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Upsert(object) if object.is_audited() => {
                    self.policies.insert(ObjectName::of(object), object.clone());
                }
                Change::Upsert(object) if !self.policies.is_empty() => {
                    self.policies.remove(&ObjectName::of(object));
                }
                Change::Remove(name) => _ = self.policies.remove(name),
                Change::Upsert(_) => {}
            }
        }
        if changes.is_empty() {
            return;
        }
        self.is_current = false;
        if self.policies.is_empty() {
            self.compiler = None;
        }
        if let Some(mut compiler) = self.compiler.take() {
            self.compiler = contained(|| {
                drop(compiler.apply_all(changes.iter().cloned()));
                compiler
            })
            .ok();
        }
    }

    /// Notes that the switch has got all tables anew.
    pub(in crate::source::kubernetes) fn forget(&mut self) {
        self.is_current = false;
        // The switch may have the audit of an earlier agent.
        self.is_published = true;
    }

    /// Loads the audit beside the tables in force, which `enforced` has compiled, at most once in `interval`.
    pub(super) fn publish(&mut self, enforced: &Compiler, target: &mut dyn Target, interval: Duration) {
        let now = Instant::now();
        if self.is_current || self.next.is_some_and(|next| next > now) {
            return;
        }
        self.next = Some(now + interval);
        if self.policies.is_empty() {
            self.problem = None;
            let ended = !self.is_published || target.end_audit().is_ok();
            (self.is_current, self.is_published) = (ended, !ended);
            return;
        }
        let loaded = self.compile(enforced).and_then(|tables| {
            let policies: Vec<PolicyRef> = self.policies.values().filter_map(policy_of).collect();
            match target.audit(&policies, tables) {
                // The switch has newer tables than these stand beside: they are loaded again first.
                Err(TargetError::OtherTables) => Ok(false),
                Err(TargetError::Refused(reason)) => Err(reason),
                Ok(()) => Ok(true),
            }
        });
        match loaded {
            Ok(is_current) => {
                (self.is_current, self.problem) = (is_current, None);
                self.is_published |= is_current;
            }
            Err(reason) => {
                if self.problem.as_ref() != Some(&reason) {
                    tracing::error!("no flow is judged by the policies in audit mode: {reason}");
                    self.problem = Some(reason);
                }
            }
        }
    }

    /// Reason for which no flow is judged, and one of the policies.
    pub(super) fn problem(&self) -> Option<(PolicyRef, &str)> {
        let first = self.policies.values().find_map(policy_of)?;
        Some((first, self.problem.as_deref()?))
    }

    fn compile(&mut self, enforced: &Compiler) -> Result<RuleTables, String> {
        if self.policies.len() > AUDIT_POLICIES_MAX {
            return Err(format!("more than {AUDIT_POLICIES_MAX} policies are in audit mode"));
        }
        let prefixes = self.policies.values().map(|policy| match policy {
            Object::NetworkPolicy(policy) => prefixes_of(policy),
            _ => 0,
        });
        if prefixes.sum::<usize>() > PREFIXES_MAX {
            self.compiler = None;
            return Err(format!("their ipBlocks have more than {PREFIXES_MAX} prefixes"));
        }
        let compiler = match self.compiler.take() {
            Some(compiler) => compiler,
            None => contained(|| {
                let mut compiler = Box::new(enforced.clone());
                drop(compiler.apply_all(self.policies.values().cloned().map(Change::Upsert)));
                compiler
            })?,
        };
        Ok(self.compiler.insert(compiler).tables().clone())
    }
}

/// Runs the compiler, whose panic is an error.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| format!("internal error of the policy compiler: {}", threads::message(&*panic)))
}
