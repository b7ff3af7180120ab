//! Services of the cluster: their resolver, and their publication after the tables.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::control::protocol::Unenforced;
use crate::limits::REJECTED_ERRORS_MAX;
use crate::policy::objects::Object;
use crate::policy::services::{Services, ServicesOptions};
use crate::policy::{Change, ObjectName};
use crate::source::kubernetes::target::{Target, TargetError};
use crate::tables::ServicesDiff;

/// Interval between attempts to load the Services.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Services of the cluster, and the state of their publication.
pub(in crate::source::kubernetes) struct ClusterServices {
    services: Services,
    /// Changes that the resolver does not have yet.
    changes: Vec<Change>,
    /// Whether all objects are listed on which Services depend.
    is_listed: bool,
    publication: Publication,
    /// First Services that are not served as written.
    issues: Vec<Unenforced>,
    next_load: Instant,
    next_verify: Instant,
    last_error: Option<String>,
}

/// Publication of the Services.
enum Publication {
    /// Switch has other Services.
    Unpublished,
    /// Switch has the Services without a difference.
    Changed(ServicesDiff),
    /// Switch has exactly these Services.
    Published,
}

impl ClusterServices {
    /// Creates a resolver without objects. The cluster has a controller that makes the slices.
    pub(in crate::source::kubernetes) fn new(node: Option<String>) -> ClusterServices {
        let now = Instant::now();
        ClusterServices {
            services: Services::new(ServicesOptions { node, derive_endpoints: false }),
            changes: Vec::new(),
            is_listed: false,
            publication: Publication::Unpublished,
            issues: Vec::new(),
            next_load: now,
            next_verify: now,
            last_error: None,
        }
    }

    /// Takes a change. Returns it if policy may depend on it.
    pub(in crate::source::kubernetes) fn take(&mut self, change: Change) -> Option<Change> {
        match &change {
            Change::Upsert(Object::Service(_) | Object::EndpointSlice(_))
            | Change::Remove(ObjectName::Service { .. } | ObjectName::EndpointSlice { .. }) => {
                self.changes.push(change);
                None
            }
            Change::Upsert(Object::Node(_)) | Change::Remove(ObjectName::Node(_)) => {
                self.changes.push(change.clone());
                Some(change)
            }
            _ => Some(change),
        }
    }

    /// Resolves the changes. `is_listed` tells whether all objects are listed on which Services depend.
    pub(in crate::source::kubernetes) fn apply(&mut self, is_listed: bool) {
        self.is_listed |= is_listed;
        if self.changes.is_empty() {
            return;
        }
        let difference = self.services.apply_all(std::mem::take(&mut self.changes));
        self.note_issues();
        if difference.is_empty() {
            return;
        }
        self.publication = match self.publication {
            Publication::Published => Publication::Changed(difference),
            _ => Publication::Unpublished,
        };
    }

    fn note_issues(&mut self) {
        let warnings = self.services.warnings_by_service().take(REJECTED_ERRORS_MAX);
        let issues: Vec<Unenforced> = warnings
            .map(|((namespace, name), warning)| {
                let warning = crate::printable::line(&warning);
                let (reason, consequence) = warning.split_once(": ").unwrap_or((&warning, ""));
                Unenforced {
                    kind: "Service".to_owned(),
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    reason: reason.to_owned(),
                    consequence: consequence.to_owned(),
                }
            })
            .collect();
        let known: BTreeSet<&str> = self.issues.iter().map(|issue| issue.reason.as_str()).collect();
        for Unenforced { reason, consequence, .. } in
            issues.iter().filter(|issue| !known.contains(issue.reason.as_str()))
        {
            tracing::warn!("{reason}: {consequence}");
        }
        self.issues = issues;
    }

    /// First Services that are not served as written.
    pub(in crate::source::kubernetes) fn issues(&self) -> impl Iterator<Item = &Unenforced> {
        self.issues.iter()
    }

    /// Number of warnings about Services that are not served as written.
    pub(in crate::source::kubernetes) fn issue_count(&self) -> usize {
        self.services.warning_count()
    }

    /// Notes that the switch may have lost the Services: the next publication loads all of them.
    pub(in crate::source::kubernetes) fn forget(&mut self) {
        self.publication = Publication::Unpublished;
    }

    /// Gives the switch, which has the tables, what it lacks. Compares its Services with these from time to time. Returns
    /// whether the switch may have lost the tables: it gets them before the Services.
    pub(in crate::source::kubernetes) fn publish(
        &mut self,
        target: &mut dyn Target,
        verify: Duration,
    ) -> bool {
        let now = Instant::now();
        if !self.is_listed || self.next_load > now {
            return false;
        }
        let result = match &self.publication {
            Publication::Published if self.next_verify > now => return false,
            Publication::Published => target.change_services(&ServicesDiff::default()),
            Publication::Changed(difference) => target.change_services(difference),
            Publication::Unpublished => {
                let table = self.services.table();
                let loaded = target.load_services(table);
                if loaded.is_ok() {
                    tracing::info!(ports = table.ports.len(), "all Services are loaded");
                }
                loaded
            }
        };
        self.next_verify = now + verify;
        match result {
            Ok(()) => {
                (self.publication, self.last_error) = (Publication::Published, None);
                return false;
            }
            Err(TargetError::OtherTables) => {
                tracing::info!(
                    "the switch has other Services than the last ones from here: it gets all of them"
                );
            }
            Err(TargetError::Refused(error)) => {
                self.next_load = now + RETRY_INTERVAL;
                if self.last_error.as_ref() != Some(&error) {
                    tracing::error!("the switch does not take the Services, and keeps those before: {error}");
                    self.last_error = Some(error);
                }
            }
        }
        self.publication = Publication::Unpublished;
        true
    }
}
