//! Tests of plans with a prefill stage.

use super::*;
use crate::cost::StageCapacity;
use crate::plan::PrefillStage;
use crate::search::{hybrid, streamed};
use ragtag_graph::execution::{Arenas, FEWEST, MAX_ARENAS, PREFILLS, passing_blocks};
use ragtag_hal::pool::class_bytes;

/// Returns a world with a GPU that does not hold the model, and a processor that decodes half as fast and
/// prefills forty times as slowly.
fn world(gpu_mib: u64) -> World {
    let mut segments = model(12, 10 * MIB, 4 * MIB);
    for (at, segment) in segments.iter_mut().enumerate().filter(|(_, s)| s.kind == SegmentKind::Block) {
        segment.tensors.push(SegmentTensor::new(format!("norm {at}"), MIB / 2));
        let frequencies = SegmentTensor::new("rotary frequencies: a", 256);
        segment.tensors.push(SegmentTensor { is_generated: true, ..frequencies });
    }
    let mut processor = DeviceFacts { in_host_memory: true, ..device("cpu:0", 1 << 40, 0.5) };
    processor.memory_source = FigureSource::Reported;
    processor.fast_flops_per_s.value /= 2.0;
    let mut gpu = DeviceFacts {
        host_bandwidth_bytes_per_s: Figure::assumed(2e9),
        ..device("gpu:0", gpu_mib * MIB, 1.0)
    };
    gpu.fast_flops_per_s.value *= 10.0;
    let workload = Workload { prompt_tokens: 300, generated_tokens: 200 };
    World {
        streaming: true,
        objective: Objective::Latency,
        workload,
        ..World::new(segments, vec![gpu, processor])
    }
}

fn planned(world: &World) -> Result<Plan, PlanError> {
    let others = [64, 256, 512].map(|chunk| (chunk, world.segments.as_slice()));
    plan(&PlannerInput { other_chunks: &others, ..world.input() })
}

fn prefill_stage(plan: &Plan) -> &PrefillStage {
    plan.prefill_stage.as_ref().expect("a prefill stage")
}

/// Checks that a plan is valid and fits, and that planning its split again gives the same stages.
fn check_plan(world: &World, plan: &Plan) {
    let labels: Vec<&str> = world.devices.iter().map(|device| device.label.as_str()).collect();
    assert_eq!(plan.validate(&plan.model, &labels), Ok(()));
    for stage in plan.stages.iter().chain(plan.prefill_stage.iter().map(|prefill| &prefill.stage)) {
        let memory = &stage.memory_bytes;
        assert!(memory.total <= memory.available, "{stage:?}");
        assert_eq!(memory.arenas > 0, !stage.streamed.is_empty());
    }
    let host = &plan.host_memory_bytes;
    assert!(host.available.is_none_or(|available| host.total <= available), "{host:?}");
    assert_eq!(host.kv > 0, plan.prefill_stage.is_some());
    let mut again = World { split: Some(plan.split()), ..world.clone() };
    (again.limits.chunk, again.limits.decode_groups) = (plan.chunk, Some(plan.decode_groups));
    (again.limits.context, again.limits.wire_type) = (Some(plan.context), Some(plan.wire_type));
    let again = again.plan().expect("the plan's own split");
    let stages = |plan: &Plan| plan.stages.iter().map(|stage| stage.memory_bytes).collect::<Vec<_>>();
    assert_eq!(stages(&again), stages(plan));
    let prefill = |plan: &Plan| {
        let of = |prefill: &PrefillStage| (prefill.stage.memory_bytes, prefill.from_tokens);
        plan.prefill_stage.as_ref().map(of)
    };
    assert_eq!((prefill(&again), again.split()), (prefill(plan), plan.split()));
}

