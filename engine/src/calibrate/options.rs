//! Options of a calibration.

use crate::defaults::MAX_CHUNK;
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_kernels::{Activations, KvType};
use std::path::PathBuf;
use std::time::Duration;

/// Default of [`CalibrationOptions::max_load`].
pub(super) const USUAL_MAX_LOAD: f64 = 0.1;

/// Default wall time limit of a calibration. It is slightly shorter than the documented 3 seconds.
const USUAL_LIMIT: Duration = Duration::from_millis(2700);

/// Maximum time to wait for another process that is calibrating. The first value applies to quick probes and to
/// calibrations with a time limit, the second to all others.
pub(super) const QUICK_LOCK_WAIT: Duration = Duration::from_secs(30);
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(120);

/// Options for [`Calibration::run`](super::Calibration::run).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CalibrationOptions {
    /// Type of activations in matmuls with quantized weights.
    pub activations: Activations,
    /// Element type of the KV cache.
    pub kv: KvType,
    /// Maximum number of rows of a prefill micro-batch.
    pub chunk: u32,
    /// Maximum number of sequences in one decode step.
    pub sequences: u32,
    /// Approximate duration of the measurements on each device in seconds. It applies only if `limit` is
    /// `None`.
    pub seconds: f64,
    /// Wall time limit for the measurements on all devices, excluding kernel compilation and probes of links.
    /// The default is just under 3 seconds. Calibration takes the most important measurements first. If the
    /// time runs out, it caches and uses incomplete profiles.
    pub limit: Option<Duration>,
    /// Whether to ignore cached results, to time all devices and to probe all links again.
    pub force: bool,
    /// Largest fraction of its time that a measurement may lose to other processes. The measurements of a device
    /// beyond it are doubtful. They are repeated once and never cached.
    pub max_load: f64,
    /// Cache folder. The default is `profiles` in `RAGTAG_CACHE_DIR`, or `ragtag/profiles` in the user's
    /// cache folder.
    pub folder: Option<PathBuf>,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self {
            activations: Activations::Int8,
            kv: KvType::F16,
            chunk: MAX_CHUNK,
            sequences: 1,
            seconds: 1.0,
            limit: Some(USUAL_LIMIT),
            force: false,
            max_load: USUAL_MAX_LOAD,
            folder: None,
        }
    }
}

/// Returns whether a device computes on the CPU.
pub(super) fn is_processor(adapter: &Adapter) -> bool {
    matches!(adapter.kind, AdapterKind::Cpu | AdapterKind::Software)
}
