//! Draws the charts of a report as one self-contained SVG file.

use super::chart::{CHARACTER, Chart, Width, draw_axis};
use super::words::{self, count, rate};
use super::{Report, charts};
use maud::{Markup, PreEscaped, html};
use ragtag_planner::plan::Plan;

/// Dimensions of the sheet in pixels: its width, its margins, the widths of the label column and the bar
/// column, and the gap between rows.
const SHEET: f64 = 960.0;
const MARGIN: f64 = 24.0;
const LABELS: f64 = 250.0;
const BARS: f64 = SHEET - 2.0 * MARGIN - LABELS;
const ROW_GAP: f64 = 8.0;

/// Draws the stages, utilization, memory and timelines of a report as one self-contained SVG file.
pub fn svg(report: &Report) -> String {
    let report = report.printable();
    let plan = &report.plan;
    let mut all = vec![charts::stages(plan), charts::work(plan), charts::memory(plan)];
    if let Some(measured) = &report.measured {
        all.extend(charts::compared(measured));
    }
    all.extend(report.timelines.iter().map(charts::timeline));
    all.retain(|chart| !chart.rows.is_empty());

    let mut top = 86.0;
    let mut placed = Vec::new();
    for chart in &all {
        let (drawn, height) = draw(chart);
        placed.push((top, drawn));
        top += height;
    }
    let height = top + MARGIN;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (SHEET) " " (height) } width=(SHEET) height=(height)
            font-family="system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" font-size="12" role="img" {
            title { (plan.model.name) }
            desc { (plan.reasons.join("; ")) }
            style { (PreEscaped(include_str!("palette.css"))) }
            rect class="sheet" width=(SHEET) height=(height) {}
            (heading(plan))
            @for (top, drawn) in placed { g transform={ "translate(" (MARGIN) " " (top) ")" } { (drawn) } }
        }
    };
    drawing.into_string() + "\n"
}

fn heading(plan: &Plan) -> Markup {
    let what = format!(
        "{} on {}: decode {} tokens/s, prefill {} tokens/s predicted",
        words::objective(plan.objective),
        count(plan.stages.len(), "device"),
        rate(plan.predicted.decode_tokens_per_s),
        rate(plan.predicted.prefill_tokens_per_s)
    );
    html! {
        text class="text" x=(MARGIN) y="42" font-size="20" font-weight="600" { (cut(&plan.model.name, 75)) }
        text class="note" x=(MARGIN) y="62" { (cut(&what, 140)) }
    }
}

/// Draws a chart with its title above it. Returns the drawing and its height in pixels.
fn draw(chart: &Chart) -> (Markup, f64) {
    let mut top = if chart.legend.is_empty() { 28.0 } else { 44.0 };
    let mut rows = Vec::new();
    for row in &chart.rows {
        let lines = if row.note.is_empty() { 16.0 } else { 30.0 };
        let height = row.height().max(lines);
        rows.push((top, height, row));
        top += height + ROW_GAP;
    }
    let most = (LABELS / CHARACTER) as usize;
    let drawn = html! {
        text class="text" y="14" font-size="14" font-weight="600" { (chart.title) }
        (legend(chart))
        @for &(top, height, row) in &rows {
            g transform={ "translate(0 " (top) ")" } {
                @let first = if row.note.is_empty() { height / 2.0 + 4.0 } else { 11.0 };
                text class="text" y=(first) { title { (row.label) } (cut(&row.label, most - 2)) }
                @if !row.note.is_empty() { text class="note" y="25" { title { (row.note) } (cut(&row.note, most)) } }
                g transform={ "translate(" (LABELS) " " ((height - row.height()) / 2.0) ")" } {
                    (row.draw(&chart.ticks, Width::Fixed(BARS)))
                }
            }
        }
        g transform={ "translate(" (LABELS) " " (top) ")" } { (draw_axis(&chart.ticks, Width::Fixed(BARS))) }
    };
    (drawn, top + 34.0)
}

fn legend(chart: &Chart) -> Markup {
    let mut left = 0.0;
    let entries = chart.legend.iter().map(|(class, name)| {
        let at = left;
        left += name.chars().count() as f64 * CHARACTER + 34.0;
        (at, class, name)
    });
    html! {
        @for (at, class, name) in entries {
            rect class={ "bar " (class) } x=(at) y="23" width="10" height="10" rx="2" {}
            text class="note" x=(at + 15.0) y="32" { (name) }
        }
    }
}

/// Shortens `text` to at most `most` characters. Removes characters from the middle, because similar names
/// usually differ at the end.
fn cut(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.into();
    }
    let before = most.saturating_sub(1) / 2;
    let after = most.saturating_sub(1) - before;
    text.chars().take(before).chain(['…']).chain(text.chars().skip(length - after)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(cut("cuda:0 → cuda:1", 15), "cuda:0 → cuda:1");
        assert_eq!(cut("0123456789", 6), "01…789");
    }
}
