//! Tests of the planner. They compare its plans with an exhaustive search on small random instances, and
//! check memory and messages. Of the seeds of the longest tests, each commit gets a fifth or a third.

mod best;
mod families;
mod from_file;
mod given;
mod grid;
mod hosts;
mod hybrid;
mod left_out;
mod limits;
mod pool;
mod predicted;
mod streamed;
mod tried;
mod worlds;

use super::assemble::tenths;
use super::problem::{Lowered, Problem, Run};
use super::workload_times::Times;
use super::*;
use crate::cost::{
    BatchShape, BufferLimits, DeviceFacts, Figure, FigureSource, LinkFacts, Links, SharedLink, WeightSharing,
    segment_time_us,
};
use crate::objective::{Mix, Objective, Workload};
use crate::plan::{Alternative, Explanation, HostMemory, LeftOut, PlanModel, PlanStage};
use crate::split::Split;
use ragtag_graph::execution::{Eviction, KvUse, Reserve};
use ragtag_graph::segment::SegmentTensor;
use ragtag_graph::{Granularity, Segment, SegmentKind, WireType};
use ragtag_kernels::{Activations, KvType};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use test_support::nightly;
use worlds::*;

impl World {
    fn split(mut self, text: &str) -> Self {
        self.split = Some(text.parse().expect("a split"));
        self
    }
}

/// Returns all contiguous placements on all ordered subsets of the devices.
fn all_placements(segments: usize, devices: usize) -> Vec<Vec<Run>> {
    fn extend(
        runs: &mut Vec<Run>,
        first: usize,
        (segments, devices): (usize, usize),
        all: &mut Vec<Vec<Run>>,
    ) {
        if first == segments {
            all.push(runs.clone());
            return;
        }
        for device in
            (0..devices).filter(|device| runs.iter().all(|run| run.device != *device)).collect::<Vec<_>>()
        {
            for end in first + 1..=segments {
                runs.push(Run::new(device, first..end));
                extend(runs, end, (segments, devices), all);
                runs.pop();
            }
        }
    }
    let mut all = Vec::new();
    extend(&mut Vec::new(), 0, (segments, devices), &mut all);
    all
}

fn problem<'a>(input: &'a PlannerInput<'a>, groups: u32) -> Problem<'a> {
    problem_with(input, groups, WireType::F32)
}

