//! Walks of `docs/architecture.md`: numbered lists of functions from one end of the switch to the other.

use crate::text::{parts, read, root};

/// Headings of the walks, each with the most stops that it may have.
const WALKS: [(&str, usize); 3] =
    [("The walk of a frame", 12), ("The walk of a policy", 16), ("The walk of a control request", 5)];

/// A stop of a walk: a function, and the file that defines it.
#[derive(Debug, PartialEq, Eq)]
struct Stop {
    function: String,
    file: String,
}

/// Stops of the section with this heading: its lines ``N. `function` in `file`: text``. A numbered line of
/// another form is an error.
fn stops(document: &str, heading: &str) -> Result<Vec<Stop>, String> {
    let section =
        document.split("\n## ").find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    let section = section.ok_or_else(|| format!("no section {heading:?}"))?;
    let items = section.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    items.map(|item| stop(item).ok_or_else(|| format!("not `function` in `file`: {item}"))).collect()
}

fn stop(item: &str) -> Option<Stop> {
    let (function, rest) = item.split_once(". `")?.1.split_once("` in `")?;
    let (file, _) = rest.split_once("`: ")?;
    Some(Stop { function: function.to_owned(), file: file.to_owned() })
}

/// Tells whether a file with this code defines the function: `Type::name` in an `impl` of the type,
/// `module::name` in the module's file, `name` anywhere.
fn defines(file: &str, code: &str, function: &str) -> bool {
    let (owner, name) = function.rsplit_once("::").unwrap_or(("", function));
    let is_module = file.split(['/', '.']).any(|part| part == owner);
    let is_type = |line: &str| {
        let of = line.strip_prefix("impl").and_then(|rest| rest.split(" for ").last());
        of.is_some_and(|of| of.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == owner))
    };
    let is_function = ["(", "<"].iter().any(|open| code.contains(&format!("fn {name}{open}")));
    is_function && (owner.is_empty() || is_module || code.lines().any(is_type))
}

#[test]
fn every_function_of_a_walk_is_in_its_file() {
    let document = read(&root().join("docs/architecture.md"));
    for (heading, stops_max) in WALKS {
        let stops = stops(&document, heading).unwrap();
        assert!((2..=stops_max).contains(&stops.len()), "{heading}: {} stops", stops.len());
        for Stop { function, file } in &stops {
            let code = parts(&read(&root().join(file))).code;
            assert!(defines(file, &code, function), "{heading}: {file} has no function {function}");
        }
    }
}

#[test]
fn a_function_that_is_renamed_or_moved_is_found() {
    let document = "# A\n\n## Walk\n\n1. `T::go` in `src/a.rs`: text.\n\n## Other\n\n1. text\n";
    let stop = Stop { function: "T::go".to_owned(), file: "src/a.rs".to_owned() };
    assert_eq!(stops(document, "Walk").unwrap(), [stop]);
    assert!(stops(document, "Other").is_err() && stops(document, "Wal").is_err());
    let code = "impl<'a> Api for T<'a> {\n    fn go(&self) {}\n}\nfn free<T>() {}\n";
    for function in ["T::go", "a::free", "free"] {
        assert!(defines("src/a.rs", code, function), "{function}");
    }
    for function in ["T::goes", "U::go", "b::free", "fre"] {
        assert!(!defines("src/a.rs", code, function), "{function}");
    }
}
