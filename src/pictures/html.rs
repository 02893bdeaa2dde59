//! Draws a report as a self-contained HTML page, which contains no scripts or fonts and loads nothing from
//! the network. The body is also well-formed XML, so that tests can parse it.

use super::chart::{Chart, Row, Width, draw_axis};
use super::words::{self, bytes, count, percent, rate, time};
use super::{Rates, Report, charts};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use ragtag_planner::plan::{Alternative, Explanation, LeftOut, Place, Plan};
use ragtag_planner::wording;
use ragtag_scheduler::compare::ComparedRate;

/// Width of a chart on the narrowest supported phone, in pixels.
const NARROW: f64 = 280.0;

/// Content security policy of the page. It allows only inline styles.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Renders a report as an HTML page.
pub fn html(report: &Report) -> String {
    let report = report.printable();
    let plan = &report.plan;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (plan.model.name) " – Ragtag" }
                style { (PreEscaped(concat!(include_str!("palette.css"), include_str!("page.css")))) }
            }
            body {
                main {
                    (header(plan))
                    @if report.measured.is_some() { (measured(&report)) }
                    (stages(plan))
                    (work(plan))
                    (memory(plan))
                    (timelines(&report))
                    (alternatives(&report))
                    (reasons(plan))
                    footer { "Made by Ragtag " (env!("CARGO_PKG_VERSION")) ". This page loads nothing." }
                }
            }
        }
    };
    page.into_string()
}

fn header(plan: &Plan) -> Markup {
    let predicted = &plan.predicted;
    let devices = count(plan.stages.len(), "device");
    html! {
        header {
            h1 { (plan.model.name) }
            p {
                "Plan for " (words::objective(plan.objective)) " on " (devices) ", for requests of "
                (wording::request(plan.workload, plan.context)) "."
            }
        }
        dl class="tiles" {
            (tile("Decode", &rate(predicted.decode_tokens_per_s), "tokens/s predicted"))
            (tile("Prefill", &rate(predicted.prefill_tokens_per_s), "tokens/s predicted"))
            @if predicted.first_token_us > 0.0 {
                (tile("First token", &time(predicted.first_token_us), "after a request's arrival"))
            }
            @if predicted.token_us > 0.0 {
                (tile("Next token", &time(predicted.token_us), "of each sequence"))
            }
            @if let Some((gap, to)) = gap(plan) { (tile("Gap", &percent(gap), to)) }
        }
        dl class="facts" {
            @for (name, value) in facts(plan) { div { dt { (name) } dd { (value) } } }
        }
    }
}

fn tile(name: &str, value: &str, unit: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) small { (unit) } } } }
}

/// Returns the relative gap between the plan and a better plan, with a description. If the plan uses a user's
/// split and the planner's own split is faster, this is the predicted gap to the planner's split. Otherwise
/// it is the maximum gap to the best placement with one stage per device, or `None` if no bound is known.
fn gap(plan: &Plan) -> Option<(f64, &'static str)> {
    let Explanation { score_us, bound_us, alternatives, .. } = &plan.explanation;
    let own = alternatives.iter().find(|other| other.why == Alternative::PLANNERS_OWN);
    let (best_us, to) = match own {
        Some(own) if own.score_us < *score_us => (own.score_us, "to the planner's own split, as predicted"),
        _ => (*bound_us, "at most, to the best plan with one stage per device, as predicted"),
    };
    (*score_us > 0.0 && best_us > 0.0).then(|| ((score_us / best_us - 1.0).max(0.0), to))
}

fn facts(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("context", plan.context.to_string()),
        ("sequences", plan.sequences.to_string()),
        ("chunk", chunks(plan)),
        ("decode", format!("{} of {}", count(plan.decode_groups as usize, "group"), plan.decode_rows)),
        ("micro-batches in flight", plan.credits.to_string()),
        ("slots per stage", plan.slots.to_string()),
        ("KV cache", plan.kv.to_string()),
        ("activations", words::activations(plan.activations).into()),
        ("digest", words::digest(&plan.model.digest)),
    ]
}

/// Formats the sizes of a plan's prefill chunks: the only size, or the shortest and the longest one.
fn chunks(plan: &Plan) -> String {
    let chunks = plan.chunks();
    match (chunks.least_rows(), chunks.most_rows()) {
        (shortest, longest) if shortest < longest => format!("{shortest} to {longest} tokens"),
        (_, longest) => format!("{longest} tokens"),
    }
}

fn stages(plan: &Plan) -> Markup {
    html! {
        section id="stages" {
            h2 { "Stages" }
            p class="hint" {
                "Segment 0 is the embedding, the last one the head; those between are the model's blocks."
            }
            @if let Some(prefill) = words::prefill_stage(plan) { p { (prefill) } }
            (chart(&charts::stages(plan)))
        }
    }
}

