//! A directory of manifests as the source of policy: loading it, and noticing that it has changed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use miette::Report;

use super::files::{self, LoadError};
use crate::policy::read::{self, Diagnostic, Parsed, Source};
use crate::tables::{RuleTables, TablesError};

/// Directories deeper than this below the watched one are not looked at: what is there is a loop of symbolic links.
const DEPTH_MAX: usize = 16;

/// What to compile of the objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tables for the pods of this node only; for all pods where absent.
    pub node: Option<String>,
}

/// What manifests come to.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The tables, checked.
    pub tables: RuleTables,
    /// What the authors of the manifests should know.
    pub warnings: Vec<Diagnostic>,
}

/// Why manifests come to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// They cannot be read.
    #[error(transparent)]
    Files(#[from] LoadError),
    /// They are wrong: everything that is, in the order of the files.
    #[error("{}", lines(.0))]
    Manifests(Vec<Diagnostic>),
    /// A file of compiled tables has a form that is not theirs.
    #[error("{name}: these are not rule tables: {error}")]
    Form {
        /// The file.
        name: String,
        /// Where and what.
        error: serde_json::Error,
    },
    /// Compiled tables contradict themselves.
    #[error("{name}: {error}")]
    Tables {
        /// The file.
        name: String,
        /// How.
        error: TablesError,
    },
    /// The policy compiler is not part of this build.
    #[error(
        "{objects} objects are read, and this build cannot compile them for {}: it takes compiled tables only",
        node.as_deref().unwrap_or("every node")
    )]
    NoCompiler {
        /// Objects that were read.
        objects: usize,
        /// The node to compile for.
        node: Option<String>,
    },
}

impl Rejected {
    /// What is wrong, for a terminal: manifests with the lines in question. Ends with a line break.
    pub fn report(&self, color: bool) -> String {
        match self {
            Rejected::Manifests(found) => found.iter().map(|diagnostic| diagnostic.report(color)).collect(),
            other => format!("palisade: {other}\n"),
        }
    }
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().enumerate().fold(String::new(), |mut text, (i, diagnostic)| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{diagnostic}", if i == 0 { "" } else { "\n" });
        text
    })
}

/// Reads manifests from files and directories (`-` is standard input) and compiles them.
///
/// A single file that is compiled tables already (what `palisade compile` writes) is taken as it is.
pub fn load(paths: &[PathBuf], options: &LoadOptions) -> Result<Compiled, Rejected> {
    let sources = files::load(paths)?;
    if let [source] = sources.as_slice()
        && is_tables(source.text())
    {
        return Ok(Compiled { tables: compiled_tables(source)?, warnings: Vec::new() });
    }
    let parsed = read::read_all(&sources).map_err(Rejected::Manifests)?;
    let tables = compile(&parsed, options)?;
    Ok(Compiled { tables, warnings: parsed.warnings })
}

/// The one place that hands objects to the policy compiler.
fn compile(parsed: &Parsed, options: &LoadOptions) -> Result<RuleTables, Rejected> {
    Err(Rejected::NoCompiler { objects: parsed.objects.len(), node: options.node.clone() })
}

/// [`load`] for callers to whom warnings are nothing.
pub fn load_tables(paths: &[PathBuf], options: &LoadOptions) -> Result<RuleTables, Report> {
    load(paths, options).map(|compiled| compiled.tables).map_err(|rejected| Report::msg(rejected.to_string()))
}

/// Whether the text is compiled tables rather than a manifest: a JSON object with a `format` and no `kind`.
fn is_tables(text: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Marks {
        format: Option<serde::de::IgnoredAny>,
        kind: Option<serde::de::IgnoredAny>,
    }
    text.trim_start().starts_with('{')
        && serde_json::from_str::<Marks>(text)
            .is_ok_and(|marks| marks.format.is_some() && marks.kind.is_none())
}

fn compiled_tables(source: &Source) -> Result<RuleTables, Rejected> {
    let name = || source.name().to_owned();
    let tables: RuleTables =
        serde_json::from_str(source.text()).map_err(|error| Rejected::Form { name: name(), error })?;
    tables.check().map_err(|error| Rejected::Tables { name: name(), error })?;
    Ok(tables)
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

    #[test]
    fn compiled_tables_are_taken_as_they_are_and_checked() {
        let directory = scratch("tables");
        let file = directory.join("tables.json");
        fs::write(&file, serde_json::to_string(&RuleTables::default()).unwrap()).unwrap();
        let load = || load_tables(std::slice::from_ref(&file), &LoadOptions::default());
        assert_eq!(load().unwrap(), RuleTables::default());
        let other = RuleTables { format: 99, ..RuleTables::default() };
        fs::write(&file, serde_json::to_string(&other).unwrap()).unwrap();
        assert!(load().unwrap_err().to_string().contains("format 99"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
