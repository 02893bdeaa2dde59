//! Compiles pipelines without running them. Some drivers can compile for GPUs that the machine does not have.
//!
//! This module does not depend on buffers or queues.

use crate::api::{Instance, Logical};
use crate::probe::{Common, Compiles};
use crate::program::Programs;
use ragtag_hal::cache::Shelf;
use ragtag_hal::{Caps, Module, Result};
use std::sync::Arc;

/// A pipeline compiler for one physical device. It does not use the disk cache.
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

    /// Returns the names of the physical device and its driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the capabilities of the physical device.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Compiles the pipelines of a module.
    ///
    /// # Errors
    /// Returns the error that a device would return for the module.
    pub fn compile(&self, module: &Module) -> Result<()> {
        self.programs.entries(module).map(drop)
    }
}
