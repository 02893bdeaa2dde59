//! Numbers that carry their source. This module knows nothing about the meaning of the numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FigureSource {
    /// Assumed: a typical value for this kind of device.
    Assumed,
    /// Reported by the device's API or the operating system.
    Reported,
    /// Measured on this device.
    Measured,
    /// Fitted to measurements of other micro-batch shapes or other segments.
    Fitted,
    /// Taken from the manufacturer's datasheet.
    Datasheet,
    /// Given by the user.
    User,
}

impl FigureSource {
    /// Returns the less trustworthy of two sources. A value that is computed from two values has this source.
    pub fn weaker(self, other: Self) -> Self {
        let trust = |source| match source {
            FigureSource::Assumed => 0,
            FigureSource::Datasheet => 1,
            FigureSource::User => 2,
            FigureSource::Reported => 3,
            FigureSource::Fitted => 4,
            FigureSource::Measured => 5,
        };
        if trust(other) < trust(self) { other } else { self }
    }
}

impl fmt::Display for FigureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FigureSource::Assumed => "assumed",
            FigureSource::Reported => "reported",
            FigureSource::Measured => "measured",
            FigureSource::Fitted => "fitted",
            FigureSource::Datasheet => "from a datasheet",
            FigureSource::User => "given by the user",
        })
    }
}

/// A value and its source. The name of the field that contains the value states the unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// Source of the value.
    pub source: FigureSource,
}

impl Figure {
    /// Returns an assumed value, typical of the kind of device.
    pub const fn assumed(value: f64) -> Self {
        Self { value, source: FigureSource::Assumed }
    }
}

// These bounds keep every sum and product in the cost model finite.

/// Returns whether `value` is a valid rate: finite and at least 1 per second.
pub(crate) fn is_rate(value: f64) -> bool {
    value.is_finite() && value >= 1.0
}

/// Returns whether `value`, in microseconds, is a valid overhead: 0 to 1000 seconds.
pub(super) fn is_overhead_us(value: f64) -> bool {
    (0.0..=1e9).contains(&value)
}
