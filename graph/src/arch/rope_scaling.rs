//! RoPE scaling that replaces a model's own, so that the model can use longer contexts.

use super::hyperparameters::Hyperparameters;
use super::rope::{RopeFactors, Yarn};
use std::fmt;
use std::str::FromStr;

/// Largest factor of a context.
const LARGEST_FACTOR: f32 = 1024.0;
/// Longest context, in tokens.
const LONGEST_CONTEXT: u32 = 1 << 24;

/// RoPE scaling that replaces a model's own. Parses from `yarn:4` or `linear:2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// YaRN, with this factor between the new and the original context.
    Yarn(f32),
    /// Divides all positions by this factor.
    Linear(f32),
}

/// Error for an invalid scaling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RoPE scaling {0:?} must be yarn:FACTOR or linear:FACTOR, with a factor from 1 to {LARGEST_FACTOR}")]
pub struct RopeScalingError(String);

impl FromStr for RopeScaling {
    type Err = RopeScalingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || RopeScalingError(text.chars().take(40).collect());
        let (kind, factor) = text.split_once(':').ok_or_else(wrong)?;
        let factor = factor.parse::<f32>().ok().filter(|f| (1.0..=LARGEST_FACTOR).contains(f));
        match (kind, factor.ok_or_else(wrong)?) {
            ("yarn", factor) => Ok(RopeScaling::Yarn(factor)),
            ("linear", factor) => Ok(RopeScaling::Linear(factor)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeScaling::Yarn(factor) => write!(f, "yarn:{factor}"),
            RopeScaling::Linear(factor) => write!(f, "linear:{factor}"),
        }
    }
}

impl RopeScaling {
    /// Replaces the scaling of a model. The model's context becomes its original context times the factor.
    /// Windowed layers with a RoPE of their own keep it.
    pub(crate) fn apply(self, h: &mut Hyperparameters) {
        let rope = &mut h.rope;
        let by_context = match rope.factors {
            RopeFactors::ByContext { original_context } => Some(original_context),
            _ => None,
        };
        let of_scaling = rope.yarn.map(|yarn| yarn.original_context);
        let of_scaling = of_scaling.or(rope.llama3.map(|scaling| scaling.original_context)).or(by_context);
        let original = of_scaling.unwrap_or((h.context as f32 / rope.scale.max(1.0)) as u32).max(1);
        let (RopeScaling::Yarn(factor) | RopeScaling::Linear(factor)) = self;
        // Factors that keep a part of each head from rotating are no scaling.
        if !h.extras.keeps_rope_factors {
            h.extras.replaced_factors = std::mem::replace(&mut rope.factors, RopeFactors::None);
        }
        (rope.scale, rope.magnitude) = (1.0, 1.0);
        (rope.llama3, rope.yarn, rope.dynamic) = (None, None, None);
        match self {
            RopeScaling::Linear(factor) => rope.scale = factor,
            RopeScaling::Yarn(factor) => {
                rope.magnitude = Yarn::magnitude(factor);
                rope.yarn = Some(Yarn::usual(factor, original));
            }
        }
        let longest = h.extras.indexer.map_or(LONGEST_CONTEXT, |indexer| indexer.positions);
        h.context = ((f64::from(original) * f64::from(factor)) as u32).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_scalings() {
        assert_eq!("yarn:4".parse(), Ok(RopeScaling::Yarn(4.0)));
        assert_eq!("linear:2.5".parse::<RopeScaling>().unwrap().to_string(), "linear:2.5");
        for wrong in
            ["", "yarn", "yarn:", "yarn:0.5", "yarn:nan", "yarn:inf", "linear:1025", "ntk:2", "Yarn:2"]
        {
            let error = wrong.parse::<RopeScaling>().unwrap_err().to_string();
            assert!(
                error.contains("must be yarn:FACTOR or linear:FACTOR, with a factor from 1 to 1024"),
                "{error}"
            );
        }
    }
}
