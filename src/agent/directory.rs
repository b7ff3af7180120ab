//! A directory of manifests as the source of policy: noticing that it has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Directories deeper than this below the watched one are not looked at: what is there is a loop of symbolic links.
const DEPTH_MAX: usize = 16;

/// A directory, or file, as it was when last looked at.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    seen: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    path: PathBuf,
    modified: Option<SystemTime>,
    bytes: u64,
}

impl Watched {
    /// Remembers what is at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Watched {
        let path = path.into();
        let seen = look(&path);
        Watched { path, seen }
    }

    /// Whether a file has come, gone, or been written since the last look. Cheap: looks at sizes and times only.
    pub fn has_changed(&mut self) -> bool {
        let entries = look(&self.path);
        let changed = entries != self.seen;
        self.seen = entries;
        changed
    }
}

fn look(path: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    collect(path, 0, &mut entries);
    entries.sort();
    entries
}

/// Follows symbolic links, which is how a mounted `ConfigMap` changes.
fn collect(path: &Path, depth: usize, entries: &mut Vec<Entry>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_dir() && depth <= DEPTH_MAX {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), depth + 1, entries);
        }
    } else if metadata.is_file() {
        let modified = metadata.modified().ok();
        entries.push(Entry { path: path.to_owned(), modified, bytes: metadata.len() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("palisade-watched-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("deeper")).unwrap();
        path
    }

    #[test]
    fn a_file_that_comes_changes_or_goes_is_noticed_once() {
        let directory = scratch("files");
        let mut watched = Watched::new(&directory);
        assert!(!watched.has_changed());
        let file = directory.join("deeper/policy.yaml");
        fs::write(&file, "a").unwrap();
        assert!(watched.has_changed());
        assert!(!watched.has_changed());
        fs::write(&file, "ab").unwrap();
        assert!(watched.has_changed());
        fs::remove_file(&file).unwrap();
        assert!(watched.has_changed());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_loop_of_links_ends() {
        let directory = scratch("loop");
        std::os::unix::fs::symlink(&directory, directory.join("deeper/back")).unwrap();
        assert!(!Watched::new(&directory).has_changed());
        fs::remove_dir_all(&directory).unwrap();
    }
}
