//! Manifests from files, directories and standard input.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::OFlags;

use super::excluded::Excluded;
use crate::limits::{SOURCE_BYTES_MAX, SOURCE_FILES_MAX, SOURCES_BYTES_MAX};
use crate::policy::parse::{STDIN, Source};

/// Extensions of the files that are read in a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Reason for which a file has no text.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// I/O error.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Error.
        error: io::Error,
    },
    /// File exceeds the size limit.
    #[error("{path}: larger than {SOURCE_BYTES_MAX} bytes; split it into several files", path = .path.display())]
    TooLarge {
        /// File.
        path: PathBuf,
    },
    /// Files of a directory or a command exceed the limit together.
    #[error(
        "{path}: more than {SOURCES_BYTES_MAX} bytes together with the files before it; give fewer files at a time, and objects \
         without managedFields",
        path = .path.display()
    )]
    TooLargeTogether {
        /// File at which the limit is exceeded.
        path: PathBuf,
    },
    /// File is not UTF-8.
    #[error("{path}: byte {offset} is not UTF-8; manifests are UTF-8 text", path = .path.display())]
    NotText {
        /// File.
        path: PathBuf,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// Directory has no manifest.
    #[error("{path}: no *.yaml, *.yml or *.json file in this directory", path = .path.display())]
    Empty {
        /// Directory.
        path: PathBuf,
    },
    /// Directory has more files than the limit.
    #[error(
        "{path}: more than {SOURCE_FILES_MAX} files and directories; does a link lead back to it?",
        path = .path.display()
    )]
    TooMany {
        /// Directory.
        path: PathBuf,
    },
    /// Path is not a regular file: a read could block or never end.
    #[error("{path} is {kind}; manifests in a directory are regular files: move it away", path = .path.display())]
    NotRegular {
        /// Path.
        path: PathBuf,
        /// Type of the file.
        kind: &'static str,
    },
    /// File held objects and is empty: it was truncated and not yet written, or a pipe into it failed.
    #[error(
        "{path} is empty and held objects before: write it again, or remove the file if they are to go",
        path = .path.display()
    )]
    Emptied {
        /// File.
        path: PathBuf,
    },
    /// File was being written for the whole timeout of the start.
    #[error("{path} is being written: start again when it is complete", path = .path.display())]
    BeingWritten {
        /// File.
        path: PathBuf,
    },
}

impl LoadError {
    /// Manifest that the error is about, if it is about one alone.
    pub(super) fn of_file(&self) -> Option<&Path> {
        match self {
            LoadError::Io { path, .. } | LoadError::NotRegular { path, .. } if is_manifest(path) => {
                Some(path)
            }
            _ => None,
        }
    }
}

/// Identity and state of a file. Another stamp indicates other content.
///
/// Size and modification time do not distinguish two files of an image layer; inode and change time do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Time of the last write: seconds and nanoseconds since 1970.
    pub(super) modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &fs::Metadata) -> Stamp {
        Stamp {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Manifests below a path, with the directories and links on the way to them.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Manifests, in the order in which later objects replace earlier ones.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// Directories, with links resolved.
    pub(super) directories: BTreeSet<PathBuf>,
    /// Symbolic links to manifests and directories.
    pub(super) links: Vec<PathBuf>,
    /// Errors of paths with the name of a manifest.
    pub(super) errors: Vec<LoadError>,
}

/// Lists a path: a file, or a directory and everything below it, without hidden names. An empty directory is
/// an error, so that a mistyped path does not count as "no policy".
pub(super) fn list(root: &Path) -> Listing {
    let mut listing = walk(root, &Excluded::default());
    listing.check_bytes();
    listing
}

/// The same without excluded files and directories, whatever the bytes of the files.
pub(super) fn walk(root: &Path, excluded: &Excluded) -> Listing {
    let mut listing = Listing::default();
    match fs::metadata(root) {
        Ok(found) if found.is_dir() => {
            listing.directory(root, &mut Walk { root, excluded, above: BTreeSet::new(), seen: 0 });
            if listing.files.is_empty() && listing.errors.is_empty() {
                listing.errors.push(LoadError::Empty { path: root.to_owned() });
            }
        }
        Ok(found) => listing.file(root, &found),
        Err(error) => listing.errors.push(io_error(root)(error)),
    }
    listing
}

/// State of a walk.
struct Walk<'w> {
    root: &'w Path,
    excluded: &'w Excluded,
    /// Directories above, to skip links back to them.
    above: BTreeSet<PathBuf>,
    /// Number of names.
    seen: usize,
}

impl Listing {
    /// Adds an error if the files are too large together.
    pub(super) fn check_bytes(&mut self) {
        let mut bytes = 0_u64;
        let beyond = self.files.iter().find(|(_, stamp)| {
            bytes = bytes.saturating_add(stamp.bytes);
            bytes > SOURCES_BYTES_MAX as u64
        });
        if let Some((path, _)) = beyond {
            self.errors.push(LoadError::TooLargeTogether { path: path.clone() });
        }
    }

