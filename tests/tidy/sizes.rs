//! Sizes of files and folders.

use std::collections::BTreeMap;

use crate::differences;
use crate::modules::Modules;
use crate::text::{files, name_of, read, root};

/// Longest production file, lines.
const LINES_MAX: usize = 450;
/// Most files beside each other in a folder of `src`.
const FILES_MAX: usize = 16;

/// Production files that are longer.
const TOO_LONG: &[&str] = &["src/dataplane/worker/mod.rs"];

/// Folders with more files.
const TOO_FULL: &[&str] = &[];

#[test]
fn no_production_file_is_longer_than_450_lines() {
    let production = Modules::files();
    let long = production.iter().filter(|file| read(&root().join(file)).lines().count() > LINES_MAX);
    let wrong = differences("longer than 450 lines: split it by idea", long.map(String::as_str), TOO_LONG);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_folder_has_more_than_16_files_beside_each_other() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in files("src", "rs") {
        *folders.entry(name_of(path.parent().expect("a file is in a folder"))).or_default() += 1;
    }
    let full = folders.iter().filter(|(_, count)| **count > FILES_MAX).map(|(folder, _)| folder.as_str());
    let wrong = differences("more than 16 files beside each other: group them", full, TOO_FULL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
