//! Manifests by pattern: `manifests/**/policy-*.yaml`.

use std::path::{Component, Path, PathBuf};

use super::excluded::Excluded;
use super::files;

/// Manifests that a pattern names, from a directory: `*` is a part of a name, `**` any directories. A path without them is
/// a file, or a directory and everything below it. Reads names alone, and follows no link back to where it came from.
pub fn matching(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = directory.join(pattern);
    let is_wild = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let root: PathBuf = path.components().take_while(|part| !is_wild(part)).collect();
    let rest: PathBuf = path.components().skip_while(|part| !is_wild(part)).collect();
    let mut listing =
        files::walk(if root.as_os_str().is_empty() { Path::new(".") } else { &root }, &Excluded::default());
    if !rest.as_os_str().is_empty() {
        let within = root.strip_prefix(".").unwrap_or(&root);
        let whole = Path::new(&glob::Pattern::escape(&within.to_string_lossy())).join(rest);
        let whole = glob::Pattern::new(&whole.to_string_lossy()).map_err(|error| error.to_string())?;
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        let is_named = |path: &Path| {
            let path = path.strip_prefix(".").unwrap_or(path);
            whole.matches_path_with(path, options)
        };
        listing.files.retain(|path, _| is_named(path));
        listing.errors.retain(|error| error.of_file().is_none_or(is_named));
        if listing.files.is_empty() && listing.errors.is_empty() {
            return Err("no *.yaml, *.yml or *.json file has such a name".to_owned());
        }
    }
    listing.check_bytes();
    match listing.errors.first() {
        Some(error) => Err(error.to_string()),
        None => Ok(listing.files.into_keys().collect()),
    }
}
