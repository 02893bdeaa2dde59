//! Edges between the stages of a plan, and the paths of micro-batches through the stages.

use super::PredictedTimes;
use crate::cost::Figure;
use ragtag_transfer::Routes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stages that micro-batches pass through, as indices of stages in order. This build requires that every
/// micro-batch passes through all stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPaths {
    /// Stages of micro-batches that contain prompt rows.
    pub prefill: Vec<u32>,
    /// Stages of micro-batches that contain only decode rows.
    pub decode: Vec<u32>,
}

impl PlanEdge {
    /// Returns the unverified edges between `routes.len() + 1` stages, in order. Edge `n` leaves stage `n`.
    pub fn between(routes: impl IntoIterator<Item = (Routes, PredictedTimes)>) -> Vec<Self> {
        let (verified, latency_us) = (false, None);
        let edge = |(from, (routes, predicted))| Self {
            from,
            to: from + 1,
            routes,
            predicted,
            verified,
            latency_us,
        };
        (0..).zip(routes).map(edge).collect()
    }
}

impl PlanPaths {
    /// Returns the paths through all of `stages` stages.
    pub fn through(stages: usize) -> Self {
        let all: Vec<_> = (0..stages as u32).collect();
        Self { prefill: all.clone(), decode: all }
    }
}

/// An edge from one stage to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanEdge {
    /// Index of the stage that sends.
    pub from: u32,
    /// Index of the stage that receives. This build requires `from + 1`.
    pub to: u32,
    /// Routes of the activations. A transfer takes the first route that allows its size.
    #[schemars(schema_with = "crate::schemas::routes")]
    pub routes: Routes,
    /// Times that the cost model predicts for the edge.
    pub predicted: PredictedTimes,
    /// Whether a probe on the planning machine has verified that all routes keep bytes intact. A run checks
    /// the routes again on its own machine.
    #[serde(default)]
    pub verified: bool,
    /// Latency of the edge in microseconds, with its source. Absent in older plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Figure>,
}
