//! Devices that turn out to hold less than they said: caches go first, then a smaller plan is tried, then the error says
//! what was wanted and what there is. The process lives on, and tokens are the same as ever.

use crate::support::{Setup, block_on, devices, golden, greedy, listen, model_path, within};
use ragtag::{Engine, EngineOptions, Error, Model, Plan, Planner, Prompt, Workload};
use ragtag_hal::{Checked, Error as DeviceError, Faults, Limits};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::Error as RunError;

const MODEL: &str = "tales-bitnet-tq2_0";

fn model() -> Model {
    Model::open(model_path(MODEL).expect("bundled")).unwrap()
}

fn setup<'a>() -> Setup<'a> {
    Setup { cpu_devices: 2, split: Some("0-6=cpu:0,7-13=cpu:1"), ..Setup::default() }
}

/// A planner that was asked for nothing but the split and the types. Without prompts it has no reason to choose another chunk
/// than the usual one.
fn planner(model: &Model, found: &ragtag::Devices) -> Planner {
    Planner::new(model)
        .devices(found)
        .activations(Activations::F32)
        .kv(KvType::F32)
        .workload(Workload { prompt_tokens: 0, generated_tokens: 128 })
        .split(setup().split.unwrap().parse().unwrap())
}

/// The devices, each with so much memory and no more, whatever they said.
fn holding(bytes: u64) -> ragtag::Devices {
    devices(&setup()).limited_to(Limits { memory_bytes: Some(bytes), ..Limits::default() })
}

/// The plan that an engine runs in the end, how many were tried before, and the first error.
fn fitted(model: &Model, found: &ragtag::Devices, planner: &Planner) -> (Plan, usize, String) {
    let plan = planner.plan().unwrap();
    let (mut tried, mut first) = (0, String::new());
    let engine = Engine::start_fitting(model, found, planner, &plan, EngineOptions::default(), |error, _| {
        tried += 1;
        if tried == 1 {
            first = error.to_string();
        }
    });
    let engine = engine.unwrap();
    let case = &golden(MODEL).cases[0];
    let stream = engine.session().generate(Prompt::Tokens(&case.prompt_ids), &greedy(20)).unwrap();
    assert_eq!(block_on(listen(stream)).unwrap().ids, case.greedy_ids[..20], "whatever the plan");
    (engine.plan().clone(), tried, first)
}

/// What the larger of the two stages takes of its device.
fn largest(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.memory_bytes.total - stage.memory_bytes.staging).max().unwrap()
}

#[test]
fn a_smaller_chunk_makes_up_for_a_little_memory_and_a_shorter_context_for_more() {
    within(300, || {
        let model = model();
        let whole = planner(&model, &devices(&setup())).plan().unwrap();
        let (needed, kv) = (largest(&whole), whole.stages[0].memory_bytes.kv);

        let found = holding(needed);
        let (plan, tried, _) = fitted(&model, &found, &planner(&model, &found));
        assert_eq!((plan.chunk, plan.context, tried), (whole.chunk, whole.context, 0), "it fits as it is");

        let found = holding(needed - (64 << 10));
        let (plan, tried, first) = fitted(&model, &found, &planner(&model, &found));
        assert!(tried > 0 && plan.chunk < whole.chunk, "{plan:?}");
        assert_eq!((plan.context, plan.slots), (whole.context, whole.slots), "no more than is needed");
        for words in ["stage ", " bytes wanted, ", " free; the stage held ", " bytes that it needs"] {
            assert!(first.contains(words), "{words} in {first}");
        }

        let found = holding(needed - kv / 2 - largest_but_kv(&whole));
        let (plan, tried, _) = fitted(&model, &found, &planner(&model, &found));
        assert!(tried > 0 && plan.context < whole.context && plan.context >= 64, "{plan:?}");
        assert!(plan.chunk < whole.chunk && plan.slots < whole.slots, "{plan:?}");
    });
}

/// What could be saved by other means than a shorter context: scratch and slots.
fn largest_but_kv(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.memory_bytes.scratch + stage.memory_bytes.slots).max().unwrap()
}

