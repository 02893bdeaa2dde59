//! Tests models on every adapter except the CPU backend's. Each adapter runs a model alone, and also in a
//! pipeline with devices of other APIs.
//!
//! The tests use all available adapters. If there is no adapter, they record a skip.
//! `RAGTAG_TEST_OPENCL_ADAPTERS` sets the required number of OpenCL adapters, because continuous integration
//! installs OpenCL implementations for the CPU.

use crate::support::{
    self, Checkpoint, MODELS, SMALL, SMALL_SEGMENTS, Setup, block_on, golden, greedy, listen, model_path,
    within,
};
use ragtag::{DeviceOptions, Devices, Granularity, Model, Prompt, WireType};
use ragtag_hal::{Adapter, AdapterKind, HeapKind, MemorySource};
use ragtag_kernels::{Activations, NumericsClass};
use std::collections::BTreeSet;
use std::time::Instant;
use test_support::{Child, nightly};

const BITNET: &str = "tales-bitnet-tq2_0";
/// Test models, one per architecture.
const ARCHITECTURES: [&str; 2] = [BITNET, "tales-q8_0"];
/// Token limit and chunk size for [`check_logits`]: no limit, and chunks of 32 rows.
const WHOLE: (usize, u32) = (usize::MAX, 32);
/// Number of prompt tokens in tests of small chunks. These tests process the prompt as four chunks of one
/// row, or as a chunk of three rows and a chunk of one row.
const FEW_ROWS: usize = 4;

/// Returns all adapters except those of the CPU backend. Records a skip if there is none. The conformance tests record
/// each API without adapters.
pub(crate) fn adapters() -> Vec<Adapter> {
    let devices = Devices::probe(&DeviceOptions::default()).unwrap();
    let found: Vec<_> =
        devices.report().adapters().filter(|adapter| adapter.backend != "cpu").cloned().collect();
    let opencl = found.iter().filter(|adapter| adapter.backend == "opencl").count();
    let wanted = std::env::var("RAGTAG_TEST_OPENCL_ADAPTERS").map_or(0, |n| n.parse().unwrap());
    assert!(
        opencl >= wanted,
        "found {opencl} OpenCL adapters, but RAGTAG_TEST_OPENCL_ADAPTERS demands {wanted}"
    );
    if found.is_empty() {
        test_support::skip!(test_support::driver("vulkan"), "the CPU is the only device");
    }
    found
}

/// Returns whether the driver of an adapter lacks a shader cache, so that each device recompiles every
/// shader.
pub(crate) fn compiles_anew(adapter: &Adapter) -> bool {
    adapter.driver.name.contains("SwiftShader")
}

/// Returns the adapters in this order: GPUs, adapters on the CPU, and adapters without a shader cache.
fn hardware_first() -> Vec<Adapter> {
    let mut all = adapters();
    all.sort_by_key(|one| (matches!(one.kind, AdapterKind::Cpu | AdapterKind::Software), compiles_anew(one)));
    all
}

/// Returns the labels of each driver's first and last adapters, so that tests need not combine all identical
/// adapters.
fn drivers() -> Vec<[String; 2]> {
    let all = adapters();
    let twins = all.chunk_by(|a, b| (&a.backend, &a.driver) == (&b.backend, &b.driver));
    twins.map(|twins| [twins[0].label(), twins[twins.len() - 1].label()]).collect()
}

/// Returns all adapters except duplicates of adapters that emulate a GPU on the CPU, because such adapters are
/// slow.
fn distinct() -> Vec<Adapter> {
    let mut all = hardware_first();
    let same =
        |a: &Adapter, b: &Adapter| (&a.backend, &a.name, &a.driver) == (&b.backend, &b.name, &b.driver);
    all.dedup_by(|b, a| same(a, b) && a.kind == AdapterKind::Software);
    all
}

/// Device that emulates a GPU on the CPU: its API, and the start of its driver's name.
pub(crate) type SoftwareDevice = (&'static str, &'static str);

