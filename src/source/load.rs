//! Loading of rule tables: compiles manifests, and accepts compiled tables.

use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::audit::Audited;
use super::excluded::Excluded;
use super::files::{self, LoadError};
use crate::policy::objects::Object;
use crate::policy::parse::{self, Diagnostic, Parsed, Source};
use crate::policy::services::{Services, ServicesOptions};
use crate::policy::{Compiler, Options};
use crate::printable;
use crate::tables::{RuleTables, ServiceTable, TablesError};

/// Options of a compilation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Node whose pods get tables; all pods if absent.
    pub node: Option<String>,
    /// Files and directories to leave out of given directories.
    pub excluded: Excluded,
}

/// Compiled manifests.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// Checked tables.
    pub tables: RuleTables,
    /// Services of the node; `None` for compiled tables, which say nothing about Services.
    pub services: Option<ServiceTable>,
    /// Services that are not served as written.
    pub service_warnings: Vec<String>,
    /// Warnings for the authors of the manifests.
    pub warnings: Vec<Diagnostic>,
    /// Policies in audit mode, which are not in the tables.
    pub audited: Option<Audited>,
}

/// Reason for which manifests yield no tables.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// I/O error.
    #[error(transparent)]
    Files(#[from] LoadError),
    /// Errors of the manifests, in the order of the files.
    #[error("{}", lines(.0))]
    Manifests(Vec<Diagnostic>),
    /// File of compiled tables has an invalid form.
    #[error("{name}: these are not rule tables: {error}")]
    Form {
        /// File.
        name: String,
        /// Place and message.
        error: serde_json::Error,
    },
    /// Compiled tables fail their check.
    #[error("{name}: {error}")]
    Tables {
        /// File.
        name: String,
        /// Error.
        error: TablesError,
    },
    /// Compiled tables accompany other files.
    #[error("{name} holds compiled tables, which are loaded alone: move them away, or the other files")]
    TablesBesideOthers {
        /// File.
        name: String,
    },
    /// No object to compile: the path is wrong, or the program in front of a pipe failed.
    #[error("{}", no_objects(*.skipped))]
    NoObjects {
        /// Number of objects of other kinds.
        skipped: usize,
        /// Warnings, such as those about files that are passed over.
        warnings: Vec<Diagnostic>,
    },
    /// Directory contains no object that policy depends on.
    #[error(
        "{path}: there is no object in these files that policy depends on: if all pods shall be closed, say \
         `palisade apply --delete`",
        path = .path.display()
    )]
    NoObjectsBelow {
        /// Directory.
        path: PathBuf,
    },
    /// Errors of the files of a directory.
    #[error("{}", lines(.0))]
    Several(Vec<Arc<Rejected>>),
}

impl Rejected {
    /// Errors, one per line.
    pub fn errors(&self) -> Vec<String> {
        match self {
            Rejected::Manifests(found) => found.iter().map(Diagnostic::to_string).collect(),
            Rejected::Several(found) => found.iter().flat_map(|rejected| rejected.errors()).collect(),
            other => vec![other.to_string()],
        }
    }

    /// Report for a terminal, with source lines. Ends with a line break.
    pub fn report(&self, color: bool) -> String {
        match self {
            Rejected::Manifests(found) => found.iter().map(|diagnostic| diagnostic.report(color)).collect(),
            Rejected::Several(found) => found.iter().map(|rejected| rejected.report(color)).collect(),
            Rejected::NoObjects { warnings, .. } => {
                let warnings: String = warnings.iter().map(|warning| warning.report(color)).collect();
                warnings + &self.sentence()
            }
            other => other.sentence(),
        }
    }

    fn sentence(&self) -> String {
        format!("palisade: {}\n", printable::line(&self.to_string()))
    }
}

fn lines(errors: &[impl Display]) -> String {
    errors.iter().enumerate().fold(String::new(), |mut text, (i, error)| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{error}", if i == 0 { "" } else { "\n" });
        text
    })
}

fn no_objects(skipped: usize) -> String {
    let found = match skipped {
        0 => "no objects were given".to_owned(),
        _ => format!("none of {skipped} objects is of a kind that policy depends on"),
    };
    format!("{found}: give the NetworkPolicies with the Pods and Namespaces that they are about")
}

