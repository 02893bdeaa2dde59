//! Sends sixteen prompts through a two-stage pipeline, first one at a time, then four at a time, and then all
//! at once.
//!
//! Demonstrates that sessions are cheap and concurrent. With several sequences in flight, both stages work at
//! the same time. For sequences that decode in the same micro-batch, a stage reads its weights only once. The
//! output shows that the tokens per second rise with the number of sequences in flight. On a single core, the
//! stages cannot overlap, so the gain comes only from shared reads of weights.
//!
//! ```sh
//! cargo run --release --example 04-many-sequences
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Event, Generation, Model, Planner, Session};
use std::time::Instant;
use tokio::task::JoinSet;

const PROMPTS: [&str; 4] = ["Once upon a time", "The old king", "In a dark forest", "A poor fisherman"];
const SEQUENCES: usize = 16;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::bundled()?;
    let mut options = DeviceOptions::selecting("cpu");
    (options.cpu_devices, options.cpu_threads) = (2, Some(1));
    let devices = Devices::probe(&options)?;
    // The plan reserves memory for all sequences at once.
    let planner = Planner::new(&model).devices(&devices).sequences(SEQUENCES as u32).context(256);
    let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
    println!("{}", engine.plan().split());

    run(&engine.session(), SEQUENCES).await?; // warm-up: touches pages, wakes threads
    for in_flight in [1, 4, 16] {
        let start = Instant::now();
        let tokens = run(&engine.session(), in_flight).await?;
        let speed = f64::from(tokens) / start.elapsed().as_secs_f64();
        println!("{in_flight:2} in flight: {tokens} tokens, {speed:6.0} tokens/s");
    }
    Ok(())
}

/// Runs all sequences, `in_flight` of them at a time. Returns the total number of new tokens.
async fn run(session: &Session, in_flight: usize) -> Result<u32, Box<dyn std::error::Error>> {
    let generation = Generation { max_tokens: 100, ignore_end: true, ..Generation::default() };
    let mut workers = JoinSet::new();
    for worker in 0..in_flight {
        let (session, generation) = (session.clone(), generation.clone());
        workers.spawn(async move {
            let mut tokens = 0;
            for sequence in (worker..SEQUENCES).step_by(in_flight) {
                let mut stream = session.generate(PROMPTS[sequence % PROMPTS.len()], &generation)?;
                while let Event::Token { .. } = stream.next_event().await? {
                    tokens += 1;
                }
            }
            Ok::<u32, ragtag::Error>(tokens)
        });
    }
    workers.join_all().await.into_iter().try_fold(0, |sum, tokens| Ok(sum + tokens?))
}
