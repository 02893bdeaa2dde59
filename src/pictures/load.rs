//! Predicted utilization of stages and edges.

use ragtag_planner::plan::{Plan, PredictedTimes};

/// Utilization of a stage or an edge while the pipeline is full, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub decode: f64,
    pub prefill: f64,
}

/// Interval at which a full pipeline completes micro-batches, in microseconds, for decode and for prefill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beat {
    decode_us: f64,
    prefill_us: f64,
}

impl Beat {
    pub(super) fn of(plan: &Plan) -> Self {
        let interval_us = |tokens: u32, per_s: f64| f64::from(tokens) / per_s * 1e6;
        let prefill_rows = match plan.predicted.prefill_rows {
            0 => plan.chunk,
            rows => rows,
        };
        Self {
            decode_us: interval_us(plan.decode_rows, plan.predicted.decode_tokens_per_s),
            prefill_us: interval_us(prefill_rows, plan.predicted.prefill_tokens_per_s),
        }
    }

    /// Returns the utilization of a stage or an edge that takes `times` for each micro-batch.
    pub(super) fn load(&self, times: PredictedTimes) -> Load {
        Load {
            decode: share(times.decode_us, self.decode_us),
            prefill: share(times.prefill_us, self.prefill_us),
        }
    }
}

/// Returns `part / whole`, limited to the range from 0 to 1. Returns 0 if the quotient is not finite.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_between_0_and_1() {
        assert_eq!(share(1.0, 4.0), 0.25);
        assert_eq!(share(5.0, 4.0), 1.0);
        for (part, whole) in [(0.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN), (-1.0, 2.0), (1.0, 0.0)] {
            assert_eq!(share(part, whole), 0.0, "{part} / {whole}");
        }
    }

    #[test]
    fn the_only_stage_of_a_plan_is_always_busy() {
        let model = crate::Model::bundled().unwrap();
        let device = ragtag_planner::DeviceFacts::assumed(
            "cpu:0",
            ragtag_hal::AdapterKind::Cpu,
            1,
            1 << 30,
            ragtag_planner::FigureSource::User,
        );
        // Launches are expensive, so the planner prefers longer chunks.
        let launch_us = ragtag_planner::Figure { value: 2000.0, ..device.launch_us };
        let device = ragtag_planner::DeviceFacts { launch_us, ..device };
        let plan = crate::Planner::new(&model).device_facts(vec![device]).plan().unwrap();
        let chunks = plan.chunks();
        assert!(chunks.least_rows() < chunks.most_rows(), "{chunks:?}");
        let load = Beat::of(&plan).load(plan.stages[0].predicted);
        assert!(load.prefill > 0.99, "{load:?}");
    }

    #[test]
    fn load_is_time_over_the_interval_between_micro_batches() {
        let beat = Beat { decode_us: 1000.0, prefill_us: 20_000.0 };
        let load = beat.load(PredictedTimes { decode_us: 250.0, prefill_us: 20_000.0 });
        assert_eq!(load, Load { decode: 0.25, prefill: 1.0 });
    }
}
