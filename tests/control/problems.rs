//! Problems of the switch: whoever asks for its health hears of every pod that is cut off.

use std::path::Path;

use palisade::control::protocol::ConfigurationReport;
use palisade::control::{Client, Configured, PortRoute};
use palisade::tables::PodPolicy;

use crate::commands::palisade;
use crate::fixture::{on_port, pod, pod_port};
use crate::http::WithHttp;
use crate::small_tables::small_tables;

/// Runs `palisade status`. Gives its exit code and output.
fn page(client: &Client) -> (i32, String) {
    let (code, out, err) = palisade(&["status", "--socket", client.socket().to_str().unwrap()]);
    assert!(err.is_empty(), "{err}");
    (code, out)
}

/// Attaches pods, each on a port of its own.
fn attach(served: &WithHttp, pods: &[(&str, &str)]) {
    for (name, address) in pods {
        served.switch.put_port(name, &pod_port()).unwrap();
        served.switch.put_pod(&pod(name), &on_port(name, address)).unwrap();
    }
}

#[test]
fn pods_without_a_policy_and_pods_at_other_addresses_are_problems_wherever_one_asks() {
    let served = WithHttp::start(None);
    let problems = || served.client.status().unwrap().problems;
    assert_eq!(problems(), Vec::<String>::new(), "a switch without pods has no problem");
    assert_eq!(page(&served.client).0, 0);

    attach(&served, &[("db", "10.1.0.2"), ("web", "10.1.0.3"), ("cache", "10.1.0.4")]);
    let none = "no rule tables are loaded: 3 attached pods are cut off";
    assert_eq!(problems(), [none]);
    assert_eq!(served.get("/readyz").0, 503);
    let (code, out) = page(&served.client);
    assert!(code == 1 && out.contains("1 PROBLEM\n") && out.contains(none), "{out}");

    // The tables know one pod as it is, one by another address, and one not at all.
    let mut tables = small_tables("10.1.0.2");
    let policy = tables.pods.get(&pod("db")).unwrap().clone();
    let elsewhere = PodPolicy { addresses: vec!["10.9.9.9".parse().unwrap()], ..policy };
    tables.pods.insert(pod("web"), elsewhere);
    served.client.put_tables_allow_empty(&tables).unwrap();
    let unknown = "the tables do not know 1 of 3 attached pods (default/cache): these are cut off";
    let other = "the tables have other addresses for 1 of 3 attached pods (default/web): rules that select these pods do not match \
                 their traffic";
    assert_eq!(problems(), [unknown, other]);
    let (status, ready) = served.get("/readyz");
    assert_eq!((status, ready.contains(unknown), ready.contains(other)), (200, true, true), "{ready}");
    assert!(served.get("/metrics").1.contains("palisade_problems 2\n"));
    let (code, out) = page(&served.client);
    assert!(
        code == 1 && out.contains("2 PROBLEMS\n") && out.contains(unknown) && out.contains(other),
        "{out}"
    );
    assert!(out.contains("3 attached, 2 of them in the tables"), "{out}");

    served.client.put_tables_allow_empty(&small_tables("10.1.0.2")).unwrap();
    attach(&served, &[("a", "10.1.0.5"), ("b", "10.1.0.6")]);
    let many = "the tables do not know 4 of 5 attached pods (default/a, default/b, default/cache, …): these are cut off";
    assert_eq!(problems(), [many]);
    served.client.delete_tables().unwrap();
    assert_eq!(problems(), ["no rule tables are loaded: 5 attached pods are cut off"]);
}

