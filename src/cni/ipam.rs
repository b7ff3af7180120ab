//! Delegation of addresses to an IPAM plugin.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::environment::Attachment;
use super::error::{CniError, Code};
use super::result::CniResult;
use super::version::Version;
use crate::limits::POD_ADDRESSES_MAX;

/// Longest run of an IPAM plugin for its own attachment. One for DHCP waits for a server.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);
/// Most bytes that an IPAM plugin may write.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Most routes of a pod.
const ROUTES_MAX: usize = 256;

/// Interval of looks whether a plugin has ended that has closed its output.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Longest wait for the end of a plugin that was killed.
const GRACE: Duration = Duration::from_secs(1);

/// Call of an IPAM plugin for one network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ipam<'a> {
    /// Directories of plugins.
    pub(super) path: &'a [PathBuf],
    /// Configuration of the network, with `ipam.type`.
    pub(super) config: &'a Map<String, Value>,
    /// `CNI_ARGS`.
    pub(super) arguments: &'a str,
    /// Longest time for an answer.
    pub(super) timeout: Duration,
}

/// Failure of a plugin.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: CniError,
    /// Whether the plugin holds nothing: it did not run, or has refused by an error of its own. One that was killed, or
    /// whose answer makes no sense, may have given addresses.
    pub(super) gave_none: bool,
}

impl Failure {
    fn refusal(error: CniError) -> Failure {
        Failure { error, gave_none: true }
    }
}

impl From<CniError> for Failure {
    fn from(error: CniError) -> Failure {
        Failure { error, gave_none: false }
    }
}

impl From<Failure> for CniError {
    fn from(failure: Failure) -> CniError {
        failure.error
    }
}