#[test]
fn the_memory_of_the_prefill_stage_by_hand() {
    let world = world(140).split("0-5=gpu:0,6-13=cpu:0");
    let plan = world.plan().expect("fits");
    let PrefillStage { stage, .. } = prefill_stage(&plan);
    assert_eq!((stage.segments.range(), &stage.streamed[..]), (0..14, &[6, 7, 8, 9, 10, 11, 12][..]));
    let (limits, model) = (&world.limits, &world.model);
    let shape = StageCapacity {
        context: 512,
        sequences: limits.sequences,
        kv_blocks: plan.kv_blocks,
        rows: plan.chunk,
        window: None,
        state_bytes: 0,
        logit_rows: limits.logit_rows,
        slots: limits.slots,
        row_bytes: model.row_bytes,
        wire_type: plan.wire_type,
        logit_row_bytes: model.logit_row_bytes(),
        sequence_frequencies: 0,
        verified: false,
    };
    let memory = stage.memory_bytes;
    // The GPU decodes blocks 0 to 4. It lacks the head, and the KV cache of seven blocks. A position takes
    // 512 bytes of keys and as many of values.
    assert_eq!(memory.weights, class_bytes(4 * MIB));
    let arenas = stage.arenas().count() as u64;
    assert_eq!(memory.arenas, arenas * (class_bytes(10 * MIB) + class_bytes(MIB / 2)));
    assert_eq!(memory.kv, 7 * 2 * class_bytes(512 * 512 * 4));
    assert_eq!((memory.scratch, memory.staging), (0, 0), "the stages share the scratch memory");
    assert_eq!(memory.slots, shape.slot_bytes(true));
    assert_eq!(memory.total, memory.weights + memory.arenas + memory.kv + memory.slots);
    assert_eq!(memory.available, 140 * MIB - plan.stages[0].memory_bytes.total);
    let host = plan.host_memory_bytes;
    assert_eq!(host.weights, 7 * (10 * MIB + MIB / 2));
    let blocks = 2 * (u64::from(plan.chunk) / 16 + 2 * 4);
    assert_eq!(host.kv, blocks * 7 * 1024 * 16);
    assert_eq!(blocks, PREFILLS as u64 * passing_blocks(plan.chunk, limits.sequences));
    assert_eq!(host.parameters, 3 * u64::from(limits.slots) * shape.params_bytes());
    assert_eq!(plan.credits, plan.decode_groups.max(2) + 1 + PREFILLS as u32);
    assert_eq!(host.logits, u64::from(plan.credits) * (shape.logits_bytes() + shape.picks_bytes()));
    let parts = [host.logits, host.staging, host.parameters, host.devices, host.weights, host.kv];
    assert_eq!(host.total, parts.iter().sum::<u64>());
    check_plan(&world, &plan);
}

#[test]
fn weights_in_the_layout_of_both_devices_are_counted_once() {
    let weights = |sharing, change: fn(&mut World)| {
        let mut world = world(160).split("0-5=gpu:0,6-13=cpu:0");
        (world.devices[0].weight_sharing, world.devices[1].weight_sharing) = sharing;
        // The layout of all matrices but that of block 7 depends on the device.
        for (at, segment) in world.segments.iter_mut().enumerate() {
            segment.tensors[0].layout_varies = at != 7;
        }
        change(&mut world);
        let plan = world.plan().expect("fits");
        check_plan(&world, &plan);
        let host = plan.host_memory_bytes;
        let parts = [host.logits, host.staging, host.parameters, host.devices, host.weights, host.kv];
        assert_eq!(host.total, parts.iter().sum::<u64>());
        host.weights
    };
    use WeightSharing::{All, Blocks, None, Owner};
    let all = 7 * (10 * MIB + MIB / 2);
    assert_eq!(weights((None, None), |_| {}), all);
    assert_eq!(weights((All, None), |_| {}), all, "the processor does not lend its memory");
    assert_eq!(weights((None, Owner), |_| {}), all, "the GPU cannot copy from it");
    assert_eq!(weights((All, Owner), |_| {}), 0);
    // The norms and the matrix of block 7 have the same layout everywhere.
    assert_eq!(weights((Blocks, Owner), |_| {}), 6 * 10 * MIB);
    let limited = |world: &mut World| world.devices[0].buffers.binding_bytes = 10 * MIB - 1;
    assert_eq!(weights((All, Owner), limited), 7 * 10 * MIB, "the GPU splits the matrices");
}

