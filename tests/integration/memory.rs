//! Tests devices that have less memory than they reported. Ragtag first frees caches, then tries a smaller
//! plan, and finally reports the requested and the available sizes. The process continues, and tokens do not
//! change.

use crate::support::{
    Setup, block_on, devices, golden, greedy, last_vulkan, listen, model_path, run_with_vulkan, text, within,
};
use ragtag::cli::exit_code;
use ragtag::{
    AdapterKind, DeviceFacts, DeviceOptions, Devices, Engine, EngineOptions, Error, FigureSource, Model,
    Plan, Planner, Prompt, Workload,
};
use ragtag_hal::{Checked, Error as DeviceError, Faults, Limits};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::Error as RunError;
use test_drivers::with_vulkan_faults;

const MODEL: &str = "tales-bitnet-tq2_0";

fn model() -> Model {
    Model::open(model_path(MODEL)).unwrap()
}

fn setup<'a>() -> Setup<'a> {
    Setup { cpu_devices: 2, split: Some("0-6=cpu:0,7-13=cpu:1"), ..Setup::default() }
}

/// Returns a planner with a fixed split, f32 activations and an f32 KV cache. Its workload has no prompt
/// tokens, so that it keeps the default prefill chunk.
fn planner(model: &Model, found: &Devices) -> Planner {
    Planner::new(model)
        .devices(found)
        .activations(Activations::F32)
        .kv(KvType::F32)
        .workload(Workload { prompt_tokens: 0, generated_tokens: 128 })
        .split(setup().split.unwrap().parse().unwrap())
}

/// Returns the devices, each limited to `bytes` of memory regardless of the size that it reports.
fn holding(bytes: u64) -> Devices {
    devices(&setup()).limited_to(Limits { memory_bytes: Some(bytes), ..Limits::default() })
}

/// Starts an engine that replans if a device rejects an allocation, and checks the engine's tokens. Returns
/// the plan that finally runs, the number of abandoned plans, and the first error.
fn fitted(model: &Model, found: &Devices, planner: &Planner) -> (Plan, usize, String) {
    let plan = planner.plan().unwrap();
    let (mut tried, mut first) = (0, String::new());
    let engine =
        Engine::start_replanning(model, found, planner, &plan, EngineOptions::default(), |error, _, _| {
            tried += 1;
            if tried == 1 {
                first = error.to_string();
            }
        });
    let engine = engine.unwrap();
    let case = &golden(MODEL).cases[0];
    let stream = engine.session().generate(Prompt::Tokens(&case.prompt_ids), &greedy(20)).unwrap();
    assert_eq!(
        block_on(listen(stream)).unwrap().ids,
        case.greedy_ids[..20],
        "the same tokens with every plan"
    );
    (Plan::clone(&engine.plan()), tried, first)
}

/// Returns the device memory of the stage that needs the most, in bytes.
fn largest(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.memory_bytes.total - stage.memory_bytes.staging).max().unwrap()
}

/// Checks that the second engine on a device plans for the memory that the first one leaves, and that this memory is
/// free again after the first one's last session.
#[test]
fn engines_of_a_process_share_the_memory_of_a_device() {
    within(300, || {
        let model = model();
        let capped = |bytes: u64| {
            let options = DeviceOptions::selecting("cpu").capping_memory(format!("cpu:0={bytes}B"));
            Devices::probe(&options).unwrap()
        };
        let planner = |found: &Devices| Planner::new(&model).devices(found).chunk(64).without_streaming();
        let start = |found: &Devices, planner: Planner| {
            Engine::start_exact(&model, found, &planner.plan()?, EngineOptions::default())
        };
        let needed = planner(&capped(1 << 30)).plan().unwrap().stages[0].memory_bytes.total;
        let cap = 2 * needed - 4321;
        let left = |found: &Devices| planner(found).facts().0[0].memory_bytes;
        let found = capped(cap);
        let first = start(&found, planner(&found)).unwrap();
        let (session, again) = (first.session(), capped(cap));
        assert_eq!([left(&found), left(&again)], [cap - needed; 2]);
        assert_eq!(left(&capped(cap + 1)), cap + 1, "other caps are not shared");
        let refused = start(&again, planner(&again).context(512)).unwrap_err();
        assert_eq!(exit_code(&refused), 6);
        assert!(refused.to_string().contains("cpu:0 lacks "), "{refused}");
        let second = start(&again, planner(&again)).unwrap();
        assert!(second.plan().context < first.plan().context, "{:?}", second.plan());
        drop((first, second));
        assert_eq!(left(&again), cap - needed, "a session keeps the first engine's pipeline");
        drop(session);
        assert_eq!(left(&again), cap);
        start(&again, planner(&again).context(512)).unwrap();
    });
}

