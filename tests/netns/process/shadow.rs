//! Candidate tables: a policy is rehearsed on live connections, and enforced only when it is promoted.

use std::process::{Command, Output};

use palisade::control::protocol::ShadowDisagreement;
use palisade::lab::traffic::{Server, Services};
use palisade::tables::Verdict;

use crate::support::closed::assert_cut;
use crate::support::connection::Connection;
use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_allowed, assert_denied, eventually, isolated, only_from,
    pods_manifest,
};

fn palisade(rig: &Rig, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).env("PALISADE_SOCKET", rig.switch.client().socket());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

/// File with the pods and these policies.
fn manifests(rig: &Rig, policies: &str) -> String {
    let file = rig.lab.directory().join("candidate.yaml");
    std::fs::write(&file, format!("{}---\n{policies}", pods_manifest(&rig.lab))).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_shadowed_policy_reports_the_connection_that_it_would_cut_and_cuts_it_when_it_is_promoted() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    let (client, stranger, server) = (rig.pod("client"), rig.pod("stranger"), rig.pod("server"));
    let mut kept = Connection::open(&client, &server);
    let mut cut = Connection::open(&stranger, &server);
    assert!(kept.goes_on(TIMEOUT) && cut.goes_on(TIMEOUT));

    let (code, said) = palisade(&rig, &["shadow", "report"]);
    assert!(code == Some(2) && said.contains("palisade apply --shadow"), "{said}");
    let file = manifests(&rig, &only_from("server", "client"));
    let (code, said) = palisade(&rig, &["apply", "--shadow", &file]);
    assert!(code == Some(0) && said.contains("not enforced") && said.contains("; 1 of "), "{said}");

    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    // The candidate decides about nothing: both connections live, and new ones open.
    assert!(kept.goes_on(TIMEOUT) && cut.goes_on(TIMEOUT));
    assert_allowed(&stranger, server.addresses()[1]);
    let report = || rig.switch.client().shadow().unwrap();
    eventually("the new connection is judged, too", || {
        report().disagreements.iter().map(|found| found.flows).sum::<u64>() == 2
    });
    let report = report();
    let [found] = &report.disagreements[..] else { panic!("{report:?}") };
    assert_eq!((found.source.as_str(), found.destination.as_str()), ("default/stranger", "default/server"));
    assert_eq!((found.enforced.verdict, found.candidate.verdict), (Verdict::Allow, Verdict::Deny));
    assert!(
        found.candidate.decided_by.as_ref().unwrap().to_string().contains("default/to-server"),
        "{found:?}"
    );
    assert!(found.running >= 1 && report.left_out == 0, "{report:?}");
    let (code, said) = palisade(&rig, &["shadow", "report"]);
    assert_eq!(code, Some(1), "{said}");
    for word in ["default/stranger", "allow: ", "deny: ", "default/to-server"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }

    let (code, said) = palisade(&rig, &["shadow", "promote"]);
    assert!(code == Some(0) && said.contains("in force"), "{said}");
    assert!(kept.goes_on(TIMEOUT));
    assert_cut(&rig.switch, &stranger, &mut cut, INGRESS);
    let tables = rig.switch.client().tables().unwrap();
    assert!(tables.rules > 0, "{tables:?}");
    assert_eq!(palisade(&rig, &["shadow", "report"]).0, Some(2), "a promoted candidate is one no more");

    // A candidate the other way round: it would let the denied one pass, and deny the allowed one.
    let generation = || rig.switch.client().status().unwrap().generation;
    let before = generation();
    let file = manifests(&rig, &only_from("server", "stranger"));
    assert_eq!(palisade(&rig, &["apply", "--shadow", &file]).0, Some(0));
    assert_denied(&rig.switch, &stranger, server.addresses()[1], INGRESS);
    assert_allowed(&client, server.addresses()[1]);
    let report = || rig.switch.client().shadow().unwrap().disagreements;
    let found = |source: &str, is_counted: fn(&ShadowDisagreement) -> bool| {
        report().iter().any(|found| found.source == source && is_counted(found))
    };
    eventually("both directions of the change are found", || {
        found("default/stranger", |found| {
            (found.enforced.verdict, found.candidate.verdict) == (Verdict::Deny, Verdict::Allow)
                && found.denied > 0
        }) && found("default/client", |found| {
            (found.enforced.verdict, found.candidate.verdict) == (Verdict::Allow, Verdict::Deny)
                && found.flows > 0
        })
    });
    assert_eq!(generation(), before, "a candidate changes nothing");
    // A candidate follows pods that go and come.
    let judged = || report().iter().map(|found| found.denied).sum::<u64>();
    rig.switch.detach(&client).unwrap();
    assert_eq!(palisade(&rig, &["shadow", "report"]).0, Some(1));
    rig.switch.attach(&client).unwrap();
    let before_again = judged();
    assert_denied(&rig.switch, &stranger, server.addresses()[1], INGRESS);
    eventually("the candidate judges on", || judged() > before_again);
    let before = generation();
    assert_eq!(palisade(&rig, &["shadow", "drop"]), (Some(0), "the candidate is forgotten\n".to_owned()));
    assert_eq!(palisade(&rig, &["shadow", "drop"]).0, Some(2));
    assert_denied(&rig.switch, &stranger, server.addresses()[1], INGRESS);
    assert_eq!(generation(), before, "a candidate that is forgotten changes nothing");
}
