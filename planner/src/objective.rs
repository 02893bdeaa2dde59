//! Defines the objective of a plan, and the request that the plan is optimised for. This module knows nothing
//! about devices or costs.

use crate::json::quoted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use thiserror::Error;

/// The quantity that the planner minimises.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Time of one request that is alone in the pipeline.
    Latency,
    /// Time per request with [`PlanLimits::sequences`](crate::PlanLimits) requests in flight.
    Throughput,
    /// Time from a request's arrival to its first token, if the request is alone in the pipeline.
    FirstToken,
    /// Weighted sum of the three objectives above. Weights are 0 to 1e9, and at least one is positive.
    Mix(Mix),
}

impl Objective {
    /// Returns the number of sequences that decode at once, of at most `sequences`.
    pub(crate) fn sequences(&self, sequences: u32) -> u32 {
        match self {
            Self::Latency | Self::FirstToken => 1,
            Self::Throughput | Self::Mix(_) => sequences,
        }
    }

    /// Returns the weights of the three simple objectives. `None` for throughput alone.
    pub(crate) fn weights(&self) -> Option<Mix> {
        match *self {
            Self::Latency => Some(Mix { latency: 1.0, throughput: 0.0, first_token: 0.0 }),
            Self::FirstToken => Some(Mix { latency: 0.0, throughput: 0.0, first_token: 1.0 }),
            Self::Throughput => None,
            Self::Mix(mix) => Some(mix),
        }
    }
}

/// Weights of a mixed objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Weight of the time of one request that is alone in the pipeline.
    pub latency: f64,
    /// Weight of the time per request in a full pipeline. The busiest stage or transfer determines this time.
    pub throughput: f64,
    /// Weight of the time to the first token.
    pub first_token: f64,
}

/// The request that the plan is optimised for. Its lengths determine the relative weights of prefill and
/// decode. A request that is longer than the context is scaled down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of generated tokens.
    pub generated_tokens: u32,
}

impl Workload {
    /// Returns whether the request fits into a context of `context` positions.
    pub fn fits(&self, context: u32) -> bool {
        u64::from(self.prompt_tokens) + u64::from(self.generated_tokens) <= u64::from(context)
    }

    /// Returns the numbers of prompt and generated tokens, scaled down if the request exceeds the context.
    pub fn within(&self, context: u32) -> (f64, f64) {
        let (prompt, generated) = (f64::from(self.prompt_tokens), f64::from(self.generated_tokens));
        let scale = (f64::from(context) / (prompt + generated)).min(1.0);
        (prompt * scale, generated * scale)
    }
}

impl Default for Workload {
    /// Returns a request of 512 prompt and 128 generated tokens, as is common in benchmarks of inference
    /// engines.
    fn default() -> Self {
        Self { prompt_tokens: 512, generated_tokens: 128 }
    }
}

/// Maximum weight in a mixed objective.
pub(crate) const MAX_WEIGHT: f64 = 1e9;

/// Error for a string that is not an objective.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{}\": {why}; write latency, throughput, first-token, or a mix as in mix:latency=1,throughput=2",
    quoted(text)
)]
pub struct ObjectiveError {
    /// The string.
    pub text: String,
    /// Problem, as quoted in the error message.
    pub why: &'static str,
}

impl FromStr for Objective {
    type Err = ObjectiveError;

    /// Parses `latency`, `throughput`, `first-token`, or `mix:` with one or more weights.
    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        let wrong = |why| ObjectiveError { text: text.into(), why };
        let Some(weights) = text.strip_prefix("mix:") else {
            return match text {
                "latency" => Ok(Self::Latency),
                "throughput" => Ok(Self::Throughput),
                "first-token" => Ok(Self::FirstToken),
                _ => Err(wrong("unknown objective")),
            };
        };
        let (mut latency, mut throughput, mut first_token) = (None, None, None);
        for part in weights.split(',') {
            let (name, weight) = part.split_once('=').ok_or_else(|| wrong("each part is NAME=WEIGHT"))?;
            let place = match name {
                "latency" => &mut latency,
                "throughput" => &mut throughput,
                "first-token" => &mut first_token,
                _ => return Err(wrong("unknown part of a mix")),
            };
            let weight = weight.parse().ok().filter(|weight| (0.0..=MAX_WEIGHT).contains(weight));
            let weight = weight.ok_or_else(|| wrong("a weight is a number from 0 to 1e9"))?;
            if place.replace(weight).is_some() {
                return Err(wrong("a part is given twice"));
            }
        }
        let [latency, throughput, first_token] =
            [latency, throughput, first_token].map(Option::unwrap_or_default);
        let mix = Mix { latency, throughput, first_token };
        if mix.latency + mix.throughput + mix.first_token == 0.0 {
            return Err(wrong("all weights are 0"));
        }
        Ok(Self::Mix(mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read_as_users_write_them() {
        assert_eq!("latency".parse(), Ok(Objective::Latency));
        assert_eq!("throughput".parse(), Ok(Objective::Throughput));
        assert_eq!("first-token".parse(), Ok(Objective::FirstToken));
        let mix = Mix { latency: 1.0, throughput: 2.5, first_token: 0.0 };
        assert_eq!("mix:throughput=2.5,latency=1".parse(), Ok(Objective::Mix(mix)));
        for (text, why) in [
            ("speed", "unknown objective"),
            ("mix", "unknown objective"),
            ("mix:", "NAME=WEIGHT"),
            ("mix:latency", "NAME=WEIGHT"),
            ("mix:speed=1", "unknown part"),
            ("mix:latency=-1", "from 0 to 1e9"),
            ("mix:latency=1e10", "from 0 to 1e9"),
            ("mix:latency=NaN", "from 0 to 1e9"),
            ("mix:latency=inf", "from 0 to 1e9"),
            ("mix:latency=1,latency=1", "given twice"),
            ("mix:latency=0", "all weights are 0"),
        ] {
            let error = text.parse::<Objective>().expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
