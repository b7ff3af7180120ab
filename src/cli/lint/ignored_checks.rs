//! Annotations that silence checks for their objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::lint::{Check, LintFinding, LintSubject};
use crate::policy::parse::{IgnoredCheck, Location};

/// Reasons, by the object and the check that they silence. Adds a finding for each annotation that silences none.
pub(super) fn apply<'a>(
    ignored: &'a [IgnoredCheck],
    objects: &BTreeMap<LintSubject, &'a Location>,
    found: &mut Vec<LintFinding>,
) -> BTreeMap<(LintSubject, Check), &'a str> {
    let offset = |location: &'a Location| (location.source().name(), location.offset());
    let subjects: BTreeMap<(&str, usize), &LintSubject> =
        objects.iter().map(|(subject, location)| (offset(location), subject)).collect();
    let silenced: BTreeSet<(&LintSubject, Check)> =
        found.iter().map(|finding| (&finding.policy, finding.check)).collect();
    let mut reasons = BTreeMap::new();
    let mut without_effect = Vec::new();
    for annotation in ignored {
        let Some(&subject) = subjects.get(&offset(&annotation.object)) else { continue };
        let check = Check::ALL.into_iter().find(|check| check.name() == annotation.check);
        let message = match check {
            None => unknown(&annotation.check),
            Some(_) if annotation.reason.is_empty() => {
                "silences nothing without a reason: write one as the value of the annotation".to_owned()
            }
            Some(check) if !silenced.contains(&(subject, check)) => {
                format!("silences nothing: {} finds nothing here: remove the annotation", check.name())
            }
            Some(check) => {
                reasons.insert((subject.clone(), check), annotation.reason.as_str());
                continue;
            }
        };
        let path = format!("metadata.annotations[palisade.dev/ignore-{}]", annotation.check);
        without_effect.push(LintFinding {
            policy: subject.clone(),
            path,
            check: Check::IgnoredWithoutEffect,
            message,
        });
    }
    found.extend(without_effect);
    found.sort();
    reasons
}

fn unknown(name: &str) -> String {
    let distance = |check: &Check| strsim::damerau_levenshtein(name, check.name());
    let near = Check::ALL.into_iter().min_by_key(distance).filter(|check| distance(check) <= 4);
    let near = near.map(|check| format!(": did you mean {:?}?", check.name())).unwrap_or_default();
    format!("silences nothing: no check is named {name:?}{near}")
}
