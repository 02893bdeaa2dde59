//! Tests devices and plans on the command line: selection, workloads, and plans in files.

use super::*;

#[test]
fn lists_devices_by_api() {
    let table = done(&["devices", "--cpu-devices", "2"]);
    assert!(table.out.contains("cpu:0") && table.out.contains("cpu:1"), "{}", table.out);
    assert!(table.err.starts_with(START));
    let json = done(&["devices", "--cpu-devices", "2", "--device", "cpu:1", "--json"]).json();
    assert_eq!(json["requested"], "cpu:1");
    assert_eq!(json["selected"], serde_json::json!(["cpu:1"]));
    assert_eq!(json["detected"], serde_json::json!(["cpu:0", "cpu:1"]));
    let backends = json["report"]["backends"].as_array().unwrap();
    let cpu = backends.iter().find(|backend| backend["name"] == "cpu").unwrap();
    assert_eq!(cpu["adapters"].as_array().unwrap().len(), 2);
}

#[test]
fn the_doctor_reports_findings_for_every_api() {
    let shown = done(&["devices", "--doctor", "--wide"]);
    for words in ["| API ", "| opencl ", "| cpu ", "in this build", "OCL_ICD_VENDORS=", "cpu:0: "] {
        assert!(shown.out.contains(words), "{words} in {}", shown.out);
    }
    // Without `--wide`, there is a line for each API.
    let shown = done(&["devices", "--doctor"]).out;
    let (_, apis) = shown.split_once("| API        | state | devices").unwrap();
    let lines: Vec<_> =
        apis.lines().skip(2).map_while(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    assert_eq!(lines, ["ragtag", "cuda", "hip", "level-zero", "vulkan", "opencl", "wgpu", "cpu"]);
    assert!(!shown.contains("in this build") && shown.contains("--wide lists all checks"), "{shown}");
    let json = done(&["devices", "--doctor", "--json"]).json();
    let apis = json["apis"].as_array().unwrap();
    assert_eq!((&apis[0]["api"], &apis[apis.len() - 1]["api"]), (&"ragtag".into(), &"cpu".into()));
    for api in apis {
        for finding in api["findings"].as_array().unwrap() {
            assert_eq!(keys(finding), BTreeSet::from(["advice", "found", "state", "subject"]));
            let state = finding["state"].as_str().unwrap();
            assert!(["ok", "note", "missing"].contains(&state), "{finding}");
        }
    }
    // The doctor reports an invalid selection instead of failing, because users run the doctor when nothing
    // else works.
    let mut command = ragtag();
    command.env("RAGTAG_DEVICES", "cuda:7").args(["devices", "--doctor", "--json"]);
    let json = done_by(&mut command).json();
    let selection = &json["apis"][0]["findings"][0];
    assert_eq!((&selection["subject"], &selection["state"]), (&"devices".into(), &"missing".into()));
    assert!(selection["found"].as_str().unwrap().contains("cuda"), "{selection}");
}

#[test]
fn the_environment_selects_devices_and_the_flag_overrides_it() {
    let selected = |environment: &str, flag: &[&str]| {
        let mut command = ragtag();
        command
            .env("RAGTAG_DEVICES", environment)
            .args(["run", "-n", "1", "--ctx", "16"])
            .args(TWO)
            .args(flag);
        done_by(&mut command).err.lines().next().unwrap().to_string()
    };
    let line =
        |requested, selected| format!("requested={requested} detected=[cpu:0, cpu:1] selected=[{selected}]");
    assert_eq!(selected("cpu:1", &[]), line("cpu:1", "cpu:1"));
    assert_eq!(selected("cpu:1", &["--device", "cpu:0"]), line("cpu:0", "cpu:0"));
    assert_eq!(selected("cpu:1,cpu:0", &[]), line("cpu:1,cpu:0", "cpu:1, cpu:0"));
    assert_eq!(selected("", &[]), START);
    assert_eq!(selected("no device at all", &["--device", "cpu"]), line("cpu", "cpu:0, cpu:1"));
}

#[test]
fn prints_a_plan_as_a_table_or_as_json_that_restores_it() {
    let file = file(LLAMA);
    let arguments = ["plan", &file, "--cpu-devices", "2", "--threads", "1", "--ctx", "256"];
    let table = done(&arguments);
    for words in ["cpu:0", "cpu:1", "- bottleneck: ", "- context 256: as requested"] {
        assert!(table.out.contains(words), "{words} in {}", table.out);
    }
    let chosen = table.out.lines().next().unwrap();
    assert!(chosen.starts_with("plan: 0-") && chosen.contains(" · context 256 · chunk "), "{chosen}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let more = [
        "--parallel",
        "3",
        "--chunk",
        "48",
        "--activations",
        "f32",
        "--split",
        "0-3=cpu:1,4-13=cpu:0",
        "--json",
    ];
    let made = done(&[&arguments[..], &more].concat());
    std::fs::write(&path, &made.out).unwrap();
    let made = made.json();
    assert_eq!((&made["context"], &made["sequences"], &made["chunk"]), (&256.into(), &3.into(), &48.into()));
    assert_eq!(made["stages"][0]["device"], "cpu:1");

    let again = done(&[&["plan", &file, "--plan", text(&path), "--json"], &TWO[..]].concat()).json();
    assert_eq!(lasting(&again), lasting(&made));
    let run = done(&[&["run", &file, "--plan", text(&path), "-n", "2", "--json"], &TWO[..]].concat()).json();
    assert_eq!(lasting(&run["plan"]), lasting(&made));
}

#[test]
fn a_plan_is_for_the_request_unless_options_say_otherwise() {
    let request = |arguments: &[&str]| {
        let plan = done(arguments).json()["plan"].take();
        let tokens = |what: &str| plan["workload"][what].as_u64().unwrap();
        (tokens("prompt_tokens"), tokens("generated_tokens"), plan["objective"].clone())
    };
    let run = ["run", "-n", "3", "-p", "Once upon a time", "--json"];
    let bench = ["bench", "-p", "4,8,0", "-n", "2,1", "-r", "1", "--json"];
    let chosen = ["--objective", "latency", "--prompt-tokens", "100", "--new-tokens", "20"];
    assert_eq!(request(&run), (5, 3, "throughput".into()));
    assert_eq!(request(&bench), (8, 2, "throughput".into()));
    for command in [&run[..], &bench] {
        assert_eq!(request(&[command, &chosen].concat()), (100, 20, "latency".into()));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, done(&[&["plan", "--json"][..], &chosen].concat()).out).unwrap();
    let planned = [&run[..], &["--plan", text(&path)]].concat();
    assert_eq!(request(&planned), (100, 20, "latency".into()));
    assert_eq!(request(&[&planned[..], &["--new-tokens", "5"]].concat()), (100, 5, "latency".into()));
}

#[test]
fn reads_a_plan_from_standard_input_with_its_device_options() {
    let made = done(&[&["plan", "--json", "--chunk", "48"][..], &SPLIT, &TWO].concat());
    let expected = serde_json::json!({ "selection": "auto", "cpu_devices": 2, "threads": 1 });
    assert_eq!(made.json()["device_options"], expected);
    let run = |more: &[&str]| {
        let mut command = ragtag();
        command.args(["run", "-n", "1", "--json", "--plan", "-"]).args(more).write_stdin(made.out.as_str());
        command.output().unwrap()
    };
    let json: Value = serde_json::from_slice(&run(&TWO).stdout).unwrap();
    assert_eq!(lasting(&json["plan"]), lasting(&made.json()));
    let refused = run(&[]);
    let err = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(4), "{err}");
    let words = "ragtag: standard input: the plan needs cpu:1; run it with --cpu-devices 2 --threads 1\n";
    assert!(err.ends_with(words), "{err}");
}

