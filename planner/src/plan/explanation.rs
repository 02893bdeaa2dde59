//! The machine-readable explanation of a plan. This module knows nothing about the search.

use crate::cost::FigureSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Explanation of a plan. Scores are values of the objective, in microseconds per request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// Score of the plan: the value of the objective.
    pub score_us: f64,
    /// Lower bound of the score over all placements that have one stage per device and meet the constraints,
    /// for every prefill chunk, number of decode groups and wire type that the planner considers. If the user
    /// requested a split, the bound still covers all other placements. 0 if the bound was not computed
    /// because there are too many devices and segments, or because the plan streams weights.
    pub bound_us: f64,
    /// The stage, edge, shared link or token return with the longest busy time per request.
    pub bottleneck: Bottleneck,
    /// Minimum, over all devices, of the fraction of time that the device is idle while a burst of prompts
    /// fills and drains the pipeline.
    pub prefill_bubble: f64,
    /// Fraction of a decode round during which the busiest stage is idle.
    pub decode_idle: f64,
    /// Unused devices, each with the best plan that includes the device.
    pub left_out: Vec<LeftOut>,
    /// Other plans, best first.
    pub alternatives: Vec<Alternative>,
    /// Limits that restrict the plan, with the gain from raising each limit. The limit with the largest gain
    /// is first.
    pub bindings: Vec<BindingLimit>,
    /// Number of input values from each source.
    pub figures: Vec<FigureCount>,
}

/// Busiest part of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Kind of the part.
    pub place: Place,
    /// Index from 0. Edge `n` leaves stage `n`.
    pub index: usize,
    /// Busy time per request, in microseconds.
    pub busy_us: f64,
    /// `busy_us` as a fraction of the total busy time of all stages and edges.
    pub share: f64,
}

/// Kind of a pipeline part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A stage.
    #[default]
    Stage,
    /// The edge from one stage to the next.
    Edge,
    /// A link that several edges share.
    SharedLink,
    /// The return of tokens to the first stage.
    TokenReturn,
}

/// A device that the plan does not use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Label of the device.
    pub device: String,
    /// The best plan that includes the device. Absent if no such plan fits.
    pub best_with: Option<Alternative>,
    /// Whether the planner searched for plans that include the device. If there are many unused devices, the
    /// planner tries only the first ones. If absent, true.
    #[serde(default = "LeftOut::is_tried")]
    pub tried: bool,
    /// Whether plans that include the device fit into memory but violate the constraints. If absent, false.
    #[serde(default)]
    pub constrained: bool,
}

impl LeftOut {
    fn is_tried() -> bool {
        true
    }

    /// Returns whether both devices have the same name, ignoring the device number, and equal values in all
    /// other fields that are reported.
    fn is_like(&self, other: &Self) -> bool {
        let name = |left: &Self| left.device.rsplit_once(':').map(|(name, _)| name.to_owned());
        let rates = |other: &Alternative| {
            (other.score_us, other.decode_tokens_per_s, other.prefill_tokens_per_s, other.why.clone())
        };
        let status = |left: &Self| (left.tried, left.constrained, left.best_with.as_ref().map(rates));
        name(self) == name(other) && status(self) == status(other)
    }
}

impl Explanation {
    /// Returns the unused devices in groups. The devices of a group have the same name, ignoring the device
    /// number, and equal predictions.
    pub fn left_out_alike(&self) -> Vec<Vec<&LeftOut>> {
        let mut groups: Vec<Vec<&LeftOut>> = Vec::new();
        for left in &self.left_out {
            match groups.iter_mut().find(|group| group[0].is_like(left)) {
                Some(group) => group.push(left),
                None => groups.push(vec![left]),
            }
        }
        groups
    }
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Placement of the plan, for example `0-5=cpu:0,6-13=cpu:1`.
    pub split: String,
    /// Score: the value of the objective.
    pub score_us: f64,
    /// Decode tokens per second of all sequences together.
    pub decode_tokens_per_s: f64,
    /// Prefill tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Reason why the plan is listed, for example `best single device` or `even layers`.
    pub why: String,
}

impl Alternative {
    /// Value of `why` for the planner's own placement, which is listed if the user requests a split.
    pub const PLANNERS_OWN: &str = "the planner's own";
}

/// A limit that restricts the plan, with the gain from raising it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Binding", deny_unknown_fields)]
pub struct BindingLimit {
    /// Subject of the limit: a device label, a link such as `cpu:0 -> cuda:0`, or the name of a shared link.
    pub of: String,
    /// Description of the raised limit, for example `8 GiB more memory`.
    pub more: String,
    /// Relative improvement of the score from raising the limit.
    pub gain: f64,
}

/// Number of input values that come from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureCount {
    /// Source of the values.
    pub source: FigureSource,
    /// Number of values.
    pub figures: usize,
}
