//! Members of classes: the prefixes that map to them, and pods by name.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::control::protocol::Peers;
use crate::ids::ClassId;
use crate::limits::REPORT_PEERS_MAX;
use crate::tables::{PodName, RuleTables};

/// Number of exceptions that a prefix lists.
const EXCEPTIONS: usize = 3;

/// Member of [`ClassId::WORLD`].
const OTHERS: &str = "every other address";

/// Classes of the tables, sorted.
pub(super) fn classes(tables: &RuleTables) -> Vec<ClassId> {
    let named: BTreeSet<ClassId> = tables.prefixes.values().copied().chain([ClassId::WORLD]).collect();
    named.into_iter().collect()
}

/// Prefix on the way from the root to the current one.
struct Outer {
    net: IpNet,
    class: ClassId,
    exceptions: Vec<String>,
    left_out: usize,
}

/// Members of each wanted class, in one pass over all prefixes.
pub(super) fn members(tables: &RuleTables, wanted: &BTreeSet<ClassId>) -> BTreeMap<ClassId, Peers> {
    let mut pods: BTreeMap<IpNet, Vec<&PodName>> = BTreeMap::new();
    for (name, pod) in &tables.pods {
        pod.addresses.iter().for_each(|address| pods.entry(IpNet::from(*address)).or_default().push(name));
    }
    let mut found: BTreeMap<ClassId, Found> = wanted.iter().map(|class| (*class, Found::default())).collect();
    // A prefix comes before the prefixes that it contains.
    let mut nets: BTreeMap<IpNet, Option<ClassId>> = pods.keys().map(|net| (*net, None)).collect();
    nets.extend(tables.prefixes.iter().map(|(net, class)| (*net, Some(*class))));
    let mut outer: Vec<Outer> = Vec::new();
    for (net, own) in nets {
        while outer.last().is_some_and(|outer| !outer.net.contains(&net)) {
            close(outer.pop(), &mut found);
        }
        let around = outer.last().map_or(ClassId::WORLD, |outer| outer.class);
        let class = own.unwrap_or(around);
        if let Some(names) = pods.get(&net) {
            // The pods among all other addresses are too many to be of use.
            if let Some(found) = found.get_mut(&class).filter(|_| own.is_some() || class != ClassId::WORLD) {
                found.pods.extend(names.iter().copied().cloned());
            }
            if own.is_some() && class != around {
                except(&mut outer, &names[0].to_string());
            }
            continue;
        }
        if class != around {
            except(&mut outer, &net.to_string());
        }
        outer.push(Outer { net, class, exceptions: Vec::new(), left_out: 0 });
    }
    while !outer.is_empty() {
        close(outer.pop(), &mut found);
    }
    let mut members: BTreeMap<ClassId, Peers> =
        found.into_iter().map(|(class, found)| (class, found.peers())).collect();
    if let Some(others) = members.get_mut(&ClassId::WORLD) {
        others.prefixes.push(OTHERS.to_owned());
    }
    members
}

/// Notes an exception of the innermost prefix.
fn except(outer: &mut [Outer], text: &str) {
    let Some(outer) = outer.last_mut() else { return };
    if outer.exceptions.len() < EXCEPTIONS {
        outer.exceptions.push(text.to_owned());
    } else {
        outer.left_out += 1;
    }
}

/// Takes over a prefix whose exceptions are all known.
fn close(outer: Option<Outer>, found: &mut BTreeMap<ClassId, Found>) {
    let Some(outer) = outer else { return };
    let Some(found) = found.get_mut(&outer.class) else { return };
    if found.prefixes.len() == REPORT_PEERS_MAX {
        found.left_out += 1;
        return;
    }
    let more = if outer.left_out > 0 { format!(" and {} more", outer.left_out) } else { String::new() };
    let text = match outer.exceptions.as_slice() {
        [] => outer.net.to_string(),
        some => format!("{} except {}{more}", outer.net, some.join(", ")),
    };
    found.prefixes.push((outer.net, text));
}

/// Members of one class so far.
#[derive(Default)]
struct Found {
    pods: BTreeSet<PodName>,
    prefixes: Vec<(IpNet, String)>,
    left_out: usize,
}

