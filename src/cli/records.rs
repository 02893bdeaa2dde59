//! Writes the records of a run: the trace and the receipt.

use super::args::RecordArgs;
use super::error::Result;
use super::files::write_file;
use super::output::inform;
use crate::{Devices, Engine, Model, VerifiedTransfers};
use serde_json::json;
use std::path::PathBuf;

impl RecordArgs {
    /// Shuts the engine down and writes the records that the user requested.
    pub(super) fn write(&self, model: &Model, devices: &Devices, engine: Engine) -> Result<()> {
        let receipt = self.receipt.as_ref().map(|_| receipt(model, devices, &engine)).transpose()?;
        let trace = engine.shutdown().trace;
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| {
            path.iter().try_for_each(|path| write_file(path, text().as_bytes()))
        };
        // A failed write does not affect the other record.
        let traced = write(&self.trace, &|| trace.to_chrome_json());
        let receipted = write(&self.receipt, &|| format!("{:#}\n", receipt.clone().unwrap_or_default()));
        traced.and(receipted)
    }
}

/// Returns the device and the statistics of each stage, as JSON. The statistics contain counts, times and the
/// use of buffer pools.
pub(super) fn stage_reports(engine: &Engine) -> Vec<serde_json::Value> {
    let stages = engine.stages();
    let reports = stages.iter().zip(engine.stage_reports());
    reports.map(|(stage, report)| json!({ "device": stage.adapter.label(), "report": report })).collect()
}

/// Prints the result and the cost of verified transfers, if the user requested them.
pub(super) fn inform_verified(engine: &Engine) {
    let Some(VerifiedTransfers { transfers, wrong, waited_us, share, .. }) = engine.verified_transfers()
    else {
        return;
    };
    let plural = if transfers == 1 { "" } else { "s" };
    inform(&format!(
        "verified {transfers} transfer{plural} in {:.1} ms ({:.1} % of the run), {wrong} sent again",
        waited_us / 1e3,
        share * 100.0
    ));
}

/// Builds the receipt of a run as JSON.
pub(super) fn receipt(
    model: &Model,
    devices: &Devices,
    engine: &Engine,
) -> std::result::Result<serde_json::Value, crate::Error> {
    let running = engine.stages();
    let stages: Vec<_> = running
        .iter()
        .map(|stage| {
            json!({
                "device": stage.adapter.label(),
                "name": stage.adapter.name,
                "driver": stage.adapter.driver,
                "kind": stage.adapter.kind,
                "features": stage.adapter.caps.features,
                "gemm": stage.adapter.caps.gemm,
                "units": stage.adapter.caps.parallel_units,
                "segments": [stage.segments.start, stage.segments.end - 1],
                "kernels": stage.kernels,
            })
        })
        .collect();
    let path: Vec<_> = running
        .iter()
        .map(|stage| {
            format!("{}({}-{})", stage.adapter.label(), stage.segments.start, stage.segments.end - 1)
        })
        .collect();
    Ok(json!({
        "ragtag_receipt": 1,
        "ragtag": env!("CARGO_PKG_VERSION"),
        "model": { "name": model.name(), "digest": model.digest()?, "fingerprint": model.fingerprint()? },
        "requested": devices.choice().requested,
        "detected": devices.choice().detected,
        "selected": devices.labels(),
        "memory_caps": devices.memory_caps().to_strings(),
        "throttles": devices.throttles(),
        "stages": stages,
        "routes": engine.routes(),
        "verified_transfers": engine.verified_transfers(),
        "compute_path": path.join(" -> "),
        "stage_reports": stage_reports(engine),
        "plan": *engine.plan(),
    }))
}
