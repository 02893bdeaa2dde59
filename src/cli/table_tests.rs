//! Snapshots of the tables of all commands: in a pipe, and at terminals of 80 and of 200 columns. The tables show
//! fixed figures.

use super::bench::Measurement;
use super::{
    bench, calibrate, cards, compare, devices, doctor, inspect, links, plan_table, selftest, simulate,
    tokenize,
};
use crate::doctor::{Diagnosis, Finding, State};
use crate::selftest::SelfTest;
use crate::{Calibration, Hop, LinkClass, LinkRate, LinkReport, Model, Planner, ProbedLink, TriedRoute};
use ragtag_conformance::{Absent, Outcome, Verdict};
use ragtag_devices::{BackendReport, Physical, Report, Status};
use ragtag_graph::Granularity;
use ragtag_hal::{Adapter, AdapterKind, Caps, HeapKind, Memory, MemorySource, PhysicalIdentity};
use ragtag_kernels::{Activations, NumericsClass};
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, FigureSource, Place};
use ragtag_scheduler::Computed;
use ragtag_scheduler::compare::{ComparedPart, ComparedRate, Comparison, Phase, TimeParts};
use ragtag_scheduler::sim::SimSummary;
use ragtag_transfer::Route;
use serde_json::{from_value, json};
use std::sync::Arc;

/// Compares the table that `draw` returns for each width with its snapshot. At a terminal, lines with a table fit.
fn check(name: &str, draw: impl Fn(Option<u16>) -> String) {
    let mut all = String::new();
    for (title, width) in [("in a pipe", None), ("80 columns", Some(80)), ("200 columns", Some(200))] {
        let text = draw(width);
        for line in text.lines().filter(|line| line.starts_with('|')) {
            let length = line.chars().count();
            assert!(width.is_none_or(|width| length <= usize::from(width)), "{name}, {title}: {line}");
        }
        all.push_str(&format!("{title}:\n{text}\n"));
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, all);
    });
}

/// Returns the first lines of a long table.
fn first_lines(table: &str) -> String {
    table.lines().take(14).map(|line| format!("{line}\n")).collect()
}

fn adapter(backend: &str, index: u32, kind: AdapterKind, name: &str, driver: &str) -> Adapter {
    let memory = Memory {
        heap: HeapKind::Device,
        total_bytes: 141 << 30,
        free_bytes: Some(139 << 30),
        source: MemorySource::Api,
    };
    Adapter {
        backend: backend.into(),
        index,
        name: name.into(),
        driver: driver.into(),
        kind,
        identity: PhysicalIdentity::default(),
        condition: None,
        memory: vec![memory],
        caps: Caps { parallel_units: 132, ..Caps::default() },
    }
}

/// Returns the adapters of a machine with a GPU that two APIs show, a software GPU, and a CPU.
fn adapters() -> [Adapter; 4] {
    let llvm = "llvmpipe (LLVM 15.0.6, 256 bits)";
    [
        adapter("cuda", 0, AdapterKind::Discrete, "NVIDIA H200", "CUDA 13.0, driver 580.159.03"),
        adapter("vulkan", 0, AdapterKind::Software, llvm, "llvmpipe, Mesa 22.3.6 (LLVM 15.0.6)"),
        adapter("opencl", 0, AdapterKind::Discrete, "NVIDIA H200", "NVIDIA CUDA, OpenCL 3.0, 580.159.03"),
        adapter("cpu", 0, AdapterKind::Cpu, "AMD EPYC 9654 96-Core Processor", "ragtag 0.1.0, avx512_vnni"),
    ]
}

#[test]
fn devices_table() {
    let backend = |adapter: Adapter| BackendReport {
        name: adapter.backend.clone(),
        status: Status::Found { adapters: vec![adapter] },
    };
    let physical =
        |labels: &[&str]| Physical { adapters: labels.iter().map(|label| (*label).into()).collect() };
    let report = Report {
        backends: adapters().map(backend).into(),
        devices: vec![physical(&["cuda:0", "opencl:0"]), physical(&["vulkan:0"]), physical(&["cpu:0"])],
    };
    let cap = |adapter: &Adapter| (adapter.backend == "cuda").then_some(12 << 30);
    check("devices", |width| devices::as_table(&report, &["cuda:0".into()], cap, width));
}

