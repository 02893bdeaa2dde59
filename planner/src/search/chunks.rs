//! Chooses the prefill chunks of a plan. Each prompt length gets the fastest chunk. While other sequences
//! generate, prompts get the longest chunk that delays those sequences by at most [`MAX_DELAY_US`]. The chunks
//! do not apply to a prefill stage. Its chunks are as long as possible, because each of them copies weights.
//!
//! This module knows nothing about the search.

use super::PlannerInput;
use super::grid::{Choice, Grid};
use super::workload_times::Point;
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

/// Returns chunks that do not depend on the prompt length. All prompts use the chunk of `choice`. While other
/// sequences generate, prompts use the longest chunk that [`MAX_DELAY_US`] allows.
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

/// Returns the longest chunk that delays a token by at most [`MAX_DELAY_US`], or the shortest chunk if every
/// chunk delays it more. The result is never longer than the chunk of `choice`.
fn beside_decode(grid: &Grid<'_>, choice: &Choice) -> u32 {
    // A decode step waits for the other micro-batches in flight. They leave at the rate of the slowest stage.
    let prefills = if choice.prefill.is_some() { PREFILLS as u32 } else { 0 };
    let in_flight = f64::from(choice.credits.saturating_sub(prefills));
    let delay_us = |point: &Point| {
        let evaluation = grid.problem(*point).evaluate(&choice.runs);
        let slowest_us = evaluation.stages.iter().map(|times| times.full_chunk_us).fold(0.0, f64::max);
        slowest_us * in_flight
    };
    let points = fitting(grid, choice);
    let shorter = || points.iter().filter(|point| point.chunk <= choice.point.chunk);
    // With streamed weights, the shortest chunk may take as long as a much longer one.
    let shortest = shorter().next().filter(|_| choice.stages_stream());
    let most_us = shortest.map_or(0.0, |point| delay_us(point) * (1.0 + SAME)).max(MAX_DELAY_US);
    let longest = shorter().rfind(|point| delay_us(point) <= most_us);
    let rows = longest.or_else(|| shorter().next()).map_or(choice.point.chunk, |point| point.chunk);
    // Leave room for as many prompt rows as decode rows.
    rows.max(choice.workload_times.decode_rows.saturating_mul(2)).min(choice.point.chunk)
}
