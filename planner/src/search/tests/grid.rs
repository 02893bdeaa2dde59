//! Tests of the planner's choices other than the placement: chunks and wire type.

use super::*;
use crate::cost::{
    KindProfile, PROFILE_VERSION, Profile, ProfileIdentity, SegmentKey, TimePoint, TimeSample, TimedFor,
    TokenReturn,
};
use ragtag_kernels::KvType;
use std::sync::Arc;

/// Returns a world whose link has the rate `bytes_per_s`. Each of its two devices is too small for the whole
/// model.
fn world_over_a_link(bytes_per_s: f64) -> World {
    let devices = vec![device("cpu:0", 80 * MIB, 1.0), device("cpu:1", 80 * MIB, 1.0)];
    let mut world = World::new(model(12, 8 * MIB, 8 * MIB), devices);
    world.links.other.bandwidth_bytes_per_s.value = bytes_per_s;
    world
}

#[test]
fn slow_links_get_wire_type_f16() {
    let reason = |plan: &Plan| {
        plan.reasons.iter().find(|reason| reason.starts_with("wire type: ")).cloned().unwrap_or_default()
    };
    let slow = world_over_a_link(2e6).plan().expect("fits");
    assert_eq!(slow.wire_type, WireType::F16);
    let reported = "wire type: f16; with f32 the plan is predicted ";
    assert!(reason(&slow).contains(reported) && reason(&slow).contains(" slower; "), "{}", reason(&slow));
    assert!(reason(&slow).contains("the transfer from cpu:0 to cpu:1 takes "), "{}", reason(&slow));
    let fast = world_over_a_link(6e9).plan().expect("fits");
    assert_eq!(fast.wire_type, WireType::F32);
    assert!(reason(&fast).contains("wire type: f32; with f16 the plan is predicted "), "{}", reason(&fast));
    // With f16, the link carries half as many bytes at the same latency.
    let with = |wire_type| {
        let mut world = world_over_a_link(2e6);
        world.limits.wire_type = Some(wire_type);
        world.plan().expect("fits")
    };
    let [wide, narrow] = WireType::ALL.map(with);
    assert_eq!((wide.chunk, narrow.chunk, wide.decode_rows), (128, 128, narrow.decode_rows));
    let transfer = |plan: &Plan| (plan.edges[0].predicted.prefill_us, plan.edges[0].predicted.decode_us);
    let bytes = |rows: u32| f64::from(rows) * 2048.0 / 2e6 * 1e6;
    for (row_share, plan) in [(1.0, &wide), (0.5, &narrow)] {
        let expected = [128, plan.decode_rows].map(|rows| tenths(20.0 + row_share * bytes(rows)));
        assert_eq!(transfer(plan), (expected[0], expected[1]));
        assert_eq!(reason(plan), format!("wire type: {}, as requested", plan.wire_type));
    }
    // The planner must choose the better wire type.
    assert_eq!(slow.explanation.score_us, narrow.explanation.score_us);
    assert!(narrow.explanation.score_us < wide.explanation.score_us);
    let one = World::new(model(4, MIB, MIB), vec![device("cpu:0", 1 << 40, 1.0)]).plan().expect("fits");
    assert_eq!((one.wire_type, reason(&one).as_str()), (WireType::F32, ""));
}

#[test]
fn the_chosen_wire_type_is_as_good_as_the_better_one() {
    let mut narrow = 0;
    for seed in (0..200).step_by(if nightly() { 1 } else { 3 }) {
        for objective in OBJECTIVES {
            let world = World { objective, ..random_world(seed) };
            let with = |wire_type| {
                let limits = PlanLimits { wire_type, ..world.limits };
                World { limits, ..world.clone() }.plan().ok()
            };
            let Some(chosen) = with(None) else { continue };
            narrow += usize::from(chosen.wire_type == WireType::F16);
            let score = |plan: &Plan| plan.explanation.score_us;
            let forms = WireType::ALL.map(|form| with(Some(form)));
            let best = forms.iter().flatten().map(score).fold(f64::INFINITY, f64::min);
            // Among plans within one percent, the plan with the fewest devices is chosen. Among points within
            // half a percent, the first point is chosen.
            assert!(
                score(&chosen) <= best * 1.02 + 0.1,
                "seed {seed}, {objective:?}: {} {best}",
                score(&chosen)
            );
        }
    }
    assert!(narrow > 6, "{narrow} plans with f16 boundaries");
}

