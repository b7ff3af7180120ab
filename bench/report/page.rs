//! One self-contained HTML page of all results.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::charts::Chart;
use crate::common::json_lines::Fields;

/// Method, as the page shows it.
const METHOD: &str = "Each trial makes its pods and their node anew, starts one system, proves by probes that it \
    enforces the policy, measures, and removes everything. Systems take turns. Bars are medians (of two trials \
    the mean); the line in a bar goes from the least to the most of them. Traffic comes from core 0, the system under test has core 1.";

/// Writes the page: environment, charts, and systems that did not run with their reasons.
pub(crate) fn html(results: &[Fields], charts: &[Chart]) -> String {
    let mut body = String::new();
    for chart in charts {
        let _ = writeln!(body, "<figure>{}</figure>", chart.svg);
    }
    let facts = |line: &&Fields| line.get("scenario").is_some_and(|scenario| scenario == "provenance");
    let mut machine = String::new();
    for (field, value) in results.iter().filter(facts).flatten() {
        if field != "bench" && field != "scenario" {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ =
                writeln!(machine, "<tr><th>{}<td>{}", escaped(field), escaped(&value).replace("; ", "<br>"));
        }
    }
    let mut refused = String::new();
    let mut seen = BTreeSet::new();
    for line in results {
        let text = |field: &str| line.get(field).and_then(Value::as_str);
        if let (Some(scenario), Some(system), Some(why)) = (text("scenario"), text("system"), text("not_run"))
            && seen.insert((scenario, system))
        {
            let [scenario, system, why] = [scenario, system, why].map(escaped);
            let _ = writeln!(refused, "<tr><td>{scenario}<td>{system}<td>{why}");
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>Palisade: measured</title><style>body{{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 \
         sans-serif;color-scheme:light dark}}figure{{margin:2rem 0}}svg{{max-width:100%;height:auto}}th{{text-align:left;\
         vertical-align:top;padding-right:1rem}}td{{vertical-align:top;padding-right:1rem}}</style>\
         <h1>Palisade: measured</h1><p>{METHOD}</p><h2>Machine and versions</h2><table>{machine}</table>\
         <h2>Results</h2>{body}<h2>What did not run</h2><table>{refused}</table></html>\n"
    )
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
