//! Tests that each kind of bad input leads to a specific message and exit code, prints nothing to standard
//! output, and causes no panic.

mod models;

use crate::support::{self, model_path, ragtag, text};
use models::CorruptModels;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LLAMA: &str = "tales-q8_0";
const USAGE: i32 = 2;
const MODEL: i32 = 3;
const PLACEMENT: i32 = 4;
const DEVICES: i32 = 5;
const DOES_NOT_FIT: i32 = 6;
const FILE: i32 = 7;

/// Runs a command. Checks that it fails with exit code `code`, and that its message contains every string in
/// `words`. Returns the message.
fn refused(arguments: &[&str], code: i32, words: &[&str]) -> String {
    let output = ragtag().args(arguments).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {:?}\n{err}", output.status);
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(!err.contains("panicked") && !err.contains("internal:"), "{arguments:?}: {err}");
    // The message may wrap inside a sentence, because terminals can be narrow.
    let flat = err.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(flat.contains(word), "{arguments:?}: {word:?} in {err}");
    }
    err
}

fn llama() -> PathBuf {
    model_path(LLAMA)
}

// ---- Prompts ------------------------------------------------------------------------------------------------------

#[test]
fn refuses_invalid_prompts() {
    let long = "the wolf and the fox ".repeat(300);
    let err = refused(&["run", "-p", &long], USAGE, &["the prompt has", "tokens, the context holds 512"]);
    assert!(!err.contains("plan: "), "the error precedes loading: {err}");
    refused(&["run", "-p", &long, "--json"], USAGE, &["the context holds 512"]);
    refused(
        &["run", "-p", "Once upon a time there was", "--ctx", "4"],
        USAGE,
        &["the prompt has", "the context holds 4"],
    );

    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.npy");
    let logits =
        |ids: &str, words: &[&str]| refused(&["logits", "--ids", ids, "-o", text(&output)], USAGE, words);
    logits("1,4096", &["token 4096 at position 1 is outside the vocabulary of 4096"]);
    logits("4294967295", &["token 4294967295 at position 0"]);
    logits("4294967296", &["--ids"]);
    logits("-1", &[]);
    logits("", &["--ids"]);
    logits("1,,2", &["--ids"]);
    logits("1;2", &["--ids"]);
    let arguments = ["logits", "--ids", "1,2,3,4,5", "--ctx", "4", "-o", text(&output)];
    refused(&arguments, USAGE, &["the prompt has 5 tokens, the context holds 4"]);
    assert!(!output.exists(), "nothing is written for refused ids");

    let missing = folder.path().join("missing.txt");
    refused(&["run", "-f", text(&missing)], FILE, &["cannot read", "missing.txt", "No such file"]);
    let bytes = folder.path().join("bytes.txt");
    std::fs::write(&bytes, [0xff, 0xfe, 0x80]).unwrap();
    refused(&["run", "-f", text(&bytes)], FILE, &["cannot read", "bytes.txt", "UTF-8"]);
}

#[test]
fn refuses_texts_too_short_for_perplexity() {
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short.txt");
    std::fs::write(&short, "Once upon a time.").unwrap();
    let perplexity = |more: &[&str], code, words: &[&str]| {
        refused(&[&["perplexity", "-f", text(&short)], more].concat(), code, words);
    };
    perplexity(&[], USAGE, &["short.txt has", "tokens, fewer than one piece of 512"]);
    perplexity(&["--ctx", "3"], USAGE, &["--ctx must be at least 4"]);
    perplexity(&["--ctx", "4", "--chunks", "0"], USAGE, &["--chunks"]);
    std::fs::write(&short, "").unwrap();
    perplexity(&["--ctx", "8"], USAGE, &["fewer than one piece of 8"]);
    std::fs::remove_file(&short).unwrap();
    perplexity(&[], FILE, &["cannot read", "short.txt"]);
}

