//! Access to the HTTP listener: by a token, or without one from this machine alone.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, StatusCode};
use subtle::ConstantTimeEq;

use super::error::ServerError;
use super::handlers::HttpError;
use crate::limits::HTTP_TOKEN_BYTES;

/// Condition on the clients of the HTTP listener.
pub(super) enum Access {
    /// Clients of this machine, which address it as such.
    Loopback,
    /// Clients that present this token.
    Token(Vec<u8>),
}

/// Tests whether clients of other machines may reach the address.
pub(crate) fn needs_token(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

impl Access {
    /// Condition of a listener on `address`. Fails without a token on an address that other machines may reach.
    pub(super) fn new(address: SocketAddr, token_file: Option<&Path>) -> Result<Access, ServerError> {
        match token_file {
            Some(path) => read_token(path)
                .map(Access::Token)
                .map_err(|what| ServerError::HttpToken { path: path.to_owned(), what }),
            None if needs_token(address) => Err(ServerError::HttpWithoutToken { address }),
            None => Ok(Access::Loopback),
        }
    }

    /// Whether clients present a token.
    pub(super) fn has_token(&self) -> bool {
        matches!(self, Access::Token(_))
    }

    /// Rejects a request by its headers.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), HttpError> {
        match self {
            Access::Loopback if addresses_this_machine(headers) => Ok(()),
            Access::Loopback => Err(HttpError::new(
                StatusCode::FORBIDDEN,
                "the request is for a host name: without a token use localhost or an address",
            )),
            Access::Token(token) if presents(headers, token) => Ok(()),
            Access::Token(_) => Err(HttpError::new(
                StatusCode::UNAUTHORIZED,
                "the request needs the header Authorization: Bearer TOKEN",
            )),
        }
    }
}

/// Tests whether the request is for `localhost` or an address. A page of another site, whose name its owner resolves to
/// 127.0.0.1 (DNS rebinding), makes a browser send that name.
fn addresses_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let host = host.to_str().unwrap_or_default();
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Tests whether the request presents the token, in a time that does not tell its characters. RFC 9110 section 11.1: the
/// name of the scheme is a "case-insensitive token".
fn presents(headers: &HeaderMap, token: &[u8]) -> bool {
    let presented = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, presented) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| presented.trim_ascii())
    });
    presented.is_some_and(|presented| presented.ct_eq(token).into())
}

/// Reads a token, without the end of its line. An error is the mistake, with a remedy.
fn read_token(path: &Path) -> Result<Vec<u8>, String> {
    let (least, most) = (HTTP_TOKEN_BYTES.start(), HTTP_TOKEN_BYTES.end());
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.permissions().mode() & 0o007 != 0 {
        tracing::warn!("every user may read the token file {0}: `chmod o= {0}`", path.display());
    }
    let mut text = Vec::new();
    file.take(*most as u64 + 3).read_to_end(&mut text).map_err(unreadable)?;
    let token = text.trim_ascii();
    if !HTTP_TOKEN_BYTES.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "has no token: it must be {least} to {most} printable characters without blanks, such as those of `openssl rand -hex 32`"
        ));
    }
    Ok(token.to_vec())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: axum::http::HeaderName, value: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_bytes(value).unwrap())])
    }

    #[test]
    fn only_loopback_addresses_need_no_token() {
        for (address, needs) in [
            ("127.0.0.1:1", false),
            ("127.8.9.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
            ("[fe80::1]:1", true),
        ] {
            assert_eq!(needs_token(address.parse().unwrap()), needs, "{address}");
        }
    }

    #[test]
    fn without_a_token_the_host_is_localhost_or_an_address() {
        assert!(Access::Loopback.check(&HeaderMap::new()).is_ok(), "HTTP/1.0");
        for (host, is_ok) in [
            ("localhost", true),
            ("LocalHost:9640", true),
            ("127.0.0.1:9640", true),
            ("[::1]:9640", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:9640", false),
            ("127.0.0.1.evil.example:9640", false),
            ("localhost.evil.example", false),
            ("", false),
            ("\u{fc}", false),
        ] {
            assert_eq!(Access::Loopback.check(&headers(HOST, host.as_bytes())).is_ok(), is_ok, "{host}");
        }
    }

    #[test]
    fn a_token_is_the_whole_token() {
        let access = Access::Token(b"0123456789abcdef".to_vec());
        assert!(access.check(&HeaderMap::new()).is_err());
        for (value, is_ok) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer  0123456789abcdef ", true),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            ("Bearer 0123456789abcdeF", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(access.check(&headers(AUTHORIZATION, value.as_bytes())).is_ok(), is_ok, "{value:?}");
        }
    }
}
