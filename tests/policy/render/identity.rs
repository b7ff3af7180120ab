//! Interpreter of identities, after Cilium's datapath (`bpf/lib/policy.h`): the address-to-identity cache is a
//! longest-prefix map, and so is the policy map of an endpoint, by identity and direction exactly, then protocol and
//! port. It is asked twice, with the identity of the peer and with 0. A denial of either decides, then an allowance of
//! either; without any the packet is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::FlowKey;
use palisade::render::Part;
use serde_json::Value;

use super::System;

/// Maps of Cilium on all nodes.
#[derive(Debug, Default)]
pub(super) struct Cilium {
    pub(super) identities: BTreeMap<u32, Vec<String>>,
    pub(super) ipcache: BTreeMap<IpNet, u32>,
    pub(super) policies: BTreeMap<String, BTreeMap<Key, Entry>>,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    /// Lengths of the prefixes, the longest first.
    lengths: Vec<u8>,
    at: BTreeMap<IpAddr, Vec<String>>,
    /// Prefix lengths of protocol and port with verdicts, by policy, direction and identity.
    tries: BTreeMap<(String, bool, u32), Vec<(Key, bool)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) is_egress: bool,
    pub(super) identity: u32,
    pub(super) protocol: Option<u8>,
    pub(super) port: u16,
    pub(super) mask: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) is_deny: bool,
    pub(super) derived_from: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) identity: u32,
    addresses: Vec<IpAddr>,
    pub(super) host: Vec<IpAddr>,
    pub(super) policy: String,
}

impl System for Cilium {
    fn load(&mut self, parts: &[Part]) {
        let [part] = parts else { panic!("one part: {parts:?}") };
        let document: Value = serde_json::from_str(&part.text).unwrap();
        assert_eq!(document["apiVersion"], "palisade.dev/v1");
        match part.file {
            "palisade.identity.json" => {
                assert!(self.identities.is_empty() && document["kind"] == "Identities");
                fields(
                    &document,
                    &["apiVersion", "kind", "summary", "identities", "ipcache", "policies", "endpoints"],
                );
                self.write(&document);
            }
            "palisade.identity-changes.json" => {
                assert_eq!(document["kind"], "IdentityChanges");
                fields(&document, &["apiVersion", "kind", "summary", "write", "delete"]);
                let is_empty = |key: &str| {
                    document[key]
                        .as_object()
                        .unwrap()
                        .values()
                        .all(|list| list.as_array().unwrap().is_empty())
                };
                assert_eq!(document["summary"] == "nothing to do", is_empty("write") && is_empty("delete"));
                self.write(&document["write"]);
                self.delete(&document["delete"]);
            }
            other => panic!("{other}"),
        }
        self.index();
    }

    fn passes(&self, flow: &FlowKey, _interfaces: [&str; 2]) -> bool {
        let at = |address: IpAddr| self.at.get(&address).map_or(&[][..], Vec::as_slice);
        let (from, to) = (at(flow.src), at(flow.dst));
        // A packet of a pod to itself does not leave it.
        if matches!((from, to), ([from], [to]) if from == to) || flow.src == flow.dst && !from.is_empty() {
            return true;
        }
        from.iter().all(|pod| self.allows(pod, true, flow.dst, flow))
            && to.iter().all(|pod| self.allows(pod, false, flow.src, flow))
    }
}

impl Cilium {
    fn write(&mut self, maps: &Value) {
        for value in list(maps, "identities") {
            fields(value, &["identity", "labels"]);
            let labels =
                list(value, "labels").iter().map(|label| label.as_str().unwrap().to_owned()).collect();
            put(&mut self.identities, number(value, "identity"), labels);
        }
        for value in list(maps, "ipcache") {
            fields(value, &["prefix", "identity"]);
            put(&mut self.ipcache, text(value, "prefix").parse().unwrap(), number(value, "identity"));
        }
        for policy in list(maps, "policies") {
            fields(policy, &["policy", "entries"]);
            let map = self.policies.entry(text(policy, "policy").to_owned()).or_default();
            for value in list(policy, "entries") {
                fields(
                    value,
                    &["direction", "identity", "protocol", "port", "mask", "action", "derived_from"],
                );
                let is_deny = match text(value, "action") {
                    "allow" => false,
                    "deny" => true,
                    other => panic!("{other}"),
                };
                let derived_from = text(value, "derived_from").to_owned();
                put(map, key(value), Entry { is_deny, derived_from });
            }
        }
        for value in list(maps, "endpoints") {
            fields(value, &["pod", "identity", "addresses", "host", "policy"]);
            let addresses = |key: &str| {
                list(value, key).iter().map(|address| address.as_str().unwrap().parse().unwrap()).collect()
            };
            let endpoint = Endpoint {
                identity: number(value, "identity"),
                addresses: addresses("addresses"),
                host: addresses("host"),
                policy: text(value, "policy").to_owned(),
            };
            put(&mut self.endpoints, text(value, "pod").to_owned(), endpoint);
        }
    }

