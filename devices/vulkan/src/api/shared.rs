//! Buffers whose memory other devices import through opaque file descriptors, and buffers over dma-bufs of
//! other APIs.
//!
//! Every shared buffer has a dedicated allocation, because some drivers export no other. The size, the type
//! and the usage of an imported buffer equal those of the exported buffer, as Vulkan requires.

use super::memory::memory_type;
use super::{Logical, Memory, said};
use ash::vk;
use ragtag_hal::{DmaBuf, Error, OpaqueFd, Result};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

const DMA_BUF: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
const OPAQUE_FD: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

fn unsupported(what: &str) -> Error {
    Error::Unsupported { what: what.into() }
}

impl Memory {
    /// Allocates a buffer like [`Memory::new`], for export.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the device cannot export buffers, or the driver's error.
    pub(crate) fn shared(logical: &Arc<Logical>, bytes: u64, types: &[u32]) -> Result<Self> {
        if !logical.facts().exports_fd {
            return Err(unsupported("exporting this device's buffers"));
        }
        let mut buffer = Self::without_memory(logical, bytes, OPAQUE_FD)?;
        let needs = buffer.requirements();
        let index = memory_type(&needs, types)?;
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer.raw);
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(OPAQUE_FD);
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
        buffer.allocate(&info.push_next(&mut dedicated).push_next(&mut export))?;
        buffer.map(index);
        buffer.exportable = Some((needs.size, index));
        Ok(buffer)
    }

    /// Exports the memory of a buffer from [`Memory::shared`].
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for any other buffer, or the driver's error.
    pub(crate) fn export(&self) -> Result<OpaqueFd> {
        let plain = || unsupported("exporting a buffer that was not created as a shared buffer");
        let (allocation_bytes, memory_type) = self.exportable.ok_or_else(plain)?;
        let functions = self.logical.fd.as_ref().ok_or_else(plain)?;
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(OPAQUE_FD);
        // SAFETY: the memory is alive and was allocated for this export.
        let fd = said("vkGetMemoryFdKHR", unsafe { functions.get_memory_fd(&info) })?;
        let facts = self.logical.facts();
        Ok(OpaqueFd {
            // SAFETY: the driver returns a new file descriptor, which belongs to the caller.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            allocation_bytes,
            memory_type,
            device_uuid: facts.uuid,
            driver_uuid: facts.driver_uuid,
        })
    }

    /// Creates a buffer of `bytes` bytes over exported memory.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the memory belongs to another physical device or driver, or the
    /// driver's error.
    pub(crate) fn import(logical: &Arc<Logical>, bytes: u64, memory: &OpaqueFd) -> Result<Self> {
        let facts = logical.facts();
        if !facts.imports_fd {
            return Err(unsupported("importing buffers into this device"));
        }
        memory.check(facts.uuid, Some(facts.driver_uuid))?;
        let buffer = Self::without_memory(logical, bytes, OPAQUE_FD)?;
        let needs = buffer.requirements();
        let index = memory_type(&needs, &[memory.memory_type])?;
        if needs.size > memory.allocation_bytes {
            return Err(unsupported("importing memory that is smaller than its buffer"));
        }
        let duplicate = memory.fd.try_clone().map_err(|error| Error::invalid(error.to_string()))?;
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer.raw);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(memory.allocation_bytes)
            .memory_type_index(index)
            .push_next(&mut dedicated);
        buffer.over_fd(duplicate, OPAQUE_FD, info)
    }

    /// Creates a buffer of `bytes` bytes over the start of a dma-buf.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the device cannot import dma-bufs or this one is too small, or the
    /// driver's error.
    pub(crate) fn import_dma_buf(logical: &Arc<Logical>, bytes: u64, memory: &DmaBuf) -> Result<Self> {
        let functions = logical.fd.as_ref().filter(|_| logical.facts().imports_dma_buf);
        let functions = functions.ok_or_else(|| unsupported("importing dma-bufs into this device"))?;
        let buffer = Self::without_memory(logical, bytes, DMA_BUF)?;
        let mut needs = buffer.requirements();
        let duplicate = memory.duplicate(needs.size)?;
        let mut types = vk::MemoryFdPropertiesKHR::default();
        // SAFETY: the file descriptor is open, and the call fills the structure.
        let asked = unsafe { functions.get_memory_fd_properties(DMA_BUF, duplicate.as_raw_fd(), &mut types) };
        said("vkGetMemoryFdPropertiesKHR", asked)?;
        needs.memory_type_bits &= types.memory_type_bits;
        let all: Vec<u32> = (0..logical.facts().memory.memory_type_count).collect();
        let index = memory_type(&needs, &all)?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
        buffer.over_fd(duplicate, DMA_BUF, info)
    }

    /// Binds the buffer to the memory of a file descriptor.
    fn over_fd(
        mut self,
        fd: OwnedFd,
        kind: vk::ExternalMemoryHandleTypeFlags,
        info: vk::MemoryAllocateInfo<'_>,
    ) -> Result<Self> {
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(kind).fd(fd.as_raw_fd());
        let allocated = self.allocate(&info.push_next(&mut import));
        if self.memory != vk::DeviceMemory::null() {
            // A successful import has taken the file descriptor.
            let _ = fd.into_raw_fd();
        }
        allocated.map(|()| self)
    }
}
