//! Describes the links between devices for the planner. This module knows nothing about plans or backends.

use super::figure::{Figure, FigureSource, is_overhead_us, is_rate};
use ragtag_transfer::{Route, Routes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The planner's description of the link from one device to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkFacts {
    /// Routes that activations take over the link.
    #[schemars(schema_with = "crate::schemas::routes")]
    pub routes: Routes,
    /// Time of the smallest transfer.
    pub latency_us: Figure,
    /// Rate of large transfers.
    pub bandwidth_bytes_per_s: Figure,
    /// Whether a probe on this machine has verified that all of `routes` keep bytes intact.
    pub verified: bool,
}

impl LinkFacts {
    /// Returns an unverified host-staged link with assumed speed: the default ring, a latency of 20 µs and a rate of 6
    /// GB/s.
    pub fn assumed() -> Self {
        Self {
            routes: Route::HOST_STAGED.into(),
            latency_us: Figure::assumed(20.0),
            bandwidth_bytes_per_s: Figure::assumed(6e9),
            verified: false,
        }
    }

    /// Returns a verified link over `routes` with a latency and a rate fitted to measured transfers. Each sample
    /// is a pair of transferred bytes and microseconds.
    pub fn fitted(routes: Routes, samples: &[(u64, f64)]) -> Self {
        let (latency_us, bandwidth_bytes_per_s) = fit_copies(samples);
        let measured = |value| Figure { value, source: FigureSource::Measured };
        Self {
            routes,
            latency_us: measured(latency_us.max(LEAST_LATENCY_US)),
            bandwidth_bytes_per_s: measured(bandwidth_bytes_per_s),
            verified: true,
        }
    }

    /// Returns the link with a ring for a network. Besides the usual places, it has one for each chunk that the network
    /// carries while the answer that a place is free is under way. Otherwise, a sender waits for these answers.
    #[must_use]
    pub fn over_network(self) -> Self {
        let (chunk_bytes, depth) = Route::HOST_STAGED.ring();
        let bytes = 2.0 * self.latency_us.value / 1e6 * self.bandwidth_bytes_per_s.value;
        let places = (bytes / chunk_bytes as f64).min(MOST_PLACES);
        Self { routes: Route::HostStaged { chunk_bytes, depth: depth + places as u32 }.into(), ..self }
    }

    /// Returns the time to transfer `bytes` bytes, in microseconds.
    pub fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us.value + bytes as f64 / self.bandwidth_bytes_per_s.value * 1e6
    }

    /// Returns the name of the first field that has an invalid value. The ranges are those of
    /// [`DeviceFacts::nonsense`](crate::DeviceFacts::nonsense).
    pub fn nonsense(&self) -> Option<&'static str> {
        if !is_overhead_us(self.latency_us.value) {
            Some("latency_us")
        } else if !is_rate(self.bandwidth_bytes_per_s.value) {
            Some("bandwidth_bytes_per_s")
        } else {
            None
        }
    }
}

/// Maximum number of places that a network adds to a ring. They take 15 MiB.
const MOST_PLACES: f64 = 60.0;
/// Minimum latency of a fitted link, because even an empty transfer takes time.
const LEAST_LATENCY_US: f64 = 0.1;
/// Maximum rate that the fit returns, in bytes per second. The fit returns it if larger copies take no longer
/// than smaller ones.
const MAX_RATE: f64 = 1e13;

/// Fits a latency (in microseconds) and a rate (in bytes per second) to measured copies. Each sample is a
/// pair of bytes and microseconds. Minimises the sum of squared relative errors, so that small and large
/// copies have equal weight.
pub fn fit_copies(samples: &[(u64, f64)]) -> (f64, f64) {
    // Minimise Σ ((latency + bytes × slope − us) / us)².
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in samples.iter().filter(|(_, us)| *us > 0.0).map(|&(bytes, us)| (bytes as f64, us)) {
        let weight = 1.0 / (y * y);
        (w, wx, wy) = (w + weight, wx + weight * x, wy + weight * y);
        (wxx, wxy) = (wxx + weight * x * x, wxy + weight * x * y);
    }
    let determinant = w * wxx - wx * wx;
    let slope = if determinant > 0.0 { (w * wxy - wx * wy) / determinant } else { 0.0 };
    let (mut slope, mut latency_us) = (slope.max(1e6 / MAX_RATE), 0.0);
    if w > 0.0 {
        latency_us = (wy - slope * wx) / w;
        if latency_us < 0.0 {
            (latency_us, slope) = (0.0, wxy / wxx);
        }
    }
    (latency_us, (1e6 / slope).clamp(1.0, MAX_RATE))
}

/// A resource that several links share, such as a bus, a bridge or host memory. Its busy time is the sum over
/// all transfers of a plan that use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedLink {
    /// Display name.
    pub name: String,
    /// Links that use the resource, as pairs of source and destination.
    pub users: Vec<(String, String)>,
    /// Combined rate of all users.
    pub bandwidth_bytes_per_s: Figure,
}

/// The links between devices: known links, and a default for all other pairs of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Known directed links, as (source, destination, description).
    pub known: Vec<(String, String, LinkFacts)>,
    /// Link that is assumed for every pair of devices without a known link.
    pub other: LinkFacts,
    /// Resources that several links share.
    pub shared: Vec<SharedLink>,
}

impl Default for Links {
    fn default() -> Self {
        Self { known: Vec::new(), other: LinkFacts::assumed(), shared: Vec::new() }
    }
}

impl Links {
    /// Returns the link from one device to another.
    pub fn between(&self, from: &str, to: &str) -> &LinkFacts {
        self.known.iter().find(|(a, b, _)| a == from && b == to).map_or(&self.other, |(_, _, facts)| facts)
    }
}
