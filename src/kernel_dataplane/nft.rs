//! The program `nft` of the nftables package.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, io};

use crate::dataplane::StartError;
use crate::printable;

/// Directories of programs, where the environment names none.
const DEFAULT_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Lines of an error message that are passed on.
const ERROR_LINES: usize = 3;

/// The program, by its path.
#[derive(Debug)]
pub(super) struct Nft {
    program: PathBuf,
}

impl Nft {
    /// Finds the program in the directories of `PATH`.
    pub(super) fn find() -> Result<Nft, StartError> {
        let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let mut candidates = env::split_paths(&path).map(|directory| directory.join("nft"));
        candidates.find(|file| is_program(file)).map(|program| Nft { program }).ok_or_else(|| {
            StartError::Setup(format!(
                "the backend nftables needs the program nft, and there is none in {}: install the package nftables",
                path.display()
            ))
        })
    }

    /// Runs the commands of a text as one transaction. A text that fails changes nothing.
    pub(super) fn load(&self, text: &str) -> Result<(), String> {
        self.run(&["-f", "-"], text).map(drop)
    }

    /// Names of the tables in the kernel, each with its family before it.
    pub(super) fn tables(&self) -> Result<Vec<String>, String> {
        let listed = self.run(&["list", "tables"], "")?;
        let names = listed.lines().filter_map(|line| line.strip_prefix("table "));
        Ok(names.map(|name| name.trim().to_owned()).collect())
    }

    /// Lists objects as JSON (libnftables-json(5)).
    pub(super) fn list(&self, words: &[&str]) -> Result<serde_json::Value, String> {
        let listed = self.run(&[&["-j", "list"], words].concat(), "")?;
        serde_json::from_str(&listed).map_err(|error| format!("nft prints no JSON: {error}"))
    }

    fn run(&self, words: &[&str], input: &str) -> Result<String, String> {
        let started = || -> io::Result<Output> {
            let mut command = Command::new(&self.program);
            command.args(words).env("LC_ALL", "C");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            // The program reads its whole input before it writes. One that ends early says why on standard error.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            child.wait_with_output()
        };
        let program = self.program.display();
        let output = started().map_err(|error| format!("{program} does not start: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<String> =
            message.lines().take(ERROR_LINES).map(|line| printable::line(line.trim()).into_owned()).collect();
        Err(format!("{program} fails ({}): {}", output.status, lines.join("; ")))
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
