//! Metrics: values, formats that `promtool` accepts, and the dashboard that uses them.

use std::collections::BTreeSet;

use crate::fixture::{Scratch, on_port, pod, pod_port};
use crate::http::WithHttp;
use crate::small_tables::small_tables;
use crate::tools::run_if_installed;

const DASHBOARD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/grafana-dashboard.json"));

/// Switch with a port, an attached pod that the tables know, and one that they do not know.
fn busy() -> WithHttp {
    let served = WithHttp::start(None);
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    for (name, address) in [("db", "10.1.0.2"), ("other", "10.1.0.9")] {
        let port = format!("port-{name}");
        served.client.put_port(&port, &pod_port()).unwrap();
        served.client.put_pod(&pod(name), &on_port(&port, address)).unwrap();
    }
    served
}

/// Names of the samples.
fn names(metrics: &str) -> BTreeSet<&str> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap()).collect()
}

#[test]
fn metrics_are_those_of_counters_and_status() {
    let served = busy();
    served.switch.set_rejected_reload(Some(("/policies".as_ref(), &["mistake".to_owned()])));
    let answer = served.exchange("GET", "/metrics", "");
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(answer.contains(content_type), "{answer}");
    let version = env!("CARGO_PKG_VERSION");
    let generation = served.switch.status().generation;
    for line in [
        "# TYPE palisade_port_received_packets counter",
        "# UNIT palisade_port_received_packets packets",
        &format!("palisade_build_info{{version=\"{version}\",commit=\"unknown\"}} 1"),
        &format!("palisade_generation {generation}"),
        "palisade_tables_loaded 1",
        "palisade_pods{state=\"attached\"} 1",
        "palisade_pods{state=\"unknown\"} 1",
        "palisade_pods{state=\"not-attached\"} 0",
        "palisade_policy_reload_rejected 1",
        "palisade_worker_info{worker=\"0\",core=\"0\"} 1",
        "palisade_worker_up{worker=\"0\"} 1",
        "palisade_worker_busy_seconds_total{worker=\"0\"} 1.5",
        "palisade_worker_waited_seconds_total{worker=\"0\"} 0.25",
        "palisade_worker_latency_seconds_bucket{worker=\"0\",le=\"0.000001024\"} 8",
        "palisade_worker_latency_seconds_count{worker=\"0\"} 10",
        "palisade_worker_received_packets_total{worker=\"0\"} 10",
        "palisade_conntrack_capacity_flows 4096",
        "palisade_conntrack_flows 2",
        "palisade_port_info{port=\"port-db\",kind=\"pod\",interface=\"port-db\",pod=\"default/db\"} 1",
        "palisade_port_up{port=\"port-db\"} 1",
        "palisade_port_unguarded{port=\"port-db\"} 0",
        "palisade_port_received_packets_total{port=\"port-db\"} 10",
        "palisade_port_forwarded_packets_total{port=\"port-other\"} 7",
        "palisade_port_dropped_packets_total{port=\"port-db\",reason=\"policy-ingress\"} 3",
        "palisade_port_lost_packets_total{port=\"port-db\",place=\"ring-full\"} 2",
        "palisade_decided_packets_total{origin=\"default-deny\",direction=\"ingress\",verdict=\"deny\"} 3",
        "palisade_policy_decided_packets_total{kind=\"NetworkPolicy\",namespace=\"default\",policy=\"db\",direction=\"ingress\",verdict=\"deny\"} 3",
    ] {
        assert!(answer.contains(&format!("\n{line}\n")), "{line} is not in\n{answer}");
    }
    assert!(answer.ends_with("\n# EOF\n"), "{answer}");
}

#[test]
fn a_switch_without_ports_and_tables_has_metrics_too() {
    let (_, metrics) = WithHttp::start(None).get("/metrics");
    assert!(metrics.contains("\npalisade_tables_loaded 0\n"), "{metrics}");
    assert!(metrics.contains("\npalisade_policy_reload_rejected 0\n"), "{metrics}");
    assert!(!metrics.contains("\npalisade_policy_loaded_timestamp_seconds "), "{metrics}");
}

#[test]
fn promtool_accepts_the_older_format() {
    let answer = busy().exchange("GET", "/metrics", "accept: text/plain;version=0.0.4\r\n");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
    let metrics = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(!metrics.contains("EOF") && !metrics.contains("# UNIT"), "{metrics}");
    let Some(output) = run_if_installed("promtool", &["check", "metrics"], metrics.as_bytes()) else {
        return;
    };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Queries of the dashboard, panels in rows and template variables included.
fn queries(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), value.as_str()) {
                    ("expr" | "query", Some(text)) if text.contains("palisade_") => {
                        found.push(text.to_owned());
                    }
                    _ => queries(value, found),
                }
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

fn dashboard_queries() -> Vec<String> {
    let mut found = Vec::new();
    queries(&serde_json::from_str(DASHBOARD).unwrap(), &mut found);
    assert!(found.len() > 10, "{found:?}");
    found
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let (_, metrics) = busy().get("/metrics");
    let known = names(&metrics);
    for query in dashboard_queries() {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let used: Vec<&str> = words.filter(|word| word.starts_with("palisade_")).collect();
        assert!(!used.is_empty());
        for name in used {
            assert!(known.contains(name), "{query}: there is no metric {name}");
        }
    }
}

#[test]
fn promtool_parses_the_queries_of_the_dashboard() {
    let plain =
        |query: &str| query.replace("$__rate_interval", "1m").replace("$node", ".*").replace("$port", ".*");
    let is_query = |query: &String| !query.starts_with("label_values(");
    let rules: Vec<_> = dashboard_queries()
        .iter()
        .filter(|query| is_query(query))
        .enumerate()
        .map(|(number, query)| serde_json::json!({"record": format!("query:{number}"), "expr": plain(query)}))
        .collect();
    let groups = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let scratch = Scratch::new();
    let file = scratch.write("rules.yaml", &groups.to_string());
    let arguments = ["check", "rules", file.to_str().unwrap()];
    let Some(output) = run_if_installed("promtool", &arguments, b"") else { return };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}
