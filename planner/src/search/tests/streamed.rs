//! Tests of plans with streamed weights.

use super::*;
use crate::cost::RunSizes;
use ragtag_graph::execution::{Arenas, FEWEST};

/// Returns a model of `blocks` blocks, each with a small and a large tensor, in a world with `devices`.
fn world(blocks: usize, devices: Vec<DeviceFacts>) -> World {
    let mut segments = model(blocks, 10 * MIB, 4 * MIB);
    for (at, segment) in segments.iter_mut().enumerate().filter(|(_, s)| s.kind == SegmentKind::Block) {
        segment.tensors.push(SegmentTensor::new(format!("norm {at}"), MIB / 2));
        let factors = SegmentTensor::new("factors", 256);
        segment.tensors.push(SegmentTensor { is_generated: true, ..factors });
    }
    World { streaming: true, ..World::new(segments, devices) }
}

fn gpu(label: &str, mib: u64) -> DeviceFacts {
    DeviceFacts { host_bandwidth_bytes_per_s: Figure::assumed(1e9), ..device(label, mib * MIB, 1.0) }
}

/// Returns a random world whose devices together hold `share` of the resident model.
fn random(seed: u64, share: f64) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let labels = (0..rng.random_range(1..4)).map(|at| format!("gpu:{at}"));
    let devices: Vec<_> = labels.map(|label| gpu(&label, 1 << 20)).collect();
    let mut world =
        World { objective: OBJECTIVES[seed as usize % 4], ..world(rng.random_range(8..20), devices) };
    for segment in &mut world.segments {
        let bytes = rng.random_range(6..12) * MIB;
        (segment.tensors[0].resident_bytes, segment.read_bytes) = (bytes, bytes);
        if rng.random_bool(0.1) {
            segment.tensors.push(SegmentTensor::new("shared", MIB));
        }
    }
    world.workload.prompt_tokens = rng.random_range(0..600);
    let whole = Run::new(0, 0..world.segments.len());
    let needed = problem(&world.input(), 1).memory(&whole, None).total as f64 * share;
    let weights: Vec<f64> = world.devices.iter().map(|_| rng.random_range(0.5..2.0)).collect();
    for (device, weight) in world.devices.iter_mut().zip(&weights) {
        device.memory_bytes = (needed * weight / weights.iter().sum::<f64>()) as u64;
        device.host_bandwidth_bytes_per_s.value = 10f64.powf(rng.random_range(8.0..11.0));
        device.fast_flops_per_s.value *= 10f64.powf(rng.random_range(-1.0..1.0));
    }
    if seed.is_multiple_of(3) {
        let segment = rng.random_range(0..world.segments.len() as u32);
        world.constraints.pins.push(Pin { segment, device: "gpu:0".into() });
    }
    world
}

fn planned(world: &World) -> Result<Plan, PlanError> {
    let others = [64, 256, 512].map(|chunk| (chunk, world.segments.as_slice()));
    plan(&PlannerInput { other_chunks: &others, ..world.input() })
}

/// Returns whether the stages of a plan fit with other streamed segments.
fn fits_with(world: &World, plan: &Plan, streamed: &[Vec<u32>]) -> bool {
    let mut split = plan.split();
    for (part, streamed) in split.parts.iter_mut().zip(streamed) {
        part.streamed = Some(streamed.clone());
    }
    let input = PlannerInput { split: Some(&split), ..world.input() };
    let lowered = Arc::new(Lowered::new(input.limits.chunk, input.segments));
    let (wire_type, groups) = (plan.wire_type, plan.decode_groups);
    let problem = Problem::new(&input, lowered, plan.context, Point { chunk: plan.chunk, groups, wire_type });
    problem.prove(&requested::runs(&input).expect("known devices").0).is_ok()
}

