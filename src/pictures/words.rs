//! Formats figures and names for pictures.

use ragtag_kernels::Activations;
use ragtag_planner::Objective;
use ragtag_planner::plan::{LeftOut, Place, Plan, PlanEdge, PlanStage, PrefillStage};
use ragtag_planner::wording;
pub(super) use ragtag_planner::wording::count;
use ragtag_transfer::Route;

/// Replaces control characters in `text`, because they must not appear in XML or on a terminal.
pub(super) fn printable(text: &str) -> String {
    // Rust does not count bidirectional controls as control characters, but they can make one name look like
    // another.
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Formats a time of `us` microseconds with a suitable unit.
pub(super) fn time(us: f64) -> String {
    match us {
        us if !us.is_finite() => "?".into(),
        us if us < 0.05 => "0 µs".into(),
        us if us < 9.95 => format!("{us:.1} µs"),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 9_995.0 => format!("{:.2} ms", us / 1e3),
        us if us < 99_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Formats the time at a tick of an axis, in microseconds. Prints only as many decimals as the value needs,
/// because ticks have round values.
pub(super) fn mark(us: f64) -> String {
    match us {
        0.0 => "0".into(),
        us if us < 1e3 => format!("{} µs", rounded(us)),
        us if us < 1e6 => format!("{} ms", rounded(us / 1e3)),
        us => format!("{} s", rounded(us / 1e6)),
    }
}

/// Removes floating-point rounding errors, such as in 0.6000000000000001.
pub(super) fn rounded(value: f64) -> f64 {
    format!("{value:.9e}").parse().unwrap_or(value)
}

/// Formats a number of bytes with a binary unit.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    match bytes.checked_ilog2().map_or(0, |bits| bits / 10) {
        0 => format!("{bytes} B"),
        n => format!("{:.2} {}", bytes as f64 / 1024_f64.powi(n as i32), units[n as usize - 1])
            .replace(".00 ", " "),
    }
}

/// Formats a fraction as a percentage.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if !percent.is_finite() => "?".into(),
        percent if percent != 0.0 && percent.abs() < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Formats a rate in tokens per second with three significant digits and without the unit.
pub(super) fn rate(per_s: f64) -> String {
    match per_s {
        rate if !rate.is_finite() => "?".into(),
        rate if rate < 9.995 => format!("{rate:.2}"),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate => grouped(rate),
    }
}

/// Formats a whole number with thin spaces between groups of three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && digits.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats the relative deviation of a measured value from its prediction, such as `+12 %`. Formats a large
/// deviation as a factor, such as `×3.2`.
pub(super) fn deviation(share: f64) -> String {
    wording::deviation(share).replace('-', "−")
}

/// Joins the labels of devices that a plan leaves out for the same reason.
pub(super) fn labels(alike: &[&LeftOut]) -> String {
    wording::labels(&alike.iter().map(|left| left.device.as_str()).collect::<Vec<_>>())
}

pub(super) fn objective(objective: Objective) -> String {
    match objective {
        Objective::Latency => "latency of one sequence".into(),
        Objective::Throughput => "throughput".into(),
        Objective::FirstToken => "time to the first token".into(),
        Objective::Mix(mix) => format!(
            "a mix of latency × {}, throughput × {} and time to the first token × {}",
            mix.latency, mix.throughput, mix.first_token
        ),
    }
}

fn route(route: Route) -> String {
    match route {
        Route::Peer => "straight into the next device's memory".into(),
        Route::Import => "straight from the previous device's memory".into(),
        Route::HostStaged { chunk_bytes, depth } => {
            format!("through host memory ({depth} pieces of {})", bytes(chunk_bytes))
        }
    }
}

/// Returns the routes of an edge in words.
pub(super) fn edge_routes(edge: &PlanEdge) -> String {
    edge.routes.iter().map(route).collect::<Vec<_>>().join(" or ")
}

/// Returns the first 12 characters of a digest, without the name of the algorithm.
pub(super) fn digest(digest: &str) -> String {
    digest.rsplit(':').next().unwrap_or_default().chars().take(12).collect()
}

/// Returns the transfer routes of a plan in words, without duplicates, or `None` if the plan has no edges.
pub(super) fn routes(plan: &Plan) -> Option<String> {
    let mut routes: Vec<String> = Vec::new();
    for name in plan.edges.iter().flat_map(|edge| edge.routes.iter()).map(route) {
        if !routes.contains(&name) {
            routes.push(name);
        }
    }
    (!routes.is_empty()).then(|| routes.join(", or "))
}

/// Returns the stages with their names: the number of each stage, and `prefill` for the prefill stage.
pub(super) fn named_stages(plan: &Plan) -> impl Iterator<Item = (String, &PlanStage)> {
    let name = |at: usize| if at < plan.stages.len() { at.to_string() } else { "prefill".into() };
    plan.all_stages().enumerate().map(move |(at, stage)| (name(at), stage))
}

/// Returns a sentence about the prefill stage, or `None` if the plan has none.
pub(super) fn prefill_stage(plan: &Plan) -> Option<String> {
    let PrefillStage { stage, from_tokens } = plan.prefill_stage.as_ref()?;
    Some(format!(
        "Prompts from {} run on {} alone, with streamed weights of {}.",
        count(*from_tokens as usize, "token"),
        stage.device,
        count(stage.streamed.len(), "segment")
    ))
}

/// Returns a sentence about the idle time of a plan's pipeline, or `None` if it has no idle time.
pub(super) fn idle(plan: &Plan) -> Option<String> {
    let (bubble, idle) = (plan.explanation.prefill_bubble, plan.explanation.decode_idle);
    (bubble > 0.0 || idle > 0.0).then(|| {
        format!(
            "Pipeline bubble: {} of a burst of prompts, while the pipeline fills and drains. The busiest stage is idle for {} \
             of a decode round.",
            percent(bubble),
            percent(idle)
        )
    })
}

pub(super) fn activations(activations: Activations) -> &'static str {
    match activations {
        Activations::F32 => "f32 (exact)",
        Activations::Int8 => "int8 (fast)",
        Activations::F16 => "f16 (fast)",
    }
}

