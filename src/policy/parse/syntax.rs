//! Syntax of names, labels, ports and CIDRs, with the messages of the API server
//! (`k8s.io/apimachinery/pkg/util/validation`).

use std::net::IpAddr;

use ipnet::IpNet;

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                         and end with an alphanumeric character (e.g. 'my-name', or '123-abc')";
const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                             and must start and end with an alphanumeric character (e.g. 'example.com')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                              an alphanumeric character (e.g. 'MyName', or 'my.name', or '123-abc')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                           must start and end with an alphanumeric character (e.g. 'MyValue', or 'my_value', or '12345')";
const CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Message of a violated syntax.
pub(super) type Violation = String;

/// RFC 1123 label: namespaces.
pub(super) fn dns_label(text: &str) -> Result<(), Violation> {
    if text.len() > 63 {
        return Err("must be no more than 63 bytes".to_owned());
    }
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if bounded_by_alphanumeric(text) && text.bytes().all(inner) { Ok(()) } else { Err(DNS_LABEL.to_owned()) }
}

/// RFC 1123 subdomain: most names.
pub(super) fn dns_subdomain(text: &str) -> Result<(), Violation> {
    if text.len() > 253 {
        return Err("must be no more than 253 bytes".to_owned());
    }
    let label = |part: &str| {
        bounded_by_alphanumeric(part)
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if text.split('.').all(label) { Ok(()) } else { Err(DNS_SUBDOMAIN.to_owned()) }
}

/// Label key: a name, or `prefix/name`.
pub(super) fn label_key(text: &str) -> Result<(), Violation> {
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return Err("a valid label key has at most one '/', between prefix and name".to_owned());
        }
        Some(("", _)) => return Err("prefix part must be non-empty".to_owned()),
        Some((prefix, name)) => {
            dns_subdomain(prefix).map_err(|wrong| format!("prefix part {wrong}"))?;
            name
        }
    };
    match name {
        "" => Err("name part must be non-empty".to_owned()),
        _ if name.len() > 63 => Err("name part must be no more than 63 bytes".to_owned()),
        _ if is_label_text(name) => Ok(()),
        _ => Err(QUALIFIED_NAME.to_owned()),
    }
}

/// Label value.
pub(super) fn label_value(text: &str) -> Result<(), Violation> {
    match text {
        "" => Ok(()),
        _ if text.len() > 63 => Err("must be no more than 63 bytes".to_owned()),
        _ if is_label_text(text) => Ok(()),
        _ => Err(LABEL_VALUE.to_owned()),
    }
}

/// `IANA_SVC_NAME` (RFC 6335 section 5.1, lower case): the name of a container port.
pub(super) fn port_name(text: &str) -> Result<(), Violation> {
    let wrong = if text.len() > 15 {
        "must be no more than 15 characters"
    } else if text.is_empty()
        || !text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    {
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    } else if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        "must contain at least one letter (a-z)"
    } else if text.contains("--") {
        "must not contain consecutive hyphens"
    } else if text.starts_with('-') || text.ends_with('-') {
        "must not begin or end with a hyphen"
    } else {
        return Ok(());
    };
    Err(wrong.to_owned())
}

/// Port number.
pub(super) fn port_number(number: i64) -> Result<u16, Violation> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("must be between 1 and 65535, inclusive".to_owned()),
    }
}

/// CIDR as written; the caller clears host bits. Rejects leading zeros, which some parsers read as octal.
pub(super) fn cidr(text: &str) -> Result<IpNet, Violation> {
    let (address, length) = text.split_once('/').ok_or(CIDR)?;
    if length.len() > 1 && length.starts_with('0') || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CIDR.to_owned());
    }
    let net = IpNet::new(
        ip(address).map_err(|wrong| if wrong == IP { CIDR.to_owned() } else { wrong })?,
        length.parse().map_err(|_| CIDR)?,
    );
    net.map_err(|_| CIDR.to_owned())
}

const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// Address.
pub(super) fn ip(text: &str) -> Result<IpAddr, Violation> {
    if text.split('.').count() == 4 && text.split('.').any(|part| part.len() > 1 && part.starts_with('0')) {
        return Err("must not have leading 0s".to_owned());
    }
    match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err("must not be an IPv4-mapped IPv6 address".to_owned())
        }
        Ok(address) => Ok(address),
        Err(_) => Err(IP.to_owned()),
    }
}

/// Tests whether `inner` is a strict subset of `outer`.
pub(super) fn is_strict_subset(inner: &IpNet, outer: &IpNet) -> bool {
    outer.contains(inner) && inner.prefix_len() > outer.prefix_len()
}

fn is_label_text(text: &str) -> bool {
    bounded_by_alphanumeric(text)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn bounded_by_alphanumeric(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_syntax_of_the_api_server() {
        assert!(dns_label("a-1").is_ok() && dns_label("a.b").is_err() && dns_label("-a").is_err());
        assert!(dns_label(&"a".repeat(64)).is_err() && dns_label("").is_err() && dns_label("A").is_err());
        assert!(
            dns_subdomain("a.b-c.1").is_ok()
                && dns_subdomain("a..b").is_err()
                && dns_subdomain("a.-b").is_err()
        );
        assert!(label_key("app.kubernetes.io/Name_1.x").is_ok() && label_key("a").is_ok());
        for key in ["", "/a", "a/", "A/b", "a/b/c", "No=Equals", "-a", "a b"] {
            assert!(label_key(key).is_err(), "{key}");
        }
        assert!(label_value("").is_ok() && label_value("A_b.c-1").is_ok());
        assert!(
            label_value("a b").is_err()
                && label_value(&"a".repeat(64)).is_err()
                && label_value("a.").is_err()
        );
    }

    #[test]
    fn port_names_are_iana_service_names() {
        assert!(port_name("http-2").is_ok() && port_name("a").is_ok() && port_name("serve-80-tcp").is_ok());
        for name in ["", "80", "Http", "a--b", "-a", "a-", "!@#$", "abcdefghijklmnop"] {
            assert!(port_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn cidrs_are_strict_but_for_host_bits() {
        assert_eq!(cidr("10.0.0.1/8").unwrap().trunc(), "10.0.0.0/8".parse().unwrap());
        assert!(cidr("::/0").is_ok() && cidr("fd00:1::/48").is_ok());
        for text in [
            "",
            " ",
            "10.0.0.0",
            "10.0.0.0/33",
            "010.0.0.0/8",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "::1/129",
            "x/8",
            "10.0.0.0/",
            "::ffff:1.2.3.4/120",
        ] {
            assert!(cidr(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_subset_is_strict_and_of_the_same_family() {
        let subset =
            |inner: &str, outer: &str| is_strict_subset(&inner.parse().unwrap(), &outer.parse().unwrap());
        assert!(subset("10.1.0.0/16", "10.0.0.0/8") && subset("::/1", "::/0"));
        assert!(!subset("10.0.0.0/8", "10.0.0.0/8") && !subset("11.0.0.0/16", "10.0.0.0/8"));
        assert!(!subset("::/64", "0.0.0.0/0") && !subset("10.0.0.0/8", "10.1.0.0/16"));
    }
}
