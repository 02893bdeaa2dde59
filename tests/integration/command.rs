//! Tests the command as users run it: its output streams, its output files, and whether its figures match the
//! library's.

mod caps;
mod habits;
#[cfg(target_os = "linux")]
mod limits;
mod plans;
mod selftest;
mod tables;

use crate::support::{self, golden, metadata_value, model_path, patch, ragtag, read_json, text};
use ragtag_kernels::NumericsClass;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const BITNET: &str = "tales-bitnet-tq2_0";
const LLAMA: &str = "tales-q8_0";
const START: &str = "requested=auto detected=[cpu:0, cpu:1] selected=[cpu:0, cpu:1]";
/// Arguments that select two devices with one thread each.
const TWO: [&str; 4] = ["--cpu-devices", "2", "--threads", "1"];
/// Arguments that place one stage on each of the two devices.
const SPLIT: [&str; 2] = ["--split", "0-6=cpu:0,7-13=cpu:1"];

struct Done {
    out: String,
    err: String,
}

impl Done {
    /// Parses standard output, which must be a single JSON value.
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}:\n{}", self.out))
    }
}

/// Runs a command, checks that it succeeds, and returns its output.
fn done(arguments: &[&str]) -> Done {
    done_by(ragtag().args(arguments))
}

fn done_by(command: &mut assert_cmd::Command) -> Done {
    let output = command.output().unwrap();
    let done = Done {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(output.status.success(), "{command:?}: {:?}\n{}", output.status, done.err);
    assert!(!done.err.contains("panicked"), "{}", done.err);
    done
}

fn file(name: &str) -> String {
    text(&model_path(name)).to_string()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Returns `plan` without the values that change from run to run: the free memory, and the reasons, which
/// mention it.
fn lasting(plan: &Value) -> Value {
    let mut plan = plan.clone();
    plan["reasons"].take();
    plan["host_memory_bytes"]["available"].take();
    for stage in plan["stages"].as_array_mut().unwrap() {
        stage["memory_bytes"]["available"].take();
    }
    plan
}

// ---- run ----------------------------------------------------------------------------------------------------------

#[test]
fn run_prints_the_text_on_stdout_and_everything_else_on_stderr() {
    let case = &golden(BITNET).cases[1];
    let arguments = ["run", "-p", &case.prompt, "-n", "64", "--temp", "0", "--activations", "f32"];
    let done = done(&[&arguments[..], &SPLIT, &TWO].concat());
    assert_eq!(done.out, case.text.clone() + "\n");
    assert_eq!(done.err.lines().next(), Some(START));
    for words in
        ["plan: 0-", "=cpu:0,", "=cpu:1 · context 512", "10 prompt tokens at", "64 new tokens at", "tokens/s"]
    {
        assert!(done.err.contains(words), "{words} in {}", done.err);
    }
}

#[test]
fn one_token_has_no_rate() {
    let one = ["run", "-n", "1", "--ctx", "16", "-p", "a"];
    let shown = done(&one).err;
    assert!(shown.contains("1 new token at – tokens/s"), "{shown}");
    let timings = &done(&[&one[..], &["--json"]].concat()).json()["timings"];
    assert!(timings["decode_tokens_per_s"].is_null(), "{timings}");
    assert!(timings["prefill_tokens_per_s"].as_f64().unwrap() > 0.0, "{timings}");
}

#[test]
fn an_invalid_log_filter_is_reported_once_and_ignored() {
    let shown = done_by(ragtag().env("RUST_LOG", "a=b=c").arg("cards")).err;
    assert_eq!(shown.matches("warning: invalid RUST_LOG").count(), 1, "{shown}");
    assert_eq!(done_by(ragtag().env("RUST_LOG", "").arg("cards")).err, "");
}

/// Checks that the command stops writing and succeeds if the reader closes the pipe.
#[cfg(unix)]
#[test]
fn a_run_ends_when_its_reader_closes_the_pipe() {
    let script = "{ \"$0\" \"$@\"; echo \"code $?\" >&2; } | head -c 10";
    // Throttle the device, because a full-speed run can end before `head` does on a busy machine.
    let slow = ["run", "-n", "400", "--seed", "7", "--throttle", "cpu:0=duty:2%"];
    let done = done_by(&mut support::shell(script, &slow));
    assert_eq!(done.out, "Once upon ");
    assert!(done.err.contains("new token") && done.err.contains("(cancelled)"), "{}", done.err);
    assert!(done.err.ends_with("code 0\n"), "{}", done.err);
    let done = done_by(&mut support::shell(script, &["cards"]));
    assert_eq!(done.err, "code 0\n");
}

#[test]
fn run_json_is_one_object_and_nothing_else() {
    for (name, case) in [(BITNET, 1), (LLAMA, 2)] {
        let (file, case) = (file(name), &golden(name).cases[case]);
        let arguments =
            ["run", &file, "-p", &case.prompt, "-n", "64", "--temp", "0", "--activations", "f32", "--json"];
        let done = done(&[&arguments[..], &SPLIT, &TWO].concat());
        let json = done.json();
        let expected = [
            "comparison",
            "finish_reason",
            "plan",
            "prompt_tokens",
            "replanned",
            "seed",
            "text",
            "timings",
            "tokens",
            "verified_transfers",
        ];
        assert_eq!(keys(&json), BTreeSet::from(expected));
        assert_eq!(numbers(&json["prompt_tokens"]), case.prompt_ids);
        assert_eq!(numbers(&json["tokens"]), case.greedy_ids);
        assert_eq!(case.prompt.clone() + json["text"].as_str().unwrap(), case.text);
        assert_eq!(json["finish_reason"], "max-tokens");
        assert_eq!(json["plan"]["stages"].as_array().unwrap().len(), 2);
        assert_eq!((&json["plan"]["activations"], &json["plan"]["kv"]), (&"f32".into(), &"f32".into()));
        let timings = &json["timings"];
        assert_eq!(
            (&timings["prompt_tokens"], &timings["new_tokens"]),
            (&case.prompt_ids.len().into(), &64.into())
        );
        for figure in ["prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s"] {
            assert!(timings[figure].as_f64().unwrap() > 0.0, "{figure}: {timings}");
        }
        assert!(done.err.starts_with(START), "{}", done.err);
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let tale = |seed: &str| done(&["run", "-n", "40", "--seed", seed, "--ctx", "64"]).out;
    let first = tale("7");
    assert_eq!(tale("7"), first);
    assert_ne!(tale("8"), first);
    assert!(first.starts_with("Once upon a time"));

    // A random seed is printed, and it reproduces the text.
    let drawn = done(&["run", "-n", "40", "--ctx", "64"]);
    let seed = drawn.err.lines().find_map(|line| line.split("seed ").nth(1)).unwrap();
    assert_eq!(tale(seed), drawn.out);
}

#[test]
fn prompts_come_from_files_and_standard_input() {
    let case = &golden(BITNET).cases[2];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.txt");
    std::fs::write(&path, &case.prompt).unwrap();
    let arguments = ["run", "-n", "8", "--temp", "0", "--json", "--ctx", "32"];
    let from_file = done(&[&arguments[..], &["-f", text(&path)]].concat()).json();
    let from_input =
        done_by(ragtag().args(arguments).args(["-f", "-"]).write_stdin(case.prompt.as_str())).json();
    for json in [&from_file, &from_input] {
        assert_eq!(numbers(&json["prompt_tokens"]), case.prompt_ids);
    }
    assert_eq!(from_file["tokens"], from_input["tokens"]);
}

#[test]
fn a_final_line_break_in_a_file_is_not_part_of_the_prompt() {
    let ids = |input: &str| {
        let mut command = ragtag();
        command.args(["run", "-n", "1", "--json", "--ctx", "32", "-f", "-"]).write_stdin(input);
        numbers(&done_by(&mut command).json()["prompt_tokens"])
    };
    let plain = ids("The wolf");
    assert_eq!(ids("The wolf\n"), plain);
    assert_eq!(ids("The wolf\r\n"), plain);
    assert_ne!(ids("The wolf\n\n"), plain, "one line break, not all");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.txt");
    std::fs::write(&path, "The wolf\n").unwrap();
    assert_eq!(done(&["run", "-n", "1", "--no-echo", "--seed", "7", "-f", text(&path)]).out, {
        done(&["run", "-n", "1", "--no-echo", "--seed", "7", "-p", "The wolf"]).out
    });
}

#[test]
fn quiet_or_without_echo_a_run_prints_only_the_text() {
    let short = [&["run", "-n", "8", "--seed", "7", "-p", "Once upon a time"][..], &TWO].concat();
    let plain = done(&short);
    let quiet = done(&[&short[..], &["-q"], &SPLIT].concat());
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), (plain.out.as_str(), ""));
    let bare = done(&[&short[..], &["--no-echo"]].concat());
    assert_eq!("Once upon a time".to_string() + &bare.out, plain.out);
    assert!(bare.err.contains("new tokens at"), "{}", bare.err);
    let bench = done(&[&["bench", "-q", "-p", "8", "-n", "0", "-r", "1"][..], &TWO].concat());
    assert!(bench.out.contains("pp8") && bench.err.is_empty(), "{}", bench.err);
    // `--quiet` does not suppress warnings.
    let warned = done(&["run", "-q", "-n", "1", "--ctx", "600"]).err;
    assert_eq!(
        warned,
        "warning: a context of 600 tokens exceeds the 512 tokens that the model was trained for\n"
    );
}

/// Checks that `--rope-scaling` extends the model's context, changes the text, and needs no warning.
#[test]
fn rope_scaling_extends_the_context() {
    let run =
        |options: &[&str]| done(&[&["run", "-q", "-n", "24", "--temp", "0", "--no-echo"], options].concat());
    let plain = run(&["--ctx", "512"]);
    let scaled = run(&["--ctx", "600", "--rope-scaling", "yarn:4"]);
    assert!(!scaled.err.contains("warning"), "{}", scaled.err);
    assert_ne!(scaled.out, plain.out);
    assert_eq!(run(&["--ctx", "512", "--rope-scaling", "linear:1"]).out, plain.out);
    let plan = done(&["plan", "--json", "--ctx", "1024", "--rope-scaling", "linear:2"]);
    assert!(plan.out.contains("\"context\": 1024") && !plan.err.contains("exceeds"), "{}", plan.err);
    let warned = done(&["plan", "--ctx", "1025", "--rope-scaling", "linear:2"]).err;
    assert!(warned.contains("1025 tokens exceeds the 1024 tokens"), "{warned}");
    for wrong in ["yarn", "ntk:2", "yarn:0"] {
        let output = ragtag().args(["run", "--rope-scaling", wrong]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(error.contains("must be yarn:FACTOR or linear:FACTOR"), "{error}");
    }
}

/// Checks the progress bar in a terminal that `script` from util-linux emulates.
#[cfg(target_os = "linux")]
#[test]
fn a_long_prompt_has_a_progress_bar_on_a_terminal() {
    let prompt = "the wolf and the fox ".repeat(40);
    let slow = ["run", "-n", "1", "-p", &prompt, "--chunk", "16", "--throttle", "cpu:0=duty:2%"];
    let shown = |options: &[&str]| {
        let words: Vec<_> = slow.iter().chain(options).map(|word| format!("'{word}'")).collect();
        let line = format!("'{}' {}", env!("CARGO_BIN_EXE_ragtag"), words.join(" "));
        let mut command = support::sheltered(assert_cmd::Command::new("script"));
        let done = done_by(command.env("TERM", "xterm").args(["-qefc", &line, "/dev/null"]));
        assert!(done.out.contains("the wolf and the fox"), "{}", done.out);
        done.out
    };
    if std::process::Command::new("script").arg("--version").output().is_err() {
        test_support::skip!("script", "it makes a terminal");
        return;
    }
    let bars = shown(&[]);
    assert!(bars.contains("prompt \u{2588}") || bars.contains("prompt \u{2591}"), "{bars}");
    let quiet = shown(&["--quiet"]);
    assert!(quiet.starts_with("the wolf") && !quiet.contains(['\u{2588}', '\u{2591}']), "{quiet}");
}

#[test]
fn a_run_ends_at_stop_strings_and_limits() {
    let case = &golden(BITNET).cases[0];
    let arguments = ["run", "-p", &case.prompt, "--temp", "0", "--activations", "f32", "--json"];
    let stopped = done(&[&arguments[..], &["--stop", "queen", "--stop", "much alike"]].concat()).json();
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&", who were so ".into(), &"stop".into()));
    let full = done(&[&arguments[..], &["--ctx", "20"]].concat()).json();
    assert_eq!(full["finish_reason"], "context-full");
    assert_eq!(numbers(&full["tokens"]), case.greedy_ids[..8]);
}

