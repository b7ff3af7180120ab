//! Turns `bench/results/*.jsonl` into plots for `docs/performance.md` (`docs/performance/*.svg`) and one self-contained page
//! (`bench/results/report.html`). Measures nothing.

mod charts;
mod svg;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use charts::{Chart, Fields, PIPELINE, charts};
use svg::escaped;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// How the results came about: shown on the page.
const METHOD: &str = "Each trial makes its pods and their node anew, starts one system, proves by probes that it \
    enforces the policy, measures, and removes everything. Systems take turns. Bars are medians (of two trials \
    the mean); the line in a bar goes from the least to the most of them. Traffic comes from core 0, the system under test has core 1.";

fn main() -> ExitCode {
    match report(Path::new(ROOT)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("report: {error}");
            ExitCode::from(2)
        }
    }
}

fn report(root: &Path) -> io::Result<()> {
    let results = read(&root.join("bench/results"))?;
    if results.is_empty() {
        return Err(io::Error::other(
            "bench/results has no results: `make bench-e2e` and `make bench-pipeline` write some",
        ));
    }
    let charts = charts(&results);
    let plots = root.join("docs/performance");
    fs::create_dir_all(&plots)?;
    // Those of the packet path stand on the page only: docs/performance.md has their numbers in tables.
    for chart in charts.iter().filter(|chart| !chart.name.starts_with(PIPELINE)) {
        fs::write(plots.join(format!("{}.svg", chart.name)), &chart.svg)?;
    }
    let page = root.join("bench/results/report.html");
    fs::write(&page, html(&results, &charts))?;
    println!("{} plots in {}, and {}", charts.len(), plots.display(), page.display());
    Ok(())
}

/// All lines of all files; those of smoke size are left out.
fn read(directory: &Path) -> io::Result<Vec<Fields>> {
    let mut files: Vec<PathBuf> = match fs::read_dir(directory) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(error),
    };
    files.retain(|file| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        file.extension().is_some_and(|extension| extension == "jsonl") && !name.ends_with("-smoke")
    });
    files.sort();
    let mut results = vec![];
    for file in files {
        for (number, line) in (1..).zip(fs::read_to_string(&file)?.lines()) {
            let wrong = |error| io::Error::other(format!("{}:{number}: {error}", file.display()));
            results.push(serde_json::from_str(line).map_err(wrong)?);
        }
    }
    Ok(results)
}

fn html(results: &[Fields], charts: &[Chart]) -> String {
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
    let mut seen = std::collections::BTreeSet::new();
    for line in results {
        let text = |field: &str| line.get(field).and_then(serde_json::Value::as_str);
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
