//! Generates text on one device and prints it token by token.
//!
//! Demonstrates the steps from a model to text (open, probe, plan, start, generate) and how to stream tokens.
//! The program prints a tale token by token, and then a line with the number of tokens, the speed and the
//! reason for the end.
//!
//! ```sh
//! cargo run --release --example 01-generate
//! cargo run --release --example 01-generate -- model.gguf "The old woman"
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Event, Generation, Model, Planner, Sampling};
use std::io::Write;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = match arguments.next() {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    let prompt = arguments.next().unwrap_or("Once upon a time".into());

    // Select the CPU as a single device. Without a selection, Ragtag would use every GPU that a backend
    // finds.
    let options = DeviceOptions::selecting("cpu");
    let devices = Devices::probe(&options)?;
    println!("{}\n", devices.start_line());

    let planner = Planner::new(&model).devices(&devices);
    let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;

    let sampling = Sampling { temperature: 0.8, seed: Some(7), ..Sampling::default() };
    let generation = Generation { max_tokens: 200, sampling, ..Generation::default() };
    let mut stream = engine.session().generate(prompt.as_str(), &generation)?;

    print!("{prompt}");
    loop {
        match stream.next_event().await? {
            Event::Token { text, .. } => {
                print!("{text}");
                std::io::stdout().flush()?;
            }
            Event::Finished(summary) => {
                let (tokens, speed) = (summary.new_tokens, summary.decode_tokens_per_s());
                println!("\n\n{tokens} tokens at {speed:.0} tokens/s; ended with: {}", summary.reason);
                return Ok(());
            }
        }
    }
}
