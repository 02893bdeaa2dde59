//! Recovery from failures of devices: the devices that are left go on, every request gets the tokens of a run without a
//! failure, and only a request that no longer fits ends.

use crate::gpus::{compiles_anew, resident_bytes};
use crate::support::{
    Checkpoint, SMALL, Said, Setup, block_on, devices, engine_on, greedy, listen, model_path, ragtag, within,
};
use ragtag::{
    DeviceChange, Devices, Engine, EngineOptions, Error, Model, Planner, Prompt, RecoveryNews, Sampling,
};
use ragtag_hal::{Checked, Faults};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::{Error as RunError, Refusal};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use test_support::{Child, nightly};

const MODEL: &str = "tales-bitnet-tq2_0";

/// Returns the devices with faults. A device has them only when it is opened for the first time.
fn faulty(devices: Devices, faults: &[(&str, Faults)]) -> Devices {
    let faults: HashMap<String, Faults> =
        faults.iter().map(|(label, faults)| ((*label).to_owned(), faults.clone())).collect();
    let faults = Mutex::new(faults);
    devices.checked_by(move |adapter, device| match faults.lock().unwrap().remove(&adapter.label()) {
        Some(faults) => Checked::with_faults(device, faults),
        None => Ok(Checked::new(device)),
    })
}

/// Runs eight sequences of `count` tokens at once, whose prompts are parts of `ids`. Half of them are greedy, the others
/// random. Returns their results.
fn eight(engine: &Engine, ids: &[u32], count: u32) -> Vec<ragtag::Result<Said>> {
    let session = engine.session();
    let start = |at: usize| {
        let mut generation = greedy(count);
        if at % 2 == 1 {
            generation.sampling = Sampling { seed: Some(at as u64), ..Sampling::default() };
        }
        let prompt = &ids[at % 3..ids.len() - at / 2];
        listen(session.generate(Prompt::Tokens(prompt), &generation).unwrap())
    };
    let streams: Vec<_> = (0..8).map(start).collect();
    streams.into_iter().map(block_on).collect()
}

fn tokens(results: Vec<ragtag::Result<Said>>) -> Vec<Vec<u32>> {
    results.into_iter().map(|said| said.unwrap().ids).collect()
}

/// Returns the devices of the test: a device of each of two APIs, if there is a driver for it, and the CPU.
pub fn labels() -> Vec<String> {
    let found = Devices::probe(&ragtag::DeviceOptions::default()).unwrap();
    let first = |backend: &str| {
        let all = || found.report().adapters().filter(|adapter| adapter.backend == backend);
        let adapter = all().find(|adapter| !compiles_anew(adapter)).or_else(|| all().next());
        if adapter.is_none() {
            test_support::skip!(test_support::driver(backend), "no device of {backend}");
        }
        adapter.map(ragtag_hal::Adapter::label)
    };
    ["vulkan", "opencl"].into_iter().filter_map(first).chain(["cpu:0".to_owned()]).collect()
}

