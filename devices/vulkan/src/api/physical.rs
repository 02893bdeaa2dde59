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

/// Names of the extensions that a physical device supports.
struct Extensions(BTreeSet<CString>);

impl Extensions {
    fn query(raw: &ash::Instance, handle: vk::PhysicalDevice) -> Result<Self, String> {
        // SAFETY: the handle belongs to the instance.
        let all = unsafe { raw.enumerate_device_extension_properties(handle) };
        let all = all.map_err(|code| format!("vkEnumerateDeviceExtensionProperties: {code:?}"))?;
        let named = |one: &vk::ExtensionProperties| one.extension_name_as_c_str().map(CStr::to_owned).ok();
        Ok(Self(all.iter().filter_map(named).collect()))
    }

    fn has(&self, name: &CStr) -> bool {
        self.0.contains(name)
    }
}

/// Properties that a driver reports. Structures that the device does not support are zero.
#[derive(Default)]
struct Properties {
    plain: vk::PhysicalDeviceProperties,
    ids: vk::PhysicalDeviceIDProperties<'static>,
    maintenance: vk::PhysicalDeviceMaintenance3Properties<'static>,
    driver: vk::PhysicalDeviceDriverProperties<'static>,
    groups: vk::PhysicalDeviceSubgroupProperties<'static>,
    sizes: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    dot: vk::PhysicalDeviceShaderIntegerDotProductProperties<'static>,
    buffers: vk::PhysicalDeviceMaintenance4Properties<'static>,
    bus: vk::PhysicalDevicePCIBusInfoPropertiesEXT<'static>,
    import: vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'static>,
    nvidia: vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV<'static>,
    amd: vk::PhysicalDeviceShaderCoreProperties2AMD<'static>,
}

impl Properties {
    fn query(raw: &ash::Instance, handle: vk::PhysicalDevice, extensions: &Extensions) -> Self {
        // SAFETY: the handle belongs to the instance.
        let plain = unsafe { raw.get_physical_device_properties(handle) };
        let mut found = Self { plain, ..Self::default() };
        let (modern, newest) = (found.is_modern(), found.is_newest());
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut found.ids);
        all = all.push_next(&mut found.maintenance).push_next(&mut found.groups);
        if modern {
            all = all.push_next(&mut found.driver);
        }
        if newest {
            all = all.push_next(&mut found.sizes).push_next(&mut found.dot).push_next(&mut found.buffers);
        }
        if extensions.has(ext::pci_bus_info::NAME) {
            all = all.push_next(&mut found.bus);
        }
        if extensions.has(ext::external_memory_host::NAME) {
            all = all.push_next(&mut found.import);
        }
        if extensions.has(nv::shader_sm_builtins::NAME) {
            all = all.push_next(&mut found.nvidia);
        }
        if extensions.has(amd::shader_core_properties2::NAME) {
            all = all.push_next(&mut found.amd);
        }
        // SAFETY: a device with this version and these extensions supports each structure.
        unsafe { raw.get_physical_device_properties2(handle, &mut all) };
        found
    }

    /// Returns whether the device supports Vulkan 1.2.
    fn is_modern(&self) -> bool {
        self.plain.api_version >= vk::API_VERSION_1_2
    }

    /// Returns whether the device supports Vulkan 1.3.
    fn is_newest(&self) -> bool {
        self.plain.api_version >= vk::API_VERSION_1_3
    }

    /// Returns the name of the device, and the name and description of its driver.
    fn names(&self) -> [String; 3] {
        let name = self.plain.device_name_as_c_str();
        [name, self.driver.driver_name_as_c_str(), self.driver.driver_info_as_c_str()]
            .map(|text| text.map_or(String::new(), |text| text.to_string_lossy().into()))
    }

    fn fingerprint(&self) -> Key {
        let [name, driver, info] = self.names();
        key([
            name.as_bytes(),
            driver.as_bytes(),
            info.as_bytes(),
            &self.plain.api_version.to_le_bytes(),
            &self.plain.vendor_id.to_le_bytes(),
            &self.plain.device_id.to_le_bytes(),
            &self.plain.driver_version.to_le_bytes(),
            &self.plain.pipeline_cache_uuid,
        ])
    }

    /// Returns whether the device supports all sub-group operations of WGSL.
    fn has_sub_groups(&self) -> bool {
        let wanted = vk::SubgroupFeatureFlags::BASIC
            | vk::SubgroupFeatureFlags::VOTE
            | vk::SubgroupFeatureFlags::ARITHMETIC
            | vk::SubgroupFeatureFlags::BALLOT
            | vk::SubgroupFeatureFlags::SHUFFLE
            | vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE;
        self.groups.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
            && self.groups.supported_operations.contains(wanted)
    }

    fn max_allocation_bytes(&self) -> u64 {
        match self.is_newest() {
            true => self.maintenance.max_memory_allocation_size.min(self.buffers.max_buffer_size),
            false => self.maintenance.max_memory_allocation_size,
        }
    }
}

