//! Values in a fleet file, with or without a source, and their valid ranges.
//!
//! This module knows nothing about devices or links.

use super::InvalidFleet;
use crate::cost::{Figure, FigureSource};
use crate::json::number;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// A value in a fleet file: a plain number, whose source is the user, or an object with `value` and `source`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct FleetFigure(pub Figure);

impl From<f64> for FleetFigure {
    fn from(value: f64) -> Self {
        Self(Figure { value, source: FigureSource::User })
    }
}

/// The object form of a value.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sourced {
    /// The number.
    value: f64,
    /// Source of the number.
    source: FigureSource,
}

impl<'de> Deserialize<'de> for FleetFigure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = FleetFigure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or an object with value and source")
            }

            fn visit_f64<E>(self, value: f64) -> Result<FleetFigure, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<FleetFigure, E> {
                Ok((value as f64).into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<FleetFigure, E> {
                Ok((value as f64).into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FleetFigure, A::Error> {
                let Sourced { value, source } = Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(FleetFigure(Figure { value, source }))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl schemars::JsonSchema for FleetFigure {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FleetFigure".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let sourced = generator.subschema_for::<Sourced>();
        schemars::json_schema!({
            "description": "A number, or a number with its source. A datasheet value is scaled to the share that \
                            kernels reach.",
            "anyOf": [{ "type": "number" }, sourced],
        })
    }
}

/// Valid range of a value, in the unit of its field.
pub(super) struct Bounds {
    least: f64,
    most: f64,
    /// Hints about likely unit mistakes, as (threshold, hint). A hint applies to values at or above its
    /// threshold. The largest threshold comes first.
    slips: &'static [(f64, &'static str)],
}

/// Range of memory sizes in GiB: 64 MiB to 64 TiB.
pub(super) const MEMORY_GIB: Bounds = Bounds {
    least: 0.0625,
    most: 65_536.0,
    slips: &[(6.7e7, "that looks like bytes (memory_bytes)"), (65_536.0, "that looks like MiB")],
};
/// Range of memory sizes in bytes: the same range as [`MEMORY_GIB`].
pub(super) const MEMORY_BYTES: Bounds = Bounds {
    least: 67_108_864.0,
    most: 70_368_744_177_664.0,
    slips: &[(8192.0, "that looks like MiB"), (0.0625, "that looks like GiB (memory_gib)")],
};
/// Range of plausible rates in GB/s. The minimum is the rate of an old bus, and the maximum exceeds the rate
/// of every card.
pub(super) const GB_PER_S: Bounds = Bounds {
    least: 0.001,
    most: 20_000.0,
    slips: &[(1e8, "that looks like bytes per second"), (20_000.0, "that looks like MB/s")],
};
/// Range of plausible arithmetic rates, in units of 10¹² operations per second. The minimum is 0.1 GFLOP/s,
/// and the maximum exceeds the rate of every card.
pub(super) const T_PER_S: Bounds = Bounds {
    least: 0.0001,
    most: 20_000.0,
    slips: &[
        (1e8, "that looks like operations per second"),
        (20_000.0, "that looks like billions per second"),
    ],
};
/// Range of overheads in microseconds: 0 to one second.
pub(super) const MICROSECONDS: Bounds = Bounds { least: 0.0, most: 1e6, slips: &[] };

impl Bounds {
    /// Checks that a value is within the range. NaN is an error.
    pub(super) fn check(&self, path: &str, figure: FleetFigure) -> Result<Figure, InvalidFleet> {
        let Self { least, most, slips } = self;
        let FleetFigure(figure) = figure;
        let value = figure.value;
        if (*least..=*most).contains(&value) {
            return Ok(figure);
        }
        let wanted = if value > *most { format!("at most {most}") } else { format!("at least {least}") };
        let slip = slips.iter().find(|(from, _)| value >= *from && value.is_finite());
        let slip = slip.map_or_else(String::new, |(_, what)| format!("; {what}"));
        Err(InvalidFleet::wrong(path, format!("is {}, must be {wanted}{slip}", number(value))))
    }
}
