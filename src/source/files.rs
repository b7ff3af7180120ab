//! Manifests from files, directories and standard input.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::OFlags;

use crate::limits::{SOURCE_BYTES_MAX, SOURCE_FILES_MAX};
use crate::policy::parse::Source;

/// Endings of the files that are read in a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file system says no.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Its content.
        error: io::Error,
    },
    /// A file is too large.
    #[error("{path}: larger than {SOURCE_BYTES_MAX} bytes; split it into several files", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file is no text.
    #[error("{path}: byte {offset} is not UTF-8; manifests are UTF-8 text", path = .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Its first byte that is wrong.
        offset: usize,
    },
    /// A directory holds nothing to read.
    #[error("{path}: no *.yaml, *.yml or *.json file in this directory", path = .path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// A directory holds more than can be meant.
    #[error(
        "{path}: more than {SOURCE_FILES_MAX} files and directories; does a link lead back to it?",
        path = .path.display()
    )]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// Reading would wait for somebody, or never end.
    #[error("{path} is {kind}; manifests in a directory are regular files: move it away", path = .path.display())]
    NotRegular {
        /// The name.
        path: PathBuf,
        /// Kind of the thing that has the name.
        kind: &'static str,
    },
    /// A file that held objects is empty: somebody has truncated it and not written it yet, or a pipe into it has failed.
    #[error(
        "{path} is empty and held objects before: write it again, or remove the file if they are to go",
        path = .path.display()
    )]
    Emptied {
        /// The file.
        path: PathBuf,
    },
    /// A file was still being written when the switch had to start.
    #[error("{path} is being written: start again when it is complete", path = .path.display())]
    BeingWritten {
        /// The file.
        path: PathBuf,
    },
}

/// Identity and state of a file: a file with another stamp may have other content.
///
/// Size and modification time alone do not tell two files of an image layer apart; inode and change time do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds since 1970, of the last write.
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

/// The manifests below a path, and the directories and links on the way to them.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Manifests, in the order in which their objects count.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// Directories, without links in their paths.
    pub(super) directories: BTreeSet<PathBuf>,
    /// Symbolic links to manifests and directories.
    pub(super) links: Vec<PathBuf>,
    /// Names of manifests that lead to none.
    pub(super) errors: Vec<LoadError>,
}

/// Lists what is at a path: a file, or a directory with all below it. Hidden names are left out of directories. A directory must hold
/// something; so an empty or mistyped directory is not taken for "no policy".
pub(super) fn list(root: &Path) -> Listing {
    let mut listing = Listing::default();
    match fs::metadata(root) {
        Ok(found) if found.is_dir() => {
            listing.directory(root, &mut BTreeSet::new(), &mut 0);
            if listing.files.is_empty() && listing.errors.is_empty() {
                listing.errors.push(LoadError::Empty { path: root.to_owned() });
            }
        }
        Ok(found) => listing.file(root, &found),
        Err(error) => listing.errors.push(io_error(root)(error)),
    }
    listing
}