fn problem_with<'a>(input: &'a PlannerInput<'a>, groups: u32, wire_type: WireType) -> Problem<'a> {
    let lowered = Arc::new(Lowered::new(input.limits.chunk, input.segments));
    Problem::new(input, lowered, 512, Point { chunk: input.limits.chunk, groups, wire_type })
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Computes a score directly from the cost model, without prefix sums or the solver's costs.
fn score_by_hand(world: &World, runs: &[Run], groups: u32, wire_type: WireType) -> f64 {
    let sequences = if matches!(world.objective, Objective::Latency | Objective::FirstToken) {
        1
    } else {
        world.limits.sequences
    };
    let rows = sequences.div_ceil(groups).min(world.limits.chunk).min(world.limits.logit_rows);
    let (prompt, generated) =
        (f64::from(world.workload.prompt_tokens), f64::from(world.workload.generated_tokens));
    let scale = (512.0 / (prompt + generated)).min(1.0);
    let (prompt, generated) = (prompt * scale, generated * scale);
    let chunk_rows = (prompt.ceil() as u32).clamp(1, world.limits.chunk);
    let chunks = prompt / f64::from(chunk_rows);
    let batch =
        |rows, logit_rows, sequences, positions| BatchShape { rows, logit_rows, sequences, positions };
    let step = |rows| batch(rows, rows, rows, prompt + generated / 2.0);
    let (chunk, end) = (batch(chunk_rows, 0, 1, prompt / 2.0), batch(chunk_rows, 1, 1, prompt / 2.0));
    let on = |run: &Run, batch: &BatchShape| -> f64 {
        let device = &world.devices[run.device];
        let time = |segment| segment_time_us(segment, device, world.limits.activations, batch);
        // Conversion takes two dispatches, each as expensive as one of a block's nine. Each reads and writes
        // all rows.
        let row_bytes = (world.model.row_bytes + world.model.row_bytes / 2) as f64;
        let turning = match wire_type {
            WireType::F32 => 0.0,
            WireType::F16 => {
                let moving = f64::from(batch.rows) * row_bytes / device.bandwidth_bytes_per_s.value * 1e6;
                2.0 * (device.launch_us.value / 9.0 + moving)
            }
        };
        let segments = world.segments[run.segments.clone()].iter().map(time).sum::<f64>();
        device.stage_us.value + segments + turning
    };
    let over = |pair: &[Run], rows: u32| {
        let [from, to] = [0, 1].map(|at: usize| &world.devices[pair[at].device].label);
        let row_bytes = world.model.row_bytes / if wire_type == WireType::F16 { 2 } else { 1 };
        let (bytes, link) = (u64::from(rows) * row_bytes, world.links.between(from, to));
        let uses = |bus: &&SharedLink| bus.users.contains(&(from.clone(), to.clone()));
        let on_bus = world.links.shared.iter().find(uses);
        let on_bus = on_bus.map_or(0.0, |bus| bytes as f64 / bus.bandwidth_bytes_per_s.value * 1e6);
        (link.time_us(bytes).max(link.latency_us.value + on_bus), on_bus)
    };
    let transfer = |pair: &[Run]| [rows, 1, chunk_rows].map(|rows| over(pair, rows));
    let parts: Vec<[f64; 4]> = runs
        .iter()
        .map(|run| {
            [on(run, &step(rows)), on(run, &step(1)), on(run, &chunk), on(run, &end) - on(run, &chunk)]
        })
        .chain(runs.windows(2).map(|pair| {
            let [decode, alone, chunk] = transfer(pair).map(|(time, _)| time);
            [decode, alone, chunk, 0.0]
        }))
        .collect();
    let bus = runs.windows(2).map(transfer).fold([0.0; 4], |sum, [decode, alone, chunk]| {
        [sum[0] + decode.1, sum[1] + alone.1, sum[2] + chunk.1, 0.0]
    });
    let prompts = f64::from(u8::from(chunks > 0.0));
    let late: f64 = runs.iter().map(|run| world.devices[run.device].hand_over_us.value).sum();
    let late = [late, late, late, 0.0];
    let sum = |at: usize| parts.iter().map(|part| part[at]).sum::<f64>() + late[at];
    let slowest_chunk = parts.iter().chain([&bus]).map(|part| part[2]).fold(0.0, f64::max);
    let busy = |part: &[f64; 4]| chunks * part[2] + prompts * part[3] + generated / f64::from(rows) * part[0];
    let busiest = parts.iter().chain([&bus]).map(busy).fold(0.0, f64::max);
    let first_token =
        chunks.min(1.0) * sum(2) + prompts * sum(3) + (chunks - chunks.min(1.0)) * slowest_chunk;
    match world.objective {
        Objective::Latency => first_token + generated * sum(1),
        Objective::FirstToken => first_token,
        Objective::Throughput => {
            let others = f64::from(sequences - 1) * chunks * slowest_chunk;
            busiest.max((first_token + others + generated * sum(0)) / f64::from(sequences))
        }
        Objective::Mix(mix) => {
            mix.latency * (first_token + generated * sum(1))
                + mix.throughput * busiest
                + mix.first_token * first_token
        }
    }
}

/// Returns a random world in which the token return takes no time.
fn random_world_without_return(seed: u64) -> World {
    let mut world = random_world(seed);
    world.model.vocabulary = 0;
    world
}

#[test]
fn scores_are_what_the_objectives_mean() {
    for seed in 0..100 {
        for objective in OBJECTIVES {
            let world = World { objective, ..random_world_without_return(seed) };
            let input = world.input();
            for (groups, wire_type) in (1..=3).zip([WireType::F32, WireType::F16, WireType::F16]) {
                let problem = problem_with(&input, groups, wire_type);
                for runs in all_placements(world.segments.len(), world.devices.len()).iter().step_by(7) {
                    let (by_hand, evaluated) =
                        (score_by_hand(&world, runs, groups, wire_type), problem.evaluate(runs).score_us);
                    assert!(
                        close(by_hand, evaluated),
                        "seed {seed}, {objective:?}: {by_hand} {evaluated} {runs:?}"
                    );
                    let placement: Vec<_> =
                        runs.iter().map(|run| (run.device, run.segments.clone())).collect();
                    assert!(close(solver::score(&problem.instance(), &placement), evaluated), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn the_plan_is_the_best_of_all_placements() {
    let (mut planned, mut refused) = (0, 0);
    for seed in (0..300).step_by(if nightly() { 1 } else { 5 }) {
        for objective in OBJECTIVES {
            let world = World { objective, ..random_world(seed) };
            let input = world.input();
            let grid = Grid::new(&input, 512);
            let found = grid.search();
            // The placement must be optimal over all points of the grid.
            let all = all_placements(world.segments.len(), world.devices.len());
            let at = |point: Point| {
                let problem = grid.problem(point);
                let fitting = all.iter().filter(|runs| problem.prove(runs).is_ok());
                fitting.map(|runs| (problem.evaluate(runs).score_us, runs.len())).collect::<Vec<_>>()
            };
            let scores: Vec<_> = grid.points().flat_map(at).collect();
            let best = scores.iter().map(|(score, _)| *score).reduce(f64::min);
            match (&found, best) {
                (None, None) => {
                    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))), "seed {seed}");
                    refused += 1;
                }
                (Some(found), Some(best)) => {
                    let near = scores.iter().filter(|(score, _)| *score <= best * 1.01 * (1.0 + 1e-12));
                    let fewest = near.map(|(_, stages)| *stages).min();
                    assert_eq!(Some(found.best.runs.len()), fewest, "seed {seed}, {objective:?}");
                    let of_length = scores.iter().filter(|(_, stages)| Some(*stages) == fewest);
                    let wanted = of_length.map(|(score, _)| *score).fold(f64::MAX, f64::min);
                    // Among scores within half a percent, the faster decode wins.
                    let score = found.best.score_us();
                    assert!(
                        score >= wanted * (1.0 - 1e-9) && score <= wanted * 1.005 * (1.0 + 1e-9),
                        "seed {seed}, {objective:?}: {score} for {wanted}"
                    );
                    assert!(found.bound_us.is_some_and(|bound| close(bound, best)), "seed {seed}");
                    assert!(grid.bound_us().is_some_and(|bound| bound <= best * (1.0 + 1e-9)), "seed {seed}");
                    planned += 1;
                }
                other => panic!("seed {seed}: {:?}", other.1),
            }
        }
    }
    assert!(planned > 50 && refused > 5, "{planned} planned, {refused} refused: both kinds are needed");
}

#[test]
fn fit_is_decided_without_a_search() {
    for seed in 0..300 {
        let mut world = random_world(seed);
        world.devices.iter_mut().for_each(|device| device.memory_bytes /= 2);
        let input = world.input();
        let problem = problem(&input, 1);
        let all = all_placements(world.segments.len(), world.devices.len());
        let fits = all.iter().any(|runs| problem.prove(runs).is_ok());
        assert_eq!(memory_fit::fits(&problem.instance()), fits, "seed {seed}");
    }
}

#[test]
fn the_closest_placement_lacks_the_fewest_bytes() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut world = random_world(seed);
        world.devices.iter_mut().for_each(|d| d.memory_bytes /= 2);
        let input = world.input();
        let problem = problem(&input, 1);
        let missing = |shortages: &[Shortage]| shortages.iter().map(Shortage::missing_bytes).sum::<u64>();
        let in_order = |runs: &Vec<Run>| runs.windows(2).all(|pair| pair[0].device < pair[1].device);
        let all = all_placements(world.segments.len(), world.devices.len());
        let wanted = all
            .iter()
            .filter(|runs| in_order(runs))
            .map(|runs| problem.prove(runs).err().map_or(0, |s| missing(&s)))
            .min();
        assert_eq!(Some(missing(&memory_fit::closest(&problem))), wanted, "seed {seed}");
        refused += usize::from(wanted > Some(0));
    }
    assert!(refused > 50);
}

/// Checks that, with very many devices, the closest placement fills all devices in turn, so that only the
/// last device lacks memory.
#[test]
fn the_last_of_many_devices_lacks_what_is_left() {
    let devices = (0..40).map(|at| device(&format!("cpu:{at}"), 15 * MIB, 1.0)).collect();
    let world = World::new(model(50, 10 * MIB, 10 * MIB), devices);
    let Err(PlanError::DoesNotFit(error)) = world.plan() else { panic!("it cannot fit") };
    let short: Vec<_> =
        error.shortages.iter().map(|one| (one.device.as_str(), one.segments.to_string())).collect();
    assert_eq!(short, [("cpu:39", "39-51".into())]);
}

#[test]
fn plans_are_valid_within_memory_and_the_same_each_time() {
    let mut planned = 0;
    for seed in (0..300).step_by(if nightly() { 1 } else { 5 }) {
        let mut world = random_world(seed);
        world.limits.context = if seed % 2 == 0 { Some(512) } else { None };
        let Ok(plan) = world.plan() else { continue };
        planned += 1;
        assert_eq!(world.plan().as_ref(), Ok(&plan));
        let labels: Vec<_> = world.devices.iter().map(|d| d.label.as_str()).collect();
        let segments = world.segments.len() as u32;
        let granularity = Granularity::Block;
        let model = PlanModel { name: "made up".into(), digest: "d1".into(), segments, granularity };
        assert_eq!(plan.validate(&model, &labels), Ok(()));
        for stage in &plan.stages {
            let memory = &stage.memory_bytes;
            assert!(memory.total <= memory.available, "seed {seed}");
            assert_eq!(
                memory.total,
                memory.weights + memory.kv + memory.scratch + memory.slots + memory.staging
            );
        }
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan), "seed {seed}");
        // Planning again with the plan's split must give the same placement and the same predictions.
        let mut again = world.clone().split(&plan.split().to_string());
        again.limits.context = Some(plan.context);
        let again = again.plan().expect("proved before");
        if again.decode_groups == plan.decode_groups {
            assert_eq!((&again.stages, &again.edges), (&plan.stages, &plan.edges));
        }
        // Among scores within half a percent, the faster decode wins.
        let (after, before) = (again.explanation.score_us, plan.explanation.score_us);
        assert!(after <= before * 1.005, "seed {seed}: {after} {before}");
    }
    assert!(planned > 15);
}

