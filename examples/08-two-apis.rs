//! Runs one model through two APIs, for example CUDA and Vulkan. Both may belong to the same GPU.
//!
//! Demonstrates that stages on different APIs form one pipeline, and that it generates the same text as each
//! API alone. Uses exact activations, so that rounding does not depend on the device. If the machine has only
//! one API, the program says so and uses two devices of this API. It prints the devices, the route between
//! them, and the text of each API alone and of both together.
//!
//! ```sh
//! cargo run --release --example 08-two-apis
//! cargo run --release --example 08-two-apis -- model.gguf
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{Activations, AdapterKind, DeviceOptions, Devices, Engine, EngineOptions, Generation};
use ragtag::{Isolation, KvType, Model, Planner};

fn main() -> ragtag::Result<()> {
    let isolation = Isolation::start();
    let model = match std::env::args().nth(1) {
        Some(path) => Model::open(path)?,
        None => Model::bundled()?,
    };
    let (devices, [first, second]) = choose(&isolation)?;
    let last = model.graph().segment_count() - 1;
    let half = last / 2;
    let alone = generate(&model, &devices, &format!("0-{last}={first}"))?;
    let other = generate(&model, &devices, &format!("0-{last}={second}"))?;
    let both = generate(&model, &devices, &format!("0-{half}={first},{}-{last}={second}", half + 1))?;
    println!("\n{both}\n");
    println!("{first} alone: {}", if alone == both { "the same text" } else { &alone });
    println!("{second} alone: {}", if other == both { "the same text" } else { &other });
    Ok(())
}

/// Chooses the first device of two APIs. Prefers GPUs to software devices, and these to the CPU.
fn choose(isolation: &Isolation) -> ragtag::Result<(Devices, [String; 2])> {
    let found = Devices::survey(&DeviceOptions::default().isolated(isolation));
    let mut adapters: Vec<_> = found.adapters().collect();
    adapters.sort_by_key(|adapter| match adapter.kind {
        AdapterKind::Discrete | AdapterKind::Integrated => 0,
        AdapterKind::Software => 1,
        AdapterKind::Cpu => 2,
    });
    let first = adapters.first().map_or("cpu", |adapter| &adapter.backend);
    let second = adapters.iter().find(|adapter| adapter.backend != first);
    let labels = match (adapters.first(), second) {
        (Some(first), Some(second)) => {
            let [a, b] = [first, second].map(|adapter| found.device(&adapter.label()));
            println!("{}", if a == b { "two APIs of one device" } else { "two APIs of two devices" });
            [first.label(), second.label()]
        }
        _ => {
            println!("only one API: using it twice");
            [0, 1].map(|index| format!("{first}:{index}"))
        }
    };
    let mut options = DeviceOptions::selecting(labels.join(",")).isolated(isolation);
    options.cpu_devices = if second.is_some() { 1 } else { 2 };
    Ok((Devices::probe(&options)?, labels))
}

/// Generates a text with the given placement.
fn generate(model: &Model, devices: &Devices, split: &str) -> ragtag::Result<String> {
    let planner = Planner::new(model).devices(devices).context(128).split(split.parse()?);
    let planner = planner.activations(Activations::F32).kv(KvType::F32);
    let engine = Engine::start(model, devices, &planner, EngineOptions::default())?;
    let loaded = engine.stages();
    let stages = loaded.iter().map(|stage| format!("{} ({})", stage.adapter.label(), stage.adapter.name));
    let routes = engine.plan().routes();
    let route = routes.iter().flat_map(|routes| routes.iter()).next().map_or("", |route| route.name());
    println!("{} {route}", stages.collect::<Vec<_>>().join(" → "));
    let prompt = "There was once a poor miller";
    let generation = Generation { max_tokens: 16, ignore_end: true, ..Generation::greedy() };
    Ok(format!("{prompt}{}", engine.session().generate(prompt, &generation)?.blocking_text()?))
}
