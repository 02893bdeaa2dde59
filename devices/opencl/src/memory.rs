//! Memory of buffers.
//!
//! This module does not depend on commands.

use crate::api::{Context, Mem, SharedBlock, UnifiedMemory};
use crate::context::Pinned;
use crate::transfer::TransferMode;
use ragtag_hal::driver::Allocation;
use ragtag_hal::{Error, HostPages, Pin, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Device memory that is released with its last reference. Several devices of a context use the same memory
/// if one of them has imported it.
#[derive(Clone)]
pub(crate) struct Buffer(Arc<Memory>);

enum Memory {
    /// Memory that the driver manages.
    Own(Own),
    /// Imported pages of the host. The driver only copies between them and other buffers. A memory object
    /// over the pages would not do, because the driver may keep its contents in other memory.
    Host {
        /// Field order: the pages are unpinned before they are unmapped.
        _pin: Option<Pin<Pinned>>,
        pages: Arc<HostPages>,
    },
}

struct Own {
    /// Sub-buffers. They are declared before `memory`, so that they are dropped first.
    parts: Mutex<Parts>,
    memory: Mem,
    bytes: usize,
    /// Shared block that contains `memory`. It is dropped after `memory`.
    block: Option<SharedBlock>,
}

impl Buffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    /// Returns the driver's error, for example if the device does not support `mode`.
    pub(crate) fn new(
        context: &Context,
        bytes: u64,
        mode: TransferMode,
        unified: Option<UnifiedMemory>,
    ) -> Result<Self> {
        let shortage = || Error::OutOfMemory { wanted: bytes, free: None };
        let size = usize::try_from(bytes).map_err(|_| shortage())?;
        let block = match (mode, unified) {
            (TransferMode::SharedVirtual, _) => {
                Some(SharedBlock::fine_grained(context, size)?.ok_or_else(shortage)?)
            }
            (TransferMode::Unified, Some(unified)) => Some(SharedBlock::unified(context, unified, size)?),
            (TransferMode::Unified, None) | (TransferMode::Explicit, _) => None,
        };
        let memory = match &block {
            // SAFETY: the block has this many bytes and lives as long as the memory object. As for every
            // buffer, points order all access to it.
            Some(block) => unsafe { Mem::over(context, block.pointer(), size) }?,
            None => Mem::new(context, size)?,
        };
        Ok(Self(Arc::new(Memory::Own(Own { parts: Mutex::default(), memory, bytes: size, block }))))
    }

    /// Returns a buffer over pages of the host, which `pin` has pinned.
    pub(crate) fn over(pages: Arc<HostPages>, pin: Option<Pin<Pinned>>) -> Self {
        Self(Arc::new(Memory::Host { _pin: pin, pages }))
    }

    /// Returns true if the host can access the buffer's memory directly.
    pub(crate) fn is_shared(&self) -> bool {
        self.writable().is_some()
    }

    /// Returns a pointer to imported pages of the host, or `None` for other memory.
    pub(crate) fn host(&self) -> Option<*mut u8> {
        match self.0.as_ref() {
            Memory::Own(_) => None,
            Memory::Host { pages, .. } => Some(pages.pointer()),
        }
    }

    fn own(&self) -> Result<&Own> {
        match self.0.as_ref() {
            Memory::Own(own) => Ok(own),
            Memory::Host { .. } => Err(Error::Unsupported {
                what: "OpenCL commands other than copies on imported memory".into(),
            }),
        }
    }

    /// Returns the memory object.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for imported pages of the host.
    pub(crate) fn memory(&self) -> Result<&Mem> {
        self.own().map(|own| &own.memory)
    }

    /// Returns a memory object for the range from an offset to the end of the buffer. Returns `None` for
    /// offset 0. A kernel receives a pointer to the start of a memory object, so a binding at an offset needs
    /// its own object.
    ///
    /// # Errors
    /// Returns the driver's error, or [`Error::Unsupported`] for imported pages of the host.
    pub(crate) fn part(&self, offset: usize) -> Result<Option<Arc<Mem>>> {
        let Own { parts, memory, bytes, .. } = self.own()?;
        if offset == 0 {
            return Ok(None);
        }
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.at(offset, || memory.part(offset, bytes - offset)).map(Some)
    }
}

impl Allocation for Buffer {
    fn bytes(&self) -> u64 {
        match self.0.as_ref() {
            Memory::Own(own) => own.bytes as u64,
            Memory::Host { pages, .. } => pages.bytes(),
        }
    }

    fn writable(&self) -> Option<*mut u8> {
        self.own().ok()?.block.as_ref().map(SharedBlock::pointer)
    }

    fn readable(&self) -> Option<*const u8> {
        self.writable().map(<*mut u8>::cast_const)
    }

    /// Drops the sub-buffers, because the next user of the buffer will bind other offsets.
    fn recycle(&mut self) {
        if let Ok(own) = self.own() {
            own.parts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

/// Sub-buffers for bindings at an offset, in order of creation. Each offset has only one object, because
/// NVIDIA's driver crashes when objects with the same offset are released.
///
/// The driver has also crashed when objects were released in order of creation. They are therefore released
/// in reverse order, before the buffer.
#[derive(Debug, Default)]
struct Parts(Vec<(usize, Arc<Mem>)>);

impl Parts {
    fn at(&mut self, offset: usize, make: impl FnOnce() -> Result<Mem>) -> Result<Arc<Mem>> {
        if let Some((_, part)) = self.0.iter().find(|(at, _)| *at == offset) {
            return Ok(Arc::clone(part));
        }
        let part = Arc::new(make()?);
        self.0.push((offset, Arc::clone(&part)));
        Ok(part)
    }

    fn clear(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.clear();
    }
}
