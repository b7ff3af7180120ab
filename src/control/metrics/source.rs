//! Metrics of the agent that follows the Kubernetes API.

use super::exposition::Exposition;
use super::exposition::Kind::Gauge;
use crate::control::protocol::SourceStatus;

/// Describes the state of the agent.
pub(super) fn describe(out: &mut Exposition, SourceStatus { report, age_s }: &SourceStatus) {
    out.family(
        Gauge,
        "palisade_source_objects",
        "objects",
        "Objects of the Kubernetes API that the agent knows.",
    )
    .sample(&[], report.objects as u64);
    out.family(Gauge, "palisade_source_report_age_seconds", "seconds", "Time since the agent has reported.")
        .sample(&[], *age_s);
    out.family(
        Gauge,
        "palisade_source_unlisted_kinds",
        "kinds",
        "Kinds of objects that the agent has not listed yet.",
    )
    .sample(&[], report.unlisted.len() as u64);
    out.family(
        Gauge,
        "palisade_source_tables_refused",
        "",
        "1 while the switch does not take the tables of the agent, and keeps those before.",
    )
    .sample(&[], u64::from(report.refused.is_some()));
    let unenforced = report.unenforced.len() + report.unenforced_left_out;
    out.family(
        Gauge,
        "palisade_source_unenforced_objects",
        "objects",
        "Objects that are not enforced as written.",
    )
    .sample(&[], unenforced as u64);
    let mut away = out.family(
        Gauge,
        "palisade_source_away_since_timestamp_seconds",
        "seconds",
        "Time since which objects of a kind are not followed, since 1970: the tables before stay in force.",
    );
    for kind in &report.away {
        away.sample(&[("kind", &kind.kind)], kind.since_unix_s);
    }
}
