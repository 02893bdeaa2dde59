//! Tests of the planner: against exhaustive search on small random instances, on memory, and on what it says.

use super::search::{Goal, Table, Value};
use super::*;
use crate::cost::{Figure, FigureSource, LinkFacts, segment_time_us};
use ragtag_graph::SegmentKind;
use ragtag_graph::segment::SegmentTensor;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const MIB: u64 = 1 << 20;

fn segment(kind: SegmentKind, name: &str, weights: u64) -> Segment {
    Segment {
        kind,
        name: name.into(),
        tensors: vec![SegmentTensor { name: format!("{name}.weight"), resident_bytes: weights }],
        flops_per_row: weights.saturating_mul(4),
        flops_per_row_position: 512,
        read_bytes: weights,
        read_bytes_per_row: 1024,
        kv_bytes_per_position: 1024,
        scratch_bytes: MIB,
        wide_scratch_bytes: MIB,
    }
}

/// Embedding, `blocks` blocks of `block` bytes, a head of `head` bytes that shares no tensor.
fn model(blocks: usize, block: u64, head: u64) -> Vec<Segment> {
    let mut segments = vec![Segment {
        flops_per_row: 0,
        flops_per_row_position: 0,
        read_bytes: 0,
        kv_bytes_per_position: 0,
        ..segment(SegmentKind::Embedding, "embedding", head)
    }];
    segments.extend((0..blocks).map(|i| segment(SegmentKind::Block, &format!("block {i}"), block)));
    segments.push(Segment { kv_bytes_per_position: 0, ..segment(SegmentKind::Head, "head", head) });
    segments
}

fn device(label: &str, memory_bytes: u64, speed: f64) -> DeviceFacts {
    DeviceFacts {
        label: label.into(),
        memory_bytes,
        memory_source: FigureSource::User,
        bandwidth_bytes_per_s: Figure::assumed(10e9 * speed),
        exact_flops_per_s: Figure::assumed(20e9 * speed),
        fast_flops_per_s: Figure::assumed(80e9 * speed),
        launch_us: Figure::assumed(10.0),
        f16_products: false,
    }
}

/// Everything that a [`PlannerInput`] borrows.
#[derive(Clone)]
struct World {
    model: ModelFacts,
    segments: Vec<Segment>,
    devices: Vec<DeviceFacts>,
    links: Links,
    objective: Objective,
    workload: Workload,
    limits: PlanLimits,
    split: Option<Split>,
}

impl World {
    fn new(segments: Vec<Segment>, devices: Vec<DeviceFacts>) -> Self {
        let limits = PlanLimits {
            context: Some(512),
            sequences: 4,
            chunk: 128,
            logit_rows: 8,
            slots: 2,
            kv: KvType::F16,
            activations: Activations::Int8,
        };
        Self {
            model: ModelFacts {
                name: "made up".into(),
                digest: "d1".into(),
                context: 2048,
                row_bytes: 2048,
                logit_row_bytes: 16384,
            },
            segments,
            devices,
            links: Links::default(),
            objective: Objective::Throughput,
            workload: Workload { prompt_tokens: 256, generated_tokens: 128 },
            limits,
            split: None,
        }
    }

    fn input(&self) -> PlannerInput<'_> {
        PlannerInput {
            model: &self.model,
            segments: &self.segments,
            devices: &self.devices,
            links: &self.links,
            objective: self.objective,
            workload: self.workload,
            limits: self.limits,
            split: self.split.as_ref(),
        }
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        plan(&self.input())
    }

    fn split(mut self, text: &str) -> Self {
        self.split = Some(text.parse().expect("a split"));
        self
    }
}

fn random_world(seed: u64) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut segments = model(rng.random_range(1..6), 1, 1);
    for segment in &mut segments {
        let weights = rng.random_range(1..20) * MIB;
        segment.tensors[0].resident_bytes = weights;
        if rng.random_bool(0.2) {
            segment.tensors.push(SegmentTensor { name: "shared".into(), resident_bytes: 5 * MIB });
        }
        segment.read_bytes = weights;
        segment.flops_per_row = rng.random_range(1..4) * weights;
        segment.kv_bytes_per_position = rng.random_range(0..4) * 512;
        segment.scratch_bytes = rng.random_range(0..3) * MIB;
        segment.wide_scratch_bytes = segment.scratch_bytes + 2 * MIB;
    }
    let devices = (0..rng.random_range(1..5))
        .map(|i| DeviceFacts {
            f16_products: i % 2 == 1,
            ..device(&format!("cpu:{i}"), rng.random_range(5..90) * MIB, rng.random_range(0.2..3.0))
        })
        .collect();
    let mut world = World::new(segments, devices);
    world.links.other.latency_us.value = rng.random_range(0.0..2000.0);
    world.limits.sequences = rng.random_range(1..9);
    world.workload.prompt_tokens = rng.random_range(0..600);
    world
}

