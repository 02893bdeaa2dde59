//! Measures the time to plan a model with the shape of Llama 405B on sixteen cards from the card library. The
//! planner reads only the model's header.
//!
//! ```sh
//! cargo bench --bench planning
//! ```

#![allow(clippy::print_stdout)] // prints a table

#[path = "support/shapes.rs"]
mod shapes;

use ragtag::{Fleet, Model, Objective, Planner, Workload};
use shapes::{SHAPES, model};
use std::time::Instant;

/// Fleets of sixteen cards, with one, four and sixteen different types of cards. Each entry has a description
/// and the list of cards.
const FLEETS: [(&str, &str); 3] = [
    ("of one kind", "16x-rtx4090"),
    ("of four kinds", "4x-rtx3090+4x-rtx4090+4x-rx7900xtx+4x-l40s"),
    (
        "of sixteen kinds",
        "rtx3090+rtx4090+rx7900xtx+l40s+arc-a770+mi50+v100-32gb+a100-40gb+rtx5090+rx6900xt+mi100+rtx-a6000\
         +rtx4080+p40+gb10+a10",
    ),
];
const RUNS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (name, shape) = SHAPES[0];
    let model = model(folder.path(), name, shape)?;
    println!(
        "| fleet of 16 | objective | stages | median ms | longest ms |\n| --- | --- | ---: | ---: | ---: |"
    );
    for (kinds, cards) in FLEETS {
        let fleet = Fleet::from_line(cards)?;
        let one = planner(&model, &fleet)?.sequences(1);
        let many = planner(&model, &fleet)?.sequences(16);
        let objectives = [
            ("one sequence", one.objective(Objective::Latency)),
            ("first token", many.clone().objective(Objective::FirstToken)),
            ("16 sequences, tried in simulation", many),
        ];
        for (objective, planner) in objectives {
            let (stages, median, longest) = timed(&planner)?;
            println!("| {kinds} | {objective} | {stages} | {median:.0} | {longest:.0} |");
        }
    }
    Ok(())
}

fn planner(model: &Model, fleet: &Fleet) -> Result<Planner> {
    let request = Workload { prompt_tokens: 512, generated_tokens: 128 };
    Ok(Planner::new(model).fleet(fleet)?.context(2048).workload(request))
}

/// Repeats the planning several times. Returns the plan's number of stages, and the median and the maximum
/// planning time in milliseconds.
fn timed(planner: &Planner) -> Result<(usize, f64, f64)> {
    let (mut times, mut stages) = (Vec::new(), 0);
    for _ in 0..RUNS {
        let start = Instant::now();
        stages = planner.plan()?.stages.len();
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok((stages, times[RUNS / 2], times[RUNS - 1]))
}
