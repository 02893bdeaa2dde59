//! Compares simulations of plans with real runs of these plans, and tests `ragtag simulate`.

use crate::support::{self, Setup, block_on, greedy, listen, ragtag, text, within};
use ragtag::simulation::{
    Arrivals, ComputeTime, CopyTime, DrawnLoad, Lengths, Load, SimSpec, SimSummary, simulate,
};
use ragtag::{Activations, Model, Plan, Prompt, Span, SpanKind, Trace};
use serde_json::Value;
use std::path::Path;

const CHUNK: u32 = 8;
const STAGES: u32 = 3;

fn setup(sequences: u32) -> Setup<'static> {
    Setup {
        cpu_devices: STAGES,
        split: Some("0-4=cpu:0,5-9=cpu:1,10-13=cpu:2"),
        activations: Activations::Int8,
        chunk: CHUNK,
        context: 96,
        sequences,
        all_logits: false,
        trace: true,
        ..Setup::default()
    }
}

/// Returns a load of `requests` identical requests that all arrive at the start.
fn load(requests: u32, prompt: u32, new: u32) -> Load {
    let (prompt_tokens, new_tokens) = (Lengths::Fixed(prompt), Lengths::Fixed(new));
    DrawnLoad { requests, arrivals: Arrivals::Together, prompt_tokens, new_tokens, seed: 1 }.draw().unwrap()
}

/// Runs `requests` identical requests on an engine at the same time. Returns the plan and the trace of the
/// run.
fn run(model: &Model, requests: u32, prompt: u32, new: u32) -> (Plan, Trace) {
    let engine = support::engine(model, &setup(requests));
    let session = engine.session();
    let ids: Vec<u32> = (0..prompt).map(|i| (i * 31 + 7) % model.hyperparameters().vocabulary).collect();
    let start = |_| session.generate(Prompt::Tokens(&ids), &greedy(new)).unwrap();
    let streams: Vec<_> = (0..requests).map(start).collect();
    for stream in streams {
        assert_eq!(block_on(listen(stream)).unwrap().ids.len(), new as usize);
    }
    drop(session);
    (Plan::clone(&engine.plan()), engine.shutdown().trace)
}

/// Simulates `plan` under `load`, with the times that the run measured.
fn simulated(model: &Model, plan: &Plan, load: &Load, measured: &Trace) -> Trace {
    let facts = support::devices(&setup(1)).facts();
    let mut spec = ragtag::simulation_spec(model, plan, &facts, &ragtag::Links::default(), load).unwrap();
    take_times(&mut spec, measured);
    let report = simulate(&spec).unwrap();
    Trace::simulated(plan, &SimSummary::new(&spec, report))
}

/// Sets the times of each stage in `spec` to the medians of the stage's measured spans.
fn take_times(spec: &mut SimSpec, measured: &Trace) {
    for (stage, simulated) in (0..).zip(&mut spec.stages) {
        let median = |kind: SpanKind, rows: Option<u32>| {
            let of = |s: &&Span| s.stage == stage && s.kind == kind && rows.is_none_or(|rows| s.rows == rows);
            let mut times: Vec<_> =
                measured.spans().iter().filter(of).map(|s| s.end_ns - s.start_ns).collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or(0).max(1)
        };
        let (one, chunk) = (median(SpanKind::Compute, Some(1)), median(SpanKind::Compute, Some(CHUNK)));
        let row_ns = chunk.saturating_sub(one) / u64::from(CHUNK - 1);
        simulated.compute = ComputeTime::Linear { batch_ns: one.saturating_sub(row_ns), row_ns };
        let copy = |kind| CopyTime { copy_ns: median(kind, None), ..CopyTime::default() };
        simulated.upload = copy(SpanKind::Upload);
        simulated.download = copy(SpanKind::Download);
        simulated.logits = copy(SpanKind::Logits);
    }
}

/// Event of a micro-batch: the stage, the kind of the span, the id of the micro-batch and, for a computation,
/// the number of rows.
type BatchEvent = (u32, SpanKind, u64, Option<u32>);

fn batch_event(span: &Span) -> BatchEvent {
    let rows = (span.kind == SpanKind::Compute).then_some(span.rows);
    (span.stage, span.kind, span.micro_batch.expect("not a weight transfer").0, rows)
}

