//! Report of the results: draws `bench/results/*.jsonl` as plots for `docs/performance.md`
//! (`docs/performance/*.svg`) and writes one self-contained page (`bench/results/report.html`). It measures
//! nothing.

mod charts;
#[path = "../common/mod.rs"]
mod common;
mod page;
mod plot;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use charts::{PIPELINE, charts};
use common::json_lines::Fields;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
fn main() -> ExitCode {
    match report(Path::new(ROOT)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("report: {error}");
            ExitCode::from(2)
        }
    }
}

fn report(root: &Path) -> Result<(), plot::DrawError> {
    let results = read(&root.join("bench/results"))?;
    if results.is_empty() {
        return Err(
            "bench/results has no results: `make bench-e2e` and `make bench-pipeline` write some".into()
        );
    }
    let charts = charts(&results)?;
    let plots = root.join("docs/performance");
    fs::create_dir_all(&plots)?;
    // docs/performance.md has tables of the packet path, so its plots are on the page only.
    for chart in charts.iter().filter(|chart| !chart.name.starts_with(PIPELINE)) {
        fs::write(plots.join(format!("{}.svg", chart.name)), &chart.svg)?;
    }
    let page = root.join("bench/results/report.html");
    fs::write(&page, page::html(&results, &charts))?;
    println!("{} plots in {}, and {}", charts.len(), plots.display(), page.display());
    Ok(())
}

/// Reads all lines of all files but those of smoke size.
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
