//! Record of a soak: a file of JSON lines, to which every soak adds, and a table at the end.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::Table;
use serde_json::{Value, json};

/// Failure of a run.
pub(crate) struct Finding {
    pub(crate) end: String,
    pub(crate) tests: Vec<String>,
    pub(crate) repeat: String,
    /// File with the output.
    pub(crate) log: PathBuf,
}

/// Run of a part.
pub(crate) struct Run {
    pub(crate) part: &'static str,
    pub(crate) seed: u64,
    pub(crate) inputs: u64,
    pub(crate) seconds: f64,
    pub(crate) finding: Option<Finding>,
}

/// Sums over the runs of a part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) runs: u64,
    pub(crate) inputs: u64,
    pub(crate) seconds: f64,
    pub(crate) findings: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.inputs += run.inputs;
        self.seconds += run.seconds;
        self.findings += u64::from(run.finding.is_some());
    }
}

/// Open record.
pub(crate) struct Record {
    directory: PathBuf,
    path: PathBuf,
    file: File,
    findings: Vec<String>,
}

impl Record {
    pub(crate) fn open(directory: &Path, hours: f64) -> Record {
        fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let path = directory.join("record.jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut record = Record { directory: directory.to_owned(), path, file, findings: Vec::new() };
        let commit = Command::new("git").args(["describe", "--always", "--dirty"]).output();
        let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        record.write(&json!({"soak": {
            "started_unix_s": unix_s(), "hours": hours, "commit": commit.unwrap_or_default(),
        }}));
        record
    }

    pub(crate) fn skip(&mut self, part: &str, reason: &str) {
        self.write(&json!({"part": part, "outcome": "skipped", "reason": reason}));
    }

    /// Keeps the output of a finding.
    pub(crate) fn keep(&self, log: &Path, part: &str) -> PathBuf {
        let kept = self.directory.join(format!("finding-{}-{part}.log", unix_s()));
        fs::copy(log, &kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
        kept
    }

    pub(crate) fn add(&mut self, run: &Run) {
        let outcome = run.finding.as_ref().map_or("passed", |finding| &finding.end);
        let mut line = json!({
            "part": run.part,
            "seed": run.seed,
            "inputs": run.inputs,
            "seconds": tenths(run.seconds),
            "outcome": outcome,
        });
        if let Some(finding) = &run.finding {
            line["tests"] = json!(finding.tests);
            line["repeat"] = json!(finding.repeat);
            line["log"] = json!(finding.log);
            eprintln!("FINDING in {}: {}\n  {}", run.part, finding.log.display(), finding.repeat);
            self.findings.push(format!("{}: {}", run.part, finding.repeat));
        }
        self.write(&line);
    }

    /// Writes the sums to the record, and prints them as a table.
    pub(crate) fn finish(&mut self, totals: &[(&str, Totals)]) {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["part", "inputs", "hours", "seeds", "findings"]);
        let mut summary = json!({});
        for (part, sum) in totals {
            let hours = format!("{:.3}", sum.seconds / 3600.0);
            let cells = [
                (*part).to_owned(),
                sum.inputs.to_string(),
                hours,
                sum.runs.to_string(),
                sum.findings.to_string(),
            ];
            table.add_row(cells);
            summary[part] = json!({
                "inputs": sum.inputs,
                "seconds": tenths(sum.seconds),
                "seeds": sum.runs,
                "findings": sum.findings,
            });
        }
        self.write(&json!({"summary": summary}));
        println!("{table}\n{} findings; the record is {}", self.findings.len(), self.path.display());
        self.findings.iter().for_each(|finding| println!("{finding}"));
    }

    fn write(&mut self, line: &Value) {
        writeln!(self.file, "{line}").unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
    }
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}
