//! Lock of the agent of a switch: a file beside the control socket.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};

/// Most bytes of the file that are read.
const BYTES_MAX: u64 = 1 << 20;

/// Lock, held until it is dropped. The file names its holder, and the prefixes of the routes that it has added.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    earlier: Vec<IpNet>,
}

/// Reason for which there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has the lock.
    #[error(
        "another agent already loads tables into this switch: {holder} has the lock {path}; end it first",
        path = .path.display()
    )]
    Held {
        /// Path of the file.
        path: PathBuf,
        /// Other agent.
        holder: String,
    },
    /// File cannot be opened or locked.
    #[error("the lock {path} cannot be taken: {source}", path = .path.display())]
    Failed {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock of the switch with this control socket.
    pub fn take(socket: &Path) -> Result<Lock, LockError> {
        let path = socket.with_extension("agent");
        let failed = |source: io::Error| LockError::Failed { path: path.clone(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let options = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let mut file = options.open(&path).map_err(failed)?;
        let mut text = String::new();
        let is_held = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => false,
            Err(rustix::io::Errno::WOULDBLOCK) => true,
            Err(error) => return Err(failed(error.into())),
        };
        // A file that is no text is of no agent.
        let _ = (&mut file).take(BYTES_MAX).read_to_string(&mut text);
        let mut lines = text.lines();
        let holder = lines.next().filter(|line| line.starts_with("process ")).unwrap_or("another process");
        if is_held {
            let holder = crate::printable::line(holder).into_owned();
            return Err(LockError::Held { path, holder });
        }
        let earlier = lines.filter_map(|line| line.strip_prefix("route ")?.parse().ok()).collect();
        let mut lock = Lock { file, path: path.clone(), earlier };
        let kept = lock.earlier.iter().copied().collect();
        lock.record(&kept).map_err(failed)?;
        Ok(lock)
    }

    /// Prefixes of the routes that an earlier agent has added.
    pub fn earlier_routes(&self) -> &[IpNet] {
        &self.earlier
    }

    /// Records the prefixes of the routes that the switch has of this agent.
    pub fn record(&mut self, prefixes: &BTreeSet<IpNet>) -> io::Result<()> {
        let routes = prefixes.iter().map(|prefix| format!("route {prefix}\n"));
        let text: String =
            std::iter::once(format!("process {}\n", std::process::id())).chain(routes).collect();
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::load::scratch::Scratch;

    #[test]
    fn one_agent_has_the_lock_and_the_next_one_knows_its_routes() {
        let scratch = Scratch::new();
        let socket = scratch.0.join("control.sock");
        let mut first = Lock::take(&socket).unwrap();
        let error = Lock::take(&socket).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} has the lock", std::process::id())), "{error}");
        let prefix: IpNet = "10.2.0.0/24".parse().unwrap();
        first.record(&BTreeSet::from([prefix])).unwrap();
        drop(first);
        assert_eq!(Lock::take(&socket).unwrap().earlier_routes(), [prefix]);
    }

    #[test]
    fn a_link_or_a_file_of_anything_is_harmless() {
        let scratch = Scratch::new();
        let socket = scratch.0.join("control.sock");
        std::os::unix::fs::symlink("/etc/hostname", scratch.0.join("control.agent")).unwrap();
        assert!(matches!(Lock::take(&socket), Err(LockError::Failed { .. })));
        std::fs::remove_file(scratch.0.join("control.agent")).unwrap();
        scratch.write("control.agent", "process 1\nroute x\n\u{1b}\nroute ::/0x\n");
        assert_eq!(Lock::take(&socket).unwrap().earlier_routes(), []);
    }
}
