//! Plain scalars of YAML 1.1, typed as by `kubectl` (`sigs.k8s.io/yaml`).

use std::borrow::Cow;

use super::node::Value;

/// Types a plain scalar. `yes`, `on`, `1.0` and `~` are not strings: they need quotes.
pub(super) fn plain(text: Cow<'_, str>) -> Value<'_> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        word if is_number(word) => Value::Number(text),
        _ => Value::Text(text),
    }
}

fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    let based = |prefix, radix| {
        digits.strip_prefix(prefix).is_some_and(|rest: &str| {
            !rest.is_empty() && rest.chars().all(|digit| digit == '_' || digit.is_digit(radix))
        })
    };
    is_decimal(digits)
        || based("0x", 16)
        || based("0o", 8)
        || based("0b", 2)
        || matches!(digits, ".inf" | ".Inf" | ".INF")
        || matches!(word, ".nan" | ".NaN" | ".NAN")
}

/// Tests for digits (with underscores, as in YAML 1.1), an optional fraction and an optional exponent.
fn is_decimal(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let some_digit = mantissa.bytes().any(|byte| byte.is_ascii_digit());
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    some_digit
        && !mantissa.starts_with('_')
        && all_digits(whole)
        && all_digits(fraction)
        && exponent.is_none_or(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_typed_as_kubectl_types_them() {
        for word in
            ["1", "-1", "1.0", ".5", "1e3", "1_000", "0x1f", "0o17", "0b1", "0777", ".inf", "-.inf", ".nan"]
        {
            assert!(matches!(plain(word.into()), Value::Number(_)), "{word}");
        }
        for word in [
            "10.0.0.1",
            "1.2.3",
            "a1",
            "1a",
            "-",
            "+",
            ".",
            "e3",
            "1e",
            "_1",
            "0x",
            "10.0.0.0/8",
            "1:30",
            "nulls",
        ] {
            assert!(matches!(plain(word.into()), Value::Text(_)), "{word}");
        }
        assert!(matches!(plain("yes".into()), Value::Bool(true)));
        assert!(matches!(plain("Off".into()), Value::Bool(false)));
        assert!(matches!(plain("~".into()), Value::Null));
    }
}
