//! Creates the charts of a report as data, which other modules draw.

use super::chart::{Bar, Chart, Row, Tick, ticks};
use super::gantt::edge_name;
use super::load::{Beat, Load, share};
use super::words::{bytes, count, deviation, edge_routes, labels, mark, named_stages, percent, time};
use super::{Gantt, GanttKind, GanttSource};
use ragtag_planner::plan::{Place, Plan, PlanStage, PredictedTimes};
use ragtag_scheduler::compare::{ComparedPart, Comparison, Phase, TOLERANCE};

/// CSS classes of the colors for stages and micro-batches. Numbers beyond the last color start over at the
/// first one.
const COLOURS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// Creates a chart that shows the segments on each device as bars to scale, and the unused devices.
pub(super) fn stages(plan: &Plan) -> Chart {
    let segments = f64::from(plan.model.segments);
    let stage = |(at, (name, stage)): (usize, (String, &PlanStage))| {
        let (first, last) = (stage.segments.first(), stage.segments.last());
        let what = contents(plan, stage);
        let number = count((last - first) as usize + 1, "segment");
        let streamed = match stage.streamed.len() {
            0 => String::new(),
            streamed => format!(", {streamed} streamed"),
        };
        Row {
            label: format!("{name} · {}", stage.device),
            note: format!("{what}, {}{streamed}", bytes(stage.memory_bytes.weights)),
            lanes: 1,
            bars: vec![Bar {
                lane: 0,
                from: share(f64::from(first), segments),
                to: share(f64::from(last) + 1.0, segments),
                class: colour(at),
                label: stage.segments.to_string(),
                title: format!("stage {name} on {}: {number}, {what}{streamed}", stage.device),
            }],
        }
    };
    let left_out = plan.explanation.left_out_alike().into_iter().map(|alike| Row {
        label: labels(&alike),
        note: "left out".into(),
        lanes: 1,
        bars: Vec::new(),
    });
    Chart {
        title: "Segments on devices".into(),
        rows: named_stages(plan).enumerate().map(stage).chain(left_out).collect(),
        ticks: segment_ticks(plan.model.segments),
        legend: Vec::new(),
    }
}

/// Describes the segments of a stage in words.
fn contents(plan: &Plan, stage: &PlanStage) -> String {
    let (first, last) = (stage.segments.first(), stage.segments.last());
    if first == last {
        format!("segment {first} of {}", plan.model.segments)
    } else {
        format!("segments {first}–{last} of {}", plan.model.segments)
    }
}

fn segment_ticks(segments: u32) -> Vec<Tick> {
    let mut ticks = ticks(f64::from(segments), |value| format!("{value}"));
    ticks.retain(|tick| tick.label.parse::<u32>().is_ok());
    ticks
}

/// Creates a chart of the predicted utilization of stages and edges, in decode and in prefill.
pub(super) fn work(plan: &Plan) -> Chart {
    let beat = Beat::of(plan);
    let bottleneck = plan.explanation.bottleneck;
    let is = |place: Place, index: usize| {
        bottleneck.busy_us > 0.0 && bottleneck.place == place && bottleneck.index == index
    };
    let mut rows = Vec::new();
    for (at, (name, stage)) in named_stages(plan).enumerate() {
        let label = format!("{name} · {}", stage.device);
        rows.push(busy(label, "computing", stage.predicted, beat, is(Place::Stage, at)));
        if let (Some(edge), Some(next)) = (plan.edges.get(at), plan.stages.get(at + 1)) {
            let label = edge_name(&stage.device, &next.device);
            rows.push(busy(label, &edge_routes(edge), edge.predicted, beat, is(Place::Edge, at)));
        }
    }
    if plan.token_return.decode_us > 0.0 {
        let is_bottleneck = is(Place::TokenReturn, bottleneck.index);
        rows.push(busy(
            "token return".into(),
            "logits out, tokens in",
            plan.token_return,
            beat,
            is_bottleneck,
        ));
    }
    Chart {
        title: "Utilization".into(),
        rows,
        ticks: [0.0, 0.25, 0.5, 0.75, 1.0].map(|at| Tick { at, label: percent(at) }).into(),
        legend: vec![("decode", "decode, one micro-batch"), ("prefill", "prefill, one chunk")],
    }
}

