//! The packet path: a table of stages, each a pass over the batch.
//!
//! ```text
//! receive -> decapsulate -> parse -> anti-spoof -> local delivery -> translate -> lookup -> advance -> classify -> fragments -> police
//!         -> rewrite -> count -> transmit
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
mod police;
pub(super) mod policy_batch;
mod rewrite;
pub(super) mod route;
pub(super) mod stage_state;
pub(super) mod translate;
mod tunnel;
mod verify_checksum;

use std::ops::Range;

use self::advance::{advance, advance_collided};
use self::anti_spoof::anti_spoof;
use self::batch::{Batch, Disposition};
use self::classify::classify;
use self::context::Context;
use self::flow::offload::offload;
use self::fragments::classify_fragments;
use self::gateway::deliver_locally;
use self::lookup::lookup;
use self::parse::parse;
use self::parse::virtio_header::check_virtio_headers;
use self::police::police;
use self::rewrite::rewrite;
use self::stage_state::StageState;
use self::translate::{finish_translations, restore_destinations, translate};
use self::tunnel::{decapsulate, encapsulate_answers};
use super::packet::Kind;
use super::{DropReason, DropSample, SAMPLE_BYTES_MAX};

/// Most front ends of one backend to which one batch opens flows from one port of a client.
const COLLISION_ROUNDS: usize = 4;

/// Takes a batch through all stages, and calls `done` with the name of each and the batch after it. Afterwards no disposition
/// is pending.
#[inline]
pub(crate) fn run(
    batch: &mut Batch,
    context: &Context<'_>,
    state: StageState<'_>,
    mut done: impl FnMut(&'static str, &Batch),
) {
    let mut done = |stage, batch: &mut Batch| {
        if batch.notes.is_on() {
            let frames = batch.len();
            batch.notes.note(stage, &batch.dispositions[..frames]);
        }
        done(stage, batch);
    };
    let StageState {
        translator,
        lookups,
        policy_batch,
        worker_state,
        rate_limits,
        fragments,
        transmit_credit,
        free,
    } = state;
    decapsulate(batch, context);
    parse(batch, context);
    if batch.has_virtio_headers {
        check_virtio_headers(batch, context);
    }
    done("parse", batch);
    anti_spoof(batch, context);
    done("anti-spoof", batch);
    if batch.has_others {
        deliver_locally(batch, context);
    }
    done("local-delivery", batch);
    translate(batch, context, translator);
    done("translate", batch);
    lookup(batch, context, lookups);
    done("lookup", batch);
    advance(batch, context, lookups, policy_batch, worker_state, rate_limits, translator);
    done("advance", batch);
    if batch.notes.is_on() {
        batch.notes.note_new_flows(policy_batch.places());
    }
    if !policy_batch.is_empty() {
        classify(batch, context, lookups, policy_batch, worker_state, rate_limits, translator);
    }
    for _ in 0..COLLISION_ROUNDS {
        if translator.collided.is_empty() {
            break;
        }
        advance_collided(batch, context, lookups, policy_batch, worker_state, rate_limits, translator);
        if batch.notes.is_on() {
            batch.notes.note_new_flows(policy_batch.places());
        }
        classify(batch, context, lookups, policy_batch, worker_state, rate_limits, translator);
    }
    while let Some(i) = translator.collided.pop_front() {
        batch.drop(i.into(), DropReason::ServiceCollision);
    }
    done("classify", batch);
    if batch.has_fragments {
        classify_fragments(batch, context, lookups, fragments, rate_limits);
    }
    done("fragments", batch);
    if context.snapshot.has_policers && context.counted_by.is_some() {
        police(batch, context);
    }
    done("police", batch);
    finish_translations(batch, context);
    rewrite(batch, context, transmit_credit, free);
    offload(batch, context);
    done("rewrite", batch);
    count(batch, context);
    batch.denied_replies.clear();
    restore_destinations(batch, context);
    // Samples of drops have the frames themselves.
    if context.snapshot.rejects || batch.has_unserved || !batch.unknown_segments.is_empty() {
        batch.has_unserved = false;
        gateway::reject::answer_denied(batch, context, rate_limits);
    }
    encapsulate_answers(batch, context, free);
    done("count", batch);
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
    let columns = batch.dispositions[run.clone()].iter().zip(&batch.bytes[run.clone()]);
    for (i, (disposition, frame_bytes)) in run.zip(columns) {
        match *disposition {
            Disposition::Forward(_) => forwarded += 1,
            Disposition::Consumed => port.consumed.add(1),
            Disposition::Dropped(reason) => {
                port.drop(reason);
                if context.stats.drop_samples.takes(reason, context.now_ms) {
                    sample_drop(batch, i, reason, context);
                }
            }
            Disposition::Held => continue, // It is counted when it has a disposition.
            Disposition::Pending | Disposition::Routed => {
                unreachable!("rewrite leaves no disposition pending")
            }
        }
        received += 1;
        bytes += u64::from(*frame_bytes);
    }
    context.stats.received.add(received);
    port.received.add(received);
    port.received_bytes.add(bytes);
    port.forwarded.add(forwarded);
}

/// Keeps the beginning of a dropped frame for the control side.
#[inline(never)]
fn sample_drop(batch: &Batch, i: usize, reason: DropReason, context: &Context<'_>) {
    let data = context.umem.data(&batch.frames[i]);
    let head_bytes = data.len().min(SAMPLE_BYTES_MAX);
    let mut head = [0; SAMPLE_BYTES_MAX];
    head[..head_bytes].copy_from_slice(&data[..head_bytes]);
    let packet = &batch.packets[i];
    let is_by_policy = matches!(reason, DropReason::PolicyEgress | DropReason::PolicyIngress);
    // A later fragment has no ports: its first fragment was evaluated.
    let is_evaluated = is_by_policy && packet.kind != Kind::LaterFragment;
    let flow = (batch.answers[i] || is_evaluated).then(|| packet.flow());
    let is_reply = batch.denied_replies.contains(&(i as u16));
    context.stats.drop_samples.add(DropSample {
        at_ms: context.now_ms,
        port: batch.in_ports[i],
        reason,
        generation: context.snapshot.generation,
        frame_bytes: batch.bytes[i],
        flow,
        evaluated: flow.filter(|_| is_evaluated).map(|flow| if is_reply { flow.reversed() } else { flow }),
        head,
        head_bytes: head_bytes as u8,
    });
}
