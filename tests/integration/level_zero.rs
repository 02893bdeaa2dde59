//! Tests models through Level Zero, on the test driver behind Level Zero's own loader and validation layer.
//! Covers golden logits, and pipelines with the second device and with devices of other APIs.
//!
//! Without the loader or Intel's OpenCL runtime the tests record a skip. `RAGTAG_TEST_LEVEL_ZERO` makes them
//! fail instead.

use crate::support::{self, Checkpoint, Setup, block_on, golden, model_path, tokens_and_routes, within};
use ragtag::{DeviceOptions, Devices, Model};
use ragtag_hal::AdapterKind;
use ragtag_kernels::{Activations, NumericsClass};
use ragtag_transfer::{Route, Routes};
use test_drivers::with_level_zero_on_opencl;
use test_support::nightly;

const DEVICES: [&str; 2] = ["level-zero:0", "level-zero:1"];

#[test]
fn logits_match_the_golden_ones_in_both_classes() {
    with_level_zero_on_opencl("level_zero::logits_match_the_golden_ones_in_both_classes", &[], || {
        let classes = [(Activations::F32, NumericsClass::Exact), (Activations::Int8, NumericsClass::Fast)];
        within(1800, move || {
            // Intel's compiler takes seconds per model.
            let few =
                [(DEVICES[0], "tales-bitnet-tq2_0", classes[0]), (DEVICES[1], "tales-q4_k_m", classes[1])];
            let all = DEVICES.into_iter().flat_map(|label| support::MODELS.map(|name| (label, name)));
            let all = all.flat_map(|(label, name)| classes.map(|class| (label, name, class)));
            for (label, name, (activations, class)) in if nightly() { all.collect() } else { few.to_vec() } {
                let (model, golden) = (Model::open(model_path(name)).unwrap(), golden(name));
                let setup = Setup { devices: label, activations, ..Setup::default() };
                let engine = support::engine(&model, &setup);
                let logits = block_on(engine.session().logits(&golden.cases[0].prompt_ids)).unwrap();
                let error = golden.error(&logits);
                println!("{label}, {name} {activations:?}: relative error {error:.2e}");
                assert!(error <= class.tolerance(), "{label}, {name}: {error}");
            }
        });
    });
}

#[test]
fn logits_of_checkpoints_match_the_golden_ones_in_both_classes() {
    with_level_zero_on_opencl(
        "level_zero::logits_of_checkpoints_match_the_golden_ones_in_both_classes",
        &[],
        || {
            within(1800, || {
                let classes = [Activations::F32, Activations::F16];
                // Other devices compute all checkpoints with the same kernels.
                let few = [("tiny-gemma3", classes[0]), ("tiny-fp8", classes[1])];
                let all =
                    support::CHECKPOINTS.into_iter().flat_map(|name| classes.map(|class| (name, class)));
                for (name, activations) in if nightly() { all.collect() } else { few.to_vec() } {
                    let setup = Setup { devices: "level-zero:0", activations, ..Setup::default() };
                    Checkpoint::open(name).check_logits(name, &setup);
                }
            });
        },
    );
}

#[test]
fn two_devices_give_the_tokens_of_the_cpu() {
    with_level_zero_on_opencl("level_zero::two_devices_give_the_tokens_of_the_cpu", &[], || {
        within(600, || {
            let (alone, _) = tokens_and_routes("cpu:0", None);
            for cut in if nightly() { vec![1, 3, 5] } else { vec![3] } {
                let split = format!("0-{}=level-zero:0,{cut}-5=level-zero:1", cut - 1);
                assert_eq!(tokens_and_routes("level-zero:0,level-zero:1", Some(&split)).0, alone, "{split}");
            }
        });
    });
}