/// All contiguous placements over all ordered subsequences of the devices.
fn all_placements(segments: usize, devices: usize) -> Vec<Vec<Run>> {
    fn extend(
        runs: &mut Vec<Run>,
        first: usize,
        device: usize,
        (segments, devices): (usize, usize),
        all: &mut Vec<Vec<Run>>,
    ) {
        if first == segments {
            all.push(runs.clone());
            return;
        }
        for device in device..devices {
            for end in first + 1..=segments {
                runs.push(Run { device, segments: first..end });
                extend(runs, end, device + 1, (segments, devices), all);
                runs.pop();
            }
        }
    }
    let mut all = Vec::new();
    extend(&mut Vec::new(), 0, 0, (segments, devices), &mut all);
    all
}

/// Busiest stage or crossing, and the sum of all, straight from the cost model: no prefix sums, no table.
fn exhaustive_times(world: &World, runs: &[Run]) -> (f64, f64) {
    let pace = Pace::new(&world.input(), 512, runs.len());
    let input = world.input();
    let evaluation = Times::new(&input, &pace).evaluate(runs);
    let all = evaluation.stages.iter().chain(&evaluation.crossings).map(|c| c.request_us);
    (all.clone().fold(0.0, f64::max), all.sum())
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn equals_exhaustive_search() {
    let (mut planned, mut refused) = (0, 0);
    for seed in 0..400 {
        let world = random_world(seed);
        let input = world.input();
        let sizes = RunSizes::new(&world.segments);
        let search = Search::new(&input, &sizes, 512);
        let all = all_placements(world.segments.len(), world.devices.len());
        let fitting: Vec<_> = all.iter().filter(|runs| search.prove(runs).is_ok()).collect();
        for stages in 1..=search.most_stages() {
            let of_length = fitting.iter().filter(|runs| runs.len() == stages);
            let times: Vec<_> = of_length.map(|runs| exhaustive_times(&world, runs)).collect();
            let pace = Pace::new(&input, 512, stages);
            let table_times = Times::new(&input, &pace);
            let best = |goal| Table::new(&search, goal, stages, None).best(stages).map(|(value, _)| value.0);
            let smallest = |of: fn(&(f64, f64)) -> f64| times.iter().map(of).reduce(f64::min);
            for (found, wanted) in [
                (best(Goal::Bottleneck(&table_times)), smallest(|t| t.0)),
                (best(Goal::Sum(&table_times)), smallest(|t| t.1)),
            ] {
                match (found, wanted) {
                    (None, None) => refused += 1,
                    (Some(found), Some(wanted)) if close(found, wanted) => planned += 1,
                    other => panic!("seed {seed}, {stages} stages: {other:?}"),
                }
            }
        }
    }
    assert!(
        planned > 500 && refused > 100,
        "{planned} planned, {refused} refused: instances of both kinds are needed"
    );
}

#[test]
fn the_plan_is_the_best_of_all_placements() {
    for seed in 0..300 {
        for objective in [Objective::Latency, Objective::Throughput] {
            let mut world = random_world(seed);
            world.objective = objective;
            if objective == Objective::Throughput {
                // Many sequences and free links: the busiest stage is all that counts.
                world.limits.sequences = 8 * 60;
                world.links.other.latency_us.value = 0.0;
                world.links.other.bandwidth_bytes_per_s.value = 1e18;
            }
            let input = world.input();
            let sizes = RunSizes::new(&world.segments);
            let search = Search::new(&input, &sizes, 512);
            let score = |runs: &[Run]| {
                let (bottleneck, sum) = exhaustive_times(&world, runs);
                if objective == Objective::Latency { sum } else { bottleneck }
            };
            let all = all_placements(world.segments.len(), world.devices.len());
            let fitting = all.iter().filter(|runs| search.prove(runs).is_ok());
            let wanted = fitting.map(|runs| score(runs)).reduce(f64::min);
            let found = search.choose(None);
            match (&found, wanted) {
                (None, None) => assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_)))),
                (Some(found), Some(wanted)) => {
                    assert!(close(score(&found.runs), wanted), "seed {seed}: {:?}", found.runs);
                }
                other => panic!("seed {seed}: {:?}", other.1),
            }
        }
    }
}

#[test]
fn the_closest_placement_lacks_the_fewest_bytes() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut world = random_world(seed);
        world.devices.iter_mut().for_each(|d| d.memory_bytes /= 2);
        let input = world.input();
        let sizes = RunSizes::new(&world.segments);
        let search = Search::new(&input, &sizes, 512);
        let missing = |shortages: &[Shortage]| shortages.iter().map(Shortage::missing_bytes).sum::<u64>();
        let all = all_placements(world.segments.len(), world.devices.len());
        let wanted = all.iter().map(|runs| search.prove(runs).err().map_or(0, |s| missing(&s))).min();
        assert_eq!(Some(missing(&search.closest())), wanted, "seed {seed}");
        refused += usize::from(wanted > Some(0));
    }
    assert!(refused > 50);
}

