//! Plans for assumed devices: a fast card, a slow card and a CPU, each described by a few figures.
//!
//! Demonstrates that the planner needs only figures of the devices, and that the plan and its reasons change
//! with them. The example needs no hardware and reads no weights. The program prints several plans. The first
//! plan puts the whole model on the fast card. If the memory of this card is too small, the plan is a
//! pipeline. If many sequences run at the same time, the plan has more stages. In the last case, the model
//! does not fit, and the error says how much memory each device lacks.
//!
//! ```sh
//! cargo run --release --example 03-plan-without-running
//! ```

#![allow(clippy::print_stdout)] // examples print

use ragtag::{BufferLimits, DeviceFacts, Figure, FigureSource, Model, Objective, Planner, WeightSharing};

/// Describes an assumed device. The memory sizes suit the small bundled model. For a large model, use GiB in
/// place of MiB.
fn device(label: &str, memory_mib: u64, gigabytes_per_s: f64, tera_flops: f64) -> DeviceFacts {
    let figure = |value| Figure { value, source: FigureSource::User };
    DeviceFacts {
        label: label.into(),
        memory_bytes: memory_mib << 20,
        memory_source: FigureSource::User,
        bandwidth_bytes_per_s: figure(gigabytes_per_s * 1e9),
        exact_flops_per_s: figure(tera_flops * 1e12),
        fast_flops_per_s: figure(tera_flops * 4e12),
        launch_us: figure(2.0),
        stage_us: figure(10.0),
        hand_over_us: figure(0.0),
        host_latency_us: figure(5.0),
        host_bandwidth_bytes_per_s: figure(12e9),
        file_bytes_per_s: figure(2e9),
        f16_products: false,
        buffers: BufferLimits::default(),
        in_host_memory: false,
        weight_sharing: WeightSharing::None,
        profile: None,
    }
}

fn show(title: &str, planner: &Planner) {
    println!("== {title}");
    match planner.plan() {
        Ok(plan) => {
            for stage in &plan.stages {
                let (used, free) = (stage.memory_bytes.total >> 10, stage.memory_bytes.available >> 10);
                println!("{:8} segments {:5} {used:6} of {free} KiB", stage.device, stage.segments);
            }
            plan.reasons.iter().for_each(|reason| println!("- {reason}"));
        }
        Err(error) => println!("no plan: {error}"),
    }
    println!();
}

fn main() -> ragtag::Result<()> {
    let model = Model::bundled()?;
    let planner = Planner::new(&model).objective(Objective::Latency);
    let (slow, cpu) = (device("slow:0", 64, 60.0, 1.0), device("cpu:0", 1024, 20.0, 0.1));

    let all = vec![device("fast:0", 64, 400.0, 8.0), slow.clone(), cpu.clone()];
    show("enough memory: one sequence is fastest on the fast card alone", &planner.clone().device_facts(all));

    let tight = vec![device("fast:0", 6, 400.0, 8.0), slow, cpu];
    let planner = planner.device_facts(tight);
    show("the fast card is too small: the rest goes where it is cheapest", &planner);

    let many = planner.clone().objective(Objective::Throughput).sequences(8).context(128);
    show("eight concurrent sequences: the busiest stage counts, not the sum", &many);

    let tiny = planner.device_facts(vec![device("fast:0", 3, 400.0, 8.0), device("slow:0", 2, 60.0, 1.0)]);
    show("the model fits nowhere", &tiny);
    Ok(())
}