#[test]
fn verified_keys_and_values_need_memory_for_checksums() {
    let plan = |verified| {
        let mut world = world(160).split("0-5=gpu:0,6-13=cpu:0");
        world.limits.verified = verified;
        let plan = world.plan().expect("fits");
        check_plan(&world, &plan);
        plan
    };
    let (plain, verified) = (plan(false), plan(true));
    assert_eq!(prefill_stage(&plain).stage.arenas, prefill_stage(&verified).stage.arenas);
    // Each buffer of seven blocks has a place of 512 bytes for each cache block in transit.
    let places = PREFILLS as u64 * passing_blocks(verified.chunk, 4) * 2 * 7;
    let sums = class_bytes(512 * places);
    let slots = |plan: &Plan| plan.all_stages().map(|stage| stage.memory_bytes.slots).collect::<Vec<_>>();
    let own = |at: usize| slots(&verified)[at] - slots(&plain)[at];
    assert_eq!([own(1) - own(0), own(2) - own(0)], [sums; 2]);
    for stage in verified.all_stages() {
        let memory = stage.memory_bytes;
        let parts = memory.weights + memory.arenas + memory.kv + memory.scratch;
        assert_eq!(memory.total, parts + memory.slots + memory.staging);
    }
    let host = verified.host_memory_bytes.parameters - plain.host_memory_bytes.parameters;
    assert!(host >= 2 * 512 * places, "{host}");
}

#[test]
fn a_prefill_stage_beats_the_other_ways() {
    let mut world = world(100);
    world.limits.decode_groups = Some(1);
    let plan = planned(&world).expect("fits");
    let PrefillStage { stage, from_tokens } = prefill_stage(&plan);
    assert_eq!(stage.device, "gpu:0");
    let resident = planned(&World { streaming: false, ..world.clone() }).expect("fits");
    assert!(resident.prefill_stage.is_none() && resident.stages.len() == 2);
    let input = world.input();
    let grid = Grid::new(&input, 512);
    let streamed = streamed::best(&grid, &[&[Run::new(0, 0..14)]]).expect("the GPU can stream");
    for (other_us, what) in
        [(resident.explanation.score_us, "resident"), (streamed.best.score_us(), "streamed")]
    {
        assert!(
            plan.explanation.score_us < 0.9 * other_us,
            "{what}: {other_us}, {}",
            plan.explanation.score_us
        );
    }
    assert!(plan.predicted.prefill_tokens_per_s > 4.0 * resident.predicted.prefill_tokens_per_s);
    assert!(plan.predicted.first_token_us < resident.predicted.first_token_us / 2.0);
    assert!(plan.predicted.decode_tokens_per_s > 1.1 * streamed.best.evaluation.decode_tokens_per_s);
    // Only the prefill stage has times for prompts.
    let prefill_us = |stage: &PlanStage| stage.predicted.prefill_us;
    assert!(
        plan.stages.iter().map(prefill_us).chain([plan.edges[0].predicted.prefill_us]).all(|us| us == 0.0)
    );
    assert!(stage.predicted.prefill_us > 0.0 && stage.predicted.decode_us == 0.0);
    assert!(plan.stages.iter().all(|stage| stage.predicted.decode_us > 0.0));
    let reason = plan.reasons.iter().find(|reason| reason.starts_with("prompts from")).expect("a reason");
    for part in [
        format!("prompts from {from_tokens} tokens run on gpu:0 with streamed weights of segments"),
        "per chunk at 2.0 GB/s (assumed); predicted".into(),
        format!("{:.1} tokens/s instead of", plan.predicted.prefill_tokens_per_s),
    ] {
        assert!(reason.contains(&part), "{part}: {reason}");
    }
    assert_eq!(planned(&world).as_ref(), Ok(&plan), "planning is deterministic");
    check_plan(&world, &plan);
}

#[test]
fn the_times_of_a_prefill_stage_add_up() {
    let world = world(100).split("0-5=gpu:0,6-13=cpu:0");
    let input = world.input();
    let problem = problem(&input, 1);
    let (runs, _) = requested::runs(&input).expect("known devices");
    let prefill = Run { streamed: (6..13).collect(), ..Run::new(0, 0..14) };
    let [with, without] = [Some(&prefill), None].map(|prefill| problem.evaluate_with(&runs, prefill));
    assert_eq!(with.decode_tokens_per_s, without.decode_tokens_per_s);
    assert_eq!(with.token_us, without.token_us);
    let alone = problem.evaluate(std::slice::from_ref(&prefill));
    assert_eq!(with.prefill_tokens_per_s, alone.prefill_tokens_per_s);
    assert!(close(with.first_token_us, alone.first_token_us));
    assert!(without.first_token_us > with.first_token_us);
    // The GPU is busy with decode steps and with prompts.
    let on_gpu = with.stages[0] + with.prefill.expect("times");
    assert_eq!(with.devices, [(0, on_gpu), (1, with.stages[1])]);
}

