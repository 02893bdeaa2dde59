//! Tests models whose weights are streamed from host memory or from their file: the same bits as with resident
//! weights, on every device and in pipelines, and plans for less memory than the model needs.

use crate::gpus::{LAVAPIPE, POCL, first_of_each_api, gpus_and};
use crate::support::{
    Checkpoint, Golden, SMALL, Setup, block_on, devices, golden, greedy, listen, model_path, with_prefill,
};
use ragtag::{
    DeviceOptions, Devices, Engine, EngineOptions, Error, Model, Plan, Planner, Prompt, Session, SpanKind,
};
use ragtag_graph::execution::{Arenas, MAX_ARENAS};
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_kernels::{Activations, KvType, NumericsClass};
use ragtag_scheduler::Error as RunError;
use test_support::nightly;

const MODEL: &str = "tales-q8_0";
/// Streamed segments of a stage that holds the whole model: neighbours, and segments apart.
const STREAMED: &[u32] = &[2, 4, 6, 8, 10, 11, 12];
/// Number of generated tokens.
const MORE: u32 = 10;
/// Number of generated tokens in tests with many engines.
const FEW: u32 = 4;
/// Rows of a chunk.
const CHUNK: u32 = 8;

fn planner(model: &Model, found: &Devices) -> Planner {
    Planner::new(model).devices(found).context(128).chunk(CHUNK).activations(Activations::F32).kv(KvType::F32)
}

/// Returns the devices `label`, each limited to `bytes` of memory.
fn limited(label: &str, bytes: u64) -> Devices {
    limited_with_host(label, bytes, 1 << 50)
}

/// Returns the devices `label`, each limited to `bytes` of memory, on a host with `host_bytes` of memory.
fn limited_with_host(label: &str, bytes: u64, host_bytes: u64) -> Devices {
    let limits = label.split(',').map(|device| format!("{device}={bytes}")).collect::<Vec<_>>().join(",");
    let limits = format!("{limits},host={host_bytes}");
    let mut options = DeviceOptions::selecting(label).capping_memory(limits);
    (options.cpu_threads, options.cpu_devices) = (Some(2), if label.contains("cpu:1") { 2 } else { 1 });
    Devices::probe(&options).unwrap()
}

pub(crate) fn start(model: &Model, found: &Devices, plan: &Plan, all_logits: bool) -> Engine {
    let mut options = EngineOptions::default();
    (options.all_logits, options.trace) = (all_logits, true);
    Engine::start_exact(model, found, plan, options).unwrap()
}

pub(crate) fn tokens(session: &Session, prompt: &[u32], more: u32) -> Vec<u32> {
    let stream = session.generate(Prompt::Tokens(prompt), &greedy(more)).unwrap();
    block_on(listen(stream)).unwrap().ids
}

