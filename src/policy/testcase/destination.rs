//! Destination of a probe: an endpoint, or a Service.

use std::fmt;
use std::str::FromStr;

use super::endpoint::Endpoint;
use crate::policy::objects::ServiceName;

/// Prefix of the name of a Service, where a text may also name a pod.
const SERVICE: &str = "service/";

/// Destination of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Pod or address.
    Endpoint(Endpoint),
    /// `{service: namespace/name}`.
    Service(ServiceName),
}

impl FromStr for Destination {
    type Err = String;

    /// Parses an address, the name of a pod, or `service/namespace/name`.
    fn from_str(text: &str) -> Result<Destination, String> {
        match text.strip_prefix(SERVICE).filter(|name| name.contains('/')) {
            Some(name) => name.parse().map(Destination::Service),
            None => text.parse().map(Destination::Endpoint),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Endpoint(end) => end.fmt(f),
            Destination::Service(name) => write!(f, "{SERVICE}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_told_from_a_pod_by_its_prefix() {
        let parse = |text: &str| text.parse::<Destination>();
        assert!(matches!(parse("service/shop/web"), Ok(Destination::Service(_))));
        for text in ["shop/web", "192.0.2.7", "web", "service/web"] {
            assert!(matches!(parse(text), Ok(Destination::Endpoint(_))), "{text}");
        }
        for text in ["service/shop/", "service//web", "service/a/b/c"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("service/shop/web").unwrap().to_string(), "service/shop/web");
    }
}