/// Returns a split of the small checkpoint over these devices.
fn split_over(labels: &[String]) -> String {
    let last = labels.len() - 1;
    let parts = labels.iter().enumerate().map(|(at, label)| match at == last {
        true => format!("{}-5={label}", 2 * at),
        false => format!("{}-{}={label}", 2 * at, 2 * at + 1),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Returns the losses of a device at several submissions and a computation that never ends. For the nightly run, returns
/// each kind of fault at fifty moments.
fn all_faults() -> Vec<Faults> {
    let none = Faults::default;
    let lost = |at| Faults { losing_submission: Some(at), ..none() };
    let endless = |at| Faults { endless_computation: Some(at), ..none() };
    if !nightly() {
        return vec![lost(45), lost(70), lost(110), endless(6)];
    }
    let each = |at: u64| {
        let refused = Faults { failing_submission: Some(35 + 2 * at), ..none() };
        [
            lost(34 + 2 * at),
            refused,
            Faults { lost_at_command: Some(150 + 8 * at), ..none() },
            endless(2 + at),
        ]
    };
    (0..50u64).flat_map(each).collect()
}

/// A run of eight sequences that loses one of its devices.
struct Run<'a> {
    model: &'a Model,
    ids: &'a [u32],
    setup: Setup<'a>,
    expected: Vec<Vec<u32>>,
    /// Time of recoveries until the next token, and of fresh starts with the same plans, in seconds.
    recovered_s: f64,
    fresh_s: f64,
}

impl Run<'_> {
    /// Checks that every sequence survives the faults of the device `label`. Returns false if they have hit the device while
    /// it loaded.
    fn survives(&mut self, label: &str, faults: Faults, is_timed: bool) -> bool {
        let what = format!("{label}: {faults:?}");
        let limit = faults.endless_computation.map(|_| Duration::from_secs(5));
        let setup = Setup { compute_timeout: limit, ..self.setup.clone() };
        let found = faulty(devices(&setup), &[(label, faults)]);
        // A device that is lost while it loads is an error.
        let Ok(engine) = engine_on(self.model, &setup, &found) else { return false };
        if is_timed {
            let start = Instant::now();
            while !engine.recovery().planned_for.iter().any(|planned| planned == label) {
                assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", engine.recovery());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // The fault may come in a later round.
        for _ in 0..4 {
            assert_eq!(tokens(eight(&engine, self.ids, 24)), self.expected, "{what}");
            if engine.recovery().recoveries > 0 {
                break;
            }
        }
        let (state, plan) = (engine.recovery(), engine.plan());
        let token_s = engine.stats().interruptions.token_ns.unwrap_or(0) as f64 / 1e9;
        println!("{what}: {state:?}, {}, next token after {token_s:.3} s", plan.split());
        assert_eq!(state.recoveries, 1, "{what}: {state:?}");
        assert_eq!(state.lost.get(label), Some(&1), "{what}: {state:?}");
        assert!(plan.stages.iter().all(|stage| stage.device != *label), "{what}: {}", plan.split());
        assert_eq!(engine.stages().len(), plan.stages.len());
        assert_eq!(tokens(eight(&engine, self.ids, 24)), self.expected, "{what}, afterwards");
        engine.shutdown();
        if is_timed {
            let fresh_s = self.fresh_start_s(&found, &plan);
            println!("{what}: fresh start {fresh_s:.3} s, {:.2} times", token_s / fresh_s);
            self.fresh_s += fresh_s;
            self.recovered_s += token_s;
        }
        true
    }

    /// Returns the time in which an engine starts with `plan` and computes the first token of each sequence.
    fn fresh_start_s(&self, found: &Devices, plan: &ragtag::Plan) -> f64 {
        let mut options = EngineOptions::default();
        options.no_self_test = true;
        let start = Instant::now();
        let engine = Engine::start_exact(self.model, found, plan, options).unwrap();
        assert_eq!(tokens(eight(&engine, self.ids, 1)).len(), 8);
        start.elapsed().as_secs_f64()
    }
}

/// Checks the loss of each of three devices at several moments, also by a computation that never ends. Compares the time of
/// recoveries with that of fresh starts.
#[test]
fn every_sequence_survives_the_loss_of_a_device() {
    within(if nightly() { 3600 } else { 900 }, || {
        let (checkpoint, labels) = (Checkpoint::open(SMALL), labels());
        let (model, ids) = (&checkpoint.models[0], &checkpoint.ids[..]);
        let (selection, split) = (labels.join(","), split_over(&labels));
        let setup = Setup {
            devices: &selection,
            split: Some(&split),
            sequences: 8,
            all_logits: false,
            no_self_test: true,
            max_recoveries: 8,
            ..Setup::default()
        };
        let expected = tokens(eight(&engine_on(model, &setup, &devices(&setup)).unwrap(), ids, 24));
        let mut run = Run { model, ids, setup, expected, recovered_s: 0.0, fresh_s: 0.0 };
        let (mut recovered, mut cases) = (0, 0);
        for (device, label) in labels.iter().enumerate() {
            for (at, faults) in all_faults().into_iter().enumerate() {
                // In the nightly run, the devices take turns.
                if nightly() && at % labels.len() != device {
                    continue;
                }
                // The first recoveries compile programs. A recovery leaves a device that hangs 0.8 s to answer.
                let is_timed =
                    faults.endless_computation.is_none() && at % 20 == if nightly() { 13 } else { 1 };
                recovered += usize::from(run.survives(label, faults, is_timed));
                cases += 1;
            }
        }
        let Run { recovered_s, fresh_s, .. } = run;
        println!("{recovered} of {cases} recovered; {recovered_s:.3} s, fresh starts {fresh_s:.3} s");
        assert!(recovered * 10 >= cases * 9, "{recovered} of {cases} recoveries");
        // Other programs disturb both times, so tests of commits only print them.
        assert!(
            !nightly() || recovered_s <= 1.25 * fresh_s + 0.5,
            "{recovered_s} s, fresh starts {fresh_s} s"
        );
    });
}

/// Returns a setup with three CPU devices.
fn three(max_recoveries: u32) -> Setup<'static> {
    let split = Some("0-6=cpu:0,7=cpu:1,8-13=cpu:2");
    let (all_logits, no_self_test) = (false, true);
    Setup {
        cpu_devices: 3,
        split,
        sequences: 8,
        all_logits,
        no_self_test,
        max_recoveries,
        ..Setup::default()
    }
}

fn prompt(model: &Model) -> Vec<u32> {
    let text = "Once upon a time there was a small house at the edge of the wood.";
    model.tokenizer().unwrap().encode(text, true).unwrap()
}

/// Returns devices whose first one is lost, and then the first one of the next pipeline. Also returns the labels of
/// the devices in the order in which they are opened.
fn lost_in_turn(devices: Devices) -> (Devices, Arc<Mutex<Vec<String>>>) {
    let opened = Arc::<Mutex<Vec<String>>>::default();
    let labels = Arc::clone(&opened);
    let found = devices.checked_by(move |adapter, device| {
        let mut labels = labels.lock().unwrap();
        labels.push(adapter.label());
        let submission = match (labels.len(), adapter.label().as_str()) {
            (..=3, "cpu:0") => 120,
            (4, _) => 200,
            _ => return Ok(Checked::new(device)),
        };
        let lost = Faults { losing_submission: Some(submission), ..Faults::default() };
        Checked::with_faults(device, lost)
    });
    (found, opened)
}

/// Checks two losses after each other, which leave one device, and lower limits.
#[test]
fn recoveries_go_on_to_the_last_device_and_to_their_limit() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let ids = prompt(&model);
        let sound = engine_on(&model, &three(0), &devices(&three(0))).unwrap();
        let expected = tokens(eight(&sound, &ids, 60));
        drop(sound);
        for most in [2, 1, 0] {
            let setup = three(most);
            let (found, opened) = lost_in_turn(devices(&setup));
            let engine = engine_on(&model, &setup, &found).unwrap();
            let results = eight(&engine, &ids, 60);
            let state = engine.recovery();
            println!("{most}: {state:?}, {}", engine.plan().split());
            assert_eq!(state.recoveries, u64::from(most), "{state:?}");
            if most == 2 {
                assert_eq!(tokens(results), expected);
                assert_eq!(engine.plan().stages.len(), 1, "{}", engine.plan().split());
            } else {
                // Some sequences may have ended before.
                let device = opened.lock().unwrap()[if most == 1 { 3 } else { 0 }].clone();
                let mut failed = 0;
                for (result, expected) in results.into_iter().zip(&expected) {
                    match result {
                        Ok(said) => assert_eq!(said.ids, *expected),
                        Err(Error::Run(RunError::Stage { device: named, .. })) if named == device => {
                            failed += 1
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
                assert!(failed > 0, "{state:?}");
                assert_eq!(state.ended_by.is_some(), most > 0, "{state:?}");
            }
            engine.shutdown();
        }
    });
}

/// Checks that devices change while sequences run, that a change that is not possible changes nothing, and that requests
/// wait while an engine is suspended.
#[test]
fn devices_change_while_sequences_run() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let (ids, setup) = (prompt(&model), three(8));
        let found = devices(&setup);
        let engine = engine_on(&model, &setup, &found).unwrap();
        let expected = tokens(eight(&engine, &ids, 60));
        let change = |remove: &[&str], add: &[&str], suspend| {
            let labels = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect();
            let mut change = DeviceChange::default();
            (change.remove, change.add, change.suspend) = (labels(remove), labels(add), suspend);
            engine.change_devices(&change)
        };
        let uses = |plan: &ragtag::Plan, label: &str| plan.stages.iter().any(|stage| stage.device == label);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| tokens(eight(&engine, &ids, 60)));
            let without = change(&["cpu:0", "cpu:1"], &[], None).unwrap();
            assert!(!uses(&without, "cpu:0") && !uses(&without, "cpu:1"), "{}", without.split());
            assert!(matches!(change(&[], &["gpu:7"], None), Err(Error::UnknownDevice { .. })));
            assert!(matches!(change(&["gpu:7"], &[], None), Err(Error::NotSelected { .. })));
            let nothing = change(&["cpu:2"], &[], None);
            assert!(matches!(nothing, Err(Error::Usage(_) | Error::Planner(_))), "{nothing:?}");
            assert_eq!(engine.plan().split().to_string(), without.split().to_string());
            let with = change(&["cpu:2"], &["cpu:0"], None).unwrap();
            assert!(uses(&with, "cpu:0") && !uses(&with, "cpu:2"), "{}", with.split());
            assert_eq!(running.join().unwrap(), expected);
        });
        change(&[], &[], Some(true)).unwrap();
        assert!(engine.recovery().is_suspended);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| tokens(eight(&engine, &ids, 60)));
            while engine.stats().counts.waiting < 8 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // It stays suspended without `suspend`.
            change(&[], &["cpu:1"], None).unwrap();
            assert!(engine.recovery().is_suspended && engine.stats().counts.waiting == 8);
            change(&[], &["cpu:2"], Some(false)).unwrap();
            assert_eq!(waiting.join().unwrap(), expected);
        });
        engine.replan().unwrap();
        assert_eq!(tokens(eight(&engine, &ids, 60)), expected);
        let state = engine.recovery();
        assert_eq!((state.changes, state.recoveries, state.is_suspended), (6, 0, false), "{state:?}");
        change(&[], &[], Some(true)).unwrap();
        engine.shutdown();
        let exact = engine_on(&model, &three(0), &found).unwrap();
        assert!(matches!(exact.replan(), Err(Error::Usage(_))));
    });
}

