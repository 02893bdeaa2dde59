//! Horizontal bar charts as data, and functions that draw their bars. Positions are fractions of the axis
//! length, so that a chart can be drawn at any width.

use super::words::rounded;
use maud::{Markup, html};

/// A chart: rows of bars over a common axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Chart {
    pub title: String,
    pub rows: Vec<Row>,
    pub ticks: Vec<Tick>,
    /// Legend of the chart: the CSS class of each color, and its meaning.
    pub legend: Vec<(&'static str, &'static str)>,
}

/// A row of bars with a label.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub label: String,
    /// Small text below the label.
    pub note: String,
    /// Number of lanes in the row. Bars in different lanes are drawn below each other.
    pub lanes: usize,
    pub bars: Vec<Bar>,
}

/// A bar in a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    /// Index of the lane within the row, counted from the top.
    pub lane: usize,
    /// Start and end of the bar, as fractions of the axis length.
    pub from: f64,
    pub to: f64,
    /// CSS class of the bar's color in `palette.css`.
    pub class: &'static str,
    /// Text inside the bar. It is shown only if it fits.
    pub label: String,
    /// Tooltip, which screen readers also read.
    pub title: String,
}

/// A mark on the axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Position, as a fraction of the axis length.
    pub at: f64,
    pub label: String,
}

/// Height of a lane in pixels, for rows with one lane and for rows with several lanes.
const LANE: f64 = 22.0;
const THIN_LANE: f64 = 13.0;
/// Upper bound on the average character width of the small font, in pixels.
pub(super) const CHARACTER: f64 = 6.4;

impl Row {
    fn lane_height(&self) -> f64 {
        if self.lanes > 1 { THIN_LANE } else { LANE }
    }

    /// Returns the height of the row's bars, in pixels.
    pub(super) fn height(&self) -> f64 {
        self.lane_height() * self.lanes.max(1) as f64
    }

    /// Returns the text that screen readers read for the row.
    pub(super) fn spoken(&self) -> String {
        let titles: Vec<_> = self.bars.iter().map(|bar| bar.title.as_str()).take(SPOKEN).collect();
        match titles.as_slice() {
            [] => format!("{}: nothing", self.label),
            titles => format!("{}: {}", self.label, titles.join("; ")),
        }
    }

    /// Draws the grid lines and the bars of the row.
    pub(super) fn draw(&self, ticks: &[Tick], width: Width) -> Markup {
        let height = self.height();
        html! {
            @for tick in ticks {
                @let x = width.position(tick.at);
                line class="grid" x1=(x) x2=(x) y1="-2" y2=(height + 2.0) {}
            }
            @for bar in &self.bars { (self.draw_bar(bar, width)) }
        }
    }

    fn draw_bar(&self, bar: &Bar, width: Width) -> Markup {
        let lane = self.lane_height();
        let top = bar.lane as f64 * lane;
        let (from, to) = (bar.from.clamp(0.0, 1.0), bar.to.clamp(0.0, 1.0));
        let room = (to - from).max(0.0) * width.least() - 6.0;
        let fits = !bar.label.is_empty() && bar.label.chars().count() as f64 * CHARACTER <= room;
        html! {
            g {
                title { (bar.title) }
                rect class={ "bar " (bar.class) } x=(width.position(from)) y=(top + 1.0)
                    width=(width.position((to - from).max(0.0))) height=(lane - 2.0) rx="2" {}
                @if fits {
                    text class={ "in-bar " (bar.class) "-text" } x=(width.position((from + to) / 2.0))
                        y=(top + lane / 2.0 + 4.0) text-anchor="middle" { (bar.label) }
                }
            }
        }
    }
}

/// Maximum number of bar titles in the text that screen readers read for a row.
const SPOKEN: usize = 24;

/// Draws the tick labels below all rows.
pub(super) fn draw_axis(ticks: &[Tick], width: Width) -> Markup {
    html! {
        @for tick in ticks {
            @let anchor = match tick.at { at if at < 0.02 => "start", at if at > 0.93 => "end", _ => "middle" };
            text class="tick" x=(width.position(tick.at)) y="12" text-anchor=(anchor) { (tick.label) }
        }
    }
}

/// Width at which an axis is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    /// All of the available width. The value is its expected minimum, in pixels.
    Fluid(f64),
    /// A fixed width in pixels.
    Fixed(f64),
}

impl Width {
    fn position(self, share: f64) -> String {
        match self {
            Width::Fluid(_) => format!("{:.3}%", share * 100.0),
            Width::Fixed(pixels) => format!("{:.2}", share * pixels),
        }
    }

    fn least(self) -> f64 {
        match self {
            Width::Fluid(pixels) | Width::Fixed(pixels) => pixels,
        }
    }
}

/// Creates three to six ticks at round values from 0 to `end`. `label` formats each value.
pub(super) fn ticks(end: f64, label: impl Fn(f64) -> String) -> Vec<Tick> {
    if !end.is_finite() || end <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf((end / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| end / step <= 5.0).unwrap_or(end);
    let values =
        (0..=5).map(|number| rounded(f64::from(number) * step)).take_while(|value| *value <= end * 1.0001);
    values.map(|value| Tick { at: (value / end).min(1.0), label: label(value) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let labels =
            |end: f64| ticks(end, |value| value.to_string()).into_iter().map(|t| t.label).collect::<Vec<_>>();
        assert_eq!(labels(14.0), ["0", "5", "10"]);
        assert_eq!(labels(0.9), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(100.0), ["0", "20", "40", "60", "80", "100"]);
        for end in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(ticks(end, |_| String::new()), [], "{end}");
        }
        for end in (1..400).map(|n| 1.07f64.powi(n)) {
            let ticks = ticks(end, |value| value.to_string());
            assert!((3..=6).contains(&ticks.len()), "{end}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&tick.at)), "{end}: {ticks:?}");
        }
    }

    #[test]
    fn labels_are_drawn_in_bars_that_are_wide_enough() {
        let bar = |to: f64| Bar {
            lane: 0,
            from: 0.0,
            to,
            class: "c0",
            label: "0-13".into(),
            title: "segments".into(),
        };
        let row = |to| Row { lanes: 1, bars: vec![bar(to)], ..Row::default() };
        let drawn = |to| row(to).draw(&[], Width::Fixed(100.0)).into_string();
        assert!(drawn(0.5).contains(">0-13<"));
        assert!(!drawn(0.2).contains(">0-13<"));
    }
}