// ---- inspect ------------------------------------------------------------------------------------------------------

#[test]
fn inspect_shows_a_model_as_tables_and_as_json() {
    let out = done(&["inspect", &file(LLAMA), "--tensors"]).out;
    for words in [
        "llama",
        "10.5 M",
        "1-12",
        "block 0 … block 11",
        "Q8_0",
        "blk.11.ffn_down.weight",
        "tokenizer with 4096",
    ] {
        assert!(out.contains(words), "{words} in {out}");
    }
    let json = done(&["inspect", "--json", "--tensors"]).json();
    assert_eq!(json["hyperparameters"]["architecture"], "bitnet");
    assert_eq!(json["segments"].as_array().unwrap().len(), 14);
    assert_eq!(json["file_bytes"], std::fs::metadata(file(BITNET)).unwrap().len());
    let tensors = json["tensors"].as_array().unwrap();
    let values: u64 = tensors
        .iter()
        .map(|t| t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>())
        .sum();
    assert_eq!(json["parameters"], values);
    assert!(done(&["inspect", "--json"]).json().get("tensors").is_none());
}

#[test]
fn escapes_control_characters_in_names_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = corrupt(folder.path(), "named.gguf", |bytes| {
        let at = metadata_value(bytes, "general.name");
        patch(bytes, at + 8, b"\x1b\x07");
    });
    let out = done(&["inspect", &path]).out;
    assert!(!out.contains(['\u{1b}', '\u{7}']) && out.contains("\\u{1b}\\u{7}"), "{out}");
}

