//! Reader of the YAML files of config/kubernetes, strict about keys that stand there twice.

use std::fs;
use std::path::{Path, PathBuf};

use libyaml_safer::{EventData as Event, Parser};
use serde_json::{Map, Value};

/// Directory of the files by which a cluster's nodes join.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes")
}

/// Next value of a document. Scalars stay text.
fn value(events: &mut Parser<&[u8]>, event: Event) -> Value {
    match event {
        Event::Scalar { value, .. } => Value::String(value),
        Event::SequenceStart { .. } => {
            let mut items = Vec::new();
            loop {
                match events.parse().unwrap().data {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(value(events, event)),
                }
            }
        }
        Event::MappingStart { .. } => {
            let mut entries = Map::new();
            loop {
                match events.parse().unwrap().data {
                    Event::MappingEnd => return Value::Object(entries),
                    Event::Scalar { value: key, .. } => {
                        let event = events.parse().unwrap().data;
                        let before = entries.insert(key.clone(), value(events, event));
                        assert!(before.is_none(), "{key} stands there twice");
                    }
                    other => panic!("a key is {other:?}"),
                }
            }
        }
        other => panic!("{other:?} is no value"),
    }
}

/// Documents of a file.
pub(crate) fn documents(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(name)).unwrap();
    let mut events: Parser<&[u8]> = Parser::new();
    events.set_input(text.as_bytes());
    let mut documents = Vec::new();
    loop {
        match events.parse().unwrap_or_else(|error| panic!("{name}: {error}")).data {
            Event::StreamEnd => return documents,
            event @ (Event::MappingStart { .. } | Event::SequenceStart { .. } | Event::Scalar { .. }) => {
                documents.push(value(&mut events, event));
            }
            _ => {}
        }
    }
}

/// Texts of a list.
pub(crate) fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}