#[test]
fn refuses_sampling_settings_out_of_range() {
    let settings = [
        ("--temp=-0.5", "temperature is -0.5; it must be"),
        ("--temp=nan", "temperature is NaN"),
        ("--temp=inf", "temperature is inf"),
        ("--top-p=0", "top-p is 0; it must be above 0 and at most 1"),
        ("--top-p=1.5", "top-p is 1.5"),
        ("--top-p=nan", "top-p is NaN"),
        ("--min-p=-0.1", "min-p is -0.1; it must be from 0 to 1"),
        ("--min-p=2", "min-p is 2"),
        ("--repeat-penalty=0", "repetition-penalty is 0; it must be"),
        ("--repeat-penalty=inf", "repetition-penalty is inf"),
        ("--top-k=-1", "--top-k"),
        ("--seed=x", "--seed"),
        ("--tokens=-3", "--tokens"),
    ];
    for (setting, words) in settings {
        let err = refused(&["run", setting], USAGE, &[words]);
        assert!(!err.contains("requested="), "the error precedes the start: {err}");
    }
}

// ---- Plans and splits ---------------------------------------------------------------------------------------------

struct PlanFile {
    folder: TempDir,
    json: String,
}

impl PlanFile {
    /// Creates a valid plan for the bundled model over two devices.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let arguments =
            ["plan", "--cpu-devices", "2", "--split", "0-5=cpu:0,6-13=cpu:1", "--ctx", "64", "--json"];
        let output = ragtag().args(arguments).output().unwrap();
        assert!(output.status.success());
        Self { folder, json: String::from_utf8(output.stdout).unwrap() }
    }

    fn write(&self, json: &str) -> PathBuf {
        let path = self.folder.path().join("plan.json");
        std::fs::write(&path, json).unwrap();
        path
    }

    fn run(path: &Path, more: &[&str], code: i32, words: &[&str]) {
        let arguments = ["run", "-n", "1", "--cpu-devices", "2", "--plan", text(path)];
        refused(&[&arguments[..], more].concat(), code, words);
    }

    /// Replaces the first `from` in the plan file with `to` and runs the changed plan. Checks that the run
    /// fails with exit code `code` and a message that contains every string in `words`.
    fn changed(&self, from: &str, to: &str, code: i32, words: &[&str]) {
        let changed = self.json.replacen(from, to, 1);
        assert_ne!(changed, self.json, "{from}");
        Self::run(&self.write(&changed), &[], code, words);
    }
}

#[test]
fn refuses_damaged_plans_and_plans_for_other_devices_or_models() {
    let plan = PlanFile::new();
    let path = plan.write(&plan.json);
    ragtag().args(["run", "-n", "1", "--cpu-devices", "2", "--plan", text(&path)]).assert().success();

    let arguments = ["run", "--plan", text(&path)];
    refused(&arguments, PLACEMENT, &["plan.json: the plan needs cpu:1; run it with --cpu-devices 2"]);
    let chosen = [&arguments[..], &["--cpu-devices", "2", "--device", "cpu:0"]].concat();
    refused(&chosen, PLACEMENT, &["the plan needs cpu:1; run it with --device auto --cpu-devices 2"]);
    let llama = llama();
    let other = ["run", text(&llama), "--cpu-devices", "2", "--plan", text(&path)];
    let words = ["the plan was made for the model tales-bitnet-tq2_0.gguf", "not for tales-q8_0.gguf"];
    refused(&other, PLACEMENT, &words);

    plan.changed("{", "[", PLACEMENT, &["not a plan"]);
    plan.changed(
        "\"chunk\"",
        "\"chunkiness\": 1, \"chunk\"",
        PLACEMENT,
        &["not a plan: chunkiness: unknown field `chunkiness`", "line"],
    );
    plan.changed(
        "\"ragtag_plan\": 4",
        "\"ragtag_plan\": 5, \"more\": []",
        PLACEMENT,
        &["version 5, but this build reads versions 2 to 4"],
    );
    plan.changed("cpu:1", "cuda:0", PLACEMENT, &["there is no device cuda:0"]);
    plan.changed("cpu:1", "cpu:0", PLACEMENT, &["are both on cpu:0: write them as one range"]);
    plan.changed("\"context\": 64", "\"context\": 0", PLACEMENT, &["context is 0"]);
    plan.changed("\"context\": 64", "\"context\": 4294967295", PLACEMENT, &["kv_blocks is 4"]);
    plan.changed("\"sequences\": 1", "\"sequences\": 4294967295", PLACEMENT, &["decode_rows is 1"]);
    plan.changed(
        "\"credits\": ",
        "\"credits\": 1000000",
        PLACEMENT,
        &["the plan's credits is", "at most 65536"],
    );
    let words = ["the plan's edges[0].routes: a ring needs"];
    plan.changed("\"depth\": 4", "\"depth\": 0", PLACEMENT, &words);
    plan.changed("\"chunk_bytes\": 262144", "\"chunk_bytes\": 1099511627776", DOES_NOT_FIT, &["staging"]);
    plan.changed("\"to\": 1", "\"to\": 0", PLACEMENT, &["its edges must lead from each stage to the next"]);
    plan.changed("\"sequences\": 1", "\"sequences\": -1", PLACEMENT, &["not a plan"]);
    plan.changed("\"segments\": 14", "\"segments\": 15", PLACEMENT, &["15 segments"]);
    for cut in [0, 1, 100, plan.json.len() / 2, plan.json.len() - 3] {
        let path = plan.write(&plan.json[..cut]);
        PlanFile::run(&path, &[], PLACEMENT, &["plan.json: not a plan"]);
    }
    let output = ragtag().args(["run", "--plan", "-"]).write_stdin("{").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(PLACEMENT), "{err}");
    assert!(err.contains("ragtag: standard input: not a plan: EOF while parsing"), "{err}");
    PlanFile::run(&plan.write("{"), &[], PLACEMENT, &["plan.json: not a plan: EOF while parsing"]);
    PlanFile::run(
        &plan.write("[1]"),
        &[],
        PLACEMENT,
        &["not a plan: invalid type: sequence, expected struct Plan"],
    );
    PlanFile::run(&plan.folder.path().join("missing.json"), &[], FILE, &["cannot read", "missing.json"]);
    PlanFile::run(plan.folder.path(), &[], FILE, &["cannot read"]);
}

