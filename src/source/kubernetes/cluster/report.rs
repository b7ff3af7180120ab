//! Report on the state of the agent.

use std::time::SystemTime;

use ipnet::IpNet;

use super::{Cluster, selects};
use crate::control::protocol::{SourceReport, Unenforced, UnfollowedKind};
use crate::limits::{POD_PREFIXES_MAX, REJECTED_ERRORS_MAX};
use crate::source::kubernetes::kinds::KINDS;

impl Cluster {
    /// `spec.podCIDRs` of this node, as many as a configuration may have.
    fn own_prefixes(&self) -> Vec<IpNet> {
        let own = self.options.node.as_ref().and_then(|name| self.nodes.get(name));
        own.map_or_else(Vec::new, |own| {
            own.prefixes.iter().take(POD_PREFIXES_MAX).map(IpNet::trunc).collect()
        })
    }

    /// Report for the switch.
    pub(in crate::source::kubernetes) fn report(&self, server: &str) -> SourceReport {
        let unix_seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let away = KINDS.iter().zip(&self.kinds).filter_map(|(kind, state)| {
            let (since, reason) = state.away.as_ref()?;
            let since_unix_s = unix_seconds(*since);
            let reason = match self.held.len() {
                held if held > 0 && state.is_stale && selects(kind) => {
                    format!("{reason}; {held} new or changed pods and namespaces wait for it")
                }
                _ => reason.clone(),
            };
            Some(UnfollowedKind { kind: kind.name.to_owned(), since_unix_s, reason })
        });
        let unlisted = KINDS.iter().zip(&self.kinds).filter(|(_, state)| !state.is_listed);
        let unenforced =
            self.issues.iter().take(REJECTED_ERRORS_MAX).map(|((index, key), issue)| Unenforced {
                kind: KINDS[*index].name.to_owned(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                reason: issue.message.clone(),
                consequence: issue.consequence.clone(),
            });
        let audit = self.audit.problem().map(|(policy, reason)| Unenforced {
            kind: policy.kind.to_string(),
            namespace: policy.namespace,
            name: policy.name,
            reason: reason.to_owned(),
            consequence: "no flow is judged by the policies in audit mode".to_owned(),
        });
        let (objects, policies) = self.counts();
        SourceReport {
            server: server.to_owned(),
            objects,
            policies,
            unlisted: unlisted.map(|(kind, _)| kind.name.to_owned()).collect(),
            away: away.collect(),
            refused: None,
            pod_prefixes: self.own_prefixes(),
            has_routes: false,
            unenforced: audit
                .into_iter()
                .chain(unenforced)
                .chain(self.services.issues().cloned())
                .take(REJECTED_ERRORS_MAX)
                .collect(),
            unenforced_left_out: (self.issues.len() + self.services.issue_count())
                .saturating_sub(REJECTED_ERRORS_MAX),
        }
    }
}
