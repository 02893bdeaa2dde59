//! RoPE frequencies that depend on the length of a sequence, as with LongRoPE and dynamic scaling.

use crate::arch::{LONG_FACTORS, Rope, RopeFactors, SHORT_FACTORS, positive};
use crate::error::ModelError;
use crate::model::Model;
use crate::weight_buffer::vector_values;
use crate::weights::Weights;
use std::borrow::Cow;
use std::sync::Arc;

/// RoPE frequencies that depend on the length of a sequence. As in `transformers`, the length is that of the
/// whole prompt, and later the position of the newest token plus one.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeLengths {
    original_context: u32,
    /// Frequencies of sequences of up to `original_context` tokens.
    short: Arc<[f32]>,
    long: Long,
}

/// Frequencies of longer sequences.
#[derive(Clone, Debug, PartialEq)]
enum Long {
    /// Frequencies for all longer sequences.
    Fixed(Arc<[f32]>),
    /// Settings with dynamic scaling, from which the frequencies for each length follow.
    Dynamic(Rope),
}

impl RopeLengths {
    /// Returns the frequencies of a model, or `None` if they do not depend on the length.
    ///
    /// # Errors
    /// Fails if the factors in the model file are invalid.
    pub(crate) fn of(model: &Model) -> Result<Option<Self>, ModelError> {
        let rope = model.hyperparameters().rope;
        if !rope.depends_on_length() {
            return Ok(None);
        }
        if let Some(dynamic) = rope.dynamic {
            let short = rope.frequencies(None).into();
            let original_context = dynamic.original_context;
            return Ok(Some(Self { original_context, short, long: Long::Dynamic(rope) }));
        }
        let RopeFactors::ByContext { original_context } = rope.factors else { return Ok(None) };
        let frequencies = |index: usize, name: &str| {
            let factors = match &model.hyperparameters().extras.rope_factors {
                Some(factors) => Some(factors[index].clone()),
                None => factors_of(model.weights(), name)?,
            };
            Ok::<_, ModelError>(Arc::from(rope.frequencies(factors.as_deref())))
        };
        let (short, long) = (frequencies(0, SHORT_FACTORS)?, frequencies(1, LONG_FACTORS)?);
        Ok(Some(Self { original_context, short, long: Long::Fixed(long) }))
    }

    /// Returns the number of frequencies of a sequence, one per rotating pair.
    pub fn pairs(&self) -> u32 {
        self.short.len() as u32
    }

    /// Returns the frequencies for a sequence of `length` tokens.
    pub fn frequencies(&self, length: u32) -> Cow<'_, [f32]> {
        match &self.long {
            _ if length <= self.original_context => Cow::Borrowed(&self.short),
            Long::Fixed(long) => Cow::Borrowed(long),
            Long::Dynamic(rope) => Cow::Owned(rope.at_length(length).frequencies(None)),
        }
    }

    /// Returns the length at which the keys of a sequence have to be computed again, because frequencies
    /// change at once. With dynamic scaling they change a little with each token, and keys stay as they are.
    pub fn recompute_at(&self) -> Option<u32> {
        let changes = matches!(&self.long, Long::Fixed(long) if *long != self.short);
        changes.then(|| self.original_context.saturating_add(1))
    }
}

/// Returns the RoPE factors in a tensor. Returns `None` if the model has no data, which planning does not need.
pub(crate) fn factors_of(weights: &Weights, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
    let tensor = weights.required(name)?;
    if !weights.holds(tensor) {
        return Ok(None);
    }
    let factors = vector_values(tensor, weights)?;
    factors.into_iter().map(|factor| positive(name, factor)).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::RopeScaling;
    use crate::test_models;

    /// Checks that sequences up to the original length use the short factors, and longer ones the long factors.
    #[test]
    fn the_length_selects_the_factors_of_longrope() {
        for model in test_models::phi3() {
            let rope = model.hyperparameters().rope;
            let of = |factors: [f32; 4]| rope.frequencies(Some(&factors));
            let (short, long) = (of([1.0, 1.1, 1.2, 1.5]), of([1.0, 2.0, 5.0, 9.0]));
            let lengths = RopeLengths::of(&model).unwrap().unwrap();
            assert_eq!((lengths.pairs(), lengths.recompute_at()), (4, Some(33)));
            assert_eq!([1, 32].map(|length| lengths.frequencies(length).to_vec()), [short.clone(), short]);
            assert_eq!([33, 512].map(|length| lengths.frequencies(length).to_vec()), [long.clone(), long]);
        }
    }

    /// Checks that a requested scaling replaces factors of the model, whose tensors then have no effect.
    #[test]
    fn a_requested_scaling_replaces_factors() {
        for model in test_models::phi3() {
            let model = model.with_rope_scaling(RopeScaling::Linear(4.0)).unwrap();
            assert_eq!((model.hyperparameters().context, RopeLengths::of(&model).unwrap()), (128, None));
            let wanted = [0, 1, 2, 3].map(|pair| 10_000f64.powf(-f64::from(pair) / 4.0) / 4.0);
            for (found, wanted) in model.hyperparameters().rope.frequencies(None).into_iter().zip(wanted) {
                assert!((f64::from(found) / wanted - 1.0).abs() < 1e-6, "{found} for {wanted}");
            }
            assert_eq!(model.hyperparameters().rope.magnitude, 1.0);
        }
    }
}
