//! Errors about keys: each says which keys there are, and where a key belongs that stands in another table.

use super::Config;
use crate::nearest::{hint, nearest};

/// Name that no table has.
const NO_KEY: &str = "no-such-key";

/// A table of the configuration, and its keys.
pub(super) struct Table {
    /// Header, such as `[offload]` or `[[ports]]`; `None` for the top of the file.
    pub(super) header: Option<String>,
    pub(super) keys: Vec<String>,
}

/// Formats the message for a key. The message for an unknown key suggests the nearest known one.
pub(super) fn explain(key: Option<String>, message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    let key = key.filter(|key| key != ".");
    let Some((unknown, known)) = unknown_field(&message) else {
        let table = key.as_deref().filter(|_| message.starts_with("invalid type")).and_then(table_named);
        return match (key, table) {
            (Some(key), Some(Table { header: Some(header), keys })) => {
                format!("{key} is a table: write {header}, and below it its keys, {}", keys.join(", "))
            }
            (Some(key), _) => format!("{key}: {message}"),
            (None, _) => message,
        };
    };
    let section = key.as_deref().map_or("", |key| key.trim_end_matches(unknown).trim_end_matches('.'));
    let place = match section {
        "" => "here".to_owned(),
        entry if entry.ends_with(']') => format!("of {entry}"),
        table => format!("in [{table}]"),
    };
    let belongs: Vec<String> =
        tables().into_iter().filter(|table| table.has(unknown)).map(Table::place).collect();
    let hint = match belongs.as_slice() {
        [] => hint(nearest(unknown, &known).map(|known| format!("{known:?}")).as_ref()),
        places => format!(", it belongs {}", places.join(", or ")),
    };
    format!("unknown key {unknown:?}{hint}; the keys {place} are {}", known.join(", "))
}

impl Table {
    /// Whether it is one of a list of tables.
    pub(super) fn is_list(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.starts_with("[["))
    }

    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known == key)
    }

    fn place(self) -> String {
        match self.header {
            Some(header) => format!("below {header}"),
            None => "at the top of the file, above the first table".to_owned(),
        }
    }
}

/// Parses serde's message for `deny_unknown_fields` into the unknown name and the known ones.
pub(super) fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// The table at the top of the file.
pub(super) fn root() -> Option<Table> {
    table(None)
}

/// All tables of the configuration.
fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = root().into_iter().collect();
    let mut next = 0;
    while let Some(Table { header, keys }) = tables.get(next) {
        let of = header.as_ref().map(|header| format!("{}.", header.trim_matches(['[', ']'])));
        let below = |key: &String| table_named(&format!("{}{key}", of.as_deref().unwrap_or_default()));
        let found: Vec<Table> = keys.iter().filter_map(below).collect();
        tables.extend(found);
        next += 1;
    }
    tables
}

/// The table, or list of tables, of this name.
pub(super) fn table_named(name: &str) -> Option<Table> {
    [format!("[{name}]"), format!("[[{name}]]")].into_iter().find_map(|header| table(Some(header)))
}

/// The table with this header: its keys are those that the refusal of an unknown one names.
fn table(header: Option<String>) -> Option<Table> {
    let text = format!("{}\n{NO_KEY} = 1\n", header.as_deref().unwrap_or_default());
    let error = toml::from_str::<Config>(&text).err()?;
    let (_, keys) = unknown_field(error.message()).filter(|(unknown, _)| *unknown == NO_KEY)?;
    let keys = keys.into_iter().map(str::to_owned).collect();
    Some(Table { header, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, std::path::Path::new("p")).unwrap_err().to_string()
    }

    #[test]
    fn a_key_of_another_table_is_refused_with_the_place_where_it_belongs() {
        for (text, belongs) in [
            ("lease_s = 3\n", "p:1: unknown key \"lease_s\", it belongs below [offload]; the keys here are"),
            (
                "[workers]\nflows = 4096\n",
                "p:2: unknown key \"flows\", it belongs below [conntrack]; the keys in",
            ),
            ("[xdp]\nudp_one_way_s = 3\n", "it belongs below [conntrack.timeouts];"),
            (
                "[workers]\non_stop = \"closed\"\n",
                "it belongs at the top of the file, above the first table;",
            ),
            ("pod_addresses = []\n", "it belongs below [[ports]];"),
            ("cores = [1]\nmode = \"kernel\"\n", "it belongs below [workers];"),
            ("mode = \"kernel\"\n", ", or below [offload]"),
        ] {
            assert!(error(text).contains(belongs), "{}", error(text));
        }
    }

    #[test]
    fn a_value_in_place_of_a_table_is_refused_with_the_keys_of_the_table() {
        let is = "p:1: offload is a table: write [offload], and below it its keys, mode, lease_s";
        assert_eq!(error("offload = \"kernel\"\n"), is);
        let ports = error("ports = 3\n");
        assert!(
            ports.starts_with("p:1: ports is a table: write [[ports]], and below it its keys, name, kind,"),
            "{ports}"
        );
        let timeouts = error("[conntrack]\ntimeouts = 3\n");
        assert!(
            timeouts.contains(": conntrack.timeouts is a table: write [conntrack.timeouts],"),
            "{timeouts}"
        );
    }
}
