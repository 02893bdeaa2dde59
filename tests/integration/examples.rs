//! Runs the examples and checks the output that their headers describe.

use crate::support::{last_vulkan, sheltered};

/// Runs an example and returns its output.
fn printed(name: &str, arguments: &[&str]) -> String {
    output(sheltered(example(name)), arguments)
}

/// Returns the command of an example.
pub(crate) fn example(name: &str) -> assert_cmd::Command {
    // `cargo test` builds the examples next to the folder of the tests. With `--test integration` it builds
    // no example.
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().with_file_name("examples").join(name);
    assert!(
        example.with_extension(std::env::consts::EXE_EXTENSION).exists(),
        "missing example {name}: run `cargo build --examples` first"
    );
    assert_cmd::Command::new(example)
}

fn output(mut command: assert_cmd::Command, arguments: &[&str]) -> String {
    // Probes of links must not use the user's cache.
    let cache = tempfile::tempdir().unwrap();
    let done = command.env("RAGTAG_CACHE_DIR", cache.path()).args(arguments).assert().success();
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

#[track_caller]
fn prints(name: &str, arguments: &[&str], lines: &[&str]) {
    let out = printed(name, arguments);
    let missing: Vec<_> = lines.iter().filter(|line| !out.contains(**line)).collect();
    assert!(missing.is_empty(), "{missing:?} in {out}");
}

#[test]
fn generates_text() {
    let model = test_support::model("tales-q8_0");
    let arguments = [model.to_str().unwrap(), "The old woman"];
    prints("01-generate", &arguments, &["selected=[cpu:0]", "\nThe old woman", "200 tokens at "]);
}

#[test]
fn a_pipeline_gives_the_same_text_for_every_cut() {
    prints("02-pipeline", &[], &["stage 1: segments ", "- bottleneck: ", "4-13=cpu:1: the same tale\n"]);
}

#[test]
fn plans_need_no_device() {
    let lines =
        ["fast:0   segments 0-13 ", "slow:0   segments ", "no plan: the model does not fit", "fast:0 lacks "];
    prints("03-plan-without-running", &[], &lines);
}

#[test]
fn serves_sixteen_sequences() {
    let lines = [" 1 in flight: 1600 tokens", " 4 in flight: 1600 tokens", "16 in flight: 1600 tokens"];
    prints("04-many-sequences", &[], &lines);
}

#[test]
fn draws_and_traces_the_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let out = printed("05-overlap", &[trace.to_str().unwrap()]);
    // Each of the three runs has a bar for each stage and one for both.
    for bar in ["stage 0", "stage 1", "both"] {
        assert_eq!(
            out.lines().filter(|line| line.trim_start().starts_with(bar)).count(),
            3,
            "{bar} in {out}"
        );
    }
    let spans: usize = out.lines().last().unwrap().rsplit(' ').nth(1).unwrap().parse().unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let is_span = |event: &&serde_json::Value| event["ph"] == "X" && event["name"] != "turn";
    assert_eq!(events.iter().filter(is_span).count(), spans, "{out}");
    assert!(spans > 0);
}

#[test]
fn attention_meets_its_promised_error() {
    let out = printed("06-attention-everywhere", &["2", "32", "16"]);
    let line = out.lines().find(|line| line.starts_with("cpu:0 ")).expect("the processor");
    let [.., error, _, _] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(error.parse::<f64>().unwrap() <= 1e-4, "{line}");
}

#[test]
fn two_cpu_devices_replace_a_missing_gpu() {
    let lines = [
        "no GPU: the CPU is both devices",
        "segments 0-6 on cpu:0 (",
        "segments 7-13 on cpu:1 (",
        "\nOnce upon a time",
        "32 tokens at ",
    ];
    prints("07-gpu-and-cpu", &[], &lines);
    // The statistics may lack the last transfer.
    let edge = ["cpu:0 → cpu:1: 1 transfers of prompts and 3", " of tokens, route "];
    prints("07-gpu-and-cpu", &[test_support::model("tales-bitnet-tq2_0").to_str().unwrap()], &edge);
}

#[test]
fn a_single_api_is_used_twice() {
    let lines = ["only one API: ", "cpu:0 (", "cpu:0 alone: the same text\ncpu:1 alone: the same text\n"];
    prints("08-two-apis", &[], &lines);
}

/// Returns the command of an example that finds the first driver of OpenCL and of Vulkan. Returns `None` and records a
/// skip if there is no driver of Vulkan.
fn with_drivers(name: &str) -> Option<assert_cmd::Command> {
    last_vulkan()?;
    let drivers = ["OCL_ICD_VENDORS", "VK_DRIVER_FILES"].map(|name| (name, std::env::var_os(name)));
    let mut command = sheltered(example(name));
    for (name, value) in drivers {
        let first = value.and_then(|value| std::env::split_paths(&value).next());
        command.env_remove(name).envs(first.map(|value| (name, value)));
    }
    Some(command)
}