#[cfg(unix)]
#[test]
fn refuses_endless_files() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = folder.path().join("fleet.json");
    std::os::unix::fs::symlink("/dev/zero", &fleet).unwrap();
    for arguments in [
        &["plan", "--fleet", "rtx3090", "--plan", "/dev/zero"][..],
        &["plan", "--fleet", text(&fleet)],
        &["simulate", "--fleet", "rtx3090", "--requests-file", "/dev/zero"],
        &["run", "-f", "/dev/zero"],
    ] {
        refused(arguments, FILE, &["cannot read", "has more than", "bytes"]);
    }
}

#[test]
fn refuses_unreadable_placements_before_probing_devices() {
    for (option, value, code) in
        [("--plan", "missing.json", FILE), ("--split", "0-5", PLACEMENT), ("--pin", "first=cpu:0", PLACEMENT)]
    {
        for command in ["plan", "run"] {
            let err = refused(&[command, option, value, "--cpu-devices", "2"], code, &[value]);
            assert!(!err.contains("requested="), "{err}");
        }
    }
}

#[test]
fn refuses_invalid_splits() {
    let cases = [
        ("0-5=cpu:0,7-13=cpu:1", "segments 6 are on no device"),
        ("1-5=cpu:0,6-13=cpu:1", "segments 0 are on no device"),
        ("0-5=cpu:0,6-12=cpu:1", "segments 13 are on no device (the model's segments are 0-13)"),
        ("0-6=cpu:0,5-13=cpu:1", "segments 5-6 are on cpu:0 and on cpu:1"),
        ("0-5=cpu:0,6-14=cpu:1", "segments 6-14 on cpu:1: the model's last segment is 13"),
        ("0-4294967295=cpu:0", "the model's last segment is 13"),
        ("0-4294967296=cpu:0", "is not FIRST-LAST=DEVICE"),
        ("0-5=cpu:0,6-13=cpu:7", "there is no device cpu:7 (devices: cpu:0, cpu:1)"),
        ("0-5=cpu:0,6-13=cuda:0", "there is no device cuda:0"),
        ("0-5=cpu:0,6-13=cpu:0", "segments 0-5 and 6-13 are both on cpu:0"),
        ("6-13=cpu:1,0-5=cpu:0", "in the order of the segments"),
        ("5-0=cpu:0,6-13=cpu:1", "'5-0=cpu:0': the last segment comes before the first"),
        ("", "an empty part in ''"),
        ("0-5=cpu:0,,6-13=cpu:1", "an empty part in '0-5=cpu:0,,6-13=cpu:1'"),
        ("half and half", "'half and half' is not FIRST-LAST=DEVICE"),
        ("0-=cpu:0", "is not FIRST-LAST=DEVICE"),
        ("+0-13=cpu:0", "is not FIRST-LAST=DEVICE"),
    ];
    for (split, words) in cases {
        for command in ["run", "plan"] {
            refused(&[command, "--cpu-devices", "2", "--split", split], PLACEMENT, &["split", words]);
        }
    }
}