#[test]
fn more_of_anything_never_makes_a_plan_worse() {
    let mut compared = 0;
    for seed in (0..400).step_by(if nightly() { 1 } else { 5 }) {
        let objective = OBJECTIVES[seed as usize % 4];
        let world = World { objective, ..random_world(seed) };
        let Ok(plan) = world.plan() else { continue };
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x6d6f_7265);
        let mut more = world.clone();
        match seed / 4 % 3 {
            0 => {
                let facts = device("new:0", rng.random_range(5..90) * MIB, rng.random_range(0.2..3.0));
                more.devices.insert(rng.random_range(0..=more.devices.len()), facts);
            }
            1 => {
                let at = rng.random_range(0..more.devices.len());
                more.devices[at].memory_bytes += rng.random_range(1..60) * MIB;
            }
            _ => {
                more.links.other.bandwidth_bytes_per_s.value *= 4.0;
                let at = rng.random_range(0..more.devices.len());
                more.devices[at].bandwidth_bytes_per_s.value *= 2.0;
            }
        }
        let better = more.plan().expect("what fitted fits");
        let (before, after) = (plan.explanation.score_us, better.explanation.score_us);
        assert!(after <= before * 1.01 + 0.1, "seed {seed}, {objective:?}: {before} became {after}");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn constraints_are_kept_or_named() {
    let devices = (0..3).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0 + f64::from(i))).collect();
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    let split = |world: &World| world.plan().map(|plan| plan.split().to_string());
    world.constraints.max_stages = Some(1);
    assert_eq!(split(&world).as_deref(), Ok("0-13=cpu:2"));
    world.constraints = Constraints { excluded: vec!["cpu:2".into()], ..Constraints::default() };
    assert!(!split(&world).expect("fits").contains("cpu:2"));
    let pin = |segment, device: &str| Pin { segment, device: device.into() };
    world.constraints =
        Constraints { pins: vec![pin(0, "cpu:1"), pin(13, "cpu:0")], ..Constraints::default() };
    let pinned = split(&world).expect("fits");
    assert!(
        pinned.starts_with("0-") && pinned.contains("=cpu:1") && pinned.ends_with("13=cpu:0"),
        "{pinned}"
    );
    let wrong = |constraints: Constraints| {
        let world = World { constraints, ..world.clone() };
        world.plan().expect_err("refused").to_string()
    };
    let only = |pins: &[Pin]| Constraints { pins: pins.to_vec(), ..Constraints::default() };
    assert!(
        wrong(only(&[pin(0, "gpu:7")])).contains("there is no device gpu:7 (devices: cpu:0, cpu:1, cpu:2)")
    );
    assert!(wrong(only(&[pin(14, "cpu:0")])).contains("segment 14 is pinned, but the last segment is 13"));
    assert!(wrong(only(&[pin(3, "cpu:0"), pin(3, "cpu:1")])).contains("pinned to cpu:0 and to cpu:1"));
    let excluded = Constraints { excluded: vec!["cpu:0".into()], ..only(&[pin(3, "cpu:0")]) };
    assert!(wrong(excluded).contains("which is excluded"));
    let mut split = world.clone().split("0-6=cpu:0,7-13=cpu:1");
    split.constraints = Constraints { excluded: vec!["cpu:1".into()], ..Constraints::default() };
    assert!(split.plan().unwrap_err().to_string().contains("the split names cpu:1, which is excluded"));
    let all = (0..3).map(|i| format!("cpu:{i}")).collect();
    assert!(
        wrong(Constraints { excluded: all, ..Constraints::default() }).contains("every device is excluded")
    );
    assert!(
        wrong(Constraints { max_stages: Some(0), ..Constraints::default() }).contains("at most 0 stages")
    );
    // The pins require two runs on one device, with another device between them. No placement allows this.
    let torn = only(&[pin(0, "cpu:0"), pin(5, "cpu:1"), pin(13, "cpu:0")]);
    assert!(wrong(torn).contains("no placement that fits meets all of them"));
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let objective = Objective::Mix(crate::Mix { latency: weight, throughput: 1.0, first_token: 0.0 });
        let error = World { objective, ..world.clone() }.plan().expect_err("refused").to_string();
        assert!(error.contains("the weights of a mixed objective"), "{error}");
    }
}

