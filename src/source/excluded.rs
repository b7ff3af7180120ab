//! Files and directories that commands leave out of given directories.

use std::path::Path;

use glob::{MatchOptions, Pattern};

/// Patterns of files and directories to leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excluded(Vec<Pattern>);

impl Excluded {
    /// Leaves out these: a pattern without a slash is that of a name, of a file or a directory; another one is that of a
    /// path below the given directory.
    pub fn new(patterns: Vec<Pattern>) -> Excluded {
        Excluded(patterns)
    }

    /// Tests a path below the given directory. The directories above it are not excluded.
    pub(super) fn contains(&self, below: &Path) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let name = below.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.0.iter().any(|pattern| {
            if pattern.as_str().contains('/') {
                pattern.matches_path_with(below, options)
            } else {
                pattern.matches_with(name, options)
            }
        })
    }
}
