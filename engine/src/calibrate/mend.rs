//! Corrects profiles by the times of runs. This module only computes.

use ragtag_planner::Place;
use ragtag_planner::cost::Profile;
use ragtag_scheduler::compare::{ComparedPart, Comparison, Phase};

/// A run contradicts a profile if measured and predicted times differ by more than this factor, in either
/// direction. The run must have at least the following numbers of decode steps or chunks.
const CONTRADICTING_FACTOR: f64 = 1.3;
const CONTRADICTING_STEPS: u64 = 16;
const CONTRADICTING_CHUNKS: u64 = 4;
/// Maximum factor of a correction. A larger deviation has another cause than the device's speed.
const MAX_FACTOR: f64 = 10.0;

/// Returns the profile of the devices with the given labels, with the times that a run has contradicted replaced by
/// those of the run. Returns `None` if the run contradicts no time.
pub(super) fn mended(profile: &Profile, labels: &[&str], comparison: &Comparison) -> Option<Profile> {
    let mut mended = profile.clone();
    for phase in [Phase::Decode, Phase::Prefill] {
        let is_own = |part: &&ComparedPart| {
            part.phase == phase && part.place == Place::Stage && labels.contains(&part.device.as_str())
        };
        if let Some(Mean { rows, predicted_us, measured_us }) =
            Mean::of(comparison.parts.iter().filter(is_own), phase)
        {
            let net_us = |us: f64| (us - profile.stage_us).max(us / MAX_FACTOR);
            let factor = net_us(measured_us) / net_us(predicted_us);
            mended.scale(phase == Phase::Decode, rows, factor.clamp(1.0 / MAX_FACTOR, MAX_FACTOR));
        }
    }
    let returned = comparison.part(Place::TokenReturn, 0, Phase::Decode);
    let returned = returned.filter(|part| labels.contains(&part.device.as_str()));
    if let Some(Mean { predicted_us, measured_us, .. }) = Mean::of(returned.into_iter(), Phase::Decode) {
        let latency_us = &mut mended.token_return.latency_us;
        *latency_us = (*latency_us + measured_us - predicted_us).max(0.0);
    }
    (mended != *profile).then_some(mended)
}

/// Mean times of several parts that contradict their prediction together.
struct Mean {
    rows: f64,
    predicted_us: f64,
    measured_us: f64,
}