/// Returns the output of an example with the drivers of [`with_drivers`]. The model must be small, because the bundled
/// model takes a second per token where shaders run on the CPU.
fn printed_with_drivers(name: &str, arguments: &[&str]) -> Option<String> {
    Some(output(with_drivers(name)?, arguments))
}

/// Returns the path of a tiny model directory.
fn tiny(name: &str) -> String {
    test_support::golden(name).to_str().unwrap().into()
}

#[test]
fn two_apis_generate_the_same_text() {
    let Some(mut command) = with_drivers("08-two-apis") else { return };
    let cache = std::env::var_os("RAGTAG_CACHE_DIR");
    command.envs(cache.map(|folder| ("RAGTAG_CACHE_DIR", folder)));
    // This example probes no links, so it may use the programs that other tests compiled.
    let done = command.arg(tiny("tiny-llama3")).assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout);
    assert!(!out.contains("only one API") && out.matches(" alone: the same text").count() == 2, "{out}");
}

#[test]
fn a_software_device_replaces_a_missing_gpu() {
    let Some(out) = printed_with_drivers("07-gpu-and-cpu", &[&tiny("tiny-llama3")]) else { return };
    for line in
        ["no GPU: vulkan:0 ", "segments 0-1 on vulkan:0 (", "segments 2-3 on cpu:0 (", "vulkan:0 → cpu:0: 1 "]
    {
        assert!(out.contains(line), "{line} in {out}");
    }
}

#[test]
fn reports_all_routes_of_each_link() {
    let out = printed("09-links-report", &[]);
    for link in ["cpu:0 → cpu:1", "cpu:1 → cpu:0"] {
        let lines: Vec<_> = out.lines().filter(|line| line.starts_with(link)).collect();
        let is_verified = |line: &&&str| line.contains(" yes ") && line.ends_with("GB/s");
        assert_eq!(lines.iter().filter(is_verified).count(), 3, "{out}");
        assert!(lines[3].contains(" host: plans use "), "{out}");
    }
}

#[test]
fn reports_every_link_between_devices() {
    let labels = ["vulkan:0", "opencl:0", "cpu:0"];
    let Some(out) = printed_with_drivers("09-links-report", &[&labels.join(",")]) else { return };
    for from in labels {
        for to in labels.into_iter().filter(|to| *to != from) {
            let link = format!("{from} → {to}");
            let summary = out.lines().any(|line| line.starts_with(&link) && line.contains(": plans use "));
            assert!(summary, "{link} in {out}");
        }
    }
}

#[test]
fn a_plan_for_a_model_of_the_user_has_reasons() {
    let model = test_support::model("tales-q8_0");
    let out = printed("10-plan-with-reasons", &[model.to_str().unwrap()]);
    for line in
        ["with 14 segments may run on:\n  cpu:0 ", "\n  cpu:0      segments 0-13, ", "  - bottleneck: cpu:0 "]
    {
        assert!(out.contains(line), "{line} in {out}");
    }
    let last = out.lines().last().unwrap();
    let speeds: Vec<f64> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(speeds.len() == 2 && speeds.iter().all(|speed| *speed > 0.0), "{last}");
}

#[test]
fn a_plan_says_why_devices_are_not_used() {
    let arguments = [&*tiny("tiny-llama3"), "vulkan:0,opencl:0,cpu"];
    let Some(out) = printed_with_drivers("10-plan-with-reasons", &arguments) else { return };
    for label in ["vulkan:0", "opencl:0", "cpu:0"] {
        let role = |line: &str| line.starts_with(&format!("  {label:10} segments "));
        let is_unused = out.contains(&format!("  {label:10} not used\n"));
        let has_reason =
            out.contains(&format!("  - {label} is left out: ")) || out.contains(" are left out: ");
        assert!(out.lines().any(role) != is_unused && (!is_unused || has_reason), "{label} in {out}");
    }
}

/// Checks that the output of `11-larger-than-its-device` shows a run with streamed weights and the same text.
fn check_streamed(out: &str, label: &str) {
    let runs: Vec<_> = out.lines().filter(|line| line.contains(" MiB, ")).collect();
    let [whole, capped] = runs[..] else { panic!("{label}: {out}") };
    assert!(
        whole.contains("all weights stay") && capped.contains(" segments are streamed: "),
        "{label}: {out}"
    );
    let used = |line: &str| line.split(' ').next().unwrap().parse::<f64>().unwrap();
    assert!(
        used(capped) < used(whole) && out.contains("the text with streamed weights: the same\n"),
        "{label}: {out}"
    );
    assert!(out.contains(&format!("- streamed on {label}: ")), "{label}: {out}");
}

#[test]
fn a_model_larger_than_its_device_generates_the_same_text() {
    check_streamed(&printed("11-larger-than-its-device", &[]), "cpu:0");
    for label in ["opencl:0", "vulkan:0"] {
        let arguments = [&*tiny("tiny-smollm3"), label];
        let Some(out) = printed_with_drivers("11-larger-than-its-device", &arguments) else { return };
        check_streamed(&out, label);
    }
}
