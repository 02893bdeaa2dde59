//! Fleets: descriptions of hypothetical devices and links, read from a file or from one line of text.
//!
//! [`Fleet`] is the file format. [`Fleet::facts`] validates a fleet and converts it to the planner's input. A
//! device is described by its own values, by a card from the library ([`cards`]), or by reference to another
//! device of the fleet, or by the measurements of a real device ([`Fleet::of`]). The device's own values take
//! precedence.
//!
//! A datasheet value is a theoretical peak. [`Fleet::facts`] scales it by the fraction that Ragtag's kernels
//! reached in measurements ([`Reached`]). All other values are used unchanged.
//!
//! This module knows nothing about the search, and opens no file.

mod cards;
mod export;
mod figure;
mod hosts;
mod resolve;
mod spec;
#[cfg(test)]
mod tests;

pub use cards::{Card, CardSource, Pcie, Reached, card, card_named, cards, reached, source};
pub use figure::FleetFigure;
pub use resolve::{with_datasheet, with_reported_rates};

use crate::cost::{DeviceFacts, LinkFacts, Links};
use crate::json;
use crate::search::HostFacts;
use ragtag_hal::AdapterKind;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// Format version that this build reads.
pub const FLEET_VERSION: u32 = 1;

/// Maximum number of devices in a fleet.
pub const MAX_DEVICES: usize = 64;

/// A set of hypothetical devices and the links between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A fleet of Ragtag")]
pub struct Fleet {
    /// Format version: 1.
    #[schemars(extend("const" = FLEET_VERSION))]
    pub ragtag_fleet: u32,
    /// The devices, in the preferred order of the pipeline. A fleet has 1 to 64 devices; an entry with a
    /// `count` adds that many.
    #[schemars(length(min = 1, max = MAX_DEVICES))]
    pub devices: Vec<FleetDevice>,
    /// Known links. All other pairs of devices are linked through the host. The rate of such a link is the
    /// lower of the two host rates, and its latency is the sum of the two host latencies.
    #[serde(default)]
    pub links: Vec<FleetLink>,
    /// Resources that several links share, such as a bus, a bridge or a switch.
    #[serde(default)]
    pub shared_links: Vec<FleetSharedLink>,
    /// Free host memory that plans may use, in bytes. If absent, the planner does not check host memory.
    #[serde(default)]
    pub host_memory_bytes: Option<u64>,
    /// Hosts besides the coordinator's, with the network between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<FleetHost>,
}

/// Another machine than the coordinator's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetHost {
    /// Name: letters, digits and `-_.:`. Labels of its devices begin with it and a slash.
    pub name: String,
    /// Free memory of the host in GiB. Its CPU and integrated devices together get no more.
    #[serde(default)]
    pub memory_gib: Option<FleetFigure>,
    /// Networks to other hosts. Those to hosts earlier in the list are enough.
    #[serde(default)]
    pub networks: Vec<FleetNetwork>,
}

/// Network to another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetNetwork {
    /// Name of the other host. Default: the coordinator's host.
    #[serde(default)]
    pub to: Option<String>,
    /// Time of the smallest message in one direction, in microseconds.
    pub latency_us: FleetFigure,
    /// Rate of large transfers, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: FleetFigure,
}

/// A device, or several equal devices. Omitted values come from `card`, or from the device that `like` names.
/// Each device must get memory, bandwidth and `f32_tflop_per_s` in one of these ways, or from `measured`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FleetDevice {
    /// Name of the device's host. Default: the coordinator's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Label: letters, digits and `-_.:`. With `count`, the devices are named `label:0`, `label:1` and so on.
    /// Without a label, they have the label in `measured`, or are named after the card: `card:0` and so on.
    pub label: Option<String>,
    /// Name of a card in the library (`cards`).
    pub card: Option<String>,
    /// Label of another device in this fleet, from which omitted values are copied.
    pub like: Option<String>,
    /// Number of equal devices: 1 to 64.
    #[schemars(range(min = 1, max = MAX_DEVICES))]
    pub count: Option<u32>,
    /// Kind of hardware. Default: the card's kind, or `discrete` without a card.
    #[schemars(schema_with = "crate::schemas::adapter_kind")]
    pub kind: Option<AdapterKind>,
    /// API that runs the device's kernels. It determines the fraction of datasheet values that kernels reach.
    /// Required if any value comes from a datasheet.
    pub through: Option<String>,
    /// Memory that stages may use, in GiB.
    pub memory_gib: Option<FleetFigure>,
    /// Memory that stages may use, in bytes.
    pub memory_bytes: Option<FleetFigure>,
    /// Memory bandwidth, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: Option<FleetFigure>,
    /// Rate of matrix products with f32 activations, in units of 10¹² operations per second.
    pub f32_tflop_per_s: Option<FleetFigure>,
    /// Rate of the matrix units with f16 activations, in units of 10¹² operations per second. If absent, the
    /// device has no matrix units.
    pub f16_matrix_tflop_per_s: Option<FleetFigure>,
    /// Rate of matrix products with int8 activations, in units of 10¹² operations per second.
    pub int8_top_per_s: Option<FleetFigure>,
    /// Dispatch overhead of one segment, in microseconds.
    pub launch_us: Option<FleetFigure>,
    /// Overhead of one micro-batch on a stage, in microseconds.
    pub stage_us: Option<FleetFigure>,
    /// Time of the smallest copy between the device and host memory, in microseconds.
    pub host_latency_us: Option<FleetFigure>,
    /// Rate of large copies between the device and host memory, in units of 10⁹ bytes per second.
    pub host_bandwidth_gb_per_s: Option<FleetFigure>,
    /// PCI Express link of the device, as an alternative to `host_bandwidth_gb_per_s`.
    pub pcie: Option<Pcie>,
    /// Measurements of a real device, as an alternative to `card` and `like`. They are used unchanged. Other
    /// values of this entry override them, except `kind` and `through`. Rates of products, `bandwidth_gb_per_s` and
    /// `launch_us` also replace the times in the profile.
    pub measured: Option<DeviceFacts>,
}

