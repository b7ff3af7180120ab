//! Dashboard of the HTTP listener: its access, its policy against foreign scripts, and the bounds of its data.

use std::time::{Duration, Instant};

use palisade::dataplane::DropReason;
use palisade::ids::{AclId, ClassId};
use palisade::limits::DASHBOARD_ENTRIES_MAX;
use palisade::tables::{PodName, PodPolicy, RuleTables};
use serde_json::Value;

use crate::browser::Browser;
use crate::fixture::pod_port;
use crate::http::WithHttp;
use crate::small_tables::small_tables;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PAGE: [&str; 3] = ["/", "/dashboard.css", "/dashboard.js"];
const DATA: [&str; 3] = ["/v1/overview", "/v1/reachability", "/v1/explain?from=10.0.0.1&to=10.0.0.2&port=1"];

/// Reachability by the tables in force, once it is computed.
fn reachability(served: &WithHttp) -> Value {
    let start = Instant::now();
    loop {
        let (status, body) = served.get("/v1/reachability");
        match status {
            200 => return serde_json::from_str(&body).unwrap(),
            202 if start.elapsed() < Duration::from_mins(1) => std::thread::sleep(Duration::from_millis(20)),
            _ => panic!("{status} {body}"),
        }
    }
}

/// Tables with these pods, all of whose traffic passes.
fn tables_of(pods: impl Iterator<Item = PodName>) -> RuleTables {
    let mut tables = small_tables("10.9.0.1");
    for (number, pod) in (0_u32..).zip(pods) {
        let addresses = vec![std::net::Ipv4Addr::from(0x0a0a_0000 + number).into()];
        tables.pods.insert(pod, PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) });
    }
    tables
}

