//! Properties of physical devices.

use super::Instance;
use super::matrices::{self, FLEXIBLE, FlexibleFeatures};
use super::memory::BUFFER_USAGE;
use ash::{amd, ext, khr, nv, vk};
use ragtag_hal::cache::{Key, key};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};

/// Minimum alignment of host regions and pages, in bytes.
const PAGE_BYTES: u64 = 4096;

/// A queue family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) index: u32,
    pub(crate) flags: vk::QueueFlags,
    pub(crate) queues: u32,
    /// Number of valid timestamp bits, or 0 if the family has no timestamps.
    pub(crate) timestamp_bits: u32,
}

/// The properties of a physical device.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(super) handle: vk::PhysicalDevice,
    pub(crate) name: String,
    pub(crate) api_version: u32,
    pub(crate) driver: String,
    pub(crate) kind: vk::PhysicalDeviceType,
    pub(crate) uuid: [u8; 16],
    pub(crate) driver_uuid: [u8; 16],
    /// PCI domain, bus, device and function.
    pub(crate) pci: Option<[u32; 4]>,
    /// Key that identifies the hardware and the driver. It includes the properties that the driver compares
    /// when it loads a pipeline cache.
    pub(crate) fingerprint: Key,
    pub(crate) limits: vk::PhysicalDeviceLimits,
    pub(crate) max_allocation_bytes: u64,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) families: Vec<Family>,
    /// Required alignment of an imported host pointer, or `None` if the device cannot import host memory.
    pub(super) import_alignment_bytes: Option<u64>,
    /// Whether buffers can be exported as opaque file descriptors.
    pub(crate) exports_fd: bool,
    /// Whether buffers can be imported from opaque file descriptors.
    pub(crate) imports_fd: bool,
    /// Whether buffers can be imported from dma-bufs.
    pub(crate) imports_dma_buf: bool,
    pub(crate) memory_budget: bool,
    pub(crate) timeline_semaphores: bool,
    pub(crate) host_query_reset: bool,
    pub(crate) half_floats: bool,
    /// Whether the device supports all sub-group operations of WGSL.
    pub(crate) sub_groups: bool,
    /// Whether sub-group operations also accept f16.
    pub(crate) sub_group_types: bool,
    /// Maximum number of work items in a full sub-group, or `None` if pipelines cannot require full
    /// sub-groups.
    pub(crate) full_sub_groups: Option<u32>,
    pub(crate) integer_dot: bool,
    /// Whether an integer dot product is faster than the equivalent sequence of instructions.
    pub(crate) integer_dot_accelerated: bool,
    /// Whether sub-groups can multiply 16 × 16 f16 matrices and accumulate in f32.
    pub(crate) cooperative_matrices: bool,
    /// Whether sub-groups can multiply 16 × 16 matrices that the driver composes from smaller ones.
    pub(crate) flexible_matrices: bool,
    pub(crate) compute_units: Option<u32>,
}

