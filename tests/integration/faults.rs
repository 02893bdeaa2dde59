//! Tests devices that are slow, run out of memory or are lost. The run continues or ends with one clear
//! error. No actor blocks on a device, and nothing leaks.

use crate::support::{
    Said, Setup, block_on, devices, engine, engine_on, golden, greedy, listen, model_path, within,
};
use ragtag::cli::exit_code;
use ragtag::{Engine, Error, Event, Model, Prompt, Reason};
use ragtag_hal::{Checked, Device, Error as DeviceError, Faults, LeakWatch, Leaks, QueueKind};
use ragtag_scheduler::{Error as RunError, SpanKind, Turn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MODEL: &str = "tales-bitnet-tq2_0";
/// Split over three devices. The first has the embedding and six blocks, the second one block, and the third
/// five blocks and the head.
const THREE: &str = "0-6=cpu:0,7=cpu:1,8-13=cpu:2";
/// Duration of a slow copy.
const SLOW_COPY: Duration = Duration::from_secs(1);
/// Maximum number of turns of an actor that may take as long as a slow copy. The test allows this number
/// because the machine may stall. If an actor blocked on copies, at least four turns would take this long,
/// one per micro-batch.
const STALLED_TURNS: usize = 1;

fn model() -> Model {
    Model::open(model_path(MODEL)).unwrap()
}

fn setup<'a>() -> Setup<'a> {
    Setup { cpu_devices: 3, split: Some(THREE), all_logits: false, ..Setup::default() }
}

/// Observer that records leaks and losses of an engine's devices.
#[derive(Clone, Default)]
struct Watch {
    leaks: Arc<Mutex<Vec<LeakWatch>>>,
    /// Whether a device was lost.
    lost: Arc<AtomicBool>,
}

impl Watch {
    fn over(&self, device: &Checked) {
        self.leaks.lock().unwrap().push(device.leak_watch());
        let lost = Arc::clone(&self.lost);
        device.timeline(QueueKind::Compute).subscribe(move |progress| {
            if matches!(progress.failure, Some(DeviceError::Lost { .. })) {
                lost.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Asserts that `devices` devices were dropped after their threads ended, and that none of them leaked
    /// memory.
    #[track_caller]
    fn assert_no_leaks(&self, devices: usize) {
        let leaks: Vec<_> = self.leaks.lock().unwrap().iter().map(LeakWatch::leaks).collect();
        assert_eq!(leaks, vec![Some(Leaks::default()); devices]);
    }
}

/// Starts an engine in which each device named in `faults` has the listed faults. Also returns an observer of
/// all devices.
fn faulty(model: &Model, setup: &Setup<'_>, faults: &[(&str, Faults)]) -> (ragtag::Result<Engine>, Watch) {
    let faults: Vec<_> = faults.iter().map(|(label, faults)| (label.to_string(), faults.clone())).collect();
    let watch = Watch::default();
    let watching = watch.clone();
    let devices = devices(setup).checked_by(move |adapter, device| {
        let own = faults.iter().find(|(label, _)| *label == adapter.label());
        let own = own.map(|(_, faults)| faults.clone()).unwrap_or_default();
        let device = Checked::with_faults(device, own)?;
        watching.over(&device);
        Ok(device)
    });
    (engine_on(model, setup, &devices), watch)
}

fn prompts() -> Vec<Vec<u32>> {
    let cases = golden(MODEL).cases;
    let ids = |case: usize, more: usize| {
        let case = &cases[case % cases.len()];
        [&case.prompt_ids[..], &case.greedy_ids[..more]].concat()
    };
    (0..8).map(|i| ids(i, i)).collect()
}

fn say(engine: &Engine, prompt: &[u32], tokens: u32) -> Said {
    block_on(listen(engine.session().generate(Prompt::Tokens(prompt), &greedy(tokens)).unwrap())).unwrap()
}

#[test]
fn no_actor_blocks_on_a_device_with_copies_of_a_second() {
    within(120, || {
        let model = model();
        let prompt = &golden(MODEL).cases[0];
        let ids = [&prompt.prompt_ids[..], &prompt.greedy_ids[..19]].concat();
        assert_eq!(ids.len(), 32);
        let slow_us = SLOW_COPY.as_micros() as u64;
        let slow = Faults { delay_us: [0, slow_us, slow_us], ..Faults::default() };
        // The prompt takes four micro-batches.
        let setup = Setup { chunk: 8, context: 64, trace: true, ..setup() };
        let (engine, watch) = faulty(&model, &setup, &[("cpu:1", slow)]);
        let engine = engine.unwrap();
        let begun = Instant::now();
        let said = say(&engine, &ids, 2);
        assert_eq!(said.ids, prompt.greedy_ids[19..21]);
        // The run waits for four copies in, the last copy out, and the round trip of the second token.
        assert!(begun.elapsed() > 6 * SLOW_COPY, "{:?}", begun.elapsed());
        for (stage, report) in engine.stage_reports().iter().enumerate() {
            assert!(
                report.longest_turn_us > 0 && report.counts.micro_batches == 5,
                "stage {stage}: {report:?}"
            );
        }
        let trace = engine.shutdown().trace;
        watch.assert_no_leaks(3);

        // While the first activations were in flight to the slow device, the previous stage continued.
        let computed =
            |stage| trace.spans().iter().filter(move |s| s.kind == SpanKind::Compute && s.stage == stage);
        let first = computed(1).map(|span| span.start_ns).min().unwrap();
        let ahead = computed(0).filter(|span| span.end_ns < first).count();
        assert!(ahead >= 3, "{ahead} micro-batches were computed before the first one arrived");
        // The trace contains the turns of the actors. They are shorter than a copy.
        for stage in 0..3 {
            let turns: Vec<_> = trace.turns().iter().filter(|turn| turn.stage == stage).collect();
            assert!(turns.len() > 4, "stage {stage}: {} turns", turns.len());
            let lasts = |turn: &&&Turn| Duration::from_nanos(turn.end_ns - turn.start_ns) >= SLOW_COPY;
            let long: Vec<_> = turns.iter().filter(lasts).collect();
            assert!(long.len() <= STALLED_TURNS, "stage {stage} waits: {long:?}");
        }
    });
}

#[test]
fn a_lost_device_ends_the_run_without_leaks() {
    within(120, || {
        let model = model();
        for lost in ["cpu:0", "cpu:1", "cpu:2"] {
            let stage = lost[4..].parse::<u32>().unwrap();
            // The loss happens after loading and some micro-batches.
            let faults = Faults { lost_at_command: Some(1500), ..Faults::default() };
            let setup = Setup { sequences: 8, chunk: 16, ..setup() };
            let (engine, watch) = faulty(&model, &setup, &[(lost, faults)]);
            let engine = engine.unwrap();
            let session = engine.session();
            let start = |prompt: Vec<u32>| session.generate(Prompt::Tokens(&prompt), &greedy(90)).unwrap();
            let streams: Vec<_> = prompts().into_iter().map(start).collect();
            let mut tokens = 0;
            for mut stream in streams {
                let error = loop {
                    match block_on(stream.next_event()) {
                        Ok(Event::Token { .. }) => tokens += 1,
                        Ok(Event::Finished(summary)) => panic!("{lost}: {summary:?}"),
                        Err(error) => break error,
                    }
                };
                match error {
                    Error::Run(RunError::Stage {
                        stage: named,
                        ref device,
                        cause: DeviceError::Lost { .. },
                    }) => {
                        assert_eq!((named, device.as_str()), (stage, lost));
                        assert_eq!(exit_code(&error), 1);
                    }
                    other => panic!("{lost}: {other:?}"),
                }
            }
            drop((session, engine));
            assert!(watch.lost.load(Ordering::Relaxed), "{lost} was not lost");
            assert!(tokens > 0, "{lost} was lost before the run had begun");
            watch.assert_no_leaks(3);
        }
    });
}

#[test]
fn reports_failed_allocations_with_sizes_and_runs_smaller_setups() {
    within(120, || {
        let model = model();
        let wanted_setup = Setup { context: 512, sequences: 8, ..setup() };
        // The KV cache of a block for eight sequences of 512 positions is larger than this. The weights of a
        // block are smaller.
        let most = 512 << 10;
        let faults = [("cpu:1", Faults { largest_allocation_bytes: Some(most), ..Faults::default() })];
        let (engine, watch) = faulty(&model, &wanted_setup, &faults);
        let error = engine.unwrap_err();
        match &error {
            Error::Run(RunError::Memory {
                stage: 1,
                device,
                cause: DeviceError::OutOfMemory { wanted, free: Some(free) },
                held_bytes,
                needed_bytes,
            }) => {
                assert!(device == "cpu:1" && *free == most && *wanted > most, "{error}");
                assert!(held_bytes < needed_bytes, "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(exit_code(&error), 6);
        watch.assert_no_leaks(3);

        let smaller = Setup { context: 64, sequences: 1, ..setup() };
        let (engine, watch) = faulty(&model, &smaller, &faults);
        let (engine, case) = (engine.unwrap(), &golden(MODEL).cases[0]);
        assert_eq!(say(&engine, &case.prompt_ids, 10).ids, case.greedy_ids[..10]);
        engine.shutdown();
        watch.assert_no_leaks(3);
    });
}

#[test]
fn a_refused_submission_ends_the_run_with_the_error_of_the_device() {
    within(60, || {
        let model = model();
        let faults = Faults { failing_submission: Some(60), ..Faults::default() };
        let (engine, watch) = faulty(&model, &setup(), &[("cpu:2", faults)]);
        let engine = engine.unwrap();
        let prompt = &prompts()[0];
        let stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(100)).unwrap();
        match block_on(listen(stream)).unwrap_err() {
            Error::Run(RunError::Stage { stage: 2, cause: DeviceError::Api { call, .. }, .. }) => {
                assert!(call.contains("submit"), "{call}");
            }
            // The queues run side by side, so the submission may be a copy. Its error names the edge.
            Error::Run(RunError::Transfer { to, cause: DeviceError::Api { call, .. }, .. }) => {
                assert!(to == "cpu:2" && call.contains("submit"), "{to}: {call}");
            }
            other => panic!("{other:?}"),
        }
        engine.shutdown();
        watch.assert_no_leaks(3);
    });
}

/// Checks drivers with sticky errors, where every call after an error returns the same error. The run must
/// report the error only once, with the call that failed first.
#[test]
fn a_loss_reported_by_a_call_appears_once_with_the_call() {
    within(60, || {
        let model = model();
        for (lost, stage) in [("cpu:0", 0), ("cpu:1", 1), ("cpu:2", 2)] {
            let faults = Faults { losing_submission: Some(60), ..Faults::default() };
            let (engine, watch) = faulty(&model, &setup(), &[(lost, faults)]);
            let engine = engine.unwrap();
            let prompt = &prompts()[0];
            let stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(100)).unwrap();
            let error = block_on(listen(stream)).unwrap_err();
            let said = "device lost: submission 60 failed (injected fault)";
            assert_eq!(error.to_string(), format!("stage {stage} on {lost}: {said}"));
            assert_eq!(exit_code(&error), 1);
            // Later requests get the error that ended the run.
            let later = engine.session().generate(Prompt::Tokens(prompt), &greedy(1));
            let later = later.and_then(|stream| block_on(listen(stream))).unwrap_err();
            assert_eq!(later.to_string(), error.to_string());
            engine.shutdown();
            watch.assert_no_leaks(3);
        }
    });
}

/// Checks that delays and reordering between queues change no token.
#[test]
fn delayed_and_reordered_queues_change_no_token() {
    within(120, || {
        let (model, prompts) = (model(), prompts());
        let setup = Setup { sequences: 4, chunk: 16, ..setup() };
        let sound = engine(&model, &setup);
        let expected: Vec<_> = prompts.iter().map(|prompt| say(&sound, prompt, 24).ids).collect();
        for seed in 0..3 {
            let late = |salt: u64| Faults {
                random_delay_us: 1500,
                delay_us: [0, 300 * salt, 200],
                seed: seed * 3 + salt,
                ..Faults::default()
            };
            let faults = [("cpu:0", late(0)), ("cpu:1", late(1)), ("cpu:2", late(2))];
            let (engine, watch) = faulty(&model, &setup, &faults);
            let engine = engine.unwrap();
            let session = engine.session();
            let start = |prompt: &Vec<u32>| session.generate(Prompt::Tokens(prompt), &greedy(24)).unwrap();
            let mut streams: Vec<_> = prompts.iter().map(start).collect();
            // Cancel every third sequence after a few tokens.
            let mut begun = vec![Vec::new(); streams.len()];
            for at in (0..streams.len()).step_by(3) {
                while begun[at].len() < 3 + at {
                    match block_on(streams[at].next_event()).unwrap() {
                        Event::Token { id, .. } => begun[at].extend(id),
                        Event::Finished(summary) => panic!("sequence {at}: {summary:?}"),
                    }
                }
                streams[at].cancel();
            }
            for (at, stream) in streams.into_iter().enumerate() {
                let said = block_on(listen(stream)).unwrap();
                let ids = [&begun[at][..], &said.ids].concat();
                if at % 3 == 0 {
                    assert_eq!(said.summary.reason, Reason::Cancelled);
                    assert!(expected[at].starts_with(&ids), "seed {seed}, sequence {at}: {ids:?}");
                } else {
                    assert_eq!(ids, expected[at], "seed {seed}, sequence {at}");
                }
            }
            drop(session);
            engine.shutdown();
            watch.assert_no_leaks(3);
        }
    });
}
