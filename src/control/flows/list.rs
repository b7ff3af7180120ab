//! List of flows, their holders, and flush.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::selection::{PodNames, Selection};
use crate::control::ApiError;
use crate::control::protocol::{FlowHolder, FlowQuery, FlowRecord, FlowSort, FlowsEnded, FlowsReport};
use crate::control::state::State;
use crate::dataplane::{FlowInfo, Flows};
use crate::ids::PortId;
use crate::limits::{FLOWS_LISTED, FLOWS_LISTED_MAX};
use crate::net::flow::FlowKey;

/// Lists the flows that `query` selects, or their holders.
pub(in crate::control) fn list(
    query: &FlowQuery,
    state: &State,
    flows: &dyn Flows,
) -> Result<FlowsReport, ApiError> {
    refuse("all", query.all, "a list needs no leave for all flows: without a filter it has all")?;
    let limit = query.limit.unwrap_or(FLOWS_LISTED);
    if limit > FLOWS_LISTED_MAX {
        let reason = format!("a list has {FLOWS_LISTED_MAX} flows at most: give a filter for others");
        return Err(ApiError::Field { field: "limit", reason });
    }
    let selection = Selection::new(query, state)?;
    let names = PodNames::new(state);
    let mut report = FlowsReport { capacity: flows.report().capacity as u64, ..FlowsReport::default() };
    let (mut first, mut holders) = (First::new(query.sort, limit), Holders::default());
    flows.for_each(&mut |flow| {
        report.total += 1;
        if selection.selects(&flow.key, Some(&flow.state)) {
            report.matched += 1;
            if query.by_pod {
                holders.add(&flow, &names);
            } else {
                first.add(flow);
            }
        }
        true
    });
    let describe = |mut flow: FlowInfo| {
        [flow.egress, flow.ingress] = flows.origins(&flow.key);
        let [source_pod, destination_pod] = names.ends(&flow.key);
        FlowRecord { flow, source_pod, destination_pod }
    };
    report.flows = first.into_flows().map(describe).collect();
    report.holders = holders.named(state, &names);
    Ok(report)
}

/// Ends the flows that `query` selects. The next packet of each is one of no known flow.
pub(in crate::control) fn flush(
    query: &FlowQuery,
    state: &State,
    flows: &dyn Flows,
) -> Result<FlowsEnded, ApiError> {
    refuse("limit", query.limit.is_some(), "a flush ends all flows that the filters select")?;
    refuse("sort", query.sort != FlowSort::default(), "a flush has no order")?;
    refuse("by_pod", query.by_pod, "a flush lists nothing")?;
    match (query.has_filter(), query.all) {
        (false, false) => return Err(ApiError::FlushOfAll),
        (true, true) => refuse("all", true, "a filter is given too: leave one of both out")?,
        _ => {}
    }
    let selection = Selection::new(query, state)?;
    let mut wanted = |flow: &FlowInfo| selection.selects(&flow.key, Some(&flow.state));
    Ok(FlowsEnded { ended: flows.end(&mut wanted)? })
}

fn refuse(field: &'static str, is_given: bool, reason: &str) -> Result<(), ApiError> {
    if is_given { Err(ApiError::Field { field, reason: reason.to_owned() }) } else { Ok(()) }
}

/// First flows of an order, at most a number of them.
struct First {
    sort: FlowSort,
    limit: usize,
    /// The last of them is on top.
    flows: BinaryHeap<Reverse<Ranked>>,
}

/// Flow with its place in the order: the largest is the first. Flows alike stand in the order of their keys.
struct Ranked {
    place: (u64, Reverse<FlowKey>),
    flow: FlowInfo,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.place == other.place
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

impl First {
    fn new(sort: FlowSort, limit: usize) -> First {
        First { sort, limit, flows: BinaryHeap::new() }
    }

    fn add(&mut self, flow: FlowInfo) {
        let number = match self.sort {
            FlowSort::Bytes => flow.bytes + flow.reply_bytes,
            FlowSort::Packets => flow.packets + flow.reply_packets,
            // A flow without a known age is older than the process.
            FlowSort::Age => flow.age_ms.unwrap_or(u64::MAX),
            FlowSort::Idle => flow.idle_ms,
        };
        let ranked = Ranked { place: (number, Reverse(flow.key)), flow };
        if self.flows.len() < self.limit {
            self.flows.push(Reverse(ranked));
        } else if let Some(mut last) = self.flows.peek_mut()
            && ranked > last.0
        {
            last.0 = ranked;
        }
    }

    fn into_flows(self) -> impl Iterator<Item = FlowInfo> {
        self.flows.into_sorted_vec().into_iter().map(|ranked| ranked.0.flow)
    }
}

/// Flows by the port that opened them.
#[derive(Default)]
struct Holders(BTreeMap<PortId, FlowHolder>);

impl Holders {
    fn add(&mut self, flow: &FlowInfo, names: &PodNames<'_>) {
        let holder = self.0.entry(flow.port).or_default();
        holder.flows += 1;
        holder.assured += u64::from(flow.assured);
        holder.packets += flow.packets + flow.reply_packets;
        holder.bytes += flow.bytes + flow.reply_bytes;
        if let Some(port) = names.port_of(flow.key.dst) {
            self.0.entry(port).or_default().accepted += 1;
        }
    }

    fn named(self, state: &State, names: &PodNames<'_>) -> Vec<FlowHolder> {
        let named = self.0.into_iter().map(|(id, holder)| {
            let port = state.port_name(id).cloned().unwrap_or_else(|| format!("closed port {id}"));
            FlowHolder { port, pod: names.behind(id), ..holder }
        });
        let mut holders: Vec<FlowHolder> = named.collect();
        holders.sort_by_key(|holder| Reverse((holder.flows, holder.accepted)));
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;
    use crate::net::flow::Protocol;

    fn flow(number: u64, bytes: u64) -> FlowInfo {
        FlowInfo {
            key: FlowKey {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                protocol: Protocol::TCP,
                src_port: number as u16,
                dst_port: 80,
            },
            state: "established".into(),
            assured: true,
            offloaded: false,
            port: PortId(1),
            generation: Generation(1),
            age_ms: Some(number).filter(|number| *number != 3),
            idle_ms: 1000 - number,
            packets: bytes / 100,
            bytes,
            reply_packets: 1,
            reply_bytes: 7,
            service: None,
            masquerade: None,
            egress: None,
            ingress: None,
        }
    }

    fn numbers(sort: FlowSort, limit: usize) -> Vec<u16> {
        let mut first = First::new(sort, limit);
        let flows = [(1, 500), (2, 900), (3, 500), (4, 100), (5, 900)];
        flows.into_iter().for_each(|(n, bytes)| first.add(flow(n, bytes)));
        assert!(first.flows.len() <= limit);
        first.into_flows().map(|flow| flow.key.src_port).collect()
    }

    #[test]
    fn the_first_flows_of_each_order_are_kept_and_no_more_than_the_limit() {
        assert_eq!(numbers(FlowSort::Bytes, 9), [2, 5, 1, 3, 4]);
        assert_eq!(numbers(FlowSort::Bytes, 2), [2, 5]);
        assert_eq!(numbers(FlowSort::Packets, 3), [2, 5, 1]);
        assert_eq!(numbers(FlowSort::Age, 2), [3, 5], "an unknown age is the longest");
        assert_eq!(numbers(FlowSort::Idle, 2), [1, 2]);
        assert_eq!(numbers(FlowSort::Idle, 0), [0_u16; 0]);
    }
}
