//! Fleets: devices and links that need not exist, as people describe them, in a file or in one line.
//!
//! [`Fleet`] is the format; [`Fleet::facts`] holds it to what can be and turns it into what the planner knows of devices and
//! links. A device is described by its figures, by a card of the library ([`cards`]), or like another device of the fleet,
//! with figures of its own on top.
//!
//! A figure from a datasheet is what its maker promises. It counts for the share that this project's kernels were measured
//! to reach ([`Reached`]); every other figure counts as it stands.
//!
//! This module must not know how plans are found, and opens no file.

mod cards;
mod figure;
mod resolve;
mod spec;
#[cfg(test)]
mod tests;

pub use cards::{Card, CardSource, Pcie, Reached, card, card_named, cards, reached, source};
pub use figure::FleetFigure;
pub use resolve::{with_datasheet, with_reported_rates};

use crate::cost::{DeviceFacts, Links};
use crate::json;
use ragtag_hal::AdapterKind;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// Version of the format that this build reads.
pub const FLEET_VERSION: u32 = 1;

/// Most devices of a fleet.
pub const MOST_DEVICES: usize = 64;

/// Devices and links that need not exist.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A fleet of Ragtag")]
pub struct Fleet {
    /// Version of the format: 1.
    #[schemars(extend("const" = FLEET_VERSION))]
    pub ragtag_fleet: u32,
    /// The devices, in the order in which a pipeline may run through them: 1 to 64 of them, counts included.
    #[schemars(length(min = 1, max = MOST_DEVICES))]
    pub devices: Vec<FleetDevice>,
    /// Links that are known. Every other pair of devices is linked by way of the host: at the lower of their two rates, and
    /// with the sum of their latencies.
    #[serde(default)]
    pub links: Vec<FleetLink>,
    /// What links have in common: a bus, a bridge, a switch.
    #[serde(default)]
    pub shared_links: Vec<FleetSharedLink>,
}

/// A device, or several alike. What is not given comes from the card or the other device that is named; memory, bandwidth and
/// `f32_tflop_per_s` must come from somewhere.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FleetDevice {
    /// Its label: letters, digits and `-_.:`. With `count` they are `label:0`, `label:1` …; without a label, `card:0` ….
    pub label: Option<String>,
    /// A card of the library, as `ragtag cards` lists them.
    pub card: Option<String>,
    /// The label of another device of the fleet that it is like.
    pub like: Option<String>,
    /// How many of them there are: 1 to 64.
    #[schemars(range(min = 1, max = MOST_DEVICES))]
    pub count: Option<u32>,
    /// What sort of hardware it is; `discrete` unless a card says otherwise.
    #[schemars(schema_with = "crate::schemas::adapter_kind")]
    pub kind: Option<AdapterKind>,
    /// Through which API it is used: what its kernels reach of a datasheet's figures. Needed where it has such figures.
    pub through: Option<String>,
    /// Memory for stages, in GiB.
    pub memory_gib: Option<FleetFigure>,
    /// The same in bytes.
    pub memory_bytes: Option<FleetFigure>,
    /// Rate of its memory, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: Option<FleetFigure>,
    /// Rate of products with f32 activations, in units of 10¹² operations per second.
    pub f32_tflop_per_s: Option<FleetFigure>,
    /// Rate of its matrix units with f16 activations, in the same unit. None: it has no matrix units.
    pub f16_matrix_tflop_per_s: Option<FleetFigure>,
    /// Rate of products with int8 activations, in the same unit.
    pub int8_top_per_s: Option<FleetFigure>,
    /// Overhead of one segment's dispatches, in microseconds.
    pub launch_us: Option<FleetFigure>,
    /// Overhead of one micro-batch on a stage, in microseconds.
    pub stage_us: Option<FleetFigure>,
    /// Time of the smallest copy between it and host memory, in microseconds.
    pub host_latency_us: Option<FleetFigure>,
    /// Rate of large copies between it and host memory, in units of 10⁹ bytes per second.
    pub host_bandwidth_gb_per_s: Option<FleetFigure>,
    /// Its bus, instead of that rate.
    pub pcie: Option<Pcie>,
}