impl Listing {
    /// `above` holds the directories that are being read, to leave links back to them alone; `seen` counts names.
    fn directory(&mut self, path: &Path, above: &mut BTreeSet<PathBuf>, seen: &mut usize) {
        let found = fs::canonicalize(path).and_then(|real| {
            let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(path)?.collect();
            Ok((real, entries?))
        });
        let (real, mut entries) = match found {
            Ok(found) => found,
            Err(error) => return self.errors.push(io_error(path)(error)),
        };
        if !above.insert(real.clone()) {
            return;
        }
        entries.retain(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        entries.sort_by_key(fs::DirEntry::file_name);
        *seen += 1 + entries.len();
        for entry in &entries {
            if *seen > SOURCE_FILES_MAX {
                self.errors.push(LoadError::TooMany { path: path.to_owned() });
                break;
            }
            self.entry(entry, above, seen);
        }
        above.remove(&real);
        self.directories.insert(real);
    }

    fn entry(&mut self, entry: &fs::DirEntry, above: &mut BTreeSet<PathBuf>, seen: &mut usize) {
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => {
                if is_link {
                    self.links.push(path.clone());
                }
                self.directory(&path, above, seen);
            }
            Ok(found) if is_manifest(&path) => {
                if is_link {
                    self.links.push(path.clone());
                }
                self.file(&path, &found);
            }
            Err(error) if is_manifest(&path) => self.errors.push(LoadError::Io { path, error }),
            // Other files, and links to nowhere: none of them is meant to hold manifests.
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

/// Whether a name in a directory is one of a manifest.
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

/// Loads files as they are named, directories with all below them in the order of their names, and `-` as standard input.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            sources.push(text(path, "<stdin>".to_owned(), io::stdin().lock())?);
        } else if fs::metadata(path).map_err(io_error(path))?.is_dir() {
            let listing = list(path);
            if let Some(error) = listing.errors.into_iter().next() {
                return Err(error);
            }
            for path in listing.files.keys() {
                sources.push(read(path)?.0);
            }
        } else {
            // A pipe that is named is meant: `palisade apply <(helm template .)`.
            let file = fs::File::open(path).map_err(io_error(path))?;
            sources.push(text(path, path.display().to_string(), file)?);
        }
    }
    Ok(sources)
}

/// Reads a regular file. Never waits: for whatever takes its name meanwhile, neither.
///
/// The stamp is that of the file after reading: it differs from the one before where somebody has written meanwhile.
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
mod tests {
    use super::*;
    use crate::source::load::scratch::Scratch;

    #[test]
    fn a_directory_gives_its_manifests_in_order_and_nothing_else() {
        let scratch = Scratch::new();
        for name in ["b.yaml", "a/z.json", "a/.hidden.yaml", "c.yml", "notes.txt"] {
            scratch.write(name, "x");
        }
        std::os::unix::fs::symlink("..", scratch.0.join("a/up")).unwrap();
        let sources = load(std::slice::from_ref(&scratch.0)).unwrap();
        let names: Vec<&str> = sources
            .iter()
            .map(|source| source.name().strip_prefix(scratch.0.to_str().unwrap()).unwrap())
            .collect();
        assert_eq!(names, ["/a/z.json", "/b.yaml", "/c.yml"]);
    }

    #[test]
    fn a_named_file_is_read_whatever_its_ending() {
        let scratch = Scratch::new();
        let path = scratch.write("policy", "kind: Pod");
        assert_eq!(load(&[path]).unwrap()[0].text(), "kind: Pod");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let scratch = Scratch::new();
        let text = |path: PathBuf| load(&[path]).unwrap_err().to_string();
        assert!(text(scratch.0.clone()).contains("no *.yaml"));
        assert!(text(scratch.0.join("gone.yaml")).contains("gone.yaml: No such file"));
        let path = scratch.write("bad.yaml", "");
        fs::write(&path, b"ab\xff").unwrap();
        assert!(text(path).contains("bad.yaml: byte 2 is not UTF-8"));
    }

    #[test]
    fn a_fifo_or_a_socket_in_a_directory_is_an_error_and_nobody_waits_for_it() {
        let scratch = Scratch::new();
        scratch.write("a.yaml", "x");
        let fifo = scratch.0.join("b.yaml");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let error = load(std::slice::from_ref(&scratch.0)).unwrap_err().to_string();
        assert!(error.contains("b.yaml is a FIFO"), "{error}");
        assert!(read(&fifo).unwrap_err().to_string().contains("is a FIFO"), "it took the name of a file");
        fs::remove_file(&fifo).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&fifo).unwrap();
        let error = load(std::slice::from_ref(&scratch.0)).unwrap_err().to_string();
        assert!(error.contains("b.yaml is a socket"), "{error}");
    }

    #[test]
    fn another_file_of_the_same_size_and_time_has_another_stamp() {
        let scratch = Scratch::new();
        let path = scratch.write("a.yaml", "one");
        let before = list(&path).files[&path];
        let other = scratch.write("other", "two");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::File::options().append(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        let after = list(&path).files[&path];
        assert_eq!((before.bytes, before.modified), (after.bytes, after.modified));
        assert_ne!(before, after);
    }
}