pub(crate) const POCL: SoftwareDevice = ("opencl", "Portable Computing Language");
pub(crate) const INTEL: SoftwareDevice = ("opencl", "Intel(R) OpenCL");
pub(crate) const LAVAPIPE: SoftwareDevice = ("vulkan", "llvmpipe");
pub(crate) const WGPU: SoftwareDevice = ("wgpu", "vulkan, llvmpipe");
pub(crate) const SWIFTSHADER: SoftwareDevice = ("vulkan", "SwiftShader");

fn is_one_of(adapter: &Adapter, devices: &[SoftwareDevice]) -> bool {
    devices.iter().any(|(api, driver)| adapter.backend == *api && adapter.driver.name.starts_with(driver))
}

/// Returns the GPUs and, of the devices that emulate a GPU on the CPU, those in `software`. The nightly run gets
/// all devices. Records a skip if there is none.
pub(crate) fn gpus_and(software: &[SoftwareDevice]) -> Vec<Adapter> {
    let mut all = distinct();
    all.retain(|one| nightly() || one.kind != AdapterKind::Software || is_one_of(one, software));
    if all.is_empty() {
        test_support::skip!(test_support::driver(software[0].0), "no GPU, and no driver of {software:?}");
    }
    all
}

/// Returns the first adapter of each API among [`gpus_and`].
pub(crate) fn first_of_each_api(software: &[SoftwareDevice]) -> Vec<Adapter> {
    let (mut seen, mut all) = (BTreeSet::new(), gpus_and(software));
    all.retain(|adapter| seen.insert(adapter.backend.clone()));
    all
}

/// Returns the API name in a device label such as `vulkan:0`.
fn api(label: &str) -> &str {
    label.split(':').next().unwrap_or_default()
}

/// Returns whether the API in `label` uses shaders: Vulkan or wgpu.
fn runs_shaders(label: &str) -> bool {
    ["vulkan", "wgpu"].contains(&api(label))
}

/// Returns the labels of those `adapters` that run shaders on the CPU.
fn slow(adapters: &[Adapter]) -> Vec<String> {
    let is_slow = |one: &&Adapter| one.kind == AdapterKind::Software && runs_shaders(&one.label());
    adapters.iter().filter(is_slow).map(Adapter::label).collect()
}

/// Checks the logits of the first `most` tokens of a golden prompt on each adapter, in chunks of `chunk`
/// rows.
fn check_logits<'a>(
    adapters: &[Adapter],
    models: impl Fn(&Adapter) -> Vec<&'a str>,
    (most, chunk): (usize, u32),
    activations: Activations,
    class: NumericsClass,
) {
    for adapter in adapters {
        let (label, driver) = (adapter.label(), &adapter.driver);
        for name in models(adapter) {
            let path = model_path(name);
            let (model, golden) = (Model::open(path).unwrap(), golden(name));
            let setup = Setup { devices: &label, activations, chunk, ..Setup::default() };
            let engine = support::engine(&model, &setup);
            let prompt = &golden.cases[0].prompt_ids;
            let ids = &prompt[..most.min(prompt.len())];
            let logits = block_on(engine.session().logits(ids)).unwrap();
            let error = golden.error(&logits);
            println!("{label} ({driver}), {name} {activations:?} by {chunk}: relative error {error:.2e}");
            assert!(error <= class.tolerance(), "{label}, {name}: {error}");
        }
    }
}

#[test]
fn exact_logits_are_within_1e_4_on_every_adapter() {
    let class = NumericsClass::Exact;
    within(600, move || {
        // The four models differ in their tensor types and architecture, not in ways that depend on the device.
        let models = |one: &Adapter| match one {
            _ if nightly() || one.kind != AdapterKind::Software || is_one_of(one, &[POCL]) => MODELS.to_vec(),
            _ if one.backend == "wgpu" => vec![BITNET],
            _ => vec!["tales-q8_0"],
        };
        check_logits(&gpus_and(&[POCL, INTEL, LAVAPIPE, WGPU]), models, WHOLE, Activations::F32, class)
    });
}

