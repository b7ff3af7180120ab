//! Results as JSON lines: one flat object a line.

use serde::Serialize;
use serde_json::{Map, Value};

/// Prints one result to standard output.
pub(crate) fn print(result: &impl Serialize) {
    println!("{}", serde_json::to_string(result).expect("fields with text as names"));
}

/// Fields of one result.
pub(crate) type Fields = Map<String, Value>;

/// Returns the fields of a literal object; none of any other value.
pub(crate) fn fields(object: Value) -> Fields {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
