//! Import circles. In every folder of `src` the files and folders beside each other import each other in one
//! direction only.
//!
//! A module that imports from another is an edge between the two of their ancestors that lie beside each
//! other; `mod.rs` (or `name.rs` beside the folder `name`) lies beside the files of its folder. A `mod`
//! declaration or a re-export is no import. So a type that `mod.rs` defines and a child uses makes a circle
//! only where code of `mod.rs` uses that child.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Modules, Path, path_of_file};

/// Imports between the children of one folder, with one import for each as evidence.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

fn graphs(modules: &Modules) -> BTreeMap<Path, Graph> {
    let mut graphs: BTreeMap<Path, Graph> = BTreeMap::new();
    for (from, to, mention) in modules.uses() {
        // Modules within one file are one unit.
        let (from, to) = (modules.file(from), modules.file(&to));
        if from == to {
            continue;
        }
        let evidence = format!("{from}: {}", mention.join("::"));
        let (from, to) = (path_of_file(from), path_of_file(to));
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let unit = |path: &Path| path.get(common).cloned().unwrap_or_else(|| "mod".to_owned());
        let graph = graphs.entry(from[..common].to_vec()).or_default();
        graph.entry(unit(&from)).or_default().entry(unit(&to)).or_insert(evidence);
    }
    graphs
}

/// The shortest way from a unit back to itself.
fn circle_of(graph: &Graph, unit: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![unit.to_owned()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way.last().expect("a way has a start");
            for next in graph.get(last).into_iter().flat_map(BTreeMap::keys) {
                let way = [way.as_slice(), std::slice::from_ref(next)].concat();
                if next == unit {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

/// A circle as a path, with an import for each step.
fn shown(folder: &Path, graph: &Graph, circle: &[String]) -> String {
    let steps = circle
        .windows(2)
        .map(|step| format!("    {} -> {}: {}", step[0], step[1], graph[&step[0]][&step[1]]));
    format!("in src/{}:\n{}", folder.join("/"), steps.collect::<Vec<_>>().join("\n"))
}

#[test]
fn no_folder_or_file_imports_in_a_circle() {
    let modules = Modules::of_library();
    let mut circles = BTreeMap::new();
    for (folder, graph) in graphs(modules) {
        for unit in graph.keys() {
            if let Some(circle) = circle_of(&graph, unit) {
                let place = [folder.as_slice(), std::slice::from_ref(unit)].concat().join("/");
                circles.insert(place, shown(&folder, &graph, &circle));
            }
        }
    }
    assert!(circles.is_empty(), "import circles: {circles:#?}");
}

#[test]
fn a_circle_is_found_and_a_line_is_none() {
    let step = |to: &str| (to.to_owned(), String::new());
    let graph: Graph = [("a", vec!["b"]), ("b", vec!["c", "d"]), ("c", vec!["a"])]
        .map(|(from, to)| (from.to_owned(), to.into_iter().map(step).collect()))
        .into();
    assert_eq!(circle_of(&graph, "a").unwrap(), ["a", "b", "c", "a"]);
    assert_eq!(circle_of(&graph, "d"), None);
}