#[test]
fn decode_is_balanced_with_the_head_read_in_full() {
    // The head weighs as much as six blocks, and decode reads all of it.
    let mut world = World::new(
        model(12, 10 * MIB, 60 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    world.workload = Workload { prompt_tokens: 0, generated_tokens: 128 };
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-9=cpu:0,10-13=cpu:1");
    let [a, b] = [plan.stages[0].predicted.decode_us, plan.stages[1].predicted.decode_us];
    assert!((a - b).abs() <= 1100.0 + 1.0, "{a} and {b} differ by more than a block");
}

#[test]
fn prefill_is_balanced_with_the_head_for_wanted_rows_alone() {
    let mut world = World::new(
        model(12, 10 * MIB, 60 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    world.workload = Workload { prompt_tokens: 512, generated_tokens: 0 };
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-6=cpu:0,7-13=cpu:1");
}

#[test]
fn equal_devices_get_stages_as_equal_as_segments_allow() {
    for devices in 1..=4 {
        let devices: Vec<_> = (0..devices).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0)).collect();
        let mut world = World::new(model(24, 10 * MIB, 30 * MIB), devices);
        world.limits.sequences = 64;
        world.limits.logit_rows = 64;
        let plan = world.plan().expect("fits");
        assert_eq!(plan.stages.len(), world.devices.len());
        let input = world.input();
        let problem = problem(&input, plan.decode_groups);
        let busiest = |runs: &[Run]| problem.evaluate(runs).score_us;
        let (segments, stages) = (world.segments.len(), world.devices.len());
        let cuts = |runs: &Vec<Run>| {
            runs.len() == stages && runs.iter().enumerate().all(|(at, run)| run.device == at)
        };
        let all = all_placements(segments, stages);
        let best = all.iter().filter(|runs| cuts(runs)).map(|runs| busiest(runs)).fold(f64::MAX, f64::min);
        assert!((plan.explanation.score_us - best).abs() <= 0.06, "{}", plan.split());
    }
}

#[test]
fn a_fast_device_gets_more() {
    let world = World::new(
        model(24, 10 * MIB, 10 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 3.0)],
    );
    let plan = world.plan().expect("fits");
    let count = |stage: usize| plan.stages[stage].segments.range().len();
    assert!(count(1) > 2 * count(0), "{}", plan.split());
}

#[test]
fn memory_forces_a_second_device_where_latency_would_have_one() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    world.objective = Objective::Latency;
    // With a prompt of one chunk, stages do not overlap.
    world.workload.prompt_tokens = 128;
    assert_eq!(world.plan().expect("fits").stages.len(), 1);
    world.devices.iter_mut().for_each(|d| d.memory_bytes = 100 * MIB);
    assert_eq!(world.plan().expect("fits").stages.len(), 2);
}

