//! Rights that the switch gives up once its sockets are bound: capabilities, files, system calls.
//!
//! All of them belong to threads, and a new thread inherits those of its parent. [`harden`] therefore runs before the
//! first thread starts.

mod capabilities;
mod files;
mod paths;
mod system_calls;

use std::path::Path;

use rustix::thread::set_no_new_privs;

use self::paths::Paths;
use crate::config::Config;
use crate::dataplane::Backend;

/// Gives up what a switch with this configuration does not need, and logs the rest. A right that the kernel does not take
/// back is a warning.
pub fn harden(config: &Config, config_file: Option<&Path>) {
    let paths = Paths::of(config, config_file);
    let starts_programs = config.backend == Backend::Nftables;
    match capabilities::drop_unneeded(&paths, starts_programs) {
        Ok(kept) => tracing::info!("capabilities kept: {kept}; all others are dropped"),
        Err(error) => tracing::warn!("capabilities stay as they are: {error}"),
    }
    if let Err(error) = set_no_new_privs(true) {
        tracing::warn!("programs that the switch might start may gain privileges (no_new_privs): {error}");
    }
    if config.hardening.landlock {
        match files::restrict(&paths) {
            Ok(Some(text)) => tracing::info!("files: {text}"),
            Ok(None) => tracing::warn!(
                "files are not restricted: this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, and `landlock` in lsm=)"
            ),
            Err(error) => tracing::warn!("files are not restricted: {error}"),
        }
    } else {
        tracing::info!("files are not restricted: hardening.landlock is off");
    }
    match system_calls::deny(starts_programs) {
        Ok(count) => tracing::info!(
            "system calls: {count} are denied ({}mounts, modules, other processes); no_new_privs is set",
            if starts_programs { "" } else { "programs, " }
        ),
        Err(error) => tracing::warn!("no system call is denied: {error}"),
    }
}
