//! Tests devices that are detected but fail to open. Ragtag must report the failure and run on the other
//! devices.

use crate::support::{
    Setup, block_on, devices, golden, greedy, last_vulkan, listen, model_path, run_with_vulkan, text, within,
};
use ragtag::cli::exit_code;
use ragtag::{
    Calibration, CalibrationOptions, Devices, Engine, EngineOptions, Error, Model, Plan, Planner, Prompt,
};
use ragtag_hal::{Checked, Error as DeviceError};
use ragtag_kernels::{Activations, KvType};
use std::sync::atomic::{AtomicU32, Ordering};
use test_drivers::with_vulkan_faults;

const MODEL: &str = "tales-bitnet-tq2_0";

fn model() -> Model {
    Model::open(model_path(MODEL)).unwrap()
}

/// Returns the error of a driver that does not have enough memory for a context.
fn full() -> DeviceError {
    DeviceError::OutOfMemory { wanted: 1 << 20, free: Some(0) }
}

/// Returns two devices. The devices with the labels in `closed` fail to open.
fn two_without(closed: &'static [&'static str]) -> Devices {
    devices(&Setup { cpu_devices: 2, ..Setup::default() }).checked_by(move |adapter, device| {
        if closed.contains(&adapter.label().as_str()) { Err(full()) } else { Ok(Checked::new(device)) }
    })
}

/// Returns a planner that places a stage on each of the two devices.
fn planner(model: &Model, found: &Devices) -> Planner {
    let planner = Planner::new(model).devices(found).activations(Activations::F32).kv(KvType::F32);
    planner.context(256).chunk(32)
}

/// Starts an engine, which replans if a device fails to open. Returns the plan that finally runs, and for
/// each abandoned plan the device that its error names.
fn started(model: &Model, found: &Devices, planner: &Planner) -> ragtag::Result<(Plan, Vec<String>)> {
    let plan = planner.plan().unwrap();
    assert_eq!(plan.stages.len(), 2, "{}", plan.split());
    let mut given_up = Vec::new();
    let engine = Engine::start_replanning(
        model,
        found,
        planner,
        &plan,
        EngineOptions::default(),
        |error, known, next| {
            let Error::Device { device, .. } = error else { panic!("{error:?}") };
            assert_eq!(known.plan().unwrap().split().to_string(), next.split().to_string());
            given_up.push(device.clone());
        },
    )?;
    let case = &golden(MODEL).cases[0];
    let stream = engine.session().generate(Prompt::Tokens(&case.prompt_ids), &greedy(20)).unwrap();
    assert_eq!(
        block_on(listen(stream)).unwrap().ids,
        case.greedy_ids[..20],
        "the same tokens with every plan"
    );
    Ok((Plan::clone(&engine.plan()), given_up))
}

#[test]
fn an_engine_runs_on_the_remaining_devices() {
    within(120, || {
        let model = model();
        for (closed, left) in [(&["cpu:1"], "cpu:0"), (&["cpu:0"], "cpu:1")] {
            let found = two_without(closed);
            let (plan, given_up) = started(&model, &found, &planner(&model, &found)).unwrap();
            assert_eq!(given_up, *closed);
            assert_eq!(plan.stages.len(), 1);
            assert_eq!(plan.stages[0].device, left);
        }
    });
}

#[test]
fn without_another_plan_the_error_names_the_device() {
    within(120, || {
        let model = model();
        let found = two_without(&["cpu:0", "cpu:1"]);
        let error = started(&model, &found, &planner(&model, &found)).unwrap_err();
        assert!(error.to_string().starts_with("cannot open cpu:0: out of device memory"), "{error}");
        assert_eq!(exit_code(&error), 6);

        let found = two_without(&["cpu:1"]);
        let split = planner(&model, &found).split("0-6=cpu:0,7-13=cpu:1".parse().unwrap());
        let error = started(&model, &found, &split).unwrap_err();
        assert!(error.to_string().starts_with("cannot open cpu:1: "), "{error}");
    });
}

/// Checks devices that open only one at a time. The error must name all of them, because any of them may be
/// the cause.
#[test]
fn devices_that_open_only_one_at_a_time_are_all_named() {
    within(120, || {
        let model = model();
        let opened = AtomicU32::new(0);
        let found = devices(&Setup { cpu_devices: 2, ..Setup::default() }).checked_by(move |_, device| {
            let is_first = opened.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first { Err(full()) } else { Ok(Checked::new(device)) }
        });
        let error = started(&model, &found, &planner(&model, &found)).unwrap_err();
        assert!(error.to_string().starts_with("cannot open cpu:0, cpu:1: "), "{error}");
    });
}

