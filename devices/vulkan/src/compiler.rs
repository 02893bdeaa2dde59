//! Pipelines without a device that runs them: for drivers that stand in for hardware which is not there, and compile for it.
//!
//! This module must not know buffers or queues.

use crate::api::{Instance, Logical};
use crate::probe::{Common, Compiles};
use crate::program::Programs;
use ragtag_hal::cache::Shelf;
use ragtag_hal::{Caps, Module, Result};
use std::sync::Arc;

/// What compiles for one physical device, and keeps nothing on disk.
pub struct PipelineCompiler {
    name: String,
    caps: Caps,
    programs: Programs,
}

impl PipelineCompiler {
    pub(crate) fn new(instance: &Arc<Instance>, found: Compiles, common: &Common) -> Result<Self> {
        let Compiles { facts, caps, queues, target } = found;
        let (name, facts) = (format!("{}, {}", facts.name, facts.driver), Arc::new(facts));
        let logical = Arc::new(Logical::new(instance, &facts, &[(queues[0].0, 1)])?);
        let programs = Programs::new(&logical, target, Arc::new(Shelf::default()), common.backend.into());
        Ok(Self { name, caps, programs })
    }

    /// The physical device and its driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Makes the pipelines of a module.
    ///
    /// # Errors
    /// As when a device loads the module.
    pub fn compile(&self, module: &Module) -> Result<()> {
        self.programs.entries(module).map(drop)
    }
}
