//! Log of chosen packets in a kernel that forwards: whether they have come, and whether they have passed all rules.

use std::fmt::Write;
use std::net::IpAddr;
use std::process::{Command, Output};

use palisade::net::flow::Protocol;

use super::eventually;

/// Packet that the log knows by the interface that it comes from and its destination.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) from: String,
    pub(crate) protocol: Protocol,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
}

/// Log of packets: a table of `nft` with hooks before and behind those of all others.
pub(crate) struct PacketLog<'a> {
    /// Runs a command in the kernel's namespace.
    run: &'a dyn Fn(&mut Command) -> Output,
    packets: &'a [Packet],
}

impl<'a> PacketLog<'a> {
    /// Begins a log of these packets in place of an earlier one.
    pub(crate) fn of(packets: &'a [Packet], run: &'a dyn Fn(&mut Command) -> Output) -> PacketLog<'a> {
        let mut rules =
            "add table inet packet-log; delete table inet packet-log; add table inet packet-log\n\
             add chain inet packet-log came { type filter hook prerouting priority -500; }\n\
             add chain inet packet-log forwarded { type filter hook forward priority 500; }\n\
             add chain inet packet-log delivered { type filter hook input priority 500; }\n"
                .to_owned();
        for (number, packet) in packets.iter().enumerate() {
            let selected = packet.selector();
            for (chain, counter) in [("came", "came"), ("forwarded", "passed"), ("delivered", "passed")] {
                let _ = write!(
                    rules,
                    "add counter inet packet-log {counter}-{number}\n\
                     add rule inet packet-log {chain} {selected} counter name \"{counter}-{number}\"\n"
                );
            }
        }
        let log = PacketLog { run, packets };
        log.nft(&[&rules]);
        log
    }

    /// Waits until each packet has come, and asserts that none has passed the rules. The kernel takes a packet through
    /// its hooks in one go.
    pub(crate) fn assert_dropped(&self) {
        let count = |what: &str| -> Vec<u64> {
            let listed = self.nft(&["-j", "list", "counters", "table", "inet", "packet-log"]);
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            let of = |number: usize| {
                let mut objects = listed["nftables"].as_array().unwrap().iter();
                let name = format!("{what}-{number}");
                objects.find_map(|object| {
                    let counter = &object["counter"];
                    (counter["name"] == name.as_str()).then(|| counter["packets"].as_u64().unwrap())
                })
            };
            (0..self.packets.len()).map(|number| of(number).expect("the counter is listed")).collect()
        };
        eventually(&format!("all of these packets come: {:?}", self.packets), || !count("came").contains(&0));
        for (packet, passed) in self.packets.iter().zip(count("passed")) {
            assert_eq!(passed, 0, "{packet:?} has passed");
        }
    }

    fn nft(&self, arguments: &[&str]) -> String {
        let output = (self.run)(Command::new("nft").args(arguments));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for PacketLog<'_> {
    fn drop(&mut self) {
        let _ = (self.run)(Command::new("nft").arg("delete table inet packet-log"));
    }
}

impl Packet {
    /// Expression of `nft` that matches the packet.
    fn selector(&self) -> String {
        let Packet { from, protocol, to, port } = self;
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        let kind = match *protocol {
            Protocol::TCP => format!("tcp dport {port}"),
            Protocol::UDP => format!("udp dport {port}"),
            Protocol::ICMP => "icmp type echo-request".to_owned(),
            Protocol::ICMPV6 => "icmpv6 type echo-request".to_owned(),
            other => panic!("no packet of {other} is logged"),
        };
        format!("iifname \"{from}\" {family} daddr {to} {kind}")
    }
}
