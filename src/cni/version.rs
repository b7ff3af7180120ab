//! Versions of the CNI specification.

use serde_json::{Value, json};

use super::error::{CniError, Code};

/// Version whose format results and errors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.4.0.
    V0_4,
    /// 1.0.0.
    V1_0,
    /// 1.1.0.
    V1_1,
}

impl Version {
    /// All versions that the plugin supports, the newest last.
    pub const ALL: [Version; 3] = [Version::V0_4, Version::V1_0, Version::V1_1];

    /// Version in text.
    pub fn text(self) -> &'static str {
        match self {
            Version::V0_4 => "0.4.0",
            Version::V1_0 => "1.0.0",
            Version::V1_1 => "1.1.0",
        }
    }

    /// Reads `cniVersion` of a configuration.
    pub fn of(config: &Value) -> Result<Version, CniError> {
        let incompatible = |found: &str| {
            let known = Version::ALL.map(Version::text).join(", ");
            CniError::new(
                Code::INCOMPATIBLE_VERSION,
                format!("cniVersion {found} is not supported: set it to one of {known}"),
            )
        };
        match config.get("cniVersion") {
            Some(Value::String(text)) => Version::ALL
                .into_iter()
                .find(|version| version.text() == text)
                .ok_or_else(|| incompatible(&format!("{text:?}"))),
            Some(other) => Err(CniError::new(Code::DECODE, format!("cniVersion: {other} is not a string"))),
            None => Err(incompatible("is missing, which means 0.1.0, and that")),
        }
    }
}

/// Answer to VERSION.
pub(super) fn supported() -> Value {
    json!({
        "cniVersion": Version::V1_1.text(),
        "supportedVersions": Version::ALL.map(Version::text),
    })
}
