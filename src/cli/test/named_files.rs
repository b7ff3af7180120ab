//! Manifests that cases name in `files`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::policy::parse::{STDIN, Source};
use crate::source::files;

/// Manifests by directory and pattern: cases that name the same ones share their text.
#[derive(Default)]
pub(super) struct NamedFiles(HashMap<(PathBuf, String), Vec<Source>>);

impl NamedFiles {
    /// Reads the manifests that a case of a test file names, from the directory of that file.
    pub(super) fn read(&mut self, test: &Source, pattern: &str) -> Result<Vec<Source>, String> {
        let directory = match test.name() {
            STDIN => Path::new(""),
            name => Path::new(name).parent().unwrap_or(Path::new("")),
        };
        let key = (directory.to_owned(), pattern.to_owned());
        if let Some(known) = self.0.get(&key) {
            return Ok(known.clone());
        }
        let paths = files::matching(directory, pattern)?;
        let sources = files::load(&paths).map_err(|error| error.to_string())?;
        self.0.insert(key, sources.clone());
        Ok(sources)
    }
}
