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
    let lines = ["fast:0   segments 0-13 ", "slow:0   segments ", "no plan (exit code 6)", "fast:0 lacks "];
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
        "no GPU: ",
        "segments 0..7 on cpu:0 (",
        "segments 7..14 on cpu:1 (",
        "\nOnce upon a time",
        "64 tokens at ",
    ];
    prints("07-gpu-and-cpu", &[], &lines);
    // The statistics may lack the last transfer.
    let edge = ["cpu:0 → cpu:1: 1 transfers of prompts and 6", " of tokens, route "];
    prints("07-gpu-and-cpu", &[test_support::model("tales-bitnet-tq2_0").to_str().unwrap()], &edge);
}

#[test]
fn a_single_api_is_used_twice() {
    let lines = ["only one API: ", "cpu:0 (", "cpu:0 alone: the same text\ncpu:1 alone: the same text\n"];
    prints("08-two-apis", &[], &lines);
}

#[test]
fn two_apis_generate_the_same_text() {
    if last_vulkan().is_none() {
        return;
    }
    let drivers = ["OCL_ICD_VENDORS", "VK_DRIVER_FILES"].map(|name| (name, std::env::var_os(name)));
    let mut command = sheltered(example("08-two-apis"));
    for (name, value) in drivers {
        // The first driver of each API is enough.
        let first = value.and_then(|value| std::env::split_paths(&value).next());
        command.env_remove(name).envs(first.map(|value| (name, value)));
    }
    let cache = std::env::var_os("RAGTAG_CACHE_DIR");
    command.envs(cache.map(|folder| ("RAGTAG_CACHE_DIR", folder)));
    // The bundled model takes a second per token where shaders run on the CPU. This example probes no links, so it
    // may use the programs that other tests compiled.
    let done = command.arg(test_support::golden("tiny-llama3")).assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout);
    assert!(!out.contains("only one API") && out.matches(" alone: the same text").count() == 2, "{out}");
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
