//! Policy directory of `palisade run`: edits in place, renames, a mounted `ConfigMap`, and broken files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::control::Client;
use palisade::control::protocol::{PolicySource, Status};

use crate::support::{PATIENCE, eventually, isolated};

/// Switch without ports, started with a policy directory.
struct Run {
    scratch: PathBuf,
    client: Client,
    process: Child,
}

impl Run {
    fn start(name: &str, prepare: impl FnOnce(&Path)) -> Run {
        let scratch = std::env::temp_dir().join(format!("palisade-directory-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(scratch.join("policies")).unwrap();
        prepare(&scratch.join("policies"));
        let config = scratch.join("palisade.toml");
        let text = "[workers]\ncores = [0]\nframes = 4096\n[conntrack]\ndirectory = \"\"\n\
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

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
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
fn a_file_comes_into_force_when_it_is_complete_and_the_status_says_what_is() {
    let Some(_isolated) = isolated() else { return };
    let run = Run::start("files", |policies| {
        fs::write(policies.join("db.yaml"), a_pod("db", 1) + &closes("db")).unwrap();
    });
    let policy = run.status().policy.unwrap();
    assert_eq!((policy.origin.objects, policy.origin.policies, policy.pods), (Some(2), Some(1), 1));
    let PolicySource::Directory { path } = &policy.origin.source else { panic!("{policy:?}") };
    assert_eq!(*path, run.policies());

    // A write in place, in two halves with pauses.
    let before = run.status().generation;
    let mut file = File::create(run.policies().join("db.yaml")).unwrap();
    file.write_all(a_pod("db", 1).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(run.status().generation, before, "half a file is in force");
    file.write_all((closes("db") + &a_pod("web", 2)).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(run.status().generation, before, "a file that is held open is in force");
    drop(file);
    eventually("a file that was closed is in force", || run.pods() == ["db", "web"]);
    assert_eq!(run.status().policy.unwrap().origin.policies, Some(1));

    // A new file by a rename.
    fs::write(run.policies().join(".new"), a_pod("api", 3)).unwrap();
    fs::rename(run.policies().join(".new"), run.policies().join("api.yaml")).unwrap();
    eventually("a file that was renamed is in force", || run.pods() == ["api", "db", "web"]);

    // A file that is truncated and stays so.
    let before = run.status().generation;
    fs::write(run.policies().join("db.yaml"), "").unwrap();
    let rejected = || run.status().rejected_reload;
    eventually("an empty file is reported", || rejected().is_some());
    assert!(rejected().unwrap().errors[0].contains("db.yaml is empty"), "{:?}", rejected());
    assert_eq!(run.status().generation, before);
    fs::write(run.policies().join("db.yaml"), a_pod("db", 1) + &closes("db")).unwrap();
    eventually("a file that is whole again is in force", || run.pods() == ["api", "db"]);
    assert_eq!(rejected(), None);

    // A FIFO, which the switch does not open.
    let (fifo, mode) = (run.policies().join("pipe.yaml"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    eventually("a FIFO is reported", || rejected().is_some());
    assert!(rejected().unwrap().errors[0].contains("pipe.yaml is a FIFO"), "{:?}", rejected());
    let shown = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["show", "status", "--socket"])
        .arg(run.client.socket())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("policy: from directory ") && shown.contains("3 objects, 1 policies"), "{shown}");
    assert!(shown.contains("rejected: the reload of directory ") && shown.contains("is a FIFO"), "{shown}");
    fs::remove_file(&fifo).unwrap();
    eventually("what is right again is not reported", || rejected().is_none());

    // Tables of another source stay until the directory is reloaded.
    let deleted = run.client.delete_tables().unwrap().generation;
    assert_eq!(run.status().policy, None);
    run.signal(rustix::process::Signal::HUP);
    eventually("SIGHUP loads the directory", || run.status().policy.is_some());
    assert!(run.status().generation > deleted);
}

#[test]
fn a_config_map_is_followed_and_a_stop_does_not_wait() {
    let Some(_isolated) = isolated() else { return };
    let mut run = Run::start("configmap", |policies| {
        fs::create_dir(policies.join("..1")).unwrap();
        fs::write(policies.join("..1/p.yaml"), a_pod("db", 1)).unwrap();
        symlink("..1", policies.join("..data")).unwrap();
        symlink("..data/p.yaml", policies.join("p.yaml")).unwrap();
    });
    for number in 2..6 {
        let policies = run.policies();
        let name = format!("pod{number}");
        fs::create_dir(policies.join(format!("..{number}"))).unwrap();
        fs::write(policies.join(format!("..{number}/p.yaml")), a_pod(&name, number)).unwrap();
        symlink(format!("..{number}"), policies.join("..data_tmp")).unwrap();
        fs::rename(policies.join("..data_tmp"), policies.join("..data")).unwrap();
        fs::remove_dir_all(policies.join(format!("..{}", number - 1))).unwrap();
        eventually("the next volume is in force", || run.pods() == [name.clone()]);
        assert_eq!(run.status().rejected_reload, None);
    }
    // A file is open for writing.
    let mut file = File::create(run.policies().join("q.yaml")).unwrap();
    file.write_all(a_pod("q", 77).as_bytes()).unwrap();
    run.signal(rustix::process::Signal::TERM);
    let patience = std::time::Instant::now() + PATIENCE;
    let status = loop {
        match run.process.try_wait().unwrap() {
            Some(status) => break status,
            None if std::time::Instant::now() < patience => std::thread::sleep(Duration::from_millis(20)),
            None => panic!("the switch does not stop"),
        }
    };
    assert!(status.success(), "{status}");
}
