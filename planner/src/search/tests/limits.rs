//! Tests of limits other than device memory: the largest buffers, and host memory.

use super::*;

/// Returns a world whose four sequences together need 4 KiB of keys and values per position and block. The
/// key buffer and the value buffer each hold half of these bytes.
fn world() -> World {
    World::new(model(6, MIB, MIB), vec![device("gpu:0", 1 << 40, 1.0)])
}

fn with_binding_bytes(mut world: World, bytes: u64) -> World {
    world.devices[0].buffers.binding_bytes = bytes;
    world
}

#[test]
fn a_context_whose_buffers_a_device_cannot_bind_is_refused() {
    // 2048 positions of 512 bytes for four sequences take 4 MiB.
    let mut limited = with_binding_bytes(world(), MIB);
    limited.limits.context = Some(1024);
    let Err(PlanError::DoesNotFit(error)) = limited.plan() else { panic!("it cannot be bound") };
    let text = PlanError::DoesNotFit(error).to_string();
    assert!(text.contains("a buffer of keys or values takes 2.0 MiB"), "{text}");
    assert!(text.contains("1.0 MiB") && text.contains("a context of 512 fits"), "{text}");
    let split = limited.clone().split("0-7=gpu:0");
    assert!(matches!(split.plan(), Err(PlanError::DoesNotFit(_))));

    limited.limits.context = None;
    assert_eq!(limited.plan().expect("a shorter context fits").context, 512);
    assert_eq!(with_binding_bytes(world(), 4 * MIB).plan().expect("fits").context, 512, "as asked");
}

#[test]
fn another_device_takes_what_one_cannot_bind() {
    let mut world = with_binding_bytes(world(), MIB);
    world.devices.push(device("cpu:0", 1 << 40, 0.01));
    world.limits.context = Some(1024);
    let plan = world.plan().expect("the slow device binds it");
    let on_fast = plan.stages.iter().filter(|stage| stage.device == "gpu:0");
    // The embedding and the head have no keys or values.
    assert!(on_fast.into_iter().all(|stage| stage.memory_bytes.kv == 0), "{:?}", plan.stages);
}

#[test]
fn tensors_scratch_and_logits_count_as_well() {
    let text = |change: &dyn Fn(&mut World)| {
        let mut world = world();
        change(&mut world);
        world.plan().expect_err("too large").to_string()
    };
    let tensors =
        text(&|w| (w.segments[3].tensor_bytes, w.devices[0].buffers.binding_bytes) = (2 * MIB, MIB));
    assert!(tensors.contains("a tensor of a micro-batch takes"), "{tensors}");
    let scratch =
        text(&|w| (w.segments[3].scratch_bytes, w.devices[0].buffers.allocation_bytes) = (2 * MIB, MIB));
    assert!(scratch.contains("scratch takes"), "{scratch}");
    // Eight rows of 256 KiB.
    let logits = text(&|w| (w.model.vocabulary, w.devices[0].buffers.binding_bytes) = (1 << 16, MIB));
    assert!(logits.contains("the buffer of logits takes 2.0 MiB"), "{logits}");
}

#[test]
fn a_shorter_chunk_is_taken_where_a_long_one_cannot_be_bound() {
    let world = with_binding_bytes(world(), MIB);
    let long: Vec<_> =
        world.segments.iter().map(|s| Segment { tensor_bytes: 8 * MIB, ..s.clone() }).collect();
    let input = PlannerInput { segments: &long, other_chunks: &[(32, &world.segments)], ..world.input() };
    assert_eq!(plan(&input).expect("chunks of 32 fit").chunk, 32);
}

#[test]
fn a_plan_that_fits_only_without_checksums_is_refused_for_verified_transfers() {
    let mut world = world();
    (world.limits.decode_groups, world.limits.credits) = (Some(1), Some(2));
    let plan = |world: &World, verified| {
        let limits = PlanLimits { verified, ..world.limits };
        World { limits, ..world.clone() }.plan()
    };
    let [plain, verified] = [false, true].map(|verified| plan(&world, verified).expect("fits"));
    let needed = |plan: &Plan| plan.stages.iter().map(|stage| stage.memory_bytes.total).sum::<u64>();
    assert!(needed(&verified) > needed(&plain));
    // The device has exactly the memory of the plain plan.
    let [only] = &plain.stages[..] else { panic!("one stage: {:?}", plain.stages) };
    world.devices.retain(|device| device.label == only.device);
    world.devices[0].memory_bytes = only.memory_bytes.total;
    assert!(plan(&world, false).is_ok());
    let error = plan(&world, true).expect_err("the checksums do not fit");
    assert!(matches!(error, PlanError::DoesNotFit(_)), "{error}");
    // The same holds for host memory.
    world.devices[0].memory_bytes = u64::MAX;
    world.host_memory_bytes = Some(plain.host_memory_bytes.total);
    assert!(plan(&world, false).is_ok());
    assert!(matches!(plan(&world, true), Err(PlanError::HostMemory(_))));
}

#[test]
fn logits_of_decode_groups_are_proved_in_host_memory() {
    let mut world = world();
    (world.limits.sequences, world.limits.logit_rows, world.limits.chunk) = (512, 512, 512);
    (world.limits.decode_groups, world.limits.credits) = (Some(16), Some(17));
    world.model.vocabulary = 128_000;
    world.devices[0].in_host_memory = true;
    let free = |bytes: u64| World { host_memory_bytes: Some(bytes), ..world.clone() }.plan();
    let plan = free(1 << 40).expect("fits");
    let memory = plan.host_memory_bytes;
    // There are 32 rows for a decode group, and one row for a prompt that ends.
    assert_eq!(memory.logits, 17 * 33 * (128_000 * 4 + 528));
    assert_eq!(memory.devices, plan.stages[0].memory_bytes.total);
    assert_eq!(memory.total, memory.logits + memory.staging + memory.parameters + memory.devices);
    assert!(free(memory.total).is_ok());
    let error = free(memory.total - 1).expect_err("a byte is missing");
    assert!(matches!(error, PlanError::HostMemory(_)));
    assert!(error.to_string().contains("logits 274.2 MiB"), "{error}");
    assert_eq!(world.plan().expect("not proved").host_memory_bytes.available, None);
}
