//! Tests drawings of plans. An XML parser, Graphviz and a browser must be able to read them, hostile names
//! must be escaped, and the content must match the plan. The test writes the pages to `tmp` in the target
//! folder, for inspection.

use super::support::{ragtag, within};
use ragtag::compare::{ComparedPart, ComparedRate, Comparison, Phase, TimeParts};
use ragtag::pictures::{self, BarStyle, Baseline, Gantt, GanttKind, GanttSpan, Rates, Report};
use ragtag::{
    Activations, AdapterKind, DeviceFacts, FigureSource, KvType, LinkReport, Model, Objective, Plan, Planner,
    Workload,
};
use ragtag_graph::execution::KvUse;
use ragtag_planner::split::Span;
use ragtag_planner::{
    Alternative, BindingLimit, Bottleneck, Explanation, FigureCount, LeftOut, PLAN_VERSION, Place, PlanEdge,
    PlanModel, PlanPaths, PlanStage, PredictedRun, PredictedTimes, PrefillStage, StageMemory,
};
use ragtag_transfer::Route;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

/// Model name that contains special characters of every output format.
const HOSTILE: &str = "</title><script>alert(1)</script>\"'&]]>\\n\u{0}\u{1b}[2J\u{202e}{}<!--";
/// Form of [`HOSTILE`] that the drawings display.
const SHOWN: &str = "</title><script>alert(1)</script>\"'&]]>\\n\u{fffd}\u{fffd}[2J\u{fffd}{}<!--";
/// Element ids of the sections of a page.
const SECTIONS: [&str; 6] = ["stages", "links", "memory", "timeline", "alternatives", "reasons"];

const GIB: u64 = 1 << 30;

// ---- plans to draw
// ------------------------------------------------------------------------------------------------

fn times(decode_us: f64, prefill_us: f64) -> PredictedTimes {
    PredictedTimes { decode_us, prefill_us }
}

/// Returns a plan with `stages` equal stages over 82 segments. Its explanation contains all optional parts.
fn synthetic(stages: u32, name: &str, label: impl Fn(u32) -> String) -> Plan {
    let cut = |at: u32| at * 82 / stages;
    let stage = |at: u32| PlanStage {
        device: label(at),
        segments: Span::new(cut(at), cut(at + 1) - 1).unwrap(),
        streamed: Vec::new(),
        arenas: None,
        from_file: Vec::new(),
        memory_bytes: StageMemory {
            weights: (5 + u64::from(at)) * GIB,
            arenas: 0,
            kv: 2 * GIB,
            scratch: GIB / 2,
            slots: GIB / 4,
            staging: GIB / 64,
            total: (8 + u64::from(at)) * GIB,
            available: 24 * GIB,
        },
        predicted: times(8000.0 - 300.0 * f64::from(at), 42_000.0 + 900.0 * f64::from(at)),
    };
    let edge = |at: u32| (Route::HOST_STAGED.into(), times(40.0 + f64::from(at), 3_400.0));
    let other = |split: &str, why: &str, score_us: f64| Alternative {
        split: split.into(),
        score_us,
        decode_tokens_per_s: 1e9 / score_us,
        prefill_tokens_per_s: 7e9 / score_us,
        why: why.into(),
    };
    let left_out = |device: &str, constrained: bool| LeftOut {
        device: device.into(),
        best_with: None,
        tried: true,
        constrained,
    };
    let explanation = Explanation {
        score_us: 1_610_000.0,
        bound_us: 1_570_000.0,
        bottleneck: Bottleneck { place: Place::Stage, index: 0, busy_us: 1_610_000.0, share: 0.36 },
        prefill_bubble: 0.2,
        decode_idle: 0.1,
        left_out: vec![
            LeftOut {
                device: "wgpu:3".into(),
                best_with: Some(other("0-81=wgpu:3", "the best with it", 4.2e6)),
                tried: true,
                constrained: false,
            },
            left_out("cpu:0", false),
            left_out("rtx4090:3", true),
            left_out("rtx4090:4", true),
            left_out("rtx4090:5", true),
        ],
        alternatives: vec![
            other("0-40=vulkan:0,41-81=cuda:0", "even layers", 1_930_000.0),
            other("0-81=cuda:0", "best single device", 3_000_000.0),
        ],
        bindings: vec![BindingLimit { of: "vulkan:1".into(), more: "8 GiB more memory".into(), gain: 0.14 }],
        figures: vec![
            FigureCount { source: FigureSource::Measured, figures: 40 },
            FigureCount { source: FigureSource::Datasheet, figures: 3 },
        ],
    };
    Plan {
        ragtag_plan: PLAN_VERSION,
        model: PlanModel {
            name: name.into(),
            digest: "5f1d3c0a9b77e2".into(),
            segments: 82,
            granularity: ragtag_graph::Granularity::Block,
        },
        objective: Objective::Throughput,
        workload: Workload::default(),
        device_options: None,
        context: 8192,
        sequences: 4 * stages,
        kv_blocks: 2048 * stages,
        kv_use: KvUse::default(),
        chunk: 256,
        chunks: None,
        decode_rows: 4,
        decode_groups: stages,
        credits: stages + 1,
        slots: 3,
        kv: KvType::F16,
        activations: Activations::Int8,
        wire_type: ragtag::WireType::F32,
        family: ragtag::Family::OneStage,
        stages: (0..stages).map(stage).collect(),
        prefill_stage: None,
        host_memory_bytes: Default::default(),
        other_hosts: Vec::new(),
        edges: PlanEdge::between((1..stages).map(edge)),
        paths: PlanPaths::through(stages as usize),
        token_return: times(120.0, 0.0),
        predicted: PredictedRun {
            decode_tokens_per_s: 4.0 / 8000.0 * 1e6,
            prefill_tokens_per_s: 256.0 / (42_000.0 + 900.0 * f64::from(stages - 1)) * 1e6,
            prefill_rows: 0,
            first_token_us: 412_345.6,
            token_us: 8000.0 * f64::from(stages),
        },
        explanation,
        reasons: vec![
            "objective: throughput, for requests of 512 prompt and 128 generated tokens".into(),
            "bottleneck: the first stage, 1.6 s a request, 36 % of all work".into(),
        ],
    }
}