/// Returns the logits of a prompt of several chunks.
fn logits(session: &Session, ids: &[u32]) -> Vec<u32> {
    block_on(session.logits(ids)).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Returns the bundled model with a prompt of two chunks.
fn bundled() -> Checkpoint {
    let Golden { mut cases, logits } = golden(MODEL);
    let models = vec![Model::open(model_path(MODEL)).unwrap()];
    Checkpoint { models, ids: cases.swap_remove(0).prompt_ids, logits }
}

/// Checks that streaming `segments` changes no bit. Each stage streams the segments that it holds. Devices that
/// emulate a GPU use most arenas in the nightly run only, because the number does not depend on the device.
fn check(checkpoint: &Checkpoint, found: &Devices, mut plan: Plan, segments: &[u32]) {
    let (model, ids) = (&checkpoint.models[0], &checkpoint.ids);
    let resident = start(model, found, &plan, true);
    let session = resident.session();
    let (expected, expected_tokens) = (logits(&session, ids), tokens(&session, ids, FEW));
    drop(session);
    resident.shutdown();
    let values: Vec<f32> = expected.iter().copied().map(f32::from_bits).collect();
    let error = checkpoint.error(&values);
    assert!(error <= NumericsClass::Exact.tolerance(), "{:?}: {error}", found.labels());
    let emulates = |adapter: &Adapter| adapter.kind == AdapterKind::Software;
    let is_short = found.selected().iter().any(emulates) && !nightly();
    let ways = [(0, false), (MAX_ARENAS, false), (0, true)];
    for (most, from_file) in ways.into_iter().filter(|(most, _)| *most == 0 || !is_short) {
        let mut copied = 0;
        for stage in &mut plan.stages {
            let holds = |segment: &&u32| stage.segments.range().contains(&(**segment as usize));
            stage.streamed = segments.iter().filter(holds).copied().collect();
            let arenas = Arenas::at_most(stage.streamed.len(), most);
            let is_given = most > 0 && !stage.streamed.is_empty();
            stage.arenas = is_given.then_some(arenas.count() as u32);
            stage.from_file = stage.streamed.iter().copied().filter(|_| from_file).collect();
            copied += arenas.copied();
        }
        let engine = start(model, found, &plan, true);
        let session = engine.session();
        let what = format!("{segments:?}, {most} arenas, from the file: {from_file}, {:?}", found.labels());
        assert!(logits(&session, ids) == expected, "{what}");
        assert_eq!(tokens(&session, ids, FEW), expected_tokens, "{what}");
        drop(session);
        let trace = engine.shutdown().trace;
        let copies = trace.spans().iter().filter(|span| span.kind == SpanKind::Weights).count();
        // Each micro-batch copies the weights again. Some segments may have an arena of their own.
        assert!(copies > FEW as usize * copied, "{what}: {copies} copies");
    }
}

#[test]
fn streamed_weights_change_no_bit_on_any_device() {
    let adapters = gpus_and(&[POCL, LAVAPIPE]);
    let (bundled, small) = (bundled(), Checkpoint::open(SMALL));
    let all = adapters.iter().map(|one| (one.label(), one.kind == AdapterKind::Software));
    for (label, is_software) in all.chain([("cpu:0".into(), false)]) {
        let found = devices(&Setup { devices: &label, threads: 2, ..Setup::default() });
        let (checkpoint, segments) =
            if is_software { (&small, &[1, 2, 3, 4][..]) } else { (&bundled, STREAMED) };
        let plan = planner(&checkpoint.models[0], &found).plan().unwrap();
        check(checkpoint, &found, plan, segments);
    }
}

#[test]
fn streamed_stages_of_pipelines_change_no_bit() {
    let bundled = bundled();
    let firsts = first_of_each_api(&[POCL]);
    let splits = firsts.iter().map(|adapter| (format!("{},cpu", adapter.label()), adapter.label(), 1));
    let splits = splits.chain([("cpu".into(), "cpu:1".into(), 2)]);
    for (selected, other, cpu_devices) in splits {
        let setup = Setup { devices: &selected, cpu_devices, ..Setup::default() };
        let found = devices(&setup);
        let splits = [format!("0-6={other},7-13=cpu:0"), format!("0-2=cpu:0,3-8={other},9-13=cpu:0")];
        for split in splits {
            let plan = planner(&bundled.models[0], &found).split(split.parse().unwrap()).plan().unwrap();
            check(&bundled, &found, plan, &[3, 4, 5, 6]);
        }
    }
}

#[test]
fn prefill_stages_change_no_token() {
    let model = Model::open(model_path(MODEL)).unwrap();
    let firsts = first_of_each_api(&[POCL]);
    let pairs = firsts.iter().map(|adapter| (format!("{},cpu", adapter.label()), adapter.label(), 1));
    for (selected, gpu, cpu_devices) in pairs.chain([("cpu".into(), "cpu:1".into(), 2)]) {
        let found = devices(&Setup { devices: &selected, cpu_devices, ..Setup::default() });
        for split in [format!("0-6={gpu},7-13=cpu:0"), format!("0-7=cpu:0,8-13={gpu}")] {
            let plan = planner(&model, &found).split(split.parse().unwrap()).plan().unwrap();
            let case = &golden(MODEL).cases[0];
            let prompt_tokens = case.prompt_ids.len() as u32;
            for (from_tokens, passes) in [(1, true), (prompt_tokens + 1, false)] {
                let plan = with_prefill(plan.clone(), &gpu, from_tokens);
                let engine = start(&model, &found, &plan, false);
                let out = tokens(&engine.session(), &case.prompt_ids, MORE);
                assert_eq!(out, case.greedy_ids[..MORE as usize], "{split} from {from_tokens}");
                let trace = engine.shutdown().trace;
                let mut copies = trace.spans().iter().filter(|span| span.kind == SpanKind::KeysAndValues);
                assert_eq!(copies.any(|span| span.stage == 2), passes, "{split} from {from_tokens}");
            }
        }
    }
}

#[test]
fn plans_for_less_memory_stream_and_change_no_token() {
    let model = Model::open(model_path(MODEL)).unwrap();
    let firsts = first_of_each_api(&[POCL]);
    let singles = firsts.iter().map(|adapter| (adapter.label(), 0.75));
    // Two devices have half of the weights each, so each needs less memory.
    let pairs = firsts.iter().map(|adapter| (format!("{},cpu:0", adapter.label()), 0.35));
    let processors = [("cpu:0".into(), 0.5), ("cpu:0,cpu:1".into(), 0.35)];
    for (label, share) in singles.chain(pairs).chain(processors) {
        let needed = planner(&model, &limited("cpu:0", 1 << 40)).plan().unwrap().stages[0].memory_bytes.total;
        let bytes = (needed as f64 * share) as u64;
        let found = limited(&label, bytes);
        let plan = planner(&model, &found).plan().unwrap();
        assert!(plan.stages.iter().any(|stage| !stage.streamed.is_empty()), "{label}: {:?}", plan.reasons);
        assert!(plan.stages.iter().all(|stage| stage.memory_bytes.total <= bytes), "{label}");
        let engine = start(&model, &found, &plan, false);
        let case = &golden(MODEL).cases[0];
        let out = tokens(&engine.session(), &case.prompt_ids, MORE);
        assert_eq!(out, case.greedy_ids[..MORE as usize], "{label}");
        let held = engine.stage_reports().iter().map(|report| report.pool.in_use_bytes).max().unwrap();
        assert!(held <= bytes, "{label} holds {held} of {bytes} bytes");
    }
}

/// Checks that a plan for little host memory reads weights from the model's file, and changes no token.
fn check_host_limit(model: &Model, label: &str, found: &Devices, host_bytes: u64) {
    let plan = planner(model, found).plan().unwrap();
    let from_file: usize = plan.stages.iter().map(|stage| stage.from_file.len()).sum();
    assert!(from_file > 0 && plan.host_memory_bytes.total <= host_bytes, "{label}: {:?}", plan.reasons);
    let engine = start(model, found, &plan, false);
    let case = &golden(MODEL).cases[0];
    let out = tokens(&engine.session(), &case.prompt_ids, MORE);
    assert_eq!(out, case.greedy_ids[..MORE as usize], "{label}");
}

#[test]
fn plans_for_less_host_memory_read_the_file_and_change_no_token() {
    let model = Model::open(model_path(MODEL)).unwrap();
    let whole = planner(&model, &limited("cpu:0", 1 << 40)).plan().unwrap().host_memory_bytes.total;
    for (label, share) in [("cpu:0", 0.6), ("cpu:0,cpu:1", 1.05)] {
        // The model exceeds all memory.
        let host_bytes = (whole as f64 * share) as u64;
        let found = limited_with_host(label, 1 << 50, host_bytes);
        check_host_limit(&model, label, &found, host_bytes);
    }
    for adapter in first_of_each_api(&[LAVAPIPE]) {
        let label = adapter.label();
        let found = limited_with_host(&label, (whole as f64 * 0.75) as u64, 1 << 50);
        let pinned = planner(&model, &found).plan().unwrap();
        assert!(pinned.host_memory_bytes.weights > 0, "{label}: {:?}", pinned.reasons);
        let host_bytes = pinned.host_memory_bytes.total - pinned.host_memory_bytes.weights / 4;
        let found = limited_with_host(&label, (whole as f64 * 0.75) as u64, host_bytes);
        check_host_limit(&model, &label, &found, host_bytes);
    }
}

#[test]
fn a_file_that_is_truncated_during_a_run_ends_it_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(model_path(MODEL), &path).unwrap();
    let (model, setup) = (Model::open(&path).unwrap(), Setup { devices: "cpu:0", ..Setup::default() });
    let found = devices(&setup);
    let mut plan = planner(&model, &found).plan().unwrap();
    plan.stages[0].streamed = STREAMED.to_vec();
    plan.stages[0].from_file = STREAMED.to_vec();
    let engine = start(&model, &found, &plan, false);
    let (session, case) = (engine.session(), &golden(MODEL).cases[0]);
    assert_eq!(tokens(&session, &case.prompt_ids, MORE), case.greedy_ids[..MORE as usize]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(std::fs::metadata(&path).unwrap().len() / 2).unwrap();
    let stream = session.generate(Prompt::Tokens(&case.prompt_ids), &greedy(100)).unwrap();
    let error = block_on(listen(stream)).unwrap_err();
    let Error::Run(RunError::Weight { stage: 0, device, weight, cause }) = &error else {
        panic!("{error:?}")
    };
    assert!(device == "cpu:0" && weight.starts_with("blk."), "{error}");
    assert!(cause.contains("model.gguf") && cause.contains("shrank while in use"), "{error}");
}