#[test]
fn refuses_invalid_pins() {
    for (pin, words) in [
        ("5-2=cpu:0", "--pin: '5-2=cpu:0': the last segment comes before the first"),
        ("0", "--pin: '0' is not FIRST-LAST=DEVICE"),
        ("", "--pin: an empty part in ''"),
    ] {
        refused(&["plan", "--cpu-devices", "2", "--pin", pin], PLACEMENT, &[words]);
    }
}

#[test]
fn devices_that_are_there_and_not_selected() {
    let words = ["cpu:1 is not selected (to select it, use --device cpu:0,cpu:1)"];
    for placement in [["--split", "0-13=cpu:1"], ["--pin", "0=cpu:1"], ["--exclude", "cpu:1"]] {
        let arguments = [&["plan", "--cpu-devices", "2", "--device", "cpu:0"][..], &placement].concat();
        refused(&arguments, PLACEMENT, &words);
    }
}

#[test]
fn refuses_models_that_fit_nowhere() {
    let plan = |more: &[&str]| {
        let words = ["does not fit", "cpu:0", "GiB"];
        println!("{}", refused(&[&["plan"], more].concat(), DOES_NOT_FIT, &words));
    };
    plan(&["--ctx", "16777216", "--parallel", "64"]);
    plan(&["--ctx", "16777216", "--parallel", "1024", "--kv", "f32"]);
    plan(&["--ctx", "16777216", "--parallel", "1024", "--cpu-devices", "2"]);
    plan(&["--ctx", "16777216", "--parallel", "64", "--cpu-devices", "2", "--split", "0-5=cpu:0,6-13=cpu:1"]);
    refused(&["bench", "--ctx", "16777216", "--parallel", "1024"], DOES_NOT_FIT, &["does not fit", "cpu:0"]);
}

// ---- Devices ------------------------------------------------------------------------------------------------------

#[test]
fn refuses_absent_devices() {
    let cases = [
        ("cpu:9", "no device cpu:9; there are cpu:0"),
        ("cpu:4294967295", "no device cpu:4294967295"),
        ("cpu:4294967296", "is not a device"),
        (
            "quantum:0",
            "unknown backend \"quantum\"; there are cuda, hip, level-zero, vulkan, opencl, wgpu, cpu",
        ),
        (
            "quantum",
            "unknown backend \"quantum\"; there are cuda, hip, level-zero, vulkan, opencl, wgpu, cpu",
        ),
        ("opencl", "opencl cannot be used: "),
        ("gpu", "no GPU found; there are cpu:0"),
        ("cpu,gpu", "no GPU found"),
        ("min-memory=1000TiB", "no device fits \"min-memory=1000TiB\"; there are cpu:0"),
        ("min-memory=lots", "is not a filter: expected min-memory=SIZE"),
        ("max-memory=1GiB", "is not a filter"),
        ("min-memory=99999999999999999999GiB", "is not a filter"),
        ("units=many", "or units=N"),
        ("metal", "Ragtag uses metal devices through wgpu: use --device wgpu"),
        (
            "",
            "is not a device: expected auto, gpu, cpu, discrete, integrated, software, BACKEND, BACKEND:INDEX,",
        ),
        ("cpu:", "is not a device"),
        ("cpu:-1", "is not a device"),
        (":0", "is not a device"),
        ("cpu:0;cpu:1", "is not a device"),
        ("the fast one", "\"the fast one\" is not a device"),
        ("cpu:0,,cpu:1", "\"\" in \"cpu:0,,cpu:1\" is not a device"),
    ];
    for (list, words) in cases {
        refused(&["run", &format!("--device={list}")], DEVICES, &[words]);
        refused(&["devices", &format!("--device={list}")], DEVICES, &[words]);
    }
    let output = ragtag().env("RAGTAG_DEVICES", "cpu:9").args(["run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(DEVICES));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no device cpu:9"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ragtag: RAGTAG_DEVICES: "));
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let value = std::ffi::OsStr::from_bytes(b"cpu:0\xff");
        let output = ragtag().env("RAGTAG_DEVICES", value).arg("devices").output().unwrap();
        assert_eq!(output.status.code(), Some(DEVICES));
        assert!(String::from_utf8_lossy(&output.stderr).contains("ragtag: RAGTAG_DEVICES: "));
    }
    ragtag().env("RAGTAG_PROBE_LIMIT", "").arg("devices").assert().success();
    for limit in ["0", "3601", "-1", "soon"] {
        refused(&["devices", "--probe-limit", limit], USAGE, &["--probe-limit", "from 1 to 3600"]);
    }
    for count in ["0", "65", "-1", "two"] {
        refused(&["run", &format!("--cpu-devices={count}")], USAGE, &["--cpu-devices"]);
    }
    refused(&["run", "--threads=0"], USAGE, &["--threads"]);
}

// ---- Output -------------------------------------------------------------------------------------------------------

#[test]
fn refuses_unwritable_outputs_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let bad = [folder.path().join("missing/out"), file.join("out"), folder.path().to_path_buf()];
    for path in &bad {
        let path = text(path);
        for arguments in [
            &["logits", "--ids", "1", "-o", path][..],
            &["run", "-n", "1", "--trace", path],
            &["run", "-n", "1", "--receipt", path],
            &["bench", "-p", "4", "-n", "1", "--trace", path],
            &["perplexity", "-f", text(&file), "--receipt", path],
            &["selftest", "--report", path],
            &["simulate", "--trace", path],
        ] {
            let err = refused(arguments, FILE, &["cannot write", path]);
            assert!(
                !err.contains("requested=") && !err.contains("testing"),
                "the error precedes the run: {err}"
            );
        }
    }
    let new = folder.path().join("new/");
    let err = refused(&["run", "--receipt", text(&new)], FILE, &["cannot write", "new/", "directory"]);
    assert!(!err.contains("requested="), "the error precedes the run: {err}");
    assert_eq!(std::fs::read(&file).unwrap(), b"in the way");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
}

