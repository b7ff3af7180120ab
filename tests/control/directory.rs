//! Watched policy directory on a fake dataplane: edits in place, renames, volume mounts, and broken files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::config::Policy;
use palisade::control::protocol::{PolicyOrigin, PolicySource};
use palisade::control::{CoverageCheck, Switch, SwitchSettings};
use palisade::ids::Generation;
use palisade::source::load::{LoadOptions, load};
use palisade::source::{PolicyDirectory, Reload};
use palisade::tables::RuleTables;

use crate::fixture::{FakeDataplane, Scratch, on_port, pod, pod_port, switch};
use crate::random::{Random, histories};
use crate::small_tables::small_tables;

/// Longest wait for a reload.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Rig {
    scratch: Scratch,
    directory: PolicyDirectory,
    dataplane: Arc<FakeDataplane>,
    switch: Arc<Switch>,
}

impl Rig {
    /// Starts a switch with a directory of these files.
    fn start(files: &[(&str, &str)]) -> Rig {
        let scratch = Scratch::new();
        let root = scratch.0.join("policies");
        fs::create_dir(&root).unwrap();
        for (name, text) in files {
            fs::write(root.join(name), text).unwrap();
        }
        Rig::at(scratch, &root)
    }

    fn at(scratch: Scratch, root: &Path) -> Rig {
        let config = Policy { directory: Some(root.to_owned()), ..Policy::default() };
        let mut directory = PolicyDirectory::of(&config).unwrap();
        let (dataplane, switch) = switch(SwitchSettings::default());
        let tables = directory.load().unwrap().tables;
        switch.replace_tables(tables, PolicyOrigin::directory(root), CoverageCheck::Require).unwrap();
        directory.started(&switch);
        Rig { scratch, directory, dataplane, switch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join("policies").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Polls the directory until a reload succeeds or fails.
    fn outcome(&mut self) -> Reload {
        let timeout = Instant::now() + TIMEOUT;
        loop {
            match self.directory.turn(false, &self.switch) {
                Reload::NotDue if Instant::now() < timeout => std::thread::sleep(Duration::from_millis(2)),
                outcome => return outcome,
            }
        }
    }

    fn loaded(&mut self) -> Vec<String> {
        match self.outcome() {
            Reload::Loaded { warnings, .. } => warnings,
            other => panic!("{other:?}"),
        }
    }

    /// Errors of the rejected reload, equal to those of the status. The tables stay as they are.
    fn rejected(&mut self) -> String {
        let before = self.dataplane.publications();
        let Reload::Rejected(errors) = self.outcome() else { panic!("not rejected") };
        let status = self.switch.status();
        assert_eq!(status.rejected_reload.unwrap().errors, errors);
        let says = "what was in force stays; `palisade show policies` has the ";
        assert!(status.problems.iter().any(|problem| problem.contains(says)), "{:?}", status.problems);
        assert_eq!(self.dataplane.publications(), before, "the tables stay");
        errors.join("\n")
    }

    /// Asserts that polls change nothing for a while in which a mistake would show.
    fn stays(&mut self) {
        let before = self.dataplane.publications();
        for _ in 0..30 {
            let outcome = self.directory.turn(false, &self.switch);
            assert!(matches!(outcome, Reload::NotDue), "{outcome:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.dataplane.publications(), before);
    }

    fn pods(&self) -> Vec<String> {
        self.switch.tables().unwrap().pods.keys().map(|pod| pod.name.clone()).collect()
    }

    fn running(&self) -> RuleTables {
        self.switch.tables().unwrap().canonical()
    }

    /// Compiles the directory from scratch.
    fn compiled_afresh(&self) -> RuleTables {
        let root = self.directory.path().to_owned();
        load(&[root], &LoadOptions::default()).unwrap().tables.canonical()
    }
}

/// Manifest of a pod with an address of its own.
fn a_pod(name: &str) -> String {
    let last = name.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    format!(
        "---\nkind: Pod\napiVersion: v1\nmetadata: {{name: {name}, namespace: default, labels: {{app: {name}}}}}\nstatus: \
         {{podIP: 10.1.0.{last}}}\n"
    )
}

fn closes(name: &str) -> String {
    format!(
        "---\nkind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: {name}, namespace: default}}\nspec: \
         {{podSelector: {{matchLabels: {{app: {name}}}}}}}\n"
    )
}

#[test]
fn a_file_that_is_written_in_halves_is_loaded_when_it_is_closed() {
    let mut rig = Rig::start(&[("a.yaml", &(a_pod("db") + &closes("db")))]);
    let before = rig.running();
    // The file is truncated and held open. Half of it would be a pod without its policy.
    let mut file = File::create(rig.path("a.yaml")).unwrap();
    rig.stays();
    file.write_all(a_pod("db").as_bytes()).unwrap();
    file.flush().unwrap();
    rig.stays();
    // Other files are reloaded meanwhile.
    rig.write("b.yaml", &a_pod("web"));
    rig.loaded();
    assert_eq!(rig.pods(), ["db", "web"]);
    file.write_all(closes("db").as_bytes()).unwrap();
    rig.stays();
    drop(file);
    assert!(matches!(rig.outcome(), Reload::Same), "it is what it was");
    fs::remove_file(rig.path("b.yaml")).unwrap();
    rig.loaded();
    assert_eq!(rig.running(), before);
    // An editor writes a file beside it, renames it while it is open, and closes it last.
    let mut file = File::create(rig.path(".a.yaml.new")).unwrap();
    file.write_all(a_pod("db").as_bytes()).unwrap();
    fs::rename(rig.path(".a.yaml.new"), rig.path("a.yaml")).unwrap();
    rig.stays();
    file.write_all((closes("db") + &a_pod("web")).as_bytes()).unwrap();
    drop(file);
    rig.loaded();
    assert_eq!(rig.running(), rig.compiled_afresh());
}

#[test]
fn an_editor_that_moves_the_old_file_away_first_opens_nothing_meanwhile() {
    let mut rig = Rig::start(&[("a.yaml", &(a_pod("db") + &closes("db"))), ("b.yaml", &a_pod("web"))]);
    let policies = |rig: &Rig| rig.switch.status().policy.unwrap().origin.policies;
    for _ in 0..20 {
        fs::rename(rig.path("a.yaml"), rig.path("a.yaml~")).unwrap();
        let outcome = rig.directory.turn(false, &rig.switch);
        assert!(matches!(outcome, Reload::NotDue), "{outcome:?}");
        assert_eq!(policies(&rig), Some(1));
        let mut file = File::create(rig.path("a.yaml")).unwrap();
        rig.directory.turn(false, &rig.switch);
        assert_eq!(policies(&rig), Some(1));
        file.write_all((a_pod("db") + &closes("db")).as_bytes()).unwrap();
        drop(file);
        assert!(matches!(rig.outcome(), Reload::Same));
    }
    fs::remove_file(rig.path("a.yaml")).unwrap();
    rig.loaded();
    assert_eq!((policies(&rig), rig.pods()), (Some(0), vec!["web".to_owned()]));
}

#[test]
fn a_mounted_config_map_changes_by_the_swap_of_a_link() {
    let scratch = Scratch::new();
    let root = scratch.0.join("policies");
    fs::create_dir_all(root.join("..1")).unwrap();
    fs::write(root.join("..1/p.yaml"), a_pod("db") + &closes("db")).unwrap();
    symlink("..1", root.join("..data")).unwrap();
    symlink("..data/p.yaml", root.join("p.yaml")).unwrap();
    let mut rig = Rig::at(scratch, &root);
    assert_eq!(rig.pods(), ["db"]);
    for (number, name) in [(2, "db"), (3, "web"), (4, "api")] {
        let next = format!("..{number}");
        fs::create_dir(root.join(&next)).unwrap();
        fs::write(root.join(&next).join("p.yaml"), a_pod(name)).unwrap();
        symlink(&next, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        fs::remove_dir_all(root.join(format!("..{}", number - 1))).unwrap();
        rig.loaded();
        assert_eq!(rig.pods(), [name]);
    }
}

#[test]
fn directories_come_go_and_are_renamed() {
    let mut rig = Rig::start(&[("a.yaml", &a_pod("a"))]);
    let beside = rig.scratch.0.join("beside");
    fs::create_dir_all(beside.join("deep")).unwrap();
    fs::write(beside.join("deep/b.yaml"), a_pod("b")).unwrap();
    fs::rename(&beside, rig.path("sub")).unwrap();
    rig.loaded();
    assert_eq!(rig.pods(), ["a", "b"]);
    fs::write(
        rig.path("sub/deep/c.json"),
        r#"{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "c"}, "status": {"podIP": "10.1.0.3"}}"#,
    )
    .unwrap();
    rig.loaded();
    assert_eq!(rig.pods(), ["a", "b", "c"]);
    fs::rename(rig.path("sub"), rig.path("other")).unwrap();
    rig.stays_or_same();
    assert_eq!(rig.pods(), ["a", "b", "c"]);
    fs::create_dir(rig.path("new")).unwrap();
    rig.stays();
    rig.write("new/d.yaml", &a_pod("d"));
    rig.loaded();
    fs::remove_dir_all(rig.path("other")).unwrap();
    rig.loaded();
    assert_eq!(rig.pods(), ["a", "d"]);
    // The whole directory is replaced.
    let next = rig.scratch.0.join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("e.yaml"), a_pod("e")).unwrap();
    fs::rename(rig.scratch.0.join("policies"), rig.scratch.0.join("before")).unwrap();
    fs::rename(&next, rig.scratch.0.join("policies")).unwrap();
    rig.loaded();
    assert_eq!(rig.pods(), ["e"]);
    rig.write("e.yaml", &a_pod("f"));
    rig.loaded();
    assert_eq!(rig.pods(), ["f"]);
}

impl Rig {
    /// Touches a file without a change of meaning.
    fn stays_or_same(&mut self) {
        let before = self.running();
        let outcome = self.outcome();
        assert!(matches!(outcome, Reload::Same | Reload::Loaded { .. }), "{outcome:?}");
        assert_eq!(self.running(), before);
    }
}

#[test]
fn what_is_no_manifest_is_an_error_that_keeps_the_tables() {
    let good = a_pod("db") + &closes("db");
    let mut rig = Rig::start(&[("a.yaml", &good)]);
    rig.write("a.yaml", "");
    let said = rig.rejected();
    assert!(said.contains("a.yaml is empty and held objects before"), "{said}");
    rig.stays();
    rig.write("a.yaml", &good);
    assert!(matches!(rig.outcome(), Reload::Same));
    assert_eq!(rig.switch.status().rejected_reload, None, "cleared by what is accepted");

    let fifo = rig.path("b.yaml");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(rig.rejected().contains("b.yaml is a FIFO"));
    fs::remove_file(&fifo).unwrap();
    assert!(matches!(rig.outcome(), Reload::Same));

    rig.write("a.yaml", "# nothing any more\n");
    assert!(rig.rejected().contains("no object in these files"));
    rig.write("a.yaml", &good);
    assert!(matches!(rig.outcome(), Reload::Same));

    rig.write("b.yaml", "kind: NetworkPolicy\n");
    rig.write("c.yaml", "{");
    let said = rig.rejected();
    assert!(said.contains("b.yaml:1"), "{said}");
    fs::remove_file(rig.path("b.yaml")).unwrap();
    fs::remove_file(rig.path("c.yaml")).unwrap();
    while !matches!(rig.outcome(), Reload::Same) {}

    fs::remove_file(rig.path("a.yaml")).unwrap();
    assert!(rig.rejected().contains("no *.yaml, *.yml or *.json file"));
    fs::remove_dir(rig.scratch.0.join("policies")).unwrap();
    assert!(rig.rejected().contains("No such file"));
    fs::create_dir(rig.scratch.0.join("policies")).unwrap();
    rig.write("a.yaml", &good);
    while !matches!(rig.outcome(), Reload::Same) {}
    assert_eq!(rig.pods(), ["db"]);
}

#[test]
fn of_an_object_in_two_files_the_last_counts_and_the_first_comes_back() {
    let relabelled = a_pod("db").replace("app: db", "app: cache");
    let mut rig = Rig::start(&[("a.yaml", &(a_pod("db") + &closes("db")))]);
    let alone = rig.running();
    rig.write("b.yaml", &relabelled);
    let warnings = rig.loaded();
    let said = warnings.join("\n");
    assert!(said.contains("b.yaml:2: warning: default/db metadata.name: replaces the object"), "{said}");
    assert_eq!(rig.running(), rig.compiled_afresh());
    assert_ne!(rig.running(), alone);
    fs::remove_file(rig.path("b.yaml")).unwrap();
    rig.loaded();
    assert_eq!(rig.running(), alone);
}

#[test]
fn an_object_of_another_system_that_makes_pods_and_an_unknown_field_are_warnings() {
    let mut rig = Rig::start(&[("a.yaml", &a_pod("db"))]);
    let rollout = "---\napiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {template: {metadata: {labels: {a: \
                   b}}, spec: {containers: [{name: c}]}}}\n";
    let newer = a_pod("web").replace("status: {", "spec: {planet: x}\nstatus: {");
    rig.write("b.yaml", &(newer + rollout));
    let said = rig.loaded().join("\n");
    for line in [
        "b.yaml:5:8: warning: default/web spec.planet: unknown field \"planet\" is left out",
        "b.yaml:9:7: warning: default/x kind: a Rollout of argoproj.io/v1alpha1 is passed over",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(rig.pods(), ["db", "web"]);
    // In a policy the field may deny: the file does not take effect.
    let policy = "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: p}\nspec: {podSelector: {}, planet: x}\n";
    rig.write("c.yaml", policy);
    let said = rig.rejected();
    assert!(said.contains("spec.planet: unknown field \"planet\""), "{said}");
    fs::remove_file(rig.path("c.yaml")).unwrap();
    assert!(matches!(rig.outcome(), Reload::Same));
}

#[test]
fn a_reload_that_would_close_every_pod_waits_until_it_closes_none() {
    let mut rig = Rig::start(&[("a.yaml", &a_pod("db")), ("b.yaml", &a_pod("web"))]);
    rig.switch.put_port("veth-db", &pod_port()).unwrap();
    let address = rig.switch.tables().unwrap().pods[&pod("db")].addresses[0].to_string();
    rig.switch.put_pod(&pod("db"), &on_port("veth-db", &address)).unwrap();
    fs::remove_file(rig.path("a.yaml")).unwrap();
    let said = rig.rejected();
    assert!(said.contains("none of the 1 that are attached: all these would be closed"), "{said}");
    assert_eq!(rig.pods(), ["db", "web"]);
    rig.switch.delete_pod(&pod("db")).unwrap();
    rig.loaded();
    assert_eq!(rig.pods(), ["web"]);
    assert_eq!(rig.switch.status().rejected_reload, None);
}

#[test]
fn tables_of_somebody_else_stay_until_a_file_changes_and_the_status_says_whose_they_are() {
    let mut rig = Rig::start(&[("a.yaml", &(a_pod("db") + &closes("db")))]);
    let status = rig.switch.status();
    let policy = status.policy.unwrap();
    assert_eq!((policy.origin.objects, policy.origin.policies, policy.pods), (Some(2), Some(1), 1));
    rig.write("b.yaml", &a_pod("web"));
    rig.loaded();
    let status = rig.switch.status();
    let policy = status.policy.unwrap();
    assert_eq!(policy.origin.source, PolicySource::Directory { path: rig.directory.path().to_owned() });
    assert_eq!((policy.origin.objects, policy.origin.policies, policy.pods), (Some(3), Some(1), 2));
    assert_eq!(policy.generation, status.generation);
    assert!(policy.since_unix_s > 1_700_000_000);

    let other = rig.switch.put_tables(small_tables("10.1.0.9")).unwrap().generation;
    rig.stays();
    let policy = rig.switch.status().policy.unwrap();
    assert_eq!(policy.origin.source, PolicySource::ControlSocket { uid: None, pid: None });
    assert_eq!((policy.generation, policy.pods), (other, 1));
    assert!(matches!(rig.directory.turn(true, &rig.switch), Reload::Loaded { .. }), "asked for");
    assert_eq!(rig.running(), rig.compiled_afresh());
    assert!(matches!(rig.directory.turn(true, &rig.switch), Reload::Same));

    rig.switch.delete_tables().unwrap();
    assert_eq!(rig.switch.status().policy, None);
    rig.write("b.yaml", &a_pod("api"));
    rig.loaded();
    assert_eq!(rig.running(), rig.compiled_afresh());
}

/// Objects of a file.
fn manifest(random: &mut Random) -> String {
    let names = ["a", "b", "c", "d", "e"];
    (0..=random.below(4))
        .map(|_| {
            let name = random.pick(&names);
            match random.below(3) {
                0 => closes(name),
                1 => a_pod(name),
                _ => a_pod(name).replace(&format!("app: {name}"), &format!("app: {}", random.pick(&names))),
            }
        })
        .collect()
}

#[test]
fn after_any_edits_the_tables_are_those_of_a_compile_from_scratch() {
    for seed in histories("edits of a policy directory", 0..1, 1) {
        edit_at_random(&mut Random(seed.number));
    }
}

fn edit_at_random(random: &mut Random) {
    let mut rig = Rig::start(&[("keep.yaml", &a_pod("z"))]);
    fs::create_dir(rig.path("sub")).unwrap();
    rig.stays();
    let files = ["1.yaml", "2.yaml", "3.yaml", "sub/1.yaml", "sub/2.yaml"];
    let (mut loads, mut steps) = (0, 0);
    while steps < 30 {
        steps += 1;
        for _ in 0..=random.below(2) {
            let path = rig.path(random.pick(&files));
            match random.below(6) {
                0 => _ = fs::remove_file(path),
                1 => _ = fs::rename(&path, rig.path(random.pick(&files))),
                2 => {
                    let beside = rig.path(".new");
                    fs::write(&beside, manifest(random)).unwrap();
                    fs::rename(beside, path).unwrap();
                }
                _ => fs::write(path, manifest(random)).unwrap(),
            }
        }
        // A forced reload answers also an edit without a change of meaning. Removed files leave a moment
        // later.
        let timeout = Instant::now() + TIMEOUT;
        let mut is_answered = false;
        while !(is_answered && rig.running() == rig.compiled_afresh()) {
            assert!(Instant::now() < timeout, "step {steps}: {:?}", rig.pods());
            match rig.directory.turn(!is_answered, &rig.switch) {
                Reload::NotDue => std::thread::sleep(Duration::from_millis(2)),
                Reload::Same => is_answered = true,
                Reload::Loaded { .. } => (is_answered, loads) = (true, loads + 1),
                Reload::Rejected(errors) => panic!("step {steps}: {errors:?}"),
            }
        }
    }
    assert!(loads > 8, "{loads} of {steps} edits meant something");
    assert!(rig.switch.status().generation > Generation(8));
}
