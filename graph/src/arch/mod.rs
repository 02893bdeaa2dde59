//! The table of architectures. To add one: a file beside this one, and a row here.

mod bitnet;
mod hyperparameters;
mod llama;
mod transformer;

pub use hyperparameters::Hyperparameters;

use crate::builder::Builder;
use crate::model::ModelError;
use crate::op::OperatorGraph;

/// How a family of models is built from its weights.
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    build: fn(&Hyperparameters, &mut Builder<'_>) -> Result<(), ModelError>,
}

/// All architectures.
pub static ARCHITECTURES: [&Architecture; 2] = [&llama::LLAMA, &bitnet::BITNET];

impl Architecture {
    /// The architecture of this name.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] names those that exist.
    pub fn find(name: &str) -> Result<&'static Architecture, ModelError> {
        ARCHITECTURES.into_iter().find(|a| a.name == name).ok_or_else(|| ModelError::Architecture {
            name: name.into(),
            known: ARCHITECTURES.map(|a| a.name).join(", "),
        })
    }

    /// Builds the operator graph.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape, or is not known to the architecture.
    pub fn build(
        &self,
        hyperparameters: &Hyperparameters,
        weights: &crate::weights::Weights,
    ) -> Result<OperatorGraph, ModelError> {
        let mut builder = Builder::new(weights);
        (self.build)(hyperparameters, &mut builder)?;
        builder.finish()
    }
}