#[test]
fn neighbouring_streamed_segments_get_more_arenas() {
    // The GPU decodes blocks 0 to 3. The prefill stage streams blocks 4 to 11.
    let with_rate = |mib: u64, rate: f64| {
        let mut world = world(mib).split("0-4=gpu:0,5-13=cpu:0");
        world.limits.decode_groups = Some(1);
        world.limits.chunk = 512;
        world.devices[0].host_bandwidth_bytes_per_s.value = rate;
        world
    };
    // A full chunk computes for about as long as its copies take.
    let computed = with_rate(300, 1e13).plan().expect("fits");
    let computed_us = prefill_stage(&computed).stage.predicted.prefill_us;
    let rate = computed.host_memory_bytes.weights as f64 / computed_us * 1e6;
    let planned = |mib: u64| with_rate(mib, rate).plan().ok();
    let mut before: Option<Plan> = None;
    let mut counts = Vec::new();
    for mib in (90..220).step_by(5) {
        let Some(plan) = planned(mib) else { continue };
        let Some(PrefillStage { stage, .. }) = &plan.prefill_stage else { continue };
        let count = stage.arenas().count();
        assert_eq!(stage.arenas, Some(count as u32));
        let reason = plan.reasons.iter().find(|reason| reason.starts_with("prompts from")).expect("a reason");
        assert!(reason.contains(&format!("of segments 5-12 through {count} arenas: ")), "{reason}");
        if let Some(before) = &before {
            let us = |plan: &Plan| prefill_stage(plan).stage.predicted.prefill_us;
            let arenas = |plan: &Plan| prefill_stage(plan).stage.arenas().count();
            assert!(us(&plan) <= us(before), "more memory is never slower");
            assert_eq!(
                arenas(&plan) == arenas(before),
                us(&plan) == us(before),
                "fewest of equally fast ones"
            );
        }
        counts.push(count);
        before = Some(plan);
    }
    counts.dedup();
    assert_eq!(counts, [2, 4], "of {:?}", Arenas::all(8));
    let given = World { split: before.map(|plan| plan.split()), ..with_rate(220, rate) };
    let us = |arenas: Option<u32>| {
        let mut world = given.clone();
        world.split.iter_mut().flat_map(|split| &mut split.prefill).for_each(|of| of.arenas = arenas);
        let plan = world.plan().map_err(|error| error.to_string())?;
        Ok::<_, String>((prefill_stage(&plan).stage.arenas().count(), prefill_stage(&plan).stage.predicted))
    };
    let [(two, slow), (four, fast)] = [None, Some(4)].map(|arenas| us(arenas).expect("fits"));
    assert_eq!((two, four), (2, 4));
    assert!(fast.prefill_us < 0.95 * slow.prefill_us, "{fast:?} {slow:?}");
    let error = us(Some(MAX_ARENAS as u32 + 1)).expect_err("refused");
    assert!(error.contains("gpu:0: 8 streamed segments cannot share 9 arenas (possible: "), "{error}");
}

#[test]
fn the_device_order_is_chosen() {
    let slow = |from: &str, to: &str| {
        let mut world = world(100);
        let facts = world.links.between(from, to).clone();
        let facts = LinkFacts { latency_us: Figure::assumed(20_000.0), ..facts };
        world.links.known.push((from.into(), to.into(), facts));
        let plan = planned(&world).expect("fits");
        check_plan(&world, &plan);
        assert_eq!(prefill_stage(&plan).stage.device, "gpu:0");
        plan.stages.iter().map(|stage| stage.device.clone()).collect::<Vec<_>>()
    };
    assert_eq!(slow("cpu:0", "gpu:0"), ["gpu:0", "cpu:0"]);
    assert_eq!(slow("gpu:0", "cpu:0"), ["cpu:0", "gpu:0"]);
}

