//! Test of a CUDA context that one kernel breaks for the whole process, while 32 streams run over CUDA and the CPU. The
//! test has its own process, because CUDA stays unusable in it. It prints which devices and APIs survive, and the times.

#![allow(clippy::print_stdout)] // the report is the purpose of the test

use device_bench::{Bench, STRAY, STRAY_PTX, all, function, module_of};
use ragtag_engine::{
    Activations, DeviceOptions, Devices, Engine, EngineOptions, Event, Generation, KvType, Model, Planner,
    Prompt, RecoveryNews, Result, Split,
};
use ragtag_hal::{Access, Binding, Command, Device, Dispatch, KernelLanguage, ModuleId, QueueKind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of streams.
const STREAMS: usize = 32;
/// Number of tokens of each stream.
const TOKENS: u32 = 64;
/// Number of tokens of all streams before the fault.
const BEFORE: usize = STREAMS * 8;
/// Number of streams that may differ after a near tie.
const NEAR_TIES: usize = 4;

fn selected(labels: &[String]) -> Devices {
    let mut options = DeviceOptions::selecting(labels.join(","));
    options.cpu_threads = Some(2);
    Devices::probe(&options).unwrap()
}

fn planner(model: &Model, devices: &Devices) -> Planner {
    let planner = Planner::new(model).devices(devices).context(256).sequences(STREAMS as u32).chunk(32);
    planner.activations(Activations::F32).kv(KvType::F32).without_streaming().unexplained()
}

/// Starts an engine whose first half of the segments is on the first device, and the others on the second one.
fn halves(model: &Model, devices: &Devices, ends: [&str; 2], options: EngineOptions) -> Engine {
    let planner = planner(model, devices);
    let whole = planner.plan().unwrap();
    let count = whole.stages.iter().map(|stage| stage.segments.range().len()).sum::<usize>();
    let split = format!("0-{}={},{}-{}={}", count / 2 - 1, ends[0], count / 2, count - 1, ends[1]);
    let plan = planner.clone().split(split.parse::<Split>().unwrap()).plan().unwrap();
    println!("split: {split}");
    Engine::start_replanning(model, devices, &planner, &plan, options, |error, _, _| panic!("{error}"))
        .unwrap()
}

/// Starts an engine on one device.
fn alone(model: &Model, label: &str) -> Result<Engine> {
    let devices = selected(&[label.to_owned()]);
    Engine::start_exact(model, &devices, &planner(model, &devices).plan()?, EngineOptions::default())
}

/// Tokens of a stream, each with its time.
type Said = Vec<(u32, Instant)>;

/// Generates the tokens of stream `at`, and counts those of all streams in `count`.
fn listen(engine: &Engine, at: usize, count: &AtomicUsize) -> Result<Said> {
    let prompt = format!("Once upon a time there were {} small houses at the edge of the wood.", at + 2);
    let generation = Generation { max_tokens: TOKENS, ignore_end: true, ..Generation::greedy() };
    let mut stream = engine.session().generate(Prompt::Text(&prompt), &generation)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut said = Vec::new();
        loop {
            match stream.next_event().await? {
                Event::Token { id, .. } => {
                    let now = Instant::now();
                    count.fetch_add(id.iter().count(), Ordering::Relaxed);
                    said.extend(id.into_iter().map(|id| (id, now)));
                }
                Event::Finished(_) => return Ok(said),
            }
        }
    })
}

/// Runs all streams at once, and calls `fault` after [`BEFORE`] tokens.
fn streams(engine: &Engine, fault: impl FnOnce()) -> Vec<Result<Said>> {
    let (count, start) = (AtomicUsize::new(0), Barrier::new(STREAMS));
    std::thread::scope(|scope| {
        let (count, start) = (&count, &start);
        let listener = |at| {
            scope.spawn(move || {
                start.wait();
                listen(engine, at, count)
            })
        };
        let listeners: Vec<_> = (0..STREAMS).map(listener).collect();
        while count.load(Ordering::Relaxed) < BEFORE && listeners.iter().any(|one| !one.is_finished()) {
            std::thread::sleep(Duration::from_micros(100));
        }
        fault();
        listeners.into_iter().map(|listener| listener.join().unwrap()).collect()
    })
}

fn ids(said: &[(u32, Instant)]) -> Vec<u32> {
    said.iter().map(|(id, _)| *id).collect()
}

/// Breaks the context that all users of the device share in this process.
fn go_astray(bench: &mut Bench) {
    let bindings = vec![Binding { range: all(0), access: Access::Write }];
    let constants = vec![0x7000_0000];
    let stray = Dispatch { module: ModuleId(1), entry: 0, bindings, constants, grid: [1, 1, 1] };
    let error = bench.failure(QueueKind::Compute, vec![Command::Dispatch(stray)]);
    println!("the kernel that writes to an invalid address: {error:?}");
    assert!(error.is_some(), "the fault has no effect");
}

