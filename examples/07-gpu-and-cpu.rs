//! Runs one model on a GPU and the CPU together. Without a GPU, the CPU serves as two devices.
//!
//! Demonstrates a pipeline over two kinds of devices: the first half of the model runs on the GPU, and the
//! second half on the CPU. The program prints the stages with their devices, a tale, the speed, and the
//! transfers between the stages with their route.
//!
//! ```sh
//! cargo run --release --example 07-gpu-and-cpu
//! cargo run --release --example 07-gpu-and-cpu -- model.gguf
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{AdapterKind, DeviceOptions, Devices, Engine, EngineOptions, Generation, LinkOptions};
use ragtag::{LinkReport, Model, Planner};
use std::time::Instant;

fn main() -> ragtag::Result<()> {
    let model = match std::env::args().nth(1) {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    // The survey lists the GPUs of all APIs, the usually fastest API first.
    let found = Devices::survey(&DeviceOptions::default());
    let is_gpu = |kind| matches!(kind, AdapterKind::Discrete | AdapterKind::Integrated);
    let gpu = found.adapters().find(|adapter| is_gpu(adapter.kind)).map(|adapter| adapter.label());
    let [first, second] = match gpu {
        Some(gpu) => [gpu, "cpu:0".into()],
        None => {
            println!("no GPU: the CPU is both devices");
            ["cpu:0".into(), "cpu:1".into()]
        }
    };
    let mut options = DeviceOptions::selecting(format!("{first},{second}"));
    options.cpu_devices = if first == "cpu:0" { 2 } else { 1 };
    let devices = Devices::probe(&options)?;

    let last = model.graph().segment_count() - 1;
    let half = last / 2;
    let split = format!("0-{half}={first},{}-{last}={second}", half + 1).parse()?;
    // Without a probe, the plan would use only host memory between the devices.
    let links = LinkReport::run(&devices, &LinkOptions::quick(None), &|_, _| ())?;
    // A short context fits into the memory of every GPU.
    let planner = Planner::new(&model).devices(&devices).probed(&links).context(256).split(split);
    let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
    for stage in engine.stages() {
        println!("segments {:?} on {} ({})", stage.segments, stage.adapter.label(), stage.adapter.name);
    }

    let prompt = "Once upon a time";
    let generation = Generation { max_tokens: 64, ignore_end: true, ..Generation::greedy() };
    let start = Instant::now();
    let text = engine.session().generate(prompt, &generation)?.blocking_text()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{prompt}{text}\n");

    let stats = engine.stats();
    println!("{} tokens at {:.1} tokens/s", stats.new_tokens, stats.new_tokens as f64 / seconds);
    for (edge, routes) in stats.edges.iter().zip(engine.plan().routes()) {
        let route = routes.iter().map(|route| route.name()).collect::<Vec<_>>().join(", else ");
        let [prefill, decode] =
            [edge.prefill, edge.decode].map(|crossed| crossed.crossings + crossed.untimed);
        println!("{first} → {second}: {prefill} transfers of prompts and {decode} of tokens, route {route}");
    }
    Ok(())
}