#[test]
fn inspect_numbers_the_halves_of_blocks() {
    let out = done(&["inspect", &file(LLAMA), "--granularity", "half", "--wide"]).out;
    for words in ["1, 3 … 23", "block 0 attention … block 11 attention", "2, 4 … 24", "block 11 ffn", "25"]
    {
        assert!(out.contains(words), "{words} in {out}");
    }
    let json = done(&["inspect", "--granularity", "half", "--json"]).json();
    let segments = json["segments"].as_array().unwrap();
    let kinds: Vec<_> = segments.iter().map(|s| s["kind"].as_str().unwrap()).collect();
    assert_eq!(
        (kinds.len(), &kinds[..3], kinds[25]),
        (26, &["embedding", "attention", "feed-forward"][..], "head")
    );
    let whole = done(&["inspect", "--json"]).json();
    let sum = |list: &[Value], figure: &str| list.iter().map(|s| s[figure].as_u64().unwrap()).sum::<u64>();
    for figure in ["flops_per_row", "read_bytes", "kv_bytes_per_position"] {
        assert_eq!(sum(segments, figure), sum(whole["segments"].as_array().unwrap(), figure), "{figure}");
    }
    let (clusters, _) = read_dot(&done(&["inspect", "--dot", "--granularity", "half"]).out);
    assert_eq!(clusters.len(), 26);
}

