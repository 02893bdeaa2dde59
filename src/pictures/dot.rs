//! Draws a plan as a Graphviz graph of devices, stages and edges.

use super::Report;
use super::load::Beat;
use super::words::{bytes, edge_routes, percent, rate, time};
use ragtag_planner::plan::{Plan, PlanStage, PredictedTimes, PrefillStage};
use std::fmt::Write;

/// Draws the plan of a report as a graph in Graphviz's DOT language. `dot -Tsvg` converts it to a picture.
pub fn dot(report: &Report) -> String {
    let report = report.printable();
    let plan = &report.plan;
    let beat = Beat::of(plan);
    let mut text = String::from("digraph plan {\n");
    let _ = writeln!(
        text,
        "  graph [rankdir=LR, fontname=\"sans-serif\", labelloc=t, label={}];\n  \
         node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=11];",
        quoted(&[
            &plan.model.name,
            &format!(
                "decode {} tokens/s, prefill {} tokens/s predicted",
                rate(plan.predicted.decode_tokens_per_s),
                rate(plan.predicted.prefill_tokens_per_s)
            ),
        ])
    );
    for (at, stage) in plan.stages.iter().enumerate() {
        let (title, node) = (quoted(&[&stage.device]), quoted(&stage_lines(&at.to_string(), stage, beat)));
        let _ = writeln!(text, "  subgraph cluster_{at} {{ label={title}; stage_{at} [label={node}]; }}");
    }
    if let Some(PrefillStage { stage, .. }) = &plan.prefill_stage {
        let (title, node) = (quoted(&[&stage.device]), quoted(&stage_lines("prefill", stage, beat)));
        let _ =
            writeln!(text, "  subgraph cluster_prefill {{ label={title}; stage_prefill [label={node}]; }}");
    }
    for (at, edge) in plan.edges.iter().enumerate().take(plan.stages.len().saturating_sub(1)) {
        let mut lines = vec![edge_routes(edge)];
        lines.extend(times(edge.predicted, beat));
        let _ = writeln!(text, "  stage_{at} -> stage_{} [label={}];", at + 1, quoted(&lines));
    }
    token_return(plan, beat, &mut text);
    for (at, left) in plan.explanation.left_out.iter().enumerate() {
        let label = quoted(&[left.device.as_str(), "left out"]);
        let _ = writeln!(text, "  left_{at} [label={label}, style=\"rounded,dashed\"];");
    }
    text + "}\n"
}

fn token_return(plan: &Plan, beat: Beat, text: &mut String) {
    let Some(last) = plan.stages.len().checked_sub(1) else { return };
    let mut lines = vec!["token return".to_owned()];
    if plan.token_return.decode_us > 0.0 {
        lines.extend(times(plan.token_return, beat).into_iter().take(1));
    }
    let label = quoted(&lines);
    let _ = writeln!(text, "  stage_{last} -> stage_0 [style=dashed, constraint=false, label={label}];");
}

fn stage_lines(name: &str, stage: &PlanStage, beat: Beat) -> Vec<String> {
    let memory = &stage.memory_bytes;
    let mut lines = vec![
        format!("stage {name}: segments {}", stage.segments),
        format!("{} of {}", bytes(memory.total), bytes(memory.available)),
    ];
    lines.extend(times(stage.predicted, beat));
    lines
}

fn times(times: PredictedTimes, beat: Beat) -> [String; 2] {
    let load = beat.load(times);
    [
        format!("decode {}, busy {}", time(times.decode_us), percent(load.decode)),
        format!("prefill {}, busy {}", time(times.prefill_us), percent(load.prefill)),
    ]
}

/// Joins `lines` into a quoted label. Escapes quotes and backslashes, because a backslash starts an escape
/// sequence in Graphviz.
fn quoted(lines: &[impl AsRef<str>]) -> String {
    let lines: Vec<_> =
        lines.iter().map(|line| line.as_ref().replace('\\', "\\\\").replace('"', "\\\"")).collect();
    format!("\"{}\"", lines.join("\\n"))
}
