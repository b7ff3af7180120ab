//! Text of JSON that is read and compared: lists of fields stand on one line.

use serde_json::Value;

/// Widest list of lists on one line.
const WIDTH: usize = 100;

/// Text of a document.
pub(super) fn text(document: &Value) -> String {
    let mut text = String::new();
    print(document, 0, &mut text);
    text.push('\n');
    text
}

fn print(value: &Value, depth: usize, text: &mut String) {
    if is_flat(value) || width(value, WIDTH).is_some() {
        text.push_str(&value.to_string());
        return;
    }
    let indent = |text: &mut String, depth: usize| {
        text.push('\n');
        (0..depth).for_each(|_| text.push(' '));
    };
    match value {
        Value::Array(entries) => {
            text.push('[');
            for (place, entry) in entries.iter().enumerate() {
                text.push_str(if place == 0 { "" } else { "," });
                indent(text, depth + 1);
                print(entry, depth + 1, text);
            }
            indent(text, depth);
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            for (place, (key, field)) in fields.iter().enumerate() {
                text.push_str(if place == 0 { "" } else { "," });
                indent(text, depth + 1);
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push_str(": ");
                print(field, depth + 1, text);
            }
            indent(text, depth);
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// Tests for a value without lists inside.
fn is_flat(value: &Value) -> bool {
    let is_scalar = |value: &Value| !value.is_array() && !value.is_object();
    match value {
        Value::Array(entries) => entries.iter().all(|entry| is_scalar(entry) && !entry.is_string()),
        Value::Object(fields) => fields.values().all(is_scalar),
        _ => true,
    }
}

/// Rest of a width after a value, roughly; `None` if it is too narrow.
fn width(value: &Value, width: usize) -> Option<usize> {
    let fits = |rest: usize, size: usize| rest.checked_sub(size);
    match value {
        Value::Array(entries) => {
            entries.iter().try_fold(fits(width, 2)?, |rest, entry| fits(self::width(entry, rest)?, 1))
        }
        Value::Object(fields) => fields.iter().try_fold(fits(width, 2)?, |rest, (key, field)| {
            fits(self::width(field, fits(rest, key.len() + 3)?)?, 1)
        }),
        Value::String(string) => fits(width, string.len() + 2),
        _ => fits(width, 4),
    }
}