/// Says whether a device computes that was opened before the fault, and one that is opened after it.
fn report(model: &Model, devices: &Devices, label: &str, before: Option<Engine>) {
    let count = AtomicUsize::new(0);
    let say = |what: &str, engine: Result<Engine>| {
        let start = Instant::now();
        match engine.and_then(|engine| listen(&engine, 0, &count)) {
            Ok(said) => println!("{label}, {what}: {} tokens in {:?}", said.len(), start.elapsed()),
            Err(error) => println!("{label}, {what}: {error}"),
        }
    };
    if let Some(engine) = before {
        say("an engine from before the fault", Ok(engine));
    }
    let opened =
        devices.report().adapter(label).map(|adapter| devices.open_adapter(adapter).and_then(Bench::try_new));
    match opened {
        Some(Ok(mut bench)) => {
            let fill = Command::Fill { to: all(0), word: 4 };
            let error = bench.failure(QueueKind::Compute, vec![fill]);
            println!(
                "{label}, opened after the fault: {}",
                error.map_or("works".into(), |error| error.to_string())
            );
        }
        Some(Err(error)) => println!("{label}, opened after the fault: {error}"),
        None => println!("{label}: not found"),
    }
    say("an engine from after the fault", alone(model, label));
}

#[test]
fn thirty_two_streams_survive_a_broken_cuda_context() {
    let cuda = "cuda:0";
    let found = Devices::survey(&DeviceOptions::default());
    let Some(physical) = found.device(cuda) else {
        test_support::skip!("CUDA driver", "no CUDA device");
        return;
    };
    // The same GPU through other APIs, and the CPU.
    let labels: Vec<String> = physical.adapters.iter().cloned().chain(["cpu:0".into()]).collect();
    let others: Vec<_> = labels.iter().filter(|label| *label != cuda).collect();
    println!("devices: {}", labels.join(", "));
    let model = Model::bundled().unwrap();
    let devices = selected(&labels);
    let ends = [cuda, "cpu:0"];
    let sound = halves(&model, &devices, ends, EngineOptions::default());
    let expected: Vec<_> = streams(&sound, || ()).into_iter().map(|said| ids(&said.unwrap())).collect();
    sound.shutdown();
    let beside: Vec<_> = others.iter().map(|label| (*label, alone(&model, label).ok())).collect();

    let mut options = EngineOptions::default();
    options.max_recoveries = 8;
    options.on_recovery = Some(Box::new(|news| match news {
        RecoveryNews::Lost { device, error } => println!("lost {device}: {error}"),
        RecoveryNews::Recovered { plan, after, changes } => {
            println!("recovered after {after:?}: {} {changes:?}", plan.split());
        }
        other => println!("{other:?}"),
    }));
    let engine = halves(&model, &devices, ends, options);
    let adapter = devices.report().adapter(cuda).unwrap();
    let mut bench = Bench::new(devices.open_adapter(adapter).unwrap());
    let module = module_of(KernelLanguage::Ptx, STRAY_PTX.into(), function("stray"));
    let module = ragtag_hal::Module { entries: vec![&STRAY], ..module };
    bench.device.create_module(ModuleId(1), &module).unwrap();
    let mut fault = Instant::now();
    let results = streams(&engine, || {
        fault = Instant::now();
        go_astray(&mut bench);
    });
    drop(bench);
    let (state, stats) = (engine.recovery(), engine.stats());
    println!("{state:?}\n{:?}\nplan: {}", stats.interruptions, engine.plan().split());

    let said: Vec<Said> = results.into_iter().map(|said| said.unwrap()).collect();
    let pauses = said.iter().map(|said| {
        let after = said.iter().map(|(_, at)| *at).find(|at| *at > fault + Duration::from_millis(1));
        after.map_or(0.0, |at| (at - fault).as_secs_f64())
    });
    let (first, last) = pauses.fold((f64::MAX, 0f64), |(low, high), pause| (low.min(pause), high.max(pause)));
    println!("next tokens after the fault: {first:.3} s to {last:.3} s");
    let equal = said.iter().zip(&expected).filter(|(said, expected)| ids(said) == **expected).count();
    println!("{equal} of {STREAMS} streams have the tokens of a run without a fault");
    engine.shutdown();
    for (label, engine) in beside {
        report(&model, &devices, label, engine);
    }
    report(&model, &devices, cuda, None);

    assert!(said.iter().all(|said| said.len() == TOKENS as usize), "a stream is short");
    assert!(equal + NEAR_TIES >= STREAMS, "{equal} equal streams");
    assert!(state.recoveries >= 1 && state.lost.contains_key(cuda), "{state:?}");
}
