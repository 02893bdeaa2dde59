//! Measures how long it takes to plan for random fleets of common cards. Run it with
//! `cargo bench -p ragtag-planner --bench planner`.
//!
//! Times the solver at one point of the search grid. Prints the median and the maximum time over several
//! fleets, and the largest gap between a score and its lower bound. `cargo bench --bench planning` measures
//! the time to make whole plans.

#![allow(missing_docs)]
#![allow(dead_code, unreachable_pub)] // the benchmark uses only a part of the solver
#![allow(clippy::print_stdout)] // a benchmark prints its results

#[path = "../src/search/solver/mod.rs"]
mod solver;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use solver::{Costs, DeviceCosts, Instance, LinkCosts, Score, solve};
use std::time::Instant;

/// Real cards, as (memory bandwidth in bytes per µs, arithmetic rate in operations per µs, memory in GiB).
const CARDS: [(f64, f64, f64); 8] = [
    (560e3, 39e6, 16.0),
    (936e3, 71e6, 24.0),
    (1008e3, 165e6, 24.0),
    (1792e3, 210e6, 32.0),
    (960e3, 61e6, 24.0),
    (288e3, 22e6, 12.0),
    (448e3, 30e6, 8.0),
    (2039e3, 312e6, 80.0),
];

/// Variation among the devices of a fleet.
#[derive(Clone, Copy)]
enum Fleet {
    /// Every device is different.
    Distinct,
    /// All devices with the same card are equal.
    Kinds,
}

impl Fleet {
    const ALL: [(Self, &'static str); 2] = [(Self::Distinct, "distinct"), (Self::Kinds, "kinds")];

    /// Returns a random factor for a device's bandwidth, arithmetic rate and memory, relative to its card.
    fn spread(self, rng: &mut SmallRng) -> f64 {
        match self {
            Self::Distinct => rng.random_range(0.9..1.1),
            Self::Kinds => 1.0,
        }
    }
}

/// Benchmark sizes, as (devices, segments, number of random fleets).
const SIZES: [(usize, usize, u64); 3] = [(8, 81, 15), (12, 130, 9), (64, 1000, 5)];

/// Returns an instance for a model on cards behind PCIe. The model's weights take between half and nine
/// tenths of the fleet's memory.
fn instance(seed: u64, devices: usize, segments: usize, fleet: Fleet, score: Score) -> Instance {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let cards: Vec<_> = (0..devices)
        .map(|_| {
            let (bandwidth, rate, memory) = CARDS[rng.random_range(0..CARDS.len())];
            let spread = fleet.spread(rng);
            (bandwidth * spread, rate * spread, memory * spread * (1u64 << 30) as f64)
        })
        .collect();
    let memory: f64 = cards.iter().map(|card| card.2).sum();
    let weights = memory * rng.random_range(0.5..0.9);
    let share = weights / segments as f64;
    // The embedding is large and fast. The head is large and slow.
    let bytes = |at: usize| if at == 0 || at + 1 == segments { share * 1.5 } else { share };
    let costs_of = |&(bandwidth, rate, memory): &(f64, f64, f64)| {
        let mut before = vec![Costs::default()];
        for at in 0..segments {
            let moved = if at == 0 { 0.0 } else { bytes(at) / bandwidth + 5.0 };
            let chunk = if at == 0 { 5.0 } else { bytes(at) * 2.0 * 512.0 / rate + 5.0 };
            before.push(before[at] + Costs { busy: moved * 1.2, time: moved, chunk });
        }
        let reach = |reserve: f64| {
            let mut end = 0;
            let mut held = reserve;
            let mut row = Vec::new();
            for first in 0..=segments {
                if end < first {
                    (end, held) = (first, reserve);
                }
                while end < segments && held + bytes(end) <= memory {
                    held += bytes(end);
                    end += 1;
                }
                row.push(end);
                held -= if first < end { bytes(first) } else { 0.0 };
            }
            row
        };
        let stage = Costs { busy: 20.0, time: 20.0, chunk: 30.0 };
        let edge = Costs { busy: 5.0, time: 5.0, chunk: 10.0 };
        let reach = vec![reach(0.3e9), reach(0.4e9)];
        DeviceCosts { before, stage, entry: edge, exit: edge, reach }
    };
    let ports: Vec<bool> = (0..devices).map(|_| rng.random_bool(0.5)).collect();
    let transfer = |from: usize, to: usize| {
        let direct = ports[from] && ports[to];
        let (latency, bandwidth) = if direct { (10.0, 24e3) } else { (25.0, 10e3) };
        let costs = Costs {
            busy: latency + 16e3 * 4.0 / bandwidth,
            time: latency + 16e3 / bandwidth,
            chunk: latency + 16e3 * 512.0 / bandwidth,
        };
        Some(LinkCosts { costs, class: usize::from(!direct) })
    };
    Instance {
        segments,
        devices: cards.iter().map(costs_of).collect(),
        transfers: (0..devices * devices).map(|at| transfer(at / devices, at % devices)).collect(),
        shared: Vec::new(),
        score,
        pins: vec![None; segments],
        required: Vec::new(),
        excluded: vec![false; devices],
        max_stages: devices,
        known: f64::INFINITY,
    }
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("the solver on random fleets, {cores} cores; scores are a sum, the busiest of 32 and a mix");
    println!("devices  segments  fleet     score       median ms  longest ms  largest gap  exact");
    for (devices, segments, runs) in SIZES {
        for (fleet, name) in Fleet::ALL {
            one_point(devices, segments, runs, fleet, name);
        }
    }
}

fn one_point(devices: usize, segments: usize, runs: u64, fleet: Fleet, name: &str) {
    let scores = [
        ("sum", Score::Sum { chunk_weight: 8.0, busy_weight: 0.0 }),
        ("busy", Score::Busy { sequences: 32.0, chunk_weight: 0.25 }),
        ("mix", Score::Sum { chunk_weight: 2.0, busy_weight: 16.0 }),
    ];
    for (score_name, score) in scores {
        let mut times = Vec::new();
        let (mut gap, mut exact) = (0.0_f64, 0);
        for seed in 0..runs {
            let instance = instance(seed, devices, segments, fleet, score);
            let start = Instant::now();
            let solution = solve(&instance);
            times.push(start.elapsed().as_secs_f64() * 1e3);
            let best = solution.choose(0.0).map_or(f64::INFINITY, |p| p.score);
            gap = gap.max(1.0 - solution.bound / best);
            exact += usize::from(solution.exact);
        }
        times.sort_by(f64::total_cmp);
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{devices:7}  {segments:8}  {name:8}  {score_name:10}  {median:9.2}  {longest:10.2}  {:10.2} %  {exact} of {runs}",
            gap * 100.0
        );
    }
}