#[test]
fn warns_once_of_a_context_beyond_the_training_length() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.npy");
    let held = test_support::golden("held.txt");
    let commands: [&[&str]; 6] = [
        &["plan"],
        &["run", "-n", "1"],
        &["bench", "-p", "4", "-n", "0", "-r", "1"],
        &["simulate", "--requests", "2"],
        &["logits", "--ids", "1,2", "-o", text(&output)],
        &["perplexity", "-f", text(&held), "--chunks", "1"],
    ];
    for command in commands {
        for (context, times) in [("513", 1), ("512", 0)] {
            let err = done(&[command, &["--ctx", context]].concat()).err;
            let words =
                "warning: a context of 513 tokens exceeds the 512 tokens that the model was trained for";
            assert_eq!(err.matches(words).count(), times, "{command:?} {context}: {err}");
        }
    }
}

#[test]
fn accepts_old_spellings_of_options_and_hides_them() {
    let folder = tempfile::tempdir().unwrap();
    let [page, timeline, requests] =
        ["page.html", "timeline.json", "requests.csv"].map(|name| folder.path().join(name));
    std::fs::write(&requests, "arrival_s,prompt_tokens,output_tokens\n0,8,2\n").unwrap();
    done(&["bench", "-p", "4", "-n", "0", "-r", "1", "--report", text(&page)]);
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    done(&["simulate", "--trace-file", text(&requests), "--chrome", text(&timeline)]);
    assert!(read_json(&timeline)["traceEvents"].is_array());
    for (command, old) in
        [("bench", "--report"), ("run", "--report"), ("simulate", "--chrome"), ("simulate", "--trace-file")]
    {
        assert!(!done(&[command, "--help-all"]).out.contains(old), "{command} {old}");
    }
}