#[test]
fn shortages_name_bytes_and_device() {
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device("cpu:0", 100 * MIB, 1.0)]);
    let Err(PlanError::DoesNotFit(error)) = world.plan() else { panic!("it cannot fit") };
    let [shortage] = error.shortages.as_slice() else { panic!("{error:?}") };
    assert_eq!(shortage.device, "cpu:0");
    assert_eq!(shortage.memory.weights, 140 * MIB);
    assert_eq!(shortage.missing_bytes(), shortage.memory.total - 100 * MIB);
    let text = PlanError::DoesNotFit(error.clone()).to_string();
    assert_eq!(
        text,
        "the model does not fit at a context of 512:
  cpu:0 lacks 65.8 MiB for segments 0-13: it has 100.0 MiB of the 165.8 MiB
    needed (weights 140.0 MiB, keys and values 24.0 MiB, scratch 1.0 MiB, slots
    782.5 KiB); a device with 165.8 MiB would hold them
  What may help: type q8_0 nearly halves keys and values; fewer sequences at
    once need less; another device adds memory"
    );
    // The model fits if the device has the memory that the error names.
    let mut enough = world.clone();
    enough.devices[0].memory_bytes = (165.8 * MIB as f64) as u64;
    assert!(enough.plan().is_ok());

    let mut many = world.clone();
    many.devices = (0..6).map(|i| device(&format!("cpu:{i}"), 12 * MIB, 1.0)).collect();
    let Err(PlanError::DoesNotFit(error)) = many.plan() else { panic!("it cannot fit") };
    let wanted = format!(" missing on {} more devices", error.shortages.len() - 3);
    let text = PlanError::DoesNotFit(error).to_string();
    assert!(text.contains(&wanted) && text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // The weights fit but the cache does not, so the hint names a shorter context.
    world.limits.kv = KvType::F32;
    world.devices[0].memory_bytes = 160 * MIB;
    let Err(PlanError::DoesNotFit(error)) = world.plan() else { panic!("it cannot fit") };
    let largest = largest_context(&world.input()).expect("something fits");
    let wanted =
        [Remedy::Context(largest), Remedy::Kv(KvType::F16), Remedy::FewerSequences, Remedy::AnotherDevice];
    assert_eq!(error.remedies, wanted);
    world.limits.context = Some(largest);
    assert!(world.plan().is_ok());
    world.limits.context = Some(largest + 1);
    assert!(world.plan().is_err());
}

