//! Commands of VPP: lists of its ACL plugin, and rules of its session layer.

pub(super) mod acl;
mod expansion;
pub(super) mod sessions;

use std::net::IpAddr;

use ipnet::IpNet;

/// Prefix as VPP reads it: `unformat_ip6_address` takes no dotted tail.
fn prefix(network: &IpNet) -> String {
    let IpAddr::V6(address) = network.addr() else { return network.to_string() };
    if address.to_ipv4_mapped().is_none() {
        return network.to_string();
    }
    let groups = address.segments().map(|group| format!("{group:x}"));
    format!("{}/{}", groups.join(":"), network.prefix_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_no_dotted_tail() {
        let text = |text: &str| prefix(&text.parse().unwrap());
        assert_eq!(text("::ffff:192.0.2.1/128"), "0:0:0:0:0:ffff:c000:201/128");
        assert_eq!(text("::/0"), "::/0");
        assert_eq!(text("10.0.0.0/8"), "10.0.0.0/8");
    }
}
