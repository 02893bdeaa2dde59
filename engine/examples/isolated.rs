//! Runs a pipeline with this crate alone, and probes drivers in child processes.
//!
//! Demonstrates what a program needs to embed Ragtag, such as a server. A driver that crashes while it lists its
//! devices does not end the program. The program prints the selected devices and a tale.
//!
//! ```sh
//! cargo run --release -p ragtag-engine --example isolated
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag_engine::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Isolation, Model, Planner};

fn main() -> ragtag_engine::Result<()> {
    // In a child process, probes a driver and ends here.
    let isolation = Isolation::start();
    let model = Model::bundled()?;
    let mut options = DeviceOptions::selecting("cpu").isolated(&isolation);
    options.cpu_devices = 2;
    let devices = Devices::probe_all(&options)?;
    println!("{}", devices.start_line());
    let planner = Planner::new(&model).devices(&devices);
    let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
    let generation = Generation { max_tokens: 40, ..Generation::greedy() };
    println!("{}", engine.session().generate("Once upon a time", &generation)?.blocking_text()?);
    Ok(())
}