#[test]
fn devices_take_turns_if_that_shortens_long_prompts() {
    // With one stage each, two arenas hold a fifth of the streamed weights. The copies of the others begin only
    // when the GPU has computed its own segments.
    let plan = |several_stages, latency_us| {
        let mut world = World { several_stages, segments: model(24, 10 * MIB, 4 * MIB), ..world(230) };
        world.limits.decode_groups = Some(1);
        world.links.other.latency_us = Figure::assumed(latency_us);
        world.devices[0].host_bandwidth_bytes_per_s.value = 1.3e9;
        world.devices[0].fast_flops_per_s.value *= 10.0;
        let plan = planned(&world).expect("fits");
        check_plan(&world, &plan);
        plan
    };
    let (one_each, turns) = (plan(false, 10.0), plan(true, 10.0));
    assert_eq!((one_each.stages.len(), turns.stages.len()), (2, 6));
    let prefill_us = |plan: &Plan| prefill_stage(plan).stage.predicted.prefill_us / f64::from(plan.chunk);
    assert!(prefill_us(&turns) < 0.9 * prefill_us(&one_each));
    assert!(turns.explanation.score_us <= 1.01 * one_each.explanation.score_us);
    let reason =
        "interleaved: the devices take turns, so that weights are copied while gpu:0 computes its own";
    assert!(turns.reasons.iter().any(|said| said.contains(reason)), "{:?}", turns.reasons);
    // Each decode step would wait for four more transfers.
    assert_eq!(plan(true, 2000.0).split(), plan(false, 2000.0).split());
}

#[test]
fn the_gpu_decodes_as_many_segments_as_fit() {
    let lengths: Vec<usize> = (60..140)
        .step_by(5)
        .filter_map(|mib| {
            let mut world = world(mib);
            world.limits.decode_groups = Some(1);
            let plan = planned(&world).ok()?;
            let prefill = plan.prefill_stage.as_ref()?;
            assert!(prefill.stage.streamed.len() >= FEWEST);
            let run = plan.stages.iter().find(|stage| stage.device == "gpu:0").expect("decodes");
            let (memory, beside) = (run.memory_bytes, prefill.stage.memory_bytes);
            assert_eq!(beside.available + memory.total, mib * MIB);
            let free = mib * MIB - memory.total - beside.total;
            // One more segment would at most need one more arena.
            let blocks = run.segments.range().len();
            let longest = prefill.stage.streamed.len() == FEWEST || free < 2 * (11 * MIB + 3 * MIB);
            assert!(longest, "{mib} MiB: {blocks} segments, {free} bytes free");
            assert!(beside.arenas >= prefill.stage.arenas().count() as u64 * 10 * MIB);
            Some(blocks)
        })
        .collect();
    assert!(lengths.len() > 6 && lengths.is_sorted() && lengths.first() < lengths.last(), "{lengths:?}");
}

/// Pins decide where weights are. A prefill stage may still stream them from host memory.
#[test]
fn a_prefill_stage_streams_pinned_segments_from_host_memory() {
    let mut pinned = world(100);
    pinned.constraints.pins.push(Pin { segment: 12, device: "cpu:0".into() });
    let plan = planned(&pinned).expect("fits");
    let decodes = plan.stages.iter().find(|stage| stage.segments.range().contains(&12));
    assert_eq!(decodes.map(|stage| stage.device.as_str()), Some("cpu:0"));
    let prefill = plan.prefill_stage.expect("has a prefill stage");
    assert_eq!(prefill.stage.device, "gpu:0");
    assert!(prefill.stage.streamed.contains(&12));
}

#[test]
fn other_plans_have_no_prefill_stage() {
    let has_none = |world: &World| planned(world).expect("fits").prefill_stage.is_none();
    assert!(!has_none(&world(100)));
    assert!(has_none(&world(1 << 20)), "the model fits the GPU");
    assert!(has_none(&World { streaming: false, ..world(100) }), "streaming is off");
    let mut changed = world(100);
    changed.workload.prompt_tokens = 12;
    assert!(has_none(&changed), "the prompts are too short");
    let mut changed = world(100);
    changed.devices[0].host_bandwidth_bytes_per_s.value = 1e7;
    assert!(has_none(&changed), "the copies are too slow");
    let mut changed = world(100);
    changed.constraints.max_stages = Some(2);
    assert!(has_none(&changed), "there may be only two stages");
    let mut changed = world(100);
    changed.devices[1].in_host_memory = false;
    changed.constraints.pins.push(Pin { segment: 12, device: "cpu:0".into() });
    assert!(has_none(&changed), "the prefill stage would compute a segment that is pinned to another GPU");
    let mut changed = world(100);
    changed.devices[1].in_host_memory = false;
    assert!(has_none(&changed), "no device is in host memory");
}

