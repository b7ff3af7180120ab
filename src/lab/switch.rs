//! The switch as a child process, which connects the pods of a lab.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::error::Context;
use super::{Lab, LabError, Pod, PodPorts};
use crate::control::{Client, ClientError};
use crate::dataplane::Backend;
use crate::ids::Generation;
use crate::source::load::{LoadOptions, load};
use crate::tables::RuleTables;

/// Configuration of a switch with offloaded flows.
const OFFLOAD: &str = "[offload]\nmode = \"kernel\"\n";
/// Longest wait for the control socket. Most of the time goes to the allocation of the UMEM and the conntrack
/// table.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a clean stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Last lines of the log in an error.
const LOG_LINES: usize = 5;
/// Last lines of the log that a panic prints.
const LOG_LINES_OF_A_PANIC: usize = 60;

/// Parameters of the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSpec {
    /// The `palisade` program.
    pub program: PathBuf,
    /// Program that forwards the packets of pods.
    pub backend: Backend,
    /// Whether pods stay disconnected after a clean stop. If not, the XDP programs are detached.
    pub stay_closed: bool,
    /// Whether the switch has few frames and flows: it starts in a tenth of the time and takes a quarter of the memory.
    /// Otherwise it has those of the default configuration.
    pub small: bool,
    /// Further configuration, in TOML. Its keys take precedence over those of the lab.
    pub config: String,
}

impl SwitchSpec {
    /// Specifies a small switch with the default configuration otherwise, which detaches its programs when it stops.
    pub fn of(program: impl Into<PathBuf>) -> SwitchSpec {
        SwitchSpec {
            program: program.into(),
            backend: Backend::default(),
            stay_closed: false,
            small: true,
            config: String::new(),
        }
    }
}

/// A running switch. Dropped, it is stopped.
#[derive(Debug)]
pub struct Switch {
    child: Child,
    client: Client,
    directory: PathBuf,
}

impl Switch {
    /// Starts a switch with one worker per queue of the lab's veth pairs, and waits until its control socket
    /// answers.
    pub fn start(lab: &mut Lab, spec: &SwitchSpec) -> Result<Switch, LabError> {
        let directory = lab.directory();
        let config = directory.join("palisade.toml");
        let offloads = lab.pods().any(|pod| pod.plan().ports == PodPorts::Offload);
        let text = config_text(usize::from(lab.journal().workers), offloads, spec)?;
        fs::write(&config, text).context(|| format!("write {}", config.display()))?;
        let log = log_file(&directory)?;
        let child = Command::new(&spec.program)
            .arg("run")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context(|| "share a log file".to_owned())?)
            .stderr(log)
            // A process group of its own keeps Ctrl-C from the switch: the lab stops it.
            .process_group(0)
            .spawn()
            .context(|| format!("start {}", spec.program.display()))?;
        let client = Client::new(directory.join(SOCKET));
        let mut switch = Switch { child, client, directory };
        lab.note_process(switch.pid())?;
        switch.wait_until_ready()?;
        Ok(switch)
    }

    /// Adds a port for each pod of the lab, and attaches the pod.
    pub fn attach_all(&self, lab: &Lab) -> Result<(), LabError> {
        lab.pods().try_for_each(|pod| self.attach(&pod))
    }

    /// Adds a port for the pod, named after its host interface, and attaches the pod.
    pub fn attach(&self, pod: &Pod) -> Result<(), LabError> {
        let plan = pod.plan();
        self.client.put_port(&plan.host_interface, &plan.port_request())?;
        self.client.put_pod(&plan.pod, &plan.pod_request())?;
        Ok(())
    }

    /// Detaches the pod, and removes its port.
    pub fn detach(&self, pod: &Pod) -> Result<(), LabError> {
        self.client.delete_pod(&pod.plan().pod)?;
        Ok(self.client.delete_port(&pod.plan().host_interface)?)
    }

    /// Compiles manifests and loads the tables. Every worker evaluates them when this returns.
    pub fn apply(&self, manifests: &str) -> Result<Generation, LabError> {
        Ok(self.client.put_tables(&compile(&self.directory, manifests)?)?.generation)
    }

    /// Client of the control socket.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Exit status; `None` while it runs.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Reads the log.
    pub fn log(&self) -> Result<String, LabError> {
        let file = self.directory.join(LOG);
        fs::read_to_string(&file).context(|| format!("read {}", file.display()))
    }

    /// Stops the switch cleanly, and returns its exit status.
    pub fn stop(mut self) -> Result<ExitStatus, LabError> {
        self.end().context(|| "stop the switch".to_owned())
    }

    /// Kills the switch: no handler and no destructor runs.
    pub fn kill(mut self) -> Result<(), LabError> {
        self.child.kill().and_then(|()| self.child.wait()).context(|| "kill the switch".to_owned())?;
        Ok(())
    }

    /// Keeps the switch running until the lab is removed.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let start = Instant::now();
        loop {
            let status = self.child.try_wait().context(|| "look after the switch".to_owned())?;
            if let Some(status) = status {
                return Err(self.failed(&format!("the switch ended while starting ({status})")));
            }
            match self.client.status() {
                Ok(_) => return Ok(()),
                Err(ClientError::NotRunning { .. }) if start.elapsed() < START_TIMEOUT => {
                    sleep(POLL_INTERVAL);
                }
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
    }

    fn failed(&self, what: &str) -> LabError {
        LabError::Switch(format!("{what}; it said:\n{}", self.last_lines(LOG_LINES)))
    }

    fn last_lines(&self, count: usize) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            kill_process(pid, Signal::TERM)?;
        }
        let asked = Instant::now();
        while asked.elapsed() < STOP_TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sleep(POLL_INTERVAL);
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // On failure the teardown of the lab ends the process, which the journal names.
        let _ = self.end();
        if thread::panicking() {
            eprintln!("the switch said:\n{}", self.last_lines(LOG_LINES_OF_A_PANIC));
        }
    }
}