#[test]
fn exact_activations_use_wire_type_f32() {
    let mut world = world_over_a_link(2e6);
    world.limits.activations = Activations::F32;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.wire_type, WireType::F32);
    assert!(!plan.reasons.iter().any(|reason| reason.starts_with("boundaries")));
    world.limits.wire_type = Some(WireType::F16);
    let error = world.plan().expect_err("refused");
    assert_eq!(error, PlanError::ExactBoundary { wire_type: WireType::F16 });
    assert!(error.to_string().starts_with("wire type f16 needs "), "{error}");
}

#[test]
fn a_chunk_is_chosen_where_several_are_offered() {
    let device = DeviceFacts { launch_us: Figure::assumed(2000.0), ..device("cpu:0", 1 << 40, 10.0) };
    let world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device]);
    let wider: Vec<Segment> =
        world.segments.iter().map(|s| Segment { scratch_bytes: 2 * MIB, ..s.clone() }).collect();
    let others = [(64, world.segments.as_slice()), (256, wider.as_slice())];
    let plan = |constrained: u64| {
        let mut world = world.clone();
        world.devices[0].memory_bytes = constrained;
        plan(&PlannerInput { other_chunks: &others, ..world.input() })
    };
    // Each launch is expensive, so chunks are as long as their scratch allows.
    assert_eq!(plan(1 << 40).expect("fits").chunk, 256);
    let needed = plan(1 << 40).expect("fits").stages[0].memory_bytes.total;
    let less = plan(needed - 1).expect("fits");
    assert_eq!(less.chunk, 128);
    assert!(less.stages[0].memory_bytes.total < needed);
}

#[test]
fn a_plan_lists_the_fastest_chunk_for_each_length_of_prompt() {
    let device = DeviceFacts { launch_us: Figure::assumed(2000.0), ..device("cpu:0", 1 << 40, 10.0) };
    let world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device]);
    let wider: Vec<Segment> =
        world.segments.iter().map(|s| Segment { scratch_bytes: 2 * MIB, ..s.clone() }).collect();
    let others = [(64, world.segments.as_slice()), (512, wider.as_slice())];
    let plan = |workload, memory_bytes| {
        let mut world = World { workload, ..world.clone() };
        world.limits.sequences = 1;
        world.devices[0].memory_bytes = memory_bytes;
        plan(&PlannerInput { other_chunks: &others, ..world.input() }).expect("fits")
    };
    let list = |plan: &Plan| -> Vec<_> {
        plan.chunks().by_prompt.iter().map(|chunk| (chunk.from_tokens, chunk.rows)).collect()
    };
    // On one device, a single launch for the whole prompt is best.
    let short = Workload { prompt_tokens: 100, generated_tokens: 100 };
    let whole = plan(short, 1 << 40);
    assert_eq!(list(&whole), [(0, 64), (65, 128), (129, 512)]);
    assert_eq!((whole.chunk, whole.chunks().most_rows()), (512, 512), "the plan's memory is for the longest");
    // The memory check uses the longest chunk.
    let total = whole.stages[0].memory_bytes.total;
    assert!(whole.stages[0].memory_bytes.scratch > plan(short, total - 1).stages[0].memory_bytes.scratch);
    assert_eq!(list(&plan(short, total - 1)), [(0, 64), (65, 128)]);
}