#[test]
fn host_memory_decides_among_the_ways() {
    let mut world = world(100);
    let with = planned(&world).expect("fits").host_memory_bytes;
    let resident = planned(&World { streaming: false, ..world.clone() }).expect("fits").host_memory_bytes;
    assert!(with.weights > 0 && with.kv > 0 && resident.total < with.total);
    world.host_memory_bytes = Some(with.total);
    assert!(planned(&world).expect("fits").prefill_stage.is_some());
    world.host_memory_bytes = Some(with.total - 1);
    let plan = planned(&world).expect("another plan fits");
    assert!(plan.prefill_stage.is_none() && plan.host_memory_bytes.total < with.total);
    world.host_memory_bytes = Some(resident.total);
    let plan = planned(&world).expect("the resident plan fits");
    assert_eq!((plan.prefill_stage.is_none(), plan.host_memory_bytes.weights), (true, 0));
    world.host_memory_bytes = Some(1);
    let error = planned(&world).expect_err("nothing fits").to_string();
    assert!(error.contains("keys and values in transit"), "{error}");
}

#[test]
fn prompts_from_the_threshold_are_computed_sooner() {
    for rate in [5e8, 2e9, 1e10, 1e11] {
        let mut world = world(100);
        world.devices[0].host_bandwidth_bytes_per_s.value = rate;
        world.limits.decode_groups = Some(1);
        let Ok(Plan { prefill_stage: Some(prefill), .. }) = planned(&world) else { continue };
        assert!(prefill.from_tokens <= 300);
        let plan = planned(&world).expect("fits");
        let split = plan.split();
        let first_token_us = |tokens: u32, with: bool| {
            let workload = Workload { prompt_tokens: tokens, generated_tokens: 0 };
            let split = Split { prefill: split.prefill.clone().filter(|_| with), ..split.clone() };
            let mut world = World { workload, split: Some(split), ..world.clone() };
            world.limits.chunk = plan.chunk;
            world.plan().expect("fits").predicted.first_token_us
        };
        for tokens in [prefill.from_tokens, prefill.from_tokens + 1, 300, 500] {
            assert!(first_token_us(tokens, true) < first_token_us(tokens, false), "{rate}: {tokens}");
        }
        if prefill.from_tokens > 16 {
            let tokens = prefill.from_tokens / 2;
            assert!(first_token_us(tokens, true) > first_token_us(tokens, false), "{rate}: {tokens}");
        }
    }
}

#[test]
fn a_plan_file_keeps_its_prefill_stage() {
    let world = world(100);
    let split = planned(&world).expect("fits").split();
    let with = |change: &dyn Fn(&mut Split)| {
        let mut split = split.clone();
        change(&mut split);
        World { split: Some(split), ..world.clone() }.plan()
    };
    let error = |change: &dyn Fn(&mut Split)| with(change).expect_err("refused").to_string();
    let own = with(&|_| ()).expect("fits");
    assert_eq!(own.split(), split);
    assert!(with(&|split| split.prefill = None).expect("fits").prefill_stage.is_none());
    let later = with(&|split| split.prefill.iter_mut().for_each(|of| of.from_tokens = 77)).expect("fits");
    assert_eq!(prefill_stage(&later).from_tokens, 77);
    let streams = |streamed: &'static [u32]| {
        error(&|split| split.prefill.iter_mut().for_each(|of| of.streamed = streamed.to_vec()))
    };
    assert!(streams(&[0, 5, 6, 7]).contains("segment 0 on gpu:0 cannot be streamed"));
    assert!(streams(&[10, 11, 12]).contains("at least 4 in order"));
    let unknown = error(&|split| split.prefill.iter_mut().for_each(|of| of.device = "gpu:9".into()));
    assert!(unknown.contains("gpu:9"), "{unknown}");
    let own = error(&|split| {
        let device = split.parts[0].device.clone();
        split.prefill.iter_mut().for_each(|of| of.device.clone_from(&device));
        let at = split.parts[0].span.range().start as u32 + 1;
        split.prefill.iter_mut().for_each(|of| of.streamed = (at..at + 4).collect());
    });
    assert!(own.contains("decodes segment"), "{own}");
    let mut small = World { split: Some(split.clone()), ..world.clone() };
    small.devices[0].memory_bytes -= 16 * MIB;
    let Err(PlanError::DoesNotFit(error)) = small.plan() else { panic!("the prefill stage does not fit") };
    assert_eq!((&error.shortages[0].device[..], error.shortages[0].segments.range()), ("gpu:0", 0..14));
}