#[test]
fn a_streamed_plan_fits_and_streams_as_little_as_possible() {
    let (mut streams, mut refused) = (0, 0);
    let seeds = (0..90).step_by(if nightly() { 1 } else { 5 });
    for (seed, part) in seeds.flat_map(|seed| [0.25, 0.5, 0.75, 1.3].map(|part| (seed, part))) {
        let world = random(seed, part);
        let resident = planned(&World { streaming: false, ..world.clone() });
        let plan = match planned(&world) {
            Ok(plan) => plan,
            Err(error) => {
                assert!(resident.is_err() && !matches!(error, PlanError::HostMemory(_)), "{error}");
                refused += 1;
                continue;
            }
        };
        if let Ok(resident) = resident {
            assert_eq!(plan, resident, "seed {seed}: a model that fits is not streamed");
            continue;
        }
        let labels: Vec<&str> = world.devices.iter().map(|device| device.label.as_str()).collect();
        assert_eq!(plan.validate(&plan.model, &labels), Ok(()), "seed {seed}");
        let (mut streamed, sizes) = (Vec::new(), RunSizes::new(&world.segments));
        for stage in &plan.stages {
            let memory = &stage.memory_bytes;
            assert!(memory.total <= memory.available, "seed {seed}: {stage:?}");
            assert_eq!(memory.arenas > 0, !stage.streamed.is_empty());
            streamed.push(stage.streamed.clone());
        }
        assert!(
            fits_with(&world, &plan, &streamed) && streamed.iter().any(|of| !of.is_empty()),
            "seed {seed}"
        );
        streams += 1;
        for (at, stage) in plan.stages.iter().enumerate().filter(|(_, stage)| !stage.streamed.is_empty()) {
            let streamable = sizes.streamable(stage.segments.range());
            let arenas = |fewer| Arenas::at_most(fewer, stage.arenas().count()).count();
            let is_possible =
                |fewer| fewer == 0 || fewer >= FEWEST && arenas(fewer) == stage.arenas().count();
            for fewer in (0..stage.streamed.len()).filter(|&fewer| is_possible(fewer)) {
                let of_stage = crate::search::streamed::spread(&streamable, fewer);
                let mut streamed = streamed.clone();
                streamed[at] = of_stage.into_iter().map(|segment| segment as u32).collect();
                assert!(!fits_with(&world, &plan, &streamed), "seed {seed}: {fewer} suffice, {stage:?}");
            }
        }
        let score_us = plan.explanation.score_us;
        for other in others(&plan) {
            assert!(score_us <= other.score_us * 1.01 + 0.1, "seed {seed}: {score_us}, {other:?}");
        }
    }
    assert!(streams > 7 && refused > 2, "{streams} streamed, {refused} refused");
}

#[test]
fn the_predictions_include_the_copies() {
    let world = world(12, vec![gpu("gpu:0", 100)]);
    let plan = world.plan().expect("is streamed");
    let stage = &plan.stages[0];
    let bytes = stage.streamed.len() as u64 * (10 * MIB + MIB / 2);
    assert_eq!(plan.host_memory_bytes.weights, bytes);
    assert_eq!(stage.memory_bytes.arenas, 2 * (10 * MIB + MIB / 2));
    let upload_us = bytes as f64 / 1e9 * 1e6;
    assert!((stage.predicted.decode_us - upload_us).abs() < 0.1, "{stage:?}");
    let (segments, input) = (0..world.segments.len(), world.input());
    let resident = problem(&input, 1).times(&Run::new(0, segments));
    assert!(resident.decode_us < upload_us / 2.0, "the copies take longest");
    let reason =
        plan.reasons.iter().find(|reason| reason.starts_with("streamed on gpu:0")).expect("a reason");
    for part in [
        "8 of 14 segments (1, 3, 4, 6, 7, 9, 10, 12) through 2 arenas",
        "84.0 MiB per step at 1.0 GB/s (assumed)",
        "slower",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }

    // Copies that take no longer than the computation cost nothing.
    let mut fast = world.clone();
    fast.devices[0].host_bandwidth_bytes_per_s.value = 1e12;
    let plan = fast.plan().expect("is streamed");
    assert!((plan.stages[0].predicted.prefill_us - tenths(resident.full_chunk_us)).abs() < 0.1);
    assert!(
        plan.predicted.decode_tokens_per_s > 2.0 * world.plan().expect("fits").predicted.decode_tokens_per_s
    );
}

#[test]
fn long_chunks_share_a_copy_of_the_weights() {
    let mut world = world(12, vec![gpu("gpu:0", 100)]);
    world.devices[0].host_bandwidth_bytes_per_s.value = 1e8;
    world.workload = Workload { prompt_tokens: 500, generated_tokens: 12 };
    let streamed = planned(&world).expect("is streamed");
    let chunks = streamed.chunks();
    assert_eq!((streamed.chunk, chunks.most_rows()), (512, 512), "{chunks:?}");
    // A chunk of 64 would delay the other sequences for as long as one of 128.
    assert_eq!(chunks.beside_decode, 128, "{chunks:?}");
}