#[test]
fn plans_are_valid_within_memory_and_the_same_each_time() {
    let mut planned = 0;
    for seed in 0..300 {
        let mut world = random_world(seed);
        world.limits.context = if seed % 2 == 0 { Some(512) } else { None };
        let Ok(plan) = world.plan() else { continue };
        planned += 1;
        assert_eq!(world.plan().as_ref(), Ok(&plan));
        let labels: Vec<_> = world.devices.iter().map(|d| d.label.as_str()).collect();
        let segments = world.segments.len() as u32;
        let model = PlanModel { name: "made up".into(), digest: "d1".into(), segments };
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
        // A plan given back as a split is the same placement with the same figures.
        let mut again = world.clone().split(&plan.split().to_string());
        again.limits.context = Some(plan.context);
        let again = again.plan().expect("proved before");
        assert_eq!((&again.stages, &again.routes), (&plan.stages, &plan.routes));
    }
    assert!(planned > 100);
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
        let sizes = RunSizes::new(&world.segments);
        let search = Search::new(&input, &sizes, 512);
        let times = |runs: &[Run]| exhaustive_times(&world, runs).0;
        let all = all_placements(world.segments.len(), world.devices.len());
        let best =
            all.iter().filter(|r| r.len() == world.devices.len()).map(|r| times(r)).fold(f64::MAX, f64::min);
        let found = search.choose(None).expect("fits");
        assert!(close(times(&found.runs), best));
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
fn a_device_that_would_slow_the_pipeline_down_is_left_out_and_named() {
    let world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cuda:0", 1 << 40, 50.0), device("cpu:0", 1 << 40, 0.05)],
    );
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-13=cuda:0");
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:0 is left out")).expect("a reason");
    assert!(why.contains("% slower"), "{why}");

    // A twin of the device that is used adds nothing to the latency.
    let mut twin = world.clone();
    twin.objective = Objective::Latency;
    twin.devices[1] = device("cuda:1", 1 << 40, 50.0);
    let plan = twin.plan().expect("fits");
    let why = plan.reasons.iter().find(|r| r.starts_with("cuda:1 is left out")).expect("a reason");
    assert!(why.contains("0-13=cuda:1, is predicted no faster"), "{why}");

    let mut tiny = world.clone();
    tiny.devices[1].memory_bytes = 10;
    let plan = tiny.plan().expect("fits");
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:0 is left out")).expect("a reason");
    assert!(why.contains("no plan with it fits (it has 10 bytes)"), "{why}");
}

#[test]
fn memory_forces_a_second_device_where_latency_would_have_one() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    world.objective = Objective::Latency;
    assert_eq!(world.plan().expect("fits").stages.len(), 1);
    world.devices.iter_mut().for_each(|d| d.memory_bytes = 100 * MIB);
    assert_eq!(world.plan().expect("fits").stages.len(), 2);
}

#[test]
fn what_does_not_fit_is_named_with_bytes_and_device() {
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device("cpu:0", 100 * MIB, 1.0)]);
    let Err(PlanError::DoesNotFit(error)) = world.plan() else { panic!("it cannot fit") };
    let [shortage] = error.shortages.as_slice() else { panic!("{error:?}") };
    assert_eq!(shortage.device, "cpu:0");
    assert_eq!(shortage.memory.weights, 140 * MIB);
    assert_eq!(shortage.missing_bytes(), shortage.memory.total - 100 * MIB);
    let text = PlanError::DoesNotFit(error.clone()).to_string();
    let wanted = format!("cpu:0 lacks {} bytes for segments 0-13", error.shortages[0].missing_bytes());
    assert!(text.contains(&wanted) && text.contains("weights 140.0 MiB"), "{text}");
    assert!(text.contains("another device") && !text.contains("--ctx"), "{text}");

    let mut many = world.clone();
    many.devices = (0..6).map(|i| device(&format!("cpu:{i}"), 12 * MIB, 1.0)).collect();
    let Err(PlanError::DoesNotFit(error)) = many.plan() else { panic!("it cannot fit") };
    let rest = error.shortages[3..].iter().map(Shortage::missing_bytes).sum::<u64>();
    let wanted = format!("{} devices more lack {rest} bytes together", error.shortages.len() - 3);
    assert!(PlanError::DoesNotFit(error).to_string().contains(&wanted), "{wanted}");

    // Here the weights fit and the cache does not: the hint names a context that does.
    world.limits.kv = KvType::F32;
    world.devices[0].memory_bytes = 160 * MIB;
    let Err(PlanError::DoesNotFit(error)) = world.plan() else { panic!("it cannot fit") };
    let largest = largest_context(&world.input()).expect("something fits");
    assert!(error.hint.contains(&format!("--ctx {largest} fits")), "{}", error.hint);
    assert!(error.hint.contains("--kv f16") && error.hint.contains("fewer sequences"), "{}", error.hint);
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
    assert!(plan.reasons.iter().any(|r| r.contains("context 2048: the model's own")), "{:?}", plan.reasons);

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
    // A model of a few positions has less than one block.
    world.devices[0].memory_bytes = 1 << 40;
    world.model.context = 7;
    assert_eq!(largest_context(&world.input()), Ok(7));
}