#[test]
fn a_plan_states_the_requested_wire_type_of_activations() {
    let split = ["--split", "0-6=cpu:0,7-13=cpu:1", "--ctx", "64"];
    let with = |more: &[&str]| done(&[&["plan", "--json"], more, &split, &TWO[..]].concat());
    for (form, reason) in [("f32", "wire type: f32, as requested"), ("f16", "wire type: f16, as requested")] {
        let plan = with(&["--wire", form]).json();
        assert_eq!(plan["wire_type"], form);
        let reasons = plan["reasons"].as_array().unwrap();
        assert!(reasons.iter().any(|one| one.as_str().unwrap().contains(reason)), "{reasons:?}");
    }
    // Rows are so small here that two additional dispatches cost more than they save.
    assert_eq!(with(&["--wire", "auto"]).json()["wire_type"], "f32");
    assert_eq!(with(&["--activations", "f32"]).json()["wire_type"], "f32");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, with(&["--wire", "f16"]).out).unwrap();
    let run = |more: &[&str]| {
        done(
            &[&["run", "-p", "Once upon a time", "-n", "12", "--temp", "0", "--json"], more, &TWO[..]]
                .concat(),
        )
        .json()
    };
    let (narrow, wide) = (run(&["--plan", text(&path)]), run(&[&split[..], &["--wire", "f32"]].concat()));
    assert_eq!((&narrow["plan"]["wire_type"], &wide["plan"]["wire_type"]), (&"f16".into(), &"f32".into()));
    assert_eq!(numbers(&narrow["tokens"]).len(), 12);
    assert_eq!(run(&["--plan", text(&path), "--wire", "auto"])["plan"]["wire_type"], "f32");

    for command in ["plan", "run", "bench", "simulate"] {
        let arguments = [&[command, "--wire", "f16", "--activations", "f32"], &TWO[..]].concat();
        let output = ragtag().args(&arguments).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{command}: {message}");
        assert!(message.contains("exact activations (f32) need wire type f32"), "{command}: {message}");
    }
}

#[test]
fn a_plan_meets_its_constraints_or_an_error_names_them() {
    let devices = ["--cpu-devices", "3", "--threads", "1", "--json"];
    let plan = |options: &[&str]| -> String {
        let json: serde_json::Value =
            serde_json::from_str(&done(&[&["plan"], options, &devices].concat()).out).unwrap();
        let stage = |stage: &serde_json::Value| stage["device"].as_str().unwrap().to_string();
        json["stages"].as_array().unwrap().iter().map(stage).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(plan(&["--max-stages", "1", "--exclude", "cpu:0", "--exclude", "cpu:1"]), "cpu:2");
    assert_eq!(plan(&["--pin", "0-3=cpu:2", "--pin", "13=cpu:0", "--exclude", "cpu:1"]), "cpu:2 cpu:0");
    for (options, code, said) in [
        (["--pin", "0=gpu:9"], 4, "there is no device gpu:9"),
        (["--pin", "14=cpu:0"], 4, "segment 14 is pinned, but the last segment is 13"),
        (["--pin", "first=cpu:0"], 4, "is not FIRST-LAST=DEVICE"),
        (["--max-stages", "0"], 2, "0 is not in 1..=64"),
    ] {
        let output = ragtag().arg("plan").args(options).args(devices).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {err}");
        assert!(err.contains(said), "{options:?}: {err}");
    }
}

#[test]
fn old_spellings_of_options_still_work() {
    let old =
        done(&["plan", "--cpu-devices", "2", "--handicap", "cpu:1=duty:50%", "--boundary", "f32", "--json"]);
    let new =
        done(&["plan", "--cpu-devices", "2", "--throttle", "cpu:1=duty:50%", "--wire", "f32", "--json"]);
    assert_eq!(old.json()["wire_type"], new.json()["wire_type"]);
    assert!(old.err.contains("cpu:1=duty:50%"), "{}", old.err);
}