#[test]
fn of_similar_chunks_a_gpu_takes_the_longest_and_a_processor_the_fastest() {
    let longest_with = |percent: u64, in_host_memory: bool| {
        let device = DeviceFacts { in_host_memory, ..device("gpu:0", 1 << 40, 10.0) };
        let world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device]);
        let scaled = |s: &Segment| Segment { flops_per_row: s.flops_per_row * percent / 100, ..s.clone() };
        let scaled: Vec<Segment> = world.segments.iter().map(scaled).collect();
        let plan = plan(&PlannerInput { other_chunks: &[(512, scaled.as_slice())], ..world.input() });
        plan.expect("fits").chunks().by_prompt.last().expect("lists chunks").rows
    };
    assert_eq!([100, 103, 110].map(|percent| longest_with(percent, false)), [512, 512, 128]);
    assert_eq!([97, 101, 103].map(|percent| longest_with(percent, true)), [512, 128, 128]);
    // A longer chunk has less overhead.
    assert_eq!(longest_with(100, true), 512);
}

#[test]
fn a_chunk_that_was_not_timed_must_be_clearly_faster() {
    let longest_with = |launch_us: f64, timed: &[u32]| {
        let mut world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device("gpu:0", 1 << 40, 10.0)]);
        let sample = |rows: u32, sequences: u32, positions: f64| TimeSample {
            at: TimePoint { rows, sequences, positions },
            median_us: launch_us + f64::from(rows) * 10.0,
            spread_us: 1.0,
            count: 9,
        };
        let kind = |segment: &Segment| {
            let key = SegmentKey::from(segment);
            let samples = timed.iter().map(|&rows| match key.attends() {
                true => sample(rows, 1, 64.0),
                false => sample(rows, rows, 0.0),
            });
            KindProfile::new(key, samples.collect())
        };
        let mut kinds: Vec<KindProfile> = world.segments.iter().map(kind).collect();
        kinds.dedup_by_key(|kind| kind.key);
        world.devices[0].profile = Some(Arc::new(Profile { kinds, ..unmeasured() }));
        let others = [(512, world.segments.as_slice())];
        let plan = plan(&PlannerInput { other_chunks: &others, ..world.input() });
        plan.expect("fits").chunks().by_prompt.last().expect("lists chunks").rows
    };
    // Four launches of 128 rows take 3 % longer than one of 512 rows with a 50 µs launch, and 18 % longer
    // with 400 µs.
    assert_eq!([50.0, 400.0].map(|launch_us| longest_with(launch_us, &[16, 128])), [128, 512]);
    assert_eq!(longest_with(50.0, &[16, 128, 512]), 512);
}

/// Returns a profile without measured times.
fn unmeasured() -> Profile {
    Profile {
        ragtag_profile: PROFILE_VERSION,
        identity: ProfileIdentity {
            device: "gpu:0".into(),
            name: "a GPU".into(),
            driver: "none".into(),
            units: 1,
            together: 1,
            kernels: "k".into(),
            shape: "s".into(),
            activations: Activations::Int8,
            kv: KvType::F16,
        },
        measured_unix_s: 0,
        timed_for: TimedFor { chunk: 512, sequences: 1 },
        stage_us: 0.0,
        hand_over_us: 0.0,
        host_latency_us: 0.0,
        host_bandwidth_bytes_per_s: 1e12,
        token_return: TokenReturn { latency_us: 0.0, row_us: 0.0 },
        roofline: None,
        kinds: Vec::new(),
    }
}