fn busy(label: String, how: &str, times: PredictedTimes, beat: Beat, bottleneck: bool) -> Row {
    let Load { decode, prefill } = beat.load(times);
    let bar = |lane, class, name: &str, load: f64, us: f64| Bar {
        lane,
        from: 0.0,
        to: load,
        class,
        label: String::new(),
        title: format!("{label}, {how}, {name}: {}, busy {}", time(us), percent(load)),
    };
    let bars = vec![
        bar(0, "decode", "decode", decode, times.decode_us),
        bar(1, "prefill", "prefill", prefill, times.prefill_us),
    ];
    let note = format!(
        "{} · {}; {} · {}",
        time(times.decode_us),
        percent(decode),
        time(times.prefill_us),
        percent(prefill)
    );
    let label = if bottleneck { format!("▶ {label} (bottleneck)") } else { label };
    Row { label, note, lanes: 2, bars }
}

/// Creates a chart of the memory that each stage uses on its device.
pub(super) fn memory(plan: &Plan) -> Chart {
    let largest = plan.all_stages().map(|s| s.memory_bytes.available.max(s.memory_bytes.total)).max();
    let largest = largest.unwrap_or(0) as f64;
    let row = |(name, stage): (String, &PlanStage)| {
        let memory = &stage.memory_bytes;
        let free = memory.available.saturating_sub(memory.total);
        let parts = [
            ("weights", "weights", memory.weights),
            ("staging", "arenas", memory.arenas),
            ("kv", "KV cache", memory.kv),
            ("scratch", "scratch and slots", memory.scratch.saturating_add(memory.slots)),
            ("staging", "staging", memory.staging),
            ("free", "free", free),
        ];
        let mut from = 0.0;
        let bars = parts.into_iter().filter(|part| part.2 > 0).map(|(class, name, size)| {
            let start = from;
            from += size as f64;
            Bar {
                lane: 0,
                from: share(start, largest),
                to: share(from, largest),
                class,
                label: if class == "free" { format!("{} free", bytes(size)) } else { bytes(size) },
                title: format!("{}, {name}: {}", stage.device, bytes(size)),
            }
        });
        Row {
            label: format!("{name} · {}", stage.device),
            note: format!(
                "{} of {} · {}",
                bytes(memory.total),
                bytes(memory.available),
                percent(memory.total as f64 / memory.available.max(1) as f64)
            ),
            lanes: 1,
            bars: bars.collect(),
        }
    };
    Chart {
        title: "Memory of each device".into(),
        rows: named_stages(plan).map(row).collect(),
        ticks: byte_ticks(largest),
        legend: vec![
            ("weights", "weights"),
            ("kv", "KV cache"),
            ("scratch", "scratch and slots"),
            ("staging", "staging"),
            ("free", "free"),
        ],
    }
}

/// Creates ticks from 0 to `end` bytes, at round values of a suitable binary unit.
fn byte_ticks(end: f64) -> Vec<Tick> {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let (name, unit) = units
        .map(|(name, bits)| (name, (1u64 << bits) as f64))
        .into_iter()
        .find(|(_, size)| end >= *size)
        .unwrap_or(("B", 1.0));
    ticks(end / unit, |value| format!("{value} {name}"))
}

/// Maximum number of spans in a chart. A chart with more spans would be unreadable, and its file would be
/// several megabytes in size.
const SPANS: usize = 1500;

