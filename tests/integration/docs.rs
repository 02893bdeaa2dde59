//! Compares statements of the documentation with what the command prints and what the code does.

use crate::support::{ragtag, root};
use ragtag_planner::cost::PROFILE_VERSION;
use ragtag_planner::fleet::FLEET_VERSION;
use ragtag_planner::plan::PLAN_VERSION;
use ragtag_transfer::Route;
use serde_json::Value;

/// Returns a page with each run of white space as one space.
fn page(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn states(path: &str, statement: &str) {
    assert!(page(path).contains(statement), "{path} lacks: {statement}");
}

/// Runs a command and returns its standard output.
fn shown(arguments: &[&str]) -> String {
    let done = ragtag().args(arguments).assert().success();
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

fn planned(arguments: &[&str]) -> Value {
    serde_json::from_str(&shown(&[&["plan", "--json"], arguments].concat())).unwrap()
}

#[test]
fn the_pipeline_in_the_help_has_two_stages() {
    let help = shown(&["--help"]);
    let example = help.lines().find(|line| line.contains("a pipeline of two CPU devices")).unwrap();
    let (command, _) = example.trim().split_once("  ").unwrap();
    let arguments: Vec<_> = command.strip_prefix("ragtag run ").unwrap().split(' ').collect();
    assert_eq!(planned(&arguments)["stages"].as_array().unwrap().len(), 2, "{command}");
}

#[test]
fn the_readme_and_the_help_list_the_same_exit_codes() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| code | meaning |").unwrap();
    let rows =
        table.lines().skip(2).map_while(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok());
    let codes: Vec<u32> = rows.collect();
    assert_eq!(codes, (0..=8).collect::<Vec<_>>());
    let help = shown(&["--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, list) = help.split_once("Exit codes: ").unwrap();
    for code in codes {
        assert!(list.split(", ").any(|item| item.starts_with(&format!("{code} "))), "{code} in {list}");
    }
}

#[test]
fn variables_in_the_help_have_a_row_in_the_table() {
    for command in ["plan", "run", "devices", "calibrate"] {
        let help = shown(&[command, "--help-all"]);
        for (at, _) in help.match_indices("RAGTAG_") {
            let name: String =
                help[at..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            states("docs/devices.md", &format!("| `{name}` |"));
        }
    }
}

#[test]
fn pages_state_the_versions_of_formats() {
    for (field, version) in
        [("ragtag_fleet", FLEET_VERSION), ("ragtag_plan", PLAN_VERSION), ("ragtag_profile", PROFILE_VERSION)]
    {
        states("docs/formats.md", &format!("| `{field}` | version of the format: {version}"));
    }
    let version = ragtag::SELFTEST_VERSION;
    states("docs/formats.md", &format!("| `ragtag_selftest`, `ragtag` | version of the format ({version}),"));
}

#[test]
fn pages_state_the_rings_without_a_probe() {
    let ring = |route: Route, bytes: &dyn Fn(u64) -> String| {
        let Route::HostStaged { chunk_bytes, depth } = route else { panic!("{route:?}") };
        format!("{depth} × {}", bytes(chunk_bytes))
    };
    let gpus = ring(Route::STAGED_BETWEEN_GPUS, &|bytes| format!("{} MiB between two GPUs", bytes >> 20));
    let others = ring(Route::HOST_STAGED, &|bytes| format!("{} KiB", bytes >> 10));
    states("ARCHITECTURE.md", &format!("{gpus}, otherwise {others}"));
    let Route::HostStaged { chunk_bytes, depth } = Route::HOST_STAGED else { panic!() };
    states("docs/formats.md", &format!("If a figure of the ring is absent: {chunk_bytes} and {depth}."));
}

#[test]
fn pages_name_what_plans_and_calibrations_print() {
    let plan = planned(&[]);
    let is_named = |reason: &Value| reason.as_str().unwrap().starts_with("inputs: ");
    assert!(plan["reasons"].as_array().unwrap().iter().any(is_named), "{plan}");
    states("docs/devices.md", "The `inputs:` line of a plan");
    let calibration = shown(&["calibrate", "--json", "--seconds", "0", "--chunk", "4", "--device", "cpu"]);
    let calibration: Value = serde_json::from_str(&calibration).unwrap();
    let formats = page("docs/formats.md");
    let (_, section) = formats.split_once("## Profiles and links").unwrap();
    for field in calibration.as_object().unwrap().keys() {
        assert!(
            section.contains(&format!("`{field}`")),
            "docs/formats.md lacks `{field}` of `calibrate --json`"
        );
    }
}

/// Checks that each GPU and driver on which the README says that an API was tested has a report.
#[test]
fn tested_devices_have_reports() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let reports: Vec<String> = std::fs::read_dir(root().join("docs/reports"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let support = page("docs/support.md");
    for report in &reports {
        assert!(support.contains(&format!("(reports/{report})")), "docs/support.md lacks {report}");
    }
    for (row, backend) in [("[CUDA]", "cuda"), ("[Vulkan]", "vulkan"), ("[OpenCL]", "opencl")] {
        let row = readme.lines().find(|line| line.starts_with(&format!("| {row}"))).unwrap();
        let tested = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
        for device in tested.split(", ") {
            let last = device.to_lowercase().replace("intel's cpu runtime", "intel-cpu");
            let last = last.split(' ').next_back().unwrap();
            let is_report = |name: &&String| name.starts_with(backend) && name.contains(last);
            assert!(reports.iter().any(|name| is_report(&name)), "no report of {backend} on {device}");
        }
    }
}
