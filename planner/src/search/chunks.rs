//! Chooses the prefill chunks of a plan. Each prompt length gets the fastest chunk. While other sequences
//! generate, prompts get as many rows as delay those sequences little ([`MAX_MIXED`], [`MAX_DELAY_US`]). The chunks
//! do not apply to a prefill stage. Its chunks are as long as possible, because each of them copies weights.
//!
//! This module knows nothing about the search.

use super::PlannerInput;
use super::grid::{Choice, Grid};
use super::problem::Problem;
use super::workload_times::{Point, Times};
use crate::objective::Workload;
use ragtag_graph::execution::PREFILLS;
use ragtag_graph::execution::{Chunks, PromptChunk};

/// Shortest prompt that is evaluated, in tokens. Each further prompt is twice as long as the one before, up
/// to the context.
const SHORTEST: u32 = 64;
/// Maximum relative difference between times that count as equal. Short calibrations have errors of about
/// this size.
const SAME: f64 = 0.04;
/// Maximum time by which prefill chunks in flight may delay the next token of a generating sequence, in
/// microseconds.
const MAX_DELAY_US: f64 = 100e3;
/// Maximum time of a micro-batch with decode rows and prompt rows, relative to that of a decode micro-batch.
const MAX_MIXED: f64 = 3.0;
/// Number of prompt rows that may always enter beside decode rows, so that prompts progress.
const FEWEST_BESIDE: u32 = 16;

/// Returns chunks that do not depend on the prompt length. All prompts use the chunk of `choice`. While other
/// sequences generate, prompts use the rows of [`beside_decode`].
pub(super) fn fixed(grid: &Grid<'_>, choice: &Choice) -> Chunks {
    Chunks { beside_decode: beside_decode(grid, choice), ..Chunks::fixed(choice.point.chunk) }
}

/// Returns, for each prompt length, the fastest chunk at which the placement of `choice` fits.
pub(super) fn by_prompt(grid: &Grid<'_>, choice: &Choice) -> Chunks {
    let points = fitting(grid, choice);
    let mut by_prompt: Vec<PromptChunk> = Vec::new();
    let (mut from_tokens, mut tokens) = (0, SHORTEST);
    loop {
        let longest = grid.context.max(1);
        let rows = fastest(grid, choice, &points, tokens.min(longest));
        if by_prompt.last().is_none_or(|last| last.rows != rows) {
            by_prompt.push(PromptChunk { from_tokens, rows });
        }
        if tokens >= longest {
            break;
        }
        (from_tokens, tokens) = (tokens.saturating_add(1), tokens.saturating_mul(2));
    }
    Chunks { by_prompt, ..fixed(grid, choice) }
}

/// Returns the points that differ from the point of `choice` only in the chunk length and at which its
/// placement fits. The shortest chunk comes first.
fn fitting(grid: &Grid<'_>, choice: &Choice) -> Vec<Point> {
    let is_like = |point: &Point| Point { chunk: choice.point.chunk, ..*point } == choice.point;
    // Other decode steps would not be those of the plan.
    let rows = choice.workload_times.decode_rows;
    let decodes = |point: &Point| grid.problem(*point).workload_times.decode_rows == rows;
    let fits = |point: &Point| grid.problem(*point).prove_with(&choice.runs, choice.prefill_run()).is_ok();
    let mut points: Vec<Point> = grid.points().filter(is_like).filter(decodes).filter(fits).collect();
    points.sort_by_key(|point| point.chunk);
    points
}

/// Returns the rows of the best chunk for a prompt of `tokens` tokens. Considers only chunks up to the first
/// one that holds the whole prompt. Among equally fast chunks, a GPU gets the longest, because it then reads
/// the weights least often. A CPU gets the fastest, because its caches may favor short or long chunks. An
/// unmeasured chunk must be clearly faster than all measured chunks.
fn fastest(grid: &Grid<'_>, choice: &Choice, points: &[Point], tokens: u32) -> u32 {
    let workload = Workload { prompt_tokens: tokens, generated_tokens: 0 };
    let input = PlannerInput { workload, ..*grid.input };
    let devices = || choice.runs.iter().map(|run| &grid.input.devices[run.device]);
    let is_timed = |rows: u32| devices().all(|d| d.profile.as_ref().is_none_or(|p| p.has_chunk(rows)));
    let needed = points.partition_point(|point| point.chunk < tokens) + 1;
    let time = |point: &Point| {
        let us = grid.problem(*point).of_input(&input).evaluate(&choice.runs).score_us;
        (us, point.chunk)
    };
    let times: Vec<(f64, u32)> = points.iter().take(needed).map(time).collect();
    let (timed, other): (Vec<_>, Vec<_>) = times.iter().partition(|(_, rows)| is_timed(*rows));
    let (known, other) = if timed.is_empty() { (other, timed) } else { (timed, other) };
    let least_us = known.iter().map(|(us, _)| *us).fold(f64::INFINITY, f64::min);
    let clearly_faster = other.into_iter().filter(|(us, _)| *us < least_us * (1.0 - SAME));
    let fastest = clearly_faster.min_by(|a, b| a.0.total_cmp(&b.0));
    let most_us =
        if devices().all(|device| device.in_host_memory) { least_us } else { least_us / (1.0 - SAME) };
    let fastest = fastest.or_else(|| known.into_iter().rfind(|(us, _)| *us <= most_us));
    fastest.expect("a placement fits at its own point").1
}

/// Returns the maximum number of prompt rows in a micro-batch with decode rows. The micro-batch takes at most
/// [`MAX_MIXED`] times as long as a decode micro-batch, and the micro-batches in flight delay a token by at most
/// [`MAX_DELAY_US`]. Prompts always get [`FEWEST_BESIDE`] rows, or a whole chunk if it is shorter.
fn beside_decode(grid: &Grid<'_>, choice: &Choice) -> u32 {
    // A decode step waits for the other micro-batches in flight. They leave at the rate of the slowest stage.
    let prefills = if choice.prefill.is_some() { PREFILLS as u32 } else { 0 };
    let in_flight = f64::from(choice.credits.saturating_sub(prefills));
    let problem = grid.problem(choice.point);
    let slowest_us = |problem: &Problem<'_>, time_us: fn(&Times) -> f64| {
        problem.evaluate(&choice.runs).stages.iter().map(time_us).fold(0.0, f64::max)
    };
    let mixed_us = |rows: u32| slowest_us(&problem.mixing(rows), |times| times.full_chunk_us);
    let decode_us = slowest_us(problem, |times| times.decode_us);
    let most = choice.point.chunk;
    let doubled = std::iter::successors(Some(FEWEST_BESIDE), |rows| rows.checked_mul(2));
    let counts: Vec<u32> = doubled.take_while(|rows| *rows < most).chain([most]).collect();
    // With streamed weights, few rows may take as long as many.
    let fewest_us = if choice.stages_stream() { mixed_us(counts[0]) * (1.0 + SAME) } else { 0.0 };
    let most_us = (decode_us * MAX_MIXED).min((MAX_DELAY_US / in_flight).max(fewest_us));
    counts.iter().rev().copied().find(|rows| mixed_us(*rows) <= most_us).unwrap_or(counts[0])
}