#[test]
fn a_plan_of_half_blocks_runs_but_not_with_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let (path, case) = (folder.path().join("plan.json"), &golden(BITNET).cases[1]);
    let halves = ["--granularity", "half", "--activations", "f32"];
    let split = ["--split", "0-11=cpu:0,12-25=cpu:1", "--ctx", "128"];
    let plan = done(&[&["plan", "--json"][..], &halves, &split, &TWO].concat());
    let model = plan.json()["model"].clone();
    assert_eq!((&model["granularity"], &model["segments"]), (&"half-block".into(), &26.into()));
    std::fs::write(&path, &plan.out).unwrap();
    let run = ["run", "-p", &case.prompt, "-n", "32", "--temp", "0", "--json", "--plan", text(&path)];
    for granularity in [&[][..], &["--granularity", "half"]] {
        let json = done(&[&run[..], granularity, &TWO].concat()).json();
        assert_eq!(numbers(&json["tokens"]), case.greedy_ids[..32]);
        assert_eq!(json["plan"]["stages"][1]["segments"], serde_json::json!([12, 25]));
        assert_eq!(json["plan"]["model"], model);
    }
    let output = ragtag().args([&run[..], &["--granularity", "block"], &TWO].concat()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{err}");
    let words = err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "the plan has granularity half-block (26 segments), but granularity block (14 segments) is requested"
        ),
        "{err}"
    );
    // The planner also places half blocks if no split is given.
    let planned = done(&[&["plan", "--json", "--ctx", "128"][..], &halves, &TWO].concat()).json();
    assert_eq!(planned["model"], model);
    let stages = planned["stages"].as_array().unwrap();
    assert_eq!(stages[stages.len() - 1]["segments"][1], 25);
}

