//! Lets the planner choose among all devices for your model, and prints the plan with its reasons.
//!
//! Demonstrates the steps of `ragtag plan` and `ragtag run`: probe, measure, plan, start. The program lists the
//! devices, times the model's own layers on each of them, and prints the role of each device. The reasons name the
//! bottleneck and the best plan with each unused device. The last line compares the predicted with the measured
//! speed.
//!
//! ```sh
//! cargo run --release --example 10-plan-with-reasons -- model.gguf
//! cargo run --release --example 10-plan-with-reasons -- model.gguf cuda,vulkan,cpu
//! ```
//!
//! The second argument is a list of devices. By default, the planner chooses among all GPUs and the CPU. Software
//! devices compute on the CPU, too, so the planner considers them only by request. Without arguments, the program
//! uses the bundled model.

#![allow(clippy::print_stdout)] // examples print

use ragtag::{
    Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, Event, Generation,
    Isolation, Model, Plan, Planner, Summary,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A driver that crashes while it lists its devices does not end this program.
    let isolation = Isolation::start();
    let mut arguments = std::env::args().skip(1);
    let model = match arguments.next() {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    let requested = arguments.next().unwrap_or("auto,cpu".into());
    let devices = Devices::probe(&DeviceOptions::selecting(requested).isolated(&isolation))?;
    println!("{} with {} segments may run on:", model.name(), model.graph().segment_count());
    for (adapter, facts) in devices.selected().iter().zip(devices.facts()) {
        println!("  {:10} {}, {} free for plans", adapter.label(), adapter.name, size(facts.memory_bytes));
    }

    println!("timing its layers on each device (cached for later runs)");
    let calibration = Calibration::run(&model, &devices, &CalibrationOptions::default(), &|_, _| ())?;
    calibration.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    let planner = Planner::new(&model).devices(&devices).calibrated(&calibration);
    let plan = planner.plan()?;
    print_plan(&devices, &plan);

    let engine = Engine::start_exact(&model, &devices, &plan, EngineOptions::default())?;
    let summary = generate(&engine).await?;
    let (predicted, measured) = (plan.predicted.decode_tokens_per_s, summary.decode_tokens_per_s());
    println!("\ndecode: {predicted:.0} tokens/s predicted, {measured:.0} tokens/s measured");
    Ok(())
}

/// Prints the role of each device, and the reasons of the plan.
fn print_plan(devices: &Devices, plan: &Plan) {
    println!("\nthe plan (segment 0 is the embedding, the last one the head, the others are blocks):");
    for label in devices.labels() {
        let mut stages = plan.stages.iter().filter(|stage| stage.device == label).peekable();
        if stages.peek().is_none() {
            println!("  {label:10} not used");
        }
        for stage in stages {
            let (memory, ms) = (&stage.memory_bytes, stage.predicted.decode_us / 1e3);
            let memory = format!("{} of {}", size(memory.total), size(memory.available));
            println!("  {label:10} segments {}, {memory}, {ms:.2} ms per token", stage.segments);
        }
    }
    println!("\nwhy:");
    plan.reasons.iter().for_each(|reason| println!("  - {reason}"));
}

async fn generate(engine: &Engine) -> ragtag::Result<Summary> {
    let generation = Generation { max_tokens: 64, ignore_end: true, ..Generation::greedy() };
    let mut stream = engine.session().generate("Once upon a time", &generation)?;
    loop {
        if let Event::Finished(summary) = stream.next_event().await? {
            return Ok(summary);
        }
    }
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}
