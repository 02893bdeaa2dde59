//! Arguments that name a model.

use clap::Args;
use std::path::PathBuf;

/// The model of a command.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    model: Option<PathBuf>,
    /// Same as MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL", hide = true, conflicts_with = "model")]
    model_option: Option<PathBuf>,
}

impl ModelArgs {
    /// Returns the path of the model, or `None` for the bundled model.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.model.as_ref().or(self.model_option.as_ref())
    }
}