/// Parses the subset of Graphviz's language that `inspect` writes. Returns the nodes of each cluster, and the
/// edges.
fn read_dot(dot: &str) -> (Vec<Vec<String>>, Vec<(String, String)>) {
    let (mut clusters, mut edges, mut depth) = (Vec::<Vec<String>>::new(), Vec::new(), 0);
    for line in dot.lines().map(str::trim) {
        let statement = line.strip_suffix(';');
        match statement {
            _ if line == "}" => depth -= 1,
            _ if depth == 0 => {
                assert!(line.starts_with("digraph ") && line.ends_with('{'), "{line}");
                depth += 1;
            }
            None => {
                assert_eq!(line, format!("subgraph cluster_{} {{", clusters.len()));
                assert_eq!(depth, 1, "clusters do not nest");
                clusters.push(Vec::new());
                depth += 1;
            }
            Some(statement) => {
                assert!(statement.matches('"').count().is_multiple_of(2), "{statement}");
                let subject = statement.split(" [").next().unwrap();
                match subject.split_once(" -> ") {
                    Some((from, to)) => edges.push((from.to_string(), to.to_string())),
                    None if subject.contains('=') || subject == "node" => {}
                    None => clusters.last_mut().unwrap().push(subject.to_string()),
                }
            }
        }
        assert!(depth >= 0);
    }
    assert_eq!(depth, 0, "every brace is closed");
    (clusters, edges)
}

#[test]
fn inspect_draws_a_cluster_per_segment() {
    for arguments in [&["inspect", "--dot"][..], &["inspect", &file(LLAMA), "--dot", "--activations", "f32"]]
    {
        let (clusters, edges) = read_dot(&done(arguments).out);
        assert_eq!(clusters.len(), 14);
        assert!(clusters.iter().all(|nodes| !nodes.is_empty()));
        let nodes: BTreeSet<_> = clusters.iter().flatten().collect();
        assert_eq!(nodes.len(), clusters.iter().map(Vec::len).sum::<usize>(), "each node is drawn once");
        assert!(edges.len() >= nodes.len() - 1);
        for (from, to) in &edges {
            assert!(nodes.contains(from) && nodes.contains(to), "{from} -> {to}");
        }
    }
}

// ---- logits, bench, perplexity ------------------------------------------------------------------------------------