/// Features that a driver reports. Structures that the device does not support are false.
#[derive(Default)]
struct Features {
    in_1_1: vk::PhysicalDeviceVulkan11Features<'static>,
    in_1_2: vk::PhysicalDeviceVulkan12Features<'static>,
    in_1_3: vk::PhysicalDeviceVulkan13Features<'static>,
    matrices: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    has_flexible: bool,
}

impl Features {
    fn query(
        raw: &ash::Instance,
        handle: vk::PhysicalDevice,
        extensions: &Extensions,
        properties: &Properties,
    ) -> Self {
        let (mut found, mut flexible) = (Self::default(), FlexibleFeatures::with(false));
        let mut all = vk::PhysicalDeviceFeatures2::default();
        if properties.is_modern() {
            all = all.push_next(&mut found.in_1_1).push_next(&mut found.in_1_2);
        }
        if properties.is_newest() {
            all = all.push_next(&mut found.in_1_3);
        }
        if extensions.has(khr::cooperative_matrix::NAME) {
            all = all.push_next(&mut found.matrices);
        }
        if extensions.has(FLEXIBLE) {
            all = all.push_next(&mut flexible);
        }
        // SAFETY: a device with this version and these extensions supports each structure.
        unsafe { raw.get_physical_device_features2(handle, &mut all) };
        found.has_flexible = flexible.flexible_dimensions == vk::TRUE;
        found
    }

    /// Returns whether sub-groups can multiply matrices of some sizes.
    fn has_matrices(&self) -> bool {
        self.matrices.cooperative_matrix == vk::TRUE
            && self.in_1_2.vulkan_memory_model == vk::TRUE
            && self.in_1_2.vulkan_memory_model_device_scope == vk::TRUE
    }

    fn has_half_floats(&self) -> bool {
        self.in_1_2.shader_float16 == vk::TRUE
            && self.in_1_1.storage_buffer16_bit_access == vk::TRUE
            && self.in_1_1.uniform_and_storage_buffer16_bit_access == vk::TRUE
    }

    fn has_full_sub_groups(&self) -> bool {
        self.in_1_3.compute_full_subgroups == vk::TRUE && self.in_1_3.subgroup_size_control == vk::TRUE
    }
}

impl Facts {
    /// Queries the properties of a physical device.
    ///
    /// # Errors
    /// Returns a message if the driver does not report a property.
    pub(super) fn of(instance: &Instance, handle: vk::PhysicalDevice) -> Result<Self, String> {
        let raw = instance.raw();
        let extensions = Extensions::query(raw, handle)?;
        let properties = Properties::query(raw, handle, &extensions);
        let features = Features::query(raw, handle, &extensions, &properties);
        let has_matrices = features.has_matrices();
        let has_squares = has_matrices && matrices::multiplies(instance, handle);
        let puts_together = has_matrices
            && !has_squares
            && features.has_flexible
            && matrices::puts_together(instance, handle);
        let external = |supported: bool, kind| match cfg!(unix) && properties.is_modern() && supported {
            true => external_buffers(raw, handle, kind),
            false => vk::ExternalMemoryFeatureFlags::empty(),
        };
        let has_fd = extensions.has(khr::external_memory_fd::NAME);
        let dma_buf = has_fd && extensions.has(ext::external_memory_dma_buf::NAME);
        let dma_buf = external(dma_buf, vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT);
        let external = external(has_fd, vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        let [name, driver, info] = properties.names();
        let Properties { plain, ids, bus, import, sizes, dot, nvidia, amd, .. } = &properties;
        Ok(Self {
            handle,
            name,
            api_version: plain.api_version,
            driver: match info.as_str() {
                "" => format!("{driver} {:#x}", plain.driver_version),
                info => format!("{driver} {info}"),
            },
            kind: plain.device_type,
            uuid: ids.device_uuid,
            driver_uuid: ids.driver_uuid,
            pci: extensions.has(ext::pci_bus_info::NAME).then_some([
                bus.pci_domain,
                bus.pci_bus,
                bus.pci_device,
                bus.pci_function,
            ]),
            fingerprint: properties.fingerprint(),
            limits: plain.limits,
            max_allocation_bytes: properties.max_allocation_bytes(),
            // SAFETY: the handle belongs to this instance.
            memory: unsafe { raw.get_physical_device_memory_properties(handle) },
            families: families(raw, handle),
            import_alignment_bytes: extensions
                .has(ext::external_memory_host::NAME)
                .then_some(import.min_imported_host_pointer_alignment),
            exports_fd: external.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE),
            imports_fd: external.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE),
            imports_dma_buf: dma_buf.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
                && !dma_buf.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY),
            memory_budget: extensions.has(ext::memory_budget::NAME),
            timeline_semaphores: features.in_1_2.timeline_semaphore == vk::TRUE,
            host_query_reset: features.in_1_2.host_query_reset == vk::TRUE,
            half_floats: features.has_half_floats(),
            sub_groups: properties.has_sub_groups(),
            sub_group_types: features.in_1_2.shader_subgroup_extended_types == vk::TRUE,
            full_sub_groups: features.has_full_sub_groups().then_some(sizes.max_subgroup_size),
            integer_dot: features.in_1_3.shader_integer_dot_product == vk::TRUE,
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
