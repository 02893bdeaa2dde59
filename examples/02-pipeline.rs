//! Runs one model on two devices. The first device holds the first layers, and the second device holds the
//! rest.
//!
//! Demonstrates how to split the CPU into two devices, and shows the content of a plan. The generated text
//! does not depend on the cut between the stages. The program prints the two stages with their segments and
//! memory, and the planner's reasons. It then prints a tale, and the same tale from a pipeline with another
//! cut.
//!
//! ```sh
//! cargo run --release --example 02-pipeline
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Plan, Planner, Sampling};

fn main() -> ragtag::Result<()> {
    let model = Model::bundled()?;
    // Each device has one thread, so that the planner uses the same figures on every machine.
    let mut options = DeviceOptions::selecting("cpu");
    (options.cpu_devices, options.cpu_threads) = (2, Some(1));
    let devices = Devices::probe(&options)?;

    let plan = Planner::new(&model).devices(&devices).plan()?;
    for (number, stage) in plan.stages.iter().enumerate() {
        let memory = stage.memory_bytes.total as f64 / f64::from(1 << 20);
        println!("stage {number}: segments {} on {}, {memory:.1} MiB", stage.segments, stage.device);
    }
    for reason in &plan.reasons {
        println!("- {reason}");
    }
    let tale = tell(&model, &devices, &plan)?;
    println!("\n{tale}\n");

    // Cut the same segments manually: the embedding and three blocks, then the rest.
    let last = model.graph().segment_count() - 1;
    let split = format!("0-3=cpu:0,4-{last}=cpu:1").parse()?;
    let by_hand = Planner::new(&model).devices(&devices).split(split).plan()?;
    let again = tell(&model, &devices, &by_hand)?;
    println!("cut as {}: {}", by_hand.split(), if again == tale { "the same tale" } else { "another tale" });
    Ok(())
}

fn tell(model: &Model, devices: &Devices, plan: &Plan) -> ragtag::Result<String> {
    let engine = Engine::start_exact(model, devices, plan, EngineOptions::default())?;
    let prompt = "There was once a poor miller";
    let sampling = Sampling { seed: Some(0), ..Sampling::default() };
    let generation = Generation { max_tokens: 120, sampling, ..Generation::default() };
    let text = engine.session().generate(prompt, &generation)?.blocking_text()?;
    Ok(format!("{prompt}{text}"))
}