#[test]
fn logits_writes_the_golden_matrix() {
    let folder = tempfile::tempdir().unwrap();
    for name in [BITNET, LLAMA] {
        let golden = golden(name);
        let ids: Vec<_> = golden.cases[0].prompt_ids.iter().map(u32::to_string).collect();
        for (activations, class) in [("f32", NumericsClass::Exact), ("int8", NumericsClass::Fast)] {
            let path = folder.path().join(format!("{name}-{activations}.npy"));
            let arguments = ["logits", &file(name), "--ids", &ids.join(","), "-o", text(&path)];
            let done = done(&[&arguments[..], &["--activations", activations], &TWO].concat());
            assert_eq!(done.out, "");
            assert!(done.err.contains("13 positions"), "{}", done.err);
            let (values, columns) = ragtag::npy::decode(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!((columns, values.len()), (4096, 13 * 4096));
            let error = golden.error(&values);
            assert!(error <= class.tolerance(), "{name} {activations}: {error}");
        }
    }
}

#[test]
fn bench_measures_prompts_and_generation() {
    let json = done(
        &[&["bench", "-p", "16,0", "-n", "4", "-r", "2", "--parallel", "3", "--json"], &TWO[..], &SPLIT[..]]
            .concat(),
    )
    .json();
    assert_eq!(json["model"], "tales-bitnet-tq2_0.gguf");
    let measurements = json["measurements"].as_array().unwrap();
    let names: Vec<_> =
        measurements.iter().map(|m| (m["test"].as_str().unwrap(), m["tokens"].as_u64().unwrap())).collect();
    assert_eq!(names, [("pp16", 48), ("tg4", 12)]);
    let stages = json["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    for (stage, planned) in stages.iter().zip(json["plan"]["stages"].as_array().unwrap()) {
        assert_eq!(stage["device"], planned["device"]);
        // The memory in use equals the memory that the plan promised. Only scratch may be overestimated.
        let promised = |part: &str| planned["memory_bytes"][part].as_u64().unwrap();
        let most = promised("total") - promised("staging");
        let taken = stage["report"]["pool"]["in_use_bytes"].as_u64().unwrap();
        assert!((most - promised("scratch")..=most).contains(&taken), "{stage} {planned}");
    }
    for measurement in measurements {
        let samples: Vec<f64> = measurement["samples_tokens_per_s"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_f64().unwrap())
            .collect();
        assert!(samples.len() == 2 && samples.iter().all(|&s| s > 0.0), "{measurement}");
        let mean = samples.iter().sum::<f64>() / 2.0;
        assert!((measurement["mean_tokens_per_s"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
        let (low, high) = (samples[0].min(samples[1]), samples[0].max(samples[1]));
        assert!((low..=high).contains(&measurement["median_tokens_per_s"].as_f64().unwrap()));
        assert_eq!(measurement["parallel"], 3);
    }
    let table = done(&["bench", "-p", "16", "-n", "4", "-r", "1", "--wide"]).out;
    assert!(["pp16", "tg4", "±", "10.5 M"].iter().all(|words| table.contains(words)), "{table}");
}

#[test]
fn perplexity_counts_the_second_half_of_each_piece() {
    let held = test_support::golden("held.txt");
    let arguments = ["perplexity", "-f", text(&held), "--ctx", "32", "--chunks", "3"];
    let json = done(&[&arguments[..], &["--json"], &TWO].concat()).json();
    assert_eq!((&json["tokens"], &json["chunks"], &json["ctx"]), (&45.into(), &3.into(), &32.into()));
    let perplexity = json["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity < 200.0, "{json}");
    let line = done(&[&arguments[..], &TWO].concat()).out;
    assert!(line.starts_with(&format!("perplexity {perplexity:.4} ± ")), "{line}");
    assert!(line.ends_with(" over 45 tokens\n"), "{line}");
}

// ---- records ------------------------------------------------------------------------------------------------------

#[test]
fn a_trace_has_a_track_per_queue_and_actor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    done(
        &[&["run", "-n", "4", "--split", "0-6=cpu:0,7-13=cpu:1", "--trace", text(&path)], &TWO[..]].concat(),
    );
    let json = read_json(&path);
    let events = json["traceEvents"].as_array().unwrap();
    let named = |what: &str| -> BTreeSet<(u64, Option<u64>, &str)> {
        let found = events.iter().filter(|e| e["ph"] == "M" && e["name"] == what);
        found
            .map(|e| (e["pid"].as_u64().unwrap(), e["tid"].as_u64(), e["args"]["name"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(named("process_name"), BTreeSet::from([(0, None, "cpu:0"), (1, None, "cpu:1")]));
    let names = [(0, "compute"), (1, "upload"), (2, "download"), (3, "actor")];
    let tracks = (0..2).flat_map(|pid| names.map(|(tid, name)| (pid, Some(tid), name)));
    assert_eq!(named("thread_name"), tracks.collect());

    let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    for span in &spans {
        assert!(span["pid"].as_u64().unwrap() < 2 && span["tid"].as_u64().unwrap() < 4, "{span}");
        assert_eq!(span["tid"] == 3, span["name"] == "turn", "{span}");
        assert!(span["ts"].as_f64().unwrap() >= 0.0 && span["dur"].as_f64().unwrap() >= 0.0, "{span}");
    }
    // The trace has the prompt and the three tokens that are fed back.
    for (pid, segments) in [(0, "segments 0-6"), (1, "segments 7-13")] {
        for batch in 0..4 {
            let name = format!("{segments} · micro-batch {batch}");
            let found = spans.iter().filter(|e| e["name"] == name.as_str() && e["pid"] == pid).count();
            assert_eq!(found, 1, "{name}");
        }
        assert!(spans.iter().filter(|e| e["name"] == "turn" && e["pid"] == pid).count() >= 4, "stage {pid}");
    }
}

#[test]
fn a_receipt_records_what_ran() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipt.json");
    let model = file(LLAMA);
    let arguments =
        ["run", &model, "-n", "2", "--split", "0-6=cpu:1,7-13=cpu:0", "--receipt", text(&path), "--json"];
    let json = done(&[&arguments[..], &TWO].concat()).json();
    let receipt = read_json(&path);
    let expected = [
        "compute_path",
        "detected",
        "memory_caps",
        "throttles",
        "model",
        "plan",
        "ragtag",
        "ragtag_receipt",
        "requested",
        "routes",
        "selected",
        "stage_reports",
        "stages",
        "verified_transfers",
    ];
    assert_eq!(keys(&receipt), BTreeSet::from(expected));
    let digest = blake3::hash(&std::fs::read(&model).unwrap()).to_hex();
    assert_eq!(receipt["model"]["digest"], format!("blake3:{digest}"));
    assert_eq!(receipt["model"]["fingerprint"], json["plan"]["model"]["digest"]);
    assert_eq!(receipt["compute_path"], "cpu:1(0-6) -> cpu:0(7-13)");
    assert_eq!(receipt["plan"], json["plan"]);
    assert_eq!(receipt["routes"][0], json["plan"]["edges"][0]["routes"]);
    assert_eq!(receipt["routes"].as_array().unwrap().len(), 1);
    let stages = receipt["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    let reports = receipt["stage_reports"].as_array().unwrap();
    assert_eq!(reports.len(), 2);
    for ((stage, report), device) in stages.iter().zip(reports).zip(["cpu:1", "cpu:0"]) {
        assert_eq!(stage["device"], device);
        assert_eq!(report["device"], device);
        assert!(report["report"]["pool"]["in_use_buffers"].as_u64().unwrap() > 0, "{report}");
        assert!(report["report"]["longest_turn_us"].as_u64().unwrap() > 0, "{report}");
        assert!(!stage["driver"].as_str().unwrap().is_empty());
        assert!(
            stage["kernels"]
                .as_array()
                .unwrap()
                .iter()
                .any(|k| k.as_str().unwrap().starts_with("matmul/Q8_0"))
        );
    }
}

/// Checks that the command writes into an existing pipe, such as `/dev/stdout`, and into the target of a
/// link. It must not replace the pipe or the link with a file. The test writes to no device file, because a
/// defect could delete a device file of this machine.
#[cfg(unix)]
#[test]
fn records_go_into_pipes_and_through_links() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (link, real) = (folder.path().join("link.npy"), folder.path().join("real.npy"));
    std::fs::write(&real, "old").unwrap();
    symlink(&real, &link).unwrap();
    done(&["logits", "--ids", "1,2", "-o", text(&link), "--ctx", "16"]);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(ragtag::npy::decode(&std::fs::read(&real).unwrap()).unwrap().0.len(), 2 * 4096);

    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open the pipe for reading and writing, so that neither side waits for the other. A receipt is shorter
    // than a pipe's buffer.
    let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    done(&["run", "-n", "1", "--ctx", "16", "--receipt", text(&pipe)]);
    assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo(), "the pipe is still a pipe");
    let mut start = [0; 1];
    std::io::Read::read_exact(&mut reader, &mut start).unwrap();
    assert_eq!(start, *b"{");
}

/// Checks that the command still reports its measurements if it cannot write a file.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_write_does_not_affect_other_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipt.json");
    let (full, receipt) = (["--html", "/dev/full", "--trace", "/dev/full"], ["--receipt", text(&path)]);
    let short = ["bench", "-p", "4", "-n", "0", "-r", "1"];
    for (arguments, shown) in [(&short[..], "pp4"), (&["run", "-n", "2", "--json"], "\"timings\"")] {
        let output = ragtag().args(arguments).args(full).args(receipt).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(7), "{err}");
        assert!(
            err.ends_with("ragtag: cannot write /dev/full: No space left on device (os error 28)\n"),
            "{err}"
        );
        assert!(out.contains(shown), "{out}");
        assert_eq!(read_json(&path)["ragtag_receipt"], 1);
        std::fs::remove_file(&path).unwrap();
    }
    let simulate = ["simulate", "--requests", "2", "--trace", "/dev/full"];
    let output = ragtag().args(simulate).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stdout).contains("2 requests in"));
}

// ---- strict -------------------------------------------------------------------------------------------------------

fn corrupt(folder: &Path, name: &str, change: impl FnOnce(&mut [u8])) -> String {
    let mut bytes = support::model_bytes(LLAMA);
    change(&mut bytes);
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    text(&path).to_string()
}

fn refused_by_strict(command: &mut assert_cmd::Command, words: &str) {
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(8), "{err}");
    assert!(err.contains("refused by --strict: ") && err.contains(words), "{words} in {err}");
    assert!(output.stdout.is_empty());
}

#[test]
fn strict_passes_sound_models_and_refuses_suspicious_ones() {
    let short = ["-n", "1", "--ctx", "16"];
    done(&[&["run", "--strict"], &short[..]].concat());
    done(&[&["run", &file(LLAMA), "--strict"], &short[..]].concat());

    let folder = tempfile::tempdir().unwrap();
    let zero = corrupt(folder.path(), "zero.gguf", |bytes| {
        let data = support::tensor_data(bytes, "blk.3.attn_v.weight");
        bytes[data].fill(0);
    });
    let nan = corrupt(folder.path(), "nan.gguf", |bytes| {
        // The bytes are the scale of one block, an f16.
        let data = support::tensor_data(bytes, "blk.7.ffn_up.weight");
        patch(bytes, data.start + 34 * 5, &0x7e00u16.to_le_bytes());
    });
    let huge = corrupt(folder.path(), "huge.gguf", |bytes| {
        let data = support::tensor_data(bytes, "output_norm.weight");
        for value in bytes[data].chunks_mut(4) {
            value.copy_from_slice(&1e30f32.to_le_bytes());
        }
    });
    let reasons = [
        (&zero, "blk.3.attn_v.weight is all zero"),
        (&nan, "blk.7.ffn_up.weight has 32 NaN or infinite values"),
        (&huge, "output_norm.weight has a root mean square of 1.000e30"),
    ];
    for (path, words) in reasons {
        refused_by_strict(ragtag().args(["run", path, "--strict"]).args(short), words);
    }
    refused_by_strict(ragtag().env("RAGTAG_STRICT", "1").args(["run", &zero]).args(short), reasons[0].1);
    refused_by_strict(ragtag().args(["plan", &nan, "--strict"]), reasons[1].1);
    refused_by_strict(ragtag().args(["bench", &nan, "--strict"]), reasons[1].1);

    // Without `--strict`, a model with such weights runs.
    done(&[&["run", &zero], &short[..]].concat());
    done_by(ragtag().env("RAGTAG_STRICT", "0").args(["run", &zero]).args(short));
    let output = ragtag().args(["run", &nan]).args(short).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("no token for position") && err.contains("NaN") && !err.contains("panicked"),
        "{err}"
    );
}