/// Describes the bottleneck of a plan: its place and its share of the work. Returns `None` if the bottleneck
/// is never busy.
pub(super) fn bottleneck(plan: &Plan) -> Option<String> {
    let bottleneck = plan.explanation.bottleneck;
    let device = |at: usize| plan.all_stages().nth(at).map(|stage| stage.device.clone());
    let place = match bottleneck.place {
        _ if bottleneck.busy_us <= 0.0 => return None,
        Place::Stage => format!("stage {} on {}", bottleneck.index, device(bottleneck.index)?),
        Place::Edge => {
            super::gantt::edge_name(&device(bottleneck.index)?, &device(bottleneck.index.checked_add(1)?)?)
        }
        Place::SharedLink => "a link that several edges share".into(),
        Place::TokenReturn => "the token return".into(),
    };
    Some(format!(
        "{place}: busy for {} of a request, {} of all work",
        time(bottleneck.busy_us),
        percent(bottleneck.share)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_significant_digits_and_a_unit() {
        let times =
            [0.0, 0.04, 3.25, 21.5, 999.4, 999.6, 9994.0, 25_370.0, 123_456.0, 999_600.0, f64::NAN].map(time);
        assert_eq!(
            times,
            [
                "0 µs", "0 µs", "3.2 µs", "22 µs", "999 µs", "1.00 ms", "9.99 ms", "25.4 ms", "123 ms",
                "1.00 s", "?"
            ]
        );
        assert_eq!([0.0, 0.004, 0.0994, 0.5, 1.0].map(percent), ["0 %", "0.4 %", "9.9 %", "50 %", "100 %"]);
        assert_eq!([1.234, 45.67, 726.04, 12_345.6].map(rate), ["1.23", "45.7", "726", "12\u{202f}346"]);
        assert_eq!(deviation(0.12), "+12 %");
        assert_eq!(deviation(-0.025), "−2.5 %");
        assert_eq!(deviation(2.2), "×3.2");
        assert_eq!(deviation(f64::INFINITY), "?");
    }

    #[test]
    fn hidden_characters_in_names_are_replaced() {
        assert_eq!(printable("a\u{0}b\u{1b}[2J\u{202e}c\n"), "a\u{fffd}b\u{fffd}[2J\u{fffd}c\u{fffd}");
        assert_eq!(printable("Größe → 7 B"), "Größe → 7 B");
    }
}
