//! Draws bars for the terminal. They show the utilization of stages and edges, and the memory use of stages.
//! The caller passes the width and the character set of the terminal.

use super::Report;
use super::gantt::edge_name;
use super::load::{Beat, share};
use super::words::{self, percent};
use ragtag_planner::plan::{Plan, PredictedTimes};

/// Set of characters from which bars are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarStyle {
    /// Block characters, with a resolution of an eighth of a column.
    Blocks,
    /// ASCII characters only.
    Ascii,
}

/// Number of columns of the percentage after a bar, such as ` 100 %`.
const FIGURE: usize = 6;
/// Minimum and maximum number of columns of a bar.
const BAR: std::ops::RangeInclusive<usize> = 6..=24;
const GAP: usize = 2;
const HEADS: [&str; 3] = ["decode, busy", "prefill, busy", "memory, full"];

/// Draws one line for each stage and each edge of a plan. A line shows the utilization in decode and in
/// prefill and, for a stage, the memory use. A line has at most `columns` columns, unless bars of the minimum
/// width need more.
pub fn bars(report: &Report, columns: usize, style: BarStyle) -> String {
    let report = report.printable();
    let lines = lines(&report.plan, style);
    let longest = lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0);
    let around = HEADS.len() * (GAP + 1 + FIGURE);
    // If lines are too long, names are shortened to a third of the width before bars are shortened.
    let label = longest.min((columns / 3).max(8));
    let bar = (columns.saturating_sub(label + around) / HEADS.len()).clamp(*BAR.start(), *BAR.end());
    let mut text = " ".repeat(label);
    for head in HEADS {
        text += &format!("{:GAP$}{head:width$}", "", width = bar + 1 + FIGURE);
    }
    text = text.trim_end().to_owned() + "\n";
    for line in &lines {
        let mut row = fitted(&line.label, label, style);
        for share in line.shares {
            row += &match share {
                Some(share) => format!("{:GAP$}{} {:>FIGURE$}", "", style.bar(share, bar), percent(share)),
                None => " ".repeat(GAP + bar + 1 + FIGURE),
            };
        }
        text += row.trim_end();
        text.push('\n');
    }
    text
}

/// A line of the output, before it is drawn.
struct Line {
    label: String,
    /// Fractions for decode, prefill and memory, in this order. A fraction is `None` if the line has no such
    /// bar.
    shares: [Option<f64>; 3],
}

fn lines(plan: &Plan, style: BarStyle) -> Vec<Line> {
    let beat = Beat::of(plan);
    let line = |label: String, times: PredictedTimes, memory: Option<f64>| {
        let load = beat.load(times);
        Line { label: style.plain(label), shares: [Some(load.decode), Some(load.prefill), memory] }
    };
    let mut lines = Vec::new();
    for (at, (name, stage)) in words::named_stages(plan).enumerate() {
        let memory = share(stage.memory_bytes.total as f64, stage.memory_bytes.available as f64);
        let streamed = match stage.streamed.len() {
            0 => String::new(),
            streamed => format!(", {streamed} streamed"),
        };
        lines.push(line(format!("{name} {}{streamed}", stage.device), stage.predicted, Some(memory)));
        if let (Some(edge), Some(next)) = (plan.edges.get(at), plan.stages.get(at + 1)) {
            lines.push(line(format!("  {}", edge_name(&stage.device, &next.device)), edge.predicted, None));
        }
    }
    lines
}

impl BarStyle {
    fn plain(self, text: String) -> String {
        match self {
            BarStyle::Blocks => text,
            BarStyle::Ascii => text.replace('→', "->").replace(|c: char| !c.is_ascii(), "?"),
        }
    }

    /// Returns a bar with the width `columns` in which the fraction `share` is filled.
    fn bar(self, share: f64, columns: usize) -> String {
        const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
        let eighths = (share * columns as f64 * 8.0).round() as usize;
        // A share above 0 must be visible.
        let eighths = if share > 0.0 { eighths.max(1) } else { eighths };
        let (full, rest) = (eighths / 8, eighths % 8);
        let mut bar = match self {
            BarStyle::Blocks => {
                let mut bar = "█".repeat(full);
                if rest > 0 {
                    bar.push(EIGHTHS[rest]);
                }
                bar
            }
            BarStyle::Ascii => "#".repeat(full + usize::from(rest >= 4 || full == 0 && rest > 0)),
        };
        let empty = columns.saturating_sub(bar.chars().count());
        bar.extend(std::iter::repeat_n(if self == BarStyle::Ascii { '.' } else { '·' }, empty));
        bar
    }
}

/// Pads or shortens `text` to exactly `columns` characters.
fn fitted(text: &str, columns: usize, style: BarStyle) -> String {
    if text.chars().count() <= columns {
        return format!("{text:columns$}");
    }
    let dots = if style == BarStyle::Ascii { "..." } else { "…" };
    let most = columns.saturating_sub(dots.chars().count());
    text.chars().take(most).chain(dots.chars()).collect()
}
