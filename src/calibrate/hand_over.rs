//! Timing the way of a token through a real pipeline: what of it no stage, no edge and no return of tokens accounts for.
//!
//! The pipeline has two stages on one device, which is opened twice: the blocks that are timed elsewhere, and nothing. One
//! sequence goes round. Whatever is measured of a round is taken off the same round, so that neither a device that drifts
//! nor a host that is busy is taken for something else.

use super::steps::Steps;
use crate::devices::Devices;
use crate::engine::FileWeights;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_hal::Timing;
use ragtag_scheduler::core::Sample;
use ragtag_scheduler::{
    Crossed, Job, Pipeline, PipelineOptions, PipelineStats, Reply, Request, Sampler, Sampling, StageSpec,
};
use std::sync::mpsc;

/// Sequences that go round, one after the other, and the tokens of each.
const SEQUENCES: usize = 6;
const TOKENS: u32 = 16;
/// The pipeline's stages.
const STAGES: usize = 2;

/// What a round of one sequence loses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandOver {
    /// On each stage, besides the stage's own time, in microseconds.
    pub(super) stage_us: f64,
    /// From the end of the last stage's work until the coordinator has sent on what follows, in microseconds.
    pub(super) return_us: f64,
}

/// Times a device; `None` if it does not tell how long it works.
pub(super) fn measure(
    model: &Model,
    devices: &Devices,
    steps: &Steps,
    label: &str,
) -> Result<Option<HandOver>> {
    let segments = steps.keys.len();
    let cut = steps.window.end;
    let mut specs = Vec::new();
    let labels = [label.to_owned(), label.to_owned()];
    for (at, (adapter, device)) in devices.open(&labels)?.into_iter().enumerate() {
        let range = if at == 0 { 0..cut } else { cut..segments };
        let mut compiled = steps.compile(range, &adapter)?;
        if at > 0 {
            compiled.programs.iter_mut().for_each(|program| program.steps.clear());
            compiled.weights.clear();
            compiled.kv_bytes.clear();
        }
        let weights = Box::new(FileWeights::new(model, &compiled));
        specs.push(StageSpec { device: Box::new(device), compiled, weights });
    }
    let lowering = &steps.lowering;
    let mut options = PipelineOptions::new(STAGES, lowering.context, lowering.cache_blocks(), lowering.chunk);
    options.decode_groups = 1;
    let pipeline = Pipeline::start(specs, &options, |_| ())?;
    let mut rounds = Vec::new();
    for _ in 0..SEQUENCES {
        let before = pipeline.stats();
        let round_us = round_us(&pipeline)?;
        rounds.extend(Round::between(&before, &pipeline.stats(), round_us));
    }
    pipeline.shutdown();
    // The one that was disturbed least. The first has recorded its programs on the way.
    let undisturbed = rounds.iter().min_by(|a, b| a.overhead_us().total_cmp(&b.overhead_us()));
    Ok(undisturbed.map(Round::hand_over))
}

/// From a token of a sequence alone in the pipeline to its next, on average, in microseconds.
fn round_us(pipeline: &Pipeline) -> Result<f64> {
    let (tell, told) = mpsc::channel();
    // What a stage of nothing leaves for logits means nothing.
    let sampler = Sampler::new(Sampling::greedy()).map_err(|error| Error::Usage(error.to_string()))?;
    let job = Job::Generate {
        max_new_tokens: TOKENS,
        end_tokens: Vec::new(),
        sampler: Box::new(Whatever { sampler }),
    };
    let reply = Box::new(move |reply| {
        // Nobody listens any more: then nobody wants it.
        let _ = tell.send((Timing::now_ns(), reply));
    });
    pipeline.submit(Request { prompt: vec![1], job, reply });
    let mut times_ns = Vec::new();
    for (at_ns, reply) in told {
        match reply {
            Reply::Token { .. } => times_ns.push(at_ns),
            Reply::Failed(error) => return Err(error.into()),
            Reply::Finished(_) => break,
            Reply::Logits { .. } => {}
        }
    }
    let between_ns = times_ns.last().zip(times_ns.first()).map_or(0, |(last, first)| last - first);
    Ok(between_ns as f64 / 1e3 / (times_ns.len().max(2) - 1) as f64)
}

/// Takes as long as choosing a token does, and chooses the same whatever comes of that.
struct Whatever {
    sampler: Sampler,
}

impl Sample for Whatever {
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> std::result::Result<u32, String> {
        Ok(self.sampler.sample(logits, history).map_or(1, |_| 1))
    }
}

/// A round of one sequence on average, and what was measured of it, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    whole_us: f64,
    stages_us: f64,
    edge_us: f64,
    return_us: f64,
}

impl Round {
    /// What was measured between two looks at a pipeline; `None` if something was not.
    fn between(before: &PipelineStats, after: &PipelineStats, whole_us: f64) -> Option<Self> {
        let mean_us = |busy_ns: u64, count: u64| (count > 0).then(|| busy_ns as f64 / 1e3 / count as f64);
        let stages = before.stages.iter().zip(&after.stages).map(|(before, after)| {
            let (before, after) = (before.decode, after.decode);
            mean_us(after.busy_ns - before.busy_ns, after.micro_batches - before.micro_batches)
        });
        let crossed = |before: Crossed, after: Crossed| {
            mean_us(after.busy_ns - before.busy_ns, after.crossings - before.crossings)
        };
        let (edge_before, edge_after) = (before.edges.first()?, after.edges.first()?);
        Some(Self {
            whole_us,
            stages_us: stages.sum::<Option<f64>>()?,
            edge_us: crossed(edge_before.decode, edge_after.decode)?,
            return_us: crossed(before.token_return.decode, after.token_return.decode)?,
        })
    }

    fn overhead_us(&self) -> f64 {
        self.whole_us - self.stages_us
    }

    fn hand_over(&self) -> HandOver {
        let lost_us = self.overhead_us() - self.edge_us - self.return_us;
        HandOver { stage_us: (lost_us / STAGES as f64).max(0.0), return_us: self.return_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::{Computed, EdgeReport, StageReport};

    #[test]
    fn what_nothing_accounts_for_is_lost_on_the_stages() {
        let at = |steps: u64| {
            let computed =
                |us| Computed { micro_batches: steps, busy_ns: steps * us * 1000, ..Computed::default() };
            let stage = |us| StageReport { decode: computed(us), ..StageReport::default() };
            let crossed = |us| Crossed { crossings: steps, bytes: 0, busy_ns: steps * us * 1000 };
            let edge = |us| EdgeReport { decode: crossed(us), ..EdgeReport::default() };
            PipelineStats {
                stages: vec![stage(500), stage(10)],
                edges: vec![edge(40)],
                token_return: edge(60),
                ..PipelineStats::default()
            }
        };
        let round = Round::between(&at(10), &at(30), 700.0).unwrap();
        assert_eq!(round.hand_over(), HandOver { stage_us: 45.0, return_us: 60.0 });
        let quick = Round::between(&at(10), &at(30), 600.0).unwrap();
        assert_eq!(quick.hand_over().stage_us, 0.0, "clocks are not exact");
        assert!(Round::between(&at(10), &at(10), 700.0).is_none(), "nothing was timed");
    }
}