impl Mean {
    /// Returns the mean, or `None` if there are too few micro-batches or if the prediction holds.
    fn of<'a>(parts: impl Iterator<Item = &'a ComparedPart>, phase: Phase) -> Option<Self> {
        let (mut count, mut mean) = (0, Self { rows: 0.0, predicted_us: 0.0, measured_us: 0.0 });
        for part in parts {
            let of = part.micro_batches as f64;
            count += part.micro_batches;
            mean.rows += part.rows * of;
            mean.predicted_us += part.predicted_us * of;
            mean.measured_us += part.measured_us * of;
        }
        let fewest = match phase {
            Phase::Decode => CONTRADICTING_STEPS,
            Phase::Prefill => CONTRADICTING_CHUNKS,
        };
        let factor = mean.measured_us / mean.predicted_us;
        let holds = (1.0 / CONTRADICTING_FACTOR..=CONTRADICTING_FACTOR).contains(&factor);
        let each = |sum: f64| sum / count as f64;
        (count >= fewest && factor.is_finite() && !holds).then(|| Self {
            rows: each(mean.rows),
            predicted_us: each(mean.predicted_us),
            measured_us: each(mean.measured_us),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ragtag_graph::SegmentKind;
    use ragtag_planner::cost::{KindProfile, SegmentKey, TimePoint, TimeSample};

    /// Returns the comparison of a part of a run on `cpu:0`. The predicted time is 1000 µs.
    pub(crate) fn part(
        place: Place,
        phase: Phase,
        micro_batches: u64,
        rows: f64,
        factor: f64,
    ) -> ComparedPart {
        ComparedPart {
            place,
            index: 0,
            is_prefill_stage: false,
            device: "cpu:0".into(),
            to: None,
            phase,
            micro_batches,
            rows,
            bytes: 0.0,
            predicted_us: 1000.0,
            measured_us: 1000.0 * factor,
            spread: None,
            waited_us: 0.0,
            deviation: factor - 1.0,
            parts: Default::default(),
            finding: None,
        }
    }

    /// Returns a profile with a stage overhead of 1 µs, decode steps and two chunks.
    fn profile() -> Profile {
        let sample = |(rows, sequences): (u32, u32)| TimeSample {
            at: TimePoint { rows, sequences, positions: 32.0 },
            median_us: 100.0,
            spread_us: 1.0,
            count: 9,
        };
        let key = SegmentKey {
            kind: SegmentKind::Block,
            flops_per_row: 1 << 20,
            flops_per_row_position: 0,
            read_bytes: 1 << 20,
            experts: None,
            read_bytes_per_row: 0,
            kv_bytes_per_position: 64,
            window: None,
            state_bytes: 0,
        };
        let kinds = vec![KindProfile::new(key, [(1, 1), (16, 1), (512, 1)].map(sample).to_vec())];
        Profile { kinds, ..super::super::kept::tests::profile(7) }
    }

    #[test]
    fn contradicted_times_become_those_of_the_run() {
        let mended = |parts: &[ComparedPart], labels: &[&str]| {
            mended(&profile(), labels, &Comparison { parts: parts.to_vec(), ..Comparison::default() })
        };
        let times =
            |profile: &Profile| profile.kinds[0].samples.iter().map(|it| it.median_us).collect::<Vec<_>>();
        let near = |profile: Option<Profile>, expected: [f64; 3]| {
            let times = times(&profile.unwrap());
            assert!(times.iter().zip(expected).all(|(time, us)| (time / us - 1.0).abs() < 0.01), "{times:?}");
        };
        let decode = |count, factor| part(Place::Stage, Phase::Decode, count, 1.0, factor);
        let chunk = |count, factor| part(Place::Stage, Phase::Prefill, count, 400.0, factor);
        near(mended(&[decode(100, 2.0)], &["cpu:0"]), [200.0, 100.0, 100.0]);
        near(mended(&[chunk(4, 3.0)], &["cpu:0"]), [100.0, 100.0, 300.0]);
        near(mended(&[chunk(4, 0.5), decode(16, 0.5)], &["cpu:0"]), [50.0, 100.0, 50.0]);
        near(mended(&[decode(100, 1e6)], &["cpu:0"]), [1000.0, 100.0, 100.0]);
        // Stages of equal devices count together.
        assert!(mended(&[decode(10, 2.0), decode(100, 0.95)], &["cpu:0"]).is_none());
        for parts in [[decode(15, 2.0), chunk(3, 2.0)], [decode(100, 1.2), chunk(9, 0.8)]] {
            assert!(mended(&parts, &["cpu:0"]).is_none());
        }
        assert!(mended(&[decode(100, 2.0)], &["cpu:1"]).is_none());
        let unmeasured = ComparedPart { predicted_us: 0.0, ..decode(100, 2.0) };
        assert!(mended(&[unmeasured], &["cpu:0"]).is_none());
    }

    #[test]
    fn the_token_return_becomes_that_of_the_run() {
        let latency_us = |factor| {
            let part = part(Place::TokenReturn, Phase::Decode, 100, 0.0, factor);
            let comparison = Comparison { parts: vec![part], ..Comparison::default() };
            mended(&profile(), &["cpu:0"], &comparison).map(|mended| mended.token_return.latency_us)
        };
        assert_eq!([latency_us(2.0), latency_us(0.5), latency_us(1.2)], [Some(1001.0), Some(0.0), None]);
    }
}