fn work(plan: &Plan) -> Markup {
    html! {
        section id="links" {
            h2 { "Utilization of stages and links" }
            p class="hint" {
                "Busy time as a share of total time, with a full pipeline. "
                @match plan.explanation.bottleneck.place {
                    Place::SharedLink => "The bottleneck is a shared link, which has no bar here.",
                    Place::Stage | Place::Edge | Place::TokenReturn => "The longest bar is the bottleneck.",
                }
            }
            @if let Some(bottleneck) = words::bottleneck(plan) { p { "Bottleneck: " (bottleneck) "." } }
            @if let Some(routes) = words::routes(plan) { p { "Activations travel " (routes) "." } }
            (chart(&charts::work(plan)))
        }
    }
}

fn memory(plan: &Plan) -> Markup {
    html! {
        section id="memory" {
            h2 { "Memory" }
            p class="hint" {
                "Proved before loading, with a KV cache of " (count(plan.kv_blocks as usize, "block"))
                " of 16 tokens for " (count(plan.sequences as usize, "sequence")) " of up to " (plan.context)
                " tokens."
            }
            (chart(&charts::memory(plan)))
            details { summary { "Figures" } div class="scroll" { table {
                thead { tr {
                    @for name in MEMORY { th class=[(name != "Stage").then_some("figure")] scope="col" { (name) } }
                } }
                tbody {
                    @for (name, stage) in words::named_stages(plan) {
                        @let m = &stage.memory_bytes;
                        @let free = m.available.saturating_sub(m.total);
                        tr {
                            td data-name=(MEMORY[0]) { (name) " · " (stage.device) }
                            @for (name, size) in MEMORY[1..].iter().zip([m.weights.saturating_add(m.arenas), m.kv, m.scratch, m.slots, m.staging, free]) {
                                td class="figure" data-name=(name) { (bytes(size)) }
                            }
                        }
                    }
                }
            } } }
        }
    }
}

/// Columns of the memory table.
const MEMORY: [&str; 7] = ["Stage", "weights, arenas", "KV", "scratch", "slots", "staging", "free"];

fn timelines(report: &Report) -> Markup {
    html! {
        section id="timeline" {
            h2 { "Timeline" }
            @if report.timelines.is_empty() {
                p { "No times are predicted." }
            } @else {
                p class="hint" {
                    "Each number is a micro-batch: a prompt chunk, or a group of sequences that decode together. It has the same color on every stage."
                }
            }
            @if let Some(idle) = words::idle(&report.plan) { p { (idle) } }
            @for gantt in &report.timelines {
                @let drawn = charts::timeline(gantt);
                h3 { (drawn.title) }
                (chart(&drawn))
            }
        }
    }
}

fn measured(report: &Report) -> Markup {
    let Some(measured) = &report.measured else { return html! {} };
    let against = |compared: &ComparedRate| {
        let off = words::deviation(compared.deviation);
        format!("tokens/s measured, {off} against {} predicted", rate(compared.predicted_tokens_per_s))
    };
    html! {
        section id="measured" {
            h2 { "Predicted and measured" }
            dl class="tiles" {
                @for compared in &measured.rates {
                    (tile(&compared.what, &rate(compared.measured_tokens_per_s), &against(compared)))
                }
            }
            p class="hint" { "Predictions and measurements cover the same micro-batches." }
            @for drawn in charts::compared(measured) {
                @if !drawn.rows.is_empty() {
                    h3 { (drawn.title) }
                    (chart(&drawn))
                }
            }
            @if !measured.findings().is_empty() {
                ul class="reasons" { @for finding in measured.findings() { li { (finding) } } }
            }
        }
    }
}

fn alternatives(report: &Report) -> Markup {
    let plan = &report.plan;
    let explanation = &plan.explanation;
    html! {
        section id="alternatives" {
            h2 { "Alternatives" }
            @if explanation.alternatives.is_empty() {
                p { "The plan lists no alternatives." }
            } @else {
                p class="hint" { "Time is the objective for one request. Lower is better." }
                div class="scroll" { table {
                    thead { tr { (columns(&ALTERNATIVES)) } }
                    tbody {
                        tr class="chosen" {
                            td data-name="Placement" { code { (plan.split()) } }
                            td data-name="Description" { "this plan" }
                            td class="figure" data-name="Time" { (time(explanation.score_us)) }
                            (rates(plan.predicted.decode_tokens_per_s, plan.predicted.prefill_tokens_per_s))
                        }
                        @for other in &explanation.alternatives { (alternative(plan, other, &other.why)) }
                    }
                } }
            }
            @if !explanation.left_out.is_empty() {
                h3 { "Devices left out" }
                div class="scroll" { table {
                    thead { tr { (columns(&ALTERNATIVES)) } }
                    tbody {
                        @for alike in explanation.left_out_alike() {
                            @let left = alike[0];
                            @let labels = words::labels(&alike);
                            @match &left.best_with {
                                Some(best) if alike.len() == 1 => (alternative(plan, best, &format!("the best with {labels}"))),
                                Some(best) => (alternative(plan, best, &format!("the best with one of {labels}"))),
                                None => tr {
                                    td data-name="Placement" { (none_with(left)) }
                                    td data-name="Description" { "with " (labels) }
                                    td class="figure" data-name="Time" { "–" }
                                    td class="figure" data-name="Decode" { "–" }
                                    td class="figure" data-name="Prefill" { "–" }
                                },
                            }
                        }
                    }
                } }
            }
            @if !report.baselines.is_empty() { (baselines(report)) }
        }
    }
}

