//! Chooses the API of each GPU that several APIs show: the one with the fastest cached profile.

use super::kept::Kept;
use super::options::CalibrationOptions;
use super::steps::Steps;
use crate::devices::{DeviceOptions, Devices};
use crate::error::Result;
use crate::model::Model;
use ragtag_devices::{Physical, Report};
use ragtag_hal::Adapter;
use ragtag_planner::Workload;
use ragtag_planner::cost::{BatchShape, Profile};

/// Rows of the prefill chunk whose times are compared.
const CHUNK: u32 = 512;
/// Minimum relative gain for which an API replaces one that precedes it in the order of preference. Short
/// calibrations have errors of about this size.
const GAIN: f64 = 0.05;

impl Devices {
    /// Probes like [`probe`](Self::probe). If several APIs show a GPU and the selection names none of them,
    /// uses the API that is fastest for `model` according to cached profiles. Without profiles of several
    /// APIs, uses the first API in the order of preference.
    ///
    /// # Errors
    /// Fails like [`probe`](Self::probe).
    pub fn probe_for(
        options: &DeviceOptions,
        model: &Model,
        calibration: &CalibrationOptions,
    ) -> Result<Self> {
        // If the model cannot be lowered, planning returns the error.
        Self::probe_preferring(options, |report, selected| {
            fastest(model, report, selected, calibration).unwrap_or_default()
        })
    }
}

/// Returns the adapters that are preferable to the first adapter of their physical device in `report`.
/// Considers only devices whose first adapter is in `selected`, and only cached profiles for `model`. If the
/// first adapter of a device or all others have none, the device keeps its order of preference.
///
/// # Errors
/// Fails if the model cannot be lowered.
fn fastest(
    model: &Model,
    report: &Report,
    selected: &[Adapter],
    options: &CalibrationOptions,
) -> Result<Vec<String>> {
    let is_used = |device: &&Physical| selected.iter().any(|adapter| adapter.label() == device.adapters[0]);
    let several: Vec<_> = report.devices.iter().filter(|d| d.adapters.len() > 1).filter(is_used).collect();
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
    let best = |device: &&Physical| {
        let (first, others) = device.adapters.split_first()?;
        // The identity of a profile takes time: it contains the digests of all kernels.
        let first_us = time_us(first)?;
        let others: Vec<_> = others.iter().filter_map(|label| Some((label, time_us(label)?))).collect();
        preferred(first_us, &others).cloned()
    };
    Ok(several.iter().filter_map(best).collect())
}

/// Returns the time of the usual request according to a profile, in microseconds: the chunks of the prompt
/// and the decode steps. Returns `None` if the profile lacks a kind of segment.
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

/// Returns the adapter that replaces the first one, given their times.
fn preferred<'a, T>(first_us: f64, others: &[(&'a T, f64)]) -> Option<&'a T> {
    let (best, best_us) = others.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (*best_us < first_us * (1.0 - GAIN)).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clearly_faster_api_is_preferred() {
        let best = |first_us, others: &[f64]| {
            let names: Vec<usize> = (1..=others.len()).collect();
            let others: Vec<_> = names.iter().zip(others.iter().copied()).collect();
            preferred(first_us, &others).copied()
        };
        assert_eq!(best(100.0, &[90.0, 80.0]), Some(2));
        assert_eq!(best(100.0, &[96.0]), None, "within the error");
        assert_eq!(best(100.0, &[]), None);
    }
}