#[test]
fn doctor_tables() {
    let finding = |subject, state, found: &str, advice: &str| Finding {
        subject,
        state,
        found: found.into(),
        advice: (!advice.is_empty()).then(|| advice.into()),
    };
    let of = |api: &str, findings: Vec<Finding>| Diagnosis { api: api.into(), findings };
    let missing = || {
        let advice =
            "sudo apt install nvidia-driver (non-free), or start the container with graphics enabled";
        finding("driver", State::Missing, "no Vulkan driver for the NVIDIA GPU", advice)
    };
    let absent = "cannot load libamdhip64.so.7: cannot open shared object file: No such file or directory";
    let found = [
        of(
            "ragtag",
            vec![finding(
                "devices",
                State::Ok,
                "requested=auto detected=[cuda:0, cpu:0] selected=[cuda:0]",
                "",
            )],
        ),
        of(
            "cuda",
            vec![
                finding("build", State::Ok, "in this build", ""),
                finding("compiler", State::Note, "no NVRTC", "optional: sudo apt install libnvrtc12"),
                finding("devices", State::Ok, "cuda:0: NVIDIA H200, CUDA 13.0, driver 580.159.03", ""),
                finding("devices", State::Ok, "cuda:1: NVIDIA H200, CUDA 13.0, driver 580.159.03", ""),
            ],
        ),
        of(
            "hip",
            vec![
                finding("GPU", State::Note, "no AMD GPU on the PCI bus", ""),
                finding("devices", State::Missing, absent, ""),
            ],
        ),
        of(
            "level-zero",
            vec![finding("build", State::Missing, "not in this build", "build with --features level-zero")],
        ),
        of(
            "vulkan",
            vec![missing(), finding("devices", State::Missing, "the driver reports no devices", "")],
        ),
        of("wgpu", vec![missing(), finding("devices", State::Missing, "the driver reports no devices", "")]),
        of("cpu", vec![finding("devices", State::Ok, "cpu:0: AMD EPYC 9654 96-Core Processor", "")]),
    ];
    check("doctor", |width| doctor::digest(&found, width));
    check("doctor_sound", |width| doctor::digest(&found[..2], width));
    check("doctor_wide", |width| doctor::every_check(&found, width));
}

fn link_report() -> LinkReport {
    let rate = |bytes: u64, bytes_per_s: f64| LinkRate {
        bytes,
        bytes_per_s,
        both_bytes_per_s: Some(bytes_per_s * 0.8),
        busy_bytes_per_s: bytes_per_s * 0.7,
        both_busy_bytes_per_s: None,
    };
    let tried = |route: Option<Route>| {
        let hops = vec![Hop { bytes: 4 << 10, us: 20.5 }, Hop { bytes: 4 << 20, us: 188.3 }];
        let tried = |route| TriedRoute { route, why: None, corrupt: false, hops, rates: Vec::new() };
        route.map(tried).into_iter().collect()
    };
    let link = |from: &str, to: &str, class, route| ProbedLink {
        from: from.into(),
        to: to.into(),
        class,
        numa_distance: Some(10),
        route,
        latency_us: Some(4.2),
        rates: [(4, 0.9e9), (64, 9.3e9), (1024, 24e9), (16384, 52.5e9)]
            .map(|(kib, rate_)| rate(kib << 10, rate_))
            .into(),
        quick: false,
        tried: tried(route),
        measured_unix_s: 0,
    };
    let pcie = LinkClass::Pcie { generation: Some(5), width: Some(16) };
    let refused = TriedRoute {
        route: Route::HOST_STAGED,
        why: Some("byte 17 differs".into()),
        corrupt: true,
        hops: Vec::new(),
        rates: Vec::new(),
    };
    let mut broken = link("cpu:0", "level-zero:0", LinkClass::Host, None);
    (broken.latency_us, broken.rates, broken.tried) = (None, Vec::new(), vec![refused]);
    let links = vec![
        link("cuda:0", "cpu:0", pcie, Some(Route::Peer)),
        link("cpu:0", "cuda:0", pcie, Some(Route::HOST_STAGED)),
        broken,
    ];
    LinkReport { links, ..LinkReport::default() }
}

#[test]
fn link_tables() {
    let report = link_report();
    check("links", |width| links::as_table(&report, width));
    check("bench_links", |width| links::as_bench_table(&report, width));
}

