//! The calibration pipeline. It has the actor, mailboxes and coordinator of a real pipeline, but its only stage
//! has just the head.
//!
//! Overheads between steps are realistic only if the stage takes as long as in a real run. In a real run, a
//! stage takes milliseconds, while the other threads sleep and their cores are idle. The calibration pipeline
//! therefore repeats the dispatches of a decode step.

use super::filling::Filling;
use super::steps::{Steps, micro_batch};
use crate::calibrate::solo::SoloBatch;
use crate::devices::Devices;
use crate::error::{Error, Result};
use ragtag_graph::CompiledStage;
use ragtag_hal::Timing;
use ragtag_planner::cost::Profile;
use ragtag_scheduler::core::Sample;
use ragtag_scheduler::remote::Remote;
use ragtag_scheduler::{
    Flow, Job, Noise, Picks, Pipeline, PipelineOptions, PipelineSpec, PipelineStats, Reply, Request, Sampler,
    Sampling, StageSpec,
};
use std::sync::mpsc;
use std::time::Duration;

/// Usual and maximum duration of a decode step on each stage, in microseconds. Dispatches are repeated to reach about
/// this time.
pub(super) const BUSY_US: f64 = 1500.0;
/// Maximum number of repetitions of a decode step's dispatches.
const MAX_TIMES: f64 = 64.0;
/// Time to wait after the last token, during which the pipeline records the remaining statistics.
const SETTLED: Duration = Duration::from_millis(2);

/// A running calibration pipeline.
pub(super) struct CalibrationPipeline {
    pipeline: Pipeline,
    return_row_bytes: u64,
}

impl CalibrationPipeline {
    /// Starts a pipeline with a stage on the device `label`. `profile` gives the time of its segment. The dispatches
    /// are repeated until a stage takes about `busy_us` microseconds.
    pub(super) fn start(
        devices: &Devices,
        steps: &Steps,
        label: &str,
        profile: &Profile,
        busy_us: f64,
    ) -> Result<Self> {
        let (adapter, device) = devices.open(&[label.to_owned()])?.swap_remove(0);
        let head = steps.head();
        let mut compiled = steps.compile(head..head + 1, &adapter)?;
        // The segments of a pipeline start at 0.
        compiled.segments = 0..1;
        let alone = micro_batch(&SoloBatch::decode(1, 1));
        let step_us = profile.time(&steps.keys[head], &alone).map_or(busy_us, |time| time.value);
        let lowering = &steps.lowering;
        lengthen(&mut compiled, busy_us / step_us.max(1.0), lowering.sequences);
        let return_row_bytes = compiled.result.picks_row_bytes();
        let weights = Box::new(Filling::new(&compiled));
        let stages = vec![StageSpec::new(0, compiled, weights)];
        let mut options =
            PipelineOptions::new(stages.len(), lowering.context, lowering.cache_blocks(), lowering.chunk);
        // Two sequences decode in micro-batches of their own.
        options.decode_groups = 2;
        let spec = PipelineSpec {
            devices: vec![Box::new(device)],
            stages,
            prefill: None,
            events: None,
            remote: Remote::default(),
        };
        Ok(Self { pipeline: Pipeline::start(spec, &options, |_| ())?, return_row_bytes })
    }

    /// Runs `sequences` concurrent sequences, each with `prompt` prompt tokens and `tokens` new tokens.
    /// Returns the statistics of the run.
    pub(super) fn run(&self, sequences: u32, prompt: u32, tokens: u32) -> Result<Seen> {
        let before = self.pipeline.stats();
        let (sender, replies) = mpsc::channel();
        for sequence in 0..sequences {
            self.submit(sequence, prompt, tokens, &sender)?;
        }
        drop(sender);
        let mut times_ns = Vec::new();
        for (sequence, at_ns, reply) in replies {
            match reply {
                Reply::Token { .. } if sequence == 0 => times_ns.push(at_ns),
                Reply::Failed(error) => return Err(error.into()),
                Reply::Token { .. } | Reply::Finished(_) | Reply::Logits { .. } => {}
            }
        }
        let between_ns = times_ns.last().zip(times_ns.first()).map_or(0, |(last, first)| last - first);
        let round_us = between_ns as f64 / 1e3 / (times_ns.len().max(2) - 1) as f64;
        std::thread::sleep(SETTLED);
        Ok(Seen { round_us, before, after: self.pipeline.stats(), return_row_bytes: self.return_row_bytes })
    }