#[test]
fn the_default_context_is_the_largest_that_fits() {
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    world.limits.context = None;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.context, 2048);
    assert!(
        plan.reasons.iter().any(|r| r.contains("context 2048: the full context of the model")),
        "{:?}",
        plan.reasons
    );

    for memory in [150, 160, 170, 200, 240] {
        world.devices[0].memory_bytes = memory * MIB;
        let largest = largest_context(&world.input()).expect("fits");
        let fits = |context: u32| {
            let mut world = world.clone();
            world.limits.context = Some(context);
            world.plan().is_ok()
        };
        assert!(fits(largest), "{memory} MiB");
        assert!(largest == 2048 || !fits(largest + 1), "{memory} MiB: {largest} is not the largest");
        assert_eq!(world.plan().expect("fits").context, largest);
    }
    world.devices[0].memory_bytes = 141 * MIB;
    assert!(matches!(largest_context(&world.input()), Err(PlanError::DoesNotFit(e)) if e.context == 16));
    // A model with a context of only a few positions needs less than one cache block.
    world.devices[0].memory_bytes = 1 << 40;
    world.model.context = 7;
    assert_eq!(largest_context(&world.input()), Ok(7));
}

#[test]
fn decode_rows_spread_sequences_over_the_stages() {
    let devices = |n| (0..n).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0)).collect::<Vec<_>>();
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices(2));
    world.limits.sequences = 16;
    world.limits.logit_rows = 64;
    assert_eq!(world.plan().expect("fits").decode_rows, 8);
    world.limits.logit_rows = 3;
    assert_eq!(world.plan().expect("fits").decode_rows, 3);
}

