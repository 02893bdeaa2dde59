//! What the planner knows of the ways between devices.
//!
//! This module must not know plans, and no backend.

use super::figure::{Figure, FigureSource, is_overhead_us, is_rate};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};

/// What the planner knows of the way from one device to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFacts {
    /// How an activation crosses.
    pub route: Route,
    /// Time of the smallest crossing.
    pub latency_us: Figure,
    /// Rate of large crossings.
    pub bandwidth_bytes_per_s: Figure,
}

impl LinkFacts {
    /// A host-staged link of assumed speed: the usual ring, 20 µs, 6 GB/s.
    pub const fn assumed() -> Self {
        Self {
            route: Route::HOST_STAGED,
            latency_us: Figure::assumed(20.0),
            bandwidth_bytes_per_s: Figure::assumed(6e9),
        }
    }

    /// A link over this route, of the latency and rate that suit measured crossings best: (bytes, microseconds).
    pub fn fitted(route: Route, samples: &[(u64, f64)]) -> Self {
        let (latency_us, bandwidth_bytes_per_s) = fit_copies(samples);
        let measured = |value| Figure { value, source: FigureSource::Measured };
        Self {
            route,
            latency_us: measured(latency_us),
            bandwidth_bytes_per_s: measured(bandwidth_bytes_per_s),
        }
    }

    /// Time in which `bytes` bytes cross, in microseconds.
    pub fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us.value + bytes as f64 / self.bandwidth_bytes_per_s.value * 1e6
    }

    /// Whether a measurement can have come to this: a crossing takes some time, however little there is to cross.
    pub fn is_plausible(&self) -> bool {
        self.latency_us.value > 0.0 && self.nonsense().is_none()
    }

    /// The first figure that no link can have, as [`DeviceFacts::nonsense`](crate::DeviceFacts::nonsense).
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

/// Highest rate that is believed, in bytes a second: where larger copies take no longer, nothing bounds it.
const MAX_RATE: f64 = 1e13;

/// The latency in microseconds and the rate in bytes a second of copies: (bytes, microseconds) each. Least squares of the
/// relative errors, so that small copies count as much as large ones.
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

/// Something that several links have in common: a bus, a bridge, the host's memory. Its time is the sum over all crossings
/// of a plan that use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedLink {
    /// Name, for people.
    pub name: String,
    /// The links that use it: from, to.
    pub users: Vec<(String, String)>,
    /// Its rate, all users together.
    pub bandwidth_bytes_per_s: Figure,
}

/// The links between devices: those that are known, and what is assumed of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Known links: from, to, facts. Links are directed.
    pub known: Vec<(String, String, LinkFacts)>,
    /// Every other link.
    pub other: LinkFacts,
    /// What links have in common.
    pub shared: Vec<SharedLink>,
}

impl Default for Links {
    fn default() -> Self {
        Self { known: Vec::new(), other: LinkFacts::assumed(), shared: Vec::new() }
    }
}

impl Links {
    /// The link from one device to another.
    pub fn between(&self, from: &str, to: &str) -> &LinkFacts {
        self.known.iter().find(|(a, b, _)| a == from && b == to).map_or(&self.other, |(_, _, facts)| facts)
    }
}
