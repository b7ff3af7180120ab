//! Results of a run: one flat JSON object a line in a file, and their medians.

use std::fs::{File, create_dir_all};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::common::json_lines::Fields;
use crate::common::statistics::Summary;
use crate::scenario::{Measures, Scenario};
use crate::system::System;

/// Systems that enforce policy, of which the best one is the peer to compare with.
pub(crate) const PEERS: [&str; 3] = ["nftables", "iptables", "ovs"];

/// File of results, and its lines so far.
pub(crate) struct Results {
    file: File,
    lines: Vec<Fields>,
}

/// Line of the environment.
#[derive(Serialize)]
struct EnvironmentLine<'a> {
    bench: &'static str,
    scenario: &'static str,
    #[serde(flatten)]
    environment: &'a Fields,
}

/// Line of one trial: its parameters, and either measures or the reason why there are none.
#[derive(Serialize)]
struct TrialLine<'a> {
    bench: &'static str,
    system: &'a str,
    scenario: &'a str,
    case: &'a str,
    metric: &'a str,
    better: &'static str,
    rules: usize,
    pods: usize,
    mtu: u32,
    run: usize,
    seed: u64,
    #[serde(flatten)]
    measures: Option<&'a Measures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_run: Option<&'a str>,
}

impl Results {
    /// Truncates or creates the file.
    pub(crate) fn create(path: &Path) -> io::Result<Results> {
        if let Some(directory) = path.parent() {
            create_dir_all(directory)?;
        }
        Ok(Results { file: File::create(path)?, lines: vec![] })
    }

    /// Writes the environment of the run.
    pub(crate) fn add_environment(&mut self, environment: &Fields) -> io::Result<()> {
        self.write(&EnvironmentLine { bench: "e2e", scenario: "provenance", environment }).map(drop)
    }

    /// Writes the measures of a trial, or the reason why it has none.
    pub(crate) fn add(
        &mut self,
        scenario: &Scenario,
        system: &dyn System,
        run: usize,
        outcome: Result<&Measures, &str>,
    ) -> io::Result<()> {
        let line = self.write(&TrialLine {
            bench: "e2e",
            system: system.name(),
            scenario: &scenario.group,
            case: &scenario.name,
            metric: scenario.metric,
            better: if scenario.more_is_better { "more" } else { "less" },
            rules: scenario.shape.rules,
            pods: scenario.shape.pods,
            mtu: scenario.mtu.for_system(system),
            run,
            seed: scenario.shape.seed,
            measures: outcome.ok(),
            not_run: outcome.err(),
        })?;
        self.lines.push(line);
        Ok(())
    }

    /// Lines of one system in a scenario.
    pub(crate) fn lines_of(&self, scenario: &str, system: &str) -> Vec<&Fields> {
        self.lines.iter().filter(|line| line["case"] == scenario && line["system"] == system).collect()
    }

    /// Median of a field in the lines of one system in a scenario.
    pub(crate) fn median(&self, scenario: &str, system: &str, field: &str) -> Option<f64> {
        Some(summary(&self.lines_of(scenario, system), field)?.median)
    }

    /// Smallest of the peers' medians.
    pub(crate) fn least_of_peers(&self, scenario: &str, field: &str) -> Option<f64> {
        PEERS.iter().filter_map(|peer| self.median(scenario, peer, field)).reduce(f64::min)
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<Fields> {
        let Value::Object(fields) = serde_json::to_value(line)? else {
            unreachable!("a struct is an object")
        };
        serde_json::to_writer(&self.file, &fields)?;
        writeln!(self.file)?;
        Ok(fields)
    }
}

/// Summarizes a field of these lines; `None` where none has it.
pub(crate) fn summary(lines: &[&Fields], field: &str) -> Option<Summary> {
    Summary::of(lines.iter().filter_map(|line| line.get(field)?.as_f64()).collect())
}