/// Checks that the log of a run with two losses replays, also by the command, and that its requests get the same tokens
/// again.
#[test]
fn the_log_of_a_run_with_losses_replays_and_its_requests_run_again() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let (ids, folder) = (prompt(&model), tempfile::tempdir().unwrap());
        let log = folder.path().join("events");
        let setup = Setup { log_events: Some(&log), ..three(8) };
        let engine = engine_on(&model, &setup, &lost_in_turn(devices(&setup)).0).unwrap();
        let said = tokens(eight(&engine, &ids, 60));
        assert_eq!(engine.recovery().recoveries, 2);
        engine.shutdown();
        let replayed = ragtag::replay(&log).unwrap();
        let logged: Vec<_> = replayed.requests.iter().map(|request| request.tokens.clone()).collect();
        assert_eq!((logged, replayed.losses.len()), (said, 2));
        println!("{:?}", replayed.losses);
        assert!(replayed.losses.iter().all(|loss| loss.token_after_s.is_some()));

        let replay = |more: &[&str]| ragtag().arg("replay").arg(&log).args(more).output().unwrap();
        let path = model_path(MODEL);
        let path = path.to_str().unwrap();
        let done = replay(&["--json", "--execute", path, "--device", "cpu", "--no-calibration"]);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        let printed: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(printed["executed"]["requests"], 8);
        assert_eq!(printed["executed"]["tokens"], printed["summary"]["tokens"]);
        let whole = std::fs::read(&log).unwrap();
        let mut altered = whole.clone();
        altered[whole.len() / 2] ^= 1;
        for (bytes, why) in [(&altered[..], "was altered"), (&whole[..whole.len() - 1], "is truncated after")]
        {
            std::fs::write(&log, bytes).unwrap();
            let refused = replay(&[]);
            let text = String::from_utf8_lossy(&refused.stderr);
            assert!(refused.status.code() == Some(7) && text.contains(why), "{text}");
        }
    });
}

