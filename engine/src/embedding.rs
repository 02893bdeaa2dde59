//! Embeddings: one vector of length 1 for a text, from the hidden rows of its tokens.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::session::LogitStream;

/// Way in which the hidden rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The row of the last token, which has read the whole text.
    Last,
    /// The mean of all rows.
    Mean,
}

impl Pooling {
    /// Returns the pooling of a model: `pooling_type` of its GGUF file. Without one, it is [`Pooling::Last`].
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for types that make no vector from the rows of a causal model.
    pub fn of(model: &Model) -> Result<Self> {
        let key = format!("{}.pooling_type", model.hyperparameters().architecture);
        let found = model.graph().metadata().map(|metadata| metadata.find::<u32>(&key)).transpose();
        let found = found.map_err(|cause| Error::Model { name: model.name().into(), cause: cause.into() })?;
        // The numbers of llama.cpp's `llama_pooling_type`.
        match found.flatten() {
            None | Some(0 | 3) => Ok(Pooling::Last),
            Some(1) => Ok(Pooling::Mean),
            Some(other) => Err(Error::Usage(format!(
                "cannot compute embeddings with {}: {key} is {other}, supported are 1 (mean) and 3 (last)",
                model.name()
            ))),
        }
    }
}

/// An embedding that is being computed. Dropping it cancels the computation.
#[derive(Debug)]
pub struct Embedding {
    rows: LogitStream,
    pooling: Pooling,
}

impl Embedding {
    pub(crate) fn new(rows: LogitStream, pooling: Pooling) -> Self {
        Self { rows, pooling }
    }

    /// Waits for the hidden rows and returns the vector, which has length 1.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejected the ids or failed.
    pub async fn vector(mut self) -> Result<Vec<f32>> {
        let mut sums: Vec<f64> = Vec::new();
        while let Some(row) = self.rows.next_row().await? {
            let row = row.iter().map(|value| f64::from(*value));
            match self.pooling {
                Pooling::Mean if !sums.is_empty() => {
                    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                _ => sums = row.collect(),
            }
        }
        Ok(normalised(&sums))
    }
}

/// Returns a vector of length 1 in the same direction. A vector of zeros stays.
fn normalised(values: &[f64]) -> Vec<f32> {
    let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let factor = if length == 0.0 { 0.0 } else { 1.0 / length };
    values.iter().map(|value| (value * factor) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one() {
        assert_eq!(normalised(&[3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(normalised(&[0.0, 0.0]), [0.0, 0.0]);
        assert!(normalised(&[f64::NAN, 1.0]).iter().all(|value| value.is_nan()));
    }
}