/// Returns the spans of `trace` in the order of their starts, except spans that load weights.
fn by_start(trace: &Trace) -> Vec<&Span> {
    let mut spans: Vec<_> = trace.spans().iter().filter(|s| s.kind != SpanKind::Weights).collect();
    spans.sort_by_key(|s| (s.start_ns, s.end_ns));
    spans
}

/// Returns the events on one queue of a stage, in order.
fn queue(trace: &Trace, stage: u32, kind: SpanKind) -> Vec<BatchEvent> {
    let here = by_start(trace).into_iter().filter(|s| s.stage == stage && s.kind == kind);
    here.map(batch_event).collect()
}

const KINDS: [SpanKind; 4] = [SpanKind::Upload, SpanKind::Compute, SpanKind::Download, SpanKind::Logits];

/// Checks causality. Computation, download, upload and the next computation of a micro-batch must not
/// overlap. Every queue must process micro-batches in the order in which they entered the pipeline.
fn assert_causal(trace: &Trace, what: &str) {
    let spans = by_start(trace);
    let find = |stage: u32, kind: SpanKind, id: u64| {
        let found = spans
            .iter()
            .find(|s| s.stage == stage && s.kind == kind && s.micro_batch.is_some_and(|other| other.0 == id));
        *found.unwrap_or_else(|| panic!("{what}: no {kind:?} of micro-batch {id} on stage {stage}"))
    };
    let count = queue(trace, 0, SpanKind::Compute).len() as u64;
    for id in 0..count {
        let mut path = Vec::new();
        for stage in 0..STAGES {
            if stage > 0 {
                path.push(find(stage, SpanKind::Upload, id));
            }
            path.push(find(stage, SpanKind::Compute, id));
            let leaves = if stage + 1 < STAGES { SpanKind::Download } else { SpanKind::Logits };
            path.push(find(stage, leaves, id));
        }
        for pair in path.windows(2) {
            assert!(pair[0].end_ns <= pair[1].start_ns, "{what}: {:?} and then {:?}", pair[0], pair[1]);
        }
    }
    for stage in 0..STAGES {
        for kind in KINDS {
            let ids: Vec<_> = queue(trace, stage, kind).into_iter().map(|h| h.2).collect();
            assert!(ids.is_sorted(), "{what}: stage {stage}, {kind:?}: {ids:?}");
        }
    }
}

/// Compares a run of one sequence with its simulation. Each queue of each stage must process the same
/// micro-batches, with the same rows, in the same order. In decode, the order of all starts over all queues
/// and stages must also be the same. In prefill, this order depends on timing, so the test checks only
/// causality.
#[test]
fn a_simulation_has_the_event_order_of_its_run() {
    within(120, || {
        let model = Model::bundled().unwrap();
        let (prompt, new) = (5 * CHUNK - 3, 24);
        let (plan, real) = run(&model, 1, prompt, new);
        let simulated = simulated(&model, &plan, &load(1, prompt, new), &real);
        assert_causal(&real, "the run");
        assert_causal(&simulated, "the simulation");
        let batches = queue(&real, 0, SpanKind::Compute);
        assert_eq!(batches.len() as u32, 5 + new - 1);
        for stage in 0..STAGES {
            for kind in KINDS {
                assert_eq!(queue(&simulated, stage, kind), queue(&real, stage, kind), "{stage} {kind:?}");
            }
        }
        let decoding = |trace: &Trace| -> Vec<_> {
            by_start(trace).into_iter().map(batch_event).filter(|h| h.2 >= 5).collect()
        };
        assert_eq!(decoding(&simulated), decoding(&real));
        assert_eq!(decoding(&real).len() as u32, (new - 1) * (2 * STAGES + STAGES - 1));
    });
}

/// Checks a run of several sequences and its simulation. Timing decides which sequences share a micro-batch.
/// Both traces must be causal, all stages must process the same micro-batches, and each trace must contain
/// all rows of all requests.
#[test]
fn a_simulation_of_several_sequences_has_the_rows_of_its_run() {
    within(120, || {
        let model = Model::bundled().unwrap();
        let (requests, prompt, new) = (4, 2 * CHUNK, 16);
        let (plan, real) = run(&model, requests, prompt, new);
        let simulated = simulated(&model, &plan, &load(requests, prompt, new), &real);
        for (what, trace) in [("the run", &real), ("the simulation", &simulated)] {
            assert_causal(trace, what);
            let computed = |stage| -> Vec<_> {
                queue(trace, stage, SpanKind::Compute).into_iter().map(|h| (h.2, h.3)).collect()
            };
            for stage in 1..STAGES {
                assert_eq!(computed(stage), computed(0), "{what}");
            }
            let rows: u32 = computed(0).iter().filter_map(|(_, rows)| *rows).sum();
            assert_eq!(rows, requests * (prompt + new - 1), "{what}");
        }
    });
}