/// Checks the checkpoints' prompts in chunks of eight rows and a last chunk of one row. Skips adapters without a
/// shader cache, because they take seconds per model and compile the same shaders as other adapters.
fn check_checkpoints(software: &[SoftwareDevice], activations: Activations) {
    for adapter in gpus_and(software).into_iter().filter(|one| !compiles_anew(one)) {
        let label = adapter.label();
        let setup = Setup { devices: &label, chunk: 8, activations, ..Setup::default() };
        for name in support::CHECKPOINTS {
            Checkpoint::open(name).check_logits(&format!("{label}, {name}"), &setup);
        }
    }
}

#[test]
fn logits_of_checkpoints_are_within_1e_4_on_every_adapter() {
    within(1800, || check_checkpoints(&[POCL], Activations::F32));
}

#[test]
fn fast_logits_of_checkpoints_are_within_2e_2_on_every_adapter() {
    within(1800, || {
        check_checkpoints(&[LAVAPIPE], Activations::F16);
        check_checkpoints(&[POCL], Activations::Int8);
    });
}

#[test]
fn fast_logits_are_within_2e_2_on_every_adapter() {
    let class = NumericsClass::Fast;
    within(600, move || {
        let models = |one: &Adapter| match one {
            _ if nightly() || one.kind != AdapterKind::Software || is_one_of(one, &[POCL]) => MODELS.to_vec(),
            _ if one.backend == "wgpu" => vec!["tales-q4_0"],
            _ => vec!["tales-q4_k_m"],
        };
        check_logits(&gpus_and(&[POCL, INTEL, LAVAPIPE, WGPU]), models, WHOLE, Activations::Int8, class)
    });
}

/// Checks wide micro-batches with f16 activations, the arithmetic of devices with matrix units. OpenCL
/// devices do not support f16 activations.
#[test]
fn logits_with_f16_activations_are_within_2e_2_on_every_adapter() {
    let class = NumericsClass::Fast;
    within(600, move || {
        let models = |one: &Adapter| match one.kind {
            AdapterKind::Software => ARCHITECTURES.to_vec(),
            _ => MODELS.to_vec(),
        };
        check_logits(&gpus_and(&[LAVAPIPE]), models, WHOLE, Activations::F16, class);
    });
}

/// Checks chunks of one row and of three rows, which have separate shader programs. Adapters on the CPU load
/// these programs slowly. Therefore only the first adapter runs all combinations of chunk size and numerics
/// class. SwiftShader runs the programs without f16.
#[test]
fn row_by_row_logits_are_within_bounds_on_every_adapter_with_shaders() {
    let adapters = gpus_and(&[LAVAPIPE, SWIFTSHADER]).into_iter();
    let adapters: Vec<_> = adapters.filter(|adapter| runs_shaders(&adapter.label())).collect();
    for (devices, chunk, activations, class) in [
        (usize::MAX, 1, Activations::F32, NumericsClass::Exact),
        (1, 3, Activations::F32, NumericsClass::Exact),
        (1, 1, Activations::Int8, NumericsClass::Fast),
    ] {
        let adapters: Vec<_> = adapters.iter().take(devices).cloned().collect();
        let models = |_: &Adapter| ARCHITECTURES.to_vec();
        within(600, move || check_logits(&adapters, models, (FEW_ROWS, chunk), activations, class));
    }
}

/// Checks the logits of a small model in a pipeline.
fn check_pipeline(setup: &Setup<'_>) {
    Checkpoint::open(SMALL).check_logits(setup.split.unwrap(), &Setup { chunk: 8, ..setup.clone() });
}

