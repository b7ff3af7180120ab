//! Security groups of Neutron, and the resources and annotations in which Kuryr records them.
//!
//! Rules of security groups allow and add up, as `NetworkPolicies` do: a policy is a group, attached to the ports of
//! the pods that it selects. Cluster-wide policies deny and have an order. Pods for which they decide have groups of
//! the compiled tables instead, in which denials are split away.

mod changes;
mod cluster;
mod groups;
mod ids;
mod model;
mod policy;
mod print;
mod ranges;
mod record;
mod resolve;
mod spec;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use cluster::{Cluster, Owner};
use groups::Groups;
use model::{
    API_VERSION, AnnotatedPod, Document, FixedIp, KuryrNetPolicy, Metadata, Port, Remote, RuleMatch,
    STATE_KIND, SecurityGroupRule,
};
use policy::{DIRECTIONS, PolicyGroup, RULE_DESCRIPTION};
use serde_json::json;

use super::output::{Part, RenderError, RenderOptions};
use super::plan::{Family, Plan, PodLists};
use super::rendering::{ClusterState, Rendering, plans};
use crate::ids::{AclId, RuleId};
use crate::policy::objects::{NetworkPolicy, Pod};
use crate::tables::{Direction, PodName, PolicyKind, RuleTables};

/// State in the terms of Neutron.
#[derive(Debug, PartialEq)]
pub(super) struct State(Document);

impl Rendering for State {
    fn new(state: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        Builder::new(state, options).document().map(State)
    }

    fn parts(&self) -> Vec<Part> {
        vec![Part { file: "palisade.security-groups.json", text: print::text(&json!(self.0)) }]
    }

    fn parts_since(&self, old: &State) -> Vec<Part> {
        let text = print::text(&changes::between(&old.0, &self.0));
        vec![Part { file: "palisade.security-groups-changes.json", text }]
    }
}

impl State {
    /// Reads a recorded state.
    pub(super) fn recorded(text: &str) -> Result<State, RenderError> {
        record::read(text).map(State).map_err(RenderError::Recorded)
    }
}

/// State under construction.
struct Builder<'a> {
    cluster: Cluster<'a>,
    tables: &'a RuleTables,
    plans: [Plan; 2],
    groups: Groups<'a>,
    /// Pods whose ports are printed with all their groups, and how their traffic is decided.
    chosen: BTreeMap<&'a PodName, Chosen<'a>>,
}

/// Chosen pod.
#[derive(Debug, Clone)]
struct Chosen<'a> {
    pod: &'a Pod,
    /// Directions in which a policy isolates the pod.
    isolated: BTreeSet<Direction>,
    /// Whether the groups are of the tables rather than of policies.
    is_resolved: bool,
}

