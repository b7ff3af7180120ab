//! Names that follow from the content of the tables alone, so that two states name the same thing alike.

use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin, Verdict};

/// Most characters of a name: the kernel takes 255 (`NFT_NAME_MAXLEN`).
const NAME_MAX: usize = 120;
/// Most bytes of a comment: nftables takes 128 with the final NUL.
const COMMENT_MAX: usize = 120;

/// FNV-1a in 64 bits, as 16 hexadecimal digits.
pub(crate) fn digest(text: &str) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Text as an identifier: other characters are replaced, and a digest follows where the text is changed.
pub(crate) fn identifier(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    if text.len() <= NAME_MAX && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let plain: String = text.chars().map(|c| if is_plain(c) { c } else { '_' }).take(NAME_MAX - 20).collect();
    format!("{plain}-{}", digest(text))
}

/// Text for a quoted comment.
pub(crate) fn comment(text: &str) -> String {
    let safe = |c: char| if c == '"' || c == '\\' || !(' '..='~').contains(&c) { '_' } else { c };
    if text.chars().count() <= COMMENT_MAX {
        return text.chars().map(safe).collect();
    }
    text.chars().map(safe).take(COMMENT_MAX - 3).chain("...".chars()).collect()
}

/// Name of a policy: its kind in short, then its own name.
pub(super) fn policy(policy: &PolicyRef) -> String {
    let kind = match policy.kind {
        PolicyKind::NetworkPolicy => return format!("np/{}/{}", policy.namespace, policy.name),
        PolicyKind::ClusterNetworkPolicy => "cnp",
        PolicyKind::AdminNetworkPolicy => "anp",
        PolicyKind::BaselineAdminNetworkPolicy => "banp",
    };
    format!("{kind}/{}", policy.name)
}

/// Name of a rule.
pub(super) fn rule(origin: &RuleOrigin) -> String {
    match origin {
        RuleOrigin::Rule { policy: of, direction, index, .. } => {
            format!("{}/{}{index}", policy(of), short(*direction))
        }
        RuleOrigin::DefaultDeny { policies, .. } => several(policies),
        RuleOrigin::NotIsolated { .. } => "open".to_owned(),
        RuleOrigin::OwnNode => "own-node".to_owned(),
    }
}

/// Name of the counter of a decision.
pub(crate) fn counter(origin: &RuleOrigin, verdict: Verdict) -> String {
    let verdict = match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    };
    // Two origins may have one name.
    identifier(&format!("{verdict}/{}/{}", rule(origin), &digest(&format!("{origin:?}"))[..8]))
}

/// Name of a list of policies.
fn several(policies: &[PolicyRef]) -> String {
    match policies {
        [only] => policy(only),
        [first, others @ ..] => {
            let all: Vec<String> = policies.iter().map(policy).collect();
            format!("{}/and-{}-more-{}", policy(first), others.len(), &digest(&all.join(" "))[..8])
        }
        [] => "none".to_owned(),
    }
}

/// Direction in a name.
pub(crate) fn short(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_name_is_replaced_and_stays_distinct() {
        assert_eq!(identifier("np/shop/web.v1/in0"), "np/shop/web.v1/in0");
        let (a, b) = (identifier("np/a b"), identifier("np/a;b"));
        assert!(a.starts_with("np/a_b-") && b.starts_with("np/a_b-") && a != b, "{a} {b}");
        assert!(identifier(&"x".repeat(500)).len() <= NAME_MAX);
        assert_eq!(comment("a\"\\\n; é"), "a___; _");
    }

    #[test]
    fn a_digest_is_that_of_fnv() {
        // Vectors of draft-eastlake-fnv.
        assert_eq!([digest(""), digest("foobar")], ["cbf29ce484222325", "85944171f73967e8"]);
    }
}