/// Checks a cut between neighbours in the list of drivers, without the drivers that have no shader cache. The nightly
/// run checks all cuts between all drivers.
#[test]
fn cuts_over_two_apis_in_both_orders_give_the_golden_logits() {
    within(3600, || {
        let mut devices = [vec![["cpu:0", "cpu:0"].map(String::from)], drivers()].concat();
        let slowest: Vec<_> =
            adapters().iter().filter(|one| compiles_anew(one)).map(Adapter::label).collect();
        devices.retain(|[first, _]| nightly() || !slowest.contains(first));
        let all = (0..devices.len()).flat_map(|a| (0..devices.len()).map(move |b| (a, b)));
        let pairs = all.filter(|(a, b)| nightly() || a.abs_diff(*b) <= 1);
        // If a driver has several devices, the two stages use different devices.
        let pairs = pairs.map(|(a, b)| (&devices[a][0], &devices[b][1])).filter(|(a, b)| a != b);
        for (pair, (first, second)) in (0..).zip(pairs) {
            let cut = 1 + pair % (SMALL_SEGMENTS - 1);
            for cut in if nightly() { 1..SMALL_SEGMENTS } else { cut..cut + 1 } {
                let split = format!("0-{}={first},{cut}-{}={second}", cut - 1, SMALL_SEGMENTS - 1);
                let devices = format!("{first},{second}");
                check_pipeline(&Setup { devices: &devices, split: Some(&split), ..Setup::default() });
            }
        }
    });
}

/// Checks the f16 wire type between the CPU and each API, and from each API to the next.
#[test]
fn the_f16_wire_type_between_apis_is_within_2e_2() {
    within(900, || {
        let checkpoint = Checkpoint::open(SMALL);
        let mut all = vec!["cpu:0".to_string()];
        for adapter in hardware_first() {
            if !all.iter().any(|label| api(label) == adapter.backend) {
                all.push(adapter.label());
            }
        }
        all.sort();
        let pairs = all.windows(2).flat_map(|pair| [(&pair[0], &pair[1]), (&pair[1], &pair[0])]);
        let all = (1..SMALL_SEGMENTS).cycle().step_by(2).zip(pairs);
        for (cut, (first, second)) in all {
            let split = format!("0-{}={first},{cut}-{}={second}", cut - 1, SMALL_SEGMENTS - 1);
            let devices = format!("{first},{second}");
            let (activations, wire_type) = (Activations::Int8, WireType::F16);
            let setup = Setup {
                devices: &devices,
                split: Some(&split),
                activations,
                wire_type,
                chunk: 8,
                ..Setup::default()
            };
            let engine = support::engine(&checkpoint.models[0], &setup);
            let stages = engine.stages();
            let kernels: Vec<_> = stages.iter().flat_map(|stage| &stage.kernels).collect();
            for kernel in ["quantize/f16", "copy"] {
                assert!(kernels.iter().any(|name| name.starts_with(kernel)), "{split}: {kernels:?}");
            }
            let out = block_on(engine.session().logits(&checkpoint.ids)).unwrap();
            let error = checkpoint.error(&out);
            println!("{split}: relative error {error:.2e}");
            assert!(error <= NumericsClass::Fast.tolerance(), "{split}: {error}");
        }
    });
}

/// Checks pipelines over the CPU and one adapter of each API. One device has all feed-forward halves, and the
/// other has the remaining segments. The two devices swap roles from one API to the next.
#[test]
fn attention_and_feed_forward_halves_apart_give_the_golden_logits() {
    within(900, || {
        let mut all: Vec<String> = Vec::new();
        for adapter in hardware_first() {
            if !all.iter().any(|label| api(label) == adapter.backend) {
                all.push(adapter.label());
            }
        }
        for (turn, label) in all.iter().enumerate() {
            let devices = format!("{label},cpu:0");
            let (first, second) =
                if turn % 2 == 0 { (label.as_str(), "cpu:0") } else { ("cpu:0", label.as_str()) };
            // The embedding, the head, and two halves for each block.
            let split = support::feed_forward_apart(first, second, 2 * SMALL_SEGMENTS - 2);
            let granularity = Granularity::HalfBlock;
            check_pipeline(&Setup {
                devices: &devices,
                granularity,
                split: Some(&split),
                ..Setup::default()
            });
        }
    });
}

