//! Tests of the number of blocks of the KV cache.

use super::worlds::*;
use super::*;

const GROW: KvUse = KvUse { reserve: Reserve::Grow, prefixes: Some(Eviction::Lru) };

/// Returns a model of ten segments, whose blocks take 16 KiB of keys and values per cache block, on a device with
/// `mib` MiB, for 64 sequences of up to 131,072 tokens.
fn world(mib: u64) -> World {
    let mut world = World::new(model(8, 10 * MIB, 30 * MIB), vec![device("gpu:0", mib * MIB, 1.0)]);
    (world.model.context, world.limits.context) = (1 << 17, Some(1 << 17));
    (world.limits.sequences, world.limits.logit_rows, world.limits.kv_use) = (64, 64, GROW);
    world
}

#[test]
fn short_requests_share_a_cache_that_holds_one_long_sequence() {
    let mut world = world(4096);
    let plan = world.plan().expect("fits");
    let (one, need) = ((1 << 17) / 16, 64 * (256 + 128) / 16);
    assert_eq!(plan.table_blocks(), one);
    assert!(plan.kv_blocks > one.max(need) && plan.kv_blocks < plan.full_blocks() / 2, "{}", plan.kv_blocks);
    let memory = plan.stages[0].memory_bytes;
    assert!(
        memory.total <= memory.available && memory.available - memory.total < memory.kv / 8,
        "{memory:?}"
    );
    let positions = plan.kv_blocks * 16;
    let said = format!(
        "KV cache: {} blocks = {positions} positions for 64 sequences, limited by gpu:0; sequences take blocks as they \
         grow; blocks of earlier prompts are kept (lru)",
        plan.kv_blocks
    );
    assert!(plan.reasons.contains(&said), "{:?}", plan.reasons);
    // The plan is a promise: the same number of blocks fits, and one more does not.
    world.limits.kv_blocks = Some(plan.kv_blocks);
    assert_eq!(world.plan().expect("fits").stages[0].memory_bytes, memory);
    world.limits.kv_blocks = Some(plan.kv_blocks + plan.kv_blocks / 8);
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
    (world.limits.kv_blocks, world.limits.kv_use) = (None, KvUse { reserve: Reserve::Full, prefixes: None });
    assert!(matches!(world.plan(), Err(PlanError::DoesNotFit(_))));
}

#[test]
fn the_cache_holds_all_sequences_at_the_planned_length_and_at_most_their_full_contexts() {
    let mut world = world(1 << 14);
    world.limits.context = Some(1024);
    let plan = world.plan().expect("fits");
    assert_eq!((plan.kv_blocks, plan.full_blocks()), (4096, 4096));
    assert!(plan.reasons.iter().any(|reason| reason.contains("for 64 sequences, the full context of each")));
    // Each sequence needs 24 blocks of 8 segments with 16 KiB.
    let without = plan.stages[0].memory_bytes.total - plan.stages[0].memory_bytes.kv;
    world.devices[0].memory_bytes = without + 64 * 24 * 8 * (16 << 10);
    let least = world.plan().expect("fits").kv_blocks;
    assert!((64 * 24..64 * 26).contains(&least), "{least}");
    world.devices[0].memory_bytes -= 32 * MIB;
    assert!(world.plan().map_or(true, |plan| !plan.stages[0].streamed.is_empty() || plan.chunk < 128));
    (world.limits.sequences, world.limits.context) = (1, Some(500));
    assert_eq!(world.plan().expect("fits").kv_blocks, 32);
}

#[test]
fn the_memory_of_the_cache_is_that_of_the_user() {
    let mut world = world(1 << 14);
    world.limits.context = Some(1024);
    let with = |world: &mut World, mib: u64| {
        world.limits.kv_memory_bytes = Some(mib * MIB);
        world.plan().map(|plan| (plan.kv_blocks, plan.stages[0].memory_bytes.kv, plan.context))
    };
    assert_eq!(with(&mut world, 128), Ok((1024, 128 * MIB, 1024)));
    assert_eq!(with(&mut world, 1024), Ok((8192, 1024 * MIB, 1024)), "more than all sequences need");
    let error = with(&mut world, 4).expect_err("too small").to_string();
    let said =
        "the requested KV cache has 32 blocks = 512 positions; one sequence of 1024 positions needs 8.0 MiB";
    assert_eq!(error, said);
    world.limits.context = None;
    assert_eq!(with(&mut world, 4), Ok((32, 4 * MIB, 512)), "the longest context that the cache holds");
    assert!(matches!(with(&mut world, 0), Err(PlanError::SmallCache { context: 16, blocks: 0, .. })));
}

#[test]
fn a_cache_displaces_no_weights_beyond_the_need() {
    let mut world = world(300);
    (world.limits.context, world.streaming) = (Some(1024), true);
    let plan = world.plan().expect("fits with streamed weights");
    assert!(!plan.stages[0].streamed.is_empty());
    world.limits.kv_blocks = Some(64 * 24);
    let least = world.plan().expect("fits");
    assert_eq!(plan.stages[0].streamed, least.stages[0].streamed);
    assert!(plan.kv_blocks >= least.kv_blocks);
}

#[test]
fn prompts_have_a_credit_beside_the_decode_groups() {
    let mut world = world(1 << 14);
    world.limits.context = Some(1024);
    (world.limits.decode_groups, world.limits.credits) = (Some(2), Some(2));
    let plan = world.plan().expect("fits");
    assert_eq!((plan.decode_groups, plan.credits), (2, 3));
    let said = "credits: 3 instead of 2, because prompts need one beside 2 decode groups";
    assert!(plan.reasons.iter().any(|reason| reason == said), "{:?}", plan.reasons);
    assert_eq!(plan.validate(&plan.model, &["gpu:0"]), Ok(()));
}

#[test]
fn few_prompt_rows_enter_beside_decode_rows() {
    let mut world = world(1 << 14);
    world.limits.context = Some(1024);
    world.limits.decode_groups = Some(1);
    let beside = |world: &World| world.plan().expect("fits").chunks().beside_decode;
    // The device computes a row in 160 µs and reads its weights in much less, so that time grows with the rows.
    let rows = beside(&world);
    assert!((16..=128).contains(&rows), "{rows}");
    world.devices[0].fast_flops_per_s.value *= 1e3;
    assert_eq!(beside(&world), 128, "rows are free beside the weights");
}
