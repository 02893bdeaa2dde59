//! Compares a run with the predictions of its plan, and replans from measurements.

use super::{Planner, model_facts};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::stage::lowering;
use ragtag_graph::Segment;
use ragtag_planner::{ModelFacts, Plan};
use ragtag_scheduler::PipelineStats;
use ragtag_scheduler::compare::{Alike, Burst, Comparand, Comparison, facts_from, since};

/// Minimum [`Replanned::gain`] that justifies restarting the engine. The gain must also exceed the
/// uncertainty of the measurements.
const WORTHWHILE: f64 = 0.03;

/// Maximum number of corrections that replanning makes to the cost model, and the relative deviation from the
/// measurements below which it stops.
const CORRECTIONS: usize = 8;
const NEAR_ENOUGH: f64 = 0.01;

/// A plan that, according to measurements of a run, should be faster than the plan that ran.
#[derive(Clone, Debug)]
pub struct Replanned {
    /// Planner that made the plan. It uses the measured facts and ignores the user's split.
    pub planner: Planner,
    /// Plan that the planner made.
    pub plan: Plan,
    /// Ratio of the old plan's predicted time to the new plan's predicted time, minus 1. Both predictions use
    /// the measured facts.
    pub gain: f64,
}

/// Inputs of a comparison besides the planner: the plan that ran, its segments, and the statistics of the
/// run.
struct Measured {
    plan: Plan,
    segments: Vec<Segment>,
    row_bytes: u64,
    stats: PipelineStats,
}

impl Measured {
    fn new(planner: &Planner, plan: &Plan, stats: PipelineStats) -> Result<Self> {
        let (model, facts) = (&planner.model, model_facts(&planner.model)?);
        let segments = model
            .graph()
            .with_granularity(plan.model.granularity)
            .segments(&lowering(plan, false))
            .map_err(|cause| Error::Model { name: model.name().into(), cause })?;
        Ok(Self { plan: plan.clone(), segments, row_bytes: facts.row_bytes, stats })
    }

    fn comparand<'a>(&'a self, planner: &'a Planner) -> Comparand<'a> {
        let Self { plan, segments, row_bytes, .. } = self;
        Comparand {
            plan,
            segments,
            row_bytes: *row_bytes,
            return_row_bytes: ModelFacts::RETURN_ROW_BYTES,
            devices: &planner.devices,
            links: &planner.links,
        }
    }
}

impl Planner {
    /// Compares the predictions of the cost model with all measurements of an engine since its start. Ignores
    /// the first micro-batch of each size on each stage, because it may have waited for compilation. `bursts`
    /// contains bursts with their measured rates in tokens per second. The comparison includes their
    /// predicted rates.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the model cannot be lowered for the plan.
    pub fn compare(&self, engine: &Engine, bursts: &[(Burst, f64)]) -> Result<Comparison> {
        self.compare_since(engine, &PipelineStats::default(), bursts)
    }

    /// Compares predictions with measurements like [`Planner::compare`], but uses only the measurements after
    /// `before`, which is an earlier result of [`Engine::stats`].
    ///
    /// # Errors
    /// Fails like [`Planner::compare`].
    pub fn compare_since(
        &self,
        engine: &Engine,
        before: &PipelineStats,
        bursts: &[(Burst, f64)],
    ) -> Result<Comparison> {
        let measured = Measured::new(self, &engine.plan(), since(before, &engine.stats()))?;
        let of = measured.comparand(self);
        let mut comparison = Comparison::new(&of, &measured.stats);
        for (burst, tokens_per_s) in bursts {
            comparison.add_rate(&of, burst, *tokens_per_s);
        }
        Ok(comparison)
    }

    /// Makes a new plan from the measurements of an engine. Returns this plan if its split differs from that
    /// of the running plan, and if its predicted gain exceeds both 3 % and the measurement noise. Otherwise
    /// returns `None`. Ignores the user's split.
    ///
    /// The planner assumes that devices of the same kind are equally fast, unless their measured times differ
    /// by far more than the noise over many micro-batches.
    ///
    /// # Errors
    /// Fails like [`Planner::plan`].
    pub fn replan(&self, engine: &Engine) -> Result<Option<Replanned>> {
        self.replan_from(&Measured::new(self, &engine.plan(), engine.stats())?)
    }