/// Checks one pipeline over as many APIs as possible. Without CUDA, the CPU runs the first and the last
/// stage.
#[test]
fn five_stages_on_four_apis_give_the_golden_logits() {
    let all = hardware_first();
    // Choose the first device of an API or its last identical device, so that neighbouring stages use
    // different devices if possible.
    let of = |backend: &str| all.iter().filter(|a| a.backend == backend).collect::<Vec<_>>();
    let first = |backend: &str| Some(of(backend).first()?.label());
    let last = |backend: &str| {
        let of = of(backend);
        let twin = of.iter().rfind(|a| a.driver == of[0].driver)?;
        Some(twin.label())
    };
    let stages = match (first("cuda"), last("vulkan"), first("opencl"), last("wgpu")) {
        (Some(cuda), Some(vulkan), Some(opencl), Some(wgpu)) => {
            vec![cuda, vulkan, opencl, wgpu, "cpu:0".into()]
        }
        (None, Some(vulkan), Some(opencl), Some(wgpu)) => {
            vec!["cpu:0".into(), opencl, vulkan, wgpu, "cpu:1".into()]
        }
        (_, vulkan, opencl, wgpu) => {
            test_support::skip!(
                "Vulkan and OpenCL drivers",
                "five stages need Vulkan, OpenCL and wgpu: {vulkan:?}, {opencl:?}, {wgpu:?}"
            );
            return;
        }
    };
    within(600, move || {
        let devices = stages.join(",");
        let [a, b, c, d, e] = &stages[..] else { unreachable!("five stages") };
        let split = format!("0={a},1={b},2-3={c},4={d},5={e}");
        check_pipeline(&Setup { devices: &devices, cpu_devices: 2, split: Some(&split), ..Setup::default() });
    });
}

#[test]
fn four_stages_on_three_apis_serve_eight_sequences_with_cancellations() {
    let all = adapters();
    let [.., second] = &all[..] else { return };
    // Choose a device other than the last one. Prefer a device that does not run all shaders on the CPU.
    let slow = slow(&all);
    let others = || all.iter().filter(|one| one.label() != second.label());
    let Some(first) = others().find(|one| !slow.contains(&one.label())).or(others().next()) else { return };
    let (first, second) = (first.label(), second.label());
    within(900, move || {
        let Checkpoint { models, ids, .. } = Checkpoint::open(SMALL);
        let devices = format!("cpu:0,cpu:1,{first},{second}");
        let split = format!("0=cpu:0,1-2={first},3=cpu:1,4-5={second}");
        let setup = Setup {
            devices: &devices,
            cpu_devices: 2,
            split: Some(&split),
            sequences: 8,
            all_logits: false,
            ..Setup::default()
        };
        let engine = support::engine(&models[0], &setup);
        let prompt = |i: usize| &ids[i..];
        let tokens = |session: &ragtag::Session, i: usize| {
            session.generate(Prompt::Tokens(prompt(i)), &greedy(6)).unwrap()
        };
        // Generate the tokens of each prompt alone.
        let session = engine.session();
        let alone: Vec<Vec<u32>> =
            (0..8).map(|i| block_on(listen(tokens(&session, i))).unwrap().ids).collect();
        for round in 0..if nightly() { 3 } else { 1 } {
            block_on(async {
                let mut streams: Vec<_> = (0..8).map(|i| Some(tokens(&session, i))).collect();
                // Drop three streams after a few tokens while the others continue.
                for i in [round, round + 2, round + 5] {
                    let mut stream = streams[i].take().unwrap();
                    for _ in 0..=round {
                        stream.next_event().await.unwrap();
                    }
                }
                for (i, stream) in streams.into_iter().enumerate() {
                    if let Some(stream) = stream {
                        let ids = listen(stream).await.unwrap().ids;
                        assert_eq!(ids, alone[i], "round {round}, sequence {i}");
                    }
                }
            });
        }
    });
}

