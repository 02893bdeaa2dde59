//! Memory of buffers, and the selection of memory types.
//!
//! This module does not depend on commands.

use crate::api::{Logical, Memory};
use ash::vk::{self, MemoryPropertyFlags as Flags};
use ragtag_hal::driver::Allocation;
use ragtag_hal::{AdapterKind, HeapKind, HostMemory, HostPages, MemorySource};
use std::sync::Arc;

/// Flags of memory that both the host and the device can access without flushes.
const SHARED: Flags = Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());

/// Memory types of a device for each purpose, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryTypes {
    /// Memory types for buffers.
    pub(crate) device: Vec<u32>,
    /// Memory types for staging buffers, which the host reads and writes.
    pub(crate) host: Vec<u32>,
    /// Heap of the first type in `device`.
    pub(crate) heap: u32,
}

impl MemoryTypes {
    /// Selects the memory types of a device. If `direct` is true and the entire device memory is
    /// host-visible, buffers are placed in host-visible memory. Devices that use host memory and devices with
    /// a resizable BAR meet this condition. A device with a BAR of only 256 MiB does not. Ragtag leaves such
    /// a BAR to the driver.
    pub(crate) fn of(memory: &vk::PhysicalDeviceMemoryProperties, direct: bool) -> Self {
        let types = &memory.memory_types[..memory.memory_type_count as usize];
        let size = |one: &vk::MemoryType| memory.memory_heaps[one.heap_index as usize].size;
        let own = |one: &&vk::MemoryType| one.property_flags.contains(Flags::DEVICE_LOCAL);
        let largest = types.iter().filter(own).map(size).max().unwrap_or(0);
        let odd = Flags::PROTECTED | Flags::LAZILY_ALLOCATED | Flags::DEVICE_COHERENT_AMD;
        let rank = |rank: &dyn Fn(&vk::MemoryType) -> Option<u32>| -> Vec<u32> {
            let usable = (0u32..).zip(types).filter(|(_, one)| !one.property_flags.intersects(odd));
            let mut ranked: Vec<_> = usable.filter_map(|(at, one)| Some((rank(one)?, at))).collect();
            ranked.sort_unstable();
            ranked.into_iter().map(|(_, at)| at).collect()
        };
        // A memory type whose heap covers only a small part of the device's memory is a BAR or serves a
        // special purpose.
        let whole = |one: &vk::MemoryType| size(one) >= largest / 2;
        let device = rank(&|one: &vk::MemoryType| {
            let flags = one.property_flags;
            Some(match flags.contains(Flags::DEVICE_LOCAL) {
                true if !whole(one) => 4,
                true if !direct => u32::from(flags.contains(SHARED)),
                true if flags.contains(SHARED) => u32::from(!flags.contains(Flags::HOST_CACHED)),
                true => 2,
                false => 3,
            })
        });
        let host = rank(&|one: &vk::MemoryType| {
            let flags = one.property_flags;
            let cached = u32::from(!flags.contains(Flags::HOST_CACHED));
            flags.contains(SHARED).then(|| 2 * u32::from(flags.contains(Flags::DEVICE_LOCAL)) + cached)
        });
        let heap = device.first().map_or(0, |&at| types[at as usize].heap_index);
        Self { device, host, heap }
    }
}

/// Returns the total and free memory for buffers. If the driver does not report the free bytes of a device
/// that uses host memory, the host's free bytes are the limit. Software devices also use host memory.
pub(crate) fn heap(kind: AdapterKind, (total_bytes, free_bytes): (u64, Option<u64>)) -> ragtag_hal::Memory {
    let (heap, free_bytes, source) = match (kind, free_bytes) {
        (AdapterKind::Discrete, free_bytes) => (HeapKind::Device, free_bytes, MemorySource::Api),
        (_, Some(free)) => (HeapKind::Host, Some(free), MemorySource::Api),
        (_, None) => {
            (HeapKind::Host, Some(HostMemory::now().free_bytes.min(total_bytes)), MemorySource::System)
        }
    };
    ragtag_hal::Memory { heap, total_bytes, free_bytes, source }
}

/// Returns true if the host can read buffers quickly and without a flush.
pub(crate) fn host_reads(logical: &Logical, types: &MemoryTypes) -> bool {
    let all = &logical.facts().memory.memory_types;
    let best = types.device.first().and_then(|&at| all.get(at as usize));
    best.is_some_and(|best| best.property_flags.contains(SHARED | Flags::HOST_CACHED))
}

/// Device memory, or imported memory of the host, that is freed on drop.
pub(crate) struct Buffer {
    /// The memory. It is declared before the pages, so that it is dropped first.
    pub(crate) memory: Memory,
    /// Pages of the host that the memory imports.
    pages: Option<Arc<HostPages>>,
}

impl Buffer {
    /// Returns true if the buffer is memory of the host.
    pub(crate) fn is_host(&self) -> bool {
        self.pages.is_some()
    }

    /// Creates a buffer in device memory.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, pages: None }
    }

    /// Creates a buffer over pages of the host that `memory` imports.
    pub(crate) fn over(memory: Memory, pages: Arc<HostPages>) -> Self {
        Self { memory, pages: Some(pages) }
    }
}

impl Allocation for Buffer {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn writable(&self) -> Option<*mut u8> {
        self.memory.mapped().map(|mapped| mapped.address as *mut u8)
    }

    fn readable(&self) -> Option<*const u8> {
        self.memory.mapped().filter(|mapped| mapped.cached).map(|mapped| mapped.address as *const u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(heaps: &[u64], types: &[(u32, Flags)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_type_count: types.len() as u32,
            memory_heap_count: heaps.len() as u32,
            ..Default::default()
        };
        for (to, &size) in memory.memory_heaps.iter_mut().zip(heaps) {
            to.size = size;
        }
        for (to, &(heap_index, property_flags)) in memory.memory_types.iter_mut().zip(types) {
            *to = vk::MemoryType { property_flags, heap_index };
        }
        memory
    }

    const OWN: Flags = Flags::DEVICE_LOCAL;
    const CACHED: Flags = Flags::from_raw(SHARED.as_raw() | Flags::HOST_CACHED.as_raw());

    #[test]
    fn buffers_are_in_the_devices_own_memory() {
        let small_bar = [16 * GIB, 8 * GIB, 246 << 20];
        let types = [(1, Flags::empty()), (0, OWN), (1, SHARED), (1, CACHED), (2, OWN | SHARED)];
        let types = MemoryTypes::of(&memory(&small_bar, &types), false);
        assert_eq!((&types.device[..2], types.heap), (&[1, 0][..], 0));
        assert_eq!(types.host, [3, 2, 4]);
    }

    #[test]
    fn host_visible_memory_is_used_on_request() {
        let types = [(0, OWN), (1, SHARED), (1, CACHED), (0, OWN | SHARED)];
        let memory = memory(&[16 * GIB, 8 * GIB], &types);
        assert_eq!(MemoryTypes::of(&memory, true).device, [3, 0, 1, 2]);
        assert_eq!(MemoryTypes::of(&memory, false).device, [0, 3, 1, 2]);
    }

    #[test]
    fn unified_memory_leaves_no_choice() {
        let memory = memory(&[2 * GIB], &[(0, OWN | CACHED)]);
        for direct in [false, true] {
            let types = MemoryTypes::of(&memory, direct);
            assert_eq!(types, MemoryTypes { device: vec![0], host: vec![0], heap: 0 });
        }
    }
}
