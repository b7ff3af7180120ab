//! Policies in audit mode: the control API, the watched directory, and the commands.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::config::Policy;
use palisade::control::protocol::{AuditPatch, AuditTables, PolicyOrigin};
use palisade::control::{CoverageCheck, MetricsFormat, Switch, SwitchSettings};
use palisade::ids::Generation;
use palisade::policy::parse::{Source, parse_sources};
use palisade::policy::{Change, Compiler, Options};
use palisade::source::load::{LoadOptions, load_sources};
use palisade::source::{PolicyDirectory, Reload};
use palisade::tables::RuleTables;

use crate::commands::palisade;
use crate::fixture::{Scratch, Served, switch};

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, labels: {app: db}}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.3}}
---
";

/// Pods, and a policy in this mode that admits TCP on `port` to db.
pub(crate) fn objects(mode: &str, port: u16) -> String {
    format!(
        "{PODS}apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, annotations: \
         {{palisade.dev/mode: {mode}}}}}\nspec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{{port: \
         {port}}}]}}]}}\n"
    )
}

fn tables(objects: &str) -> RuleTables {
    load_sources(&[Source::new("objects.yaml", objects)], &LoadOptions::default()).unwrap().tables
}

fn audit_of(objects: &str, base: Generation) -> AuditTables {
    let loaded = load_sources(&[Source::new("objects.yaml", objects)], &LoadOptions::default()).unwrap();
    let audited = loaded.audited.unwrap();
    AuditTables { base, policies: audited.policies().to_vec(), tables: audited.compile().unwrap() }
}

fn run(served: &Served, arguments: &[&str]) -> (i32, String) {
    let socket = served.socket().to_str().unwrap();
    let (code, out, err) = palisade(&[arguments, &["--socket", socket]].concat());
    (code, out + &err)
}

#[test]
fn the_tables_in_force_lack_an_audited_policy_and_those_of_the_audit_have_it() {
    let audited = objects("audit", 6379);
    assert_eq!(tables(&audited).canonical(), tables(PODS.trim_end_matches("---\n")).canonical());
    assert_eq!(audit_of(&audited, Generation(1)).tables, tables(&objects("enforce", 6379)));
}

#[test]
fn an_audit_stands_beside_the_tables_that_it_names_and_no_others() {
    let served = Served::start();
    let client = &served.client;
    let refused = |audit: &AuditTables| client.put_audit(audit).unwrap_err();
    let of = |base| audit_of(&objects("audit", 6379), base);
    assert_eq!(refused(&of(Generation(1))).status(), Some(409), "no tables are loaded");
    let base = client.put_tables(&tables(&objects("audit", 6379))).unwrap().generation;
    assert_eq!(refused(&of(Generation(base.0 + 1))).status(), Some(409));
    assert_eq!(refused(&AuditTables { policies: Vec::new(), ..of(base) }).status(), Some(422));
    let broken = RuleTables { format: 99, ..RuleTables::default() };
    assert_eq!(refused(&AuditTables { tables: broken, ..of(base) }).status(), Some(422));
    assert!(client.audit().unwrap().policies.is_empty(), "a refused audit changes nothing");

    let report = client.put_audit(&of(base)).unwrap();
    assert_eq!((report.problem, report.base, report.policies.len()), (None, base, 1));
    let listed = client.policies().unwrap();
    assert!(listed.policies.is_empty() && listed.audited[0].policy.name == "db", "{listed:?}");
    assert!(client.status().unwrap().problems.is_empty());

    // Other tables leave the audit without a base until it comes again.
    let next = client.put_tables(&tables(&objects("audit", 6379))).unwrap().generation;
    let problem = client.audit().unwrap().problem.unwrap();
    assert!(problem.contains("palisade apply"), "{problem}");
    let problems = client.status().unwrap().problems;
    assert!(problems[0].contains("1 policy is in audit mode"), "{problems:?}");
    assert_eq!(refused(&of(base)).status(), Some(409));
    assert_eq!(client.put_audit(&of(next)).unwrap().problem, None);
    client.delete_audit().unwrap();
    client.delete_audit().unwrap();
    assert!(client.audit().unwrap().policies.is_empty());
}

