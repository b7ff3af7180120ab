//! A directory of manifests as the source of policy: loading it, and noticing that it has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::load::{Compiled, LoadOptions, Rejected, load};
use crate::config::Policy;
use crate::control::{Refusal, Switch};
use crate::ids::Generation;
use crate::policy::read::Diagnostic;

/// Directories deeper than this below the watched one are not looked at: what is there is a loop of symbolic links.
const DEPTH_MAX: usize = 16;

/// The configured directory (or file) of policies, which a running switch follows.
#[derive(Debug)]
pub struct PolicyDirectory {
    path: PathBuf,
    options: LoadOptions,
    watch: bool,
    watched: Watched,
}

/// What came of looking at the directory again.
#[derive(Debug)]
pub enum Reload {
    /// Nobody asked, and nothing has changed or changes are not watched.
    NotDue,
    /// The manifests mean what the switch has loaded.
    Same,
    /// The switch judges by the manifests as they are.
    Loaded {
        /// Since this generation.
        generation: Generation,
        /// What the authors of the manifests should know.
        warnings: Vec<Diagnostic>,
    },
    /// The manifests are wrong; the switch goes on with the tables that it has.
    Rejected(Rejected),
    /// The switch refuses the tables, and goes on with those that it has.
    Refused(Refusal),
}

impl PolicyDirectory {
    /// The directory that the configuration names, if it names one.
    pub fn of(config: &Policy) -> Option<PolicyDirectory> {
        let path = config.directory.clone()?;
        let options = LoadOptions { node: config.node.clone() };
        Some(PolicyDirectory { watched: Watched::new(&path), path, options, watch: config.watch })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and compiles what is there.
    pub fn load(&self) -> Result<Compiled, Rejected> {
        load(std::slice::from_ref(&self.path), &self.options)
    }

    /// Loads the directory into `switch` if it has changed since the last look, or in any case when `asked`. What is
    /// wrong is told once: it is looked at again when it changes again.
    pub fn reload(&mut self, asked: bool, switch: &Switch) -> Reload {
        let changed = self.watched.has_changed();
        let due = asked || (changed && self.watch);
        if !due {
            return Reload::NotDue;
        }
        match self.load() {
            Err(rejected) => Reload::Rejected(rejected),
            Ok(compiled) if switch.tables().is_some_and(|running| *running == compiled.tables) => {
                Reload::Same
            }
            Ok(Compiled { tables, warnings }) => match switch.put_tables(tables) {
                Ok(loaded) => Reload::Loaded { generation: loaded.generation, warnings },
                Err(refusal) => Reload::Refused(refusal),
            },
        }
    }
}

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
