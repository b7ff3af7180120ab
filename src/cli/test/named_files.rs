//! Manifests that cases name in `files`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::policy::parse::{STDIN, Source};
use crate::policy::testcase::CaseFile;
use crate::source::{files, patterns};

/// Manifests by path: cases that name the same ones share them.
#[derive(Default)]
pub(super) struct NamedFiles(HashMap<PathBuf, Rc<CaseFile>>);

impl NamedFiles {
    /// Reads the manifests that a case of a test file names, from the directory of that file.
    pub(super) fn read(&mut self, test: &Source, pattern: &str) -> Result<Vec<Rc<CaseFile>>, String> {
        let directory = match test.name() {
            STDIN => Path::new(""),
            name => Path::new(name).parent().unwrap_or(Path::new("")),
        };
        patterns::matching(directory, pattern)?.into_iter().map(|path| self.file(path)).collect()
    }

    fn file(&mut self, path: PathBuf) -> Result<Rc<CaseFile>, String> {
        if let Some(known) = self.0.get(&path) {
            return Ok(known.clone());
        }
        let source = files::load_regular(&path).map_err(|error| error.to_string())?;
        let file = Rc::new(CaseFile::of(&source));
        self.0.insert(path, file.clone());
        Ok(file)
    }
}