impl From<ClientError> for LabError {
    fn from(error: ClientError) -> LabError {
        LabError::Switch(error.to_string())
    }
}

/// Control socket in the lab's directory.
const SOCKET: &str = "control.sock";
/// Log of the switch.
const LOG: &str = "switch.log";
/// Manifests that were compiled last.
const MANIFESTS: &str = "manifests.yaml";

/// Compiles manifests. They stay in the lab's directory for inspection.
fn compile(directory: &Path, manifests: &str) -> Result<RuleTables, LabError> {
    let file = directory.join(MANIFESTS);
    fs::write(&file, manifests).context(|| format!("write {}", file.display()))?;
    let compiled = load(&[file], &LoadOptions::default());
    compiled.map(|compiled| compiled.tables).map_err(|rejected| LabError::Switch(rejected.to_string()))
}

fn log_file(directory: &Path) -> Result<File, LabError> {
    let file = directory.join(LOG);
    OpenOptions::new().create(true).append(true).open(&file).context(|| format!("open {}", file.display()))
}

/// Sizes of a small switch.
const SMALL: &str = "[workers]\nframes = 8192\n[conntrack]\nflows = 16384\n";

fn config_text(workers: usize, offloads: bool, spec: &SwitchSpec) -> Result<String, LabError> {
    let cores = cores(workers).context(|| "learn which cores may be used".to_owned())?;
    let on_stop = if spec.stay_closed { "closed" } else { "detach" };
    let lab = format!(
        "backend = \"{}\"\non_stop = \"{on_stop}\"\n[workers]\ncores = {cores:?}\n[control]\nsocket = \"{SOCKET}\"\n",
        spec.backend
    );
    let mut config = toml::Table::new();
    let offload = if offloads { OFFLOAD } else { "" };
    for text in [lab.as_str(), offload, if spec.small { SMALL } else { "" }, &spec.config] {
        let keys = text.parse::<toml::Table>();
        let wrong = |error| LabError::Switch(format!("the configuration of the lab's switch: {error}"));
        merge(&mut config, keys.map_err(wrong)?);
    }
    Ok(config.to_string())
}

/// Adds keys to a configuration, in place of those that it has.
fn merge(config: &mut toml::Table, keys: toml::Table) {
    for (key, value) in keys {
        match (config.get_mut(&key), value) {
            (Some(toml::Value::Table(section)), toml::Value::Table(keys)) => merge(section, keys),
            (_, value) => drop(config.insert(key, value)),
        }
    }
}

/// Returns one core per worker: the last core that this process may use first, and again from there with too
/// few of them.
fn cores(workers: usize) -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    let allowed = (0..CpuSet::MAX_CPU).rev().filter(|&core| allowed.is_set(core));
    Ok(allowed.collect::<Vec<_>>().into_iter().cycle().take(workers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_generated_configuration_is_one_that_the_switch_takes() {
        let own = "[conntrack]\nflows = 4096\n[workers]\nspin_us = 7\n".to_owned();
        let spec = SwitchSpec { config: own, ..SwitchSpec::of("palisade") };
        let text = config_text(3, false, &spec).unwrap();
        let config = Config::parse(&text, Path::new("palisade.toml")).unwrap();
        assert_eq!(config.conntrack.flows, 4096);
        assert_eq!((config.workers.spin_us, config.workers.frames), (7, 8192));
        assert_eq!(config.gateway.addresses.len(), 2);
        assert_eq!(config.dataplane_settings().unwrap().cores.len(), 3);
    }
}