/// The way from one device to another.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetLink {
    /// Label of the one device.
    pub from: String,
    /// Label of the other.
    pub to: String,
    /// Whether it is the way back, too.
    #[serde(default = "both_ways")]
    pub both_ways: bool,
    /// Time of the smallest crossing, in microseconds; by default that of two copies by way of the host.
    #[serde(default)]
    pub latency_us: Option<FleetFigure>,
    /// Rate of large crossings, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: FleetFigure,
}

fn both_ways() -> bool {
    true
}

/// Something that several links have in common: its time is the sum over all crossings of a plan that use it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSharedLink {
    /// Name, for people.
    pub name: String,
    /// The links that use it: labels, from and to.
    #[serde(deserialize_with = "pairs")]
    #[schemars(length(min = 1))]
    pub users: Vec<(String, String)>,
    /// Its rate, all users together, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: FleetFigure,
}

/// Two labels. Read as a list first: of a third label, the reader of pairs knows no more than that it is in the way.
#[derive(Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Pair(String, String);

impl TryFrom<Vec<String>> for Pair {
    type Error = String;

    fn try_from(labels: Vec<String>) -> Result<Self, String> {
        let [from, to] = <[String; 2]>::try_from(labels).map_err(|labels| {
            format!("a user is a pair of labels, from and to; here are {}", labels.len())
        })?;
        Ok(Self(from, to))
    }
}

fn pairs<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<(String, String)>, D::Error> {
    let pairs = Vec::<Pair>::deserialize(reader)?;
    Ok(pairs.into_iter().map(|Pair(from, to)| (from, to)).collect())
}

/// Why a text is no fleet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidFleet {
    /// Not JSON, or not of the form.
    #[error("not a fleet: {cause}")]
    NotAFleet {
        /// Path in the file, what the reader says, line and column.
        cause: String,
    },
    /// Written for a later version.
    #[error("the fleet is of version {found}, this build reads version {FLEET_VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// Of the form, but it cannot be.
    #[error("{path}: {why}")]
    Wrong {
        /// Where: a path in the file, `devices[2].bandwidth_gb_per_s`, or a part of the line.
        path: String,
        /// What is wrong there.
        why: String,
    },
}

impl InvalidFleet {
    fn wrong(path: &str, why: impl Into<String>) -> Self {
        Self::Wrong { path: path.into(), why: why.into() }
    }
}

impl Fleet {
    /// Reads a fleet and holds it to all that [`Fleet::facts`] asks.
    ///
    /// # Errors
    /// [`InvalidFleet`] names the first mistake with its path in the file.
    pub fn from_json(text: &str) -> Result<Self, InvalidFleet> {
        // The version comes first: a later format may well have fields that this build would call unknown.
        #[derive(Deserialize)]
        struct Head {
            ragtag_fleet: u32,
        }
        if let Ok(Head { ragtag_fleet: found }) = json::parse(text)
            && found != FLEET_VERSION
        {
            return Err(InvalidFleet::Version { found });
        }
        let fleet: Self = json::parse(text).map_err(|cause| InvalidFleet::NotAFleet { cause })?;
        fleet.facts()?;
        Ok(fleet)
    }

    /// Reads a fleet of cards in one line: `2x-arc-a770+rx7900xtx`.
    ///
    /// # Errors
    /// [`InvalidFleet::Wrong`] names the part; for a card that is not in the library, with those whose names are nearest.
    pub fn from_line(line: &str) -> Result<Self, InvalidFleet> {
        let fleet = spec::parse(line)?;
        fleet.facts()?;
        Ok(fleet)
    }

    /// What the planner knows of the devices and of the links between them.
    ///
    /// # Errors
    /// [`InvalidFleet::Wrong`] names the first figure, label or link that cannot be, with its path.
    pub fn facts(&self) -> Result<(Vec<DeviceFacts>, Links), InvalidFleet> {
        resolve::facts(self)
    }
}