#[test]
fn a_difference_of_an_audit_applies_to_one_revision_only() {
    let served = Served::start();
    let client = &served.client;
    let base = client.put_tables(&tables(&objects("audit", 6379))).unwrap().generation;
    let first = audit_of(&objects("audit", 6379), base);
    let parsed =
        |port| parse_sources(&[Source::new("objects.yaml", objects("audit", port))]).unwrap().objects;
    let of = |port| parsed(port).into_iter().map(|(object, _)| object);
    let mut compiler = Compiler::from_objects(of(6379), Options::default());
    let diff = compiler.apply_all(of(80).map(Change::Upsert));
    let patch = |of| AuditPatch { base, of, policies: first.policies.clone(), diff: diff.clone() };
    assert_eq!(client.patch_audit(&patch(0)).unwrap_err().status(), Some(409), "there is no audit");
    let loaded = client.put_audit(&first).unwrap();
    let changed = client.patch_audit(&patch(loaded.revision)).unwrap();
    assert!(changed.revision > loaded.revision);
    let again = client.patch_audit(&patch(loaded.revision)).unwrap_err();
    assert!(again.status() == Some(409) && again.to_string().contains("revision"), "{again}");
    assert_eq!(client.audit().unwrap().revision, changed.revision);
}

#[test]
fn apply_loads_the_audit_and_ends_it_and_the_commands_name_its_policies() {
    let served = Served::start();
    assert_eq!(run(&served, &["audit", "report"]).0, 0);
    let file = |mode| served.scratch.write("objects.yaml", &objects(mode, 6379)).to_str().unwrap().to_owned();
    let (code, said) = run(&served, &["apply", &file("audit")]);
    assert!(code == 0 && said.contains("audit loaded, not enforced: 1 policy ("), "{said}");
    assert!(said.contains("are not enforced: NetworkPolicy default/db"), "{said}");
    let (code, said) = run(&served, &["audit", "report"]);
    assert!(code == 0 && said.contains("NetworkPolicy default/db"), "{said}");
    let (code, said) = run(&served, &["audit", "report", "--output", "json"]);
    assert!(code == 0 && said.contains("\"denials\": []"), "{said}");
    let (_, said) = run(&served, &["show", "policies"]);
    assert!(said.contains("audit, not enforced: NetworkPolicy default/db"), "{said}");

    let (code, said) = run(&served, &["apply", &file("enforce")]);
    assert!(code == 0 && !said.contains("audit"), "{said}");
    let (_, said) = run(&served, &["audit", "report"]);
    assert!(said.contains("No policy is in audit mode"), "{said}");
    run(&served, &["apply", &file("audit")]);
    assert_eq!(run(&served, &["apply", "--delete"]).0, 0);
    assert!(served.client.audit().unwrap().policies.is_empty());
}

#[test]
fn commands_about_manifests_do_not_enforce_an_audited_policy_and_say_so() {
    let scratch = Scratch::new();
    let write = |name: &str, text: &str| scratch.write(name, text).to_str().unwrap().to_owned();
    let audited = write("audited.yaml", &objects("audit", 6379));
    let enforced = write("enforced.yaml", &objects("enforce", 6379));
    let note = "(palisade.dev/mode: audit)";
    let ends = ["--from", "default/web", "--to", "default/db", "--port", "80"];
    let (code, out, err) = palisade(&[&["explain"][..], &ends, &[&audited]].concat());
    assert!(code == 0 && err.contains(note), "{out}{err}");
    let denial =
        "would be denied by isolated for ingress by NetworkPolicy default/db; no rule matched (audit)";
    assert!(out.starts_with("allow") && out.contains(denial), "{out}");
    let (code, out, err) = palisade(&[&["explain"][..], &ends, &[&enforced]].concat());
    assert!(code == 1 && !out.contains("(audit)") && !err.contains(note), "{out}{err}");
    let (code, out, err) = palisade(&["diff", &audited, &enforced]);
    assert!(code == 1 && out.contains("closes") && err.contains(note), "{out}{err}");
    for command in [&["matrix"][..], &["compile"], &["lint"]] {
        let (_, out, err) = palisade(&[command, &[&audited]].concat());
        assert!(err.contains(note), "{command:?}: {out}{err}");
    }
    let wrong = write("wrong.yaml", &objects("Audit", 6379));
    let (code, _, err) = palisade(&["compile", &wrong]);
    assert!(code == 2 && err.contains("supported values: \"enforce\""), "{err}");
    assert!(err.contains("wrong.yaml:8:55"), "{err}");
}

