//! Chooses the API of each GPU that several APIs show: the one with the fastest cached profile.

use super::CalibrationOptions;
use super::kept::Kept;
use super::steps::Steps;
use crate::error::Result;
use crate::model::Model;
use ragtag_devices::Report;
use ragtag_planner::Workload;
use ragtag_planner::cost::{BatchShape, Profile};

/// Rows of the prefill chunk whose times are compared.
const CHUNK: u32 = 512;
/// Minimum relative gain for which an API replaces one that precedes it in the order of preference. Short
/// calibrations have errors of about this size.
const GAIN: f64 = 0.05;

/// Returns the adapters that are preferable to the first adapter of their physical device in `report`. Only
/// cached profiles for `model` count. If fewer than two adapters of a device have one, the device keeps its
/// order of preference.
///
/// # Errors
/// Fails if the model cannot be lowered.
pub(crate) fn fastest(model: &Model, report: &Report, options: &CalibrationOptions) -> Result<Vec<String>> {
    let several: Vec<_> = report.devices.iter().filter(|device| device.adapters.len() > 1).collect();
    if several.is_empty() {
        return Ok(Vec::new());
    }
    let (steps, kept) = (Steps::new(model, options)?, Kept::new(options.folder.clone()));
    let time_us = |label: &String| {
        let adapter = report.adapter(label)?;
        // A device whose kernels cannot be compiled is no candidate.
        let profile = kept.profile(&steps.identity(adapter, 1).ok()?)?;
        request_us(&steps, &profile)
    };
    let best = |device: &&ragtag_devices::Physical| {
        let times: Vec<_> = device.adapters.iter().map(|label| (label, time_us(label))).collect();
        preferred(&times).cloned()
    };
    Ok(several.iter().filter_map(best).collect())
}

/// Returns the time of the usual request according to a profile, in microseconds: the chunks of the prompt and the
/// decode steps. Returns `None` if the profile lacks a kind of segment.
fn request_us(steps: &Steps, profile: &Profile) -> Option<f64> {
    let request = Workload::default();
    let positions = f64::from(request.prompt_tokens);
    let chunk = BatchShape { rows: CHUNK, logit_rows: 0, sequences: 1, positions: positions / 2.0 };
    let decode = BatchShape { rows: 1, logit_rows: 1, sequences: 1, positions };
    let whole = |batch: &BatchShape| {
        steps.keys.iter().map(|key| Some(profile.time(key, batch)?.value)).sum::<Option<f64>>()
    };
    let chunks = positions / f64::from(CHUNK);
    Some(chunks * whole(&chunk)? + f64::from(request.generated_tokens) * whole(&decode)?)
}

/// Returns the adapter that replaces the first one, given the time of each adapter that has a profile.
fn preferred<'a, T>(times: &[(&'a T, Option<f64>)]) -> Option<&'a T> {
    // Without a time of the first adapter, it is unknown whether another one is faster.
    let first_us = times.first()?.1?;
    let known = times.iter().filter_map(|(adapter, us)| Some((*adapter, (*us)?)));
    let (best, best_us) = known.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (best_us < first_us * (1.0 - GAIN)).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clearly_faster_api_is_preferred() {
        let best = |times: &[Option<f64>]| {
            let names: Vec<usize> = (0..times.len()).collect();
            let times: Vec<_> = names.iter().zip(times.iter().copied()).collect();
            preferred(&times).copied()
        };
        assert_eq!(best(&[Some(100.0), Some(90.0), Some(80.0)]), Some(2));
        assert_eq!(best(&[Some(100.0), Some(96.0)]), None, "within the error");
        assert_eq!(best(&[Some(100.0), None]), None);
        assert_eq!(best(&[None, Some(90.0), Some(80.0)]), None);
        assert_eq!(best(&[]), None);
    }
}