/// Returns a plan in which `cuda:0` computes long prompts, and the processor decodes segments 41 to 81.
fn with_prefill_stage() -> Plan {
    let mut plan = synthetic(2, "big", |at| ["cuda:0", "cpu:0"][at as usize].into());
    let mut stage = PlanStage {
        segments: Span::new(0, 81).unwrap(),
        streamed: (41..81).collect(),
        predicted: times(0.0, 50_000.0),
        ..plan.stages[0].clone()
    };
    (stage.memory_bytes.arenas, stage.memory_bytes.available) = (3 * GIB, 16 * GIB);
    plan.stages.iter_mut().for_each(|stage| stage.predicted.prefill_us = 0.0);
    plan.edges[0].predicted.prefill_us = 0.0;
    plan.predicted.prefill_tokens_per_s = 256.0 / 50_000.0 * 1e6;
    plan.prefill_stage = Some(PrefillStage { stage, from_tokens: 96 });
    plan
}

/// Returns the planner's plan for the bundled model on `devices` assumed devices.
fn planned(devices: u32) -> Plan {
    let facts = |at: u32| {
        let kind = if at.is_multiple_of(2) { AdapterKind::Cpu } else { AdapterKind::Integrated };
        DeviceFacts::assumed(&format!("made-up:{at}"), kind, 1, 8 << 20, FigureSource::User)
    };
    let model = Model::bundled().unwrap();
    Planner::new(&model).device_facts((0..devices).map(facts).collect()).sequences(2).plan().unwrap()
}

/// Returns a comparison of predicted with measured times for a run whose micro-batches differ from those of
/// the plan's request.
fn measured(stages: usize) -> Comparison {
    let part = |place, index: usize, phase, predicted_us: f64, measured_us: f64| ComparedPart {
        place,
        index,
        is_prefill_stage: false,
        device: format!("cuda:{index}"),
        to: (place == Place::Edge).then(|| format!("cuda:{}", index + 1)),
        phase,
        micro_batches: 9,
        rows: 4.0,
        bytes: 0.0,
        predicted_us,
        measured_us,
        spread: None,
        waited_us: 0.0,
        deviation: measured_us / predicted_us - 1.0,
        parts: TimeParts::default(),
        finding: None,
    };
    let stage = |index: usize| {
        let of =
            |phase, predicted_us, measured_us| part(Place::Stage, index, phase, predicted_us, measured_us);
        [of(Phase::Decode, 8000.0, 7000.0 + 900.0 * index as f64), of(Phase::Prefill, 42_000.0, 45_000.0)]
    };
    let mut parts: Vec<_> = (0..stages).flat_map(stage).collect();
    parts.extend([
        part(Place::Edge, 0, Phase::Decode, 41.0, 152.0),
        part(Place::Edge, 0, Phase::Prefill, 3_400.0, 3_600.0),
        part(Place::Edge, 1, Phase::Decode, 42.0, 38.0),
        part(Place::TokenReturn, 0, Phase::Decode, 120.0, 120.0),
    ]);
    parts[6].finding = Some("the link cuda:0 -> cuda:1, decode ×3.7: its latency".into());
    let rate = ComparedRate {
        what: "tg64".into(),
        phase: Phase::Decode,
        predicted_tokens_per_s: 500.0,
        measured_tokens_per_s: 470.0,
        deviation: -0.06,
        finding: None,
    };
    Comparison { parts, rates: vec![rate], ..Comparison::default() }
}