/// Returns a plan for two devices with fixed figures.
fn plan() -> Plan {
    let facts = |label: &str, kind| DeviceFacts::assumed(label, kind, 8, 8 << 30, FigureSource::User);
    let facts = vec![facts("cuda:0", AdapterKind::Discrete), facts("level-zero:0", AdapterKind::Integrated)];
    let split = "0-6=cuda:0,7-13=level-zero:0".parse().unwrap();
    let mut plan = Planner::new(&Model::bundled().unwrap()).device_facts(facts).split(split).plan().unwrap();
    for (at, stage) in (1..).zip(&mut plan.stages) {
        let memory = &mut stage.memory_bytes;
        (memory.weights, memory.arenas, memory.kv) = (at << 30, 0, at << 27);
        (memory.scratch, memory.slots, memory.staging) = (at << 20, at << 19, at << 18);
        (memory.total, memory.available) = ((at * 1300) << 20, 8 << 30);
        (stage.predicted.decode_us, stage.predicted.prefill_us) = (1230.0 * at as f64, 45_600.0 * at as f64);
    }
    (plan.prefill_stage, plan.stages[0].streamed, plan.stages[1].streamed) = (None, Vec::new(), Vec::new());
    let host = &mut plan.host_memory_bytes;
    (host.weights, host.kv) = (0, 0);
    (host.logits, host.staging, host.parameters, host.devices, host.total) =
        (48 << 10, 1 << 20, 9 << 10, 0, 3 << 20);
    plan.reasons = vec!["bottleneck: level-zero:0 with segments 7-13".into()];
    plan
}

#[test]
fn plan_tables() {
    let mut plan = plan();
    check("plan", |width| plan_table::as_table(&plan, false, width));
    plan.stages[1].streamed = vec![8, 9, 10];
    check("plan_capped", |width| plan_table::as_table(&plan, true, width));
}

#[test]
fn bench_table() {
    let measured = |test: &str, mean: f64| Measurement {
        test: test.into(),
        parallel: 8,
        mean_tokens_per_s: mean,
        deviation_tokens_per_s: mean / 100.0,
        median_tokens_per_s: mean * 1.001,
        ..Measurement::default()
    };
    let (model, measured) =
        (Model::bundled().unwrap(), [measured("pp512", 32_433.1), measured("tg128", 635.27)]);
    check("bench", |width| bench::as_table(&model, "0-6=cuda:0,7-13=level-zero:0", &measured, width));
}

#[test]
fn comparison_table() {
    let part = |place, predicted_us: f64, measured_us: f64| ComparedPart {
        place,
        index: 0,
        is_prefill_stage: false,
        device: "cuda:0".into(),
        to: (place == Place::Edge).then(|| "level-zero:0".into()),
        phase: Phase::Decode,
        micro_batches: 127,
        rows: 7.5,
        bytes: 3072.0,
        predicted_us,
        measured_us,
        spread: None,
        waited_us: 0.0,
        deviation: measured_us / predicted_us - 1.0,
        parts: TimeParts::default(),
        finding: None,
    };
    let mut parts = vec![
        part(Place::Stage, 1230.0, 1251.0),
        part(Place::Edge, 0.5, 102.0),
        part(Place::TokenReturn, 41.0, 38.0),
    ];
    parts[1].finding =
        Some("the link cuda:0 -> level-zero:0, decode ×204: latency was 102.0 µs in the run".into());
    let rate = ComparedRate {
        what: "tg128".into(),
        phase: Phase::Decode,
        predicted_tokens_per_s: 5500.0,
        measured_tokens_per_s: 635.3,
        deviation: 635.3 / 5500.0 - 1.0,
        finding: None,
    };
    let comparison = Comparison { parts, rates: vec![rate], ..Comparison::default() };
    check("compare", |width| compare::as_table(&comparison, width));
}

#[test]
fn inspect_tables() {
    let model = Model::bundled().unwrap();
    let segments =
        inspect::segments(&model.graph().with_granularity(Granularity::HalfBlock), Activations::Int8)
            .unwrap();
    check("inspect", |width| inspect::summary(&model, width) + &inspect::segment_table(&segments, width));
    check("inspect_tensors", |width| first_lines(&inspect::tensor_table(&model, width)));
}

