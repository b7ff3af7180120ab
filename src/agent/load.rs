//! From files to rule tables: manifests are read and compiled, compiled tables are taken as they are.

use std::path::PathBuf;

use super::files;
use crate::policy::read::{Diagnostic, Source, read_all};
use crate::policy::{Compiler, Options};
use crate::tables::RuleTables;

/// What to compile of the objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tables for the pods of this node only; for all pods where absent.
    pub node: Option<String>,
}

/// Tables, and what the authors of their manifests should know.
#[derive(Debug)]
pub struct LoadedTables {
    /// The tables, checked.
    pub tables: RuleTables,
    /// Findings that do not stand in the way.
    pub warnings: Vec<Diagnostic>,
}

/// Why there are no tables. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// A file cannot be read.
    #[error(transparent)]
    Files(#[from] files::LoadError),
    /// Objects are wrong: everything that is, in the order of the text.
    #[error("{}", lines(.0))]
    Objects(Vec<Diagnostic>),
    /// Compiled tables are wrong.
    #[error("{source_name}: {reason}")]
    Tables {
        /// The file.
        source_name: String,
        /// What is wrong, with line and column where the JSON is.
        reason: String,
    },
}

impl LoadFailure {
    /// For people: each finding with the lines of its file and the field underlined. Ends with a line break.
    pub fn report(&self, color: bool) -> String {
        match self {
            LoadFailure::Objects(findings) => findings.iter().map(|finding| finding.report(color)).collect(),
            LoadFailure::Files(_) | LoadFailure::Tables { .. } => format!("palisade: {self}\n"),
        }
    }
}

fn lines(findings: &[Diagnostic]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Reads manifests from files and directories (`-` is standard input) and compiles them.
///
/// A single file that is compiled tables already (what `palisade compile` writes) is taken as it is.
pub fn load_tables(paths: &[PathBuf], options: &LoadOptions) -> Result<LoadedTables, LoadFailure> {
    tables_of(&files::load(paths)?, options)
}

/// [`load_tables`] of texts that are in memory.
pub fn tables_of(sources: &[Source], options: &LoadOptions) -> Result<LoadedTables, LoadFailure> {
    if let [source] = sources
        && is_tables(source.text())
    {
        return compiled_tables(source);
    }
    let parsed = read_all(sources).map_err(LoadFailure::Objects)?;
    let objects = parsed.objects.into_iter().map(|(object, _)| object);
    let compiler = Compiler::from_objects(objects, Options { node: options.node.clone() });
    Ok(LoadedTables { tables: compiler.into_tables(), warnings: parsed.warnings })
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

fn compiled_tables(source: &Source) -> Result<LoadedTables, LoadFailure> {
    let wrong = |reason: String| LoadFailure::Tables { source_name: source.name().to_owned(), reason };
    let tables: RuleTables = serde_json::from_str(source.text()).map_err(|error| wrong(error.to_string()))?;
    tables.check().map_err(|error| wrong(error.to_string()))?;
    Ok(LoadedTables { tables, warnings: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<RuleTables, LoadFailure> {
        let loaded = tables_of(&[Source::new("input", text)], &LoadOptions::default());
        loaded.map(|loaded| loaded.tables)
    }

    #[test]
    fn compiled_tables_are_taken_as_they_are_and_checked() {
        let text = serde_json::to_string(&RuleTables::default()).unwrap();
        assert_eq!(load(&text).unwrap(), RuleTables::default());
        let other = RuleTables { format: 99, ..RuleTables::default() };
        let refused = load(&serde_json::to_string(&other).unwrap()).unwrap_err().to_string();
        assert!(refused.starts_with("input: ") && refused.contains("format 99"), "{refused}");
    }

    #[test]
    fn all_errors_of_a_manifest_are_reported_with_their_fields() {
        let policy = "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: p}\nspec:\n  podSelecter: {}\n  \
                      ingress: [{ports: [{port: 80, endPort: 79}]}]\n";
        let failure = load(policy).unwrap_err();
        let LoadFailure::Objects(findings) = &failure else { panic!("{failure}") };
        let paths: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["spec.podSelecter", "spec.ingress[0].ports[0].endPort"]);
        assert!(failure.report(false).contains("podSelector"), "{}", failure.report(false));
    }
}
