//! Recorded state, in the fields of Neutron and Kuryr.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids;
use crate::net::flow::Protocol;
use crate::render::plan::Family;
use crate::tables::Direction;

/// Marks the format of the state.
pub(super) const API_VERSION: &str = "palisade.dev/v1";
/// Marks a state.
pub(super) const STATE_KIND: &str = "SecurityGroups";

/// Security groups, ports, and the resources of Kubernetes that record them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    #[serde(rename = "apiVersion")]
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) security_groups: Vec<SecurityGroup>,
    pub(super) ports: Vec<Port>,
    pub(super) kuryrnetpolicies: Vec<KuryrNetPolicy>,
    pub(super) pods: Vec<AnnotatedPod>,
}

/// Security group of Neutron.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecurityGroup {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) tags: Vec<String>,
    #[serde(default, rename = "security_group_rules", skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<SecurityGroupRule>,
}

/// Rule of a security group of Neutron. It allows; absent fields match everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecurityGroupRule {
    pub(super) direction: Direction,
    pub(super) ethertype: EtherType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port_range_min: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port_range_max: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote_ip_prefix: Option<IpNet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote_group_id: Option<String>,
    pub(super) security_group_id: String,
    pub(super) description: String,
    pub(super) id: String,
}

/// Address family of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum EtherType {
    IPv4,
    IPv6,
}

impl From<Family> for EtherType {
    fn from(family: Family) -> EtherType {
        match family {
            Family::V4 => EtherType::IPv4,
            Family::V6 => EtherType::IPv6,
        }
    }
}

/// Port of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    /// `namespace/name` of the pod.
    pub(super) name: String,
    pub(super) fixed_ips: Vec<FixedIp>,
    pub(super) security_groups: Vec<String>,
}

/// Address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FixedIp {
    pub(super) ip_address: IpAddr,
}

/// Resource in which Kuryr records the group of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KuryrNetPolicy {
    #[serde(rename = "apiVersion")]
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Metadata,
    pub(super) spec: KuryrNetPolicySpec,
}

/// Name and annotations of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) name: String,
    pub(super) namespace: String,
}

/// Rules, and the policy from which they come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct KuryrNetPolicySpec {
    pub(super) egress_sg_rules: Vec<RecordedRule>,
    pub(super) ingress_sg_rules: Vec<RecordedRule>,
    #[serde(rename = "networkpolicy_spec")]
    pub(super) policy_spec: Value,
    pub(super) pod_selector: Value,
    pub(super) security_group_id: String,
    pub(super) security_group_name: String,
}

/// Rule, and the pods from which it follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordedRule {
    /// Namespace of the peers, if it is one by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// Addresses of the pods that have the named port, with their namespaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) remote_ip_prefixes: BTreeMap<IpAddr, String>,
    pub(super) security_group_rule: SecurityGroupRule,
}

/// Pod with the annotations of Kuryr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnnotatedPod {
    pub(super) metadata: Metadata,
}

/// Peer of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Remote {
    /// Every address.
    Anyone,
    /// Addresses of a prefix.
    Prefix(IpNet),
    /// Addresses of the ports that are in a group.
    Group(String),
}

/// Protocol, and its ports if not all; `None` for all traffic.
pub(super) type Service = Option<(Protocol, Option<(u16, u16)>)>;

/// Match of a rule, before it belongs to a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleMatch {
    pub(super) direction: Direction,
    pub(super) family: Family,
    pub(super) service: Service,
    pub(super) remote: Remote,
}

impl RuleMatch {
    /// Rule of a group.
    pub(super) fn in_group(&self, group: &str, description: &str) -> SecurityGroupRule {
        let ports = self.service.and_then(|(_, ports)| ports);
        let (remote_ip_prefix, remote_group_id) = match &self.remote {
            Remote::Anyone => (None, None),
            Remote::Prefix(prefix) => (Some(*prefix), None),
            Remote::Group(group) => (None, Some(group.clone())),
        };
        let mut rule = SecurityGroupRule {
            direction: self.direction,
            ethertype: self.family.into(),
            protocol: self.service.map(|(protocol, _)| protocol_name(protocol)),
            port_range_min: ports.map(|(first, _)| first),
            port_range_max: ports.map(|(_, last)| last),
            remote_ip_prefix,
            remote_group_id,
            security_group_id: group.to_owned(),
            description: description.to_owned(),
            id: String::new(),
        };
        rule.id = rule.content_id();
        rule
    }
}

impl SecurityGroupRule {
    /// Identifier that follows from the match of the rule and from its group.
    pub(super) fn content_id(&self) -> String {
        let or_none = |text: Option<String>| text.unwrap_or_default();
        ids::uuid(&[
            "rule",
            &self.security_group_id,
            &self.direction.to_string(),
            if self.ethertype == EtherType::IPv4 { "4" } else { "6" },
            self.protocol.as_deref().unwrap_or_default(),
            &or_none(self.port_range_min.map(|port| port.to_string())),
            &or_none(self.port_range_max.map(|port| port.to_string())),
            &or_none(self.remote_ip_prefix.map(|prefix| prefix.to_string())),
            self.remote_group_id.as_deref().unwrap_or_default(),
            &self.description,
        ])
    }
}

/// Name of a protocol in Neutron: a word, or the number.
fn protocol_name(protocol: Protocol) -> String {
    match protocol {
        Protocol::TCP => "tcp".to_owned(),
        Protocol::UDP => "udp".to_owned(),
        Protocol::SCTP => "sctp".to_owned(),
        Protocol(number) => number.to_string(),
    }
}