/// Reads manifests from files and directories (`-` is standard input) and compiles them.
///
/// Accepts a single file of compiled tables, the output of `palisade compile`.
pub fn load(paths: &[PathBuf], options: &LoadOptions) -> Result<Compiled, Rejected> {
    load_sources(&files::load(paths, &options.excluded)?, options)
}

/// Compiles texts, as [`load`] does.
pub fn load_sources(sources: &[Source], options: &LoadOptions) -> Result<Compiled, Rejected> {
    if let [source] = sources
        && is_tables(source.text())
    {
        return Ok(Compiled {
            tables: compiled_tables(source)?,
            services: None,
            service_warnings: Vec::new(),
            warnings: Vec::new(),
            audited: None,
        });
    }
    Ok(compile(read_objects(sources)?, options))
}

/// Parses the objects of manifests. At least one object is required.
pub fn read_objects(sources: &[Source]) -> Result<Parsed, Rejected> {
    let parsed = parse::parse_sources(sources).map_err(Rejected::Manifests)?;
    if !parsed.objects.iter().any(|(object, _)| object.is_of_policy()) {
        let skipped = parsed.skipped.len() + parsed.objects.len();
        return Err(Rejected::NoObjects { skipped, warnings: parsed.warnings });
    }
    Ok(parsed)
}

fn compile(parsed: Parsed, options: &LoadOptions) -> Compiled {
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    let services = Services::from_objects(objects.iter().cloned(), services_options(options));
    let options = Options { node: options.node.clone() };
    let audited = Audited::of(objects.iter(), &options);
    let compiler = Compiler::from_objects(objects.into_iter().filter(|object| !object.is_audited()), options);
    Compiled {
        tables: compiler.into_tables(),
        service_warnings: services.warnings().collect(),
        services: Some(services.table().clone()),
        warnings: parsed.warnings,
        audited,
    }
}

/// Options of the Services of manifests: no controller makes `EndpointSlices` of pods.
pub(super) fn services_options(options: &LoadOptions) -> ServicesOptions {
    ServicesOptions { node: options.node.clone(), derive_endpoints: true }
}

/// Tests for compiled tables: a JSON object with a `format` and no `kind`.
pub(super) fn is_tables(text: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Marks {
        format: Option<serde::de::IgnoredAny>,
        kind: Option<serde::de::IgnoredAny>,
    }
    text.trim_start().starts_with('{')
        && serde_json::from_str::<Marks>(text)
            .is_ok_and(|marks| marks.format.is_some() && marks.kind.is_none())
}

/// Parses and checks compiled tables.
pub(super) fn compiled_tables(source: &Source) -> Result<RuleTables, Rejected> {
    let name = || source.name().to_owned();
    let tables: RuleTables =
        serde_json::from_str(source.text()).map_err(|error| Rejected::Form { name: name(), error })?;
    tables.check().map_err(|error| Rejected::Tables { name: name(), error })?;
    Ok(tables)
}

/// Temporary directories for tests.
#[cfg(test)]
pub(super) mod scratch {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Temporary directory, removed on drop.
    pub(crate) struct Scratch(pub(crate) PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("palisade-source-{}-{number}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<RuleTables, Rejected> {
        let loaded = load_sources(&[Source::new("input", text)], &LoadOptions::default());
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
        let Rejected::Manifests(findings) = &failure else { panic!("{failure}") };
        let paths: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["spec.podSelecter", "spec.ingress[0].ports[0].endPort"]);
        assert!(failure.report(false).contains("podSelector"), "{}", failure.report(false));
    }

    #[test]
    fn no_objects_are_an_error_that_says_so() {
        for text in ["", "\n---\n# nothing\n", "[]"] {
            let failure = load(text);
            assert!(failure.is_err(), "{text:?}");
        }
        let said = load("").unwrap_err().to_string();
        assert!(said.starts_with("no objects were given: give the NetworkPolicies"), "{said}");
        let service = "kind: Service\napiVersion: v1\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n";
        let said = load(service).unwrap_err().to_string();
        assert!(said.starts_with("none of 1 objects is of a kind"), "{said}");
    }
}
