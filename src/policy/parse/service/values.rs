//! Values of fields whose type the check of the whole object has reported.

use crate::policy::parse::cursor::Cursor;
use crate::policy::parse::tree::Value;

/// Field with a text that is not empty.
pub(super) fn text<'t>(parent: &Cursor<'t>, name: &str) -> Option<(Cursor<'t>, &'t str)> {
    let at = parent.child(name)?;
    let text = at.node.text().filter(|text| !text.is_empty())?;
    Some((at, text))
}

/// Field with a whole number.
pub(super) fn number<'t>(parent: &Cursor<'t>, name: &str) -> Option<(Cursor<'t>, i64)> {
    let at = parent.child(name)?;
    let Value::Number(text) = &at.node.value else { return None };
    let number = text.parse().ok()?;
    Some((at, number))
}

/// Field that is true.
pub(super) fn flag(parent: &Cursor<'_>, name: &str) -> Option<bool> {
    match parent.child(name)?.node.value {
        Value::Bool(value) => Some(value),
        _ => None,
    }
}

/// Field with one of several texts. Reports another one.
pub(super) fn choice<'t>(parent: &Cursor<'t>, name: &str, supported: &[&str]) -> Option<&'t str> {
    let (at, text) = text(parent, name)?;
    if supported.contains(&text) {
        return Some(text);
    }
    at.unsupported(supported);
    None
}
