//! Policy directory of `palisade run`. `tests/control/directory.rs` has the claims about its files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use palisade::control::Client;
use palisade::control::protocol::{PolicySource, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{eventually, isolated};

/// Switch without ports, started with a policy directory.
struct Run {
    scratch: PathBuf,
    client: Client,
    process: Child,
}

impl Run {
    fn start(prepare: impl FnOnce(&Path)) -> Run {
        let scratch = PathBuf::from("/run/policy-directory");
        fs::create_dir_all(scratch.join("policies")).unwrap();
        prepare(&scratch.join("policies"));
        let config = scratch.join("palisade.toml");
        let text = "[workers]\ncores = [0]\nframes = 4096\n[conntrack]\nflows = 4096\ndirectory = \"\"\n\
                    [control]\nsocket = \"control.sock\"\n[policy]\ndirectory = \"policies\"\n";
        fs::write(&config, text).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(["run", "--config"])
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let client = Client::new(scratch.join("control.sock"));
        let run = Run { scratch, client, process };
        eventually("the switch answers", || run.client.status().is_ok());
        run
    }

    fn policies(&self) -> PathBuf {
        self.scratch.join("policies")
    }

    fn status(&self) -> Status {
        self.client.status().unwrap()
    }

    /// Names of the loaded pods.
    fn pods(&self) -> Vec<String> {
        self.client.tables_document().unwrap().pods.keys().map(|pod| pod.name.clone()).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn a_pod(name: &str, last: u8) -> String {
    format!(
        "---\nkind: Pod\napiVersion: v1\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nstatus: {{podIP: 10.9.0.{last}}}\n"
    )
}

fn closes(name: &str) -> String {
    format!(
        "---\nkind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: {name}}}\nspec: {{podSelector: \
         {{matchLabels: {{app: {name}}}}}}}\n"
    )
}

#[test]
fn a_directory_is_followed_reloaded_by_a_signal_and_a_stop_does_not_wait_for_a_file() {
    let Some(_isolated) = isolated() else { return };
    let mut run = Run::start(|policies| {
        fs::create_dir(policies.join("..1")).unwrap();
        fs::write(policies.join("..1/p.yaml"), a_pod("db", 1) + &closes("db")).unwrap();
        symlink("..1", policies.join("..data")).unwrap();
        symlink("..data/p.yaml", policies.join("p.yaml")).unwrap();
    });
    let policy = run.status().policy.unwrap();
    assert_eq!((policy.origin.objects, policy.origin.policies, policy.pods), (Some(2), Some(1), 1));
    let PolicySource::Directory { path } = &policy.origin.source else { panic!("{policy:?}") };
    assert_eq!(*path, run.policies());

    // A mounted `ConfigMap` gets its next volume, by a rename.
    let policies = run.policies();
    fs::create_dir(policies.join("..2")).unwrap();
    fs::write(policies.join("..2/p.yaml"), a_pod("api", 2)).unwrap();
    symlink("..2", policies.join("..data_tmp")).unwrap();
    fs::rename(policies.join("..data_tmp"), policies.join("..data")).unwrap();
    fs::remove_dir_all(policies.join("..1")).unwrap();
    eventually("the next volume is in force", || run.pods() == ["api"]);
    // A file is written in place.
    fs::write(policies.join("web.yaml"), a_pod("web", 3)).unwrap();
    eventually("a file that was closed is in force", || run.pods() == ["api", "web"]);

    // A FIFO, which the switch does not open.
    let (fifo, mode) = (policies.join("pipe.yaml"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    eventually("a FIFO is reported", || run.status().rejected_reload.is_some());
    let shown = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["show", "status", "--socket"])
        .arg(run.client.socket())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("policy: from directory ") && shown.contains("2 objects, 0 policies"), "{shown}");
    assert!(shown.contains("rejected: the reload of directory ") && shown.contains("is a FIFO"), "{shown}");
    fs::remove_file(&fifo).unwrap();
    eventually("what is right again is not reported", || run.status().rejected_reload.is_none());

    // Tables of another source stay until the directory is reloaded.
    let deleted = run.client.delete_tables().unwrap().generation;
    assert_eq!(run.status().policy, None);
    run.signal(Signal::HUP);
    eventually("SIGHUP loads the directory", || run.status().policy.is_some());
    assert!(run.status().generation > deleted);

    // A file is open for writing.
    let mut file = File::create(policies.join("q.yaml")).unwrap();
    file.write_all(a_pod("q", 77).as_bytes()).unwrap();
    run.signal(Signal::TERM);
    let mut status = None;
    eventually("the switch stops", || {
        status = run.process.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success(), "{status:?}");
}