#[test]
fn prompt_rows_beside_decode_rows_limit_the_delay() {
    let check = |bandwidth: f64, flops: f64| {
        let mut world = World::new(model(12, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
        world.devices[0].bandwidth_bytes_per_s.value *= bandwidth;
        world.devices[0].fast_flops_per_s.value *= flops;
        let plan = world.plan().expect("fits");
        let step_us = |prompt: u32| {
            let (rows, ends) = (plan.decode_rows + prompt, plan.decode_rows + prompt.min(1));
            let batch = BatchShape { rows, logit_rows: ends, sequences: ends, positions: 320.0 };
            let time = |s: &Segment| segment_time_us(s, &world.devices[0], Activations::Int8, &batch);
            world.segments.iter().map(time).sum::<f64>()
        };
        let (rows, most_us) = (plan.chunks().beside_decode, 3.0 * step_us(0));
        let most_us = most_us.min(100e3 / f64::from(plan.credits));
        assert!(rows == 16 || step_us(rows) <= most_us, "{rows} rows: {} µs of {most_us}", step_us(rows));
        assert!(rows >= 64 || step_us(2 * rows) > most_us, "{rows} rows: {} µs", step_us(2 * rows));
        rows
    };
    // Prompt rows are free as long as reading the weights takes longer.
    assert_eq!(check(1.0, 1e3), 128);
    assert_eq!(check(10.0, 1.0), 16, "a step of few decode rows bounds the prompt rows");
    assert_eq!(check(1.0, 10.0), 64);
    assert_eq!(check(0.01, 0.01), 16, "prompts always progress");
}

#[test]
fn the_grid_has_64_points_at_most_and_its_corners_among_them() {
    for (devices, others) in [(1, 0), (2, 4), (9, 4), (40, 4), (40, 70)] {
        let devices: Vec<_> = (0..devices).map(|i| device(&format!("cpu:{i}"), 1 << 40, 1.0)).collect();
        let mut world = World::new(model(40, MIB, MIB), devices);
        (world.limits.sequences, world.limits.logit_rows) = (64, 64);
        let others: Vec<_> = (0..others).map(|i| (129 + i, world.segments.as_slice())).collect();
        for wire_type in [None, Some(WireType::F32), Some(WireType::F16)] {
            let limits = PlanLimits { wire_type, ..world.limits };
            let input = PlannerInput { other_chunks: &others, limits, ..world.input() };
            let grid = Grid::new(&input, 512);
            let points: Vec<Point> = grid.points().collect();
            assert!(points.len() <= 64, "{}", points.len());
            for (at, point) in points.iter().enumerate() {
                assert!(!points[..at].contains(point), "{point:?} twice");
            }
            let forms = match wire_type {
                Some(form) => vec![form],
                None if world.devices.len() == 1 => vec![WireType::F32],
                None => WireType::ALL.to_vec(),
            };
            let most = u32::try_from(world.devices.len().max(2)).expect("few");
            for wire_type in forms.into_iter().filter(|_| others.len() < 10) {
                for chunk in std::iter::once(128).chain(others.iter().map(|(chunk, _)| *chunk)) {
                    for groups in [1, most] {
                        let corner = Point { chunk, groups, wire_type };
                        let rows = |point: &Point| 64u32.div_ceil(point.groups);
                        let alike = |point: &Point| {
                            (point.chunk, point.wire_type, rows(point)) == (chunk, wire_type, rows(&corner))
                        };
                        assert!(points.iter().any(alike), "{corner:?} of {points:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn engines_use_chunks_of_512_or_the_longest_that_fits() {
    let roomy = [device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    let world = World::new(model(12, 10 * MIB, 10 * MIB), roomy.to_vec());
    let wider: Vec<Segment> =
        world.segments.iter().map(|s| Segment { scratch_bytes: 40 * MIB, ..s.clone() }).collect();
    let others = [64, 512, 1024].map(|chunk| (chunk, if chunk > 128 { &wider[..] } else { &world.segments }));
    let plan = |memory_bytes: u64| {
        let mut world = world.clone();
        world.devices.iter_mut().for_each(|device| device.memory_bytes = memory_bytes);
        let input = PlannerInput { other_chunks: &others, ..world.input() };
        let plan = untuned_baseline(&input, Baseline::EvenLayers, EngineDecode::InTurn);
        plan.expect("no error").expect("it fits")
    };
    let with_room = plan(1 << 40);
    assert_eq!((with_room.chunk, with_room.decode_groups, with_room.credits), (512, 2, 3));
    let most = with_room.stages.iter().map(|stage| stage.memory_bytes.total).max().expect("stages");
    assert_eq!(plan(most - 1).chunk, 128);
}

#[test]
#[should_panic(expected = "do not cover the segments 0..6 once and in order")]
fn a_placement_covers_all_segments() {
    let world = World::new(model(4, MIB, MIB), vec![device("gpu:0", 1 << 40, 1.0)]);
    let input = world.input();
    let grid = Grid::new(&input, 512);
    Choice::of(grid.start(), vec![Run::new(0, 0..3), Run::new(0, 4..6)]);
}