#[test]
fn a_little_missing_memory_shrinks_the_chunk_and_more_shrinks_the_context() {
    within(300, || {
        let model = model();
        let whole = planner(&model, &devices(&setup())).plan().unwrap();
        let (needed, kv) = (largest(&whole), whole.stages[0].memory_bytes.kv);

        let found = holding(needed);
        let (plan, tried, _) = fitted(&model, &found, &planner(&model, &found));
        assert_eq!((plan.chunk, plan.context, tried), (whole.chunk, whole.context, 0), "the first plan fits");

        let found = holding(needed - (64 << 10));
        let (plan, tried, first) = fitted(&model, &found, &planner(&model, &found));
        assert!(tried > 0 && plan.chunk < whole.chunk, "{plan:?}");
        assert_eq!((plan.context, plan.slots), (whole.context, whole.slots), "only the chunk shrinks");
        for words in ["stage ", " bytes wanted, ", " free; the stage held ", " bytes that it needs"] {
            assert!(first.contains(words), "{words} in {first}");
        }

        let found = holding(needed - kv / 2 - largest_but_kv(&whole));
        let (plan, tried, _) = fitted(&model, &found, &planner(&model, &found));
        assert!(tried > 0 && plan.context < whole.context && plan.context >= 64, "{plan:?}");
        assert!(plan.chunk < whole.chunk && plan.slots < whole.slots, "{plan:?}");
    });
}

/// Returns the scratch and slots of the stage that needs the most of them, in bytes. The planner can reduce
/// both without shortening the context.
fn largest_but_kv(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.memory_bytes.scratch + stage.memory_bytes.slots).max().unwrap()
}

#[test]
fn keeps_requested_values_and_otherwise_fails_with_sizes() {
    within(300, || {
        let model = model();
        let ample = devices(&setup());
        let asked = |found: &Devices| planner(&model, found).context(512).chunk(128);
        let needed = largest(&asked(&ample).plan().unwrap());
        // The number of slots was not requested, so it may shrink.
        let found = holding(needed - 4096);
        let (plan, tried, _) = fitted(&model, &found, &asked(&found));
        assert_eq!((plan.context, plan.chunk), (512, 128));
        assert!(tried > 0 && plan.slots < 3, "{plan:?}");
        let engine = Engine::start(&model, &found, &asked(&found), EngineOptions::default()).unwrap();
        assert_eq!(engine.plan().slots, plan.slots);

        let found = holding(needed / 3 * 2);
        let (asked, mut tried) = (asked(&found), 0);
        let plan = asked.plan().unwrap();
        let options = EngineOptions::default();
        let error = Engine::start_replanning(&model, &found, &asked, &plan, options, |_, _, _| tried += 1)
            .unwrap_err();
        let Error::Run(RunError::Memory { cause, held_bytes, needed_bytes, .. }) = &error else {
            panic!("{error:?}")
        };
        let DeviceError::OutOfMemory { wanted, free: Some(free) } = cause else { panic!("{cause:?}") };
        assert!(
            wanted > free && held_bytes + free <= needed / 3 * 2 && *needed_bytes > needed / 3 * 2,
            "{error}"
        );
        assert_eq!(exit_code(&error), 6);
        // The process continues, and smaller requests run.
        let (plan, ..) = fitted(&model, &found, &planner(&model, &found));
        assert!(plan.context < 512);
    });
}