// ---- The command --------------------------------------------------------------------------------------------------

const PLACED: [&str; 6] = ["--cpu-devices", "2", "--threads", "1", "--split", "0-6=cpu:0,7-13=cpu:1"];

/// Runs `ragtag simulate` with `arguments`. Returns its exit code, standard output and standard error.
fn command(arguments: &[&str]) -> (i32, String, String) {
    let output = ragtag().arg("simulate").args(PLACED).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = command(&[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn simulate_prints_tables_or_json_and_writes_a_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let timeline = folder.path().join("timeline.json");
    let drawn = ["--requests", "12", "--closed", "3", "--prompt-tokens", "4-20", "--new-tokens", "~6"];
    let (code, out, err) = command(&[&drawn[..], &["--trace", text(&timeline)]].concat());
    assert_eq!(code, 0, "{err}");
    for words in ["12 requests in ", "first token", "cpu:0 -> cpu:1", "7-13", "bubble"] {
        assert!(out.contains(words), "{words} in {out}");
    }
    let events = support::read_json(&timeline);
    let events = events["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["args"]["name"] == "cpu:1"));
    assert!(events.iter().any(|e| e["name"].as_str().is_some_and(|n| n.starts_with("segments 7-13 · "))));

    let result = json(&drawn);
    assert_eq!((&result["ragtag_simulation"], &result["plan"]["sequences"]), (&1.into(), &3.into()));
    let summary = &result["summary"];
    assert_eq!((&summary["finished"], &summary["refused"]), (&12.into(), &0.into()));
    assert_eq!(summary["first_token_us"]["count"], 12);
    assert_eq!(json(&drawn)["summary"], *summary, "the same seed gives the same simulation");
    assert_ne!(json(&[&drawn[..], &["--seed", "2"]].concat())["summary"], *summary);
    // Requests that arrive slowly never wait.
    let slow = &json(&["--requests", "5", "--rate", "0.01"])["summary"];
    assert_eq!(slow["waiting_requests"]["max"], 0);
    assert!(slow["duration_us"].as_f64().unwrap() > 1e8);
}

#[test]
fn no_times_if_all_requests_are_refused() {
    let (code, out, err) = command(&["--ctx", "8", "--requests", "3"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("0 requests in –: – requests/s, prefill – tokens/s, decode – tokens/s\n3 more"),
        "{out}"
    );
    assert!(!out.contains(" ms"), "{out}");
}

#[test]
fn simulate_reads_requests_from_files_and_reports_errors_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.csv");
    let write = |content: &str| std::fs::write(&path, content).unwrap();
    write("arrival_s,prompt_tokens,output_tokens\n0,5,4\n1.5,9,2\n");
    let summary = &json(&["--requests-file", text(&path)])["summary"];
    assert_eq!((&summary["prompt_tokens"], &summary["new_tokens"]), (&14.into(), &6.into()));
    assert!(summary["duration_us"].as_f64().unwrap() > 1.5e6);

    let refused = |arguments: &[&str], words: &str| {
        let (code, _, err) = command(arguments);
        assert!(code == 2 && err.contains(words), "{arguments:?}: {code}: {err}");
    };
    write("arrival_s,prompt_tokens,output_tokens\n0,5,4\n1.5,-9,2\n");
    refused(&["--requests-file", text(&path)], "requests.csv: line 3: prompt_tokens is '-9'");
    refused(&["--requests-file", text(&path), "--requests", "3"], "cannot be used with");
    refused(&["--rate", "0"], "a rate is");
    refused(&["--prompt-tokens", "5-2"], "the lengths of a prompt are 5-2;");
    refused(&["--new-tokens", "many"], "'many' is not a length");
    let (code, _, err) = command(&["--requests-file", text(Path::new("nowhere.csv"))]);
    assert!(code == 7 && err.contains("cannot read nowhere.csv"), "{code}: {err}");
}