#[test]
fn a_users_split_is_checked_and_proved_but_kept() {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 130 * MIB, 1.0)];
    let world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    // Any order of devices is the user's to choose.
    for text in ["0=cpu:0,1-13=cpu:0", "0-5=cpu:0,7-13=cpu:1", "0-5=cpu:0,6-14=cpu:1", "0-13=cuda:0"] {
        assert!(matches!(world.clone().split(text).plan(), Err(PlanError::Split(_))), "{text}");
    }
    for text in ["0-12=cpu:0,13=cpu:1", "0-5=cpu:1,6-13=cpu:0", "0-13=cpu:0"] {
        let plan = world.clone().split(text).plan().expect("fits");
        assert_eq!(plan.split().to_string(), text);
    }
    let poor = world.clone().split("0-12=cpu:0,13=cpu:1").plan().expect("fits");
    assert!(poor.reasons.iter().any(|r| r.contains("is predicted faster")), "{:?}", poor.reasons);
    let own = world.plan().expect("fits");
    let same = world.clone().split(&own.split().to_string()).plan().expect("fits");
    assert!(same.reasons.iter().any(|r| r.contains("no faster split")), "{:?}", same.reasons);

    let Err(PlanError::DoesNotFit(error)) = world.clone().split("0=cpu:0,1-13=cpu:1").plan() else {
        panic!("130 MiB of weights leave nothing for the cache")
    };
    assert_eq!(error.shortages[0].device, "cpu:1");
    let mut open = world.clone().split("0-5=cpu:0,6-13=cpu:1");
    open.limits.context = None;
    assert_eq!(open.plan().expect("fits").context, largest_context(&open.input()).expect("fits"));
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
    let idle = two.reasons.iter().find(|r| r.starts_with("bubbles")).expect("a reason");
    assert!(idle.contains("33 % of a prefill burst"), "{idle}");
}

#[test]
fn predictions_are_sums_of_segment_times() {
    let world = World::new(model(2, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    let plan = world.plan().expect("fits");
    let batch = crate::cost::MicroBatch { rows: 4, logit_rows: 4, sequences: 4, positions: 256.0 + 64.0 };
    let time = |s| segment_time_us(s, &world.devices[0], Activations::Int8, &batch);
    let wanted: f64 = world.segments.iter().map(time).sum();
    assert!((plan.stages[0].predicted.decode_us - wanted).abs() <= 0.05 + 1e-9);
    assert!((plan.predicted.decode_tokens_per_s - 4.0 / wanted * 1e6).abs() <= 0.05 + 1e-9);
}

#[test]
fn a_slow_link_counts() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)],
    );
    assert_eq!(world.plan().expect("fits").stages.len(), 2);
    let slow = LinkFacts { bandwidth_bytes_per_s: Figure::assumed(1e5), ..LinkFacts::assumed() };
    world.links.known.push(("cpu:0".into(), "cpu:1".into(), slow));
    let plan = world.plan().expect("fits");
    assert_eq!(plan.stages.len(), 1, "{}", plan.split());
    let forced = world.split("0-6=cpu:0,7-13=cpu:1").plan().expect("fits");
    let bottleneck = &forced.reasons.iter().find(|r| r.starts_with("bottleneck")).expect("a reason");
    assert!(bottleneck.contains("the crossing from cpu:0 to cpu:1"), "{bottleneck}");
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
    assert_eq!(twice, "cpu:0: its label (used twice) makes no sense");
    let nan = error(&|w| w.devices[0].bandwidth_bytes_per_s.value = f64::NAN);
    assert_eq!(nan, "cpu:0: its bandwidth_bytes_per_s makes no sense");
    let link = error(&|w| w.links.other.latency_us.value = -1.0);
    assert_eq!(link, "the links that are not known: its latency_us makes no sense");
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
    // The sort key of the table is a pair of finite numbers.
    assert!(Value(1.0, 0.0) < Value(1.0, 1.0));
}