/// Checks a device that rejects allocations and does not report its free memory. If the allocations that
/// succeeded suffice for a smaller stage, the device must keep such a stage. The other device must take the
/// remaining segments.
#[test]
fn a_refusing_device_gets_fewer_segments_and_the_others_more() {
    within(300, || {
        let model = model();
        let setup = Setup { cpu_devices: 2, ..Setup::default() };
        let asked = |found: &Devices| {
            let planner = Planner::new(&model).devices(found).activations(Activations::F32).kv(KvType::F32);
            planner.context(256).chunk(32)
        };
        let of = |plan: &Plan, label: &str| {
            let stage = plan.stages.iter().find(|stage| stage.device == label)?;
            Some((stage.segments.range().len(), stage.memory_bytes.total))
        };
        let whole = asked(&devices(&setup)).plan().unwrap();
        let (segments, bytes) = of(&whole, "cpu:1").expect("both have a stage");
        // The device has most of the memory that the plan needs, a small part of it, or none.
        let most_of_it = bytes / 4 * 3;
        for most in [most_of_it, bytes / 16, 0] {
            let faults = Faults { most_bytes: Some(most), ..Faults::default() };
            let found = devices(&setup).checked_by(move |adapter, device| {
                let own = if adapter.label() == "cpu:1" { faults.clone() } else { Faults::default() };
                Checked::with_faults(device, own)
            });
            let (plan, tried, first) = fitted(&model, &found, &asked(&found));
            println!("{most} of {bytes} bytes: {} after {tried}: {first}", plan.split());
            assert!((1..=3).contains(&tried), "{tried} plans");
            assert!(first.contains(" free unknown") || first.contains("unknown free"), "{first}");
            assert_eq!((plan.context, plan.chunk), (256, 32));
            let (fewer, taken) = of(&plan, "cpu:1").unwrap_or_default();
            assert!(fewer < segments && taken < bytes, "{most}: {plan:?}");
            assert_eq!(fewer > 0, most == most_of_it, "{most}: {plan:?}");
        }
    });
}

/// Checks the error if the only device has no memory. It must report the first failed allocation and the
/// sizes.
#[test]
fn a_single_device_without_memory_is_an_error_with_sizes() {
    within(120, || {
        let model = model();
        let found = devices(&Setup::default()).checked_by(|_, device| {
            Checked::with_faults(device, Faults { most_bytes: Some(0), ..Faults::default() })
        });
        let planner = Planner::new(&model).devices(&found);
        let error = Engine::start(&model, &found, &planner, EngineOptions::default()).unwrap_err();
        let Error::Run(refused) = &error else { panic!("{error:?}") };
        let refused = refused.refused_memory().expect("it was memory");
        assert_eq!((refused.device, refused.free_bytes, refused.held_bytes), ("cpu:0", None, 0));
        assert!(refused.wanted_bytes > 0 && refused.needed_bytes > 1 << 20, "{refused:?}");
        assert_eq!(exit_code(&error), 6);
    });
}

/// Checks a driver that reports plenty of memory but rejects allocations. The CPU must take the remaining
/// segments.
#[test]
fn a_refusing_vulkan_device_gets_fewer_segments_and_the_cpu_the_rest() {
    let test = "memory::a_refusing_vulkan_device_gets_fewer_segments_and_the_cpu_the_rest";
    within(600, move || {
        with_vulkan_faults(test, &[], |faults| {
            let Some(label) = last_vulkan() else { return };
            let model = model();
            let setup = Setup { devices: &format!("{label},cpu:0"), ..Setup::default() };
            let found = devices(&setup);
            // Pretend that the device is a discrete card, so that the planner would place the whole model on
            // it.
            let card = |facts: DeviceFacts| {
                let (memory, source) = (facts.memory_bytes, FigureSource::Assumed);
                let card = DeviceFacts::assumed(&label, AdapterKind::Discrete, 100, memory, source);
                if facts.label == label {
                    DeviceFacts { f16_products: facts.f16_products, ..card }
                } else {
                    facts
                }
            };
            let facts = found.facts().into_iter().map(card).collect();
            let planner = Planner::new(&model).device_facts(facts).activations(Activations::F32);
            // The KV cache takes most of the memory.
            let planner = planner.kv(KvType::F32).context(512).chunk(32);
            let whole = planner.plan().unwrap();
            let on_card = |plan: &Plan| plan.stages.iter().find(|stage| stage.device == label).cloned();
            let before = on_card(&whole).expect("it gets most of the model");
            let total = before.memory_bytes.total;
            for room in [total / 10 * 9, total / 16] {
                let opened = faults.opened();
                (opened..opened + 16).for_each(|number| faults.limit(number, room));
                let (plan, tried, first) = fitted(&model, &found, &planner);
                println!("{room} of {total} bytes: {} after {tried}: {first}", plan.split());
                assert!((1..=6).contains(&tried), "{tried} plans");
                let left = on_card(&plan).map_or(0, |stage| stage.segments.range().len());
                assert!(left < before.segments.range().len(), "{plan:?}");
                assert_eq!(left > 0, room > total / 2, "{plan:?}");
                assert_eq!((plan.context, plan.chunk), (512, 32));
                for number in opened..faults.opened() {
                    assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{number}");
                }
            }
        });
    });
}

