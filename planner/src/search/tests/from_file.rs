//! Tests of plans that stream weights from the model's file.

use super::*;
use crate::cost::{ASSUMED_FILE_RATE, RunSizes};
use ragtag_graph::execution::READ_PLACES;

/// Bytes of the weights of a block.
const BLOCK: u64 = 10 * MIB;

/// Returns a model of `blocks` blocks in a world with `devices` and `host_mib` MiB of host memory.
fn world(blocks: usize, devices: Vec<DeviceFacts>, host_mib: u64) -> World {
    let world = World::new(model(blocks, BLOCK, 4 * MIB), devices);
    World { streaming: true, from_file: true, host_memory_bytes: Some(host_mib * MIB), ..world }
}

fn gpu(mib: u64) -> DeviceFacts {
    DeviceFacts { host_bandwidth_bytes_per_s: Figure::assumed(1e10), ..device("gpu:0", mib * MIB, 1.0) }
}

fn processor(mib: u64) -> DeviceFacts {
    DeviceFacts { in_host_memory: true, ..device("cpu:0", mib * MIB, 0.1) }
}

fn all_weights(world: &World) -> u64 {
    world.segments.iter().flat_map(|segment| &segment.tensors).map(|tensor| tensor.resident_bytes).sum()
}

#[test]
fn the_file_replaces_the_copies_that_host_memory_cannot_hold() {
    let in_memory = world(12, vec![gpu(100)], 1 << 20).plan().expect("fits");
    assert!(in_memory.stages[0].streamed.len() >= 4 && in_memory.stages[0].from_file.is_empty());
    let (needed, copies) = (in_memory.host_memory_bytes.total, in_memory.host_memory_bytes.weights);
    let with = |bytes: u64| World { host_memory_bytes: Some(bytes), ..world(12, vec![gpu(100)], 0) };
    assert_eq!(with(needed).plan().expect("fits").stages, in_memory.stages, "nothing changes");
    let mut read = Vec::new();
    for missing in [1, BLOCK, 4 * BLOCK, copies - READ_PLACES as u64 * BLOCK] {
        let plan = with(needed - missing).plan().expect("reads from the file");
        let HostMemory { weights, total, available, .. } = plan.host_memory_bytes;
        assert_eq!(plan.validate(&plan.model, &["gpu:0"]), Ok(()));
        let stage = &plan.stages[0];
        assert_eq!(stage.streamed, in_memory.stages[0].streamed);
        let places = READ_PLACES as u64 + (stage.streamed.len() - stage.from_file.len()) as u64;
        assert_eq!((weights, available), (places * BLOCK, Some(needed - missing)));
        assert!(total <= needed - missing && total + BLOCK > needed - missing, "{missing}: {total}");
        let reason = plan.reasons.iter().find(|reason| reason.starts_with("streamed on gpu:0")).expect("one");
        for part in ["from the model's file, ", " per step at 2.0 GB/s (assumed)"] {
            assert!(reason.contains(part), "{reason}");
        }
        // A plan file runs as written, or is refused.
        let again = World { split: Some(plan.split()), ..with(total) };
        assert_eq!(again.plan().expect("the same plan").stages, plan.stages);
        let short = World { host_memory_bytes: Some(total - 1), ..again };
        assert!(matches!(short.plan(), Err(PlanError::HostMemory(_))));
        read.push(stage.from_file.len());
    }
    assert!(
        read.is_sorted() && read[0] < read[3] && read[3] == in_memory.stages[0].streamed.len(),
        "{read:?}"
    );
    assert!(matches!(with(MIB).plan(), Err(PlanError::HostMemory(_))));
    let off = World { from_file: false, ..with(needed - 1) };
    assert!(matches!(off.plan(), Err(PlanError::HostMemory(_))));
}

#[test]
fn the_predictions_include_the_reads() {
    let plan = world(12, vec![gpu(100)], 40).plan().expect("reads from the file");
    let stage = &plan.stages[0];
    assert_eq!(stage.arenas().copied(), stage.streamed.len(), "every step copies all streamed segments");
    let read_us = (stage.from_file.len() as u64 * BLOCK) as f64 / ASSUMED_FILE_RATE.value * 1e6;
    assert!((stage.predicted.decode_us - read_us).abs() < 0.01 * read_us, "{read_us} {stage:?}");
    let parts = stage.queue_parts(&RunSizes::new(&world(12, Vec::new(), 0).segments), &gpu(100), 1.0);
    assert!((crate::cost::step_us(&parts) - read_us).abs() < 0.01 * read_us);
}

#[test]
fn a_model_larger_than_all_memory_runs_on_a_processor() {
    for (blocks, device_mib, host_mib) in [(12, 80, 80), (40, 100, 80), (60, 1 << 20, 60)] {
        let mut world = world(blocks, vec![processor(device_mib)], host_mib);
        (world.limits.context, world.limits.sequences) = (Some(64), 1);
        assert!(all_weights(&world) > host_mib * MIB);
        let plan = world.plan().expect("reads from the file");
        let HostMemory { total, devices, .. } = plan.host_memory_bytes;
        assert!(total <= host_mib * MIB && devices > host_mib * MIB / 2, "{:?}", plan.host_memory_bytes);
        let stage = &plan.stages[0];
        assert!(stage.memory_bytes.total <= stage.memory_bytes.available);
        assert_eq!(stage.from_file, stage.streamed, "copies in host memory would save nothing");
        let off = World { from_file: false, ..world };
        assert!(off.plan().is_err());
    }
}

#[test]
fn plans_for_random_memory_fit_and_change_nothing_without_need() {
    let (mut read, mut same, mut refused) = (0, 0, 0);
    for seed in (0..150).step_by(if nightly() { 1 } else { 5 }) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let devices = (0..rng.random_range(1..4)).map(|at| {
            let in_host_memory = rng.random_bool(0.4);
            let label = if in_host_memory { format!("cpu:{at}") } else { format!("gpu:{at}") };
            DeviceFacts { in_host_memory, ..device(&label, rng.random_range(20..90) * MIB, 0.5) }
        });
        let devices = devices.collect();
        let mut world = world(rng.random_range(8..20), devices, rng.random_range(10..250));
        world.limits.sequences = rng.random_range(1..4);
        world.limits.context = rng.random_bool(0.7).then_some(256);
        let in_memory = World { from_file: false, ..world.clone() }.plan();
        match (world.plan(), in_memory) {
            (Ok(plan), Ok(in_memory)) => {
                assert_eq!(plan, in_memory, "seed {seed}");
                same += 1;
            }
            (Ok(plan), Err(error)) => {
                assert!(matches!(error, PlanError::DoesNotFit(_) | PlanError::HostMemory(_)), "{error}");
                assert!(
                    plan.host_memory_bytes.total <= world.host_memory_bytes.expect("known"),
                    "seed {seed}"
                );
                let labels: Vec<&str> = world.devices.iter().map(|device| device.label.as_str()).collect();
                assert_eq!(plan.validate(&plan.model, &labels), Ok(()), "seed {seed}");
                for stage in &plan.stages {
                    assert!(
                        stage.memory_bytes.total <= stage.memory_bytes.available,
                        "seed {seed}: {stage:?}"
                    );
                }
                assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan.clone()));
                read += usize::from(plan.stages.iter().any(|stage| !stage.from_file.is_empty()));
            }
            (Err(error), Err(in_memory)) => {
                assert_eq!(error, in_memory, "seed {seed}");
                refused += 1;
            }
            (Err(error), Ok(_)) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(read > 2 && same > 2 && refused > 0, "{read} read, {same} in memory, {refused} refused");
}
