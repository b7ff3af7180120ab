//! The known name that a misspelled one may stand for: errors about unknown names suggest it.

use std::fmt::Display;

/// Longest name that is compared: Kubernetes has no longer ones, and a comparison costs the product of the lengths.
const NAME_BYTES_MAX: usize = 512;
/// Least similarity, where 1 is equality.
const SIMILARITY_MIN: f64 = 0.6;

/// Similarity of the same name in two namespaces.
const ELSEWHERE: f64 = 0.9;

/// Most similar one of the known names, if there is a similar one. Names may have a namespace in front of `/`.
pub(crate) fn nearest<T: Display>(name: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let scored = known.into_iter().map(|known| (similarity(name, &known.to_string()), known));
    let near = scored.filter(|(similarity, _)| *similarity > SIMILARITY_MIN);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

fn similarity(name: &str, known: &str) -> f64 {
    if name.len().max(known.len()) > NAME_BYTES_MAX {
        return 0.0;
    }
    match (name.rsplit_once('/'), known.rsplit_once('/')) {
        // A common namespace makes no names similar.
        (Some((of, name)), Some((of_known, known))) if of == of_known => {
            strsim::normalized_damerau_levenshtein(name, known)
        }
        (Some((_, name)), Some((_, known))) if name == known => ELSEWHERE,
        _ => strsim::normalized_damerau_levenshtein(name, known),
    }
}

/// Part of an error that names it; empty for none.
pub(crate) fn hint<T: Display>(nearest: Option<&T>) -> String {
    nearest.map(|known| format!(", the nearest is {known}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested_and_a_strange_or_long_one_is_not() {
        let known = ["default/db", "default/web", "kube-system/coredns"];
        assert_eq!(nearest("default/dbx", known), Some("default/db"));
        assert_eq!(nearest("kube-sytem/coredns", known), Some("kube-system/coredns"));
        assert_eq!(nearest("shop/db", known), Some("default/db"));
        assert_eq!(nearest("default/nobody", known), None);
        assert_eq!(nearest(&"default/db".repeat(100), known), None);
        assert_eq!(hint(nearest("default/dbx", known).as_ref()), ", the nearest is default/db");
    }
}
