//! Socket file. It is never taken from a running switch, and removed only if it is this process's own.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::unistd::Group;
use rustix::fs::{FlockOperation, flock};

use super::error::ServerError;

/// Place of a socket, and its access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPlace {
    /// Path.
    pub path: PathBuf,
    /// Permissions.
    pub mode: u32,
    /// Group by name or number; that of the process where absent.
    pub group: Option<String>,
}

/// File of a bound socket. Dropping it removes the file, unless another file has taken its path.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

/// Listens at a place. Replaces a socket that a dead process left, and rejects one that accepts connections.
pub(super) fn bind(place: &SocketPlace) -> Result<(UnixListener, SocketFile), ServerError> {
    let SocketPlace { path, mode, group } = place;
    let failed = |source| ServerError::Socket { path: path.clone(), source };
    let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let group = group.as_deref().map(|name| group_id(name, path)).transpose()?;
    fs::create_dir_all(directory).map_err(failed)?;
    // Two switches that start at once see the same stale socket. The lock admits one of them at a time.
    let lock = File::open(directory).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
    refuse_occupied(path)?;
    // The socket is bound under a temporary name and then renamed: the final name never has wider permissions
    // than `mode`.
    let bound_as = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let _ = fs::remove_file(&bound_as);
    let listener = UnixListener::bind(&bound_as).map_err(failed)?;
    let given = group.map_or(Ok(()), |(group, name)| {
        let forbidden = |source| ServerError::Group { path: path.clone(), group: name.to_owned(), source };
        chown(&bound_as, None, Some(group)).map_err(forbidden)
    });
    let moved = given.and_then(|()| {
        fs::set_permissions(&bound_as, Permissions::from_mode(*mode))
            .and_then(|()| fs::rename(&bound_as, path))
            .and_then(|()| fs::symlink_metadata(path))
            .map_err(failed)
    });
    match moved {
        Ok(file) => Ok((listener, SocketFile { path: path.clone(), identity: (file.dev(), file.ino()) })),
        Err(error) => {
            let _ = fs::remove_file(&bound_as);
            Err(error)
        }
    }
}

/// Number of a group, beside its name.
fn group_id<'n>(name: &'n str, path: &Path) -> Result<(u32, &'n str), ServerError> {
    if let Ok(number) = name.parse() {
        return Ok((number, name));
    }
    let found = Group::from_name(name).ok().flatten();
    let unknown = || ServerError::NoGroup { path: path.to_owned(), group: name.to_owned() };
    Ok((found.ok_or_else(unknown)?.gid.as_raw(), name))
}

impl SocketFile {
    /// Path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn refuse_occupied(path: &Path) -> Result<(), ServerError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ServerError::Socket { path: path.to_owned(), source }),
        Ok(file) if !file.file_type().is_socket() => Err(ServerError::NotASocket { path: path.to_owned() }),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(source) => Err(ServerError::Socket { path: path.to_owned(), source }),
            Ok(_) => Err(ServerError::Alive { path: path.to_owned() }),
        },
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if ours.is_ok_and(|identity| identity == self.identity) {
            // The next start replaces a file that cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}
