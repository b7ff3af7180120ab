//! Test programs: built once, run with the privilege that they need.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::part::{PARTS, Part, Variables};

/// Longest time of a run. One that takes longer hangs.
const TIMEOUT: Duration = Duration::from_mins(40);

/// Way to root's privilege.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    Own,
    /// sudo that asks for no password.
    Sudo,
    Missing,
}

impl Root {
    pub(crate) fn find() -> Root {
        if std::env::var_os("PALISADE_SKIP_NETNS").is_some_and(|value| value == "1") {
            return Root::Missing;
        }
        if rustix::process::geteuid().is_root() {
            return Root::Own;
        }
        let sudo = Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status();
        if sudo.is_ok_and(|status| status.success()) { Root::Sudo } else { Root::Missing }
    }
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    TimedOut,
    /// It passed without an input: its tests have other names, or skip themselves.
    WithoutInput,
}

impl End {
    pub(crate) fn is_success(self) -> bool {
        self == End::Passed
    }
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Passed => "passed",
            End::Failed => "failed",
            End::TimedOut => "timed out",
            End::WithoutInput => "without input",
        })
    }
}

/// Test programs, by the name that a part gives them.
pub(crate) struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds the programs of all parts.
    pub(crate) fn build() -> Programs {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--locked", "--profile", "soak", "--no-run"]);
        cargo.arg("--message-format=json-render-diagnostics").arg("--lib");
        for part in PARTS.iter().filter(|part| part.program != "lib") {
            cargo.args(["--test", part.program]);
        }
        let output = cargo.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "the test programs are not built");
        let messages = output.stdout.split(|byte| *byte == b'\n').filter_map(|line| {
            let message: Value = serde_json::from_slice(line).ok()?;
            let program = message["executable"].as_str()?;
            let is_test = message["profile"]["test"] == true;
            let target = &message["target"];
            let name = if target["kind"][0] == "lib" { "lib" } else { target["name"].as_str()? };
            is_test.then(|| (name.to_owned(), PathBuf::from(program)))
        });
        Programs(messages.collect())
    }

    /// Runs tests of a part, and writes their output to `log`.
    pub(crate) fn run(
        &self,
        part: &Part,
        filters: &[&str],
        variables: &Variables,
        root: Root,
        log: &Path,
    ) -> End {
        let program = &self.0[part.program];
        let mut command = if part.needs_root && root == Root::Sudo {
            let mut sudo = Command::new("sudo");
            let variables = variables.iter().map(|(name, value)| format!("{name}={value}"));
            sudo.args(["-n", "-E", "env"]).args(variables).arg(program);
            sudo
        } else {
            Command::new(program)
        };
        command.args(filters).args(["--nocapture", "--test-threads=1", "--skip", "loom_tests"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let file = File::create(log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return if status.success() { End::Passed } else { End::Failed };
            }
            if start.elapsed() > TIMEOUT {
                child.kill().unwrap();
                child.wait().unwrap();
                return End::TimedOut;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Variables as a shell takes them.
pub(crate) fn assignments(variables: &Variables) -> String {
    let all: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.join(" ")
}