/// Returns the test pages, each with a name and the report that it shows.
fn reports() -> Vec<(&'static str, Report)> {
    let long = |at: u32| format!("level-zero:{at}-Intel-Arc-A770-Graphics-16GB-(DG2)-at-0000:{at:02x}:00.0");
    let mut run = Report::new(synthetic(3, "Llama-3.3-70B-Instruct-Q4_K_M", |at| format!("cuda:{at}")));
    run.measured = Some(measured(3));
    run.baselines = vec![Baseline {
        name: "even layers".into(),
        split: "0-26=cuda:0,27-53=cuda:1,54-81=cuda:2".into(),
        predicted: Rates { decode_tokens_per_s: Some(400.0), prefill_tokens_per_s: Some(5000.0) },
        measured: Rates { decode_tokens_per_s: Some(390.0), prefill_tokens_per_s: None },
    }];
    vec![
        ("bundled-1", Report::new(planned(1))),
        ("bundled-2", Report::new(planned(2))),
        ("big-1", Report::new(synthetic(1, "Llama-3.3-70B-Instruct-Q4_K_M", |_| "cuda:0".into()))),
        ("big-5", Report::new(synthetic(5, "Llama-3.3-70B-Instruct-Q4_K_M", |at| format!("vulkan:{at}")))),
        ("long-8", Report::new(synthetic(8, &"a-model-with-a-very-long-name-".repeat(6), long))),
        ("hostile", Report::new(synthetic(2, HOSTILE, |at| format!("{at}{HOSTILE}")))),
        ("prefill-stage", Report::new(with_prefill_stage())),
        ("run-3", run),
    ]
}

// ---- drawings--
// ------------------------------------------------------------------------------------------------

/// Returns the body of a page as XML.
fn body(page: &str) -> &str {
    let (start, end) = (page.find("<body>").unwrap(), page.rfind("</body>").unwrap());
    &page[start..end + "</body>".len()]
}

fn texts(document: &roxmltree::Document<'_>) -> String {
    document.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect::<Vec<_>>().join("\n")
}

