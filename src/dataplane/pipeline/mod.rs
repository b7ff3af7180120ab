//! The packet path: a table of stages, each a pass over the batch.
//!
//! ```text
//! receive -> parse -> anti-spoof -> local delivery -> lookup -> advance -> classify -> fragments -> rewrite -> count -> transmit
//! ```
//!
//! The worker does `receive` and `transmit`, which use rings. A stage does not allocate, lock, log, read a clock
//! or call the kernel. After the stages every frame has one disposition.
//!
//! The stage `advance` routes the packets of new flows before `classify` evaluates them. Policy needs the
//! destination pod, which the route gives, and a packet without a route must not take a slot in conntrack.
//!
//! Each stage has a fast path for nearly all packets, and functions out of line for the others. The arguments of
//! a stage name all that it writes; [`Context`] is what it reads.
//!
//! `docs/architecture.md`, section "The walk of a frame", lists the functions that a packet takes.

mod advance;
pub(super) mod anti_spoof;
pub(super) mod batch;
mod classify;
pub(super) mod context;
pub(super) mod flow;
mod fragments;
pub(super) mod gateway;
mod lookup;
mod parse;
mod parse_fast;
pub(super) mod policy_batch;
mod rewrite;
pub(super) mod route;
pub(super) mod stage_state;
mod verify_checksum;

use std::ops::Range;

use self::advance::advance;
use self::anti_spoof::anti_spoof;
use self::batch::{Batch, Disposition};
use self::classify::classify;
use self::context::Context;
use self::fragments::classify_fragments;
use self::gateway::deliver_locally;
use self::lookup::lookup;
use self::parse::parse;
use self::parse::virtio_header::check_virtio_headers;
use self::rewrite::rewrite;
use self::stage_state::StageState;

/// Takes a batch through all stages, and calls `done` with the name of each after it. Afterwards no disposition
/// is pending.
#[inline]
pub(crate) fn run(
    batch: &mut Batch,
    context: &Context<'_>,
    state: StageState<'_>,
    mut done: impl FnMut(&'static str),
) {
    let StageState { lookups, policy_batch, worker_state, rate_limits, fragments, transmit_credit, free } =
        state;
    parse(batch, context);
    if batch.has_virtio_headers {
        check_virtio_headers(batch, context);
    }
    done("parse");
    anti_spoof(batch, context);
    done("anti-spoof");
    if batch.has_others {
        deliver_locally(batch, context);
    }
    done("local-delivery");
    lookup(batch, context, lookups);
    done("lookup");
    advance(batch, context, lookups, policy_batch, worker_state, rate_limits);
    done("advance");
    if !policy_batch.is_empty() {
        classify(batch, context, lookups, policy_batch, worker_state);
    }
    done("classify");
    if batch.has_fragments {
        classify_fragments(batch, context, lookups, fragments, rate_limits);
    }
    done("fragments");
    rewrite(batch, context, transmit_credit, free);
    done("rewrite");
    count(batch, context);
    done("count");
}

/// Counts the disposition on each frame, at the port that the frame came from.
fn count(batch: &Batch, context: &Context<'_>) {
    context.stats.batches.add(1);
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        count_run(batch, run, context);
    }
}

fn count_run(batch: &Batch, run: Range<usize>, context: &Context<'_>) {
    let port = context.stats.port(batch.in_ports[run.start]);
    let (mut received, mut bytes, mut forwarded) = (0, 0, 0);
    for (disposition, frame_bytes) in batch.dispositions[run.clone()].iter().zip(&batch.bytes[run]) {
        match *disposition {
            Disposition::Forward(_) => forwarded += 1,
            Disposition::Consumed => port.consumed.add(1),
            Disposition::Dropped(reason) => port.drop(reason),
            Disposition::Held => continue, // It is counted when it has a disposition.
            Disposition::Pending => unreachable!("rewrite leaves no disposition pending"),
        }
        received += 1;
        bytes += u64::from(*frame_bytes);
    }
    context.stats.received.add(received);
    port.received.add(received);
    port.received_bytes.add(bytes);
    port.forwarded.add(forwarded);
}
