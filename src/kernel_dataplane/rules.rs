//! Rules of a desired state: rule tables of the attached pods, and rules about ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::port_rules::PortRules;
use super::table_names::TableNames;
use crate::dataplane::{DesiredState, PodAttachment};
use crate::ids::{AclId, PortId, RowId, RuleId};
use crate::render::{
    ClusterState, Format, Part, RenderError, RenderOptions, counter_name, difference_of, render,
};
use crate::tables::{
    Acl, Decision, Direction, PersistentMap, PodPolicy, Row, RuleOrigin, RuleTables, Verdict,
};

/// Commands of a load, one transaction for each step: additions that no packet meets yet, the change of decisions, and removals.
pub(super) type Steps = [String; 3];

/// Rules that the kernel has, or is to have.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    names: TableNames,
    /// Rule tables in force, of which the others are a selection.
    source: Option<Arc<RuleTables>>,
    /// Rule tables of the attached pods, with the addresses of their ports.
    tables: RuleTables,
    options: RenderOptions,
    ports: PortRules,
}

/// Ports by name of their interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Interfaces {
    /// Interfaces of pods.
    pub(super) pods: BTreeMap<PortId, String>,
    /// Interfaces of other ports.
    pub(super) others: BTreeSet<String>,
    /// Interfaces that stay closed without a port.
    pub(super) blocked: BTreeSet<String>,
}

impl Rules {
    /// Rules for these ports. A pod that the tables do not know is closed, unless the state opens it.
    pub(super) fn new(desired: &DesiredState, interfaces: &Interfaces, tcp_pickup: bool) -> Rules {
        let mut tables = desired.tables.as_deref().cloned().unwrap_or_default();
        let known = std::mem::take(&mut tables.pods);
        let mut open = None;
        let mut options = RenderOptions { every_packet: true, ..RenderOptions::default() };
        let mut pods = BTreeMap::new();
        for PodAttachment { pod, port, addresses, .. } in &desired.pods {
            let Some(interface) = interfaces.pods.get(port) else { continue };
            let policy = match known.get(pod) {
                Some(policy) => policy.clone(),
                None if desired.fail_open => open.get_or_insert_with(|| add_open_policy(&mut tables)).clone(),
                None => continue,
            };
            let mut addresses = addresses.clone();
            addresses.sort_unstable();
            pods.insert(pod.clone(), PodPolicy { addresses, ..policy });
            options.interfaces.insert(pod.clone(), interface.clone());
        }
        tables.pods = pods.into_iter().collect();
        let has_pod: BTreeSet<&String> = options.interfaces.values().collect();
        let host = desired.node.as_ref().map(|node| node.port);
        let closed = interfaces.pods.values().filter(|name| !has_pod.contains(name));
        let ports = PortRules {
            pods: interfaces.pods.values().cloned().collect(),
            closed: closed.chain(&interfaces.blocked).cloned().collect(),
            others: interfaces.others.clone(),
            gateways: gateways(desired),
            pod_prefixes: desired.pod_prefixes.iter().map(IpNet::trunc).collect(),
            through_node: desired.routes.iter().any(|route| Some(route.port) == host),
            tcp_pickup,
        };
        let names = TableNames::default();
        Rules { names, source: desired.tables.clone(), tables, options, ports }
    }

    /// The same rules in tables of these names.
    pub(super) fn named(mut self, names: TableNames) -> Rules {
        self.names = names;
        self.options.table = names.rules();
        self
    }

    /// Names of the tables.
    pub(super) fn names(&self) -> TableNames {
        self.names
    }

    /// Load of all tables, none of which exists.
    pub(super) fn whole(&self) -> Result<Steps, RenderError> {
        let [added, changed, removed] = steps(render(Format::Nftables, self.state(), &self.options)?);
        let ports = self.names.ports();
        Ok([
            self.ports.below_hooks(ports) + &added + &self.all_tables(),
            self.ports.hooks(ports) + &changed,
            removed,
        ])
    }

    /// Load that leads from other rules in tables of the same names to these.
    pub(super) fn since(&self, old: &Rules) -> Result<Steps, RenderError> {
        let same = |left: &Option<Arc<RuleTables>>, right: &Option<Arc<RuleTables>>| {
            left.as_ref().map(Arc::as_ptr) == right.as_ref().map(Arc::as_ptr)
        };
        let [mut added, mut changed, mut removed] = Steps::default();
        if self.ports != old.ports {
            let ports = self.names.ports();
            changed = self.ports.below_hooks(ports) + &self.ports.hooks(ports);
            removed = self.ports.gone_since(&old.ports, ports);
        }
        let is_same = same(&self.source, &old.source)
            && self.options == old.options
            && self.tables.pods == old.tables.pods;
        if !is_same {
            let (old, new) = ((old.state(), &old.options), (self.state(), &self.options));
            let rules = steps(difference_of(Format::Nftables, old, new)?);
            for (step, rules) in [&mut added, &mut changed, &mut removed].into_iter().zip(rules) {
                *step += &rules;
            }
            if !removed.is_empty() {
                removed += &self.all_tables();
            }
        }
        Ok([added, changed, removed])
    }

    /// Decisions by the name of their counter.
    pub(super) fn decisions(&self) -> BTreeMap<String, (RuleOrigin, Verdict)> {
        let both = |origin: &RuleOrigin| {
            [Verdict::Allow, Verdict::Deny]
                .map(|verdict| (counter_name(origin, verdict), (origin.clone(), verdict)))
        };
        self.tables.rules.values().flat_map(both).collect()
    }

    fn state(&self) -> ClusterState<'_> {
        ClusterState { tables: &self.tables, objects: &[] }
    }

    /// Commands that keep the tables of a family in which no pod has an address: a table that is missing was removed by another
    /// program.
    fn all_tables(&self) -> String {
        self.names.all().map(|table| format!("add table {table}\n")).concat()
    }
}

/// Addresses on which pods know the switch.
pub(super) fn gateways(desired: &DesiredState) -> BTreeSet<IpAddr> {
    // Gateways of the pods that the CNI plugin attaches.
    let usual = [IpAddr::from([169, 254, 1, 1]), IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1])];
    desired.gateway.addresses.iter().copied().chain(usual).collect()
}

/// Texts of the parts, which a rendering for the kernel's dataplane has one of for each step.
fn steps(parts: Vec<Part>) -> Steps {
    let mut texts = parts.into_iter().map(|part| part.text);
    Steps::default().map(|_| texts.next().unwrap_or_default())
}

/// Adds the policy of a pod that nothing isolates.
fn add_open_policy(tables: &mut RuleTables) -> PodPolicy {
    let rule = tables.rules.last_key_value().map_or(RuleId(0), |(last, _)| RuleId(last.0 + 1));
    let row = tables.rows.last_key_value().map_or(RowId(0), |(last, _)| RowId(last.0 + 1));
    let acl = tables.acls.last_key_value().map_or(AclId(0), |(last, _)| AclId(last.0 + 1));
    tables.rules.insert(rule, RuleOrigin::NotIsolated { direction: Direction::Ingress });
    tables.rows.insert(row, Row::uniform(Decision::allow(rule)));
    tables.acls.insert(acl, Acl { rows: PersistentMap::new(), default: row });
    PodPolicy { addresses: Vec::new(), ingress: acl, egress: acl }
}
