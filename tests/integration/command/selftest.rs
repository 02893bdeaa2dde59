//! Tests `ragtag selftest` as users run it: its output, its report, and its filters.

use super::*;
use crate::support::run_with_vulkan;

#[test]
fn selftest_tests_every_device_and_reports_what_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let arguments = ["selftest", "--only", "memo*y/", "--report", text(&path)];
    let shown = done(&[&arguments[..], &TWO].concat());
    assert!(shown.err.starts_with("testing ") && shown.err.contains("cpu:0, cpu:1"), "{}", shown.err);
    let report = read_json(&path);
    assert_eq!(
        keys(&report),
        BTreeSet::from([
            "absent",
            "arch",
            "only",
            "os",
            "ragtag",
            "ragtag_selftest",
            "reports",
            "seed",
            "shapes",
            "started_unix_s"
        ])
    );
    assert_eq!((&report["ragtag_selftest"], &report["only"]), (&1.into(), &"memo*y/".into()));
    assert_eq!((&report["shapes"], &report["seed"]), (&2.into(), &1.into()));
    for device in report["reports"].as_array().unwrap() {
        let tests = device["tests"].as_array().unwrap();
        assert!(tests.iter().all(|test| test["name"].as_str().unwrap().starts_with("memory/")));
        let count = |verdict: &str| tests.iter().filter(|test| test["verdict"] == verdict).count();
        let label =
            format!("{}:{}", device["adapter"]["backend"].as_str().unwrap(), device["adapter"]["index"]);
        let row = shown.out.lines().find(|line| line.starts_with(&format!("| {label} ")));
        let cells: Vec<_> =
            row.unwrap_or_else(|| panic!("{label} in {}", shown.out)).split('|').map(str::trim).collect();
        let counts = ["passed", "failed", "skipped"].map(|verdict| count(verdict).to_string());
        assert_eq!(cells[4..7], counts, "{row:?}");
        assert!(count("passed") > 3, "{device}");
    }
}

#[test]
fn selftest_runs_kernels_on_the_selected_devices() {
    let arguments = ["selftest", "--only", "kernel/*/portable", "--device", "cpu:1", "--json"];
    let json = done(&[&arguments[..], &TWO].concat()).json();
    let [device] = &json["reports"].as_array().unwrap()[..] else { panic!("one device in {json}") };
    assert_eq!(device["adapter"]["index"], 1);
    for test in device["tests"].as_array().unwrap() {
        assert_eq!(test["verdict"], "passed", "{test}");
        let tolerance = match test["class"].as_str().unwrap() {
            "exact" => NumericsClass::Exact.tolerance(),
            class => {
                assert_eq!(class, "fast");
                NumericsClass::Fast.tolerance()
            }
        };
        assert!(test["relative_error"].as_f64().unwrap() <= tolerance, "{test}");
        assert!(test["duration_us"].as_u64().unwrap() > 0, "{test}");
    }
    // One line sums up the kernels that the device cannot run, with their number.
    let shown = done(&["selftest", "--only", "kernel/*/opencl", "--device", "cpu"]).out;
    assert_eq!(shown.matches("the device does not take OpenClC kernels").count(), 1, "{shown}");
    // The environment selects devices, as for other commands.
    let named = done_by(
        ragtag()
            .args(["selftest", "--only", "memory/fill", "--cpu-devices", "2"])
            .env("RAGTAG_DEVICES", "cpu:1"),
    );
    assert!(named.err.contains("testing cpu:1"), "{}", named.err);
}

/// Checks that no warning is printed when Ragtag opens a wgpu device. Mesa's device-selection layer prints a
/// warning if it finds no Wayland session.
#[test]
fn a_wgpu_device_opens_without_complaints_about_a_session() {
    let arguments = ["selftest", "--only", "memory/", "--device", "wgpu:0"];
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    let (code, _, said) = run_with_vulkan(drivers.as_deref(), |command| {
        command.args(arguments).env_remove("XDG_RUNTIME_DIR");
    });
    if code == Some(5) {
        test_support::skip!("Vulkan driver", "wgpu: {said}");
        return;
    }
    assert!(code == Some(0) && !said.contains("XDG_RUNTIME_DIR"), "{said}");
}