impl Found {
    fn peers(mut self) -> Peers {
        self.prefixes.sort_unstable_by_key(|(net, _)| *net);
        Peers {
            any: false,
            left_out: self.left_out + self.pods.len().saturating_sub(REPORT_PEERS_MAX),
            pods: self.pods.into_iter().take(REPORT_PEERS_MAX).collect(),
            prefixes: self.prefixes.into_iter().map(|(_, text)| text).collect(),
        }
    }
}

/// Joins the members of several classes.
pub(super) fn joined<'a>(members: impl IntoIterator<Item = &'a Peers>) -> Peers {
    let mut all = Peers::default();
    for peers in members {
        all.pods.extend(peers.pods.iter().cloned());
        all.prefixes.extend(peers.prefixes.iter().cloned());
        all.left_out += peers.left_out;
    }
    all.pods.sort();
    all.pods.dedup();
    let beyond = |count: usize| count.saturating_sub(REPORT_PEERS_MAX);
    all.left_out += beyond(all.pods.len()) + beyond(all.prefixes.len());
    all.pods.truncate(REPORT_PEERS_MAX);
    all.prefixes.truncate(REPORT_PEERS_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AclId;
    use crate::tables::PodPolicy;

    fn tables(prefixes: &[(&str, u32)], pods: &[(&str, &str)]) -> RuleTables {
        let mut tables = RuleTables::default();
        for (net, class) in prefixes {
            tables.prefixes.insert(net.parse().unwrap(), ClassId(*class));
        }
        for (name, address) in pods {
            let addresses = vec![address.parse().unwrap()];
            let policy = PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) };
            tables.pods.insert(PodName::new("default", *name), policy);
        }
        tables
    }

    fn of(tables: &RuleTables, class: u32) -> Peers {
        members(tables, &[ClassId(class)].into()).remove(&ClassId(class)).unwrap()
    }

    #[test]
    fn a_class_has_its_prefixes_without_the_inner_ones_of_other_classes() {
        let tables = tables(
            &[
                ("10.0.0.0/8", 1),
                ("10.1.0.0/16", 2),
                ("10.1.2.0/24", 1),
                ("10.9.0.7/32", 3),
                ("172.16.0.0/12", 0),
                ("fd00::/8", 1),
            ],
            &[("db", "10.9.0.7"), ("web", "10.1.2.3"), ("far", "192.0.2.1")],
        );
        let one = of(&tables, 1);
        assert_eq!(one.prefixes, ["10.0.0.0/8 except 10.1.0.0/16, default/db", "10.1.2.0/24", "fd00::/8"]);
        assert_eq!(one.pods, [PodName::new("default", "web")], "by its address within a prefix");
        assert_eq!(of(&tables, 2).prefixes, ["10.1.0.0/16 except 10.1.2.0/24"]);
        let three = of(&tables, 3);
        assert_eq!((three.pods, three.prefixes.len()), (vec![PodName::new("default", "db")], 0));
        assert_eq!(of(&tables, 0).prefixes, ["172.16.0.0/12", OTHERS]);
        assert_eq!(classes(&tables), [0, 1, 2, 3].map(ClassId));
    }

    #[test]
    fn what_is_too_much_to_list_is_counted() {
        let nets: Vec<String> = (0..300).map(|i| format!("10.{}.{}.0/24", i / 200, i % 200)).collect();
        let mut prefixes: Vec<(&str, u32)> = nets.iter().map(|net| (net.as_str(), 5)).collect();
        prefixes.push(("10.0.0.0/8", 1));
        let tables = tables(&prefixes, &[]);
        let five = of(&tables, 5);
        assert_eq!((five.prefixes.len(), five.left_out), (REPORT_PEERS_MAX, 300 - REPORT_PEERS_MAX));
        assert_eq!(
            of(&tables, 1).prefixes,
            ["10.0.0.0/8 except 10.0.0.0/24, 10.0.1.0/24, 10.0.2.0/24 and 297 more"]
        );
        let all = joined([&five, &of(&tables, 1)]);
        assert_eq!((all.prefixes.len(), all.left_out), (REPORT_PEERS_MAX, 201));
    }
}
