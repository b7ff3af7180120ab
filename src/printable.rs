//! Untrusted text made safe to show: control characters are escaped, and long text is truncated.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a character moves the cursor, controls a terminal, or changes the direction of text.
///
/// These are C0, DEL and C1 (ECMA-48), the marks, embeddings, overrides and isolates of bidirectional text
/// (UAX 9 section 2), the line and the paragraph separator, and the byte order mark.
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// Escapes the text for one line, line breaks and tabs included.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Escapes the text, and keeps its line breaks and tabs.
pub fn block(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, may_stay: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_spelt_out = |c: char| is_steering(c) && !may_stay(c);
    if !text.contains(is_spelt_out) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_spelt_out(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Truncates the text to about `chars_max` characters: the first two thirds and the end.
pub fn cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    // A text has no more characters than bytes, so most texts need no count.
    if text.len() <= chars_max {
        return Cow::Borrowed(text);
    }
    let count = text.chars().count();
    if count <= chars_max {
        return Cow::Borrowed(text);
    }
    let tail = chars_max / 3;
    let head = chars_max - tail;
    let byte = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let mut short = text[..byte(head)].to_owned();
    // Writing to a string cannot fail.
    let _ = write!(short, "…({} characters more)…", count - chars_max);
    short.push_str(&text[byte(count - tail)..]);
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_that_steers_a_terminal_is_spelt_out() {
        let steering = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}').chain("\u{61c}\u{200e}\u{200f}".chars());
        let steering = steering.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in steering {
            let text = format!("a{c}b");
            assert!(line(&text).starts_with("a\\") && !line(&text).contains(is_steering), "{c:?}");
        }
        assert_eq!(line("a\u{1b}[2Jb\nc\u{202e}"), "a\\u{1b}[2Jb\\nc\\u{202e}");
        assert_eq!(block("a\tb\nc\r\u{9b}"), "a\tb\nc\\r\\u{9b}");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "default/db", "größe 数 👩‍👩‍👧", "a\\nb"] {
            assert!(matches!(line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(cut("abcdefghi", 9), "abcdefghi");
        assert_eq!(cut("äbcdefghijklé", 6), "äbcd…(7 characters more)…lé");
        assert!(cut(&"x".repeat(1 << 20), 300).chars().count() < 340);
    }
}
