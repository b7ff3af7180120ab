//! Dashboard of a switch under traffic, in a browser. `PALISADE_SCREENSHOT=docs/dashboard.png` keeps its picture.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use palisade::lab::{Lab, Pod};
use palisade::tables::{PodName, PolicyRef, RuleOrigin, RuleTables};
use rustix::process::{Pid, Signal, kill_process};

use super::http::address_of;
use super::observation::palisade;
use crate::browser::Browser;
use crate::support::{PORT, Rig, eventually, isolated, only_from, pods_manifest, spec_of};

/// Names as an attacker would choose them.
const HOSTILE_POD: &str = "<img src=x onerror=window.hacked=1>";
const HOSTILE_POLICY: &str = "<svg onload=window.hacked=1>\u{202e}";
const HOSTILE_ERROR: &str = "<iframe srcdoc='<script>top.hacked=1</script>'>";

/// Pings until the test is over.
fn ping(from: &Pod, to: &Pod, interval: &str, is_over: &AtomicBool) {
    let address = to.addresses()[0].to_string();
    while !is_over.load(Ordering::Relaxed) {
        // A denied ping fails.
        let _ =
            from.output(Command::new("ping").args(["-q", "-c", "100", "-W", "1", "-i", interval, &address]));
    }
}

/// Renames a policy and adds a pod with hostile names.
fn hostile(mut tables: RuleTables) -> RuleTables {
    let rename = |policy: &mut PolicyRef| HOSTILE_POLICY.clone_into(&mut policy.name);
    let renamed = tables.rules.iter().map(|(id, origin)| {
        let mut origin = origin.clone();
        match &mut origin {
            RuleOrigin::DefaultDeny { policies, .. } => policies.iter_mut().for_each(rename),
            RuleOrigin::Rule { policy, .. } => rename(policy),
            RuleOrigin::NotIsolated { .. } | RuleOrigin::OwnNode => {}
        }
        (*id, origin)
    });
    tables.rules = renamed.collect();
    let mut pod = tables.pods.values().next().unwrap().clone();
    pod.addresses = vec!["10.99.0.1".parse().unwrap()];
    tables.pods.insert(PodName::new("default", HOSTILE_POD), pod);
    tables
}