impl Facts {
    /// Queries the properties of a physical device.
    ///
    /// # Errors
    /// Returns a message if the driver does not report a property.
    pub(super) fn of(instance: &Instance, handle: vk::PhysicalDevice) -> Result<Self, String> {
        let raw = instance.raw();
        // SAFETY: this handle and all handles below belong to the instance.
        let extensions = unsafe { raw.enumerate_device_extension_properties(handle) };
        let extensions =
            extensions.map_err(|code| format!("vkEnumerateDeviceExtensionProperties: {code:?}"))?;
        let named = |one: &vk::ExtensionProperties| one.extension_name_as_c_str().map(CStr::to_owned).ok();
        let extensions: BTreeSet<CString> = extensions.iter().filter_map(named).collect();
        let has = |name: &CStr| extensions.contains(name);
        // SAFETY: as above.
        let plain = unsafe { raw.get_physical_device_properties(handle) };
        let modern = plain.api_version >= vk::API_VERSION_1_2;
        let newest = plain.api_version >= vk::API_VERSION_1_3;

        let mut ids = vk::PhysicalDeviceIDProperties::default();
        let mut maintenance = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut groups = vk::PhysicalDeviceSubgroupProperties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut buffers = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut bus = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let mut import = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
        properties = properties.push_next(&mut maintenance).push_next(&mut groups);
        if modern {
            properties = properties.push_next(&mut driver);
        }
        if newest {
            properties = properties.push_next(&mut sizes).push_next(&mut dot).push_next(&mut buffers);
        }
        if has(ext::pci_bus_info::NAME) {
            properties = properties.push_next(&mut bus);
        }
        if has(ext::external_memory_host::NAME) {
            properties = properties.push_next(&mut import);
        }
        if has(nv::shader_sm_builtins::NAME) {
            properties = properties.push_next(&mut nvidia);
        }
        if has(amd::shader_core_properties2::NAME) {
            properties = properties.push_next(&mut amd);
        }
        // SAFETY: a device with this version and these extensions supports each structure.
        unsafe { raw.get_physical_device_properties2(handle, &mut properties) };

        let mut in_1_1 = vk::PhysicalDeviceVulkan11Features::default();
        let mut in_1_2 = vk::PhysicalDeviceVulkan12Features::default();
        let mut in_1_3 = vk::PhysicalDeviceVulkan13Features::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut flexible = FlexibleFeatures::with(false);
        let mut features = vk::PhysicalDeviceFeatures2::default();
        if modern {
            features = features.push_next(&mut in_1_1).push_next(&mut in_1_2);
        }
        if newest {
            features = features.push_next(&mut in_1_3);
        }
        if has(khr::cooperative_matrix::NAME) {
            features = features.push_next(&mut matrices);
        }
        if has(FLEXIBLE) {
            features = features.push_next(&mut flexible);
        }
        // SAFETY: as for the properties.
        unsafe { raw.get_physical_device_features2(handle, &mut features) };
        let memory_model =
            in_1_2.vulkan_memory_model == vk::TRUE && in_1_2.vulkan_memory_model_device_scope == vk::TRUE;
        let matrices = matrices.cooperative_matrix == vk::TRUE && memory_model;
        let has_squares = matrices && matrices::multiplies(instance, handle);
        let flexible = flexible.flexible_dimensions == vk::TRUE;
        let puts_together = matrices && !has_squares && flexible && matrices::puts_together(instance, handle);
        let half_storage = in_1_1.storage_buffer16_bit_access == vk::TRUE
            && in_1_1.uniform_and_storage_buffer16_bit_access == vk::TRUE;
        let wanted = vk::SubgroupFeatureFlags::BASIC
            | vk::SubgroupFeatureFlags::VOTE
            | vk::SubgroupFeatureFlags::ARITHMETIC
            | vk::SubgroupFeatureFlags::BALLOT
            | vk::SubgroupFeatureFlags::SHUFFLE
            | vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE;
        let full = in_1_3.compute_full_subgroups == vk::TRUE && in_1_3.subgroup_size_control == vk::TRUE;
        let external = |supported: bool, kind| match cfg!(unix) && modern && supported {
            true => external_buffers(raw, handle, kind),
            false => vk::ExternalMemoryFeatureFlags::empty(),
        };
        let has_fd = has(khr::external_memory_fd::NAME);
        let dma_buf = has_fd && has(ext::external_memory_dma_buf::NAME);
        let dma_buf = external(dma_buf, vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT);
        let external = external(has_fd, vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        let words = |text: Result<&CStr, _>| text.map_or(String::new(), |text| text.to_string_lossy().into());
        let driver_name = words(driver.driver_name_as_c_str());
        let driver_info = words(driver.driver_info_as_c_str());
        let name = words(plain.device_name_as_c_str());
        // SAFETY: as above.
        let memory = unsafe { raw.get_physical_device_memory_properties(handle) };
        Ok(Self {
            handle,
            fingerprint: key([
                name.as_bytes(),
                driver_name.as_bytes(),
                driver_info.as_bytes(),
                &plain.api_version.to_le_bytes(),
                &plain.vendor_id.to_le_bytes(),
                &plain.device_id.to_le_bytes(),
                &plain.driver_version.to_le_bytes(),
                &plain.pipeline_cache_uuid,
            ]),
            name,
            api_version: plain.api_version,
            driver: match driver_info.as_str() {
                "" => format!("{driver_name} {:#x}", plain.driver_version),
                info => format!("{driver_name} {info}"),
            },
            kind: plain.device_type,
            uuid: ids.device_uuid,
            driver_uuid: ids.driver_uuid,
            pci: has(ext::pci_bus_info::NAME).then_some([
                bus.pci_domain,
                bus.pci_bus,
                bus.pci_device,
                bus.pci_function,
            ]),
            limits: plain.limits,
            max_allocation_bytes: match newest {
                true => maintenance.max_memory_allocation_size.min(buffers.max_buffer_size),
                false => maintenance.max_memory_allocation_size,
            },
            memory,
            families: families(raw, handle),
            import_alignment_bytes: has(ext::external_memory_host::NAME)
                .then_some(import.min_imported_host_pointer_alignment),
            exports_fd: external.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE),
            imports_fd: external.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE),
            imports_dma_buf: dma_buf.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
                && !dma_buf.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY),
            memory_budget: has(ext::memory_budget::NAME),
            timeline_semaphores: in_1_2.timeline_semaphore == vk::TRUE,
            host_query_reset: in_1_2.host_query_reset == vk::TRUE,
            half_floats: in_1_2.shader_float16 == vk::TRUE && half_storage,
            sub_groups: groups.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
                && groups.supported_operations.contains(wanted),
            sub_group_types: in_1_2.shader_subgroup_extended_types == vk::TRUE,
            full_sub_groups: full.then_some(sizes.max_subgroup_size),
            integer_dot: in_1_3.shader_integer_dot_product == vk::TRUE,
            integer_dot_accelerated: dot.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE
                && dot.integer_dot_product4x8_bit_packed_unsigned_accelerated == vk::TRUE,
            cooperative_matrices: has_squares || puts_together,
            flexible_matrices: puts_together,
            compute_units: [nvidia.shader_sm_count, amd.active_compute_unit_count]
                .into_iter()
                .find(|&units| units > 0),
        })
    }

    /// Returns true if the device can import host memory with the granularity of pages.
    pub(crate) fn imports_pages(&self) -> bool {
        self.import_alignment_bytes.is_some_and(|bytes| bytes <= PAGE_BYTES)
    }

    /// Returns the size of a heap, and the number of bytes that this process may still allocate. The second
    /// value is `None` if the driver does not report it.
    pub(crate) fn heap(&self, instance: &Instance, index: u32) -> (u64, Option<u64>) {
        let index = index as usize;
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
        if self.memory_budget {
            properties = properties.push_next(&mut budget);
        }
        // SAFETY: the handle belongs to this instance, and the device supports the structure.
        unsafe { instance.raw().get_physical_device_memory_properties2(self.handle, &mut properties) };
        let total_bytes = properties.memory_properties.memory_heaps[index].size;
        let free = budget.heap_budget[index].saturating_sub(budget.heap_usage[index]);
        (total_bytes, self.memory_budget.then_some(free.min(total_bytes)))
    }
}

/// Returns the possible uses of a kind of file descriptors with buffers.
fn external_buffers(
    raw: &ash::Instance,
    handle: vk::PhysicalDevice,
    kind: vk::ExternalMemoryHandleTypeFlags,
) -> vk::ExternalMemoryFeatureFlags {
    let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(BUFFER_USAGE).handle_type(kind);
    let mut properties = vk::ExternalBufferProperties::default();
    // SAFETY: the handle belongs to this instance, and the device supports Vulkan 1.1.
    unsafe { raw.get_physical_device_external_buffer_properties(handle, &info, &mut properties) };
    properties.external_memory_properties.external_memory_features
}

fn families(raw: &ash::Instance, handle: vk::PhysicalDevice) -> Vec<Family> {
    // SAFETY: the handle belongs to this instance.
    let families = unsafe { raw.get_physical_device_queue_family_properties(handle) };
    let family = |(index, family): (u32, vk::QueueFamilyProperties)| Family {
        index,
        flags: family.queue_flags,
        queues: family.queue_count,
        timestamp_bits: family.timestamp_valid_bits,
    };
    (0..).zip(families).map(family).collect()
}
