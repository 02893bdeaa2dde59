//! Tests models whose layers have a window, with KV rings that sequences fill several times: golden logits, the
//! same bits as without rings, concurrent and cancelled sequences, prefill stages, and memory.

use crate::gpus::{LAVAPIPE, POCL, first_of_each_api, gpus_and};
use crate::streaming::{start, tokens};
use crate::support::{
    Checkpoint, Setup, block_on, devices, engine, greedy, listen, relative_error, with_prefill,
};
use ragtag::{Granularity, Model, Planner, Prompt, SpanKind};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::{Activations, KvType, NumericsClass};

/// Golden models that have a window.
const WINDOWED: [&str; 6] =
    ["tiny-gemma2", "tiny-gemma3", "tiny-mistral", "tiny-phi3", "tiny-qwen3-window", "tiny-starcoder2"];
/// Length of a sequence that fills every ring several times.
const LONG: usize = 300;
/// With chunks of this length, a ring would be as long as the context, so all layers keep all positions.
const WITHOUT: u32 = 512;

fn setup(chunk: u32) -> Setup<'static> {
    Setup { context: 512, chunk, ..Setup::default() }
}

/// Returns the bits of the logits of `ids`.
fn bits(model: &Model, setup: &Setup<'_>, ids: &[u32]) -> Vec<u32> {
    let logits = block_on(engine(model, setup).session().logits(ids)).unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

fn long_ids(checkpoint: &Checkpoint) -> Vec<u32> {
    checkpoint.ids.iter().copied().cycle().take(LONG).collect()
}

#[test]
fn golden_logits_do_not_need_the_positions_before_the_window() {
    for name in WINDOWED {
        let checkpoint = Checkpoint::open(name);
        let last = checkpoint.models[0].graph().segment_count() - 1;
        let split = format!("0-1=cpu:0,2-{last}=cpu:1");
        for (chunk, split) in [(1, None), (4, None), (7, Some(&*split))] {
            checkpoint.check_logits(name, &Setup { cpu_devices: 2, split, ..setup(chunk) });
        }
    }
}

#[test]
fn rings_change_no_bit() {
    for name in WINDOWED {
        let checkpoint = Checkpoint::open(name);
        let (model, ids) = (&checkpoint.models[0], long_ids(&checkpoint));
        let expected = bits(model, &setup(WITHOUT), &ids);
        for chunk in [1, 5, 16, 33] {
            assert!(bits(model, &setup(chunk), &ids) == expected, "{name}, chunks of {chunk}");
        }
    }
}

#[test]
fn rings_give_the_same_logits_on_every_device() {
    let checkpoint = Checkpoint::open("tiny-gemma3");
    let (model, ids) = (&checkpoint.models[0], long_ids(&checkpoint)[..100].to_vec());
    let logits = |setup: &Setup<'_>| block_on(engine(model, setup).session().logits(&ids)).unwrap();
    let expected = logits(&setup(WITHOUT));
    for adapter in gpus_and(&[POCL, LAVAPIPE]) {
        let label = adapter.label();
        for chunk in [3, 17] {
            let error = relative_error(&logits(&Setup { devices: &label, ..setup(chunk) }), &expected);
            println!("{label}, chunks of {chunk}: relative error {error:.2e}");
            assert!(error <= NumericsClass::Exact.tolerance(), "{label}, chunks of {chunk}: {error}");
        }
    }
}

/// Checks sequences that share the pool of rings, while others are cancelled and their blocks are used again.
#[test]
fn concurrent_and_cancelled_sequences_change_no_token() {
    for name in ["tiny-gemma3", "tiny-mistral"] {
        let checkpoint = Checkpoint::open(name);
        let (model, ids) = (&checkpoint.models[0], long_ids(&checkpoint));
        let alone = |ids: &[u32]| {
            let engine = engine(model, &Setup { all_logits: false, ..setup(WITHOUT) });
            tokens(&engine.session(), ids, 60)
        };
        let prompts = [&ids[..150], &ids[3..90], &ids[40..47]];
        let expected = prompts.map(alone);
        let setup = Setup { sequences: 3, all_logits: false, ..setup(8) };
        let engine = engine(model, &setup);
        let session = engine.session();
        for round in 0..3 {
            let cancelled = session.generate(Prompt::Tokens(&ids[round..]), &greedy(100)).unwrap();
            let start = |ids| session.generate(Prompt::Tokens(ids), &greedy(60)).unwrap();
            let streams = prompts.map(start);
            drop(cancelled);
            for (stream, expected) in streams.into_iter().zip(&expected) {
                assert_eq!(block_on(listen(stream)).unwrap().ids, *expected, "{name}, round {round}");
            }
        }
    }
}

#[test]
fn prefill_stages_pass_the_blocks_of_rings() {
    let checkpoint = Checkpoint::open("tiny-gemma3");
    let (model, ids) = (&checkpoint.models[0], long_ids(&checkpoint));
    let expected = {
        let engine = engine(model, &Setup { all_logits: false, ..setup(WITHOUT) });
        tokens(&engine.session(), &ids, 60)
    };
    let firsts = first_of_each_api(&[POCL]);
    let pairs = firsts.iter().map(|adapter| (format!("{},cpu", adapter.label()), adapter.label(), 1));
    for (selected, other, cpu_devices) in pairs.chain([("cpu".into(), "cpu:1".into(), 2)]) {
        let found = devices(&Setup { devices: &selected, cpu_devices, ..Setup::default() });
        for chunk in [5, 24] {
            let planner = Planner::new(model).devices(&found).context(512).chunk(chunk);
            let planner = planner.activations(Activations::F32).kv(KvType::F32);
            // The first layer has a window. Keys and values of the other two layers pass.
            let planner = planner.granularity(Granularity::HalfBlock);
            let split = format!("0-1={other},2-7=cpu:0").parse().unwrap();
            let plan = with_prefill(planner.split(split).plan().unwrap(), &other, 1);
            let engine = start(model, &found, &plan, false);
            let out = tokens(&engine.session(), &ids, 60);
            assert_eq!(out, expected, "{selected}, chunks of {chunk}");
            let trace = engine.shutdown().trace;
            let mut copies = trace.spans().iter().filter(|span| span.kind == SpanKind::KeysAndValues);
            assert!(copies.any(|span| span.stage == 2), "{selected}, chunks of {chunk}");
        }
    }
}

/// Checks that devices hold as many bytes as the plan says, and that rings make the difference.
#[test]
fn devices_hold_the_rings_only() {
    let checkpoint = Checkpoint::open("tiny-gemma3");
    let model = &checkpoint.models[0];
    let kv_bytes = |chunk| {
        let setup = Setup { context: 512, chunk, sequences: 2, all_logits: false, ..Setup::default() };
        let engine = engine(model, &setup);
        let planned = engine.plan().stages[0].memory_bytes;
        let held = engine.stage_reports()[0].pool.in_use_bytes;
        assert!(held <= planned.total, "{held} of {planned:?}");
        planned.kv
    };
    // Keys and values of one kv head of 32 dimensions, for two sequences.
    let block = 2 * 32 * 4 * BLOCK_TOKENS as u64 * 2;
    assert_eq!(kv_bytes(WITHOUT), 3 * 32 * block);
    // 13 positions and 4 rows span at most 2 blocks.
    assert_eq!(kv_bytes(4), (32 + 2 * 2) * block);
}
