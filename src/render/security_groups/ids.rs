//! Identifiers that follow from names and content alone.

use crate::render::plan::digest;

/// Longest name of a security group or of a resource: the object names of Kubernetes have at most 253 characters, the
/// names of Neutron 255.
const NAME_MAX: usize = 253;

/// Identifier in the form of a UUID, from parts that stay distinct: version 8 of RFC 9562 section 5.8 over FNV-1a in 128
/// bits.
pub(super) fn uuid(parts: &[&str]) -> String {
    let text: Vec<String> = parts.iter().map(|part| format!("{}:{part}", part.len())).collect();
    let hash = fnv(&text.concat());
    let version = hash & !(0xf << 76) | 8 << 76;
    let hex = format!("{:032x}", version & !(0b11 << 62) | 0b10 << 62);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Name with a prefix. The end of a long name is replaced by a digest.
pub(super) fn name(prefix: &str, name: &str) -> String {
    let full = format!("{prefix}{name}");
    if full.chars().count() <= NAME_MAX {
        return full;
    }
    let head: String = full.chars().take(NAME_MAX - 17).collect();
    format!("{head}-{}", digest(&full))
}

/// FNV-1a in 128 bits.
fn fnv(text: &str) -> u128 {
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13b);
    text.as_bytes().iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_fnv() {
        // Vectors of draft-eastlake-fnv.
        assert_eq!(format!("{:032x}", fnv("a")), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(format!("{:032x}", fnv("foobar")), "343e1662793c64bf6f0d3597ba446f18");
    }

    #[test]
    fn an_identifier_has_the_form_of_a_uuid_and_depends_on_every_part() {
        let id = uuid(&["policy", "default", "db"]);
        let shape = id.char_indices().all(|(place, c)| match place {
            8 | 13 | 18 | 23 => c == '-',
            14 => c == '8',
            19 => "89ab".contains(c),
            _ => c.is_ascii_hexdigit(),
        });
        assert!(shape && id.len() == 36, "{id}");
        let others = [uuid(&["policy", "defaultdb", ""]), uuid(&["policy", "default", "db "])];
        assert!(!others.contains(&id));
    }

    #[test]
    fn a_long_name_ends_in_a_digest() {
        let [a, b] = ["a", "b"].map(|end| name("sg-", &format!("{}{end}", "x".repeat(252))));
        assert!(a.len() == NAME_MAX && b.len() == NAME_MAX && a != b);
        assert_eq!(name("sg-", "web"), "sg-web");
    }
}
