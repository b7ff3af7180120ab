//! Interpreter of security groups, after the Networking API of `OpenStack`: rules allow and add up over all groups of a
//! port, and everything else is dropped. It makes the checks of the API server on rules, and refuses unknown fields.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::render::Part;
use serde_json::Value;

use super::System;

/// Groups, ports, and resources of Kubernetes.
#[derive(Debug, Default)]
pub(super) struct Neutron {
    groups: BTreeMap<String, Group>,
    ports: BTreeMap<String, Port>,
    resources: BTreeMap<String, Value>,
    annotations: BTreeMap<String, Value>,
    /// Ports by address.
    ports_at: BTreeMap<IpAddr, Vec<String>>,
    /// Addresses of the ports of a group.
    members: BTreeMap<String, BTreeSet<IpAddr>>,
}

#[derive(Debug)]
struct Group {
    properties: Value,
    /// Rules with their ids: the server refuses a second rule that matches the same.
    rules: BTreeMap<Rule, String>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    is_ingress: bool,
    is_v4: bool,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    prefix: Option<IpNet>,
    group: Option<String>,
}

#[derive(Debug)]
struct Port {
    addresses: Vec<IpAddr>,
    groups: Vec<String>,
}

impl System for Neutron {
    fn load(&mut self, parts: &[Part]) {
        let [part] = parts else { panic!("one part: {parts:?}") };
        let document: Value = serde_json::from_str(&part.text).unwrap();
        assert_eq!(document["apiVersion"], "palisade.dev/v1");
        match part.file {
            "palisade.security-groups.json" => self.load_state(&document),
            "palisade.security-groups-changes.json" => self.load_changes(&document),
            other => panic!("{other}"),
        }
        self.index();
    }

    fn passes(&self, flow: &FlowKey, _interfaces: [&str; 2]) -> bool {
        let at = |address: IpAddr| self.ports_at.get(&address).map_or(&[][..], Vec::as_slice);
        let (from, to) = (at(flow.src), at(flow.dst));
        // A packet of a pod to itself reaches no port.
        if matches!((from, to), ([from], [to]) if from == to) || flow.src == flow.dst && !from.is_empty() {
            return true;
        }
        from.iter().all(|port| self.allows(port, false, flow.dst, flow))
            && to.iter().all(|port| self.allows(port, true, flow.src, flow))
    }

    fn is_exact(&self, flow: &FlowKey) -> bool {
        // Neutron has no port 0, no numbers of IPv6 headers for IPv4, and no ICMP for IPv6.
        match flow.protocol {
            Protocol::TCP | Protocol::UDP | Protocol::SCTP => flow.dst_port != 0,
            Protocol(41 | 43 | 44 | 58..=60) => flow.dst.is_ipv6(),
            Protocol::ICMP => flow.dst.is_ipv4(),
            _ => true,
        }
    }
}

impl Neutron {
    fn load_state(&mut self, document: &Value) {
        assert!(self.groups.is_empty() && document["kind"] == "SecurityGroups");
        list(document, "security_groups").iter().for_each(|group| self.create_group(group));
        for group in list(document, "security_groups") {
            list(group, "security_group_rules").iter().for_each(|rule| self.create_rule(rule));
        }
        list(document, "ports").iter().for_each(|port| self.set_port(port));
        list(document, "kuryrnetpolicies").iter().for_each(|resource| self.apply(resource));
        list(document, "pods").iter().for_each(|pod| self.annotate(pod));
    }

    fn load_changes(&mut self, document: &Value) {
        assert_eq!(document["kind"], "SecurityGroupChanges");
        assert_eq!(document["summary"] == "nothing to do", list(document, "steps").is_empty());
        for step in list(document, "steps") {
            let (name, changes) = step.as_object().unwrap().iter().next().unwrap();
            changes.as_array().unwrap().iter().for_each(|change| self.change(name, change));
        }
    }

    fn change(&mut self, step: &str, change: &Value) {
        let gone = || format!("{}/{}", text(change, "namespace"), text(change, "name"));
        match step {
            "create_security_groups" => self.create_group(change),
            "create_security_group_rules" => self.create_rule(change),
            "update_ports" => {
                self.check_attachments(change);
                self.set_port(change);
            }
            "forget_ports" => {
                let name = change.as_str().unwrap();
                assert!(
                    self.ports.remove(name).is_some() && self.annotations.remove(name).is_some(),
                    "{name}"
                );
            }
            "delete_security_group_rules" => {
                let group = self.groups.get_mut(text(change, "security_group_id")).unwrap();
                let before = group.rules.len();
                group.rules.retain(|_, id| id != text(change, "id"));
                assert_eq!(group.rules.len() + 1, before, "{change} is no rule");
            }
            "update_security_groups" => {
                self.groups.get_mut(text(change, "id")).unwrap().properties = properties(change);
            }
            "delete_security_groups" => {
                let id = text(change, "id");
                assert!(self.groups.remove(id).is_some(), "{change} is no group");
                let is_used = self.ports.values().any(|port| port.groups.iter().any(|group| group == id));
                assert!(!is_used, "{change} is in use");
            }
            "apply_kuryrnetpolicies" => self.apply(change),
            "delete_kuryrnetpolicies" => assert!(self.resources.remove(&gone()).is_some(), "{change}"),
            "annotate_pods" => self.annotate(change),
            other => panic!("step {other}"),
        }
    }

    /// Checks that `attach` and `detach` lead to the groups of a port.
    fn check_attachments(&self, port: &Value) {
        let strings = |key: &str| -> BTreeSet<String> {
            list(port, key).iter().map(|id| id.as_str().unwrap().to_owned()).collect()
        };
        let old = self.ports.get(text(port, "name"));
        let mut groups: BTreeSet<String> =
            old.map(|port| port.groups.iter().cloned().collect()).unwrap_or_default();
        assert!(strings("attach").is_disjoint(&groups) && strings("detach").is_subset(&groups), "{port}");
        groups.extend(strings("attach"));
        groups.retain(|group| !strings("detach").contains(group));
        assert_eq!(groups, strings("security_groups"), "{port}");
    }

