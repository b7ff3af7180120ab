//! JSON Schema of the configuration file. Keys, types and ranges come from the parser of the file: it parses a sample value
//! of each type, and its error says what it expects. Descriptions and defaults come from the documented file.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Config;
use super::keys::{Table, root, table_named};

/// Sample values by type of JSON Schema.
const SAMPLES: [(&str, &str); 5] = [
    ("boolean", "true"),
    ("integer", "1"),
    ("string", "\"no-such-value\""),
    ("array", "[]"),
    ("object", "{}"),
];

impl Config {
    /// JSON Schema (2020-12) of the file. `documented` is the file with every key, its default and its description.
    pub fn schema(documented: &str) -> Value {
        let descriptions = Descriptions::of(documented);
        let defaults: toml::Table = documented.parse().unwrap_or_default();
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Configuration of palisade run",
        });
        let root = object(root().as_ref(), "", &descriptions, Some(&defaults));
        if let (Value::Object(schema), Value::Object(root)) = (&mut schema, root) {
            schema.extend(root);
        }
        schema
    }
}

/// Schema of a table. `name` is that of its header: empty for the top of the file.
fn object(
    table: Option<&Table>,
    name: &str,
    descriptions: &Descriptions,
    defaults: Option<&toml::Table>,
) -> Value {
    let mut properties = Map::new();
    for key in table.iter().flat_map(|table| &table.keys) {
        let path = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        let default = defaults.and_then(|defaults| defaults.get(key));
        let property = match table_named(&path) {
            Some(below) if below.is_list() => {
                json!({"type": "array", "items": object(Some(&below), &path, descriptions, None)})
            }
            Some(below) => object(Some(&below), &path, descriptions, default.and_then(toml::Value::as_table)),
            None => {
                let mut value = value(table.and_then(|table| table.header.as_deref()), key);
                if let Some(default) = default.and_then(|default| serde_json::to_value(default).ok()) {
                    value.insert("default".to_owned(), default);
                }
                Value::Object(value)
            }
        };
        properties.insert(key.clone(), with_description(property, descriptions.0.get(&path)));
    }
    let required = table.map(|table| required(table, &properties)).unwrap_or_default();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Keys that the parser misses in an empty table, up to the first one for which no sample is known.
fn required(table: &Table, properties: &Map<String, Value>) -> Vec<String> {
    let mut text = format!("{}\n", table.header.as_deref().unwrap_or_default());
    let mut required = Vec::new();
    while let Err(error) = toml::from_str::<Config>(&text) {
        let missing = error.message().strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        let Some(key) = missing.filter(|key| !required.iter().any(|known| known == key)) else { break };
        required.push(key.to_owned());
        let variant = properties.get(key).and_then(|property| property["enum"][0].as_str());
        text.extend([key, " = \"", variant.unwrap_or("a"), "\"\n"]);
    }
    required
}

fn with_description(mut property: Value, description: Option<&String>) -> Value {
    if let (Value::Object(fields), Some(description)) = (&mut property, description) {
        fields.insert("description".to_owned(), description.as_str().into());
    }
    property
}

/// Schema of the value of a key: the parser refuses samples of other types.
fn value(header: Option<&str>, key: &str) -> Map<String, Value> {
    let (mut types, mut schema) = (Vec::new(), Map::new());
    for (kind, sample) in SAMPLES {
        let text = format!("{}\n{key} = {sample}\n", header.unwrap_or_default());
        let error = toml::from_str::<Config>(&text).err();
        let error = error.as_ref().map_or("", toml::de::Error::message);
        if let Some((low, high)) = range(error) {
            schema.extend([("minimum".to_owned(), low.into()), ("maximum".to_owned(), high.into())]);
        }
        if let Some(variants) = error.strip_prefix("unknown variant ") {
            let variants: Vec<&str> = variants.split('`').skip(3).step_by(2).collect();
            schema.insert("enum".to_owned(), variants.into());
        }
        if !error.starts_with("invalid type") && !error.starts_with("data did not match") {
            types.push(kind);
        }
    }
    if schema.contains_key("enum") {
        types = vec!["string"];
    }
    match types.as_slice() {
        // The parser refuses every sample: the type stays open.
        [] => {}
        [one] => _ = schema.insert("type".to_owned(), (*one).into()),
        _ => _ = schema.insert("type".to_owned(), types.into()),
    }
    schema
}

/// Range in an error: `expected a whole number from 0 to 1000000`.
fn range(error: &str) -> Option<(i64, i64)> {
    let (_, range) = error.split_once("a whole number from ")?;
    let (low, rest) = range.split_once(" to ")?;
    let high: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((low.parse().ok()?, high.parse().ok()?))
}

/// Comments above the keys and tables of a file, by path.
struct Descriptions(BTreeMap<String, String>);

impl Descriptions {
    fn of(documented: &str) -> Descriptions {
        let (mut found, mut table, mut comment) = (BTreeMap::new(), String::new(), Vec::new());
        for line in documented.lines() {
            if let Some(text) = line.strip_prefix("# ") {
                comment.push(text.trim());
                continue;
            }
            let line = line.strip_prefix('#').unwrap_or(line);
            let header = line.strip_prefix('[').map(|line| line.trim_matches(['[', ']']).to_owned());
            let key = line.split_once(" = ").map(|(key, _)| key).filter(|key| !key.contains(' '));
            if let Some(header) = header {
                table.clone_from(&header);
                found.entry(header).or_insert_with(|| comment.join(" "));
            } else if let Some(key) = key {
                let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
                found.entry(path).or_insert_with(|| comment.join(" "));
            }
            comment.clear();
        }
        found.retain(|_, comment| !comment.is_empty());
        Descriptions(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));

    #[test]
    fn a_key_has_its_type_range_default_and_description() {
        let schema = Config::schema(DOCUMENTED);
        let of = |path: &str| schema.pointer(&format!("/properties/{path}")).cloned().unwrap_or_default();
        let spin = of("workers/properties/spin_us");
        assert_eq!(
            (&spin["type"], &spin["minimum"], &spin["maximum"]),
            (&json!("integer"), &json!(0), &json!(1_000_000))
        );
        assert_eq!(spin["default"], 50);
        assert!(spin["description"].as_str().unwrap().starts_with("Time for which an adaptive worker polls"));
        assert_eq!(of("backend")["enum"], json!(["af-xdp", "nftables"]));
        assert_eq!(of("workers/properties/cores")["type"], json!(["string", "array"]));
        assert_eq!(of("workers/properties/huge_pages")["type"], "boolean");
        let port = of("ports/items");
        assert_eq!(port["additionalProperties"], false);
        assert_eq!(port["properties"]["pod_addresses"]["type"], "array");
        assert!(port["properties"]["kind"]["enum"].as_array().unwrap().contains(&json!("uplink")));
        assert_eq!(port["required"], json!(["name", "kind"]));
        assert_eq!(of("conntrack/properties/timeouts/type"), "object");
    }

    #[test]
    fn every_key_of_the_documented_file_is_allowed() {
        fn check(table: &toml::Table, schema: &Value) {
            for (key, value) in table {
                let property = &schema["properties"][key];
                assert!(property.is_object(), "{key}");
                let kind = match value {
                    toml::Value::String(_) => "string",
                    toml::Value::Integer(_) => "integer",
                    toml::Value::Boolean(_) => "boolean",
                    toml::Value::Array(_) => "array",
                    toml::Value::Table(table) => {
                        check(table, property);
                        "object"
                    }
                    other => panic!("{key}: {other}"),
                };
                let types = &property["type"];
                let is_allowed =
                    types == kind || types.as_array().is_some_and(|types| types.contains(&kind.into()));
                assert!(is_allowed, "{key} is a {kind}: {property}");
            }
        }
        check(&DOCUMENTED.parse().unwrap(), &Config::schema(DOCUMENTED));
    }
}
