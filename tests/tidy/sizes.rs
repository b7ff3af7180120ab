//! Sizes of files and folders.

use std::collections::BTreeMap;

use crate::modules::Modules;
use crate::text::{files, name_of, read, root};

/// Longest production file, lines.
const LINES_MAX: usize = 450;
/// Most files beside each other in a folder of `src`.
const FILES_MAX: usize = 16;

#[test]
fn no_production_file_is_longer_than_450_lines() {
    let production = Modules::files();
    let is_long = |file: &&String| read(&root().join(file)).lines().count() > LINES_MAX;
    let long: Vec<&String> = production.iter().filter(is_long).collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines, split by idea: {long:?}");
}

#[test]
fn no_folder_has_more_than_16_files_beside_each_other() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in files("src", "rs") {
        *folders.entry(name_of(path.parent().expect("a file is in a folder"))).or_default() += 1;
    }
    folders.retain(|_, count| *count > FILES_MAX);
    assert!(folders.is_empty(), "more than {FILES_MAX} files beside each other, group them: {folders:?}");
}
