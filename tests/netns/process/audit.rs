//! Policies in audit mode: judged on live connections, and enforced when the annotation goes.

use std::process::{Command, Output};

use palisade::lab::traffic::{Server, Services};

use crate::support::closed::assert_cut;
use crate::support::connection::Connection;
use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_allowed, eventually, isolated, only_from, pods_manifest,
};

fn palisade(rig: &Rig, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).env("PALISADE_SOCKET", rig.switch.client().socket());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

/// Applies the pods and the policy that lets only the client reach the server, in this mode.
fn apply(rig: &Rig, mode: &str) -> String {
    let annotated = format!("metadata: {{annotations: {{palisade.dev/mode: {mode}}}, ");
    let policy = only_from("server", "client").replace("metadata: {", &annotated);
    let file = rig.lab.directory().join("audited.yaml");
    std::fs::write(&file, format!("{}---\n{policy}", pods_manifest(&rig.lab))).unwrap();
    let (code, said) = palisade(rig, &["apply", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    said
}

#[test]
fn an_audited_policy_reports_the_connection_that_it_would_cut_and_cuts_it_when_it_is_enforced() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    let (client, stranger, server) = (rig.pod("client"), rig.pod("stranger"), rig.pod("server"));
    let mut kept = Connection::open(&client, &server);
    let mut cut = Connection::open(&stranger, &server);
    assert!(kept.goes_on(TIMEOUT) && cut.goes_on(TIMEOUT));

    let said = apply(&rig, "audit");
    assert!(said.contains("audit loaded, not enforced: 1 policy ("), "{said}");
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    assert!(kept.goes_on(TIMEOUT) && cut.goes_on(TIMEOUT));
    assert_allowed(&stranger, server.addresses()[1]);
    let report = || rig.switch.client().audit().unwrap();
    eventually("the running connection and the new one are judged", || report().policies[0].flows == 2);
    let report = report();
    let [found] = &report.denials[..] else { panic!("{report:?}") };
    assert_eq!((found.source.as_str(), found.destination.as_str()), ("default/stranger", "default/server"));
    assert_eq!((found.port, found.flows, report.policies[0].policy.name.as_str()), (PORT, 2, "to-server"));
    let by = "isolated for ingress by NetworkPolicy default/to-server; no rule matched";
    assert_eq!(found.decided_by.as_ref().unwrap().to_string(), by);
    let (code, said) = palisade(&rig, &["audit", "report"]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["default/stranger", "default/server", "TCP 6379", "NetworkPolicy default/to-server"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    let explain = ["explain", "--from", "default/stranger", "--to", "default/server", "--port", "6379"];
    let (code, said) = palisade(&rig, &explain);
    assert!(code == Some(0) && said.contains(&format!("would be denied by {by} (audit)")), "{said}");
    let dropped: u64 =
        rig.counters().ports.values().filter_map(|port| port.drops.get("policy-ingress")).sum();
    assert_eq!(dropped, 0, "an audited policy denies nothing");

    apply(&rig, "enforce");
    assert!(kept.goes_on(TIMEOUT));
    assert_cut(&rig.switch, &stranger, &mut cut, INGRESS);
    eventually("the drops name the policy", || {
        palisade(&rig, &["show", "drops", "--pod", "default/stranger"]).1.contains("default/to-server")
    });
    let (code, said) = palisade(&rig, &["audit", "report"]);
    assert!(code == Some(0) && said.contains("No policy is in audit mode"), "{said}");

    // The audit lifts the policy again.
    apply(&rig, "audit");
    assert_allowed(&stranger, server.addresses()[0]);
    assert!(kept.goes_on(TIMEOUT));
}