#[test]
fn with_a_token_the_page_needs_none_and_its_data_does() {
    let served = WithHttp::start(Some(TOKEN));
    for path in PAGE {
        let answer = served.exchange("GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(!answer.contains(TOKEN));
    }
    for path in DATA {
        assert_eq!(served.get(path).0, 401, "{path}");
        assert_eq!(served.get(&format!("{path}?token={TOKEN}")).0, 401, "a token in the address is none");
    }
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    assert!(served.exchange("GET", "/v1/overview", &header).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_browser_asks_its_reader_for_the_token_and_sends_it_in_a_header() {
    let served = WithHttp::start(Some(TOKEN));
    let mut browser = Browser::start("token");
    browser.resize(1100, 900, false);
    browser.open(&format!("http://{}/", served.address));
    let enter = |browser: &mut Browser, token: &str| {
        browser.wait_for("document.getElementById('access')?.hidden === false");
        let field = format!("document.getElementById('token').value = {token:?}");
        browser.evaluate(&format!("{field}; document.querySelector('#access button').click()"));
    };
    enter(&mut browser, "wrong");
    assert!(browser.screenshot().starts_with(b"\x89PNG"));
    browser.wait_for("document.getElementById('refused').textContent !== ''");
    assert_eq!(browser.evaluate("document.getElementById('data').hidden"), true);
    enter(&mut browser, TOKEN);
    browser.wait_for("document.getElementById('state').textContent === 'not ready'");
    assert_eq!(browser.text("#problems"), "no rule tables are loaded");
    assert_eq!(browser.evaluate("document.getElementById('access').hidden"), true);
    let asked = "performance.getEntriesByType('resource').map(entry => entry.name).join(' ') + location";
    let asked = browser.evaluate(asked);
    let asked = asked.as_str().unwrap();
    assert!(asked.contains("/v1/overview") && !asked.contains(TOKEN), "{asked}");
    // The token lasts as long as its tab.
    browser.open(&format!("http://{}/?again", served.address));
    browser.wait_for(
        "location.search === '?again' && document.getElementById('state')?.textContent === 'not ready'",
    );
    // The browser reports each refused request, and nothing else.
    assert!(browser.errors.iter().all(|error| error.contains("401")), "{:?}", browser.errors);
}

#[test]
fn a_page_of_another_site_gets_neither_page_nor_data() {
    let served = WithHttp::start(None);
    for path in PAGE.into_iter().chain(DATA) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
        let answer = served.exchange_raw(&request);
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
}

#[test]
fn page_and_data_forbid_foreign_scripts_and_frames() {
    let served = WithHttp::start(None);
    for path in PAGE.into_iter().chain(["/v1/overview", "/v1/reachability"]) {
        let answer = served.exchange("GET", path, "").to_lowercase();
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(answer.contains(header), "{path}: {header}");
        }
    }
    let text = PAGE.map(|path| served.get(path).1).concat();
    for foreign in
        ["//cdn", "https:", "innerHTML", "insertAdjacentHTML", "document.write", " style=", " onclick"]
    {
        assert!(!text.contains(foreign), "{foreign}");
    }
}

#[test]
fn an_overview_has_sums_reasons_and_readiness() {
    let served = WithHttp::start(None);
    served.client.put_port("p", &pod_port()).unwrap();
    served.client.put_port("q", &pod_port()).unwrap();
    let overview: Value = serde_json::from_str(&served.get("/v1/overview").1).unwrap();
    assert_eq!(overview["not_ready"], serde_json::json!(["no rule tables are loaded"]));
    let totals = &overview["totals"];
    assert_eq!(
        [&totals["ports"], &totals["received"], &totals["dropped"], &totals["lost"]].map(Value::as_u64),
        [2, 20, 6, 4].map(Some)
    );
    let drop = &overview["drops"][0];
    assert_eq!((&drop["name"], &drop["frames"]), (&"policy-ingress".into(), &6.into()));
    assert_eq!(drop["meaning"], DropReason::PolicyIngress.meaning());
    assert_eq!(overview["status"]["pid"], std::process::id());
    // Further requests of the same moment read no counters.
    served.client.put_port("r", &pod_port()).unwrap();
    let start = Instant::now();
    let again: Value = serde_json::from_str(&served.get("/v1/overview").1).unwrap();
    assert!(again["at_unix_ms"] == overview["at_unix_ms"] || start.elapsed() > Duration::from_millis(100));
}

#[test]
fn the_heat_map_is_that_of_the_tables_in_force() {
    let served = WithHttp::start(None);
    let none = reachability(&served);
    assert_eq!((&none["pods"], &none["cells"]), (&0.into(), &serde_json::json!([])));
    let hostile = PodName::new("default", "<img src=x onerror=alert(1)>");
    served.client.put_tables(&tables_of([hostile].into_iter())).unwrap();
    let heat = reachability(&served);
    let names: Vec<&str> =
        heat["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["default/<img src=x onerror=alert(1)>", "default/db"]);
    let outside = &heat["groups"][2]["ends"];
    assert_eq!(outside, &serde_json::json!(["192.0.2.1", "2001:db8::1"]));
    let everything = heat["cells"][1][2].as_u64().unwrap() as usize;
    assert_eq!((&heat["cells"][1][0], &heat["cells"][1][1]), (&0.into(), &1.into()));
    assert_eq!(heat["traffic"][everything]["text"], "everything");

    // The map of other tables replaces it, after a rest of ten times its own duration.
    let closed = small_tables("10.9.0.1");
    let generation = served.client.put_tables(&closed).unwrap().generation;
    let heat = reachability(&served);
    assert_eq!((&heat["generation"], &heat["pods"]), (&generation.0.into(), &1.into()));
}

#[test]
fn many_pods_share_lines_and_huge_tables_have_no_map() {
    let served = WithHttp::start(None);
    let pods = |count: u32| (0..count).map(|number| PodName::new("n", format!("pod-{number}")));
    served.client.put_tables(&tables_of(pods(2000))).unwrap();
    let heat = reachability(&served);
    assert_eq!((&heat["is_grouped"], &heat["pods"]), (&true.into(), &2001.into()));
    let line = &heat["groups"][0];
    assert_eq!(line["pods"], 2001);
    assert_eq!(
        line["members"].as_array().unwrap().len() as u64 + line["members_left_out"].as_u64().unwrap(),
        2001
    );

    let mut tables = tables_of(pods(1));
    let prefix =
        |number: usize| ipnet::IpNet::new(std::net::Ipv4Addr::from(number as u32).into(), 32).unwrap();
    tables.prefixes = (0..DASHBOARD_ENTRIES_MAX).map(|number| (prefix(number), ClassId(0))).collect();
    served.switch.put_tables(tables).unwrap();
    let heat = reachability(&served);
    assert!(heat["error"].as_str().unwrap().contains("palisade matrix --pod"), "{}", heat["error"]);
    assert_eq!(heat["cells"], serde_json::json!([]));
}
