//! The CNI plugin: the switch as the network of a container runtime (CNI specification 1.1).
//!
//! | file | contents |
//! |---|---|
//! | `environment.rs`, `config.rs`, `version.rs` | a call: its variables, the configuration of its network, versions |
//! | `error.rs`, `result.rs` | answers: errors with codes, results |
//! | `ipam.rs` | addresses, from another plugin |
//! | `link.rs` | interfaces of pods |
//! | `record.rs` | records on disk, by which calls and starts of the switch finish what others have left |
//! | `attach.rs`, `detach.rs`, `check.rs`, `node.rs` | the verbs |
//! | `restore.rs` | attachments after a start of the switch |
//! | `install.rs` | the plugin's own command line |

mod config;
mod environment;
mod error;
mod record;
mod result;
mod version;

mod ipam;
mod link;

mod attach;
mod check;
mod detach;
mod node;

mod install;
mod restore;

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use self::attach::Attacher;
use self::error::note;
use self::install::Command;
use crate::control::Client;

pub use config::{InterfaceKind, NetworkConfig, directory_beside};
pub use environment::{Attachment, Environment, Verb};
pub use error::{CniError, Code};
pub use restore::restore;
pub use result::CniResult;
pub use version::Version;

/// Longest wait for one answer of the switch.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The same for STATUS, which runtimes call every few seconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the program: a call of a container runtime, or a command of the operator.
pub fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() && std::env::args_os().len() <= 1 {
        return serve();
    }
    let Command::Install { bin_dir, conf_dir, conf } = Command::parse();
    match install::install(&bin_dir, &conf_dir, conf.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&error);
            ExitCode::from(2)
        }
    }
}

/// Command line of the program, for its man pages.
pub fn command_line() -> clap::Command {
    Command::command()
}

/// Serves one call, and prints its answer.
fn serve() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let mut version = Version::V1_1;
    let outcome = guarded(|| answer(variable, io::stdin().lock(), &mut version));
    let (answer, code) = match outcome {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(answer)) => (answer, ExitCode::SUCCESS),
        Err(error) => (error.to_json(version.text()), ExitCode::FAILURE),
    };
    // A runtime that has closed the pipe has given up on the call, and sends DEL.
    match writeln!(io::stdout().lock(), "{answer}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves the call that `variable` and `input` describe. `version` becomes that of the configuration, for errors.
fn answer(
    variable: impl Fn(&str) -> Option<String>,
    input: impl Read,
    version: &mut Version,
) -> Result<Option<Value>, CniError> {
    let environment = Environment::read(variable)?;
    if environment.verb == Verb::Version {
        return Ok(Some(version::supported()));
    }
    let raw = config::read_object(input)?;
    let config = if environment.verb == Verb::Del {
        let (config, fault) = NetworkConfig::for_removal(raw)?;
        if let Some(fault) = fault {
            note(&format!("DEL goes on with a faulty network configuration: {fault}"));
        }
        config
    } else {
        NetworkConfig::of(raw)?
    };
    *version = config.version;
    node::check_version(environment.verb, &config)?;
    let records = record::Records::at(&config.directory);
    let timeout = if environment.verb == Verb::Status { STATUS_TIMEOUT } else { TIMEOUT };
    let switch = Client::new(&config.socket).with_patience(timeout);
    match environment.verb {
        Verb::Add => {
            let attacher =
                Attacher { environment: &environment, config: &config, records: &records, switch: &switch };
            return attacher.add().map(|result| Some(result.to_json(config.version)));
        }
        Verb::Del => detach::delete(&environment, &config, &records, &switch)?,
        Verb::Check => check::check(&environment, &config, &records, &switch)?,
        Verb::Gc => node::collect(&environment, &config, &records, &switch)?,
        Verb::Status => node::status(&environment, &config, &records, &switch)?,
        Verb::Version => {}
    }
    Ok(None)
}

/// Serves a call, and answers with an error where the plugin itself has a defect. A runtime cannot tell an empty answer from
/// a plugin that is not there.
fn guarded<T>(serve: impl FnOnce() -> Result<T, CniError>) -> Result<T, CniError> {
    catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        Err(CniError::new(Code::DEFECT, format!("palisade-cni has a defect, report it: {text}")))
    })
}

#[cfg(test)]
mod tests;
