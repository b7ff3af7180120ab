//! Rules on the repository's own text: imports between folders, circles, sizes of files and folders, unsafe
//! code, words that the packet path avoids, documents, the walks of the architecture, and beginnings of
//! sentences.
//!
//! Some rules have a list of places that still break them. A list only shrinks: a place outside it that
//! breaks the rule fails the test, and so does a place in it that keeps the rule.

mod circles;
mod documents;
mod imports;
mod loom;
mod modules;
mod packet_path;
mod sentences;
mod sizes;
mod text;
mod unsafe_code;
mod walks;

use std::collections::BTreeSet;

/// Compares the places that break a rule with the list of those that may: a message for each difference.
fn differences<'a>(
    rule: &str,
    offenders: impl IntoIterator<Item = &'a str>,
    exempt: &[&'a str],
) -> Vec<String> {
    let offenders: BTreeSet<&str> = offenders.into_iter().collect();
    let listed: BTreeSet<&str> = exempt.iter().copied().collect();
    let broken = offenders.difference(&listed).map(|place| format!("{place}: {rule}"));
    let kept =
        listed.difference(&offenders).map(|place| format!("{place} keeps the rule: take it off the list"));
    broken.chain(kept).collect()
}
