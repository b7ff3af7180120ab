//! Open vSwitch with its userspace datapath and a bridge, in a network namespace: daemons of its own, whose database,
//! sockets and logs are in one directory. Nothing of the system's service is touched.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for a daemon to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a daemon after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Schema of the database.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Name of the bridge, and of the interface that is its port `LOCAL`.
pub(crate) const BRIDGE: &str = "br0";

/// Running daemons. The first is stopped first.
pub(crate) struct OpenVswitch {
    daemons: Vec<Daemon>,
    files: Files,
}

/// Place of the daemons.
struct Files {
    namespace: String,
    directory: PathBuf,
}

/// Process that is stopped on drop.
struct Daemon(Child);

impl OpenVswitch {
    /// Starts the daemons with these settings of the table `Open_vSwitch`, and adds the bridge. `note` receives the id of
    /// each process when it has started.
    pub(crate) fn start(
        namespace: &str,
        directory: &Path,
        settings: &[&str],
        mut note: impl FnMut(u32) -> io::Result<()>,
    ) -> io::Result<OpenVswitch> {
        let files = Files { namespace: namespace.to_owned(), directory: directory.to_owned() };
        let conf = files.path("conf.db");
        files.run("ovsdb-tool", &["create", &conf, SCHEMA], "")?;
        let remote = format!("--remote=p{}", files.database());
        let database = files.daemon("ovsdb-server", &[&conf, &remote], &mut note)?;
        files.configure(&["--no-wait", "init"])?;
        if !settings.is_empty() {
            files.configure(&[&["--no-wait", "set", "Open_vSwitch", "."], settings].concat())?;
        }
        let switch = files.daemon("ovs-vswitchd", &[&files.database()], &mut note)?;
        let bridge =
            ["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail-mode=secure"];
        files.configure(&bridge)?;
        Ok(OpenVswitch { daemons: vec![switch, database], files })
    }

    /// Process id of `ovs-vswitchd`.
    pub(crate) fn switch_pid(&self) -> u32 {
        self.daemons[0].0.id()
    }

    /// Runs `ovs-vsctl`, which waits until the switch has the configuration.
    pub(crate) fn configure(&self, words: &[&str]) -> io::Result<String> {
        self.files.configure(words)
    }

    /// Adds ports, with numbers from 1 in their order and these settings of the table `Interface`.
    pub(crate) fn add_ports(&self, interfaces: &[String], settings: &[&str]) -> io::Result<()> {
        let mut words = vec![];
        for (number, interface) in (1..).zip(interfaces) {
            words.extend(
                ["--", "add-port", BRIDGE, interface, "--", "set", "interface", interface].map(str::to_owned),
            );
            words.push(format!("ofport_request={number}"));
            words.extend(settings.iter().map(|&word| word.to_owned()));
        }
        self.configure(&words[1..].iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(())
    }

    /// Runs `ovs-ofctl` with `input` on its standard input.
    pub(crate) fn flows(&self, words: &[&str], input: &str) -> io::Result<String> {
        self.files.run("ovs-ofctl", &[&["-O", "OpenFlow15"], words].concat(), input)
    }
}

impl Files {
    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn database(&self) -> String {
        format!("unix:{}", self.path("db.sock"))
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]).args(words);
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.directory);
        }
        command
    }

    fn configure(&self, words: &[&str]) -> io::Result<String> {
        let database = format!("--db={}", self.database());
        self.run("ovs-vsctl", &[&[&database, "--retry", "--timeout=60"], words].concat(), "")
    }

    /// Runs a program to its end.
    fn run(&self, program: &str, words: &[&str], input: &str) -> io::Result<String> {
        let mut command = self.command(program, words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut pipe = child.stdin.take().expect("standard input is a pipe");
        let input = input.to_owned();
        // A program that rejects its input closes the pipe and prints the reason itself.
        let writer = spawn(move || drop(pipe.write_all(input.as_bytes())));
        let output = child.wait_with_output()?;
        let _ = writer.join();
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let verb = words.iter().find(|word| !word.starts_with('-')).unwrap_or(&"");
        Err(io::Error::other(format!("{program} {verb}: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }

    /// Starts a program in the background, and waits until it has written its process id into a file.
    fn daemon(
        &self,
        program: &str,
        words: &[&str],
        note: &mut impl FnMut(u32) -> io::Result<()>,
    ) -> io::Result<Daemon> {
        let (pidfile, log) = (self.path(&format!("{program}.pid")), self.path(&format!("{program}.out")));
        let mut command = self.command(program, words);
        command.arg(format!("--pidfile={pidfile}")).arg("-vconsole:warn").stdin(Stdio::null());
        let output = File::create(&log)?;
        let mut daemon = Daemon(command.stdout(output.try_clone()?).stderr(output).spawn()?);
        note(daemon.0.id())?;
        let start = Instant::now();
        while !Path::new(&pidfile).exists() {
            let ended = daemon.0.try_wait()?;
            if ended.is_some() || start.elapsed() > START_TIMEOUT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!("{program} does not start: {}", said.trim())));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.id() as i32)
            && kill_process(pid, Signal::TERM).is_ok()
        {
            let asked = Instant::now();
            while asked.elapsed() < END_TIMEOUT {
                if !matches!(self.0.try_wait(), Ok(None)) {
                    return;
                }
                sleep(POLL_INTERVAL);
            }
        }
        // Fails only if the program has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
