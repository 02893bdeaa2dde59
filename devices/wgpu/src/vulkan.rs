//! Properties that Vulkan reports and wgpu does not: memory sizes, UUID, and int8 dot products.
//!
//! wgpu exposes the driver's handles, and this module uses them only for queries. For adapters of other APIs,
//! these properties are unknown.

use ragtag_hal::{HeapKind, Memory, MemorySource};

/// Properties of a Vulkan device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VulkanProperties {
    /// UUID of the physical device.
    pub(crate) uuid: Option<[u8; 16]>,
    /// Sizes of the heap from which buffers are allocated.
    pub(crate) memory: Option<Memory>,
    /// Whether the device has an instruction for dot products of four packed int8 values.
    pub(crate) integer_dot: bool,
}

/// Queries the properties of an adapter.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn facts(adapter: &wgpu::Adapter) -> VulkanProperties {
    use ash::{ext, khr, vk};

    // SAFETY: the handle is used only for queries while the guard keeps it alive.
    let Some(native) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else {
        return VulkanProperties::default();
    };
    let (shared, device) = (native.shared_instance(), native.raw_physical_device());
    let capabilities = native.physical_device_capabilities();
    // The functions that are called below need Vulkan 1.1.
    if shared.instance_api_version() < vk::API_VERSION_1_1 {
        return VulkanProperties::default();
    }
    let instance = shared.raw_instance();
    let (mut id, mut dot) = (
        vk::PhysicalDeviceIDProperties::default(),
        vk::PhysicalDeviceShaderIntegerDotProductProperties::default(),
    );
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id).push_next(&mut dot);
    // SAFETY: Vulkan 1.1 has the function, and the device belongs to the instance.
    unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    let software = properties.properties.device_type == vk::PhysicalDeviceType::CPU;
    let modern = properties.properties.api_version >= vk::API_VERSION_1_3;
    let has_dot = modern || capabilities.supports_extension(khr::shader_integer_dot_product::NAME);
    // Packed dot products are not accelerated on a software device, but they are not slower, either.
    let accelerated = dot.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE;

    let tells_budget = capabilities.supports_extension(ext::memory_budget::NAME);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
    if tells_budget {
        memory = memory.push_next(&mut budget);
    }
    // SAFETY: as above.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut memory) };
    let heaps = memory.memory_properties;
    let local = |&at: &usize| heaps.memory_heaps[at].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let heap =
        (0..heaps.memory_heap_count as usize).filter(local).max_by_key(|&at| heaps.memory_heaps[at].size);
    let memory = heap.map(|at| {
        let total_bytes = heaps.memory_heaps[at].size;
        let free = budget.heap_budget[at].saturating_sub(budget.heap_usage[at]).min(total_bytes);
        let free_bytes = tells_budget.then_some(free);
        Memory { heap: HeapKind::Device, total_bytes, free_bytes, source: MemorySource::Api }
    });
    let integer_dot = has_dot && (accelerated || software);
    VulkanProperties { uuid: Some(id.device_uuid), memory, integer_dot }
}

/// Returns default values, because wgpu has no Vulkan on this platform.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn facts(_: &wgpu::Adapter) -> VulkanProperties {
    VulkanProperties::default()
}