/// Runs eight sequences twenty times. Each time, the device `label` is lost, and returns afterwards. Checks that the memory of
/// the process stays flat.
fn stays_flat(setup: &Setup<'_>, model: &Model, ids: &[u32], label: &str) {
    let lost = label.to_owned();
    let found = devices(setup).checked_by(move |adapter, device| match adapter.label() == lost {
        true => Checked::with_faults(device, Faults { losing_submission: Some(60), ..Faults::default() }),
        false => Ok(Checked::new(device)),
    });
    let planner = Planner::new(model).devices(&found).context(setup.context).sequences(setup.sequences);
    let planner = planner.chunk(setup.chunk).activations(Activations::F32).kv(KvType::F32).unexplained();
    // The planner keeps the split, so the device is used whenever it is there.
    let planner = planner.split(setup.split.unwrap().parse().unwrap());
    let mut options = EngineOptions::default();
    (options.no_self_test, options.max_recoveries) = (true, setup.max_recoveries);
    let engine = Engine::start(model, &found, &planner, options).unwrap();
    let expected = tokens(eight(&engine, ids, 24));
    let mut resident = Vec::new();
    for round in 1..=20 {
        let change = DeviceChange { add: vec![label.to_owned()], ..DeviceChange::default() };
        let plan = engine.change_devices(&change).unwrap();
        assert!(plan.stages.iter().any(|stage| stage.device == label), "{}", plan.split());
        assert_eq!(tokens(eight(&engine, ids, 24)), expected, "{label}, round {round}");
        assert_eq!(engine.recovery().lost.get(label), Some(&(round + 1)), "round {round}");
        resident.extend(resident_bytes().map(|bytes| bytes >> 10));
    }
    assert!(engine.recovery().left_bytes.is_empty());
    println!("{label}: {resident:?} KiB after each loss");
    // Allocators grow for some rounds. What a loss left behind would add up.
    if let [.., middle, _, _, _, _, _, _, _, _, last] = resident[..] {
        assert!(last < middle + (12 << 10), "{label}: {resident:?} KiB");
    }
}