#[test]
fn refuses_outputs_that_overwrite_each_other_or_an_input() {
    let corrupt = CorruptModels::new();
    let (one, other) = (corrupt.write("one", b"1,2"), corrupt.write("other", b"1,2"));
    let (model, shard) =
        (corrupt.write("m.gguf", &corrupt.sound), corrupt.write("m-00002-of-00002.gguf", b""));
    let first = corrupt.write("m-00001-of-00002.gguf", b"");
    let (directory, config) = (text(corrupt.folder.path()), corrupt.write("config.json", b"{}"));
    let cases: [(&[&str], &str); 11] = [
        (&["run", &model, "--receipt", &model], "is an input"),
        (&["run", &first, "--trace", &shard], "is an input"),
        (&["run", directory, "--trace", &config], "is an input"),
        (&["run", "-f", &one, "--trace", &one], "is an input"),
        (&["bench", "--plan", &one, "--html", &one], "is an input"),
        (&["perplexity", "-f", &one, "--receipt", &one], "is an input"),
        (&["plan", &model, "--svg", &model], "is an input"),
        (&["simulate", "--requests-file", &one, "--trace", &one], "is an input"),
        (&["run", "--trace", &one, "--receipt", &one], "is used for two outputs"),
        (&["logits", "--ids", "1", "-o", &one, "--receipt", &other, "--trace", &other], "two outputs"),
        (&["plan", "--html", &one, "--svg", &one], "two outputs"),
    ];
    for (arguments, words) in cases {
        refused(arguments, USAGE, &[words]);
    }
    assert_eq!(std::fs::read(&one).unwrap(), b"1,2");
}

/// Checks that a command fails if its standard output is a device that behaves like a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tale = folder.path().join("tale.txt");
    std::fs::write(&tale, "The wolf and the fox went into the wood. ".repeat(4)).unwrap();
    let cases: [&[&str]; 20] = [
        &["--help"],
        &["plan", "--help"],
        &["--version"],
        &["completions", "bash"],
        &["devices"],
        &["devices", "--json"],
        &["devices", "--doctor"],
        &["cards"],
        &["cards", "--json"],
        &["plan"],
        &["plan", "--json"],
        &["plan", "--svg", "-"],
        &["inspect", "--tensors"],
        &["inspect", "--dot"],
        &["simulate", "--requests", "2"],
        &["selftest", "--only", "memory/fill", "--device", "cpu"],
        &["run", "-n", "1", "--ctx", "16"],
        &["run", "-n", "1", "--ctx", "16", "--json"],
        &["bench", "-p", "4", "-n", "0", "-r", "1"],
        &["perplexity", "-f", text(&tale), "--ctx", "8", "--chunks", "1"],
    ];
    for arguments in cases {
        let output = support::shell("exec \"$0\" \"$@\" > /dev/full", arguments).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(FILE), "{arguments:?}: {err}");
        let words = "ragtag: cannot write to standard output: No space left on device (os error 28)\n";
        assert!(err.ends_with(words), "{arguments:?}: {err}");
    }
}