/// Returns the reason why the table shows no plan that includes the left-out device `left`.
fn none_with(left: &LeftOut) -> &'static str {
    match left {
        LeftOut { tried: false, .. } => "not searched for",
        LeftOut { constrained: true, .. } => "the constraints allow none",
        _ => "none fits",
    }
}

/// Columns of the tables of alternatives and baselines. A `>` marks a column of figures.
const ALTERNATIVES: [&str; 5] = ["Placement", "Description", ">Time", ">Decode", ">Prefill"];
const BASELINES: [&str; 4] = ["Baseline", "Placement", ">Decode", ">Prefill"];

fn columns(names: &[&str]) -> Markup {
    html! {
        @for name in names {
            th scope="col" class=[name.starts_with('>').then_some("figure")] { (name.trim_start_matches('>')) }
        }
    }
}

fn alternative(plan: &Plan, other: &Alternative, why: &str) -> Markup {
    let off = words::deviation(other.score_us / plan.explanation.score_us - 1.0);
    html! {
        tr {
            td data-name="Placement" { code { (other.split) } }
            td data-name="Description" { (why) }
            td class="figure" data-name="Time" {
                span { (time(other.score_us)) " (" (off) ")" }
            }
            (rates(other.decode_tokens_per_s, other.prefill_tokens_per_s))
        }
    }
}

fn rates(decode: f64, prefill: f64) -> Markup {
    html! {
        td class="figure" data-name="Decode" { span { (rate(decode)) " tokens/s" } }
        td class="figure" data-name="Prefill" { span { (rate(prefill)) " tokens/s" } }
    }
}

fn baselines(report: &Report) -> Markup {
    html! {
        h3 { "Baselines" }
        div class="scroll" { table {
            thead { tr { (columns(&BASELINES)) } }
            tbody {
                @for other in &report.baselines {
                    tr {
                        td data-name="Baseline" { (other.name) }
                        td data-name="Placement" { code { (other.split) } }
                        td class="figure" data-name="Decode" { (both(&other.predicted, &other.measured, |r| r.decode_tokens_per_s)) }
                        td class="figure" data-name="Prefill" { (both(&other.predicted, &other.measured, |r| r.prefill_tokens_per_s)) }
                    }
                }
            }
        } }
    }
}

/// Formats the predicted and the measured value of the rate that `of` selects. Omits unknown rates.
fn both(predicted: &Rates, measured: &Rates, of: impl Fn(&Rates) -> Option<f64>) -> Markup {
    let text = match (of(predicted), of(measured)) {
        (Some(predicted), Some(measured)) => {
            format!("{} tokens/s measured, {} predicted", rate(measured), rate(predicted))
        }
        (None, Some(measured)) => format!("{} tokens/s measured", rate(measured)),
        (Some(predicted), None) => format!("{} tokens/s predicted", rate(predicted)),
        (None, None) => "–".into(),
    };
    html! { span { (text) } }
}

fn reasons(plan: &Plan) -> Markup {
    let explanation = &plan.explanation;
    html! {
        section id="reasons" {
            h2 { "Why this plan" }
            ul class="reasons" { @for reason in &plan.reasons { li { (reason) } } }
            @if !explanation.bindings.is_empty() {
                h3 { "Bottlenecks" }
                ul class="reasons" {
                    @for binding in &explanation.bindings {
                        li {
                            (binding.more) " on " (binding.of) " would make it "
                            (wording::speed(1.0 / (1.0 + binding.gain))) "."
                        }
                    }
                }
            }
            @if !explanation.figures.is_empty() {
                h3 { "Sources of the figures" }
                ul class="reasons" {
                    @for figures in &explanation.figures {
                        li { (count(figures.figures, "figure")) " " (figures.source) }
                    }
                }
            }
        }
    }
}

/// Draws a chart that fills the available width.
fn chart(chart: &Chart) -> Markup {
    html! {
        div class="chart" {
            @if !chart.legend.is_empty() {
                ul class="legend" {
                    @for (class, name) in &chart.legend {
                        li {
                            svg width="12" height="12" aria-hidden="true" {
                                rect class={ "bar " (class) } x="1" y="1" width="10" height="10" rx="2" {}
                            }
                            (name)
                        }
                    }
                }
            }
            @for row in &chart.rows { (draw_row(chart, row)) }
            @if !chart.ticks.is_empty() {
                div class="row" aria-hidden="true" {
                    div {}
                    svg height="16" { (draw_axis(&chart.ticks, Width::Fluid(NARROW))) }
                }
            }
        }
    }
}

fn draw_row(chart: &Chart, row: &Row) -> Markup {
    html! {
        div class="row" {
            div class="label" { (row.label) @if !row.note.is_empty() { small { (row.note) } } }
            svg height=(row.height()) role="img" aria-label=(row.spoken()) {
                (row.draw(&chart.ticks, Width::Fluid(NARROW)))
            }
        }
    }
}
