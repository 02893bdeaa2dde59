//! Opens the model that the arguments name.

use crate::cli::args::{DescribedArgs, ModelArgs, PlacementArgs};
use crate::cli::error::{Error, Result};
use crate::{Model, RopeScaling};
use std::path::PathBuf;

/// Opens a model with its weights, and with the RoPE scaling that the user requested, if any.
pub(crate) fn open(model: &ModelArgs, placement: &PlacementArgs) -> Result<Model> {
    let opened = model.path().map_or_else(Model::bundled, Model::open)?;
    scaled(opened, placement.rope_scaling)
}

/// Opens the model at `path`, or the bundled model. It may lack weights. Such a model suffices for inspecting it and for planning.
pub(crate) fn open_metadata(
    path: Option<&PathBuf>,
    described: DescribedArgs,
    scaling: Option<RopeScaling>,
) -> Result<Model> {
    let opened = match (path, described.assume_type) {
        (Some(path), matrices) => Model::open_metadata(path, matrices)?,
        (None, None) => Model::bundled()?,
        (None, Some(_)) => {
            let what = "--assume-type is for models without weights; the bundled model has weights";
            return Err(Error::Usage(what.into()));
        }
    };
    scaled(opened, scaling)
}

/// Returns `model` with the RoPE scaling that the user requested, if any.
pub(crate) fn scaled(model: Model, scaling: Option<RopeScaling>) -> Result<Model> {
    Ok(scaling.map_or(Ok(model.clone()), |scaling| model.with_rope_scaling(scaling))?)
}