/// Checks that the command reports sizes if the only device has no memory, and that it never changes a plan
/// from a file.
#[test]
fn the_command_reports_sizes_and_never_changes_a_plan_from_a_file() {
    let test = "memory::the_command_reports_sizes_and_never_changes_a_plan_from_a_file";
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    within(600, move || {
        with_vulkan_faults(test, &[("RAGTAG_VULKAN_FAULTS_LIMIT_BYTES", "65536")], |_| {
            let Some(label) = last_vulkan() else { return };
            let run = |arguments: &[&str]| {
                run_with_vulkan(drivers.as_deref(), |command| {
                    command.args(arguments).args(["--device", &label]).arg(model_path(MODEL));
                })
            };
            let (code, _, said) = run(&["run", "-n", "2", "-p", "Once"]);
            assert_eq!(code, Some(6), "{said}");
            for words in
                ["WARN", "the device is out of memory", "wanted_bytes", " bytes wanted, ", " that it needs"]
            {
                assert!(said.contains(words), "{words} in {said}");
            }
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("kept-plan.json");
            let (code, plan, said) = run(&["plan", "--json"]);
            assert_eq!(code, Some(0), "{said}");
            std::fs::write(&file, plan).unwrap();
            let (code, _, said) = run(&["run", "-n", "2", "--plan", text(&file), "-p", "Once"]);
            assert_eq!(code, Some(6), "{said}");
            for words in ["kept-plan.json: ", " bytes wanted, ", "a plan from a file is not changed"] {
                assert!(said.contains(words), "{words} in {said}");
            }
            assert!(!said.contains("trying a smaller plan"), "{said}");
        });
    });
}

/// Starts an engine whose second device has faults.
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
fn retries_an_allocation_that_failed_once() {
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

/// Checks that Ragtag shrinks the staging memory for weights if the device fails to allocate it. If even the
/// minimum cannot be allocated, the stage is out of memory.
#[test]
fn refused_staging_shrinks_and_changes_no_token() {
    within(120, || {
        let model = model();
        let expected: Vec<_> =
            golden(MODEL).cases.iter().map(|case| case.greedy_ids[..24].to_vec()).collect();
        // The ring fits into a region of either tested size.
        let most = |bytes| Faults { largest_region_bytes: Some(bytes), ..Faults::default() };
        let error = faulty(&model, most(1 << 20)).unwrap_err();
        let Error::Run(error) = &error else { panic!("{error:?}") };
        let refused = error.refused_memory().expect("it was memory");
        assert_eq!((refused.device, refused.held_bytes), ("cpu:1", refused.needed_bytes), "{error}");
        assert_eq!(tales(&faulty(&model, most(refused.wanted_bytes)).unwrap()).unwrap(), expected);
    });
}

/// Checks that no token changes if a device has memory for only a few recorded programs, so that Ragtag
/// evicts idle ones. With no memory for any program, the run must end with an error.
#[test]
fn evicting_programs_during_a_run_changes_no_token() {
    within(120, || {
        let model = model();
        let expected: Vec<_> =
            golden(MODEL).cases.iter().map(|case| case.greedy_ids[..24].to_vec()).collect();
        let faults = Faults { most_programs: Some(3), ..Faults::default() };
        let engine = faulty(&model, faults).unwrap();
        for round in 0..3 {
            assert_eq!(tales(&engine).unwrap(), expected, "round {round}");
        }

        // Without memory for a single program, the run ends with an error and the process continues.
        let engine = faulty(&model, Faults { most_programs: Some(0), ..Faults::default() }).unwrap();
        let error = tales(&engine).unwrap_err();
        let Error::Run(RunError::Stage { stage: 1, device, cause }) = &error else { panic!("{error:?}") };
        assert!(device == "cpu:1" && cause.is_out_of_memory(), "{error}");
        assert_eq!(exit_code(&error), 6);
        drop(engine);
        assert_eq!(tales(&faulty(&model, Faults::default()).unwrap()).unwrap(), expected);
    });
}
