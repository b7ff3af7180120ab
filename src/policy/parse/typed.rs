//! Kubernetes types from a document tree, through serde.
//!
//! The deserializers of `k8s-openapi` list the fields of every type. This module checks unknown fields
//! against them, at every level. A value of a wrong type is reported and read as empty, so that one pass
//! finds all errors.

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::cursor::Cursor;
use super::diagnostic::Severity;
use super::tree::{Span, Value};

/// Parses a value of a Kubernetes type. Returns `None` after a report on failure.
pub(super) fn parse<'t, T: Deserialize<'t>>(at: &Cursor<'t>) -> Option<T> {
    T::deserialize(Typed(at.clone())).map_err(|wrong| wrong.report(at)).ok()
}

/// Error of a visitor. It gets its place from the innermost node that it passes.
#[derive(Debug)]
struct TypeError {
    message: String,
    place: Option<(Span, String)>,
}

impl TypeError {
    fn at(self, at: &Cursor<'_>) -> TypeError {
        let place = self.place.or_else(|| Some((at.span(), at.path.to_string())));
        TypeError { place, ..self }
    }

    fn report(self, at: &Cursor<'_>) {
        let (span, path) = self.place.unwrap_or_else(|| (at.span(), at.path.to_string()));
        at.diagnostics().add(Severity::Error, span, path, format!("Invalid value: {}", self.message), None);
    }
}

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TypeError {}

impl de::Error for TypeError {
    fn custom<T: std::fmt::Display>(message: T) -> TypeError {
        TypeError { message: message.to_string(), place: None }
    }
}

struct Typed<'t>(Cursor<'t>);

impl<'t> Typed<'t> {
    fn whole<V: Visitor<'t>>(&self, visitor: V, least: i64, most: i64) -> Result<V::Value, TypeError> {
        let number = self.0.integer().unwrap_or(0);
        if !(least..=most).contains(&number) {
            self.0.invalid(&format!("must be from {least} to {most}"), "write a number in that range");
        }
        visitor.visit_i64(number.clamp(least, most)).map_err(|wrong: TypeError| wrong.at(&self.0))
    }
}

impl<'t> Deserializer<'t> for Typed<'t> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let result = match &self.0.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(text) => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(number)) => visitor.visit_f64(number),
                _ => return self.whole(visitor, i64::MIN, i64::MAX),
            },
            Value::Text(text) => visitor.visit_str(text),
            Value::Sequence(_) => visitor.visit_seq(Items(self.0.items().into_iter())),
            Value::Mapping(_) => visitor.visit_map(Entries::new(self.0.entries())),
        };
        result.map_err(|wrong: TypeError| wrong.at(&self.0))
    }

    fn deserialize_bool<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let Value::Bool(value) = self.0.node.value else {
            self.0.wrong_type("true or false");
            return visitor.visit_bool(false);
        };
        visitor.visit_bool(value)
    }

    fn deserialize_i32<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.whole(visitor, i64::from(i32::MIN), i64::from(i32::MAX))
    }

    fn deserialize_i64<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.whole(visitor, i64::MIN, i64::MAX)
    }

    fn deserialize_str<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let text = self.0.text().unwrap_or_default();
        visitor.visit_str(text).map_err(|wrong: TypeError| wrong.at(&self.0))
    }

    fn deserialize_string<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        if self.0.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        let at = self.0.clone();
        let result = match &at.node.value {
            // A quantity may be a number: "cpu: 1".
            Value::Number(text) if name == "Quantity" => {
                visitor.visit_newtype_struct(de::value::StrDeserializer::<TypeError>::new(text))
            }
            _ => visitor.visit_newtype_struct(self),
        };
        result.map_err(|wrong: TypeError| wrong.at(&at))
    }

    fn deserialize_seq<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_seq(Items(self.0.items().into_iter())).map_err(|wrong: TypeError| wrong.at(&self.0))
    }

    fn deserialize_map<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_map(Entries::new(self.0.entries())).map_err(|wrong: TypeError| wrong.at(&self.0))
    }

    fn deserialize_struct<V: Visitor<'t>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        let mut entries = self.0.entries();
        entries.retain(|(name, span, at)| {
            let is_known = known.contains(name);
            if !is_known {
                self.0.unknown_field(name, *span, &at.path, known);
            }
            is_known
        });
        visitor.visit_map(Entries::new(entries)).map_err(|wrong: TypeError| wrong.at(&self.0))
    }

    fn deserialize_ignored_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        <W: Visitor<'t>>
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

struct Items<'t>(std::vec::IntoIter<Cursor<'t>>);

impl<'t> de::SeqAccess<'t> for Items<'t> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'t>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        self.0.next().map(|at| seed.deserialize(Typed(at))).transpose()
    }
}

struct Entries<'t> {
    rest: std::vec::IntoIter<(&'t str, Span, Cursor<'t>)>,
    value: Option<Cursor<'t>>,
}

impl<'t> Entries<'t> {
    fn new(entries: Vec<(&'t str, Span, Cursor<'t>)>) -> Entries<'t> {
        Entries { rest: entries.into_iter(), value: None }
    }
}

impl<'t> de::MapAccess<'t> for Entries<'t> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeError> {
        let Some((name, _, at)) = self.rest.next() else { return Ok(None) };
        self.value = Some(at);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'t>>(&mut self, seed: T) -> Result<T::Value, TypeError> {
        match self.value.take() {
            Some(at) => seed.deserialize(Typed(at)),
            None => Err(de::Error::custom("a value was asked for before its key")),
        }
    }
}