#[test]
fn pipelining_of_many_sequences_is_predicted_to_pay() {
    let devices = |n| (0..n).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0)).collect::<Vec<_>>();
    let rates = |n, sequences| {
        let mut world = World::new(model(30, 10 * MIB, 10 * MIB), devices(n));
        world.limits.sequences = sequences;
        world.limits.logit_rows = 64;
        let plan = world.plan().expect("fits");
        (plan.predicted.decode_tokens_per_s, plan.predicted.prefill_tokens_per_s)
    };
    let (one, two) = (rates(1, 8), rates(2, 16));
    assert!(two.0 > 1.7 * one.0 && two.0 <= 2.0 * one.0, "decode {one:?} {two:?}");
    assert!(two.1 > 1.7 * one.1 && two.1 <= 2.0 * one.1, "prefill {one:?} {two:?}");
}

#[test]
fn one_sequence_decodes_no_faster_over_two_stages() {
    let world = |split: &str| {
        let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
        let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices).split(split);
        world.limits.sequences = 1;
        world.plan().expect("fits")
    };
    let (one, two) = (world("0-13=cpu:0"), world("0-6=cpu:0,7-13=cpu:1"));
    assert!(two.predicted.decode_tokens_per_s < one.predicted.decode_tokens_per_s);
    assert!(two.predicted.prefill_tokens_per_s > 1.5 * one.predicted.prefill_tokens_per_s);
    let idle = two.reasons.iter().find(|r| r.starts_with("pipeline bubble")).expect("a reason");
    assert!(idle.contains("33 % in prefill"), "{idle}");
}

#[test]
fn predictions_are_sums_of_segment_times() {
    let world = World::new(model(2, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    let plan = world.plan().expect("fits");
    let batch = crate::cost::BatchShape { rows: 4, logit_rows: 4, sequences: 4, positions: 256.0 + 64.0 };
    let time = |s| segment_time_us(s, &world.devices[0], Activations::Int8, &batch);
    let wanted: f64 = world.segments.iter().map(time).sum();
    assert!((plan.stages[0].predicted.decode_us - wanted).abs() <= 0.05 + 1e-9);
    assert!((plan.predicted.decode_tokens_per_s - 4.0 / wanted * 1e6).abs() <= 0.05 + 1e-9);
}

/// A token passes the network three times: to the first stage, between the stages, and back.
#[test]
fn networks_to_the_first_stage_and_from_the_last_one_count() {
    let token_us = |latency_us: f64| {
        let labels = ["cpu:0", "a/cpu:0", "b/cpu:0"];
        let devices = labels.map(|label| device(label, 1 << 40, 1.0)).into();
        let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices).split("0-6=a/cpu:0,7-13=b/cpu:0");
        world.limits.sequences = 1;
        let network = LinkFacts { latency_us: Figure::assumed(latency_us), ..LinkFacts::assumed() };
        for (from, to) in labels.iter().flat_map(|from| labels.map(|to| (*from, to))) {
            world.links.known.extend((from != to).then(|| (from.into(), to.into(), network.clone())));
        }
        world.plan().expect("fits").predicted.token_us
    };
    let added = token_us(10_020.0) - token_us(20.0);
    assert!((added - 30_000.0).abs() < 1.0, "{added}");
}

#[test]
fn a_slow_link_counts() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    assert_eq!(world.plan().expect("fits").stages.len(), 2);
    let slow = LinkFacts { bandwidth_bytes_per_s: Figure::assumed(1e5), ..LinkFacts::assumed() };
    for (from, to) in [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")] {
        world.links.known.push((from.into(), to.into(), slow.clone()));
    }
    let plan = world.plan().expect("fits");
    assert_eq!(plan.stages.len(), 1, "{}", plan.split());
    let forced = world.split("0-6=cpu:0,7-13=cpu:1").plan().expect("fits");
    let bottleneck = &forced.reasons.iter().find(|r| r.starts_with("bottleneck")).expect("a reason");
    assert!(bottleneck.contains("the transfer from cpu:0 to cpu:1"), "{bottleneck}");
}