/// Creates a Gantt chart of a timeline.
pub(super) fn timeline(gantt: &Gantt) -> Chart {
    let mut spans: Vec<_> =
        gantt.spans.iter().filter(|s| s.start_us.is_finite() && s.end_us.is_finite()).collect();
    spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    spans.truncate(SPANS);
    let end_us = spans.iter().map(|span| span.end_us).fold(0.0, f64::max);
    let mut rows: Vec<Row> = gantt
        .rows
        .iter()
        .map(|row| Row { label: format!("{} · {}", row.device, row.lane), lanes: 1, ..Row::default() })
        .collect();
    for span in spans {
        let Some(row) = rows.get_mut(span.row) else { continue };
        let kind = match span.kind {
            GanttKind::Prefill => "prompt chunk",
            GanttKind::Decode => "decode step",
            GanttKind::Crossing => "activation",
            GanttKind::TokenReturn => "logits and tokens",
            GanttKind::Weights => "weights",
        };
        let number = span.micro_batch.map(|number| number.to_string());
        let title = format!(
            "{}: {kind} {} from {} to {}, {} long",
            row.label,
            number.as_deref().unwrap_or(""),
            time(span.start_us),
            time(span.end_us),
            time(span.end_us - span.start_us)
        );
        row.bars.push(Bar {
            lane: 0,
            from: share(span.start_us, end_us),
            to: share(span.end_us, end_us),
            class: span.micro_batch.map_or("staging", |number| colour((number % 6) as usize)),
            label: number.unwrap_or_default(),
            title,
        });
    }
    rows.retain(|row| !row.bars.is_empty());
    let source = match gantt.source {
        GanttSource::Estimated => "estimated from the plan",
        GanttSource::Simulated => "simulated",
        GanttSource::Measured => "measured",
    };
    Chart {
        title: format!("{}, {source}", gantt.title),
        rows,
        ticks: ticks(end_us, mark),
        legend: Vec::new(),
    }
}

/// Creates a chart for decode and a chart for prefill. They compare the predicted with the measured times of
/// the micro-batches that ran.
pub(super) fn compared(comparison: &Comparison) -> [Chart; 2] {
    let of = |phase: Phase| {
        let mut parts: Vec<_> = comparison.parts.iter().filter(|part| part.phase == phase).collect();
        // Each edge comes after its stage. The token return comes last.
        parts.sort_by_key(|part| (part.place == Place::TokenReturn, part.index, part.place != Place::Stage));
        parts
    };
    [
        comparison_chart("Decode, one micro-batch on average", &of(Phase::Decode)),
        comparison_chart("Prefill, one micro-batch on average", &of(Phase::Prefill)),
    ]
}

fn part_name(part: &ComparedPart) -> String {
    match part.place {
        Place::Stage if part.is_prefill_stage => format!("prefill · {}", part.device),
        Place::Stage => format!("{} · {}", part.index, part.device),
        Place::TokenReturn => "token return".into(),
        Place::Edge | Place::SharedLink => edge_name(&part.device, part.to.as_deref().unwrap_or("")),
    }
}

fn comparison_chart(title: &str, parts: &[&ComparedPart]) -> Chart {
    let both = parts.iter().flat_map(|part| [part.predicted_us, part.measured_us]);
    let end_us = both.filter(|us| us.is_finite()).fold(0.0, f64::max);
    let row = |part: &&ComparedPart| {
        let (label, predicted, measured) = (part_name(part), &part.predicted_us, &part.measured_us);
        let bar = |lane, class, name: &str, us: f64| Bar {
            lane,
            from: 0.0,
            to: share(us, end_us),
            class,
            label: String::new(),
            title: format!("{label}, {name}: {}", time(us)),
        };
        let off = part.deviation.abs() > TOLERANCE;
        Row {
            label: label.clone(),
            note: format!(
                "{} → {} · {}{}",
                time(*predicted),
                time(*measured),
                deviation(part.deviation),
                if off { " ⚠" } else { "" }
            ),
            lanes: 2,
            bars: vec![
                bar(0, "predicted", "predicted", *predicted),
                bar(1, if off { "off" } else { "measured" }, "measured", *measured),
            ],
        }
    };
    Chart {
        title: title.into(),
        rows: parts.iter().map(row).collect(),
        ticks: ticks(end_us, mark),
        legend: vec![
            ("predicted", "predicted"),
            ("measured", "measured"),
            ("off", "measured, off by more than 15 %"),
        ],
    }
}
