//! Tests comparisons of predicted with measured times, replanning with measured times, and throttled devices
//! and links.

use crate::support::{ragtag, read_json, text};
use ragtag_planner::Split;
use ragtag_planner::wording::deviation;
use serde_json::Value;

/// Arguments that select two CPU devices with one thread each.
const TWO: [&str; 4] = ["--cpu-devices", "2", "--threads", "1"];

struct Done {
    code: i32,
    out: String,
    err: String,
}

fn run(arguments: &[&str]) -> Done {
    let output = ragtag().args(arguments).args(TWO).output().unwrap();
    let as_text = |bytes| String::from_utf8(bytes).unwrap();
    let done = Done {
        code: output.status.code().unwrap(),
        out: as_text(output.stdout),
        err: as_text(output.stderr),
    };
    assert!(!done.err.contains("panicked"), "{}", done.err);
    done
}

fn json(arguments: &[&str]) -> Value {
    let done = run(arguments);
    assert_eq!(done.code, 0, "{}", done.err);
    serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}:\n{}", done.out))
}

/// Returns the JSON entry that compares measured with predicted times for one part of the pipeline.
fn part<'a>(json: &'a Value, place: &str, index: u64, phase: &str) -> &'a Value {
    let parts = json["comparison"]["parts"].as_array().unwrap();
    let is = |p: &&Value| p["place"] == place && p["index"] == index && p["phase"] == phase;
    parts.iter().find(is).unwrap_or_else(|| panic!("no {place} {index} in {phase}: {parts:#?}"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

const SPLIT: [&str; 2] = ["--split", "0-6=cpu:0,7-13=cpu:1"];

#[test]
fn bench_compares_every_stage_and_edge_with_its_prediction() {
    let arguments = ["bench", "-p", "24", "-n", "6", "-r", "1", "--parallel", "2", "--chunk", "16"];
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let json = json(&[&arguments[..], &SPLIT, &["--json", "--report", text(&page)]].concat());
    for (place, index) in [("stage", 0), ("stage", 1), ("edge", 0), ("token-return", 0)] {
        for phase in ["decode", "prefill"] {
            let part = part(&json, place, index, phase);
            let (predicted, measured) = (number(part, "predicted_us"), number(part, "measured_us"));
            assert!(predicted > 0.0 && measured > 0.0, "{part}");
            assert!((number(part, "deviation") - (measured / predicted - 1.0)).abs() < 1e-9, "{part}");
            let off = number(part, "deviation").abs() > 0.15;
            assert_eq!(off, part["finding"].is_string(), "{part}");
        }
    }
    // The counts cover only the measured runs: one of pp24 and one of tg6, with two sequences each. Warm-up
    // runs are excluded.
    let steps = |place, index| number(part(&json, place, index, "decode"), "micro_batches");
    let rows = |index| steps("stage", index) * number(part(&json, "stage", index, "decode"), "rows");
    // A step that shares a micro-batch with another prompt's chunk counts as prefill.
    let counted = &json["stages"][0]["report"]["decode"]["micro_batches"];
    assert!(steps("stage", 0) <= counted.as_f64().unwrap() * 0.75, "{counted} in all");
    assert!(rows(0) <= 2.0 * 2.0 * 5.0 && rows(0) >= 1.0, "{}", rows(0));
    // A stage skips the first micro-batch of each new size.
    assert!(steps("edge", 0) <= steps("stage", 0) + 2.0);
    let rates = json["comparison"]["rates"].as_array().unwrap();
    let names: Vec<_> = rates.iter().map(|rate| rate["what"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp24", "tg6"]);
    assert!(rates.iter().all(|rate| number(rate, "predicted_tokens_per_s") > 0.0));
    assert!(json["replanned"].is_null());
    // The page reports the same comparison.
    let html = std::fs::read_to_string(&page).unwrap().replace("&gt;", ">");
    for rate in rates {
        let off = deviation(number(rate, "deviation")).replace('-', "−");
        let line = format!("tokens/s measured, {off} against");
        assert!(html.contains(rate["what"].as_str().unwrap()) && html.contains(&line), "{line}");
    }
    let parts = json["comparison"]["parts"].as_array().unwrap();
    for part in parts {
        let off = deviation(number(part, "deviation")).replace('-', "−");
        assert!(html.contains(&format!("· {off}")), "{off} is not on the page");
        assert!(part["finding"].as_str().is_none_or(|finding| html.contains(finding)), "{part}");
    }

    let table = run(&[&["bench", "-p", "16", "-n", "4", "-r", "1"][..], &SPLIT].concat()).out;
    let words = ["predicted", "measured", "token return", "stage 0 on cpu:0", "total, tg4"];
    assert!(words.iter().all(|words| table.contains(words)), "{table}");
}

#[test]
fn run_compares_on_request() {
    let arguments = [&["run", "-n", "4", "--temp", "0"][..], &SPLIT].concat();
    let plain = run(&arguments);
    assert!(!plain.err.contains("deviation"), "{}", plain.err);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let compared = run(&[&arguments[..], &["--compare", "--html", text(&page)]].concat());
    assert_eq!(compared.out, plain.out, "the text is the same");
    assert!(
        compared.err.contains("deviation") && compared.err.contains("stage 0 on cpu:0"),
        "{}",
        compared.err
    );
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("cpu:0"));
    assert!(html.to_lowercase().contains("measured"), "measured next to predicted");
    let nowhere = folder.path().join("missing/report.html");
    assert_eq!(run(&[&arguments[..], &["--html", text(&nowhere)]].concat()).code, 7);
}

#[test]
fn a_throttled_link_is_slower_and_changes_no_token() {
    let arguments = [&["run", "-n", "4", "--temp", "0", "--json"][..], &SPLIT].concat();
    let plain = json(&arguments);
    let slowed = json(&[&arguments[..], &["--throttle", "link:cpu:0->cpu:1=100kB/s"]].concat());
    assert_eq!(slowed["tokens"], plain["tokens"]);
    for phase in ["decode", "prefill"] {
        let edge = part(&slowed, "edge", 0, phase);
        let at_least_us = number(edge, "bytes") / 100e3 * 1e6;
        // On a busy CPU, the recorded start of a transfer may be late.
        assert!(number(edge, "measured_us") >= at_least_us * 0.5, "{edge}");
        assert!(edge["finding"].as_str().unwrap().contains("latency was"), "{edge}");
    }
}

#[test]
fn throttles_are_reported_everywhere_and_refused_by_strict() {
    let slow = ["--throttle", "cpu:1=duty:50%", "--throttle", "cpu:0=threads:2"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipt.json");
    let arguments = ["run", "-n", "2", "--receipt", text(&path)];
    let done = run(&[&arguments[..], &SPLIT, &slow].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains(" throttles=[cpu:1=duty:50%, cpu:0=threads:2]"), "{}", done.err);
    let receipt = read_json(&path);
    assert_eq!(receipt["throttles"].as_array().unwrap().len(), 2);
    assert!(receipt["stages"][1]["driver"].as_str().unwrap().ends_with("duty 50 %"), "{receipt}");
    assert_eq!((&receipt["stages"][0]["units"], &receipt["stages"][1]["units"]), (&2.into(), &1.into()));

    let devices = json(&[&["devices", "--device", "cpu", "--json"][..], &slow].concat());
    assert_eq!(devices["throttles"][0]["duty"]["percent"], 50, "{devices}");
    let table = run(&[&["devices", "--device", "cpu", "--wide"][..], &slow].concat()).out;
    assert!(table.contains("duty 50 %"), "{table}");

    let refused = run(&[&["run", "-n", "1", "--strict"][..], &slow].concat());
    assert_eq!(refused.code, 8);
    assert!(refused.err.contains("cpu:1=duty:50% is throttled (--throttle)"), "{}", refused.err);
}

#[test]
fn reports_invalid_throttles() {
    for (throttle, words) in [
        ("cpu:1=duty:0%", "1% to 100%"),
        ("cpu:1", "missing \"=\""),
        ("link:cpu:0->cpu:1=fast", "the rate must be at least 1B/s"),
        ("cpu:7=duty:50%", "cpu:7 is not among the selected devices (cpu:0, cpu:1)"),
        ("cuda:0=threads:2", "only CPU devices"),
        ("cpu:0=sms:8", "only CUDA devices"),
        ("link:cpu:0->cuda:0=1GB/s", "cuda:0 is not among the selected devices"),
    ] {
        let refused = run(&["run", "-n", "1", "--device", "cpu", "--throttle", throttle]);
        assert_eq!(refused.code, 2, "{throttle}: {}", refused.err);
        assert!(refused.err.contains(words), "{throttle}: {}", refused.err);
    }
    let twice = ["--throttle", "cpu:1=duty:50%", "--throttle", "cpu:1=duty:40%"];
    let refused = run(&[&["run", "-n", "1", "--device", "cpu"][..], &twice].concat());
    assert!(refused.code == 2 && refused.err.contains("duplicate throttle"), "{}", refused.err);
}

/// Checks that replanning gives fewer segments to a device that a throttle keeps idle for 88 % of the time.
/// The throttle is this strong so that other load on the machine cannot hide its effect.
#[test]
fn replanning_moves_segments_away_from_a_slow_device() {
    let slow = ["--throttle", "cpu:1=duty:12%", "--replan"];
    let arguments = ["bench", "-p", "32", "-n", "8", "-r", "1", "--parallel", "4"];
    // A run whose measurements vary too much keeps its plan.
    let mut runs = (0..5).map(|_| json(&[&arguments[..], &SPLIT, &slow, &["--json"]].concat()));
    let json = runs.find(|json| !json["replanned"].is_null()).expect("one of five runs with another plan");
    let on_slow = |split: &str| {
        let split: Split = split.parse().unwrap();
        let parts = split.parts.iter().filter(|part| part.device == "cpu:1");
        parts.map(|part| part.span.range().len()).sum::<usize>()
    };
    let change = &json["replanned"];
    let (from, to) = (change["from"].as_str().unwrap(), change["to"].as_str().unwrap());
    assert!(on_slow(to) < on_slow(from), "{change}");
    assert!(number(change, "predicted_gain") > 0.03, "{change}");
    let ran: usize = json["plan"]["stages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|stage| stage["device"] == "cpu:1")
        .map(|stage| {
            let segments: Vec<usize> = serde_json::from_value(stage["segments"].clone()).unwrap();
            segments[1] - segments[0] + 1
        })
        .sum();
    assert_eq!(ran, on_slow(to), "the last plan ran");
}