#[test]
fn a_rejected_reload_and_keys_that_wait_for_a_restart_stay_in_the_status() {
    let served = WithHttp::start(None);
    let report = |rejected: &[&str], failed: &[&str], restart: &[&str]| {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        served.switch.set_configuration(ConfigurationReport {
            file: Path::new("/etc/p.toml").to_owned(),
            rejected: owned(rejected),
            failed: owned(failed),
            restart: owned(restart),
            ..ConfigurationReport::default()
        });
        let status = served.client.status().unwrap();
        (status.configuration.unwrap().reloads, status.problems)
    };
    let (reloads, problems) = report(&["line 3: no such key"], &[], &[]);
    assert_eq!((reloads, problems.len()), (1, 1));
    let (rejected, reason) = problems[0].split_once(" ago: the running configuration stays").unwrap();
    assert!(
        rejected.starts_with("the reload of /etc/p.toml was rejected ")
            && reason.ends_with("line 3: no such key"),
        "{problems:?}"
    );
    let (reloads, problems) = report(&[], &["port a: no interface"], &["workers.frames"]);
    let expected = [
        "parts of /etc/p.toml failed: port a: no interface",
        "changes of /etc/p.toml wait for a restart: workers.frames",
    ];
    assert_eq!((reloads, problems), (2, expected.map(str::to_owned).to_vec()));
    assert_eq!(report(&[], &[], &[]), (3, Vec::new()));
}

#[test]
fn the_status_names_what_a_restart_forgets() {
    let served = WithHttp::start(None);
    attach(&served, &[("db", "10.1.0.2"), ("web", "10.1.0.3"), ("cni0123456789ab", "10.1.0.4")]);
    served.client.put_tables_allow_empty(&small_tables("10.1.0.2")).unwrap();
    let route = |prefix: &str| PortRoute {
        prefix: prefix.parse().unwrap(),
        port: "db".to_owned(),
        next_hop: None,
        node: false,
    };
    served.switch.replace_routes(vec![route("192.0.2.0/24"), route("198.51.100.0/24")]).unwrap();
    let forgotten = || served.client.status().unwrap().forgotten;
    assert_eq!(forgotten(), [""; 0], "the configuration is not known");
    let configured = |pod: Option<&str>, address: &str| {
        let pod = pod.map(|name| (crate::fixture::pod(name), on_port("db", address)));
        Configured {
            ports: [("db".to_owned(), (pod_port(), pod))].into(),
            routes: vec![route("192.0.2.0/24")],
        }
    };
    served.switch.set_configured(configured(Some("db"), "10.1.0.2"));
    assert_eq!(
        forgotten(),
        ["port web", "route 198.51.100.0/24"],
        "the plugin attaches its containers again"
    );
    for command in ["status", "show status"] {
        let arguments: Vec<&str> =
            command.split(' ').chain(["--socket", served.client.socket().to_str().unwrap()]).collect();
        let (_, out, _) = palisade(&arguments);
        let says = "restart: forgets port web, route 198.51.100.0/24; `palisade config export` prints them for the file\n";
        assert!(out.contains(says), "{out}");
    }
    for (pod, address) in [(None, ""), (Some("web"), "10.1.0.2"), (Some("db"), "10.1.0.9")] {
        served.switch.set_configured(configured(pod, address));
        assert_eq!(forgotten(), ["changes of port db", "port web", "route 198.51.100.0/24"]);
    }
    served.switch.set_configured(configured(Some("db"), "10.1.0.2"));
    let limit = palisade::dataplane::Bandwidth {
        ingress_rate: Some(palisade::dataplane::Bits(1_000_000)),
        ..Default::default()
    };
    served.switch.limit_pod(&crate::fixture::pod("db"), limit).unwrap();
    served
        .switch
        .replace_routes(vec![PortRoute { port: "web".to_owned(), ..route("192.0.2.0/24") }])
        .unwrap();
    assert_eq!(forgotten(), ["changes of port db", "port web", "route 192.0.2.0/24"]);
    served.switch.set_configured(Configured::default());
    attach(&served, &[("a", "10.1.0.5"), ("b", "10.1.0.6"), ("c", "10.1.0.7")]);
    let (_, out) = page(&served.client);
    assert!(out.contains("restart: forgets port a, port b, port c, port db, port web and 1 more; "), "{out}");
}
