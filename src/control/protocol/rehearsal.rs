//! Messages about candidate tables: shadowed policy and audited policies, and what they would change.

use serde::{Deserialize, Serialize};

use super::PolicyOrigin;
use crate::ids::Generation;
use crate::net::flow::Protocol;
use crate::tables::{PolicyRef, RuleOrigin, RuleTables, TablesDiff, Verdict};

/// Report on candidate tables beside those in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// Origin of the candidate.
    pub origin: PolicyOrigin,
    /// Time of its load, seconds since 1970.
    pub since_unix_s: u64,
    /// Pods of the candidate.
    pub pods: usize,
    /// Rules of the candidate.
    pub rules: usize,
    /// Complete walks over the flow table since then.
    pub walks: u64,
    /// Flows of the last walk.
    pub flows: u64,
    /// Flows that the table has evicted since the load: walks may have missed them.
    pub evicted: u64,
    /// Connections on which verdicts differ, the latest first.
    pub disagreements: Vec<ShadowDisagreement>,
    /// Disagreements of further connections, which found no place.
    pub left_out: u64,
    /// Sampled denied packets that were not judged, because pods came and went.
    #[serde(default)]
    pub unjudged: u64,
}

/// Connections between the same ends, to the same port, on which the candidate and the tables in force differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowDisagreement {
    /// Pod, or address, that opens the connections.
    pub source: String,
    /// Pod, or address, of the other end.
    pub destination: String,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination port; 0 for protocols without ports.
    pub port: u16,
    /// Decision of the tables in force.
    pub enforced: ShadowVerdict,
    /// Decision of the candidate.
    pub candidate: ShadowVerdict,
    /// Flows in the conntrack table, seen since the load.
    pub flows: u64,
    /// Flows of the last walk that run still.
    pub running: u64,
    /// Sampled packets that the tables in force denied.
    pub denied: u64,
    /// Last time that one was seen, seconds since 1970.
    pub last_seen_unix_s: u64,
}

/// Decision on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowVerdict {
    /// Verdict.
    pub verdict: Verdict,
    /// Origin of the decisive entry. `None` where the tables do not know a pod.
    pub decided_by: Option<RuleOrigin>,
}

/// Audited policies, and tables in which they are enforced too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditTables {
    /// Generation of the tables in force, which are compiled from the same objects without the audited policies.
    pub base: Generation,
    /// Audited policies.
    pub policies: Vec<PolicyRef>,
    /// Tables.
    pub tables: RuleTables,
}

/// Change of the audited policies and of their tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditPatch {
    /// Generation of the tables in force.
    pub base: Generation,
    /// [`AuditReport::revision`] of the audit that the difference applies to.
    pub of: u64,
    /// Audited policies after the change.
    pub policies: Vec<PolicyRef>,
    /// Difference to apply.
    pub diff: TablesDiff,
}

/// Report on the audited policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Number of the load or change of the audit; no other has it.
    pub revision: u64,
    /// Generation in which the tables came into force that the audit stands beside.
    pub base: Generation,
    /// Reason for which no flow is judged, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Audited policies by kind and name; none if no policy is audited.
    pub policies: Vec<AuditedPolicy>,
    /// Connections that would be denied, the latest first.
    pub denials: Vec<AuditDenial>,
    /// Flows of further connections, which found no place in the list. They count for their policies.
    pub left_out: u64,
    /// Complete walks over the flow table.
    pub walks: u64,
    /// Walks that do not count, because a change of tables, ports or pods was going on at their end.
    pub discarded: u64,
    /// Flows of the last walk.
    pub flows: u64,
    /// Flows of the last walk that would be denied and are not counted, because there are too many.
    pub uncounted: u64,
    /// Flows that the table has evicted since the beginning: walks may have missed them.
    pub evicted: u64,
}

/// Policy in audit mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedPolicy {
    /// Policy.
    pub policy: PolicyRef,
    /// Time since which the policy is audited, seconds since 1970.
    pub since_unix_s: u64,
    /// Flows that the policy would have denied since then.
    pub flows: u64,
    /// Flows of the last walk among them.
    pub running: u64,
}

/// Connections between the same ends, to the same port, that are allowed and would be denied by one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditDenial {
    /// Origin of the decision. It names an enforced policy where an audited rule passes the flow on to it.
    pub decided_by: Option<RuleOrigin>,
    /// Pod, or address, that opens the connections.
    pub source: String,
    /// Pod, or address, of the other end.
    pub destination: String,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination port; 0 for protocols without ports.
    pub port: u16,
    /// Flows in the conntrack table, seen since the beginning.
    pub flows: u64,
    /// Flows of the last walk.
    pub running: u64,
    /// Last time that one was seen, seconds since 1970.
    pub last_seen_unix_s: u64,
}
