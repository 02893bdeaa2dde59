//! Numbers that say where they come from.
//!
//! This module must not know what they are numbers of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FigureSource {
    /// Typical of the kind of device; nobody looked.
    Assumed,
    /// The device's API or the operating system says so.
    Reported,
    /// Timed on this device.
    Measured,
    /// Computed from what was measured at other shapes.
    Fitted,
    /// Promised by the maker: a datasheet names it.
    Datasheet,
    /// Given by the user.
    User,
}

impl FigureSource {
    /// The one of two that is to be trusted less: what a figure is that was computed from both.
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

/// A number with its source. Its unit is in the name of the field that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Where it comes from.
    pub source: FigureSource,
}

impl Figure {
    /// A figure that is typical of the kind of device.
    pub const fn assumed(value: f64) -> Self {
        Self { value, source: FigureSource::Assumed }
    }
}

// Bounds that keep every sum and product of the model finite.

/// Whether a device can have this rate: at least 1 a second, and finite.
pub(crate) fn is_rate(value: f64) -> bool {
    value.is_finite() && value >= 1.0
}

/// Whether something can take so long: from nothing to 1000 seconds.
pub(super) fn is_overhead_us(value: f64) -> bool {
    (0.0..=1e9).contains(&value)
}
