//! Tests models through HIP, on a stand-in for AMD's driver that runs on OpenCL devices. Covers golden
//! logits, a pipeline with the CPU, and the command, which compiles kernels in a separate process.
//!
//! Without an OpenCL device the tests record a skip. `RAGTAG_TEST_OPENCL_ADAPTERS` sets the required number
//! of devices.

use crate::support::{
    self, Setup, block_on, golden, model_path, ragtag, relative_error, tokens_and_routes, within,
};
use ragtag::{DeviceOptions, Devices, GemmChoice, Model};
use ragtag_kernels::{Activations, NumericsClass};
use ragtag_transfer::{Route, Routes};
use test_drivers::{hip_on_opencl, library_path, rocblas_kernels, with_hip_on_opencl};
use test_support::nightly;

/// Environment variable that limits HIP to one device. One is enough here, because the conformance suite
/// tests all devices.
const ONE: &[(&str, &str)] = &[("HIP_VISIBLE_DEVICES", "0")];

/// Returns whether the stand-in has a device. If it has none, records a skip.
fn present() -> bool {
    let devices = Devices::probe(&DeviceOptions::default()).unwrap();
    let found = devices.report().adapter("hip:0").is_some();
    if !found {
        let status = devices.report().backends.iter().find(|row| row.name == "hip").map(|row| &row.status);
        assert!(std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_none(), "{status:?}");
        test_support::skip!("OpenCL driver", "HIP on OpenCL: {status:?}");
    }
    found
}

#[test]
fn logits_match_the_golden_ones_in_both_classes() {
    with_hip_on_opencl("hip::logits_match_the_golden_ones_in_both_classes", ONE, || {
        if !present() {
            return;
        }
        let classes = [(Activations::F32, NumericsClass::Exact), (Activations::Int8, NumericsClass::Fast)];
        within(1800, move || {
            // The stand-in's compiler takes seconds per model.
            let few = [(classes[0], "tales-bitnet-tq2_0"), (classes[1], "tales-q4_k_m")];
            let all = classes.into_iter().flat_map(|class| support::MODELS.map(|name| (class, name)));
            for ((activations, class), name) in if nightly() { all.collect() } else { few.to_vec() } {
                let (model, golden) = (Model::open(model_path(name)).unwrap(), golden(name));
                let setup = Setup { devices: "hip:0", activations, ..Setup::default() };
                let engine = support::engine(&model, &setup);
                let logits = block_on(engine.session().logits(&golden.cases[0].prompt_ids)).unwrap();
                let error = golden.error(&logits);
                println!("hip:0, {name} {activations:?}: relative error {error:.2e}");
                assert!(error <= class.tolerance(), "{name}: {error}");
            }
        });
    });
}

#[test]
fn a_pipeline_with_the_cpu_gives_the_tokens_of_one_device() {
    with_hip_on_opencl("hip::a_pipeline_with_the_cpu_gives_the_tokens_of_one_device", ONE, || {
        if !present() {
            return;
        }
        within(600, || {
            let (alone, _) = tokens_and_routes("hip:0", None);
            for split in ["0-2=hip:0,3-5=cpu:0", "0-2=cpu:0,3-5=hip:0"] {
                let devices = if split.starts_with("0-2=hip") { "hip:0,cpu:0" } else { "cpu:0,hip:0" };
                assert_eq!(tokens_and_routes(devices, Some(split)).0, alone, "{split}");
            }
        });
    });
}

#[test]
fn a_pipeline_of_peers_gives_the_tokens_of_one_device() {
    let test = "hip::a_pipeline_of_peers_gives_the_tokens_of_one_device";
    with_hip_on_opencl(test, &[("HIP_VISIBLE_DEVICES", "0,1"), ("RAGTAG_FAKE_PEERS", "1")], peers_agree);
}

/// Checks that activations take the route through host memory if the driver reports peers but refuses the
/// access.
#[test]
fn a_pipeline_of_refused_peers_gives_the_tokens_of_one_device() {
    let test = "hip::a_pipeline_of_refused_peers_gives_the_tokens_of_one_device";
    with_hip_on_opencl(
        test,
        &[("HIP_VISIBLE_DEVICES", "0,1"), ("RAGTAG_FAKE_PEERS", "refused")],
        peers_agree,
    );
}

fn peers_agree() {
    if !present() {
        return;
    }
    let devices = Devices::probe(&DeviceOptions::default()).unwrap();
    if devices.report().adapter("hip:1").is_none() {
        return test_support::skip!("two OpenCL devices", "HIP on OpenCL has one device");
    }
    within(600, || {
        let (alone, _) = tokens_and_routes("hip:0", None);
        let (ids, routes) = tokens_and_routes("hip:0,hip:1", Some("0-2=hip:0,3-5=hip:1"));
        let peer = Routes::or(Route::Peer, Route::STAGED_BETWEEN_GPUS);
        assert!(routes.iter().all(|routes| *routes == peer), "{routes:?}");
        assert_eq!(ids, alone);
    });
}

