//! Benchmarks scheduling overhead. Submissions on the null devices complete at once, so only the cores,
//! mailboxes and threads take time. Run it with `cargo bench -p ragtag-scheduler`.
//!
//! "Saturated": the number of decoding sequences is large enough that every stage always has a micro-batch
//! and all threads of the machine are busy. The benchmark prints the time per stage and micro-batch.
//!
//! "Alone": a single sequence decodes, so each step is a round trip through all threads. The benchmark prints
//! the time per step.
//!
//! "Coordinator": one stage decodes many sequences in one micro-batch. The benchmark prints the processor time of
//! the coordinator's thread per token. Only Linux reports the time of a thread.

#![allow(missing_docs)]
#![allow(clippy::print_stdout)] // a benchmark prints its results

#[path = "../tests/support/null.rs"]
mod null;

use null::{Zero, pipeline, wide_pipeline};
use ragtag_scheduler::{Flow, Job, Pipeline, PipelineOptions, Reply, Request};
use std::fs::read_to_string;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Runs `sequences` sequences of `tokens` tokens each. Returns the elapsed time and the number of
/// micro-batches.
fn measure(stages: usize, sequences: usize, tokens: u32) -> (Duration, u64) {
    let hosts: Vec<_> = (0..stages).collect();
    let options = PipelineOptions::new(stages, 4096, 256 * sequences as u32, 16);
    let pipeline = Pipeline::start(pipeline(&hosts), &options, |_| {}).expect("null devices start");
    generate(&pipeline, sequences, 100);
    let before = pipeline.stats().micro_batches;
    let start = Instant::now();
    generate(&pipeline, sequences, tokens);
    (start.elapsed(), pipeline.stats().micro_batches - before)
}

/// Runs `sequences` sequences of `tokens` tokens each in one stage. Returns the processor time of the coordinator's
/// thread per token in ns.
fn coordinator_ns(sequences: usize, tokens: u32) -> Option<f64> {
    let rows = sequences as u32;
    let options = PipelineOptions::new(1, 4096, 64 * rows, rows);
    let pipeline =
        Pipeline::start(wide_pipeline(&[0], rows), &options, |_| {}).expect("a null device starts");
    generate(&pipeline, sequences, 16);
    let before = coordinator_time_ns()?;
    generate(&pipeline, sequences, tokens);
    Some((coordinator_time_ns()? - before) as f64 / sequences as f64 / f64::from(tokens))
}

/// Returns the processor time of this process's coordinators so far. Reads the first number of `schedstat`, as
/// [the kernel's documentation](https://docs.kernel.org/scheduler/sched-stats.html) describes it.
fn coordinator_time_ns() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten().map(|thread| thread.path());
    let is_coordinator = |thread: &PathBuf| {
        read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("ragtag coord"))
    };
    let time = |thread: PathBuf| {
        read_to_string(thread.join("schedstat")).ok()?.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter(is_coordinator).map(time).sum()
}

/// Runs `sequences` sequences of `tokens` tokens each, and waits for their ends.
fn generate(pipeline: &Pipeline, sequences: usize, tokens: u32) {
    let (send, ended) = channel();
    for _ in 0..sequences {
        let send = send.clone();
        let reply = move |reply| {
            match reply {
                Reply::Finished(_) => send.send(()).expect("the receiver exists"),
                Reply::Failed(error) => panic!("{error}"),
                Reply::Token { .. } | Reply::Logits { .. } => {}
            }
            Flow::Go
        };
        pipeline.submit(Request::new([0], Job::generate(tokens, Zero), reply));
    }
    (0..sequences).for_each(|_| ended.recv().expect("every sequence ends"));
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("scheduling with devices that do nothing, {cores} cores, medians of 5");
    println!("stages  saturated, us per stage and micro-batch  alone, us per step");
    for stages in 1..=4 {
        let saturated = (0..5).map(|_| {
            let (time, micro_batches) = measure(stages, 4 * stages, 1000);
            time.as_secs_f64() * 1e6 / micro_batches as f64 / stages as f64
        });
        let alone = (0..5).map(|_| {
            let (time, micro_batches) = measure(stages, 1, 1000);
            time.as_secs_f64() * 1e6 / micro_batches as f64
        });
        println!("{stages:6}  {:40.2}  {:18.2}", median(saturated.collect()), median(alone.collect()));
    }
    println!("sequences  coordinator, ns per token");
    for sequences in [1, 64, 256, 1024, 4096] {
        let tokens = (1_000_000 / sequences as u32).min(900);
        match (0..5).map(|_| coordinator_ns(sequences, tokens)).collect() {
            Some(samples) => println!("{sequences:9}  {:25.0}", median(samples)),
            None => println!("{sequences:9}  {:>25}", "unknown"),
        }
    }
}
