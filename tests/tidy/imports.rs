//! Imports between the folders of `src`: the table of the architecture.

use crate::modules::Modules;

/// Folders and files of `src` and which others each may import. A name that is not listed builds on all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("net", &["limits", "ids"]),
    ("tables", &["net", "mem", "limits", "ids", "printable"]),
    ("policy", &["tables", "net", "limits", "ids", "nearest", "printable"]),
    ("tap", &["net", "netlink", "limits"]),
    ("xdp", &["net", "netlink", "tap", "mem", "limits", "ids"]),
    ("connect", &["net", "tables", "xdp", "limits"]),
    ("netlink", &["net"]),
    ("dataplane", &["net", "tables", "xdp", "tap", "netlink", "threads", "mem", "limits", "ids"]),
    ("pktgen", &["net", "netlink", "xdp", "mem", "limits", "ids"]),
];

#[test]
fn folders_import_only_what_the_architecture_allows() {
    let modules = Modules::of_library();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (from, to, mention) in modules.uses() {
        let (Some(from_folder), Some(to_folder)) = (from.first(), to.first()) else { continue };
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(folder, _)| folder == from_folder) else {
            continue;
        };
        seen += 1;
        if to_folder != from_folder && !allowed.contains(&to_folder.as_str()) {
            wrong.push(format!("{} imports {}", modules.file(from), mention.join("::")));
        }
    }
    assert!(seen > 100, "{seen} imports were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
