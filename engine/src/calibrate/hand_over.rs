//! Measures the hand-over time of a stage and the time of the token return. It measures them in a calibration
//! pipeline, so that the devices are busy as in a real run.
//!
//! Each overhead is a difference between times of the same run, so that drift between runs cancels out. The
//! result is the median over several runs. It is not the minimum, because thread wake-ups are just as slow in
//! a real run.

use super::budget::Budget;
use super::pipeline::{BUSY_US, CalibrationPipeline, Seen};
use super::steps::Steps;
use crate::devices::Devices;
use crate::error::Result;
use ragtag_planner::cost::{Profile, TokenReturn};
use std::time::{Duration, Instant};

/// Maximum number of new tokens per sequence in a run. The adaptive waits settle within the first few tokens.
const TOKENS: u32 = 32;
/// Maximum number of timed runs for each number of sequences, and the elapsed time after which two runs are
/// enough.
const RUNS: usize = 5;
const LIMIT: Duration = Duration::from_millis(250);

/// Measured overheads of a decode step on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandOver {
    /// Overhead of a stage whose micro-batch is alone beyond the execution time on its device, in microseconds.
    pub(super) stage_us: f64,
    /// Time from the end of the last stage until the coordinator has sent the next micro-batch.
    pub(super) token_return: TokenReturn,
}

/// Measures the overheads on the device `label`. Returns `None` if the device reports no execution times, or
/// if its execution times are implausible.
pub(super) fn measure(
    devices: &Devices,
    steps: &Steps,
    label: &str,
    profile: &Profile,
    budget: &Budget,
) -> Result<Option<HandOver>> {
    // The steps of a small model are short, and threads wait differently for them.
    let step_us = steps.step_us(profile).min(BUSY_US);
    let pipeline = CalibrationPipeline::start(devices, steps, label, profile, step_us)?;
    let tokens = TOKENS.min(steps.lowering.context.saturating_sub(1)).max(1);
    let most = steps.lowering.sequences;
    let alone_part = if most > 1 { 1.0 / 3.0 } else { 1.0 };
    let alone = runs(budget.left(1.0).mul_f64(alone_part), || pipeline.run(1, 1, tokens))?;
    let more = |part: f64, sequences: u32| {
        let left = budget.left(1.0).mul_f64(part);
        if most == 1 || left.is_zero() {
            Ok(Vec::new())
        } else {
            runs(left, || pipeline.run(sequences, 1, tokens))
        }
    };
    let (pair, many) = (more(0.5, 2)?, more(1.0, most)?);
    Ok(HandOver::of(&alone, &pair, &many).filter(|measured| measured.token_return.latency_us > 0.0))
}

/// Calls `run` once as a warm-up, which records the programs. Then calls it at least once and up to [`RUNS`]
/// times, as long as time is left. Discards the result of the warm-up and returns the other results.
fn runs(left: Duration, mut run: impl FnMut() -> Result<Seen>) -> Result<Vec<Seen>> {
    let start = Instant::now();
    run()?;
    let left = left.saturating_sub(start.elapsed());
    let start = Instant::now();
    let mut seen = Vec::new();
    let has_time = |runs: usize| start.elapsed() < if runs < 2 { left } else { left.min(LIMIT) };
    while seen.is_empty() || (seen.len() < RUNS && has_time(seen.len())) {
        seen.push(run()?);
    }
    Ok(seen)
}

impl HandOver {
    /// Derives the overheads of a single-stage pipeline from runs with one sequence (`alone`), with two sequences in
    /// micro-batches of their own (`pair`), and with several sequences (`many`).
    ///
    /// With two micro-batches in flight, the stage always has work. Alone, a micro-batch also waits until the device
    /// starts from idle. Profiles contain the times of a stage with work, so this wait belongs to the hand-over.
    fn of(alone: &[Seen], pair: &[Seen], many: &[Seen]) -> Option<Self> {
        let beside = median(pair.iter().filter_map(Seen::stages_us));
        let lost = |seen: &Seen| {
            let stages_us = seen.stages_us()?;
            Some(seen.round_us - beside.map_or(stages_us, |us| us.min(stages_us)) - seen.token_return()?.1)
        };
        let stage_us = median(alone.iter().filter_map(lost))?.max(0.0);
        let returned = |runs: &[Seen]| {
            let returns = || runs.iter().filter_map(Seen::token_return);
            Some((median(returns().map(|(rows, _)| rows))?, median(returns().map(|(_, us)| us))?))
        };
        let (one, one_us) = returned(alone)?;
        // The cost per row of logits covers the copy, the read and the sampling of a token.
        let row_us = match returned(many) {
            Some((rows, us)) if rows > one => ((us - one_us) / (rows - one)).max(0.0),
            _ => 0.0,
        };
        let latency_us = (one_us - one * row_us).max(0.0);
        Some(Self { stage_us, token_return: TokenReturn { latency_us, row_us } })
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::super::pipeline::tests::seen;
    use super::*;

    #[test]
    fn unexplained_time_counts_as_stage_overhead() {
        let alone = |round_us| seen(round_us, &[500], 60, 1);
        // Another process disturbed one of the runs.
        let alone = [alone(605.0), alone(905.0), alone(600.0)];
        let token_return = |latency_us, row_us| TokenReturn { latency_us, row_us };
        let measured = HandOver::of(&alone, &[], &[]).unwrap();
        assert_eq!(measured, HandOver { stage_us: 45.0, token_return: token_return(60.0, 0.0) });
        let many = [seen(900.0, &[700], 140, 5)];
        assert_eq!(HandOver::of(&alone, &[], &many).unwrap().token_return, token_return(40.0, 20.0));
        let pair = |stage_us| [seen(1000.0, &[stage_us], 60, 1)];
        assert_eq!(
            HandOver::of(&alone, &pair(470), &[]).unwrap().stage_us,
            75.0,
            "the device starts from idle"
        );
        assert_eq!(HandOver::of(&alone, &pair(530), &[]).unwrap().stage_us, 45.0, "both waited for the host");
        let quick = [seen(550.0, &[500], 60, 1)];
        assert_eq!(HandOver::of(&quick, &[], &[]).unwrap().stage_us, 0.0, "clocks are not exact");
        assert!(HandOver::of(&[], &[], &many).is_none(), "nothing was timed");
    }
}
