//! The table of architectures. To add one: a file beside this one, and a row here.

mod bitnet;
mod hyperparameters;
mod llama;
mod transformer;

pub use hyperparameters::{Hyperparameters, Llama3Scaling};

pub(crate) use hyperparameters::{in_range, positive};

use crate::builder::Builder;
use crate::error::Quoted;
use crate::model::ModelError;
use crate::op::{OperatorGraph, RopePairing};

/// How a family of models is built from its weights.
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Its names in `architectures` of a checkpoint's `config.json`.
    pub classes: &'static [&'static str],
    /// How GGUF files order the query and key projections for the rotary embedding.
    pub gguf_pairing: RopePairing,
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

    /// The architecture of this class of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] names those that exist.
    pub fn of_class(class: &str) -> Result<&'static Architecture, ModelError> {
        let known: Vec<&str> = ARCHITECTURES.iter().flat_map(|a| a.classes).copied().collect();
        let found = ARCHITECTURES.into_iter().find(|a| a.classes.contains(&class));
        found.ok_or_else(|| ModelError::Architecture {
            name: Quoted(class).to_string(),
            known: known.join(", "),
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