#[test]
fn a_capped_processor_prefills_only_if_the_split_names_it() {
    let mut world = world(140);
    world.devices[0].in_host_memory = true;
    world.host_memory_bytes = Some(1 << 40);
    assert!(planned(&world).expect("fits").prefill_stage.is_none());
    let plan = planned(&world.clone().split("0-5=gpu:0,6-13=cpu:0")).expect("fits");
    assert_eq!(prefill_stage(&plan).stage.device, "gpu:0");
    let memory = plan.stages.iter().map(|stage| stage.memory_bytes.total).sum::<u64>();
    assert_eq!(plan.host_memory_bytes.devices, memory + prefill_stage(&plan).stage.memory_bytes.total);
}

/// Returns a random world whose GPUs together hold `share` of the model.
fn random(seed: u64) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut world = world(1);
    if seed.is_multiple_of(3) {
        world.objective = OBJECTIVES[seed as usize / 3 % 4];
    }
    world.segments = world.segments[..rng.random_range(8..14)].to_vec();
    for segment in &mut world.segments {
        let bytes = rng.random_range(6..12) * MIB;
        (segment.tensors[0].resident_bytes, segment.read_bytes) = (bytes, bytes);
        segment.kv_bytes_per_position *= rng.random_range(1..3);
        segment.value_bytes_per_position = segment.kv_bytes_per_position / 2;
        if rng.random_bool(0.1) {
            segment.tensors.push(SegmentTensor::new("shared", MIB));
        }
    }
    if rng.random_bool(0.3) {
        let other = DeviceFacts { label: "gpu:1".into(), ..world.devices[0].clone() };
        world.devices.insert(rng.random_range(0..=2), other);
    }
    world.workload =
        Workload { prompt_tokens: rng.random_range(0..800), generated_tokens: rng.random_range(50..400) };
    world.several_stages = rng.random_bool(0.3);
    let share = rng.random_range(0.4..1.2);
    let needed = problem(&world.input(), 1).memory(&Run::new(0, 0..world.segments.len()), None).total;
    for device in &mut world.devices {
        device.host_bandwidth_bytes_per_s.value = 10f64.powf(rng.random_range(8.5..10.0));
        device.fast_flops_per_s.value *= 10f64.powf(rng.random_range(0.0..0.5));
        if !device.in_host_memory {
            device.memory_bytes = (needed as f64 * share) as u64;
        }
    }
    if seed.is_multiple_of(5) {
        world.host_memory_bytes = Some(rng.random_range(50..400) * MIB);
    }
    world
}

#[test]
fn random_plans_are_valid_and_fit() {
    let (mut with, mut without) = (0, 0);
    for seed in (0..160).step_by(if nightly() { 1 } else { 3 }) {
        let world = random(seed);
        let Ok(plan) = planned(&world) else { continue };
        check_plan(&world, &plan);
        let resident = planned(&World { streaming: false, ..world.clone() });
        if let Ok(resident) = resident {
            let uses_host = resident.stages.iter().any(|stage| stage.device == "cpu:0");
            assert!(uses_host || plan == resident, "seed {seed}: a plan without the processor is kept");
            let (own_us, other_us) = (plan.explanation.score_us, resident.explanation.score_us);
            assert!(own_us <= other_us * 1.01 + 0.1, "seed {seed}: {own_us}, {other_us}");
        }
        match plan.prefill_stage {
            Some(_) => with += 1,
            None => without += 1,
        }
    }
    assert!(with > 2 && without > 10, "{with} with a prefill stage, {without} without");
}

#[test]
fn the_search_agrees_with_the_best_of_all_splits() {
    let mut world = world(100);
    (world.limits.wire_type, world.limits.decode_groups) = (Some(WireType::F32), Some(1));
    let input = world.input();
    let grid = Grid::new(&input, 512);
    let found = hybrid::search(&grid).expect("fits");
    let all = all_placements(world.segments.len(), 2);
    let two = all.iter().filter(|runs| runs.len() == 2);
    let least_us = two.filter_map(|runs| hybrid::beside(&grid, runs)).map(|choice| choice.expected_us());
    let least_us = least_us.fold(f64::INFINITY, f64::min);
    assert!(found.expected_us() <= least_us * 1.005, "{} {least_us}", found.expected_us());
}