    fn delete(&mut self, maps: &Value) {
        for value in list(maps, "endpoints") {
            assert!(self.endpoints.remove(text(value, "pod")).is_some(), "{value}");
        }
        for value in list(maps, "ipcache") {
            assert!(self.ipcache.remove(&text(value, "prefix").parse().unwrap()).is_some(), "{value}");
        }
        for policy in list(maps, "entries") {
            let map = self.policies.get_mut(text(policy, "policy")).unwrap();
            list(policy, "entries")
                .iter()
                .for_each(|value| assert!(map.remove(&key(value)).is_some(), "{value}"));
        }
        for value in list(maps, "policies") {
            assert!(self.policies.remove(value.as_str().unwrap()).is_some(), "{value}");
        }
        for value in list(maps, "identities") {
            assert!(self.identities.remove(&number(value, "identity")).is_some(), "{value}");
        }
    }

    /// Checks the maps as a whole, and indexes them for lookups.
    fn index(&mut self) {
        let distinct: BTreeSet<&Vec<String>> = self.identities.values().collect();
        assert_eq!(distinct.len(), self.identities.len(), "two numbers for a label set");
        for (number, labels) in &self.identities {
            let has = |prefix: &str| labels.iter().any(|label| label.starts_with(prefix));
            let is_in_range = match number {
                1 | 6 | 9 | 10 => labels.len() == 1 && has("reserved:"),
                256..=65_535 => has("k8s:io.kubernetes.pod.namespace=") && !has("reserved:"),
                0x0100_0001..=0x01ff_ffff => has("cidr:"),
                0x0200_0001..=0x02ff_ffff => has("reserved:remote-node"),
                _ => false,
            };
            assert!(is_in_range, "{number}: {labels:?}");
        }
        let known = |number: &u32| self.identities.contains_key(number);
        assert!(self.ipcache.values().all(known) && self.ipcache.len() <= 512_000);
        let lengths: BTreeSet<u8> = self.ipcache.keys().map(IpNet::prefix_len).collect();
        self.lengths = lengths.into_iter().rev().collect();
        (self.at, self.tries) = (BTreeMap::new(), BTreeMap::new());
        let used: BTreeSet<&String> = self.endpoints.values().map(|endpoint| &endpoint.policy).collect();
        assert!(self.policies.keys().eq(used), "every policy map has an endpoint");
        for (pod, endpoint) in &self.endpoints {
            assert!(known(&endpoint.identity) && !endpoint.addresses.is_empty());
            for address in &endpoint.addresses {
                self.at.entry(*address).or_default().push(pod.clone());
            }
        }
        for (name, map) in &self.policies {
            assert!(map.len() <= 65_536);
            for (key, entry) in map {
                assert!(key.identity == 0 || known(&key.identity), "{name}: {key:?}");
                let trie = self.tries.entry((name.clone(), key.is_egress, key.identity)).or_default();
                trie.push((*key, entry.is_deny));
            }
        }
    }

    /// Identity of an address in the cache.
    pub(super) fn identity_of(&self, address: IpAddr) -> u32 {
        let mut prefixes = self.lengths.iter().filter_map(|length| IpNet::new(address, *length).ok());
        prefixes.find_map(|prefix| self.ipcache.get(&prefix.trunc())).copied().expect("/0 is in the cache")
    }

    fn allows(&self, pod: &str, is_egress: bool, peer: IpAddr, flow: &FlowKey) -> bool {
        let endpoint = &self.endpoints[pod];
        let identity = if endpoint.host.contains(&peer) { 1 } else { self.identity_of(peer) };
        let lookup = |identity: u32| {
            let trie = self.tries.get(&(endpoint.policy.clone(), is_egress, identity))?;
            let matches = |key: &Key| {
                key.protocol.is_none_or(|protocol| protocol == flow.protocol.0)
                    && flow.dst_port & key.mask == key.port
            };
            let length = |key: &Key| u32::from(key.protocol.is_some()) * 8 + key.mask.count_ones();
            let found = trie.iter().filter(|(key, _)| matches(key));
            found.max_by_key(|(key, _)| length(key)).map(|(_, is_deny)| *is_deny)
        };
        match (lookup(identity), lookup(0)) {
            (Some(true), _) | (_, Some(true)) | (None, None) => false,
            (Some(false), _) | (_, Some(false)) => true,
        }
    }
}

/// Writes an entry, which the map lacks.
fn put<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    let is_same = map.get(&key) == Some(&value);
    assert!(!is_same, "a change writes what is there");
    map.insert(key, value);
}

fn key(value: &Value) -> Key {
    let mask = text(value, "mask").strip_prefix("0x").unwrap();
    assert_eq!(mask.len(), 4);
    let port = u16::try_from(value["port"].as_u64().unwrap()).unwrap();
    let protocol = match value["protocol"].as_str() {
        Some("ANY") => None,
        Some("TCP") => Some(6),
        Some("UDP") => Some(17),
        Some("SCTP") => Some(132),
        Some(other) => panic!("{other}"),
        None => Some(u8::try_from(value["protocol"].as_u64().unwrap()).unwrap()),
    };
    let mask = u16::from_str_radix(mask, 16).unwrap();
    assert!(mask.leading_ones() == mask.count_ones() && port & !mask == 0, "{value}");
    assert!(protocol.is_some() || mask == 0, "{value}");
    let is_egress = match text(value, "direction") {
        "ingress" => false,
        "egress" => true,
        other => panic!("{other}"),
    };
    Key { is_egress, identity: number(value, "identity"), protocol, port, mask }
}

/// Asserts that an object has these fields alone.
fn fields(value: &Value, names: &[&str]) {
    let found: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, names.iter().copied().collect(), "{value}");
}

fn number(value: &Value, key: &str) -> u32 {
    u32::try_from(value[key].as_u64().unwrap()).unwrap()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}
