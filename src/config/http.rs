//! Section `[http]`: the listener for metrics, probes and status.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::values;
use crate::control::{http_needs_token, needs_token};

/// `[http]`: the read-only listener.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address and port. None: no listener.
    #[serde(deserialize_with = "values::address")]
    pub listen: Option<SocketAddr>,
    /// File with the token of clients.
    pub token_file: Option<PathBuf>,
}

/// Deserializes the section, and rejects an address that other machines may reach without a token.
pub(super) fn section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Http, D::Error> {
    let http = Http::deserialize(deserializer)?;
    match http.listen {
        Some(address) if needs_token(address) && http.token_file.is_none() => {
            Err(D::Error::custom(format!("listen: {}", http_needs_token(address))))
        }
        _ => Ok(http),
    }
}