#[test]
fn two_peers_give_the_tokens_of_the_cpu() {
    let test = "level_zero::two_peers_give_the_tokens_of_the_cpu";
    with_level_zero_on_opencl(test, &[("RAGTAG_FAKE_PEERS", "1")], || {
        within(600, || {
            let (alone, _) = tokens_and_routes("cpu:0", None);
            let split = Some("0-2=level-zero:0,3-5=level-zero:1");
            let (ids, routes) = tokens_and_routes("level-zero:0,level-zero:1", split);
            let peer = Routes::or(Route::Peer, Route::HOST_STAGED);
            assert!(routes.iter().all(|routes| *routes == peer), "{routes:?}");
            assert_eq!(ids, alone);
        });
    });
}

/// Checks pipelines over Level Zero and two devices of the CPU, OpenCL and Vulkan. There are three sets of three
/// devices, and the nightly run checks all six orders of each.
#[test]
fn pipelines_of_three_apis_give_the_tokens_of_the_cpu() {
    with_level_zero_on_opencl("level_zero::pipelines_of_three_apis_give_the_tokens_of_the_cpu", &[], || {
        within(1200, || {
            let found = Devices::probe(&DeviceOptions::default()).unwrap();
            let of = |backend: &str| {
                let mut all = found.report().adapters().filter(|adapter| adapter.backend == backend);
                // SwiftShader takes a second per token.
                let found = all.find(|adapter| {
                    adapter.kind == AdapterKind::Software && !adapter.driver.name.contains("SwiftShader")
                });
                let found = found.map(|one| one.label());
                if found.is_none() {
                    test_support::skip!(test_support::driver(backend), "no software device");
                }
                found
            };
            let others: Vec<String> = ["opencl", "vulkan"].into_iter().filter_map(of).collect();
            let others = [vec!["cpu:0".to_string()], others].concat();
            let (alone, _) = tokens_and_routes("cpu:0", None);
            let pairs = others.iter().enumerate();
            let pairs =
                pairs.flat_map(|(at, second)| others[at + 1..].iter().map(move |third| [second, third]));
            let orders = [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 2, 1], [1, 2, 0], [2, 1, 0]];
            let all = pairs.enumerate().flat_map(|(at, pair)| {
                let chosen = if nightly() { &orders[..] } else { &orders[at..=at] };
                chosen.iter().map(move |order| (pair, *order))
            });
            for ([second, third], [a, b, c]) in all {
                let three = ["level-zero:0", second.as_str(), third.as_str()];
                let split = format!("0-1={},2-3={},4-5={}", three[a], three[b], three[c]);
                assert_eq!(tokens_and_routes(&three.join(","), Some(&split)).0, alone, "{split}");
            }
        });
    });
}

/// Checks that Intel's own driver accepts the calls of a load, of prefill and of decode for an A770. The driver
/// captures the commands instead of executing them, so the text means nothing.
#[test]
fn intels_driver_accepts_the_calls_of_a_whole_run() {
    let cache = tempfile::tempdir().unwrap();
    let ragtag = || {
        let mut command = support::ragtag();
        command.env("RAGTAG_CACHE_DIR", cache.path()).env_remove("ZE_ENABLE_ALT_DRIVERS");
        command.env("ZE_ENABLE_VALIDATION_LAYER", "1").env("ZE_ENABLE_PARAMETER_VALIDATION", "1").envs([
            ("NEOReadDebugKeys", "1"),
            ("SetCommandStreamReceiver", "1"),
            ("ProductFamilyOverride", "dg2"),
            ("HardwareInfoOverride", "8x4x16"),
            ("ForceDeviceId", "0x56a0"),
            ("AUBDumpCaptureFileName", "/dev/null"),
        ]);
        command
    };
    let probed = ragtag().args(["ragtag-child", "probe", "level-zero"]).output().unwrap();
    let probed = String::from_utf8(probed.stdout).unwrap();
    if probed.contains("unavailable") {
        return test_support::skip!("Intel's Level Zero driver", "{probed}");
    }
    let run = ["run", "--device", "level-zero:0", "--strict", "-p", "Once upon a time there was", "-n", "8"];
    // All results are 0, so a self-test would refuse the device, and the seed decides whether the text ends early.
    let output = ragtag().args(run).args(["--no-self-test", "--seed", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("8 new tokens"), "{:?}: {said}", output.status);
}
