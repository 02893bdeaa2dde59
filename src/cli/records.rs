//! Writes the records of a run: the trace and the receipt.

use super::args::RecordArgs;
use super::files::write_file;
use super::output::inform;
use crate::devices::Devices;
use crate::engine::{Engine, VerifiedTransfers};
use crate::error::Result;
use crate::model::Model;
use serde_json::json;

/// Records that the user requested.
#[derive(Debug)]
pub(super) struct Records {
    args: RecordArgs,
}

impl Records {
    pub(super) fn new(args: &RecordArgs) -> Self {
        Self { args: args.clone() }
    }

    pub(super) fn wants_trace(&self) -> bool {
        self.args.trace.is_some()
    }

    /// Shuts the engine down and writes the requested records.
    pub(super) fn write(&self, model: &Model, devices: &Devices, engine: Engine) -> Result<()> {
        let receipt = match &self.args.receipt {
            Some(path) => Some((path, receipt(model, devices, &engine)?)),
            None => None,
        };
        let trace = engine.shutdown();
        let traced = match &self.args.trace {
            Some(path) => write_file(path, trace.to_chrome_json().as_bytes()),
            None => Ok(()),
        };
        let receipted = match receipt {
            Some((path, receipt)) => write_file(path, format!("{receipt:#}\n").as_bytes()),
            None => Ok(()),
        };
        traced.and(receipted)
    }
}

/// Returns the device and the statistics of each stage, as JSON. The statistics contain counts, times and the
/// use of buffer pools.
pub(super) fn stage_reports(engine: &Engine) -> Vec<serde_json::Value> {
    let reports = engine.stages().iter().zip(engine.stage_reports());
    reports.map(|(stage, report)| json!({ "device": stage.adapter.label(), "report": report })).collect()
}

/// Prints the result and the cost of verified transfers, if the user requested them.
pub(super) fn inform_verified(engine: &Engine) {
    let Some(VerifiedTransfers { transfers, wrong, waited_us, share }) = engine.verified_transfers() else {
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
fn receipt(model: &Model, devices: &Devices, engine: &Engine) -> Result<serde_json::Value> {
    let stages: Vec<_> = engine
        .stages()
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
    let path: Vec<_> = engine
        .stages()
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
        "plan": engine.plan(),
    }))
}