/// Checks a CPU device.
#[test]
fn losses_of_a_device_that_returns_leave_no_memory_behind() {
    // Run in a separate process, because other tests allocate memory as well.
    const NAME: &str = "recovery::losses_of_a_device_that_returns_leave_no_memory_behind";
    if !Child::inside(NAME) {
        test_support::child(NAME).passes();
        return;
    }
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        stays_flat(&three(1000), &model, &prompt(&model), "cpu:0");
    });
}

/// Checks that a shorter context ends only the sequences that exceed it.
#[test]
fn a_request_that_no_longer_fits_ends_alone() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let ids = prompt(&model);
        let wanted = Setup { cpu_devices: 2, threads: 1, ..Setup::default() };
        let planner = |found: &Devices| {
            let planner = Planner::new(&model).devices(found).activations(Activations::F32).kv(KvType::F32);
            planner.chunk(32).without_streaming().unexplained()
        };
        // One device holds the model with a context of 64, but not with one of 256.
        let alone = devices(&Setup { cpu_devices: 1, ..wanted.clone() });
        let bytes = |context| planner(&alone).context(context).plan().unwrap().stages[0].memory_bytes.total;
        let cap = bytes(64).midpoint(bytes(256));
        let mut options = ragtag::DeviceOptions::selecting("cpu").capping_memory(format!("cpu={cap}"));
        (options.cpu_devices, options.cpu_threads) = (2, Some(1));
        let found = Devices::probe(&options).unwrap();
        let lost = Faults { losing_submission: Some(110), ..Faults::default() };
        let found = faulty(found, &[("cpu:1", lost)]);
        let mut options = EngineOptions::default();
        (options.max_recoveries, options.no_self_test) = (8, true);
        let news = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&news);
        options.on_recovery = Some(Box::new(move |news| heard.lock().unwrap().push(news.clone())));
        let engine = Engine::start(&model, &found, &planner(&found).context(256), options).unwrap();
        assert_eq!(engine.plan().stages.len(), 2, "{}", engine.plan().split());
        let session = engine.session();
        let long: Vec<u32> = ids.iter().copied().cycle().take(220).collect();
        let start = |prompt: &[u32], tokens| {
            listen(session.generate(Prompt::Tokens(prompt), &greedy(tokens)).unwrap())
        };
        let (short, long) = (start(&ids, 30), start(&long, 30));
        let short = block_on(short).unwrap();
        let error = block_on(long).unwrap_err();
        let Error::Run(RunError::Refused(Refusal::NoLongerFits { context, .. })) = error else {
            panic!("{error:?}: {news:?}")
        };
        assert!((64..220).contains(&context), "{context}");
        // The request ends a moment before the engine says which plan runs.
        while engine.plan().context != context || news.lock().unwrap().len() < 2 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let news = news.lock().unwrap();
        let [RecoveryNews::Lost { device, .. }, RecoveryNews::Recovered { changes, .. }] = &news[..] else {
            panic!("{news:?}")
        };
        assert!(device == "cpu:1" && changes[0].starts_with("the context is "), "{changes:?}");
        let sound = Engine::start(&model, &alone, &planner(&alone).context(256), EngineOptions::default());
        let sound = sound.unwrap();
        let stream = sound.session().generate(Prompt::Tokens(&ids), &greedy(30)).unwrap();
        assert_eq!(short.ids, block_on(listen(stream)).unwrap().ids);
    });
}

#[test]
fn the_command_takes_one_policy() {
    let refused = ragtag().args(["run", "--no-recover", "--max-recoveries", "3"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--no-recover"),
        "{}",
        String::from_utf8_lossy(&refused.stderr)
    );
    let done = ragtag().args(["run", "--no-recover", "-p", "Once", "-n", "1", "-q"]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
}