    fn submit(
        &self,
        sequence: u32,
        prompt: u32,
        tokens: u32,
        sender: &mpsc::Sender<(u32, u64, Reply)>,
    ) -> Result<()> {
        let sampler = Sampler::new(Sampling::default()).map_err(|error| Error::Usage(error.to_string()))?;
        let sender = sender.clone();
        let reply = move |reply| {
            // Sending fails only if the receiver was dropped, and then the reply is not needed.
            let _ = sender.send((sequence, Timing::now_ns(), reply));
            Flow::Go
        };
        let job = Job::generate(tokens, FixedChoice { sampler });
        let request = Request::new(vec![1; prompt as usize], job, reply);
        self.pipeline.submit(Request { shares_prefix: false, ..request });
        Ok(())
    }
}

/// Repeats the dispatches of a stage's decode step `times` times. Removes the dispatches of chunks.
fn lengthen(compiled: &mut CompiledStage, times: f64, sequences: u32) {
    let times = times.ceil().clamp(1.0, MAX_TIMES) as usize;
    for program in &mut compiled.programs {
        let steps = std::mem::take(&mut program.steps);
        if program.params.rows <= sequences {
            program.steps = std::iter::repeat_n(steps, times).flatten().collect();
        }
    }
}

/// A sampler that takes as long as a real sampler but always returns token 1.
struct FixedChoice {
    sampler: Sampler,
}

impl Sample for FixedChoice {
    fn window(&self) -> usize {
        self.sampler.window()
    }

    fn sample(&mut self, logits: &[f32], history: &[u32]) -> std::result::Result<u32, String> {
        Ok(self.sampler.sample(logits, history).map_or(1, |_| 1))
    }

    fn wants_rows(&self) -> bool {
        self.sampler.wants_rows()
    }

    fn noise(&self) -> Option<Noise> {
        self.sampler.noise()
    }

    fn sample_picks(&mut self, picks: &Picks<'_>, history: &[u32]) -> std::result::Result<u32, String> {
        Ok(self.sampler.sample_picks(picks, history).map_or(1, |_| 1))
    }
}

/// Statistics of the pipeline before and after a run.
#[derive(Debug)]
pub(super) struct Seen {
    /// Mean time between two new tokens of the first sequence, in microseconds.
    pub(super) round_us: f64,
    before: PipelineStats,
    after: PipelineStats,
    return_row_bytes: u64,
}

impl Seen {
    /// Returns the mean time of a decode step, summed over all stages, in microseconds. Returns `None` if a
    /// stage has run no decode step.
    pub(super) fn stages_us(&self) -> Option<f64> {
        let stages = self.before.stages.iter().zip(&self.after.stages).map(|(before, after)| {
            let (before, after) = (before.decode, after.decode);
            let count = after.micro_batches - before.micro_batches;
            (count > 0).then(|| (after.busy_ns - before.busy_ns) as f64 / 1e3 / count as f64)
        });
        stages.sum()
    }

    /// Returns the mean token return of a decode step: the number of rows of logits, and the time in
    /// microseconds.
    pub(super) fn token_return(&self) -> Option<(f64, f64)> {
        let (before, after) = (self.before.token_return.decode, self.after.token_return.decode);
        let count = after.crossings - before.crossings;
        let mean = |sum: u64| sum as f64 / count as f64;
        let rows = mean(after.bytes - before.bytes) / self.return_row_bytes as f64;
        (count > 0).then(|| (rows, mean(after.busy_ns - before.busy_ns) / 1e3))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ragtag_scheduler::{Computed, Crossed, EdgeReport, StageReport};

    /// Returns the statistics of a run in which the round, each stage and the token return take the given
    /// times for every decode step. `rows` is the number of rows of logits.
    pub(crate) fn seen(round_us: f64, stages_us: &[u64], return_us: u64, rows: u64) -> Seen {
        let at = |steps: u64| {
            let computed = |us: u64| Computed {
                micro_batches: steps,
                busy_ns: steps * us * 1000,
                ..Computed::default()
            };
            let crossed = |bytes: u64, us: u64| EdgeReport {
                decode: Crossed {
                    crossings: steps,
                    bytes: steps * bytes,
                    busy_ns: steps * us * 1000,
                    untimed: 0,
                },
                ..EdgeReport::default()
            };
            PipelineStats {
                stages: stages_us
                    .iter()
                    .map(|&us| StageReport { decode: computed(us), ..StageReport::default() })
                    .collect(),
                token_return: crossed(64 * rows, return_us),
                ..PipelineStats::default()
            }
        };
        Seen { round_us, before: at(10), after: at(30), return_row_bytes: 64 }
    }

    #[test]
    fn statistics_cover_only_the_run() {
        let run = seen(800.0, &[500, 10], 60, 3);
        assert_eq!(run.stages_us(), Some(510.0));
        assert_eq!(run.token_return(), Some((3.0, 60.0)));
        let nothing = Seen { after: run.before.clone(), ..run };
        assert_eq!((nothing.stages_us(), nothing.token_return()), (None, None));
    }
}