    /// Lists a directory.
    fn directory(&mut self, path: &Path, walk: &mut Walk<'_>) {
        let found = fs::canonicalize(path).and_then(|real| {
            let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(path)?.collect();
            Ok((real, entries?))
        });
        let (real, mut entries) = match found {
            Ok(found) => found,
            Err(error) => return self.errors.push(io_error(path)(error)),
        };
        if !walk.above.insert(real.clone()) {
            return;
        }
        entries.retain(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.retain(|entry| {
            let path = entry.path();
            !walk.excluded.contains(path.strip_prefix(walk.root).unwrap_or(&path))
        });
        walk.seen += 1 + entries.len();
        for entry in &entries {
            if walk.seen > SOURCE_FILES_MAX {
                self.errors.push(LoadError::TooMany { path: path.to_owned() });
                break;
            }
            self.entry(entry, walk);
        }
        walk.above.remove(&real);
        self.directories.insert(real);
    }

    fn entry(&mut self, entry: &fs::DirEntry, walk: &mut Walk<'_>) {
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => {
                if is_link {
                    self.links.push(path.clone());
                }
                self.directory(&path, walk);
            }
            Ok(found) if is_manifest(&path) => {
                if is_link {
                    self.links.push(path.clone());
                }
                self.file(&path, &found);
            }
            Err(error) if is_manifest(&path) => self.errors.push(LoadError::Io { path, error }),
            // Other files and dangling links contain no manifests.
            Ok(_) | Err(_) => {}
        }
    }

    fn file(&mut self, path: &Path, found: &fs::Metadata) {
        match not_regular(found) {
            None => _ = self.files.insert(path.to_owned(), Stamp::of(found)),
            Some(kind) => self.errors.push(LoadError::NotRegular { path: path.to_owned(), kind }),
        }
    }
}

/// Tests whether a directory entry has the name of a manifest.
pub(super) fn is_manifest(path: &Path) -> bool {
    let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
}

fn not_regular(found: &fs::Metadata) -> Option<&'static str> {
    let kind = found.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_fifo() => Some("a FIFO"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_dir() => Some("a directory"),
        () => Some("a device"),
    }
}

/// Loads files by name, directories with everything below them that is not excluded, in the order of names, and `-` as
/// standard input.
pub fn load(paths: &[PathBuf], excluded: &Excluded) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    let mut bytes = 0;
    let mut add = |path: &Path, source: Source| {
        bytes += source.text().len();
        sources.push(source);
        if bytes > SOURCES_BYTES_MAX {
            Err(LoadError::TooLargeTogether { path: path.to_owned() })
        } else {
            Ok(())
        }
    };
    for path in paths {
        if path.as_os_str() == "-" {
            add(path, text(path, STDIN.to_owned(), io::stdin().lock())?)?;
        } else if fs::metadata(path).map_err(io_error(path))?.is_dir() {
            let mut listing = walk(path, excluded);
            listing.check_bytes();
            if let Some(error) = listing.errors.into_iter().next() {
                return Err(error);
            }
            for path in listing.files.keys() {
                add(path, read(path)?.0)?;
            }
        } else {
            // An explicitly named pipe is intended: `palisade apply <(helm template .)`.
            let file = fs::File::open(path).map_err(io_error(path))?;
            add(path, text(path, path.display().to_string(), file)?)?;
        }
    }
    Ok(sources)
}

/// Loads a file that must be a regular one.
pub fn load_regular(path: &Path) -> Result<Source, LoadError> {
    read(path).map(|(source, _)| source)
}

/// Reads a regular file. Never blocks, not even for a special file that has replaced it.
///
/// The stamp is that of the file after reading. It differs from the stamp before if the file was written
/// meanwhile.
pub(super) fn read(path: &Path) -> Result<(Source, Stamp), LoadError> {
    let never_wait = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file =
        fs::OpenOptions::new().read(true).custom_flags(never_wait).open(path).map_err(io_error(path))?;
    let found = file.metadata().map_err(io_error(path))?;
    if let Some(kind) = not_regular(&found) {
        return Err(LoadError::NotRegular { path: path.to_owned(), kind });
    }
    if found.len() > SOURCE_BYTES_MAX as u64 {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    let source = text(path, path.display().to_string(), &file)?;
    let found = file.metadata().map_err(io_error(path))?;
    Ok((source, Stamp::of(&found)))
}

fn text(path: &Path, name: String, from: impl Read) -> Result<Source, LoadError> {
    let mut bytes = Vec::new();
    from.take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io_error(path))?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(name, text)),
        Err(error) => {
            Err(LoadError::NotText { path: path.to_owned(), offset: error.utf8_error().valid_up_to() })
        }
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> LoadError {
    let path = path.to_owned();
    move |error| LoadError::Io { path: path.clone(), error }
}

#[cfg(test)]
mod tests;