#[test]
fn calibration_and_its_planner_skip_devices_that_fail_to_open() {
    within(120, || {
        let model = model();
        let folder = tempfile::tempdir().unwrap();
        let mut options = CalibrationOptions::default();
        (options.chunk, options.seconds, options.limit) = (32, 0.0, None);
        (options.folder, options.max_load) = (Some(folder.path().into()), 1.0);
        let calibrate = |found: &Devices| Calibration::run(&model, found, &options, &|_, _| ());
        let mut anew = options.clone();
        anew.force = true;
        let found = two_without(&["cpu:1"]);
        let calibration = calibrate(&found).unwrap();
        assert_eq!(
            (&calibration.closed[..], &calibration.timed[..]),
            (&["cpu:1".into()][..], &["cpu:0".into()][..])
        );
        assert!(
            calibration.warnings[0].starts_with("cannot open cpu:1, leaving it out: out of device memory"),
            "{:?}",
            calibration.warnings
        );
        let planner = planner(&model, &found).calibrated(&calibration);
        let stages_on = |planner: &Planner| planner.plan().unwrap().split().to_string();
        assert_eq!(stages_on(&planner), "0-13=cpu:0");
        assert_eq!(
            stages_on(&planner.clone().exclude("cpu:1")),
            "0-13=cpu:0",
            "it may also be excluded explicitly"
        );
        let split = planner.split("0-6=cpu:0,7-13=cpu:1".parse().unwrap());
        let error = split.plan().unwrap_err().to_string();
        assert!(error.contains("the split names cpu:1, which is excluded"), "{error}");

        // Devices with a cached profile are not opened, so the missing profile forces Ragtag to open them.
        let none = two_without(&["cpu:0", "cpu:1"]);
        let error = Calibration::run(&model, &none, &anew, &|_, _| ()).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error:?}");
        // A failure to open is not cached.
        let calibration = calibrate(&two_without(&[])).unwrap();
        assert_eq!((calibration.closed.len(), calibration.profiles.len()), (0, 2));
    });
}

/// Checks that the command reports a device that fails to open and continues with the CPU. If the user
/// requested only that device, the command fails.
#[test]
fn the_command_continues_without_a_device_that_fails_to_open() {
    let test = "closed::the_command_continues_without_a_device_that_fails_to_open";
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    within(300, move || {
        with_vulkan_faults(test, &[("RAGTAG_VULKAN_FAULTS_CLOSED", "1")], |_| {
            let Some(label) = last_vulkan() else { return };
            let folder = tempfile::tempdir().unwrap();
            let run = |arguments: &[&str]| {
                let model = model_path(MODEL);
                run_with_vulkan(drivers.as_deref(), |command| {
                    command.env_remove("RAGTAG_NO_CALIBRATION").env("RAGTAG_CACHE_DIR", folder.path());
                    // Without Mesa's layer, the test's layer is the first one. The same holds if
                    // XDG_RUNTIME_DIR is not set.
                    command.env("NODEVICE_SELECT", "1");
                    command.args(["run", "-n", "2", "-p", "Once", text(&model)]).args(arguments);
                })
            };
            let cause = "vkCreateDevice (ERROR_OUT_OF_DEVICE_MEMORY)";
            let closed = format!("cannot open {label}: {cause}");
            let left_out = format!("note: cannot open {label}, leaving it out: {cause}");
            let both = format!("{label},cpu:0");

            let (code, out, said) = run(&["--device", &both]);
            assert_eq!(code, Some(0), "{said}");
            assert!(out.starts_with("Once") && said.contains(&left_out), "{said}");
            assert!(said.contains("plan: 0-13=cpu:0"), "{said}");

            let (code, _, said) = run(&["--device", &label]);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains(&closed) && said.contains("`ragtag devices --doctor`"), "{said}");

            let split = format!("0-6={label},7-13=cpu:0");
            let (code, _, said) = run(&["--device", &both, "--split", &split, "--no-calibration"]);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains(&closed), "{said}");
            // Standard error is a pipe, so the warning has no colours.
            assert!(said.contains(" WARN ") && !said.contains('\u{1b}'), "{said:?}");
        });
    });
}