#[test]
fn pages_have_all_sections_and_load_nothing() {
    for (name, report) in reports() {
        let page = pictures::html(&report);
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html")), &page).unwrap();
        let document = roxmltree::Document::parse(body(&page)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let sections: Vec<_> = document
            .descendants()
            .filter(|n| n.has_tag_name("section"))
            .map(|n| n.attribute("id").unwrap())
            .filter(|id| *id != "measured")
            .collect();
        assert_eq!(sections, SECTIONS, "{name}");
        assert_eq!(page.contains("id=\"measured\""), report.measured.is_some(), "{name}");
        for node in document.descendants().filter(|n| n.is_element()) {
            assert!(
                !["script", "img", "link", "iframe", "a"].contains(&node.tag_name().name()),
                "{name}: {node:?}"
            );
            let loads = node
                .attributes()
                .find(|a| matches!(a.name(), "src" | "href" | "style") || a.name().starts_with("on"));
            assert!(loads.is_none(), "{name}: {loads:?}");
        }
        let style = page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        assert!(!style.contains("url(") && !style.contains("@import") && !style.contains('<'), "{name}");
    }
}

#[test]
fn pages_show_the_figures_of_the_plan() {
    let report = Report::new(synthetic(3, "big", |at| format!("cuda:{at}")));
    let page = pictures::html(&report);
    let document = roxmltree::Document::parse(body(&page)).unwrap();
    let text = texts(&document);
    let expected = [
        "500",
        "tokens/s predicted",
        "412 ms",
        "2.5 %",
        "0 · cuda:0",
        "cuda:1 → cuda:2",
        "segments 0–26 of 82",
        "8.00 ms · 100 %; 42.0 ms · 96 %",
        "8 GiB of 24 GiB · 33 %",
        "through host memory (4 pieces of 256 KiB)",
        "20 % of a burst",
        "even layers",
        "1.93 s (+20 %)",
        "best single device",
        "none fits",
        "the constraints allow none",
        "with rtx4090:3 to rtx4090:5",
        "8 GiB more memory on vulkan:1 would make it 14.0 % faster.",
        "40 figures measured",
        "▶ 0 · cuda:0 (bottleneck)",
        "A burst of 6 prompt chunks, estimated from the plan",
        "3 decode steps of 3 groups of sequences, estimated from the plan",
    ];
    let joined = text.replace('\n', "");
    for expected in expected {
        assert!(joined.contains(expected), "{expected} is not in\n{text}");
    }
    // The second stage has 27 of the 82 segments, starting at segment 27.
    let bar = document.descendants().find(|n| n.attribute("class") == Some("bar c1")).unwrap();
    assert_eq!((bar.attribute("x"), bar.attribute("width")), (Some("32.927%"), Some("32.927%")));
}

/// Checks that the displayed gap is relative to the planner's own split, or to the bound if that split is
/// unknown.
#[test]
fn the_gap_of_a_users_split_is_relative_to_the_planners_split() {
    let tile = |plan: &Plan| {
        let page = pictures::html(&Report::new(plan.clone()));
        let document = roxmltree::Document::parse(body(&page)).unwrap();
        let name = document.descendants().find(|n| n.has_tag_name("dt") && n.text() == Some("Gap"))?;
        let texts = name.parent().unwrap().descendants().filter(|n| n.is_text()).filter_map(|n| n.text());
        Some(texts.collect::<Vec<_>>().join(" "))
    };
    let mut plan = synthetic(2, "big", |at| format!("cuda:{at}"));
    assert_eq!(
        tile(&plan).unwrap(),
        "Gap 2.5 % at most, to the best plan with one stage per device, as predicted"
    );
    let own =
        Alternative { why: Alternative::PLANNERS_OWN.into(), ..plan.explanation.alternatives[0].clone() };
    plan.explanation.alternatives.push(Alternative { score_us: 1_400_000.0, ..own });
    assert_eq!(tile(&plan).unwrap(), "Gap 15 % to the planner's own split, as predicted");
    plan.explanation = Explanation::default();
    assert_eq!(tile(&plan), None);
}

#[test]
fn reports_a_bottleneck_without_a_bar() {
    let mut plan = planned(2);
    for (place, said) in [
        (Place::Stage, "The longest bar is the bottleneck."),
        (Place::SharedLink, "The bottleneck is a shared link, which has no bar here."),
    ] {
        plan.explanation.bottleneck.place = place;
        assert!(pictures::html(&Report::new(plan.clone())).contains(said), "{place:?}");
    }
}

#[test]
fn shows_predicted_and_measured_side_by_side() {
    let (_, report) = reports().pop().unwrap();
    let page = pictures::html(&report);
    let document = roxmltree::Document::parse(body(&page)).unwrap();
    let section = document.descendants().find(|n| n.attribute("id") == Some("measured")).unwrap();
    let notes: Vec<_> =
        section.descendants().filter(|n| n.has_tag_name("small")).filter_map(|n| n.text()).collect();
    let expected = [
        "tokens/s measured, −6.0 % against 500 predicted",
        "8.00 ms → 7.00 ms · −12 %",
        "41 µs → 152 µs · ×3.7 ⚠",
        "8.00 ms → 7.90 ms · −1.2 %",
        "42 µs → 38 µs · −9.5 %",
        "8.00 ms → 8.80 ms · +10 %",
        "120 µs → 120 µs · ±0 %",
        "42.0 ms → 45.0 ms · +7.1 %",
        "3.40 ms → 3.60 ms · +5.9 %",
        "42.0 ms → 45.0 ms · +7.1 %",
        // The second edge was not measured in prefill.
        "42.0 ms → 45.0 ms · +7.1 %",
    ];
    assert_eq!(notes, expected);
    assert!(texts(&document).contains("the link cuda:0 -> cuda:1, decode ×3.7: its latency"));
    let off = section
        .descendants()
        .filter(|n| n.attribute("class") == Some("bar off") && n.attribute("rx").is_some());
    assert_eq!(off.filter(|n| n.parent().unwrap().has_tag_name("g")).count(), 1);
    assert!(texts(&document).contains("390 tokens/s measured, 400 predicted"));
}

#[test]
fn escapes_hostile_names() {
    let report = Report::new(synthetic(2, HOSTILE, |at| format!("{at}{HOSTILE}")));
    let page = pictures::html(&report);
    assert!(
        !page.contains("<script") && !page.contains(|c: char| c.is_control() && c != '\n'),
        "no control characters and no elements"
    );
    let document = roxmltree::Document::parse(body(&page)).unwrap();
    let heading = document.descendants().find(|n| n.has_tag_name("h1")).unwrap();
    assert_eq!(heading.text(), Some(SHOWN));
    assert!(texts(&document).contains(&format!("1{SHOWN}")));

    let drawing = pictures::svg(&report);
    let document = roxmltree::Document::parse(&drawing).unwrap();
    assert_eq!(document.descendants().find(|n| n.has_tag_name("title")).unwrap().text(), Some(SHOWN));
    assert!(!document.descendants().any(|n| n.has_tag_name("script")));

    let bars = pictures::bars(&report, 100, BarStyle::Blocks);
    assert!(!bars.contains(|c: char| c.is_control() && c != '\n'), "{bars:?}");
}

#[test]
fn drawings_are_xml_and_stay_within_their_sheet() {
    for (name, report) in reports() {
        let drawing = pictures::svg(&report);
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.svg")), &drawing).unwrap();
        let document = roxmltree::Document::parse(&drawing).unwrap_or_else(|e| panic!("{name}: {e}"));
        let number = |node: roxmltree::Node<'_, '_>, name: &str| {
            node.attribute(name).unwrap_or("0").parse::<f64>().unwrap()
        };
        let height = number(document.root_element(), "height");
        for bar in document.descendants().filter(|n| n.has_tag_name("rect")) {
            let shift = |node: &roxmltree::Node<'_, '_>| -> (f64, f64) {
                let Some(shift) = node.attribute("transform") else { return (0.0, 0.0) };
                let (x, y) =
                    shift.trim_start_matches("translate(").trim_end_matches(')').split_once(' ').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            let (x, y) = bar.ancestors().map(|n| shift(&n)).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let (right, bottom) =
                (x + number(bar, "x") + number(bar, "width"), y + number(bar, "y") + number(bar, "height"));
            assert!(right <= 960.0 && bottom <= height, "{name}: {right} {bottom}");
        }
    }
}

// ---- timelines
// ----------------------------------------------------------------------------------------------------

#[test]
fn estimated_timelines_match_a_pipeline() {
    let mut plan = synthetic(2, "small", |at| format!("cpu:{at}"));
    plan.stages[0].predicted = times(10.0, 100.0);
    plan.stages[1].predicted = times(20.0, 200.0);
    plan.edges[0].predicted = times(5.0, 50.0);
    plan.token_return = times(3.0, 0.0);
    let [prefill, decode]: [Gantt; 2] = Gantt::estimated(&plan).try_into().unwrap();
    let of = |gantt: &Gantt, row: usize| -> Vec<(u64, f64, f64)> {
        let spans = gantt.spans.iter().filter(|s| s.row == row);
        spans.map(|s| (s.micro_batch.unwrap(), s.start_us, s.end_us)).collect()
    };
    // The second stage is slower. The first chunk reaches it after 150 µs, and each later chunk waits there
    // for the previous one.
    assert_eq!(of(&prefill, 0)[..2], [(0, 0.0, 100.0), (1, 100.0, 200.0)]);
    assert_eq!(of(&prefill, 1)[..2], [(0, 100.0, 150.0), (1, 200.0, 250.0)]);
    assert_eq!(of(&prefill, 2)[..2], [(0, 150.0, 350.0), (1, 350.0, 550.0)]);
    assert_eq!(prefill.end_us(), 150.0 + 6.0 * 200.0);
    // There are two groups. The first group's tokens return at 38 µs, and its second step starts then.
    assert_eq!(of(&decode, 0)[..3], [(0, 0.0, 10.0), (1, 10.0, 20.0), (0, 38.0, 48.0)]);
    assert_eq!(of(&decode, 2)[..3], [(0, 15.0, 35.0), (1, 35.0, 55.0), (0, 55.0, 75.0)]);
    assert_eq!(of(&decode, 3)[..2], [(0, 35.0, 38.0), (1, 55.0, 58.0)]);
    let rows: Vec<_> = decode.rows.iter().map(|r| r.device.as_str()).collect();
    assert_eq!(rows, ["cpu:0", "cpu:0 → cpu:1", "cpu:1", "host"]);
}

#[test]
fn a_prefill_stage_is_drawn() {
    let mut report = Report::new(with_prefill_stage());
    let bars = pictures::bars(&report, 80, BarStyle::Ascii);
    let last = bars.lines().last().unwrap();
    assert!(last.starts_with("prefill cuda:0, 40 ") && last.contains(" 100 %"), "{bars}");
    let page = pictures::html(&report);
    let text = texts(&roxmltree::Document::parse(body(&page)).unwrap()).replace('\n', "");
    for part in [
        "Prompts from 96 tokens run on cuda:0 alone, with streamed weights of 40 segments.",
        "prefill · cuda:0",
        "segments 0–81 of 82, 5 GiB, 40 streamed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(pictures::dot(&report).contains("stage_prefill [label=\"stage prefill: segments 0-81"));
    // All prompt chunks are on the device of the prefill stage, one after another.
    let prefill = &Gantt::estimated(&report.plan)[0];
    assert!(prefill.spans.iter().all(|span| prefill.rows[span.row].device == "cuda:0"));
    assert_eq!((prefill.spans.len(), prefill.end_us()), (6, 6.0 * 50_000.0));
    report.plan.prefill_stage.iter_mut().for_each(|prefill| prefill.stage.device = HOSTILE.into());
    assert!(!pictures::html(&report).contains(HOSTILE) && !pictures::dot(&report).contains('\u{1b}'));
}

#[test]
fn long_timelines_and_invalid_figures_still_give_a_page() {
    let mut report = Report::new(synthetic(2, "big", |at| format!("cuda:{at}")));
    let span = |at: u64| GanttSpan {
        row: (at % 3) as usize,
        kind: GanttKind::Decode,
        micro_batch: Some(at),
        start_us: at as f64,
        end_us: at as f64 + 1.0,
    };
    report.timelines[0].spans = (0..200_000).map(span).collect();
    report.timelines[1].spans[0].end_us = f64::NAN;
    report.timelines[1].spans[1].row = 99;
    report.plan.predicted.decode_tokens_per_s = f64::INFINITY;
    report.plan.stages[0].predicted.decode_us = f64::NAN;
    report.plan.stages[1].memory_bytes.total = u64::MAX;
    let page = pictures::html(&report);
    assert!(page.len() < 1 << 20, "{}", page.len());
    assert!(!page.contains("NaN") && !page.contains("inf%"));
    roxmltree::Document::parse(body(&page)).unwrap();
    roxmltree::Document::parse(&pictures::svg(&report)).unwrap();
    pictures::bars(&report, 80, BarStyle::Ascii);
    pictures::dot(&report);
}

// ---- the terminal
// -------------------------------------------------------------------------------------------------

#[test]
fn bars_fit_the_width_and_character_set_of_the_terminal() {
    let report = Report::new(synthetic(2, "big", |at| format!("cuda:{at}")));
    let ascii = "
                    decode, busy       prefill, busy      memory, full
0 cuda:0            ##########  100 %  ##########   98 %  ###.......   33 %
  cuda:0 -> cuda:1  #.........  0.5 %  #.........  7.9 %
1 cuda:1            ##########   96 %  ##########  100 %  ####......   38 %
";
    assert_eq!(pictures::bars(&report, 76, BarStyle::Ascii), ascii[1..]);
    let blocks = pictures::bars(&report, 74, BarStyle::Blocks);
    let second = blocks.lines().nth(2).unwrap();
    assert_eq!(second, "  cuda:0 → cuda:1  ▏·········  0.5 %  ▊·········  7.9 %");
    for (name, report) in reports() {
        for columns in [70, 80, 100, 200] {
            for style in [BarStyle::Ascii, BarStyle::Blocks] {
                let bars = pictures::bars(&report, columns, style);
                let longest = bars.lines().map(|line| line.chars().count()).max().unwrap();
                assert!(longest <= columns, "{name}, {columns}: {longest}\n{bars}");
                assert!(style == BarStyle::Blocks || bars.is_ascii(), "{bars}");
                let prefill = usize::from(report.plan.prefill_stage.is_some());
                assert_eq!(bars.lines().count(), 2 * report.plan.stages.len() + prefill, "{bars}");
            }
        }
    }
}

#[test]
fn the_command_writes_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (html, svg) = (path("plan.html"), path("plan.svg"));
    let plan = ["plan", "--cpu-devices", "2", "--threads", "1", "--split", "0-7=cpu:0,8-13=cpu:1"];
    let ragtag = || {
        let mut command = ragtag();
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm").args(plan).args(["--device", "cpu"]);
        command
    };
    let output = ragtag().args(["--html", &html, "--svg", &svg]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("| stage |")
            && text.contains("\n0 cpu:0 ")
            && text.contains("prefill, busy")
            && text.contains('█'),
        "{text}"
    );
    assert!(std::fs::read_to_string(&html).unwrap().starts_with("<!DOCTYPE html>"));
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file remains");

    let output = ragtag().args(["--dot", "-"]).output().unwrap();
    let dot = String::from_utf8(output.stdout).unwrap();
    assert!(dot.starts_with("digraph plan {") && dot.trim_end().ends_with('}'), "{dot}");
    assert!(dot.contains("stage_0 -> stage_1"), "{dot}");

    ragtag().args(["--json", "--html", "-"]).assert().code(2);
    ragtag().args(["--html", &path("missing/plan.html")]).assert().code(7);
}

// ---- other programs
// -----------------------------------------------------------------------------------------------

/// Returns the path of an installed program, from the environment variable `variable` or from `PATH`. Records
/// a skip if there is none.
fn program(what: &str, variable: &str, names: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = || {
        let folders = std::env::split_paths(&path);
        folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).find(|file| file.is_file())
    };
    let program = named.or_else(found);
    if program.is_none() {
        test_support::skip!(what, "none of {} is in PATH, and {variable} is not set", names.join(", "));
    }
    program
}