/// The link between two devices. It has a rate of its own, or measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetLink {
    /// Label of the source device.
    pub from: String,
    /// Label of the destination device.
    pub to: String,
    /// Whether the link also exists in the other direction.
    #[serde(default = "both_ways")]
    pub both_ways: bool,
    /// Time of the smallest transfer, in microseconds. Default: the time of two copies through the host.
    #[serde(default)]
    pub latency_us: Option<FleetFigure>,
    /// Rate of large transfers, in units of 10⁹ bytes per second.
    #[serde(default)]
    pub bandwidth_gb_per_s: Option<FleetFigure>,
    /// Measurements of a real link, with its routes. Other values of this entry override them.
    #[serde(default)]
    pub measured: Option<LinkFacts>,
}

fn both_ways() -> bool {
    true
}

/// A resource that several links share. Its busy time is the sum over all transfers of a plan that use the
/// resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSharedLink {
    /// Display name.
    pub name: String,
    /// Links that use the resource, as pairs of labels: source and destination.
    #[serde(deserialize_with = "pairs")]
    #[schemars(length(min = 1))]
    pub users: Vec<(String, String)>,
    /// Combined rate of all users, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: FleetFigure,
}

/// A pair of labels: source and destination. It is parsed as a list, because parsing a tuple gives a poor
/// error message if there is a third label.
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

/// Reason why a fleet is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidFleet {
    /// The input is not JSON, or not in the fleet format.
    #[error("not a fleet: {cause}")]
    NotAFleet {
        /// JSON path, parser message, line and column.
        cause: String,
    },
    /// The fleet has a different format version.
    #[error("the fleet has version {found}, but this build reads version {FLEET_VERSION}")]
    Version {
        /// Version of the fleet.
        found: u32,
    },
    /// The fleet is well-formed, but has an invalid value.
    #[error("{path}: {why}")]
    Wrong {
        /// JSON path, for example `devices[2].bandwidth_gb_per_s`, or the invalid part of the one-line form.
        path: String,
        /// Problem, as quoted in the error message.
        why: String,
    },
}

impl InvalidFleet {
    fn wrong(path: &str, why: impl Into<String>) -> Self {
        Self::Wrong { path: path.into(), why: why.into() }
    }
}

impl Fleet {
    /// Parses and validates a fleet.
    ///
    /// # Errors
    /// Returns [`InvalidFleet`] with the first problem found and its path in the file.
    pub fn from_json(text: &str) -> Result<Self, InvalidFleet> {
        if let Some(found) = json::version(text, "ragtag_fleet").filter(|found| *found != FLEET_VERSION) {
            return Err(InvalidFleet::Version { found });
        }
        let fleet: Self = json::parse(text).map_err(|cause| InvalidFleet::NotAFleet { cause })?;
        fleet.facts()?;
        Ok(fleet)
    }

    /// Parses the one-line form of a fleet, such as `2x-arc-a770+rx7900xtx`.
    ///
    /// # Errors
    /// Returns [`InvalidFleet::Wrong`], which names the invalid part. For an unknown card, it lists the most
    /// similar names.
    pub fn from_line(line: &str) -> Result<Self, InvalidFleet> {
        let fleet = spec::parse(line)?;
        fleet.facts()?;
        Ok(fleet)
    }

    /// Returns the devices and links of the fleet in the form that the planner needs.
    ///
    /// # Errors
    /// Returns [`InvalidFleet::Wrong`] with the path of the first invalid value, label or link.
    pub fn facts(&self) -> Result<(Vec<DeviceFacts>, Links), InvalidFleet> {
        resolve::facts(self).map(|(devices, links, _)| (devices, links))
    }

    /// Returns the memory of the hosts besides the coordinator's.
    ///
    /// # Errors
    /// The errors of [`Self::facts`].
    pub fn host_facts(&self) -> Result<Vec<HostFacts>, InvalidFleet> {
        resolve::facts(self).map(|(.., hosts)| hosts)
    }
}
