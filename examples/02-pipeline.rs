//! Runs one model over two devices: the first holds the first layers, the second the rest.
//!
//! Shows: presenting the CPU as two devices, the content of a plan, and that the text does not depend on the
//! cut.
//! You should see: two stages with their segments and memory, the planner's reasons, a tale, and the same
//! tale again from a pipeline with another cut.
//!
//! ```sh
//! cargo run --release --example 02-pipeline
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Plan, Planner};

fn main() -> ragtag::Result<()> {
    let model = Model::bundled()?;
    // One thread each, so that the planner uses the same figures on every machine.
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

    // The same segments with a manual cut: the embedding and three blocks, then the rest.
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
    let generation = Generation { max_tokens: 120, ..Generation::default() };
    let text = engine.session().generate(prompt, &generation)?.blocking_text()?;
    Ok(format!("{prompt}{text}"))
}