// ---- Arguments ----------------------------------------------------------------------------------------------------

#[test]
fn refuses_contradictory_and_invalid_arguments() {
    let cases: [(&[&str], &str); 27] = [
        (&["plan", "--fleet", "arc-a770", "--throttle", "cpu:0=duty:50%"], "cannot be used with"),
        (&["plan", "--fleet", "arc-a770", "--strict"], "cannot be used with"),
        (&["simulate", "--fleet", "arc-a770", "--gemm", "own"], "cannot be used with"),
        (&["run", "--stop", ""], "--stop"),
        (&["run", "--ctx", "-1"], "-1 is not in 1..=16777216"),
        (&["run", "--seed", "-1"], "invalid value '-1' for '--seed"),
        (&["run", "--temp", "-1"], "temperature is -1"),
        (&["plan", "--parallel", "-1"], "-1 is not in 1..=4096"),
        (&["run", "--split", "0-13=cpu:0", "--plan", "plan.json"], "cannot be used with"),
        (&["run", "-p", "text", "-f", "file"], "cannot be used with"),
        (&["inspect", "--dot", "--json"], "cannot be used with"),
        (&["run", "--no-such-flag"], "unexpected argument"),
        (&["walk"], "unrecognized subcommand"),
        (&["run", "one.gguf", "two.gguf"], "unexpected argument"),
        (&["run", "--ctx", "0"], "--ctx"),
        (&["run", "--ctx", "16777217"], "--ctx"),
        (&["run", "--chunk", "0"], "--chunk"),
        (&["run", "--activations", "int4"], "--activations"),
        (&["plan", "--parallel", "0"], "--parallel"),
        (&["bench", "-r", "0"], "--repetitions"),
        (&["bench", "-p", "many"], "-p"),
        (&["run", "--max-load", "101"], "--max-load"),
        (&["calibrate", "--max-load", "-1"], "--max-load"),
        (&["bench", "links", "-p", "64"], "unexpected argument"),
        (&["logits", "--ids", "1"], "--output"),
        (&["perplexity"], "--file"),
        (&["completions", "tcsh"], "tcsh"),
    ];
    for (arguments, words) in cases {
        refused(arguments, USAGE, &[words]);
    }
    refused(&[], USAGE, &["Usage: ragtag"]);
    let fleet = ["plan", "--fleet", "arc-a770"];
    ragtag().args(fleet).env("RAGTAG_STRICT", "0").assert().success();
    ragtag().args(fleet).env("RAGTAG_STRICT", "1").assert().code(USAGE);
    for (variable, flag) in [("RAGTAG_STRICT", "--strict"), ("RAGTAG_NO_CALIBRATION", "--no-calibration")] {
        for value in ["", "1", "off", "Yes", "false"] {
            ragtag().args(["plan"]).env(variable, value).assert().success();
        }
        let output = ragtag().args(["run"]).env(variable, "junk").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(USAGE), "{err}");
        let words = format!("{variable} must be 1 or 0, true or false, yes or no, on or off");
        assert!(err.contains(flag) && err.contains(&words), "{err}");
    }
    refused(
        &["run", "-f", "-", "--plan", "-"],
        USAGE,
        &["standard input can be only one of the prompt (-f -), the plan (--plan -)"],
    );
    refused(&["run", "-q", "--compare"], USAGE, &["cannot be used with"]);
    // A benchmark without anything to measure is an error.
    refused(&["bench", "-p", "0", "-n", "0"], USAGE, &["nothing to measure"]);
    // A self-test whose filter matches no test is an error.
    refused(&["selftest", "--only", "teleport"], USAGE, &["no test name matches \"teleport\""]);
}