#[test]
fn calibrate_tables() {
    let profile = json!({
        "ragtag_profile": ragtag_planner::cost::PROFILE_VERSION,
        "identity": {
            "device": "cuda:0", "name": "NVIDIA H200", "driver": "580", "units": 132, "together": 1,
            "kernels": "", "shape": "", "activations": "int8", "kv": "f16",
        },
        "measured_unix_s": 0,
        "timed_for": { "chunk": 512, "sequences": 8 },
        "stage_us": 12.3,
        "hand_over_us": 4.5,
        "host_latency_us": 6.7,
        "host_bandwidth_bytes_per_s": 55e9,
        "token_return": { "latency_us": 21.0, "row_us": 0.9 },
        "roofline": { "bandwidth_bytes_per_s": 3.9e12, "flops_per_s": 812e12, "launch_us": 5.0 },
        "kinds": [{
            "key": {
                "kind": "block", "flops_per_row": 40_000_000, "flops_per_row_position": 8192,
                "read_bytes": 120_000_000, "read_bytes_per_row": 0, "kv_bytes_per_position": 4096,
            },
            "samples": [
                { "at": { "rows": 1, "sequences": 1, "positions": 256.0 }, "median_us": 45.6, "spread_us": 0.4, "count": 9 },
                { "at": { "rows": 512, "sequences": 1, "positions": 256.0 }, "median_us": 1234.0, "spread_us": 7.8, "count": 5 },
            ],
        }],
    });
    let profiles = vec![("cuda:0".into(), Arc::new(from_value(profile).unwrap()))];
    let mut calibration = Calibration { profiles, ..Calibration::default() };
    calibration.links = link_report();
    check("calibrate", |width| calibrate::as_table(&calibration, width));
}

#[test]
fn selftest_table() {
    let outcome = |name: &str, verdict, class| Outcome {
        name: name.into(),
        verdict,
        class: Some(class),
        duration_us: 1_500_000,
    };
    let passed = |error| Verdict::Passed { relative_error: Some(error) };
    let report = |adapter| ragtag_conformance::Report {
        adapter,
        tests: vec![
            outcome("kernel/add", passed(2e-7), NumericsClass::Exact),
            outcome("kernel/matmul/Q4_K", passed(3e-3), NumericsClass::Fast),
            outcome(
                "kernel/attention",
                Verdict::Skipped { reason: "no matrix units".into() },
                NumericsClass::Fast,
            ),
            outcome(
                "memory/fill",
                Verdict::Failed { why: "byte 4 is 0, not 7".into() },
                NumericsClass::Exact,
            ),
        ],
    };
    let [cuda, vulkan, ..] = adapters();
    let found = SelfTest {
        ragtag_selftest: 1,
        ragtag: "0.1.0",
        os: "linux",
        arch: "x86_64",
        started_unix_s: 0,
        only: String::new(),
        shapes: 2,
        seed: 1,
        reports: vec![report(cuda), report(vulkan)],
        absent: vec![Absent { backend: "hip".into(), cause: "no such library".into() }],
    };
    check("selftest", |width| selftest::as_text(&found, width));
}

#[test]
fn simulate_tables() {
    let times = json!({ "count": 64, "mean": 12_345.6, "p50": 11_000.0, "p90": 21_000.0, "p99": 1_234_567.0, "max": 2e6 });
    let computed = Computed { micro_batches: 100, rows: 800, busy_ns: 123_000_000, ..Computed::default() };
    let stage = |device: &str| {
        json!({
            "device": device, "utilisation": 0.87, "bubble": 0.13, "download_utilisation": 0.01,
            "prefill": computed, "decode": computed, "queue": { "mean": 1.25, "max": 4 },
        })
    };
    let summary = json!({
        "finished": 62, "cut_short": 1, "refused": 2, "prompt_tokens": 8192, "new_tokens": 4096,
        "duration_us": 3_400_000.0, "requests_per_s": 18.2, "prefill_tokens_per_s": 2409.4, "decode_tokens_per_s": 1204.7,
        "first_token_us": times, "between_tokens_us": times, "request_us": times,
        "waiting_requests": { "mean": 0.5, "max": 3 },
        "stages": [stage("cuda:0"), stage("level-zero:0")],
        "links": [{ "from": "cuda:0", "to": "level-zero:0", "utilisation": 0.02, "crossings": 200, "bytes": 1_228_800 }],
        "shared_links": [{ "name": "host memory", "utilisation": 0.031 }],
        "spans": [], "dropped_spans": 0,
    });
    let (plan, summary) = (plan(), from_value::<SimSummary>(summary).unwrap());
    check("simulate", |width| simulate::as_table(&plan, &summary, width));
}

#[test]
fn cards_table() {
    check("cards", |width| first_lines(&cards::as_table(width)));
}

#[test]
fn tokenize_table() {
    let model = Model::bundled().unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let tokens = tokenize::described(tokenizer, &tokenizer.encode("Once upon a time,\n“ж”", true).unwrap());
    check("tokenize", |width| tokenize::as_table(&tokens, width));
}
