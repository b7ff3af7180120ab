//! Annotations that silence checks for their objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::manifests::Manifests;
use crate::nearest::nearest;
use crate::policy::lint::{Check, LintFinding, LintSubject};
use crate::policy::objects::Object;
use crate::policy::parse::Location;

/// Reasons, by the object and the check that they silence. Adds a finding for each annotation without effect.
pub(super) fn apply<'a>(
    manifests: &'a Manifests,
    objects: &'a BTreeMap<LintSubject, &Location>,
    found: &mut Vec<LintFinding>,
) -> BTreeMap<(&'a LintSubject, Check), &'a str> {
    let key = |location: &'a Location| (location.source().name(), location.offset());
    let subjects: BTreeMap<(&str, usize), &LintSubject> =
        objects.iter().map(|(subject, location)| (key(location), subject)).collect();
    let findings: BTreeSet<(&LintSubject, Check)> =
        found.iter().map(|finding| (&finding.policy, finding.check)).collect();
    let (mut reasons, mut without_effect) = (BTreeMap::new(), Vec::new());
    for annotation in &manifests.ignored_checks {
        let Some(&subject) = subjects.get(&key(&annotation.object)) else { continue };
        let check = Check::ALL.into_iter().find(|check| check.name() == annotation.check);
        let message = match check {
            None => unknown(&annotation.check),
            Some(_) if annotation.reason.is_empty() => {
                "silences nothing without a reason: write one as the value of the annotation".to_owned()
            }
            Some(check) if !findings.contains(&(subject, check)) => {
                // A check that lacks its objects says nothing about the annotation.
                if !has_run(check, manifests) {
                    continue;
                }
                format!(
                    "silences nothing, because {} finds nothing here: remove the annotation",
                    check.name()
                )
            }
            Some(check) => {
                reasons.insert((subject, check), annotation.reason.as_str());
                continue;
            }
        };
        let path = format!("metadata.annotations[palisade.dev/ignore-{}]", annotation.check);
        let policy = subject.clone();
        without_effect.push(LintFinding { policy, path, check: Check::IgnoredWithoutEffect, message });
    }
    drop(findings);
    found.extend(without_effect);
    reasons
}

/// Whether the manifests hold the objects that a check needs.
fn has_run(check: Check, manifests: &Manifests) -> bool {
    let has = |is: fn(&Object) -> bool| manifests.objects.iter().any(is);
    match check {
        Check::NameLabelOfNamespace => has(|object| matches!(object, Object::Namespace(_))),
        Check::BlockOfService => has(|object| matches!(object, Object::Service(_))),
        Check::PortOfService => manifests.has_pods() && has(|object| matches!(object, Object::Service(_))),
        Check::SelectsNoPod
        | Check::HostNetworkOrFinished
        | Check::PeerSelectsNothing
        | Check::NamedPortMissing
        | Check::BlockInPodNetwork
        | Check::BlocksDns
        | Check::ServiceSelectsNoPod => manifests.has_pods(),
        Check::RulesWithoutType
        | Check::NamedPortOfAddresses
        | Check::ShadowedRule
        | Check::ExceptWithoutEffect
        | Check::EmptyBlock
        | Check::TiedPriority
        | Check::IgnoredWithoutEffect => true,
    }
}

fn unknown(name: &str) -> String {
    let near = nearest(name, Check::ALL.map(Check::name));
    let near = near.map(|check| format!(": did you mean {check:?}?")).unwrap_or_default();
    format!("silences nothing: no check is named {name:?}{near}")
}