#[test]
fn bad_input_is_named() {
    let good = World::new(model(2, MIB, MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    let error = |change: &dyn Fn(&mut World)| {
        let mut world = good.clone();
        change(&mut world);
        assert_eq!(world.plan().err(), largest_or_same(&world), "both entries check");
        world.plan().expect_err("bad").to_string()
    };
    fn largest_or_same(world: &World) -> Option<PlanError> {
        largest_context(&world.input()).err()
    }
    assert_eq!(error(&|w| w.devices.clear()), "there is no device to plan on");
    assert_eq!(error(&|w| w.segments.clear()), "the model has no segment");
    assert_eq!(error(&|w| w.limits.context = Some(0)), "the context must be at least 1");
    assert_eq!(error(&|w| w.limits.chunk = 0), "the chunk must be at least 1");
    assert_eq!(error(&|w| w.limits.sequences = 0), "the number of sequences must be at least 1");
    assert_eq!(error(&|w| w.limits.slots = 0), "the number of slots must be at least 1");
    assert_eq!(error(&|w| w.limits.logit_rows = 0), "the number of logit rows must be at least 1");
    let nothing = Workload { prompt_tokens: 0, generated_tokens: 0 };
    assert_eq!(error(&|w| w.workload = nothing), "the workload's tokens must be at least 1");
    let twice = error(&|w| w.devices.push(device("cpu:0", 1, 1.0)));
    assert_eq!(twice, "cpu:0: invalid label (used twice)");
    let nan = error(&|w| w.devices[0].bandwidth_bytes_per_s.value = f64::NAN);
    assert_eq!(nan, "cpu:0: invalid bandwidth_bytes_per_s");
    let link = error(&|w| w.links.other.latency_us.value = -1.0);
    assert_eq!(link, "the default link: invalid latency_us");
}

#[test]
fn extreme_sizes_are_refused_without_overflow() {
    let mut world = World::new(model(2, u64::MAX / 2, u64::MAX / 2), vec![device("cpu:0", 1 << 40, 1.0)]);
    world.model.context = u32::MAX;
    world.model.row_bytes = u64::MAX;
    world.limits = PlanLimits {
        context: None,
        sequences: u32::MAX,
        chunk: u32::MAX,
        logit_rows: u32::MAX,
        slots: u32::MAX,
        ..world.limits
    };
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
    world.limits.context = Some(u32::MAX);
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
}

#[test]
fn a_large_instance_is_planned_quickly_and_for_any_device_count() {
    let devices: Vec<_> =
        (0..8).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0 + f64::from(i) / 7.0)).collect();
    let mut world = World::new(model(80, 10 * MIB, 30 * MIB), devices);
    world.limits.sequences = 64;
    world.limits.logit_rows = 64;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.stages.len(), 8);
    // The table's sort key is a pair of finite numbers.
}

#[test]
fn mixtures_with_small_weights_are_compared_all_the_same() {
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    world.devices.push(device("cpu:1", 1 << 40, 0.1));
    let mix = crate::objective::Mix { latency: 1e-9, throughput: 0.0, first_token: 0.0 };
    world.objective = Objective::Mix(mix);
    let plan = world.plan().expect("fits");
    assert!(plan.explanation.score_us > 0.0);
    let nonsense = |reason: &&String| reason.contains("NaN") || reason.contains("inf");
    assert_eq!(plan.reasons.iter().find(nonsense), None);
}