// ---- help ---------------------------------------------------------------------------------------------------------

#[test]
fn every_command_has_help_with_an_example() {
    let commands = [
        "devices",
        "plan",
        "run",
        "bench",
        "inspect",
        "logits",
        "perplexity",
        "selftest",
        "simulate",
        "replay",
        "tokenize",
        "completions",
    ];
    let whole = done(&["--help"]).out;
    assert!(whole.contains("Examples:") && whole.contains("Exit codes: 0 done"), "{whole}");
    for command in commands {
        assert!(whole.contains(&format!("\n  {command} ")), "{command} in {whole}");
        let help = done(&[command, "--help"]).out;
        assert!(
            help.contains(&format!("Example:\n  ragtag {command}"))
                || help.contains(&format!("Examples:\n  ragtag {command}")),
            "{help}"
        );
    }
    assert_eq!(done(&["--version"]).out, format!("ragtag {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_contain_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = done(&["completions", shell]).out;
        for word in ["perplexity", "selftest", "cpu-devices", "completions"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
        // If the shell is installed, it checks the syntax of the script.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        std::fs::write(&path, &script).unwrap();
        match std::process::Command::new(shell).arg("-n").arg(&path).status() {
            Ok(status) => assert!(status.success(), "{shell}"),
            Err(error) => test_support::skip!("shells", "{shell}: {error}"),
        }
    }
}

/// Checks that `logits` works for a model without a tokenizer, and that `run` fails.
#[test]
fn logits_need_no_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = corrupt(folder.path(), "mute.gguf", |bytes| {
        let at = metadata_value(bytes, "tokenizer.ggml.model");
        patch(bytes, at + 8, b"xxxxx");
    });
    let out = folder.path().join("out.npy");
    done(&["logits", &path, "--ids", "1,1798", "-o", text(&out), "--ctx", "16"]);
    assert!(out.exists());
    let output = ragtag().args(["run", &path]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(!err.contains("requested="), "before devices are asked: {err}");
    assert!(err.contains("tokenizer model \"xxxxx\" is not supported"), "{err}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_run_obeys_a_schema_and_a_grammar() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schema =
        write("schema.json", r#"{"type": "array", "items": {"enum": ["wolf", "fox"]}, "maxItems": 3}"#);
    let gbnf = write("animal.gbnf", "root ::= \"a \" animal\nanimal ::= \"wolf\" | \"fox\"");
    let lark = write("animal.lark", "start: \"a \" (\"wolf\" | \"fox\")");
    let run = |option: &str, file: &str| done(&["run", "--json", "-n", "60", option, file]).json();
    let text = run("--json-schema", &schema)["text"].as_str().unwrap().to_owned();
    let animals: Vec<String> = serde_json::from_str(&text).unwrap();
    assert!(animals.len() <= 3 && animals.iter().all(|name| name == "wolf" || name == "fox"), "{text}");
    for grammar in [&gbnf, &lark] {
        let ran = run("--grammar", grammar);
        assert!(["a wolf", "a fox"].contains(&ran["text"].as_str().unwrap()), "{ran}");
        assert_eq!(ran["finish_reason"], "end");
    }
    let bad = write("bad.gbnf", "root ::= other");
    for (option, file, cause) in [
        ("--grammar", &bad, "other"),
        ("--json-schema", &gbnf, "animal.gbnf"),
        ("--json-schema", &bad, "bad.gbnf"),
    ] {
        let output = ragtag().args(["run", option, file]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(cause), "{error}");
    }
}
