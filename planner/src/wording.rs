//! Formats comparisons, requests and labels for plans, tables and charts. This module knows nothing about
//! plans or devices.

use crate::objective::Workload;

/// Minimum ratio that is printed as a factor. A smaller ratio is printed as a percentage.
const FACTOR: f64 = 2.0;
/// Minimum difference that is printed, in percent. Smaller differences are printed as equal.
const SAME_PERCENT: f64 = 0.05;

/// Describes `ratio`, a time divided by a reference time: `12.0 % slower`, `3.2 times faster`, `as fast`.
pub fn speed(ratio: f64) -> String {
    let (factor, word) = if ratio < 1.0 { (1.0 / ratio, "faster") } else { (ratio, "slower") };
    match (factor - 1.0) * 100.0 {
        percent if !percent.is_finite() => "not comparable".into(),
        percent if percent < SAME_PERCENT => "as fast".into(),
        _ if factor >= FACTOR => format!("{} {word}", times(factor)),
        percent => format!("{percent:.1} % {word}"),
    }
}

/// Describes a deviation from an expected value, given as `value ÷ expected − 1`: `+12 %`, or `×3.2` if the value is
/// 3.2 times the expected one.
pub fn deviation(deviation: f64) -> String {
    let ratio = deviation + 1.0;
    match deviation * 100.0 {
        percent if !percent.is_finite() => "?".into(),
        _ if ratio.max(1.0 / ratio) >= FACTOR => factor(ratio),
        percent if percent.abs() < SAME_PERCENT => "±0 %".into(),
        percent if percent.abs() < 9.95 => format!("{percent:+.1} %"),
        percent => format!("{percent:+.0} %"),
    }
}

/// Formats a ratio with two digits, such as `×3.2`, `×204` or `×0.049`.
fn factor(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 1e4 => "over ×10000".into(),
        ratio if ratio < 1e-4 => "under ×0.0001".into(),
        ratio => format!("×{ratio:.*}", (1.0 - ratio.log10().floor()).max(0.0) as usize),
    }
}

/// Formats a number with a noun in the singular or plural: `1 group`, `2 groups`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Formats numbers in ascending order. Three or more consecutive numbers become a range, as in `1, 4-6, 9`.
pub fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, _, .., last] => format!("{first}-{last}"),
        run => run.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    });
    runs.collect::<Vec<_>>().join(", ")
}

fn times(factor: f64) -> String {
    match factor {
        factor if factor < 9.95 => format!("{factor:.1} times"),
        factor if factor < 1e4 => format!("{factor:.0} times"),
        _ => "over 10000 times".into(),
    }
}

/// Describes a request, such as `512 prompt and 128 generated tokens`. If the request exceeds the context,
/// also states its lengths after scaling down.
pub fn request(workload: Workload, context: u32) -> String {
    let Workload { prompt_tokens, generated_tokens } = workload;
    let request = format!("{prompt_tokens} prompt and {generated_tokens} generated tokens");
    if workload.fits(context) {
        return request;
    }
    let (prompt, generated) = workload.within(context);
    format!("{request} (scaled down to {prompt:.0} and {generated:.0}, the context is {context})")
}

/// Joins device labels for output. Three or more labels with consecutive numbers become a range, as in
/// `rtx4090:3 to rtx4090:15, cpu:0`.
pub fn labels(labels: &[&str]) -> String {
    let numbered = |label: &str| {
        let (name, number) = label.rsplit_once(':')?;
        Some((name.to_owned(), number.parse::<u32>().ok()?))
    };
    let follows = |a: &str, b: &str| match (numbered(a), numbered(b)) {
        (Some((name, a)), Some((other, b))) => name == other && a.checked_add(1) == Some(b),
        _ => false,
    };
    let runs = labels.chunk_by(|a, b| follows(a, b)).map(|run| match run {
        [first, _, .., last] => format!("{first} to {last}"),
        run => run.join(", "),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_percentages_or_factors_and_never_a_negative_zero() {
        let texts = [1.0, 1.0004, 0.9996, 1.12, 1.0 / 1.12, 1.99, 2.0, 1.0 / 3.2, 62.99, 1e9, f64::NAN, 0.0]
            .map(speed);
        let wanted = [
            "as fast",
            "as fast",
            "as fast",
            "12.0 % slower",
            "12.0 % faster",
            "99.0 % slower",
            "2.0 times slower",
            "3.2 times faster",
            "63 times slower",
            "over 10000 times slower",
            "not comparable",
            "not comparable",
        ];
        assert_eq!(texts, wanted);
        let texts =
            [0.0, -0.0001, 0.0001, 0.025, -0.12, 0.999, 1.0, 10.0, 203.4, 1e9, f64::NAN].map(deviation);
        let wanted =
            ["±0 %", "±0 %", "±0 %", "+2.5 %", "-12 %", "+100 %", "×2.0", "×11", "×204", "over ×10000", "?"];
        assert_eq!(texts, wanted);
        assert_eq!([-0.75, -0.951, -1.0].map(deviation), ["×0.25", "×0.049", "under ×0.0001"]);
    }

    #[test]
    fn requests_show_their_scaled_size() {
        let workload = Workload { prompt_tokens: 512, generated_tokens: 128 };
        assert_eq!(request(workload, 640), "512 prompt and 128 generated tokens");
        let small = "512 prompt and 128 generated tokens (scaled down to 51 and 13, the context is 64)";
        assert_eq!(request(workload, 64), small);
    }

    #[test]
    fn consecutive_numbers_become_a_range() {
        assert_eq!(ranges(&[1, 4, 5, 6, 9, 10]), "1, 4-6, 9, 10");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn consecutive_labels_become_a_range() {
        let cards: Vec<String> = (3..16).map(|at| format!("rtx4090:{at}")).collect();
        let mut all: Vec<&str> = cards.iter().map(String::as_str).collect();
        all.extend(["cpu:0", "cpu:1", "odd"]);
        assert_eq!(labels(&all), "rtx4090:3 to rtx4090:15, cpu:0, cpu:1, odd");
        assert_eq!(labels(&["a:1", "b:2", "b:4"]), "a:1, b:2, b:4");
    }
}
