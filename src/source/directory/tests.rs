//! Failures of the compiler, which no manifest can cause.

use std::sync::Arc;

use super::*;
use crate::control::SwitchSettings;
use crate::dataplane::{DryRun, Settings};
use crate::source::load::scratch::Scratch;

/// Switch without ports.
fn switch() -> Switch {
    Switch::new(Arc::new(DryRun::new(&Settings::default()).unwrap()), SwitchSettings::default())
}

fn pod(name: &str, address: &str) -> String {
    format!("kind: Pod\napiVersion: v1\nmetadata: {{name: {name}}}\nstatus: {{podIP: {address}}}\n")
}

/// Runs turns until one has an outcome.
fn outcome(directory: &mut PolicyDirectory, switch: &Switch) -> Reload {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match directory.turn(false, switch) {
            Reload::NotDue if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            outcome => return outcome,
        }
    }
}

#[test]
fn a_panic_of_the_compiler_keeps_the_tables_is_reported_and_the_next_change_is_compiled_from_scratch() {
    let scratch = Scratch::new();
    scratch.write("a.yaml", &pod("a", "10.0.0.1"));
    let config = Policy { directory: Some(scratch.0.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let switch = switch();
    let Ready { tables, .. } = directory.load().unwrap();
    switch.put_tables(tables.clone()).unwrap();
    directory.started(&switch);

    directory.before_compile = || panic!("a group that nobody holds");
    scratch.write("b.yaml", &pod("b", "10.0.0.2"));
    let Reload::Rejected(errors) = outcome(&mut directory, &switch) else {
        panic!("the panic was not last_rejection")
    };
    let said = &errors[0];
    assert!(said.contains("internal error of the policy compiler: a group that nobody holds"), "{said}");
    assert!(said.contains("Please report it"), "{said}");
    assert_eq!(*switch.tables().unwrap(), tables, "the tables stay");
    assert_eq!(switch.status().rejected_reload.unwrap().errors, errors);

    // After the panic the former content of the file is unknown, so the reload waits for the file.
    directory.before_compile = || {};
    let mut file = std::fs::File::create(scratch.0.join("a.yaml")).unwrap();
    scratch.write("c.yaml", &pod("c", "10.0.0.3"));
    for _ in 0..20 {
        let outcome = directory.turn(false, &switch);
        assert!(matches!(outcome, Reload::NotDue), "{outcome:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::io::Write::write_all(&mut file, pod("a", "10.0.0.1").as_bytes()).unwrap();
    drop(file);
    let Reload::Loaded { .. } = outcome(&mut directory, &switch) else { panic!("it goes on") };
    let pods: Vec<String> = switch.tables().unwrap().pods.keys().map(|pod| pod.name.clone()).collect();
    assert_eq!(pods, ["a", "b", "c"]);
    assert_eq!(switch.status().rejected_reload, None);
}

#[test]
fn without_watches_a_change_is_found_by_looking_and_loaded_when_it_is_quiet() {
    let scratch = Scratch::new();
    scratch.write("a.yaml", &pod("a", "10.0.0.1"));
    let config = Policy { directory: Some(scratch.0.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    directory.watch = Watch::polling(&scratch.0);
    let switch = switch();
    switch.put_tables(directory.load().unwrap().tables).unwrap();
    directory.started(&switch);
    scratch.write("a.yaml", &pod("b", "10.0.0.1"));
    let written = Instant::now();
    let Reload::Loaded { .. } = outcome(&mut directory, &switch) else { panic!("it is found") };
    assert!(written.elapsed() + Duration::from_millis(100) > crate::source::watch::QUIET, "it waited");
    assert_eq!(switch.status().policy.unwrap().origin.objects, Some(1));
}

#[test]
fn an_audit_that_does_not_compile_is_reported_and_the_enforced_policies_are_loaded_all_the_same() {
    const AUDITED: &str = "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: p, annotations: \
                           {palisade.dev/mode: audit}}\nspec: {}\n";
    let scratch = Scratch::new();
    scratch.write("a.yaml", &pod("a", "10.0.0.1"));
    scratch.write("p.yaml", AUDITED);
    let config = Policy { directory: Some(scratch.0.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let switch = switch();
    switch.put_tables(directory.load().unwrap().tables).unwrap();
    directory.started(&switch);
    let problem = || switch.audit_report().problem;
    assert_eq!((switch.audit_report().policies.len(), problem()), (1, None));

    directory.audit.before_compile = Some(|| panic!("for the test"));
    scratch.write("b.yaml", &pod("b", "10.0.0.2"));
    assert!(matches!(outcome(&mut directory, &switch), Reload::Loaded { .. }));
    assert_eq!(switch.tables().unwrap().pods.len(), 2);
    assert!(problem().unwrap().contains("for the test"), "{:?}", problem());
    assert!(switch.status().problems.iter().any(|problem| problem.contains("in audit mode")));

    scratch.write("c.yaml", &pod("c", "10.0.0.3"));
    assert!(matches!(outcome(&mut directory, &switch), Reload::Loaded { .. }));
    assert_eq!(problem(), None);
}
