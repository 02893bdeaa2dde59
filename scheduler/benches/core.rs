//! Benchmarks the coordinator's core alone: each micro-batch ends at once, so only [`RunCore::step`] takes time.
//! Run it with `cargo bench -p ragtag-scheduler --bench core`. It prints the time per token, for several numbers
//! of decoding sequences in one decode group.

#![allow(missing_docs)]
#![allow(clippy::print_stdout)] // a benchmark prints its results

use ragtag_graph::execution::{Chunks, Eviction, KvUse, Reserve};
use ragtag_hal::{DeviceId, QueueKind, TimelineId};
use ragtag_scheduler::core::{
    Limits, Prompt, Return, RunAction, RunCore, RunEvent, RunShape, Sampled, SequenceId, Want,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tokens of a prompt, and generated tokens of a sequence.
const TOKENS: [u32; 2] = [16, 128];

fn shape(sequences: u32, kv_use: KvUse) -> RunShape {
    let rows = sequences.max(512);
    RunShape {
        stages: 1,
        decode_groups: 1,
        credits: 2,
        context: 4096,
        vocabulary: 1 << 16,
        has_picks: false,
        chunks: Chunks::fixed(rows),
        max_rows: rows,
        max_logit_rows: rows,
        max_sequences: rows,
        kv_blocks: 16 * sequences,
        kv_use,
        limits: Limits::default(),
        kv_ring: None,
        prefill_from: None,
        recompute_at: None,
    }
}

/// Runs `sequences` sequences with different prompts. Returns the time of all steps after the first token of each
/// sequence, and the number of tokens in this time.
fn measure(sequences: u32, kv_use: KvUse) -> (Duration, u64) {
    let mut core = RunCore::new(shape(sequences, kv_use)).expect("the shape is valid");
    let [prompt, max_new_tokens] = TOKENS;
    let (mut events, mut actions) = (VecDeque::new(), Vec::new());
    for sequence in 0..sequences {
        let want = Want::Generate { max_new_tokens, end_tokens: [].into() };
        let prompt = Prompt::new((0..prompt).map(|at| (sequence + at * 4096) % (1 << 16)).collect(), want);
        events.push_back(RunEvent::Submit { sequence: SequenceId(sequence.into()), prompt });
    }
    let (timeline, mut points) = (TimelineId { device: DeviceId(0), queue: QueueKind::Download }, 0);
    let (mut time, mut tokens, mut now) = (Duration::ZERO, 0, 0);
    while let Some(event) = events.pop_front() {
        now += 1000;
        let start = Instant::now();
        core.step(now, event, &mut actions).expect("the events are in order");
        let took = start.elapsed();
        if tokens >= u64::from(sequences) {
            time += took;
        }
        tokens += actions.iter().filter(|action| matches!(action, RunAction::Emit { .. })).count() as u64;
        for action in actions.drain(..) {
            match action {
                RunAction::Enter { path, micro_batch } => {
                    points += 1;
                    let ready = timeline.at(points);
                    let returned = Return { micro_batch: micro_batch.id, ready, rows: Default::default() };
                    events.extend([RunEvent::Return(returned), RunEvent::Progress { path, value: points }]);
                }
                RunAction::Collect { micro_batch } => {
                    let items = micro_batch.items.iter().filter(|item| item.logit_rows() > 0);
                    let token = |at: usize| Ok(((at as u64 * 31 + points) % (1 << 16)) as u32);
                    let sampled = items.enumerate().map(|(at, item)| Sampled {
                        sequence: item.sequence,
                        token: token(at),
                        stops: false,
                    });
                    let sampled = sampled.collect();
                    events.push_back(RunEvent::Collected { micro_batch: micro_batch.id, sampled });
                }
                _ => {}
            }
        }
    }
    (time, tokens - u64::from(sequences))
}

fn main() {
    println!("the coordinator's core alone, ns per token, least of 9 runs");
    println!("sequences  blocks reserved  blocks taken on demand  with prefixes in the cache");
    let uses = [(Reserve::Full, None), (Reserve::Grow, None), (Reserve::Grow, Some(Eviction::Lru))];
    for sequences in [1, 64, 256, 1024, 4096] {
        let [full, grow, prefixes] = uses.map(|(reserve, prefixes)| {
            let sample = |_| {
                let (time, tokens) = measure(sequences, KvUse { reserve, prefixes });
                time.as_secs_f64() * 1e9 / tokens as f64
            };
            (0..9).map(sample).fold(f64::MAX, f64::min)
        });
        println!("{sequences:9}  {full:15.0}  {grow:22.0}  {prefixes:26.0}");
    }
}
