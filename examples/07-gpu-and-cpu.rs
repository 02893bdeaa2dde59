//! Runs one model on all GPUs and the CPU together.
//!
//! Demonstrates a pipeline over the devices of the machine: each device holds an equal share of the layers.
//! Without a GPU, the first software device takes its place. Without one, the CPU serves as two devices. The
//! program prints the stages with their devices, a tale, the speed, and the transfers between the stages with
//! their route.
//!
//! ```sh
//! cargo run --release --example 07-gpu-and-cpu
//! cargo run --release --example 07-gpu-and-cpu -- model.gguf
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{
    AdapterKind, DeviceOptions, Devices, Engine, EngineOptions, Generation, Isolation, LinkOptions,
    LinkReport, Model, Planner,
};
use std::time::Instant;

fn main() -> ragtag::Result<()> {
    let isolation = Isolation::start();
    let model = match std::env::args().nth(1) {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    let labels = choose(&isolation);
    let mut options = DeviceOptions::selecting(labels.join(",")).isolated(&isolation);
    options.cpu_devices = labels.iter().filter(|label| label.starts_with("cpu:")).count() as u32;
    let devices = Devices::probe(&options)?;

    // Without a probe, the plan would use only host memory between the devices.
    let links = LinkReport::run(&devices, &LinkOptions::quick(None), &|_, _| ())?;
    // A short context fits into the memory of every GPU.
    let split = equal_shares(model.graph().segment_count(), &labels).parse()?;
    let planner = Planner::new(&model).devices(&devices).probed(&links).context(256).split(split);
    let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
    let stages = &engine.plan().stages;
    for (stage, running) in stages.iter().zip(engine.stages().iter()) {
        println!("segments {} on {} ({})", stage.segments, stage.device, running.adapter.name);
    }

    let prompt = "Once upon a time";
    let generation = Generation { max_tokens: 32, ignore_end: true, ..Generation::greedy() };
    let start = Instant::now();
    let text = engine.session().generate(prompt, &generation)?.blocking_text()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{prompt}{text}\n");

    let stats = engine.stats();
    println!("{} tokens at {:.1} tokens/s", stats.new_tokens, stats.new_tokens as f64 / seconds);
    for ((edge, routes), ends) in stats.edges.iter().zip(engine.plan().routes()).zip(stages.windows(2)) {
        let (from, to) = (&ends[0].device, &ends[1].device);
        let route = routes.iter().map(|route| route.name()).collect::<Vec<_>>().join(", else ");
        let [prefill, decode] =
            [edge.prefill, edge.decode].map(|crossed| crossed.crossings + crossed.untimed);
        println!("{from} → {to}: {prefill} transfers of prompts and {decode} of tokens, route {route}");
    }
    Ok(())
}

/// Chooses all GPUs, each through its preferred API, and the CPU.
fn choose(isolation: &Isolation) -> Vec<String> {
    let found = Devices::survey(&DeviceOptions::default().isolated(isolation));
    let preferred = found.devices.iter().filter_map(|device| found.adapter(device.adapters.first()?));
    let (mut gpus, mut software) = (Vec::new(), Vec::new());
    for adapter in preferred {
        match adapter.kind {
            AdapterKind::Discrete | AdapterKind::Integrated => gpus.push(adapter.label()),
            AdapterKind::Software => software.push(adapter.label()),
            AdapterKind::Cpu => {}
        }
    }
    if !gpus.is_empty() {
        return [gpus, vec!["cpu:0".into()]].concat();
    }
    match software.into_iter().next() {
        Some(software) => {
            println!("no GPU: {software} computes on the CPU and takes its place");
            vec![software, "cpu:0".into()]
        }
        None => {
            println!("no GPU: the CPU is both devices");
            vec!["cpu:0".into(), "cpu:1".into()]
        }
    }
}

/// Divides the segments evenly among the devices, such as `0-6=cuda:0,7-13=cpu:0`.
fn equal_shares(segments: usize, labels: &[String]) -> String {
    let stages = labels.len().min(segments);
    let share = |at: usize| {
        let (first, last) = (at * segments / stages, (at + 1) * segments / stages - 1);
        format!("{first}-{last}={}", labels[at])
    };
    (0..stages).map(share).collect::<Vec<_>>().join(",")
}
