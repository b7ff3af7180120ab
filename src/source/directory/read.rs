//! Reading of the changed files of a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::{FileContent, PolicyDirectory, REMOVAL_DELAY, Read};
use crate::policy::parse;
use crate::source::files::{self, Listing, LoadError, Stamp};
use crate::source::load::{Rejected, compiled_tables, is_tables};
use crate::source::manifests;

impl PolicyDirectory {
    /// Lists the directory and reads the complete files whose stamps changed. Returns the listing, and a file
    /// that is incomplete.
    pub(super) fn read_changed(&mut self, now: Instant) -> (Listing, Option<PathBuf>) {
        self.next_check = None;
        let mut listing = files::list(&self.root);
        // A second listing finds changes between listing and watching. The number of listings is bounded.
        for _ in 0..4 {
            if !self.watch.watch_listing(&listing, now) {
                break;
            }
            listing = files::list(&self.root);
        }
        let mut incomplete = None;
        let mut fresh = Vec::new();
        for (path, stamp) in &listing.files {
            if self.loaded_files.get(path) == Some(stamp) {
                self.pending_files.remove(path);
            } else if self.pending_files.get(path).is_none_or(|read| read.stamp != *stamp) {
                self.pending_files.remove(path);
                if self.is_complete(path, stamp, now) {
                    fresh.push(path.clone());
                } else {
                    incomplete = Some(path.clone());
                }
            }
        }
        for path in fresh {
            let stamp = listing.files[&path];
            let (stamp_after, result) = self.read_file(&path, stamp);
            // The file changed during the read: its events may make it incomplete.
            self.watch.take_events(now);
            if stamp_after == stamp && self.is_complete(&path, &stamp, now) {
                self.pending_files.insert(path, Read { stamp, result });
            } else {
                let soon = now + REMOVAL_DELAY;
                self.next_check = Some(self.next_check.map_or(soon, |at| at.min(soon)));
                incomplete = Some(path);
            }
        }
        self.pending_files.retain(|path, _| listing.files.contains_key(path));
        (listing, incomplete)
    }

    fn is_complete(&mut self, path: &Path, stamp: &Stamp, now: Instant) -> bool {
        let is_first = self.loaded_files.is_empty();
        let at = self
            .watch
            .complete_at(path, stamp, now)
            .or_else(|| self.watch.unchanged_at(path, stamp, now).filter(|_| !is_first));
        self.next_check = self.next_check.into_iter().chain(at).min();
        at.is_none()
    }

    fn read_file(&self, path: &Path, stamp: Stamp) -> (Stamp, Result<FileContent, Arc<Rejected>>) {
        let (source, stamp) = match files::read(path) {
            Ok(found) => found,
            Err(error) => return (stamp, Err(Arc::new(error.into()))),
        };
        let content = if source.text().trim().is_empty() && self.manifests.holds(path) {
            Err(LoadError::Emptied { path: path.to_owned() }.into())
        } else if is_tables(source.text()) {
            compiled_tables(&source).map(|tables| FileContent::Tables(Box::new(tables)))
        } else {
            parse::parse_source(&source).map_err(Rejected::Manifests).map(|parsed| FileContent::Objects {
                warnings: manifests::lines(&parsed.warnings).collect(),
                objects: parsed.objects,
            })
        };
        (stamp, content.map_err(Arc::new))
    }

    /// Tests whether a file is missing that may reappear within [`REMOVAL_DELAY`].
    pub(super) fn awaits_missing(&mut self, listing: &Listing, now: Instant) -> bool {
        let is_whole = listing.errors.is_empty()
            && self.loaded_files.keys().all(|path| listing.files.contains_key(path));
        if is_whole {
            self.missing_since = None;
            return false;
        }
        let until = *self.missing_since.get_or_insert(now) + REMOVAL_DELAY;
        if until <= now {
            return false;
        }
        self.next_check = Some(self.next_check.map_or(until, |at| at.min(until)));
        true
    }
}