    fn replan_from(&self, measured: &Measured) -> Result<Option<Replanned>> {
        let granularity = Some(measured.plan.model.granularity);
        let mut planner = Self { split: None, granularity, ..self.clone() };
        planner.limits.context = Some(measured.plan.context);
        let first = Comparison::new(&measured.comparand(&planner), &measured.stats);
        let alike = Alike::of(&first, &planner.devices);
        for _ in 0..CORRECTIONS {
            let comparison = Comparison::new(&measured.comparand(&planner), &measured.stats);
            let (devices, links) = facts_from(&comparison, &alike, &planner.devices, &planner.links);
            (planner.devices, planner.links) = (devices, links);
            if comparison.largest_stage_deviation() < NEAR_ENOUGH {
                break;
            }
        }
        let plan = planner.plan()?;
        let split = measured.plan.split();
        if plan.split() == split {
            return Ok(None);
        }
        let before = planner.clone().split(split).plan()?;
        let gain = before.explanation.score_us / plan.explanation.score_us - 1.0;
        Ok((gain > WORTHWHILE.max(first.uncertainty())).then_some(Replanned { planner, plan, gain }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use ragtag_hal::AdapterKind;
    use ragtag_planner::{DeviceFacts, FigureSource};
    use ragtag_scheduler::{Computed, SizeReport, StageReport};

    fn planner() -> Planner {
        let device = |label| DeviceFacts::assumed(label, AdapterKind::Cpu, 1, 1 << 30, FigureSource::User);
        let planner = Planner::new(&Model::bundled().unwrap()).context(64).sequences(8);
        planner.device_facts(vec![device("cpu:0"), device("cpu:1")])
    }

    /// Returns statistics of a run with `count` micro-batches per phase. The time of each stage is its
    /// predicted time multiplied by its factor in `factors`, with a relative spread of `share`.
    fn measured(planner: &Planner, factors: [f64; 2], count: u64, share: f64) -> Measured {
        let plan = planner.plan().unwrap();
        let stage = |busy_ns: u64, decode: bool| {
            let rows = if decode { plan.decode_rows } else { plan.chunk };
            let with_logits = u64::from(decode) * count;
            let (sequences, rows) = (if decode { rows.into() } else { 1 }, u64::from(rows));
            let square_us2 = (busy_ns as f64 / 1e3).powi(2) * (1.0 + share * share);
            let computed = Computed {
                micro_batches: count,
                rows: rows * count,
                sequences: sequences * count,
                positions: rows * 20 * count,
                logit_rows: rows * with_logits,
                with_logits,
                busy_ns: busy_ns * count,
                busy_us2: (square_us2 * count as f64) as u64,
            };
            let rows = u32::try_from(rows).unwrap().next_power_of_two();
            let sizes = vec![SizeReport { decode, rows, computed, warm: computed }];
            match decode {
                true => StageReport { decode: computed, sizes, ..StageReport::default() },
                false => StageReport { prefill: computed, sizes, ..StageReport::default() },
            }
        };
        let report = |decode: f64, prefill: f64| {
            let (decode, prefill) = (stage(decode as u64, true), stage(prefill as u64, false));
            let sizes = [decode.sizes, prefill.sizes].concat();
            StageReport { decode: decode.decode, prefill: prefill.prefill, sizes, ..StageReport::default() }
        };
        let with = |stages| PipelineStats { stages, ..PipelineStats::default() };
        let probe = with(plan.stages.iter().map(|_| report(1e6, 1e6)).collect());
        let probe = Measured::new(planner, &plan, probe).unwrap();
        let predicted = Comparison::new(&probe.comparand(planner), &probe.stats);
        let stages = (0..plan.stages.len()).zip(factors).map(|(index, factor)| {
            use ragtag_scheduler::compare::Phase;
            let ns = |phase| {
                let part = predicted.part(ragtag_planner::Place::Stage, index, phase).unwrap();
                part.predicted_us * 1e3 * factor
            };
            report(ns(Phase::Decode), ns(Phase::Prefill))
        });
        Measured { stats: with(stages.collect()), ..probe }
    }

    fn segments_on(plan: &Plan, device: &str) -> usize {
        plan.stages.iter().filter(|s| s.device == device).map(|s| s.segments.range().len()).sum()
    }

    #[test]
    fn segments_move_away_from_a_slow_device() {
        let planner = planner();
        let before = planner.plan().unwrap();
        assert_eq!(before.stages.len(), 2);
        let slow = |planner: &Planner| measured(planner, [1.0, 4.0], 20, 0.1);
        let replanned = planner.replan_from(&slow(&planner)).unwrap().unwrap();
        let (old, new) = (segments_on(&before, "cpu:1"), segments_on(&replanned.plan, "cpu:1"));
        assert!(new < old, "{old} segments before, {new} after");
        assert!(replanned.gain > 0.3, "{}", replanned.gain);
        // A user's split does not prevent replanning.
        let pinned = planner.clone().split(before.split());
        assert!(pinned.replan_from(&slow(&pinned)).unwrap().is_some());
    }

    #[test]
    fn a_plan_that_runs_as_predicted_is_kept() {
        let planner = planner();
        assert!(planner.replan_from(&measured(&planner, [1.0, 1.0], 20, 0.1)).unwrap().is_none());
        // Both devices deviate by the same factor, so the best split is unchanged.
        assert!(planner.replan_from(&measured(&planner, [2.0, 2.0], 20, 0.1)).unwrap().is_none());
    }

    #[test]
    fn noise_between_equal_halves_moves_nothing() {
        let planner = planner();
        for (factors, count, share) in [([1.0, 1.5], 3, 0.05), ([1.6, 1.0], 12, 0.3), ([1.0, 2.0], 60, 0.6)] {
            let replanned = planner.replan_from(&measured(&planner, factors, count, share)).unwrap();
            assert!(replanned.is_none(), "{factors:?}, {count} of {share}: {replanned:?}");
        }
        // The same difference counts if there are many micro-batches with little noise.
        assert!(planner.replan_from(&measured(&planner, [1.0, 1.5], 60, 0.05)).unwrap().is_some());
        // If the devices are not equal, any difference beyond the noise counts.
        let mut unlike = planner.clone();
        unlike.devices[1].launch_us.value *= 1.01;
        assert!(unlike.replan_from(&measured(&unlike, [1.0, 1.5], 12, 0.05)).unwrap().is_some());
        assert!(unlike.replan_from(&measured(&unlike, [1.0, 1.5], 3, 0.9)).unwrap().is_none());
    }
}