#[test]
fn what_was_asked_for_stays_and_then_the_error_tells_sizes() {
    within(300, || {
        let model = model();
        let ample = devices(&setup());
        let asked = |found: &ragtag::Devices| planner(&model, found).context(512).chunk(128);
        let needed = largest(&asked(&ample).plan().unwrap());
        // Fewer slots are nobody's wish.
        let found = holding(needed - 4096);
        let (plan, tried, _) = fitted(&model, &found, &asked(&found));
        assert_eq!((plan.context, plan.chunk), (512, 128));
        assert!(tried > 0 && plan.slots < 3, "{plan:?}");

        let found = holding(needed / 3 * 2);
        let (asked, mut tried) = (asked(&found), 0);
        let plan = asked.plan().unwrap();
        let options = EngineOptions::default();
        let error =
            Engine::start_fitting(&model, &found, &asked, &plan, options, |_, _| tried += 1).unwrap_err();
        let Error::Run(RunError::Memory { cause, held_bytes, needed_bytes, .. }) = &error else {
            panic!("{error:?}")
        };
        let DeviceError::OutOfMemory { wanted, free: Some(free) } = cause else { panic!("{cause:?}") };
        assert!(
            wanted > free && held_bytes + free <= needed / 3 * 2 && *needed_bytes > needed / 3 * 2,
            "{error}"
        );
        assert_eq!(error.exit_code(), 6);
        // The process lives, and what fits is served.
        let (plan, ..) = fitted(&model, &found, &planner(&model, &found));
        assert!(plan.context < 512);
    });
}

/// An engine on devices of which the second has faults.
fn faulty(model: &Model, faults: Faults) -> ragtag::Result<Engine> {
    let setup = Setup { chunk: 32, sequences: 4, context: 128, all_logits: false, ..setup() };
    let found = devices(&setup).checked_by(move |adapter, device| {
        let own = if adapter.label() == "cpu:1" { faults.clone() } else { Faults::default() };
        Checked::with_faults(device, own)
    });
    crate::support::engine_on(model, &setup, &found)
}

fn tales(engine: &Engine) -> ragtag::Result<Vec<Vec<u32>>> {
    let session = engine.session();
    let cases = golden(MODEL).cases;
    let start = |case: &crate::support::GoldenCase| {
        session.generate(Prompt::Tokens(&case.prompt_ids), &greedy(24)).unwrap()
    };
    let streams: Vec<_> = cases.iter().map(start).collect();
    streams.into_iter().map(|stream| Ok(block_on(listen(stream))?.ids)).collect()
}

#[test]
fn an_allocation_that_fails_once_is_made_once_more() {
    within(120, || {
        let model = model();
        let expected: Vec<_> =
            golden(MODEL).cases.iter().map(|case| case.greedy_ids[..24].to_vec()).collect();
        for failing in [1, 7, 20] {
            let faults = Faults { failing_allocation: Some(failing), ..Faults::default() };
            assert_eq!(tales(&faulty(&model, faults).unwrap()).unwrap(), expected, "allocation {failing}");
        }
    });
}

/// Programs are recorded as they are first wanted; where there is no memory for one more, idle ones make room.
#[test]
fn programs_give_way_to_others_in_mid_run_and_change_no_token() {
    within(120, || {
        let model = model();
        let expected: Vec<_> =
            golden(MODEL).cases.iter().map(|case| case.greedy_ids[..24].to_vec()).collect();
        let faults = Faults { most_programs: Some(3), ..Faults::default() };
        let engine = faulty(&model, faults).unwrap();
        for round in 0..3 {
            assert_eq!(tales(&engine).unwrap(), expected, "round {round}");
        }

        // Without room for a single one the run ends, and says why; the process goes on.
        let engine = faulty(&model, Faults { most_programs: Some(0), ..Faults::default() }).unwrap();
        let error = tales(&engine).unwrap_err();
        let Error::Run(RunError::Stage { stage: 1, device, cause }) = &error else { panic!("{error:?}") };
        assert!(device == "cpu:1" && cause.is_out_of_memory(), "{error}");
        assert_eq!(error.exit_code(), 6);
        drop(engine);
        assert_eq!(tales(&faulty(&model, Faults::default()).unwrap()).unwrap(), expected);
    });
}
