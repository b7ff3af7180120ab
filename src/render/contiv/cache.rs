//! Tables of a node with the pods that share them, as data that several formats print.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use super::allowed::AllowedSets;
use super::fold::{Folded, Scope};
use super::peers::PeerMap;
use super::refusal::inexpressible;
use super::rule::{Language, Obstacle, Rule, permit_all, push_rules};
use crate::render::output::RenderError;
use crate::render::plan::{Family, Plan, digest};
use crate::tables::{Direction, PodName};

/// Most rules of a state.
pub(in crate::render) const RULES_MAX: usize = 1 << 22;

/// State of a node. Directions are those of policy: ingress is traffic to a pod.
#[derive(Debug)]
pub(in crate::render) struct Cache {
    /// Pods with their addresses, sorted.
    pub(in crate::render) pods: BTreeMap<PodName, PodRules>,
    /// Local tables by their identifiers.
    pub(in crate::render) tables: BTreeMap<String, Vec<Rule>>,
    /// Local table of each pod that has one.
    pub(in crate::render) assigned: BTreeMap<PodName, String>,
    /// Global table; empty if it would permit everything.
    pub(in crate::render) global: Vec<Rule>,
}

/// Rules of a pod as policy has them. A direction without rules permits everything.
#[derive(Debug, Default)]
pub(in crate::render) struct PodRules {
    pub(in crate::render) addresses: Vec<IpAddr>,
    pub(in crate::render) ingress: Vec<Rule>,
    pub(in crate::render) egress: Vec<Rule>,
}

impl Cache {
    /// State of the plans of both families, folded into one direction.
    pub(in crate::render) fn new(
        plans: &[Plan; 2],
        into: Direction,
        language: Language,
    ) -> Result<Cache, RenderError> {
        let mut sets = AllowedSets::new();
        let [v4, v6] =
            &[0, 1].map(|family| Folded::new(&plans[family], Family::ALL[family], into, &mut sets));
        let both = [v4, v6];
        let mut printer = Printer { plans, sets: &sets, language, known: HashMap::new(), rules: 0 };
        let from = opposite(into);
        let mut pods: BTreeMap<PodName, PodRules> = BTreeMap::new();
        let names = both.iter().flat_map(|folded| folded.pods.keys());
        for name in names {
            if pods.contains_key(name) {
                continue;
            }
            let of_families = both.map(|folded| folded.pods.get(name));
            let addresses = of_families.iter().flatten().flat_map(|pod| pod.addresses.iter().copied());
            let ingress = of_families.map(|pod| pod.map(|pod| &pod.ingress[..]));
            let egress = of_families.map(|pod| pod.map(|pod| &pod.egress[..]));
            let rules = PodRules {
                addresses: addresses.collect(),
                ingress: printer.rules(name, ingress, Direction::Ingress)?.to_vec(),
                egress: printer.rules(name, egress, Direction::Egress)?.to_vec(),
            };
            pods.insert(name.clone(), rules);
        }
        let (mut tables, mut assigned) = (BTreeMap::new(), BTreeMap::new());
        for name in pods.keys() {
            let local = both.map(|folded| {
                folded.pods.get(name)?;
                Some(folded.local.get(name).map_or(&[][..], |scopes| &scopes[..]))
            });
            let rules = printer.rules(name, local, into)?;
            if rules.is_empty() {
                continue;
            }
            let id = identifier(&rules);
            let known = tables.entry(id.clone()).or_insert_with(|| rules.to_vec());
            if known[..] != rules[..] {
                let (first, second) = (format!("{:?}", known[0]), format!("{:?}", rules[0]));
                return Err(RenderError::SameName { first, second, name: id });
            }
            assigned.insert(name.clone(), id);
        }
        let mut global = Vec::new();
        for (folded, family) in both.into_iter().zip(Family::ALL) {
            for scope in &folded.global {
                let owner = scope.own.and_then(|own| plans[family as usize].endpoints.get(&own));
                let pod = owner.map_or_else(|| PodName::new("", ""), |endpoint| endpoint.pods[0].clone());
                printer.push(&pod, scope, family, from, &mut global)?;
            }
        }
        if !global.is_empty() {
            global.extend(Family::ALL.map(permit_all));
            global.sort();
        }
        Ok(Cache { pods, tables, assigned, global })
    }
}

/// The other direction.
pub(in crate::render) fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Ingress => Direction::Egress,
        Direction::Egress => Direction::Ingress,
    }
}

/// Scopes of a pod in one family; `None` if it has no address.
type OfFamily<'a> = Option<&'a [Scope]>;

/// Rules that follow from scopes.
struct Printer<'a> {
    plans: &'a [Plan; 2],
    sets: &'a AllowedSets,
    language: Language,
    known: HashMap<Key, Rc<[Rule]>>,
    /// Number of rules so far.
    rules: usize,
}

/// Maps with the addresses that they are for, the families that are open, and the direction.
type Key = (Vec<(Option<IpAddr>, *const PeerMap)>, Vec<bool>, bool);

impl Printer<'_> {
    /// Rules of a pod, which are for all its families if they are for one: the rules of one family alone would deny the
    /// other.
    fn rules(
        &mut self,
        pod: &PodName,
        scopes: [OfFamily; 2],
        direction: Direction,
    ) -> Result<Rc<[Rule]>, RenderError> {
        if scopes.iter().flatten().all(|scopes| scopes.is_empty()) {
            return Ok(Rc::new([]));
        }
        let of_maps = scopes.iter().flatten().flat_map(|scopes| scopes.iter());
        let maps = of_maps.map(|scope| (scope.own, Rc::as_ptr(&scope.peers))).collect();
        let is_open = scopes.iter().map(|of| of.is_some_and(<[Scope]>::is_empty)).collect();
        let key: Key = (maps, is_open, direction == Direction::Ingress);
        if let Some(known) = self.known.get(&key) {
            return Ok(Rc::clone(known));
        }
        let mut rules = Vec::new();
        for (of, family) in scopes.iter().zip(Family::ALL) {
            let Some(scopes) = of else { continue };
            if scopes.is_empty() {
                rules.push(permit_all(family));
            }
            for scope in *scopes {
                self.push(pod, scope, family, direction, &mut rules)?;
            }
        }
        rules.sort();
        let rules: Rc<[Rule]> = rules.into();
        self.known.insert(key, Rc::clone(&rules));
        Ok(rules)
    }

    /// Adds the rules of a scope.
    fn push(
        &mut self,
        pod: &PodName,
        scope: &Scope,
        family: Family,
        direction: Direction,
        rules: &mut Vec<Rule>,
    ) -> Result<(), RenderError> {
        let before = rules.len();
        push_rules(scope, family, direction, self.sets, self.language, rules)
            .map_err(|obstacle| self.error(pod, obstacle))?;
        self.rules += rules.len() - before;
        if self.rules > RULES_MAX {
            return Err(RenderError::TooManyRules { system: self.language.name, max: RULES_MAX });
        }
        Ok(())
    }

    /// Names the policy that cannot be expressed.
    fn error(&self, pod: &PodName, obstacle: Obstacle) -> RenderError {
        inexpressible(self.plans, self.language.name, pod, obstacle)
    }
}

/// Identifier that follows from the rules.
fn identifier(rules: &[Rule]) -> String {
    use std::fmt::Write;

    let mut text = String::new();
    for rule in rules {
        // Writing to a string cannot fail.
        let _ = write!(text, "{rule} {:?};", rule.ports);
    }
    digest(&text)
}