#[test]
fn a_browser_shows_graphs_explains_a_cell_and_runs_no_hostile_name() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&spec_of(&["web", "api", "db", "batch"])).unwrap();
    let directory = lab.directory().join("policies");
    fs::create_dir_all(&directory).unwrap();
    let pods = pods_manifest(&lab);
    fs::write(directory.join("pods.yaml"), &pods).unwrap();
    let config =
        format!("[http]\nlisten = \"127.0.0.1:0\"\n[policy]\ndirectory = \"{}\"\n", directory.display());
    let switch = Rig::start(&mut lab, &config);
    let rig = Rig { switch, lab };
    let policies = format!("{}---\n{}", only_from("db", "api"), only_from("api", "web"));
    fs::write(directory.join("policies.yaml"), policies).unwrap();
    let client = rig.switch.client();
    let policies_in_force = || client.status().unwrap().policy.and_then(|policy| policy.origin.policies);
    eventually("the policies are in force", || policies_in_force() == Some(2));
    let address = address_of(&rig);

    let [web, api, db, batch] = ["web", "api", "db", "batch"].map(|name| rig.pod(name));
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| ping(&web, &batch, "0.005", &is_over));
        scope.spawn(|| ping(&batch, &db, "0.02", &is_over));
        scope.spawn(|| ping(&api, &web, "0.01", &is_over));
        // A failure of the test ends the pings too.
        let _over = Over(&is_over);
        let mut browser = Browser::start("dashboard");
        watch(&mut browser, &format!("http://{address}/"));

        let shown = palisade(&rig, &["top", "--once"]);
        for part in ["default/batch -> default/db", "ICMP", "policy-ingress", "50 % ", " rules for 4 pods"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        client.put_tables(&hostile(client.tables_document().unwrap())).unwrap();
        let wrong = only_from("db", "api").replace("spec:\n", &format!("spec:\n  \"{HOSTILE_ERROR}\": 1\n"));
        fs::write(directory.join("policies.yaml"), wrong).unwrap();
        read_hostile_names(&mut browser);
        assert_eq!(browser.errors, Vec::<String>::new());

        // The switch goes, and the page says so.
        let pid = Pid::from_raw(rig.switch.pid() as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        browser.wait_for("document.getElementById('state').textContent.startsWith('switch gone')");
    });
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for graphs and tables, clicks a cell and reads its explanation, and takes the picture.
fn watch(browser: &mut Browser, address: &str) {
    browser.resize(1100, 900, false);
    browser.open(address);
    browser.wait_for("document.getElementById('state')?.textContent === 'ready'");
    // Curves of some seconds, with numbers that are not zero.
    browser.wait_for("document.querySelectorAll('svg polyline').length >= 6");
    if std::env::var_os("PALISADE_SCREENSHOT").is_some() {
        for _ in 0..100 {
            sleep(Duration::from_secs(1));
        }
    }
    browser.wait_for(
        "document.querySelector('#packets polyline').getAttribute('points').split(' ').length >= 3",
    );
    let shows = |selector: &str, text: &str| {
        let elements = format!("[...document.querySelectorAll('{selector}')]");
        format!("{elements}.some(element => element.textContent.includes('{text}'))")
    };
    browser.wait_for("!document.getElementById('now').textContent.includes('received0/s')");
    browser.wait_for(&shows("#dropped .legend", "policy-ingress"));
    browser.wait_for(&shows("#reasons", "Policy of the destination pod forbids it."));
    browser.wait_for(&shows("#workers", " %"));
    browser.wait_for("/^50 %[0-9.]+ (µs|ms)/.test(document.getElementById('latency').textContent)");
    browser.wait_for("document.getElementById('denials').textContent.includes('default/db (')");
    browser.wait_for(&shows("#denials", "default/batch ("));
    browser
        .wait_for(&shows("#denials", "isolated for ingress by NetworkPolicy default/to-db; no rule matched"));
    let policy = browser.text("#policy");
    assert!(policy.contains("From the directory") && policy.contains("2 policies"), "{policy}");
    browser.wait_for(&shows("#drift", "the policy in force are the same"));

    browser.wait_for("document.querySelectorAll('.heat tbody tr').length >= 4");
    let note = browser.text("#heat-note");
    assert!(note.starts_with("5 of 5 lines, 4 of 4 pods."), "{note}");
    click(browser, &format!("default/api to default/db: TCP {PORT}"));
    browser.wait_for("document.querySelector('#explanation h3') !== null");
    let allowed = browser.text("#explanation");
    for part in
        ["allow: default/api (", "ingress of default/db: allow: NetworkPolicy default/to-db ingress[0]"]
    {
        assert!(allowed.contains(part), "{part}: {allowed}");
    }
    click(browser, "default/batch to default/db: nothing");
    browser.wait_for("document.querySelector('#explanation h3')?.textContent.startsWith('deny')");
    let denied = browser.text("#explanation");
    for part in [
        "deny (policy-ingress): default/batch (",
        "egress of default/batch: allow: no policy isolates the pod for egress",
        "ingress of default/db: deny: isolated for ingress by NetworkPolicy default/to-db; no rule matched",
        "is behind port",
    ] {
        assert!(denied.contains(part), "{part}: {denied}");
    }
    let picture = browser.screenshot();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());
    if let Some(path) = std::env::var_os("PALISADE_SCREENSHOT") {
        fs::write(path, picture).unwrap();
    }

    // A phone, at night.
    let light = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    browser.resize(390, 844, true);
    browser.wait_for("document.documentElement.scrollWidth <= 390");
    assert_ne!(browser.evaluate("getComputedStyle(document.body).backgroundColor"), light);
}

/// Clicks the cell with this title.
fn click(browser: &mut Browser, title: &str) {
    let cell =
        format!("[...document.querySelectorAll('.heat button')].find(cell => cell.title === {title:?})");
    browser.wait_for(&format!("{cell} !== undefined"));
    browser.evaluate(&format!("{cell}.click()"));
}

/// Waits until hostile names are on the page, and checks that they are text.
fn read_hostile_names(browser: &mut Browser) {
    let has = |id: &str, text: &str| {
        format!("document.getElementById({id:?}).textContent.includes({})", serde_json::json!(text))
    };
    let policy = HOSTILE_POLICY.replace('\u{202e}', "\\u{202e}");
    browser.wait_for(&has("heat", HOSTILE_POD));
    browser.wait_for(&has("denials", &policy));
    browser.wait_for(&has("drift", HOSTILE_ERROR));
    assert!(browser.text("#drift").starts_with("Drift: the files of "));
    assert!(browser.text("#policy").starts_with("From the control socket (user "));
    click(browser, "default/batch to default/db: nothing");
    browser.wait_for(&has("explanation", &policy));
    click(browser, &format!("default/{HOSTILE_POD} to default/db: nothing"));
    browser
        .wait_for(&has("explanation", &format!("pod default/{HOSTILE_POD} is not attached to this switch")));
    let made = "document.querySelectorAll('#data img, #data iframe, #data script, #data svg svg').length";
    assert_eq!(browser.evaluate(made), 0);
    assert_eq!(browser.evaluate("typeof window.hacked"), "undefined");
}
