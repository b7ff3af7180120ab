//! Filters of `make soak`: one that begins no test's name runs nothing, hour after hour.

use crate::text::{files, read, root};

/// Names of the tests of a program with their modules, as far as sources tell: `traffic::churn::random_changes`.
fn tests_of(program: &str) -> Vec<String> {
    let folder = if program == "lib" { "src".to_owned() } else { format!("tests/{program}") };
    let mut names = Vec::new();
    for file in files(&folder, "rs") {
        let below = file.strip_prefix(root().join(&folder)).expect("a file of the folder").with_extension("");
        let path = name_of_module(&below.to_string_lossy());
        names.extend(functions(&read(&file)).map(|function| format!("{path}{function}")));
    }
    names
}

/// Path of the module of a file: `traffic::churn::` of `traffic/churn`.
fn name_of_module(file: &str) -> String {
    let parts = file.split('/').filter(|part| !["mod", "lib", "main"].contains(part));
    parts.flat_map(|part| [part, "::"]).collect()
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split(['(', '<']).next())
}

/// Programs with their filters in the list of parts: a filter follows its program.
fn filters(parts: &str) -> Vec<(&str, &str)> {
    const PROGRAMS: [&str; 6] = ["lib", "policy", "sim", "control", "kubernetes", "netns"];
    let mut program = "";
    let mut found = Vec::new();
    for literal in parts.split('"').skip(1).step_by(2) {
        if literal.contains("::") {
            found.push((program, literal));
        } else if PROGRAMS.contains(&literal) {
            program = literal;
        }
    }
    found
}

#[test]
fn every_filter_of_the_soak_begins_the_name_of_a_test() {
    let text = read(&root().join("tests/soak/part.rs"));
    let start = text.find("const PARTS").expect("the list of parts");
    let list = &text[start..start + text[start..].find("];").expect("the end of the list")];
    let filters = filters(list);
    assert!(filters.len() > 40, "{filters:?}");
    let idle: Vec<_> = filters
        .iter()
        .filter(|(program, filter)| !tests_of(program).iter().any(|name| name.starts_with(filter)))
        .collect();
    assert!(idle.is_empty(), "these of tests/soak/part.rs run no test: {idle:#?}");
}
