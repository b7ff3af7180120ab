//! Copy of the last configuration that has worked, beside the control socket: the error of a start with a broken file names it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::control::DEFAULT_SOCKET;

/// Keeps a copy of a configuration file that a start or a reload has taken.
pub(super) fn keep(file: &Path, socket: &Path) {
    let copy = copy_of(file, socket);
    let written = fs::read(file).and_then(|text| replace(&copy, &text));
    if let Err(error) = written {
        tracing::warn!("no copy of the configuration is kept in {}: {error}", copy.display());
    }
}

/// Sentence about the copy of this file, if there is one of the switch with the default control socket.
pub(super) fn hint(file: &Path) -> String {
    let copy = copy_of(file, Path::new(DEFAULT_SOCKET));
    let is_there = copy.is_file();
    let hint = || format!("; the last configuration that has worked is in {}", copy.display());
    is_there.then(hint).unwrap_or_default()
}

/// Path of the copy of a file: its name has the path as it was given, so that two files have two copies.
fn copy_of(file: &Path, socket: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    // FNV-1a: the name outlives the program.
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = file.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add);
    socket.with_file_name(format!("configuration-{hash:016x}.toml"))
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    io::Write::write_all(&mut file, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_a_file_is_what_it_was_and_private() {
        let directory = std::env::temp_dir().join(format!("palisade-last-good-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, socket) = (directory.join("palisade.toml"), directory.join("control.sock"));
        for text in ["a = 1\n", "b = 2\n"] {
            fs::write(&file, text).unwrap();
            keep(&file, &socket);
            let copy = copy_of(&file, &socket);
            assert_eq!(fs::read_to_string(&copy).unwrap(), text);
            assert_eq!(
                std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&copy).unwrap().permissions()) & 0o777,
                0o600
            );
        }
        assert_ne!(copy_of(&file, &socket), copy_of(&directory.join("other.toml"), &socket));
        fs::remove_dir_all(&directory).unwrap();
    }
}