impl<'a> Builder<'a> {
    fn new(state: ClusterState<'a>, options: &RenderOptions) -> Builder<'a> {
        let cluster = Cluster::new(state.objects);
        let is_chosen = |name: &PodName| {
            state.tables.pods.contains_key(name) && options.pod.as_ref().is_none_or(|only| only == name)
        };
        let pods = cluster.pods.iter().filter(|(name, _)| is_chosen(name));
        let of_pod = |(&name, &pod): (&&'a PodName, &&'a Pod)| {
            (name, Chosen { pod, isolated: BTreeSet::new(), is_resolved: false })
        };
        let chosen = pods.map(of_pod).collect();
        let plans = plans(state.tables, options);
        Builder { cluster, tables: state.tables, plans, groups: Groups::default(), chosen }
    }

    fn document(mut self) -> Result<Document, RenderError> {
        let policies = self.select();
        self.find_resolved();
        let resources = self.add_policies(&policies)?;
        let names: Vec<&PodName> = self.chosen.keys().copied().collect();
        for name in names {
            self.attach(name)?;
        }
        self.finish(resources)
    }

    /// Selects the pods of each policy that is printed.
    fn select(&mut self) -> Vec<(&'a NetworkPolicy, Vec<&'a PodName>)> {
        let is_whole = self.chosen.len() == self.cluster.pods.len();
        let mut policies = Vec::new();
        for &policy in self.cluster.policies.values() {
            let selected = self.cluster.select(&policy::subject(policy));
            let mut names = Vec::new();
            let directions = DIRECTIONS.into_iter().filter(|&way| policy::rules(policy, way).is_some());
            let directions: Vec<Direction> = directions.collect();
            let is_uniform = directions.iter().all(|&way| policy::is_uniform(&self.cluster, policy, way));
            for pod in selected.iter() {
                let Some(chosen) = self.chosen.get_mut(&pod.name) else { continue };
                names.push(&pod.name);
                chosen.isolated.extend(&directions);
                chosen.is_resolved |= !is_uniform;
            }
            if is_whole || !names.is_empty() {
                policies.push((policy, names));
            }
        }
        policies
    }

    /// Marks the pods whose verdicts are not those of their policies added up: a cluster-wide policy decides some of
    /// their traffic, or another pod has their address.
    fn find_resolved(&mut self) {
        let is_pod = |owner: &&Owner| matches!(owner, Owner::Pod(_));
        let several = |(_, owners): &&(IpAddr, Vec<Owner>)| owners.iter().filter(is_pod).count() > 1;
        let claimed: BTreeSet<IpAddr> =
            self.cluster.shared.iter().filter(several).map(|entry| entry.0).collect();
        let mut known: HashMap<AclId, bool> = HashMap::new();
        for (name, chosen) in &mut self.chosen {
            let policy = &self.tables.pods[*name];
            let mut is_of_cluster =
                |id: AclId| *known.entry(id).or_insert_with(|| has_cluster_rules(self.tables, id));
            chosen.is_resolved |= [policy.ingress, policy.egress].into_iter().any(&mut is_of_cluster)
                || chosen.pod.addresses.iter().any(|address| claimed.contains(address));
        }
    }

    fn add_policies(
        &mut self,
        policies: &[(&'a NetworkPolicy, Vec<&'a PodName>)],
    ) -> Result<Vec<KuryrNetPolicy>, RenderError> {
        let mut resources = Vec::with_capacity(policies.len());
        for (policy, names) in policies {
            let own = names.iter().map(|name| &self.chosen[name]).filter(|chosen| !chosen.is_resolved);
            let pods: Vec<&Pod> = own.map(|chosen| chosen.pod).collect();
            let mut open = Vec::new();
            for way in DIRECTIONS.into_iter().filter(|&way| policy::rules(policy, way).is_none()) {
                let families = self.cluster.families.clone();
                open.extend(self.open_group(way, &families)?.1);
            }
            resources.push(PolicyGroup::add(&self.cluster, &mut self.groups, policy, &pods, open)?);
        }
        Ok(resources)
    }

    /// Attaches a pod to the groups of its node and, if it is resolved, to those of the tables.
    fn attach(&mut self, name: &'a PodName) -> Result<(), RenderError> {
        let Chosen { isolated, is_resolved, .. } = self.chosen[name].clone();
        if !is_resolved {
            let families = self.cluster.families.clone();
            for way in DIRECTIONS.into_iter().filter(|way| !isolated.contains(way)) {
                let (id, _) = self.open_group(way, &families)?;
                self.groups.attach(name, &id);
            }
        }
        let mut nodes = Vec::new();
        let mut open: BTreeMap<Direction, Vec<Family>> = BTreeMap::new();
        let mut has_list = false;
        for (place, family) in Family::ALL.into_iter().enumerate() {
            let Some(PodLists { ingress, egress, nodes: of_family }) = self.plans[place].pods.get(name)
            else {
                continue;
            };
            nodes.extend(of_family.iter().copied());
            for (way, list) in [(Direction::Ingress, ingress.clone()), (Direction::Egress, egress.clone())] {
                match list {
                    _ if !is_resolved => {}
                    Some(list) => {
                        has_list = true;
                        let id = self.list_group(place, family, &list)?;
                        self.groups.attach(name, &id);
                    }
                    None => open.entry(way).or_default().push(family),
                }
            }
        }
        for (way, mut families) in open {
            // Without any list the pod is as one that no policy selects.
            if !has_list {
                families.clone_from(&self.cluster.families);
            }
            let (id, _) = self.open_group(way, &families)?;
            self.groups.attach(name, &id);
        }
        if is_resolved || isolated.contains(&Direction::Ingress) {
            self.attach_nodes(name, &nodes)?;
        }
        Ok(())
    }

    /// Group that allows everything in a direction, for pods that no policy isolates. Returns its id and rules.
    fn open_group(
        &mut self,
        direction: Direction,
        families: &[Family],
    ) -> Result<(String, Vec<SecurityGroupRule>), RenderError> {
        let of = match families {
            _ if families == self.cluster.families => "",
            [Family::V4] => "-ipv4",
            _ => "-ipv6",
        };
        let name = format!("sg-allow-all-{direction}{of}");
        let description = format!("Pods that no policy isolates for {direction}");
        let id = self.groups.add(&["open", &name], name.clone(), &description, Vec::new())?;
        let mut rules = Vec::with_capacity(families.len());
        for &family in families {
            let rule = RuleMatch { direction, family, service: None, remote: Remote::Anyone };
            rules.push(self.groups.add_rule(&id, &rule, RULE_DESCRIPTION)?);
        }
        Ok((id, rules))
    }

    /// Attaches a pod to the group that admits the addresses of its node.
    fn attach_nodes(&mut self, pod: &'a PodName, nodes: &[IpAddr]) -> Result<(), RenderError> {
        let Some(first) = nodes.first() else { return Ok(()) };
        let addresses: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let key = addresses.join(" ");
        let description = format!("From the node with {key}");
        let id = self.groups.add(&["node", &key], format!("sg-node-{first}"), &description, Vec::new())?;
        for &node in nodes {
            let rule = RuleMatch {
                direction: Direction::Ingress,
                family: policy::family_of(node),
                service: None,
                remote: Remote::Prefix(node.into()),
            };
            self.groups.add_rule(&id, &rule, RULE_DESCRIPTION)?;
        }
        self.groups.attach(pod, &id);
        Ok(())
    }

    /// Group of a rule list of the tables. Returns its id.
    fn list_group(&mut self, place: usize, family: Family, list: &str) -> Result<String, RenderError> {
        let plan: &Plan = &self.plans[place];
        let acl = &plan.acls[list];
        let version = ["ipv4", "ipv6"][place];
        let name = ids::name("sg-", &format!("{list}-{version}"));
        let key = ["list", version, list];
        if self.groups.has(&ids::uuid(&key)) {
            return self.groups.add(&key, name, &acl.title, Vec::new());
        }
        let id = self.groups.add(&key, name, &acl.title, Vec::new())?;
        self.groups.add_rules(&id, RULE_DESCRIPTION, |max| resolve::expand(plan, acl, family, max))?;
        Ok(id)
    }

    fn finish(self, kuryrnetpolicies: Vec<KuryrNetPolicy>) -> Result<Document, RenderError> {
        let (security_groups, mut attached) = self.groups.finish()?;
        // A pod without groups is closed, and a pod that is no chosen one is a peer.
        self.chosen.keys().for_each(|name| _ = attached.entry(name).or_default());
        let (mut ports, mut pods) = (Vec::new(), Vec::new());
        for (name, groups) in attached {
            let pod = self.cluster.pods[name];
            let groups: Vec<String> = groups.into_iter().collect();
            let annotations = [
                ("openstack.org/kuryr-namespace", name.namespace.clone()),
                ("openstack.org/kuryr-pod-label", json!(pod.labels).to_string()),
                ("openstack.org/kuryr-security-groups", json!(groups).to_string()),
            ];
            let metadata = Metadata {
                annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
                name: name.name.clone(),
                namespace: name.namespace.clone(),
            };
            let mut addresses = pod.addresses.clone();
            addresses.sort_unstable();
            addresses.dedup();
            let fixed_ips = addresses.into_iter().map(|ip_address| FixedIp { ip_address }).collect();
            ports.push(Port { name: name.to_string(), fixed_ips, security_groups: groups });
            pods.push(AnnotatedPod { metadata });
        }
        Ok(Document {
            api_version: API_VERSION.to_owned(),
            kind: STATE_KIND.to_owned(),
            security_groups,
            ports,
            kuryrnetpolicies,
            pods,
        })
    }
}

/// Tests whether a cluster-wide policy decides some traffic of a table.
fn has_cluster_rules(tables: &RuleTables, id: AclId) -> bool {
    let acl = &tables.acls[&id];
    let rows: BTreeSet<_> = acl.rows.iter().map(|(_, row)| *row).chain([acl.default]).collect();
    let is_of_cluster = |rule: RuleId| {
        tables.rules[&rule].policies().iter().any(|policy| policy.kind != PolicyKind::NetworkPolicy)
    };
    rows.iter().any(|row| tables.rows[row].decisions().any(|decision| is_of_cluster(decision.rule())))
}