impl Ipam<'_> {
    /// Name of the plugin.
    fn plugin(&self) -> &str {
        let name = self.config.get("ipam").and_then(|ipam| ipam.get("type"));
        name.and_then(Value::as_str).unwrap_or_default()
    }

    /// Requests addresses.
    pub(super) fn add(&self, attachment: &Attachment, namespace: &str) -> Result<CniResult, Failure> {
        let answer = self.call("ADD", Some(attachment), namespace)?;
        let result = CniResult::parse(&answer, &format!("result of IPAM plugin {}", self.plugin()))?;
        if result.ips.is_empty() {
            let what = format!("IPAM plugin {} gave no address", self.plugin());
            return Err(CniError::new(Code::INVALID_CONFIG, what).into());
        }
        for (what, count, max) in
            [("addresses", result.ips.len(), POD_ADDRESSES_MAX), ("routes", result.routes.len(), ROUTES_MAX)]
        {
            if count > max {
                let plugin = self.plugin();
                let what = format!("IPAM plugin {plugin} gave {count} {what}, more than {max}");
                return Err(CniError::new(Code::INVALID_CONFIG, what).into());
            }
        }
        Ok(result)
    }

    /// Releases addresses. Without any, the plugin has nothing to do and succeeds.
    pub(super) fn del(&self, attachment: &Attachment, namespace: &str) -> Result<(), CniError> {
        Ok(self.call("DEL", Some(attachment), namespace).map(drop)?)
    }

    /// Compares addresses with the result of ADD.
    pub(super) fn check(&self, attachment: &Attachment, namespace: &str) -> Result<(), CniError> {
        Ok(self.call("CHECK", Some(attachment), namespace).map(drop)?)
    }

    /// Passes a verb of version 1.1 on, which older plugins do not know. Those of the CNI project before 1.2 miss the container
    /// of the call before they look at the verb.
    pub(super) fn pass_on(&self, verb: &str) -> Result<(), CniError> {
        const UNKNOWN: [Code; 3] =
            [Code::INCOMPATIBLE_VERSION, Code::UNKNOWN_CONTAINER, Code::INVALID_ENVIRONMENT];
        match self.run(verb, None, "", self.config, Instant::now() + self.timeout) {
            Err(failure) if UNKNOWN.contains(&failure.error.code()) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Calls the plugin with the version of the configuration, and with older ones if it does not know that.
    fn call(&self, verb: &str, attachment: Option<&Attachment>, namespace: &str) -> Result<Value, Failure> {
        let deadline = Instant::now() + self.timeout;
        let mut answer = self.run(verb, attachment, namespace, self.config, deadline);
        for version in [Version::V1_0, Version::V0_4] {
            match &answer {
                Err(failure) if failure.error.code() == Code::INCOMPATIBLE_VERSION => {
                    let mut config = self.config.clone();
                    config.insert("cniVersion".to_owned(), version.text().into());
                    answer = self.run(verb, attachment, namespace, &config, deadline);
                }
                _ => break,
            }
        }
        answer
    }

    fn run(
        &self,
        verb: &str,
        attachment: Option<&Attachment>,
        namespace: &str,
        config: &Map<String, Value>,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let program = self.find().map_err(Failure::refusal)?;
        let path = std::env::join_paths(self.path).unwrap_or_default();
        let mut command = Command::new(&program);
        command.env("CNI_COMMAND", verb).env("CNI_PATH", path).env("CNI_ARGS", self.arguments);
        // STATUS and GC are about no attachment, whatever the environment of this call has.
        match attachment {
            Some(Attachment { container, interface }) => command
                .env("CNI_NETNS", namespace)
                .env("CNI_CONTAINERID", container)
                .env("CNI_IFNAME", interface),
            None => command.env_remove("CNI_NETNS").env_remove("CNI_CONTAINERID").env_remove("CNI_IFNAME"),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| {
            Failure::refusal(CniError::io(&format!("start IPAM plugin {}", program.display()), &error))
        })?;
        let output = run_bounded(child, &program, &serde_json::json!(config).to_string(), deadline)?;
        self.read(verb, &output)
    }

    /// Reads the answer of a plugin that has ended.
    fn read(&self, verb: &str, output: &Output) -> Result<Value, Failure> {
        let text = String::from_utf8_lossy(&output.stdout);
        let decoded: Result<Value, _> = serde_json::from_str(&text);
        let name = self.plugin();
        if output.status.success() {
            return match decoded {
                Ok(answer) => Ok(answer),
                Err(_) if text.trim().is_empty() && verb != "ADD" => Ok(Value::Null),
                Err(error) => {
                    let what = format!("IPAM plugin {name}: its answer to {verb} is not JSON: {error}");
                    Err(CniError::new(Code::DECODE, what).into())
                }
            };
        }
        let answer = decoded.unwrap_or_default();
        let part = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or_default();
        let code = answer.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
        // A status without a code is the end by a signal.
        let gave_none = code.is_some() && output.status.code().is_some();
        let message = match (part("msg"), part("details")) {
            ("", "") => format!("it failed without a message ({}): {}", output.status, text.trim()),
            (message, "") => message.to_owned(),
            (message, details) => format!("{message}: {details}"),
        };
        let code = code.map_or(Code::IO, Code);
        let error = CniError::new(code, format!("IPAM plugin {name}, {verb}: {message}"));
        Err(Failure { error, gave_none })
    }

    fn find(&self) -> Result<PathBuf, CniError> {
        let candidates = self.path.iter().filter(|directory| directory.is_absolute());
        candidates.map(|directory| directory.join(self.plugin())).find(|file| file.is_file()).ok_or_else(
            || {
                let path: Vec<_> = self.path.iter().map(|path| path.display().to_string()).collect();
                let what = format!(
                    "IPAM plugin {} is in none of the directories of CNI_PATH ({}): install it there",
                    self.plugin(),
                    path.join(", ")
                );
                CniError::new(Code::INVALID_CONFIG, what)
            },
        )
    }
}

/// End of a program, and the text that it wrote.
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
}

/// Gives a program this input, and waits for its answer and its end. It is killed when its time is over.
fn run_bounded(mut child: Child, program: &Path, input: &str, deadline: Instant) -> Result<Output, CniError> {
    let failed = |action: &str, error: &std::io::Error| {
        CniError::io(&format!("{action} IPAM plugin {}", program.display()), error)
    };
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_owned();
    // The threads end with the pipes, at the latest when this process ends.
    thread::spawn(move || {
        // A program that reads nothing of it says so by its answer.
        stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
    });
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.map(|stdout| stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
        // The receiver is gone when the time is over.
        let _ = sender.send(read.transpose().map(|_| bytes));
    });
    let read = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    let status = match &read {
        Some(_) => wait_until(&mut child, deadline).map_err(|error| failed("wait for", &error))?,
        None => None,
    };
    let (Some(read), Some(status)) = (read, status) else {
        // Killing fails only for a process that has ended already.
        let _ = child.kill();
        // The kernel keeps one that cannot end now, and this process goes on.
        let _ = wait_until(&mut child, Instant::now() + GRACE);
        let what = format!("IPAM plugin {} did not end in its time", program.display());
        return Err(CniError::new(Code::TRY_AGAIN, what));
    };
    let stdout = read.map_err(|error| failed("read the answer of", &error))?;
    Ok(Output { status, stdout })
}

/// Waits for the end of a program; `None` when its time is over.
fn wait_until(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= deadline {
            return Ok(ended);
        }
        thread::sleep(POLL_INTERVAL);
    }
}