#[test]
fn the_streamed_segments_of_a_plan_file_are_kept() {
    let world = world(12, vec![gpu("gpu:0", 100), gpu("gpu:1", 1 << 10)]);
    let split = |streamed: Option<&[u32]>| {
        let mut split: Split = "0-13=gpu:0".parse().expect("a split");
        split.parts[0].streamed = streamed.map(<[u32]>::to_vec);
        World { split: Some(split), ..world.clone() }
    };
    let own = split(None).plan().expect("is streamed");
    assert_eq!(own.stages[0].streamed.len(), 8);
    let again = World { split: Some(own.split()), ..world.clone() }.plan().expect("the same plan");
    assert_eq!(again.stages, own.stages);
    let more: Vec<u32> = (2..12).collect();
    assert_eq!(split(Some(&more)).plan().expect("fits").stages[0].streamed, more);
    // The file promises resident weights.
    assert!(matches!(split(Some(&[])).plan(), Err(PlanError::DoesNotFit(_))));
    for (wrong, what) in [
        (&[0, 1][..], "segment 0 on gpu:0 cannot be streamed"),
        (&[4, 13], "segment 13 on gpu:0"),
        (&[4, 99], "segment 99 on gpu:0"),
        (&[4, 5, 6], "at least 4 in order"),
        (&[5, 4, 6, 7], "at least 4 in order"),
    ] {
        let error = split(Some(wrong)).plan().expect_err("invalid").to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn splits_with_several_stages_on_a_device_are_streamed() {
    let devices = vec![gpu("gpu:0", 80), gpu("gpu:1", 60)];
    let world = world(12, devices).split("0-4=gpu:0,5-8=gpu:1,9-13=gpu:0");
    let plan = world.plan().expect("is streamed");
    let of_device = plan.stages.iter().filter(|stage| stage.device == "gpu:0");
    assert!(of_device.clone().any(|stage| !stage.streamed.is_empty()), "{:?}", plan.stages);
    assert!(of_device.map(|stage| stage.memory_bytes.total).sum::<u64>() <= 80 * MIB);
}

#[test]
fn a_shared_tensor_is_never_streamed_and_generated_ones_stay() {
    let mut world = world(4, vec![gpu("gpu:0", 1 << 10)]);
    for at in [2, 3] {
        let tensor = SegmentTensor::new("shared", MIB);
        world.segments[at].tensors.push(tensor);
    }
    let sizes = RunSizes::new(&world.segments);
    assert_eq!(sizes.streamable(0..6), [1, 4]);
    assert_eq!(sizes.streamed_weights(1), [10 * MIB, MIB / 2]);
}

#[test]
fn devices_in_host_memory_stream_nothing() {
    let mut world = world(12, vec![gpu("cpu:0", 100)]);
    world.devices[0].in_host_memory = true;
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
    world.devices.push(gpu("gpu:0", 60));
    let plan = world.plan().expect("the GPU streams");
    let streams = |stage: &&PlanStage| !stage.streamed.is_empty();
    let streaming: Vec<_> = plan.stages.iter().filter(streams).map(|stage| stage.device.as_str()).collect();
    assert_eq!(streaming, ["gpu:0"]);
    // The user may limit the memory of a processor if the host's memory is known.
    world.devices.truncate(1);
    world.host_memory_bytes = Some(1 << 40);
    assert!(world.plan().is_ok());
    world.devices[0].memory_source = FigureSource::Reported;
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
}

#[test]
fn a_gpu_streams_instead_of_using_a_slow_processor() {
    let of = |prompt_tokens, gpu_mib, rate: f64| {
        let mut world = world(12, vec![gpu("gpu:0", gpu_mib), device("cpu:0", 1 << 40, 1.0)]);
        world.devices[1].in_host_memory = true;
        world.devices[1].fast_flops_per_s.value /= 100.0;
        world.devices[1].bandwidth_bytes_per_s.value /= 4.0;
        world.devices[0].host_bandwidth_bytes_per_s.value = rate;
        world.workload = Workload { prompt_tokens, generated_tokens: 64 };
        let plan = planned(&world).unwrap();
        let used: Vec<String> = plan.stages.iter().map(|stage| stage.device.clone()).collect();
        (used, plan.stages.iter().any(|stage| !stage.streamed.is_empty()))
    };
    assert_eq!(of(4000, 90, 1e11), (vec!["gpu:0".into()], true), "a long prompt");
    let (used, streams) = of(4, 90, 1e7);
    assert!(used.contains(&"cpu:0".into()) && !streams, "a slow link: {used:?}");
    assert_eq!(of(4000, 1 << 20, 1e11), (vec!["gpu:0".into()], false), "the model fits the GPU");
}

#[test]
fn a_processor_helps_if_the_host_has_no_room_for_copies() {
    let mut world = world(12, vec![gpu("gpu:0", 90), device("cpu:0", 1 << 40, 0.1)]);
    world.devices[1].in_host_memory = true;
    world.devices[0].host_bandwidth_bytes_per_s.value = 1e11;
    world.workload = Workload { prompt_tokens: 4000, generated_tokens: 64 };
    let [streamed, resident] = [true, false].map(|streaming| {
        let world = World { streaming, ..world.clone() };
        planned(&world).unwrap().host_memory_bytes
    });
    assert!(streamed.weights > 0 && resident.weights == 0);
    assert!(resident.total < streamed.total, "{resident:?}, {streamed:?}");
    world.host_memory_bytes = Some(resident.total);
    let memory = planned(&world).unwrap().host_memory_bytes;
    assert_eq!((memory.weights, memory.total), (0, resident.total));
}

#[test]
fn pinned_copies_need_host_memory() {
    let mut world = world(12, vec![gpu("gpu:0", 100)]);
    world.host_memory_bytes = Some(80 * MIB);
    let Err(PlanError::HostMemory(memory)) = world.plan() else { panic!("84 MiB are pinned") };
    let text = PlanError::HostMemory(memory).to_string();
    assert!(text.contains("streamed weights 84.0 MiB") && text.contains("80.0 MiB is free"), "{text}");
    world.host_memory_bytes = Some(100 * MIB);
    assert!(world.plan().is_ok());
}

#[test]
fn the_error_names_the_memory_that_streaming_needs() {
    let mut small = world(12, vec![gpu("gpu:0", 30)]);
    let Err(PlanError::DoesNotFit(error)) = small.plan() else { panic!("it cannot fit") };
    let text = PlanError::DoesNotFit(error).to_string();
    assert!(text.contains("gpu:0 lacks") && text.contains("the weights could be streamed"), "{text}");
    let needed = crate::search::streamed::smallest_bytes(&problem(&small.input(), 1), 0);
    let needed = needed.expect("can be streamed");
    small.devices[0].memory_bytes = needed - 1;
    assert!(small.plan().is_err());
    small.devices[0].memory_bytes = needed;
    assert!(small.plan().is_ok());
}

#[test]
fn a_streamed_plan_has_a_moderate_context_by_default() {
    let mut world = world(12, vec![gpu("gpu:0", 140)]);
    (world.limits.context, world.model.context, world.limits.sequences) = (None, 1 << 17, 1);
    let resident = World { streaming: false, ..world.clone() };
    assert!(resident.plan().expect("a short context fits").stages[0].streamed.is_empty());
    assert_eq!(world.plan(), resident.plan());
    world.devices[0].memory_bytes = 125 * MIB;
    let plan = world.plan().expect("is streamed");
    assert_eq!(plan.context, 4096);
    assert!(plan.reasons.iter().any(|reason| reason.contains("the default with streamed weights")));
    world.workload.prompt_tokens = 5000;
    let plan = world.plan().expect("is streamed");
    assert_eq!(plan.context, 5000 + world.workload.generated_tokens);
    world.devices[0].memory_bytes = 60 * MIB;
    let plan = world.plan().expect("a shorter context fits");
    assert!(plan.context < 5000 && plan.context.is_multiple_of(16), "{}", plan.context);
}

#[test]
fn extreme_sizes_are_refused_without_overflow() {
    let mut world = world(4, vec![gpu("gpu:0", 100)]);
    for segment in &mut world.segments {
        segment.tensors.iter_mut().for_each(|tensor| tensor.resident_bytes = u64::MAX / 2);
    }
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
}
