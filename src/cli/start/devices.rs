//! Probes and selects the devices that the arguments name.

use super::wanted::Wanted;
use crate::cli::args::DeviceArgs;
use crate::cli::error::Result;
use crate::cli::output::{bytes, inform, note};
use crate::cli::strict;
use crate::{DeviceOptions, Devices, Isolation, Model};
use std::sync::OnceLock;
use std::time::Duration;

/// Permission to probe drivers in child processes. [`isolate`] sets it.
static ISOLATION: OnceLock<Isolation> = OnceLock::new();

/// Probes drivers in child processes from now on. In such a child, does the child's work and ends the process.
pub(crate) fn isolate() {
    ISOLATION.get_or_init(Isolation::start);
}

/// Returns the device options that the arguments and the environment set.
pub(crate) fn options(args: &DeviceArgs) -> DeviceOptions {
    // The conversion may be lossy. Device names are ASCII, so a value that is not UTF-8 matches no device.
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let mut options = DeviceOptions::default();
    options.requested = args.device.clone();
    options.from_environment = variable("RAGTAG_DEVICES");
    options.memory = (!args.memory.is_empty()).then(|| args.memory.join(","));
    options.memory_from_environment = variable("RAGTAG_MEMORY");
    options.cpu_devices = args.cpu_devices;
    options.cpu_threads = args.threads;
    options.throttles = args.throttle.clone();
    options.gemm = args.gemm;
    options = ISOLATION.get().map_or(options.clone(), |isolation| options.isolated(isolation));
    if let Some(child) = &mut options.probe_child {
        child.limit = Duration::from_secs(args.probe_limit);
    }
    options
}

/// Probes and selects devices, and prints the selection.
pub(crate) fn selected(options: &DeviceOptions) -> Result<Devices> {
    let devices = Devices::probe(options)?;
    inform(&devices.start_line());
    Ok(devices)
}

/// Probes and selects devices for a placement.
pub(super) fn probe(model: &Model, options: &DeviceOptions, wanted: &Wanted<'_>) -> crate::Result<Devices> {
    match wanted.is_calibrated() {
        true => Devices::probe_for(options, model, &wanted.calibration()),
        false => Devices::probe(options),
    }
}

/// Adds the CPU to the probed devices `gpus` if they need its help or the placement names it, and prints the selection.
/// If `is_strict` is set, checks the devices and the model's weights.
pub(super) fn helped(
    gpus: Devices,
    model: &Model,
    options: &DeviceOptions,
    wanted: &Wanted<'_>,
    is_strict: bool,
) -> Result<Devices> {
    let sizes = model.graph().weights().tensors().iter().map(|tensor| tensor.bytes);
    let (weight_bytes, before) = (sizes.fold(0, u64::saturating_add), gpus.selected().len());
    let is_named = wanted.names_cpu();
    let devices = gpus.helped_by_cpu(options, if is_named { u64::MAX } else { weight_bytes })?;
    inform(&devices.start_line());
    if devices.selected().len() > before && !is_named {
        note(&format!(
            "note: the weights ({}) exceed the memory of the GPUs, so the CPU may help; --device gpu selects only GPUs",
            bytes(weight_bytes)
        ));
    }
    if is_strict {
        strict::check(&devices, model)?;
    }
    Ok(devices)
}

/// Adds the devices of the workers that the placement names, and prints their labels.
#[cfg(feature = "remote")]
pub(super) fn joined(devices: Devices, model: &Model, wanted: &Wanted<'_>) -> Result<Devices> {
    let workers = wanted.workers();
    if workers.is_empty() {
        return Ok(devices);
    }
    let calibration = wanted.calibration();
    let calibration = Some(&calibration).filter(|_| wanted.is_calibrated());
    let devices = devices.with_workers(model, workers, calibration)?;
    let labels = devices.labels_of_workers();
    let relayed: Vec<_> = devices.relayed_workers().iter().map(|pair| pair.join("-")).collect();
    let relayed =
        if relayed.is_empty() { String::new() } else { format!(" relayed=[{}]", relayed.join(", ")) };
    inform(&format!("workers=[{}]{relayed}", labels.join(", ")));
    Ok(devices)
}