    fn create_group(&mut self, group: &Value) {
        let id = text(group, "id").to_owned();
        assert!(text(group, "name").len() <= 255 && text(group, "description").chars().count() <= 255);
        let group = Group { properties: properties(group), rules: BTreeMap::new() };
        assert!(self.groups.insert(id.clone(), group).is_none(), "group {id} exists");
    }

    fn create_rule(&mut self, value: &Value) {
        let rule = Rule::parse(value);
        assert!(rule.group.iter().all(|group| self.groups.contains_key(group)), "{value}: no remote group");
        let group =
            self.groups.get_mut(text(value, "security_group_id")).expect("the group of a rule exists");
        assert!(
            group.rules.insert(rule, text(value, "id").to_owned()).is_none(),
            "{value}: the group has it"
        );
    }

    fn set_port(&mut self, value: &Value) {
        let address = |fixed: &Value| text(fixed, "ip_address").parse().unwrap();
        let addresses = list(value, "fixed_ips").iter().map(address).collect();
        let groups: Vec<String> =
            list(value, "security_groups").iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        assert!(groups.iter().all(|group| self.groups.contains_key(group)), "{value}");
        self.ports.insert(text(value, "name").to_owned(), Port { addresses, groups });
    }

    fn apply(&mut self, resource: &Value) {
        self.resources.insert(object_name(resource), resource.clone());
    }

    fn annotate(&mut self, pod: &Value) {
        self.annotations.insert(object_name(pod), pod.clone());
    }

    fn index(&mut self) {
        (self.ports_at, self.members) = (BTreeMap::new(), BTreeMap::new());
        for (name, port) in &self.ports {
            for address in &port.addresses {
                self.ports_at.entry(*address).or_default().push(name.clone());
            }
            for group in &port.groups {
                self.members.entry(group.clone()).or_default().extend(&port.addresses);
            }
        }
    }

    fn allows(&self, port: &str, is_ingress: bool, peer: IpAddr, flow: &FlowKey) -> bool {
        let rules = self.ports[port].groups.iter().flat_map(|group| self.groups[group].rules.keys());
        rules.into_iter().any(|rule| {
            rule.is_ingress == is_ingress
                && rule.is_v4 == peer.is_ipv4()
                && rule.protocol.is_none_or(|protocol| protocol == flow.protocol.0)
                && rule.ports.is_none_or(|(first, last)| (first..=last).contains(&flow.dst_port))
                && rule.prefix.is_none_or(|prefix| prefix.contains(&peer))
                && rule.group.as_ref().is_none_or(|group| {
                    self.members.get(group).is_some_and(|members| members.contains(&peer))
                })
        })
    }
}

impl Rule {
    /// Parses a rule with the checks of the API server.
    fn parse(value: &Value) -> Rule {
        let mut fields = value.as_object().unwrap().clone();
        let mut take = |key: &str| fields.remove(key);
        let mut string = |key: &str| take(key).map(|value| value.as_str().unwrap().to_owned());
        let is_ingress = match string("direction").as_deref() {
            Some("ingress") => true,
            Some("egress") => false,
            other => panic!("direction {other:?}"),
        };
        let is_v4 = match string("ethertype").as_deref() {
            Some("IPv4") => true,
            Some("IPv6") => false,
            other => panic!("ethertype {other:?}"),
        };
        let protocol: Option<u8> = string("protocol").map(|name| match name.as_str() {
            "tcp" => 6,
            "udp" => 17,
            "sctp" => 132,
            number => number.parse().unwrap(),
        });
        let prefix: Option<IpNet> = string("remote_ip_prefix").map(|prefix| prefix.parse().unwrap());
        let group = string("remote_group_id");
        let named = ["id", "security_group_id", "description"].map(|key| string(key).unwrap());
        let mut port = |key: &str| take(key).map(|port| u16::try_from(port.as_u64().unwrap()).unwrap());
        let ports = match (port("port_range_min"), port("port_range_max")) {
            (None, None) => None,
            (Some(first), Some(last)) => Some((first, last)),
            other => panic!("{value}: {other:?}"),
        };
        assert!(fields.is_empty(), "{fields:?}");
        assert_eq!(named[0].len(), 36);
        if let Some((first, last)) = ports {
            assert!(matches!(protocol, Some(6 | 17 | 132)), "{value}: ports of what?");
            assert!(first > 0 && first <= last, "{value}: no port 0");
        }
        let is_of_v6 = protocol.is_some_and(|number| matches!(number, 41 | 43 | 44 | 58..=60));
        assert!(
            !(is_v4 && is_of_v6) && (is_v4 || protocol != Some(1)),
            "{value}: protocol of the other family"
        );
        assert!(
            prefix.is_none_or(|prefix| prefix.addr().is_ipv4() == is_v4),
            "{value}: prefix of the other family"
        );
        assert!(prefix.is_none_or(|prefix| prefix == prefix.trunc()), "{value}: host bits");
        assert!(prefix.is_none() || group.is_none(), "{value}: two remotes");
        Rule { is_ingress, is_v4, protocol, ports, prefix, group }
    }
}

/// Group without its rules.
fn properties(group: &Value) -> Value {
    let mut group = group.clone();
    group.as_object_mut().unwrap().remove("security_group_rules");
    group
}

fn object_name(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{}/{}", text(metadata, "namespace"), text(metadata, "name"))
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).map_or(&[], |list| list.as_array().unwrap())
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}