/// Returns the resident memory of this process in bytes, if the system reports it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the number of free bytes in the device memory of the device `label`, if the API reports the
/// number.
fn free_bytes(label: &str) -> Option<u64> {
    let devices = Devices::probe(&DeviceOptions::default()).unwrap();
    let memory = *devices.report().adapters().find(|adapter| adapter.label() == label)?.memory.first()?;
    (memory.heap == HeapKind::Device && memory.source == MemorySource::Api).then_some(memory.free_bytes?)
}

/// Checks the CPU and PoCL. The nightly run checks the first device of each driver, with six times as many loads.
#[test]
fn repeated_loads_leak_nothing() {
    // Run in a separate process, because other tests allocate memory as well.
    const NAME: &str = "gpus::repeated_loads_leak_nothing";
    if !Child::inside(NAME) {
        test_support::child(NAME).passes();
        return;
    }
    within(900, || {
        let model = Model::open(model_path(BITNET)).unwrap();
        // Intel's CPU runtime leaks 6 to 12 MB, depending on the processor, for each set of programs that is
        // loaded and released.
        let leaky: Vec<String> = adapters()
            .iter()
            .filter(|a| a.driver.name.starts_with("Intel(R) OpenCL"))
            .map(Adapter::label)
            .collect();
        // Compiling shaders for the CPU takes seconds each time. Other tests load such programs repeatedly.
        let slow = slow(&adapters());
        let (warm_up, loads) = if nightly() { (10, 90) } else { (5, 15) };
        let load = |label: &str, times: usize| {
            // Mean time of each part of a load, printed for information.
            let mut parts = [("probe", 0.0), ("start", 0.0), ("run", 0.0), ("stop", 0.0)];
            for _ in 0..times {
                let mut since = Instant::now();
                let mut done = |part: usize| {
                    parts[part].1 += since.elapsed().as_secs_f64() * 1e3 / times as f64;
                    since = Instant::now();
                };
                let setup = Setup { devices: label, ..Setup::default() };
                let devices = support::devices(&setup);
                done(0);
                let engine = support::engine_on(&model, &setup, &devices).unwrap();
                done(1);
                let logits = block_on(engine.session().logits(&[1, 2, 3])).unwrap();
                assert!(logits.iter().all(|v| v.is_finite()), "{label}");
                done(2);
                engine.shutdown();
                drop(devices);
                done(3);
            }
            println!("{label}: ms of each of {times} loads: {parts:.1?}");
        };
        let tested: Vec<_> = gpus_and(&[POCL]).iter().map(Adapter::label).collect();
        let labels = drivers().into_iter().map(|[first, _]| first);
        let labels = labels.filter(|label| tested.contains(label) && !slow.contains(label));
        for label in std::iter::once("cpu:0".to_string()).chain(labels) {
            // Warm up contexts, compilers and allocators.
            load(&label, warm_up);
            // Allocators with many threads still grow after the warm-up, at times by most of the slack. A leak grows
            // in every series of loads.
            let leaks = (0..3).all(|_| {
                let before = (free_bytes(&label), resident_bytes());
                load(&label, loads);
                let after = (free_bytes(&label), resident_bytes());
                println!("{label}: device memory free, process memory: {before:?} → {after:?}");
                // If all loads run, a leak in one of five exceeds this.
                const SLACK_BYTES: u64 = 80 << 20;
                let slack = if leaky.contains(&label) { loads as u64 * (20 << 20) } else { SLACK_BYTES };
                let lost = before.0.zip(after.0).is_some_and(|(before, after)| after + SLACK_BYTES < before);
                lost || before.1.zip(after.1).is_some_and(|(before, after)| after > before + slack)
            });
            assert!(!leaks, "{label}: each of three series of loads leaves memory behind");
        }
    });
}
