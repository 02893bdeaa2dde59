//! Benchmarks scheduling overhead. Submissions on the null devices complete at once, so only the cores,
//! mailboxes and threads take time. Run it with `cargo bench -p ragtag-scheduler`.
//!
//! "Saturated": the number of decoding sequences is large enough that every stage always has a micro-batch
//! and all threads of the machine are busy. The benchmark prints the time per stage and micro-batch.
//!
//! "Alone": a single sequence decodes, so each step is a round trip through all threads. The benchmark prints
//! the time per step.

#![allow(missing_docs)]
#![allow(clippy::print_stdout)] // a benchmark prints its results

#[path = "../tests/support/null.rs"]
mod null;

use null::{Zero, pipeline};
use ragtag_scheduler::{Flow, Job, Pipeline, PipelineOptions, Reply, Request};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Runs `sequences` sequences of `tokens` tokens each. Returns the elapsed time and the number of
/// micro-batches.
fn measure(stages: usize, sequences: usize, tokens: u32) -> (Duration, u64) {
    let hosts: Vec<_> = (0..stages).collect();
    let options = PipelineOptions::new(stages, 4096, 256 * sequences as u32, 16);
    let pipeline = Pipeline::start(pipeline(&hosts), &options, |_| {}).expect("null devices start");
    let (send, ended) = channel();
    let run = |tokens| {
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
    };
    run(100);
    let before = pipeline.stats().micro_batches;
    let start = Instant::now();
    run(tokens);
    (start.elapsed(), pipeline.stats().micro_batches - before)
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
}
