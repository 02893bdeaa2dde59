//! Tests memory caps (`--memory` and `RAGTAG_MEMORY`): which plans fit, which errors the caps cause, and
//! where they appear.

use super::*;

const DEVICES: i32 = 5;
const DOES_NOT_FIT: i32 = 6;
/// A request whose memory needs do not depend on the free memory.
const FIXED: [&str; 7] = ["plan", "--ctx", "256", "--chunk", "32", "--wire", "f32"];

/// Runs a command, checks that it fails with exit code `code`, and returns its message on one line.
fn refused(command: &mut assert_cmd::Command, code: i32) -> String {
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {err}");
    assert!(output.stdout.is_empty() && !err.contains("panicked"), "{err}");
    err.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plan(more: &[&str]) -> Value {
    done(&[&FIXED[..], more, &["--json"]].concat()).json()
}

fn stage_bytes(plan: &Value, stage: usize, what: &str) -> u64 {
    plan["stages"][stage]["memory_bytes"][what].as_u64().unwrap()
}

#[test]
fn a_capped_device_streams_what_does_not_fit() {
    let needed = stage_bytes(&plan(&[]), 0, "total");
    let with = |bytes: u64| format!("--memory=cpu:0={bytes}");
    let exact = plan(&[&with(needed)]);
    assert_eq!(stage_bytes(&exact, 0, "total"), needed);
    assert_eq!(stage_bytes(&exact, 0, "available"), needed, "the cap, without a reserve");
    assert!(exact["reasons"].to_string().contains("(given by the user)"), "{}", exact["reasons"]);
    let smaller = plan(&[&with(needed - 1)]);
    assert!(smaller["stages"][0]["streamed"].as_array().is_some_and(|streamed| streamed.len() >= 4));
    assert!(stage_bytes(&smaller, 0, "total") < needed, "streamed weights take less device memory");
    for command in ["plan", "run", "bench", "simulate"] {
        let err = refused(ragtag().args([command, "--ctx", "256", "--memory", "cpu=1MiB"]), DOES_NOT_FIT);
        for words in ["does not fit", "cpu:0 lacks ", "it has 1.0 MiB of the "] {
            assert!(err.contains(words), "{words} in {err}");
        }
    }
}

#[test]
fn a_cap_above_the_free_memory_changes_nothing() {
    let plan = plan(&["--memory", "cpu=1024TiB,host=1024TiB"]);
    assert!(stage_bytes(&plan, 0, "available") < 1 << 50);
    assert!(plan["host_memory_bytes"]["available"].as_u64().unwrap() < 1 << 50);
    assert!(!plan["reasons"].to_string().contains("(given by the user)"), "{}", plan["reasons"]);
}

#[test]
fn caps_split_a_model_over_devices_and_its_plan_needs_no_cap() {
    // Neither device holds the whole model with resident weights.
    let bytes = stage_bytes(&plan(&[]), 0, "total") / 8 * 7;
    let cap = format!("cpu:0={bytes},cpu:1={bytes}");
    let capped = [&["--memory", &cap], &TWO[..]].concat();
    let made = plan(&capped);
    assert_eq!(made["stages"].as_array().unwrap().len(), 2, "{made}");
    assert!(!made.to_string().contains("streamed"), "{made}");
    for stage in 0..2 {
        assert_eq!(stage_bytes(&made, stage, "available"), bytes);
    }
    assert!(made["device_options"].get("memory").is_none());
    let table = done(&[&FIXED[..], &capped].concat());
    assert!(table.out.contains("| of ") && !table.out.contains(" % |"), "{}", table.out);
    assert!(table.err.starts_with(&format!("{START} memory=[cpu:0=")), "{}", table.err);

    let folder = tempfile::tempdir().unwrap();
    let [path, receipt] = ["plan.json", "receipt.json"].map(|name| folder.path().join(name));
    std::fs::write(&path, made.to_string()).unwrap();
    let run = ["run", "-n", "2", "--json", "--plan", text(&path), "--receipt", text(&receipt)];
    let ran = done(&[&run[..], &TWO].concat()).json();
    assert_eq!(lasting(&ran["plan"])["stages"], lasting(&made)["stages"]);
    assert_eq!(read_json(&receipt)["memory_caps"], serde_json::json!([]));
    done(&[&run[..], &capped].concat());
    assert_eq!(read_json(&receipt)["memory_caps"].as_array().unwrap().len(), 2);
    let tighter = [&run[..], &["--memory", "cpu:1=1MiB"], &TWO].concat();
    refused(ragtag().args(tighter), DOES_NOT_FIT);
}

#[test]
fn a_host_cap_limits_pinned_memory_and_cpu_devices() {
    // The logits of many sequences need much pinned memory.
    let many = ["--ctx", "16", "--chunk", "64", "--parallel", "64"];
    let command = |bytes: Option<u64>| {
        let mut command = ragtag();
        command.args(["plan", "--json"]).args(many).args(bytes.map(|bytes| format!("--memory=host={bytes}")));
        command
    };
    let host = |plan: &Value, what: &str| plan["host_memory_bytes"][what].as_u64().unwrap();
    let free = done_by(&mut command(None)).json();
    let (total, devices) = (host(&free, "total"), host(&free, "devices"));
    assert!(devices < total / 10 * 9, "the plan fits the device's share, which is 95 % of the cap: {free}");
    let less = done_by(&mut command(Some(total - 1))).json();
    assert!(host(&less, "total") < total && less.to_string().contains("from_file"), "{less}");
    let fits = done_by(&mut command(Some(total))).json();
    assert_eq!((host(&fits, "total"), host(&fits, "available")), (total, total));

    let err = refused(ragtag().args(FIXED).args(["--memory", "host=2MiB"]), DOES_NOT_FIT);
    assert!(err.contains("cpu:0 lacks ") && err.contains("it has 1.9 MiB of the "), "{err}");
    let shared = done(&[&FIXED[..], &["--memory=host=1GiB", "--json"], &TWO].concat()).json();
    assert_eq!(host(&shared, "available"), 1 << 30);
    assert_eq!(stage_bytes(&shared, 0, "available"), ((1u64 << 30) as f64 * 0.95) as u64 / 2);
}

#[test]
fn a_model_that_exceeds_all_memory_generates_the_same_text() {
    let total = plan(&[])["host_memory_bytes"]["total"].as_u64().unwrap();
    let run = ["run", "-p", "The wolf", "-n", "12", "--temp", "0", "--no-echo"];
    let ran = |more: &[&str]| done(&[&run[..], &FIXED[1..], more].concat());
    let expected = ran(&[]).out;
    let cap = format!("--memory=host={}", total / 20 * 17);
    assert_eq!(ran(&[&cap]).out, expected);
    let table = done(&[&FIXED[..], &[&cap]].concat()).out;
    for words in [" from the model's file, ", " per step at 2.0 GB/s (assumed)", "streamed weights"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    // A plan file runs as written, or is refused.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan(&[&cap]).to_string()).unwrap();
    let of_file = ["run", "-p", "The wolf", "-n", "12", "--temp", "0", "--no-echo", "--plan", text(&path)];
    assert_eq!(done(&[&of_file[..], &[&cap]].concat()).out, expected);
    let tighter = format!("--memory=host={}", total / 4 * 3);
    refused(ragtag().args(of_file).arg(tighter), DOES_NOT_FIT);
    let simulate = ["simulate", "--parallel", "1", "--requests", "2", &cap];
    assert!(done(&[&simulate[..], &FIXED[1..]].concat()).out.starts_with("2 requests in "));
}

#[test]
fn the_flag_overrides_the_environment() {
    let caps = |environment: &str, flags: &[&str]| {
        let mut command = ragtag();
        command.env("RAGTAG_MEMORY", environment).args(["devices", "--json"]).args(flags).args(TWO);
        done_by(&mut command).json()["memory_caps"].clone()
    };
    assert_eq!(caps("cpu:1=1024MiB", &[]), serde_json::json!(["cpu:1=1GiB"]));
    assert_eq!(caps(" ", &[]), serde_json::json!([]), "an empty variable counts as unset");
    let flags = ["--memory", "cpu:0=2GiB,host=3GiB", "--memory", "cpu:1=5KiB"];
    let expected = serde_json::json!(["cpu:0=2GiB", "host=3GiB", "cpu:1=5KiB"]);
    assert_eq!(caps("no cap at all", &flags), expected);
    let table = done(&[&["devices", "--memory", "cpu:0=1GiB"], &TWO[..]].concat());
    assert_eq!(table.out.matches("1.00 GiB of ").count(), 1, "{}", table.out);

    let err = refused(ragtag().env("RAGTAG_MEMORY", "cpu:0=1MiB").args(FIXED), DOES_NOT_FIT);
    assert!(err.contains("it has 1.0 MiB of the "), "{err}");
    done_by(ragtag().env("RAGTAG_MEMORY", "cpu:7=1MiB").args(["plan", "--fleet", "arc-a770"]));
    let fleet = ["plan", "--fleet", "arc-a770", "--memory", "cpu:0=1GiB"];
    assert!(refused(ragtag().args(fleet), 2).contains("cannot be used with"));
}

#[test]
fn bad_caps_are_refused() {
    for (caps, words) in [
        ("cpu:1=1GiB", "memory cap cpu:1=1GiB: cpu:1 is not among the selected devices (cpu:0)"),
        ("cuda=1GiB", "cuda is not among the selected devices (cpu:0)"),
        ("quantum:0=1GiB", "quantum:0 is not among the selected devices (cpu:0)"),
        ("cpu:0=lots", "\"cpu:0=lots\" is not a memory cap: expected BACKEND:INDEX=SIZE"),
        ("cpu:0", "\"cpu:0\" is not a memory cap"),
        ("", "\"\" is not a memory cap"),
        ("cpu:0=1GiB,cpu:0=2GiB", "duplicate memory cap cpu:0=2GiB: cpu:0=1GiB already caps this memory"),
        ("host=1GiB,host=1GiB", "duplicate memory cap host=1GiB"),
    ] {
        for command in ["devices", "plan"] {
            let err = refused(ragtag().args([command, &format!("--memory={caps}")]), DEVICES);
            assert!(err.contains(words), "{command}: {err}");
        }
        if !caps.is_empty() {
            let err = refused(ragtag().env("RAGTAG_MEMORY", caps).arg("plan"), DEVICES);
            assert!(err.contains("ragtag: RAGTAG_MEMORY: ") && err.contains(words), "{err}");
        }
    }
    for command in ["run", "bench", "simulate", "calibrate", "selftest"] {
        let err = refused(ragtag().args([command, "--memory", "cpu:1=1GiB"]), DEVICES);
        assert!(err.contains("cpu:1 is not among the selected devices (cpu:0)"), "{command}: {err}");
    }
    let repeated = ["plan", "--memory", "cpu=1GiB", "--memory", "cpu:0=1GiB"];
    assert!(refused(ragtag().args(repeated), DEVICES).contains("duplicate memory cap cpu:0=1GiB"));
    let unselected = ["plan", "--cpu-devices", "2", "--device", "cpu:1", "--memory", "cpu:0=1GiB"];
    let err = refused(ragtag().args(unselected), DEVICES);
    assert!(err.contains("cpu:0 is not among the selected devices (cpu:1)"), "{err}");
}
