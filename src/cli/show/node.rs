//! Command `palisade status`: the node on one page, health first.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;

use super::status::{forgotten_line, policy_line, source_lines};
use crate::cli::output::{Output, grouped, json, text};
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::{CountersReport, PodInfo, PortInfo, PortState, Status};

/// Most drop reasons on the page.
const REASONS_MAX: usize = 4;

/// Show the node on one page: problems first, then policy, ports, pods, flows and drops
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade status
  palisade status || palisade doctor

Exit codes: 0 no problem, 1 problems, 2 no answer.")]
pub(in crate::cli) struct StatusArguments {
    /// Form of the output; `json` is that of `palisade show status`
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

pub(in crate::cli) fn status(arguments: &StatusArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    let status = client.status()?;
    match arguments.output {
        Output::Json => json(&status)?,
        Output::Table | Output::Wide => {
            text(&page(&status, &client.ports()?, &client.pods()?, &client.counters()?))?;
        }
    }
    Ok(ExitCode::from(u8::from(!status.problems.is_empty())))
}

fn page(status: &Status, ports: &[PortInfo], pods: &[PodInfo], counters: &CountersReport) -> String {
    let mut out = format!(
        "palisade {}, process {}, for {} s, generation {}\n\n",
        status.version, status.pid, status.uptime_s, status.generation
    );
    // Writing to a string cannot fail.
    match status.problems.len() {
        0 => out += "health:  no problem\n",
        1 => out += "health:  1 PROBLEM\n",
        count => _ = writeln!(out, "health:  {count} PROBLEMS"),
    }
    status.problems.iter().for_each(|problem| _ = writeln!(out, "  - {problem}"));
    let policy = status.policy.as_ref().map_or_else(|| "policy: none is loaded".to_owned(), policy_line);
    let _ = writeln!(out, "{}", policy.replacen("policy:", "policy: ", 1));
    out += &source_lines(status.source.as_ref()).replacen("agent:", "agent:  ", 1);
    let _ = writeln!(out, "ports:   {}", ports_line(ports));
    let known = pods.iter().filter(|pod| pod.known).count();
    let _ = writeln!(out, "pods:    {} attached, {known} of them in the tables", pods.len());
    out += &forgotten_line(&status.forgotten);
    let _ = writeln!(out, "flows:   {}", flows_line(status, counters));
    let _ = writeln!(out, "dropped: {}", drops_line(counters));
    out += "\n`palisade show ports|pods|policies|drops|flows` has each in full; `palisade doctor` looks at the node.\n";
    out
}

fn ports_line(ports: &[PortInfo]) -> String {
    let of = |state: PortState| ports.iter().filter(|port| port.state == state).count();
    let states = [(PortState::Up, "up"), (PortState::Down, "down"), (PortState::Unguarded, "UNGUARDED")];
    let counts = states.into_iter().map(|(state, name)| (of(state), name));
    let counts: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let offloaded = ports.iter().filter(|port| port.report.offloaded).count();
    let refused = ports.iter().filter(|port| port.report.not_offloaded.is_some()).count();
    let offloaded = match (offloaded, refused) {
        (0, 0) => String::new(),
        (offloaded, 0) => format!(", {offloaded} offloaded"),
        (offloaded, refused) => {
            format!(", {offloaded} of {} offloaded (`palisade doctor` says why)", offloaded + refused)
        }
    };
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") + &offloaded }
}

fn flows_line(status: &Status, counters: &CountersReport) -> String {
    let flows: u64 = counters.ports.values().map(|port| port.flows_assured + port.flows_unassured).sum();
    let by_kernel = counters.offload.map(|offload| format!(", {} in the kernel", grouped(offload.flows)));
    let capacity = grouped(status.flow_table.capacity as u64);
    format!("{} of {capacity}{}", grouped(flows), by_kernel.unwrap_or_default())
}

fn drops_line(counters: &CountersReport) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in counters.ports.values().flat_map(|port| &port.drops) {
        *sums.entry(reason).or_default() += count;
    }
    let lost = counters.ports.values().flat_map(|port| port.lost.values()).sum::<u64>();
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut words: Vec<String> = sums
        .iter()
        .take(REASONS_MAX)
        .map(|(reason, count)| format!("{reason} {}", grouped(*count)))
        .collect();
    match sums.len().saturating_sub(REASONS_MAX) {
        0 => {}
        1 => words.push("1 more reason".to_owned()),
        more => words.push(format!("{more} more reasons")),
    }
    if lost > 0 {
        words.push(format!("lost before the switch {}", grouped(lost)));
    }
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::PortCounters;

    #[test]
    fn the_most_frequent_drops_come_first_and_losses_last() {
        let drops = [("a", 1), ("b", 5000), ("c", 3), ("d", 2), ("e", 4)];
        let drops = drops.map(|(reason, count)| (reason.to_owned(), count)).into();
        let lost = [("ring-full".to_owned(), 9)].into();
        let port = PortCounters { drops, lost, ..PortCounters::default() };
        let counters = CountersReport { ports: [("p".to_owned(), port)].into(), ..CountersReport::default() };
        assert_eq!(drops_line(&counters), "b 5,000, e 4, c 3, d 2, 1 more reason, lost before the switch 9");
        assert_eq!(drops_line(&CountersReport::default()), "nothing");
    }
}