#[test]
fn graphviz_draws_the_graph() {
    let Some(program) = program("Graphviz", "RAGTAG_TEST_DOT", &["dot"]) else { return };
    for (name, report) in reports() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.dot");
        std::fs::write(&file, pictures::dot(&report)).unwrap();
        let output = Process::new(&program).arg("-Tsvg").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
        let svg = String::from_utf8(output.stdout).unwrap();
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let document = roxmltree::Document::parse_with_options(&svg, options).unwrap();
        let class =
            |class: &str| document.descendants().filter(|n| n.attribute("class") == Some(class)).count();
        let stages = report.plan.stages.len();
        assert_eq!(class("cluster"), report.plan.all_stages().count(), "{name}");
        assert_eq!(class("edge"), stages, "{name}: edges and the token return");
        if name == "hostile" {
            assert!(texts(&document).contains(SHOWN), "{}", texts(&document));
        }
    }
}

/// Script that checks pages in frames of different widths. It reports missing sections, content that
/// overflows its frame, text wider than its bar or its label, and overlapping axis marks.
const QUESTIONS: &str = r#"
addEventListener('load', () => {
  const found = [];
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, root = page.documentElement, say = what => found.push(frame.title + ': ' + what);
    if (page.body.scrollWidth > frame.clientWidth || root.scrollWidth > frame.clientWidth)
      say('scrolls to ' + root.scrollWidth + ' of ' + frame.clientWidth);
    for (const id of frame.dataset.sections.split(' ').filter(Boolean)) {
      const box = page.getElementById(id)?.getBoundingClientRect();
      if (!box || box.height < 30) say('no section ' + id);
    }
    for (const element of page.querySelectorAll('h1, h2, h3, p, li, td, dd, .label, .row > svg, code, text')) {
      const box = element.getBoundingClientRect();
      if (box.left < -1 || box.right > frame.clientWidth + 1) say('cut: ' + element.outerHTML.slice(0, 200));
    }
    for (const text of page.querySelectorAll('.in-bar')) {
      const bar = text.parentNode.querySelector('rect').getBoundingClientRect(), box = text.getBoundingClientRect();
      if (box.left < bar.left - 1 || box.right > bar.right + 1) say('wider than its bar: ' + text.textContent);
    }
    for (const label of page.querySelectorAll('.link')) {
      const frame = label.querySelector('rect').getBoundingClientRect();
      for (const text of label.querySelectorAll('text')) {
        const box = text.getBoundingClientRect();
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
          say('wider than its label: ' + text.textContent);
      }
    }
    for (const axis of page.querySelectorAll('.row > svg')) {
      const boxes = [...axis.querySelectorAll('.tick')].map(t => t.getBoundingClientRect());
      for (let i = 1; i < boxes.length; i++) if (boxes[i].left < boxes[i - 1].right) say('marks overlap');
    }
  }
  document.body.innerHTML = '<pre id="answer"></pre>';
  document.getElementById('answer').textContent = 'asked\n' + found.join('\n');
});
"#;

