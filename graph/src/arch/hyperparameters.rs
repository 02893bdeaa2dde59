//! Hyperparameters of a model, and their limits.

use super::extras::Extras;
use super::rope::Rope;
use crate::error::ModelError;
use crate::stage::StageResult;
use serde::Serialize;

/// Upper limit on every count. It ensures that the products of counts that this module computes fit into 64
/// bits.
pub(super) const LARGEST: u32 = 1 << 24;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hyperparameters {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Number of transformer blocks.
    pub layers: u32,
    /// Maximum sequence length that the model was trained for, in tokens.
    pub context: u32,
    /// Elements per residual row (hidden size).
    pub width: u32,
    /// Intermediate size of the feed-forward network.
    pub feed_forward: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key heads, which is also the number of value heads.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dimensions: u32,
    /// Parameters of the rotary position embedding.
    pub rope: Rope,
    /// Constant that RMS norms add to the mean square, and layer norms to the variance.
    pub epsilon: f32,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Hyperparameters that only some architectures have.
    #[serde(flatten)]
    pub extras: Extras,
}

impl Hyperparameters {
    /// Returns the number of blocks between which a model can be cut. Layers that share keys and values are one block with the
    /// layers that compute them, and with all layers between.
    pub(crate) fn blocks(&self) -> u32 {
        let Some(first) = self.extras.shared_kv_from else { return self.layers };
        let sources = (first..self.layers).filter_map(|layer| self.extras.kv_layer(layer));
        sources.min().map_or(self.layers, |first| first + 1)
    }

    /// Returns the result of the last stage.
    pub fn result(&self) -> StageResult {
        let (width, vocabulary) = (self.width, self.vocabulary);
        if self.extras.returns_hidden {
            StageResult::Hidden { width, vocabulary }
        } else {
            StageResult::Picks { vocabulary }
        }
    }

    /// Checks that the hyperparameters are consistent and supported. The argument gives the file's keys for the KV head
    /// count, the number of rotating dimensions and the head size, which error messages name.
    pub(crate) fn check_shape(&self, [kv_heads, rotating, head]: [String; 3]) -> Result<(), ModelError> {
        let bad = |key, why| Err(ModelError::Hyperparameter { key, why });
        let Extras { window, windowed_layers, recurrent, recurrent_layers, .. } = &self.extras;
        // The blocks of rings and the slots of states have one list per sequence.
        if window.is_some()
            && recurrent.is_some()
            && !windowed_layers.is_none()
            && !recurrent_layers.is_none()
        {
            let what = "layers with a window beside recurrent layers".into();
            return Err(ModelError::Unsupported { what });
        }
        let mut counts = std::iter::once(&self.kv_heads).chain(&self.extras.layer_kv_heads);
        if let Some(count) = counts.find(|count| !self.heads.is_multiple_of(**count)) {
            return bad(kv_heads, format!("{} heads cannot share {count} key-value heads", self.heads));
        }
        let windowed = self.extras.windowed_head_dimensions.unwrap_or(self.head_dimensions);
        let windowed = (windowed, self.extras.windowed_rope.unwrap_or(self.rope).dimensions);
        for (size, rotates) in [(self.head_dimensions, self.rope.dimensions), windowed] {
            if rotates > size || !rotates.is_multiple_of(2) {
                return bad(rotating, format!("{rotates} of {size} dimensions cannot rotate"));
            }
            if u64::from(self.heads) * u64::from(size) > u64::from(LARGEST) {
                return bad(head, format!("{} heads of {size}", self.heads));
            }
        }
        Ok(())
    }
}

/// Converts `value` to a count. Fails unless `value` is between 1 and [`LARGEST`].
pub(crate) fn in_range(key: &str, value: i128) -> Result<u32, ModelError> {
    match u32::try_from(value) {
        Ok(count @ 1..=LARGEST) => Ok(count),
        _ => Err(ModelError::Hyperparameter {
            key: key.into(),
            why: format!("{value} is not in 1 … {LARGEST}"),
        }),
    }
}

/// Returns `value`. Fails unless it is finite and positive.
pub(crate) fn positive(key: &str, value: f32) -> Result<f32, ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(ModelError::Hyperparameter { key: key.into(), why: format!("{value} is not finite and positive") })
}