#[test]
fn a_candidate_is_promoted_over_the_tables_that_it_was_loaded_beside_and_no_others() {
    let served = Served::start();
    let client = &served.client;
    client.put_tables(&tables(&objects("enforce", 6379))).unwrap();
    client.put_shadow(&tables(&objects("enforce", 80)), false).unwrap();
    client.put_tables(&tables(PODS.trim_end_matches("---\n"))).unwrap();
    let refused = client.promote_shadow(false, false).unwrap_err();
    assert!(refused.status() == Some(409) && refused.to_string().contains("--replace"), "{refused}");
    assert_eq!(client.shadow().unwrap().pods, 2, "the candidate stays");
    let (code, said) = run(&served, &["shadow", "promote", "--replace"]);
    assert!(code == 0 && said.contains("in force"), "{said}");
    client.put_shadow(&tables(&objects("enforce", 6379)), false).unwrap();
    client.promote_shadow(false, false).unwrap();
}

pub(crate) struct Watched {
    scratch: Scratch,
    directory: PolicyDirectory,
    pub(crate) switch: Arc<Switch>,
}

impl Watched {
    pub(crate) fn start(text: &str) -> Watched {
        let scratch = Scratch::new();
        scratch.write("objects.yaml", text);
        let config = Policy { directory: Some(scratch.0.clone()), ..Policy::default() };
        let mut directory = PolicyDirectory::of(&config).unwrap();
        let (_, switch) = switch(SwitchSettings::default());
        let tables = directory.load().unwrap().tables;
        switch.replace_tables(tables, PolicyOrigin::directory(&scratch.0), CoverageCheck::Require).unwrap();
        directory.started(&switch);
        Watched { scratch, directory, switch }
    }

    fn loaded(&mut self, text: &str) {
        fs::write(self.scratch.0.join("objects.yaml"), text).unwrap();
        let timeout = Instant::now() + Duration::from_secs(30);
        loop {
            match self.directory.turn(false, &self.switch) {
                Reload::NotDue if Instant::now() < timeout => std::thread::sleep(Duration::from_millis(2)),
                Reload::Loaded { .. } => return,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Names of the enforced policies and of the audited ones.
    fn policies(&self) -> [Vec<String>; 2] {
        let report = self.switch.policies();
        assert_eq!(self.switch.audit_report().problem, None);
        let enforced = report.policies.into_iter().map(|found| found.policy.name);
        [enforced.collect(), report.audited.into_iter().map(|found| found.policy.name).collect()]
    }
}

#[test]
fn a_watched_directory_audits_from_the_start_and_follows_the_annotation() {
    let none = Vec::<String>::new;
    let db = || vec!["db".to_owned()];
    let mut watched = Watched::start(&objects("audit", 6379));
    assert_eq!(watched.policies(), [none(), db()]);
    let revision = |watched: &Watched| watched.switch.audit_report().revision;
    let first = revision(&watched);

    // Only the tables of the audit change.
    let generation = watched.switch.status().generation;
    watched.loaded(&objects("audit", 80));
    assert_eq!(watched.switch.status().generation, generation);
    assert!(revision(&watched) > first);
    let metrics = watched.switch.metrics(MetricsFormat::OpenMetrics);
    assert!(metrics.contains("palisade_audited_policies{judged=\"true\"} 1\n"), "{metrics}");
    assert!(metrics.contains("palisade_audit_denied_flows_total{kind=\"NetworkPolicy\""), "{metrics}");

    watched.loaded(&objects("enforce", 80));
    assert_eq!(watched.policies(), [db(), none()]);
    watched.loaded(&objects("audit", 80));
    assert_eq!(watched.policies(), [none(), db()]);

    // Tables of the control socket take the place of those of the directory, which come back on request.
    watched.switch.put_tables(tables(&objects("enforce", 443))).unwrap();
    assert!(watched.switch.audit_report().problem.is_some());
    assert!(matches!(watched.directory.turn(true, &watched.switch), Reload::Loaded { .. }));
    assert_eq!(watched.policies(), [none(), db()]);
    assert!(matches!(watched.directory.turn(true, &watched.switch), Reload::Same));

    // A file that does not parse changes neither.
    let before = revision(&watched);
    fs::write(watched.scratch.0.join("objects.yaml"), objects("audited", 80)).unwrap();
    let timeout = Instant::now() + Duration::from_secs(30);
    loop {
        match watched.directory.turn(false, &watched.switch) {
            Reload::NotDue if Instant::now() < timeout => std::thread::sleep(Duration::from_millis(2)),
            Reload::Rejected(errors) => {
                assert!(errors[0].contains("supported values"), "{errors:?}");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((watched.policies(), revision(&watched)), ([none(), db()], before));
    watched.loaded(PODS.trim_end_matches("---\n"));
    assert_eq!(watched.policies(), [none(), none()]);
}