/// Loads pages with `sections` into a browser. Returns the problems that [`QUESTIONS`] finds, and the
/// messages on the browser's console.
fn ask(browser: &Path, pages: &[(String, u32, String)], sections: &[&str]) -> Vec<String> {
    let escape = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;");
    let frames = pages.iter().map(|(name, width, page)| {
        format!(
            "<iframe title=\"{} at {width}\" data-sections=\"{}\" style=\"border:0;width:{width}px;height:844px\" srcdoc=\"{}\"></iframe>",
            escape(name),
            sections.join(" "),
            escape(page)
        )
    });
    let frames: String = frames.collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ask.html");
    let head = "<!DOCTYPE html><html><head><meta charset=\"utf-8\"></head><body>";
    std::fs::write(&file, format!("{head}{frames}<script>{QUESTIONS}</script></body></html>")).unwrap();
    let mut command = Process::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"])
        .args(["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null());
    let output = within(300, move || command.output().unwrap());
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answer =
        dom.split("<pre id=\"answer\">asked\n").nth(1).unwrap_or_else(|| panic!("no answer: {dom}\n{log}"));
    let objections =
        answer.split("</pre>").next().unwrap().lines().filter(|line| !line.is_empty()).map(Into::into);
    objections.chain(log.lines().filter(|line| line.contains("CONSOLE")).map(Into::into)).collect()
}

#[test]
fn pages_fit_a_phone_and_a_laptop_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let Some(browser) = program("browser", "RAGTAG_TEST_BROWSER", &names) else { return };
    let mut pages = Vec::new();
    for (name, report) in reports() {
        let page = pictures::html(&report);
        pages.extend([390, 1280].map(|width| (name.to_owned(), width, page.clone())));
    }
    let objections = ask(&browser, &pages, &SECTIONS);
    assert!(objections.is_empty(), "{}", objections.join("\n"));

    // The script must find deliberate problems.
    let (name, width, page) = pages.remove(0);
    let wide = page.replace("<footer>", "<script>throw 1</script><p style=\"width:2000px\">wide</p><footer>");
    let without = wide.replace("id=\"memory\"", "id=\"memories\"");
    let objections = ask(&browser, &[(name, width, without)], &SECTIONS).join("\n");
    for expected in ["scrolls to 2", "cut: &lt;p style", "no section memory", "CONSOLE"] {
        assert!(objections.contains(expected), "{expected} is not in\n{objections}");
    }
}

/// Returns the links between `count` devices. The links to the last device are not verified.
fn link_report(count: usize) -> LinkReport {
    let link = |from: usize, to: usize| {
        let is_verified = to + 1 < count;
        let rate = serde_json::json!({"bytes": 16 << 20, "bytes_per_s": 219.25e9, "both_bytes_per_s": null,
            "busy_bytes_per_s": 2e11, "both_busy_bytes_per_s": null});
        let why = (!is_verified).then_some(HOSTILE);
        let tried = serde_json::json!([{"route": "peer", "why": why, "corrupt": false, "hops": [],
            "rates": []}]);
        serde_json::from_value(serde_json::json!({
            "from": format!("opencl:{from}"), "to": format!("opencl:{to}"),
            "class": {"pcie": {"generation": 5, "width": 16}}, "numa_distance": 21,
            "route": is_verified.then_some("peer"), "latency_us": is_verified.then_some(2.44),
            "rates": if is_verified { vec![rate] } else { Vec::new() },
            "quick": false, "tried": tried, "measured_unix_s": 0,
        }))
        .unwrap()
    };
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let links = pairs.filter(|(from, to)| from != to).map(|(from, to)| link(from, to)).collect();
    LinkReport { links, ..LinkReport::default() }
}

#[test]
fn drawings_of_links_fit_their_sheet_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let drawings: Vec<_> = [2, 3, 4, 8].map(|count| pictures::links(&link_report(count))).into();
    for drawing in &drawings {
        let document = roxmltree::Document::parse(drawing).unwrap();
        assert!(texts(&document).contains("→ opencl:0: peer, 2.4 µs, 219.2 GB/s"), "{drawing}");
        assert!(texts(&document).contains("not verified"), "{drawing}");
        assert!(texts(&document).contains(SHOWN) && !drawing.contains("<script"), "{drawing}");
    }
    let Some(browser) = program("browser", "RAGTAG_TEST_BROWSER", &names) else { return };
    let page = |drawing: &String| {
        let document = roxmltree::Document::parse(drawing).unwrap();
        let width: f64 = document.root_element().attribute("width").unwrap().parse().unwrap();
        let page = format!("<!DOCTYPE html><html><body style=\"margin:0\">{drawing}</body></html>");
        (format!("{width} px"), width.ceil() as u32 + 20, page)
    };
    let mut pages: Vec<_> = drawings.iter().map(page).collect();
    let objections = ask(&browser, &pages, &[]);
    assert!(objections.is_empty(), "{}", objections.join("\n"));

    // The script must find text that is wider than its label.
    pages.truncate(1);
    pages[0].2 = pages[0].2.replace("219.2 GB/s", "219.2 gigabytes per second, measured");
    assert!(ask(&browser, &pages, &[]).join("\n").contains("wider than its label"));
}
