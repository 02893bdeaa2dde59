//! Tests plans for other programs: `plan --api`, and fleets that `calibrate --export` writes.

use crate::support::{self, model_path, ragtag, root, text};
use ragtag::{Fleet, Granularity, Model, Objective, Plan, Planner, Split, WireType};
use ragtag_kernels::{Activations, KvType};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const LINE: &str = "2x-arc-a770+rx7900xtx";

fn model() -> String {
    text(&model_path("tales-bitnet-tq2_0")).to_owned()
}

/// Returns the answers of `plan --api` to `input`. `arguments` are further arguments.
fn answers(arguments: &[&str], input: impl Into<Vec<u8>>) -> Vec<Value> {
    let output = ragtag().args(["plan", "--api"]).args(arguments).write_stdin(input).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines(requests: &[Value]) -> String {
    requests.iter().map(|request| format!("{request}\n")).collect()
}

/// Runs a command that prints JSON.
fn printed(command: &mut assert_cmd::Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that a line that the command printed has exactly the fields of an answer in the schema.
fn conforms(answer: &Value) {
    let schema = support::read_json(&root().join("docs/schemas/plan-api.schema.json"));
    let names = |value: &Value| {
        let names = value.as_object().unwrap().keys().cloned();
        names.collect::<BTreeSet<_>>()
    };
    let required = |value: &Value| {
        let names = value["required"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let forms = schema["$defs"]["PlanAnswer"]["anyOf"].as_array().unwrap();
    assert!(forms.iter().any(|form| required(form) == names(answer)), "{answer}");
    if let Some(error) = answer.get("error") {
        assert_eq!(names(error), required(&schema["$defs"]["PlanFailure"]), "{error}");
    }
}

/// Checks each option of a request: the plan is that of the command with the same option, and differs from the plan
/// without it.
#[test]
fn each_option_acts_as_on_the_command_line() {
    let split = "0-4=arc-a770:1,5-13=rx7900xtx:0";
    let mix = json!({"mix": {"latency": 1, "throughput": 0, "first_token": 2}});
    let options: [(&str, Value, &str); 16] = [
        ("context", json!({"context": 64}), "--ctx 64"),
        ("sequences", json!({"sequences": 3}), "--parallel 3"),
        ("chunk", json!({"chunk": 32}), "--chunk 32"),
        ("objective", json!({"objective": mix}), "--objective mix:latency=1,first-token=2"),
        ("prompt_tokens", json!({"prompt_tokens": 7}), "--prompt-tokens 7"),
        ("new_tokens", json!({"new_tokens": 9}), "--new-tokens 9"),
        ("kv", json!({"kv": "q8_0/q4_0"}), "--kv-keys q8_0 --kv-values q4_0"),
        ("kv_memory_bytes", json!({"kv_memory_bytes": 64 << 20}), "--kv-memory 64MiB"),
        ("kv_use", json!({"kv_use": {"reserve": "full"}}), "--kv-reserve full"),
        ("activations", json!({"activations": "f32"}), "--activations f32"),
        ("wire_type", json!({"wire_type": "f32", "split": split}), "--wire f32 --split SPLIT"),
        ("granularity", json!({"granularity": "half-block"}), "--granularity half"),
        (
            "max_stages",
            json!({"max_stages": 2, "pins": ["0=arc-a770:0", "13=arc-a770:1"]}),
            "--max-stages 2 --pin 0=arc-a770:0 --pin 13=arc-a770:1",
        ),
        ("split", json!({"split": split}), "--split SPLIT"),
        ("pins", json!({"pins": ["0-1=arc-a770:1"]}), "--pin 0-1=arc-a770:1"),
        ("exclude", json!({"exclude": ["rx7900xtx:0"]}), "--exclude rx7900xtx:0"),
    ];
    let schema = support::read_json(&root().join("docs/schemas/plan-api.schema.json"));
    let known = schema["$defs"]["PlanOptions"]["properties"].as_object().unwrap();
    assert!(known.keys().eq(options.iter().map(|(name, ..)| *name).collect::<BTreeSet<_>>()), "{known:?}");

    let mut requests = Vec::new();
    for (name, options, _) in &options {
        let mut without = options.clone();
        without.as_object_mut().unwrap().remove(*name);
        let request =
            |options: &Value| json!({"id": name, "model": model(), "fleet": LINE, "options": options});
        requests.extend([request(options), request(&without)]);
    }
    let answers = answers(&[], lines(&requests));
    assert_eq!(answers.len(), requests.len());
    for ((name, _, flags), answer) in options.iter().zip(answers.chunks(2)) {
        answer.iter().for_each(conforms);
        let flags = flags.split(' ').map(|flag| if flag == "SPLIT" { split } else { flag });
        let expected = printed(ragtag().args(["plan", &model(), "--fleet", LINE, "--json"]).args(flags));
        assert_eq!((&answer[0]["id"], &answer[0]["plan"]), (&json!(name), &expected));
        assert!(answer[1]["plan"].is_object() && answer[0]["plan"] != answer[1]["plan"], "{name}");
    }
}

#[test]
fn answers_are_the_plans_of_the_library() {
    let fleet = std::fs::read_to_string(root().join("examples/fleets/switch.json")).unwrap();
    let inline: Value = serde_json::from_str(&fleet).unwrap();
    let request = json!({"model": model(), "fleet": inline, "options": {
        "context": 128, "sequences": 4, "objective": "latency", "kv": "q8_0", "granularity": "half-block",
        "wire_type": "f16", "prompt_tokens": 64, "new_tokens": 32, "max_stages": 2, "exclude": ["rtx3090:0"],
    }});
    let answers = answers(&[], lines(&[request]));
    let model = Model::open(model()).unwrap();
    let planner = Planner::new(&model).fleet(&Fleet::from_json(&fleet).unwrap()).unwrap();
    let planner = planner.context(128).sequences(4).objective(Objective::Latency).kv(KvType::Q8_0);
    let workload = ragtag::Workload { prompt_tokens: 64, generated_tokens: 32 };
    let planner = planner.granularity(Granularity::HalfBlock).wire_type(WireType::F16).workload(workload);
    let plan = planner.max_stages(2).exclude("rtx3090:0").plan().unwrap();
    assert_eq!(answers[0]["plan"], serde_json::to_value(&plan).unwrap());
    assert_eq!(answers[0]["id"], Value::Null);
    assert_eq!(Plan::from_json(&answers[0]["plan"].to_string()).unwrap(), plan);
}

#[test]
fn the_command_line_sets_the_defaults() {
    let model = model();
    let cards = ["--fleet", LINE, "--ctx", "64", "--activations", "f32", "--exclude", "arc-a770:0"];
    let usual = [&[model.as_str()], &cards[..]].concat();
    let split: Split = "0-4=arc-a770:0,5-13=arc-a770:1".parse().unwrap();
    let requests = [
        json!({"id": {"any": ["value", 1.5]}}),
        json!({"id": "x", "options": {"context": 32, "split": split.to_string()}}),
        json!({"fleet": "l4", "options": {"activations": "int8", "exclude": []}}),
    ];
    let answers = answers(&usual, format!("\n{}\n \n", lines(&requests)));
    let expected = printed(ragtag().args(["plan", "--json"]).args(&usual));
    assert_eq!(answers[0], json!({"id": {"any": ["value", 1.5]}, "plan": expected}));
    let plan = &answers[1]["plan"];
    assert_eq!(
        (&plan["context"], &plan["activations"], &plan["stages"][0]["device"]),
        (&json!(32), &json!("f32"), &json!("arc-a770:0"))
    );
    let expected = printed(ragtag().args(["plan", &model, "--json", "--fleet", "l4", "--ctx", "64"]));
    assert_eq!(answers[2]["plan"], expected);
    // Without a fleet, the plan is for this machine.
    let machine = ["--cpu-devices", "2", "--memory", "host=64MiB", "--ctx", "64"];
    let here = self::answers(&machine, lines(&[json!({"model": model})]));
    assert_eq!(here[0]["plan"], printed(ragtag().args(["plan", &model, "--json"]).args(machine)));
}

#[test]
fn a_failed_request_does_not_end_the_process() {
    let good = json!({"id": "good", "model": model(), "fleet": "l4"});
    let with = |field: &str, value: Value| {
        let mut request = good.clone();
        (request[field], request["id"]) = (value, json!(field));
        request.to_string()
    };
    let missing = text(&root().join("missing.gguf")).to_owned();
    let small = json!({"ragtag_fleet": 1, "devices": [{"card": "l4", "memory_gib": 0.0625}]});
    let cases = [
        ("not JSON".into(), Value::Null, "usage", "expected ident"),
        ("{\"id\": 3, \"modle\": 1}".into(), json!(3), "usage", "modle: unknown field `modle`"),
        (
            with("options", json!({"context": 0})),
            json!("options"),
            "usage",
            "options.context: is 0, must be 1 to",
        ),
        (with("options", json!({"kv": "f64"})), json!("options"), "usage", "options.kv: "),
        (with("model", json!(missing)), json!("model"), "file", "missing.gguf"),
        (with("model", json!(text(&root().join("README.md")))), json!("model"), "model", "README.md"),
        (with("fleet", json!("l44")), json!("fleet"), "plan", "similar cards are l4"),
        (with("fleet", json!("missing.json")), json!("fleet"), "file", "cannot read missing.json"),
        (with("fleet", json!(7)), json!("fleet"), "plan", "fleet: not a fleet: invalid type: integer"),
        (
            with("fleet", json!({"ragtag_fleet": 2})),
            json!("fleet"),
            "plan",
            "version 2, but this build reads",
        ),
        (with("options", json!({"split": "0-1=l4:0"})), json!("options"), "plan", "segment"),
        (with("options", json!({"exclude": ["l4:7"]})), json!("options"), "plan", "l4:7"),
        (
            json!({"model": model(), "fleet": small, "options": {"context": 4096, "sequences": 4096}})
                .to_string(),
            Value::Null,
            "memory",
            "does not fit",
        ),
    ];
    let mut input = String::new();
    for (request, ..) in &cases {
        input += &format!("{request}\n{good}\n");
    }
    let mut input = input.into_bytes();
    // A line beyond the limit, one that is not UTF-8, and one without a line break.
    input.extend(vec![b'['; (16 << 20) + 1]);
    input.extend(b"\n\xff\n");
    input.extend(good.to_string().bytes());
    let answers = answers(&[], input);
    assert_eq!(answers.len(), 2 * cases.len() + 3);
    answers.iter().for_each(conforms);
    let plan = &answers[1]["plan"];
    for ((_, id, kind, words), answer) in cases.iter().zip(answers.chunks(2)) {
        let error = &answer[0]["error"];
        assert_eq!((&answer[0]["id"], &error["kind"]), (id, &json!(kind)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{words}: {error}");
        assert_eq!((&answer[1]["id"], &answer[1]["plan"]), (&json!("good"), plan));
    }
    let [long, binary, last] = &answers[2 * cases.len()..] else { panic!() };
    assert_eq!(long["error"]["message"], "the line has more than 16777216 bytes");
    assert_eq!(
        (&binary["error"]["message"], &binary["error"]["kind"]),
        (&json!("the line is not UTF-8"), &json!("usage"))
    );
    assert_eq!(&last["plan"], plan);
    let strict = self::answers(&["--strict"], lines(&[good]));
    assert_eq!(strict[0]["error"]["kind"], "usage");
}

#[cfg(unix)]
#[test]
fn a_closed_output_ends_the_process_without_an_error() {
    let script = "{ \"$0\" \"$@\"; echo \"code $?\" >&2; } | head -n 1";
    let requests = vec![json!({"fleet": "l4", "options": {"context": 16}}); 64];
    let output = support::shell(script, &["plan", &model(), "--api"]).write_stdin(lines(&requests)).output();
    let output = output.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "code 0\n");
}

/// Calibrates the devices that `arguments` select, and exports them. Checks that plans and simulations with the
/// export, on a machine without this cache and these devices, are those of this machine.
pub(crate) fn exports(arguments: &[&str], prepare: &dyn Fn(&mut assert_cmd::Command)) {
    let folder = tempfile::tempdir().unwrap();
    let (file, model) =
        (folder.path().join("machine.json"), text(&model_path("tales-bitnet-tq2_0")).to_owned());
    let on = |cache: &str, command: &[&str]| {
        let mut ragtag = ragtag();
        prepare(&mut ragtag);
        ragtag.env("RAGTAG_CACHE_DIR", folder.path().join(cache)).env_remove("RAGTAG_NO_CALIBRATION");
        ragtag.args(command);
        ragtag
    };
    let here = |command: &[&str]| on("here", &[command, arguments].concat());
    let there = |command: &[&str]| {
        let mut ragtag = on("there", &[command, &["--fleet", text(&file)]].concat());
        ragtag.env("RAGTAG_MEMORY", "host=1MiB").env("RAGTAG_DEVICES", "no device at all");
        ragtag
    };
    let calibrate =
        ["calibrate", &model, "--seconds", "0", "--parallel", "4", "--json", "--export", text(&file)];
    let calibration = printed(&mut here(&calibrate));
    let fleet = support::read_json(&file);
    for (device, profile) in
        fleet["devices"].as_array().unwrap().iter().zip(calibration["profiles"].as_array().unwrap())
    {
        // The export leaves out absent values.
        assert_eq!(device["measured"]["profile"]["kinds"], profile["kinds"]);
        assert!(device["kind"].is_string(), "{device}");
    }
    let options: [&[&str]; 4] = [
        &[],
        &["--parallel", "4", "--ctx", "128"],
        &["--objective", "latency", "--wire", "f32", "--max-stages", "1"],
        &["--activations", "f32", "--no-calibration", "--granularity", "half"],
    ];
    for options in &options[..3] {
        let command = [&["plan", &model, "--json"], *options].concat();
        let (mut here, there) = (printed(&mut here(&command)), printed(&mut there(&command)));
        assert!(here.as_object_mut().unwrap().remove("device_options").is_some());
        assert_eq!(here, there, "{options:?}");
    }
    printed(&mut there(&[&["plan", &model, "--json"], options[3]].concat()));
    let simulate = ["simulate", &model, "--json", "--requests", "4", "--closed", "2"];
    let (here, there) = (printed(&mut here(&simulate)), printed(&mut there(&simulate)));
    assert_eq!(here["summary"], there["summary"]);
}

#[test]
fn an_export_gets_the_plans_of_its_machine() {
    let caps = "cpu:0=24MiB,cpu:1=20MiB,host=200MiB";
    let throttles = ["--throttle", "cpu:1=duty:50%", "--throttle", "cpu:0=threads:1"];
    exports(&[&["--cpu-devices", "2", "--memory", caps], &throttles[..]].concat(), &|_| ());
}

#[test]
fn an_export_goes_to_standard_output_or_to_a_file_that_can_be_written() {
    let run = |more: &[&str]| {
        let mut ragtag = ragtag();
        ragtag.args(["calibrate", &model(), "--seconds", "0", "--chunk", "4", "--device", "cpu"]).args(more);
        ragtag.output().unwrap()
    };
    let output = run(&["--export", "-"]);
    let fleet = Fleet::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
    assert!(fleet.host_memory_bytes.is_some());
    let (devices, _) = fleet.facts().unwrap();
    assert_eq!(devices[0].profile.as_ref().unwrap().identity.activations, Activations::Int8);
    let planner = Planner::new(&Model::open(model()).unwrap()).fleet(&fleet).unwrap();
    assert_eq!(planner.clone().exclude("cpu:0").to_fleet().devices, []);
    assert_eq!(planner.to_fleet().facts(), fleet.facts());
    for (arguments, code, words) in [
        (&["--export", "missing/out.json"][..], 7, "cannot write missing/out.json"),
        (&["--export", &model()], 2, "is an input and cannot also be an output"),
        (&["--export", "-", "--json"], 2, "only one of --json and --export"),
        (&["--export", "out.json", "--every-api"], 2, "--every-api"),
    ] {
        let output = run(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && message.contains(words), "{arguments:?}: {message}");
        assert!(!Path::new("out.json").exists());
    }
}
