//! Buffers, each with its own device memory.
//!
//! Drivers allow thousands of allocations (`maxMemoryAllocationCount` is at least 4096). A stage has only
//! hundreds of buffers, most of them large, and its pool caches only a few. Sub-allocation would therefore
//! bring no benefit.

use super::{Logical, said};
use ash::vk;
use ragtag_hal::{Error, Result};
use std::sync::Arc;

/// Granularity in bytes of fills and of memory accesses in shaders.
const WORD_BYTES: u64 = 4;

/// Usage of every buffer.
pub(super) const BUFFER_USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// A mapping of device memory into the host's address space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    /// Host address of the first byte.
    pub(crate) address: usize,
    /// Whether the host caches the memory, which makes reads fast.
    pub(crate) cached: bool,
}

/// A buffer and its device memory.
pub(crate) struct Memory {
    pub(super) logical: Arc<Logical>,
    pub(super) raw: vk::Buffer,
    /// Memory of the buffer, or null before it is allocated.
    pub(super) memory: vk::DeviceMemory,
    bytes: u64,
    mapped: Option<Mapped>,
    /// Size and type of the memory if it can be exported.
    #[cfg(unix)]
    pub(super) exportable: Option<(u64, u32)>,
}

/// A byte range of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct BufferPart<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Memory {
    /// Allocates a buffer in the first memory type of `types` that supports the buffer. Maps the memory if it
    /// is host-visible.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(logical: &Arc<Logical>, bytes: u64, types: &[u32]) -> Result<Self> {
        let mut buffer = Self::without_memory(logical, bytes, vk::ExternalMemoryHandleTypeFlags::empty())?;
        let needs = buffer.requirements();
        let index = memory_type(&needs, types)?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
        buffer.allocate(&info)?;
        buffer.map(index);
        Ok(buffer)
    }

    /// Creates a buffer that uses the host memory from `pointer` to `pointer + bytes`. The size is rounded up
    /// to the device's import alignment.
    ///
    /// # Errors
    /// Returns the driver's error.
    ///
    /// # Safety
    /// The host memory, including the rest of the last alignment unit, stays mapped for the lifetime of the
    /// buffer.
    pub(crate) unsafe fn over(
        logical: &Arc<Logical>,
        pointer: *mut u8,
        bytes: u64,
        types: &[u32],
    ) -> Result<Self> {
        let refused =
            || Error::Unsupported { what: "importing this host memory into a Vulkan buffer".into() };
        let functions = logical.import.as_ref().ok_or_else(refused)?;
        let alignment = logical.facts().import_alignment_bytes.ok_or_else(refused)?;
        let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut buffer = Self::without_memory(logical, bytes, kind)?;
        let needs = buffer.requirements();
        let mut can = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the device supports the extension, and the pointer is valid.
        let asked = unsafe {
            (functions.fp().get_memory_host_pointer_properties_ext)(
                functions.device(),
                kind,
                pointer.cast(),
                &mut can,
            )
        };
        said("vkGetMemoryHostPointerPropertiesEXT", asked.result())?;
        let size = bytes.next_multiple_of(alignment);
        let bits = needs.memory_type_bits & can.memory_type_bits;
        let index = types.iter().copied().find(|index| bits & 1 << index != 0).ok_or_else(refused)?;
        if needs.size > size {
            return Err(refused());
        }
        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(kind).host_pointer(pointer.cast());
        let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(index);
        buffer.allocate(&info.push_next(&mut import))?;
        Ok(buffer)
    }

    pub(super) fn without_memory(
        logical: &Arc<Logical>,
        bytes: u64,
        external: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(external);
        let families = logical.families();
        let mut info = vk::BufferCreateInfo::default()
            // Kernels may access the last bytes as a whole word.
            .size(bytes.next_multiple_of(WORD_BYTES))
            .usage(BUFFER_USAGE);
        if families.len() > 1 {
            // Any queue may use the buffer at any time. For buffers, concurrent sharing costs nothing.
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        if !external.handle_types.is_empty() {
            info = info.push_next(&mut external);
        }
        // SAFETY: the device is alive, and the size is not zero.
        let raw = said("vkCreateBuffer", unsafe { logical.raw.create_buffer(&info, None) })?;
        Ok(Self {
            logical: Arc::clone(logical),
            raw,
            memory: vk::DeviceMemory::null(),
            bytes,
            mapped: None,
            #[cfg(unix)]
            exportable: None,
        })
    }

    pub(super) fn requirements(&self) -> vk::MemoryRequirements {
        // SAFETY: the buffer is alive.
        unsafe { self.logical.raw.get_buffer_memory_requirements(self.raw) }
    }

    pub(super) fn allocate(&mut self, info: &vk::MemoryAllocateInfo<'_>) -> Result<()> {
        let raw = &self.logical.raw;
        // SAFETY: the memory has a type and a size that the buffer supports, and is bound only once.
        unsafe {
            self.memory = said("vkAllocateMemory", raw.allocate_memory(info, None))?;
            said("vkBindBufferMemory", raw.bind_buffer_memory(self.raw, self.memory, 0))
        }
    }

    /// Maps the memory. If mapping fails, the buffer still works, but the host cannot access it directly.
    pub(super) fn map(&mut self, index: u32) {
        use vk::MemoryPropertyFlags as Flags;
        let flags = self.logical.facts().memory.memory_types[index as usize].property_flags;
        if !flags.contains(Flags::HOST_VISIBLE | Flags::HOST_COHERENT) {
            return;
        }
        // SAFETY: the memory is host-visible and not mapped yet.
        let pointer = unsafe {
            self.logical.raw.map_memory(self.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
        };
        match pointer {
            Ok(pointer) => {
                let cached = flags.contains(Flags::HOST_CACHED);
                self.mapped = Some(Mapped { address: pointer as usize, cached });
            }
            Err(code) => tracing::debug!(?code, bytes = self.bytes, "cannot map memory"),
        }
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the host mapping, or `None` if the memory is not mapped.
    pub(crate) fn mapped(&self) -> Option<Mapped> {
        self.mapped
    }
}

/// Returns the first memory type of `types` that supports a buffer.
pub(super) fn memory_type(needs: &vk::MemoryRequirements, types: &[u32]) -> Result<u32> {
    let found = types.iter().copied().find(|index| needs.memory_type_bits & 1 << index != 0);
    found.ok_or_else(|| Error::Unsupported { what: "buffers in this device's memory types".into() })
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: enqueued work keeps its buffers alive until it has ended. Freeing the memory unmaps it.
        unsafe {
            self.logical.raw.destroy_buffer(self.raw, None);
            self.logical.raw.free_memory(self.memory, None);
        }
    }
}

impl BufferPart<'_> {
    pub(super) fn buffer(&self) -> vk::Buffer {
        self.memory.raw
    }

    /// Returns the descriptor for a storage buffer. Its size is rounded up to whole words, the smallest unit
    /// that kernels access.
    pub(super) fn descriptor(&self) -> vk::DescriptorBufferInfo {
        vk::DescriptorBufferInfo {
            buffer: self.memory.raw,
            offset: self.offset,
            range: self.bytes.next_multiple_of(WORD_BYTES),
        }
    }
}
