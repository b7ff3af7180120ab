//! Regression files of proptest. A test reads the file that has the path of its source file
//! (`FileFailurePersistence::SourceParallel`): a file that stays behind when its test moves is read by nobody.

use std::fs;
use std::path::{Path, PathBuf};

use crate::text::{files, name_of, parts, read, root};

/// Folders of regression files. proptest takes the nearest folder with a `lib.rs` or a `main.rs` for that of the sources, and
/// the one beside it for their regression files.
const FOLDERS: [&str; 2] = ["proptest-regressions", "tests/proptest-regressions"];

/// Folders of sources beside a folder.
fn sources_beside(folder: &Path) -> Vec<PathBuf> {
    let beside = fs::read_dir(folder.parent().expect("a folder of the repository")).expect("a folder");
    let folders = beside.flatten().map(|entry| entry.path());
    folders.filter(|folder| ["lib.rs", "main.rs"].iter().any(|file| folder.join(file).is_file())).collect()
}

/// Whether the source file has a property test that keeps its failures.
fn reads_regressions(source: &Path) -> bool {
    source.is_file() && {
        let code = parts(&read(source)).code;
        code.contains("proptest!") && !code.contains("failure_persistence: None")
    }
}

#[test]
fn every_regression_file_of_proptest_is_read_by_the_test_that_has_its_path() {
    let mut orphans = Vec::new();
    for folder in FOLDERS.map(|folder| root().join(folder)).iter().filter(|folder| folder.is_dir()) {
        let sources = sources_beside(folder);
        for file in files(&name_of(folder), "txt") {
            let below = file.strip_prefix(folder).expect("a file of the folder").with_extension("rs");
            if !sources.iter().any(|source| reads_regressions(&source.join(&below))) {
                orphans.push(name_of(&file));
            }
        }
    }
    assert!(
        orphans.is_empty(),
        "no property test reads these, move them to the path of their test: {orphans:#?}"
    );
}