/// Checks a prompt that is long enough to use the GEMM library, with weights that Ragtag dequantises for the
/// library. The stand-in's own kernel computes the library's products. The test therefore only checks that
/// the right products reach the library, from the plan to the recorded graph. The plan uses the library by
/// default, because the reported architecture has no matrix units.
#[test]
fn a_long_prompt_uses_the_matrix_library() {
    let (variable, folder) = rocblas_kernels();
    let variables = [ONE[0], (variable, folder.as_str())];
    with_hip_on_opencl("hip::a_long_prompt_uses_the_matrix_library", &variables, || {
        if !present() {
            return;
        }
        within(1800, || {
            let model = Model::open(model_path("tales-q8_0")).unwrap();
            let ids: Vec<u32> =
                golden("tales-q8_0").cases[0].prompt_ids.iter().copied().cycle().take(512).collect();
            let logits = |setup: Setup<'_>| {
                let engine = support::engine(&model, &Setup { context: 512, chunk: 512, ..setup });
                let kernels = engine.stages()[0].kernels.clone();
                (block_on(engine.session().logits(&ids)).unwrap(), kernels)
            };
            let (exact, _) = logits(Setup { threads: 2, ..Setup::default() });
            let hip = Setup { devices: "hip:0", activations: Activations::Int8, ..Setup::default() };
            let choices = [(GemmChoice::Auto, true), (GemmChoice::Own, false)];
            // The other tests of this file cover Ragtag's own kernels.
            for (gemm, by_library) in choices.into_iter().take(if nightly() { 2 } else { 1 }) {
                let (fast, kernels) = logits(Setup { gemm, ..hip.clone() });
                let error = relative_error(&fast, &exact);
                println!("hip:0, 512 rows, {gemm:?}: relative error {error:.2e}");
                assert!(error <= NumericsClass::Fast.tolerance(), "{gemm:?}: {error}");
                for kernel in ["matmul/F16/f16 library", "widen/Q8_0 hip"] {
                    assert_eq!(kernels.iter().any(|one| one == kernel), by_library, "{gemm:?}: {kernels:?}");
                }
            }
        });
    });
}

/// Returns the command with the stand-in and this machine's OpenCL devices.
fn with_stand_in(cache: &std::path::Path) -> assert_cmd::Command {
    let mut command = ragtag();
    for variable in ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"] {
        match std::env::var_os(variable) {
            Some(drivers) => command.env(variable, drivers),
            None => command.env_remove(variable),
        };
    }
    command.env("LD_LIBRARY_PATH", library_path(hip_on_opencl()));
    command.env("HIP_VISIBLE_DEVICES", "0").env("RAGTAG_CACHE_DIR", cache);
    command
}

#[test]
fn the_command_compiles_in_a_separate_process() {
    if !cfg!(target_os = "linux") {
        return test_support::skip!("Linux", "only its loader can be redirected");
    }
    let cache = tempfile::tempdir().unwrap();
    let listed = with_stand_in(cache.path()).args(["devices", "--json"]).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    // Without an OpenCL driver, HIP is present but has no device.
    if !listed["detected"].to_string().contains("hip:0") {
        assert!(std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_none(), "{listed}");
        return test_support::skip!("OpenCL driver", "HIP on OpenCL has no device");
    }
    let run = ["run", "-p", "Once upon a time", "-n", "8", "--device", "hip:0"];
    with_stand_in(cache.path()).args(run).assert().success();
    let kept = std::fs::read_dir(cache.path().join("hip")).map(Iterator::count).unwrap_or(0);
    assert!(kept > 5, "{kept} cached programs");
    // Reports name the matrix library where it has kernels, unless `--gemm own` disables it.
    let (variable, folder) = rocblas_kernels();
    for (choice, named) in [("auto", true), ("own", false), ("library", true)] {
        let mut command = with_stand_in(cache.path());
        let listed = command.env(variable, &folder).args(["devices", "--json", "--gemm", choice]);
        let listed = String::from_utf8_lossy(&listed.output().unwrap().stdout).into_owned();
        assert_eq!(listed.contains("rocBLAS"), named, "{choice}: {listed}");
    }
    // The CPU helps a GPU without room for the weights, if the user does not select devices.
    for (arguments, requested, selected) in [
        (&["--memory", "hip=1GiB"][..], "requested=auto", "selected=[hip:0]"),
        (&["--memory", "hip=4MiB"], "requested=auto", "selected=[hip:0, cpu:0]"),
        (&["--memory", "hip=4MiB", "--device", "gpu"], "requested=gpu", "selected=[hip:0]"),
    ] {
        let mut command = with_stand_in(cache.path());
        let planned = command.args(["plan", "--no-calibration"]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&planned.stderr).into_owned();
        assert!(said.contains(requested) && said.contains(selected), "{arguments:?}: {said}");
        assert_eq!(said.contains("the CPU may help"), selected.ends_with("cpu:0]"), "{said}");
    }
    with_stand_in(cache.path()).args(["devices", "--gemm", "best"]).assert().failure().code(2);
    // An abort in the compiler does not end the command. The error names the signal.
    let empty = tempfile::tempdir().unwrap();
    let aborted = with_stand_in(empty.path()).env("RAGTAG_FAKE_ABORT", "1").args(run).assert().failure();
    let said = String::from_utf8_lossy(&aborted.get_output().stderr).into_owned();
    assert!(said.contains("SIGABRT"), "{said}");
    // Cached programs need no compiler.
    with_stand_in(cache.path()).env("RAGTAG_FAKE_ABORT", "1").args(run).assert().success();
}

/// Checks that the command reports the cause and continues on a machine without AMD hardware.
#[test]
fn the_command_reports_the_cause_and_continues() {
    let output = ragtag().args(["devices", "--json"]).output().unwrap();
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row =
        report["report"]["backends"].as_array().unwrap().iter().find(|row| row["name"] == "hip").unwrap();
    if row["status"] == "found" {
        return test_support::skip!("machine without AMD devices", "{row}");
    }
    let cause = row["cause"].as_str().unwrap();
    println!("{cause}");
    let causes = ["is not installed", "cannot load", "finds no AMD device"];
    assert!(causes.iter().any(|one| cause.contains(one)), "{cause}");
    assert!(report["detected"].to_string().contains("cpu:0"), "{report}");
}
