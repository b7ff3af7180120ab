//! Manifests from files, directories and standard input.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::limits::SOURCE_BYTES_MAX;
use crate::policy::read::Source;

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
        /// What it says.
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
}

/// Loads files as they are named, directories with all below them in the order of their names, and `-` as standard
/// input. Hidden files are left out of directories. A directory that is named must hold something; so an empty or
/// mistyped directory is not taken for "no policy".
pub fn load(paths: &[PathBuf]) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            sources.push(text(path, "<stdin>".to_owned(), io::stdin().lock())?);
        } else if fs::metadata(path).map_err(io_error(path))?.is_dir() {
            let before = sources.len();
            directory(path, &mut sources, &mut BTreeSet::new())?;
            if sources.len() == before {
                return Err(LoadError::Empty { path: path.clone() });
            }
        } else {
            sources.push(file(path)?);
        }
    }
    Ok(sources)
}

/// `above` holds the directories that are being read, to leave links back to them alone.
fn directory(path: &Path, sources: &mut Vec<Source>, above: &mut BTreeSet<PathBuf>) -> Result<(), LoadError> {
    let real = fs::canonicalize(path).map_err(io_error(path))?;
    if !above.insert(real.clone()) {
        return Ok(());
    }
    let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(path).map_err(io_error(path))?.collect();
    let mut names: Vec<PathBuf> = entries.map_err(io_error(path))?.iter().map(fs::DirEntry::path).collect();
    names.retain(|name| !name.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
    names.sort();
    for name in names {
        let is_manifest = name.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known));
        match fs::metadata(&name) {
            Ok(found) if found.is_dir() => directory(&name, sources, above)?,
            Ok(found) if found.is_file() && is_manifest => sources.push(file(&name)?),
            Err(error) if is_manifest => return Err(LoadError::Io { path: name, error }),
            // Sockets, devices, links to nowhere: none of them holds manifests.
            Ok(_) | Err(_) => {}
        }
    }
    above.remove(&real);
    Ok(())
}

fn file(path: &Path) -> Result<Source, LoadError> {
    let file = fs::File::open(path).map_err(io_error(path))?;
    text(path, path.display().to_string(), file)
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

    /// A directory of its own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("palisade-files-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_directory_gives_its_manifests_in_order_and_nothing_else() {
        let scratch = Scratch::new("order");
        for name in ["b.yaml", "a/z.json", "a/.hidden.yaml", "c.yml", "notes.txt"] {
            scratch.write(name, b"x");
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
        let scratch = Scratch::new("ending");
        let path = scratch.write("policy", b"kind: Pod");
        assert_eq!(load(&[path]).unwrap()[0].text(), "kind: Pod");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let scratch = Scratch::new("errors");
        let text = |path: PathBuf| load(&[path]).unwrap_err().to_string();
        assert!(text(scratch.0.clone()).contains("no *.yaml"));
        assert!(text(scratch.0.join("gone.yaml")).contains("gone.yaml: No such file"));
        assert!(text(scratch.write("bad.yaml", b"ab\xff")).contains("bad.yaml: byte 2 is not UTF-8"));
    }
}
