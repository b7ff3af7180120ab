//! Section `[log]`: the log on standard error.

use serde::Deserialize;

use super::values;

/// `[log]`: the log on standard error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Form of a line.
    pub format: LogFormat,
    /// Seconds between two reports on denied packets; 0 for none.
    #[serde(deserialize_with = "values::within::<_, _, 0, 86_400>")]
    pub denied_interval_s: u32,
}

/// Form of a line of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl Default for Log {
    fn default() -> Log {
        Log { format: LogFormat::Text, denied_interval_s: 10 }
    }
}
