//! Structures of Level Zero, as `ze_api.h` and `zes_api.h` of version 1.4 define them.
//!
//! Later versions define the same structures. Only fields that Ragtag reads or writes have comments.

use std::ffi::{c_char, c_void};
use std::ptr;

/// A handle of a Level Zero object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: a handle is a name. The rules for concurrent calls apply to the functions that take it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// Returns the handle as a number.
    pub(crate) fn number(self) -> usize {
        self.0 as usize
    }
}

/// Defines structures that start with a type and a pointer to an extension structure. `Default` sets the type,
/// and zeroes all other fields.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $kind:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) kind: u32,
            pub(crate) next: *const c_void,
            $(pub(crate) $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: zero is a valid value of each field: a number, an array of numbers, or a pointer.
                let zeroed: Self = unsafe { std::mem::zeroed() };
                Self { kind: $kind, ..zeroed }
            }
        }
    )*};
}

structures! {
    /// `ze_driver_properties_t`
    DriverProperties = 0x1 { uuid: [u8; 16], version: u32, }
    /// `ze_device_properties_t` with the type of version 1.2, so that `timer_hz` is in cycles per second.
    DeviceProperties = 0x0002_0006 {
        class: u32,
        vendor_id: u32,
        device_id: u32,
        flags: u32,
        subdevice_id: u32,
        core_clock_mhz: u32,
        max_allocation_bytes: u64,
        max_hardware_contexts: u32,
        max_queue_priority: u32,
        threads_per_eu: u32,
        eu_simd_width: u32,
        eus_per_subslice: u32,
        subslices_per_slice: u32,
        slices: u32,
        timer_hz: u64,
        timestamp_bits: u32,
        kernel_timestamp_bits: u32,
        uuid: [u8; 16],
        name: [u8; 256],
    }
    /// `ze_device_compute_properties_t`
    ComputeProperties = 0x4 {
        max_group_items: u32,
        max_group: [u32; 3],
        max_groups: [u32; 3],
        max_local_bytes: u32,
        sub_group_sizes: u32,
        sub_group_size: [u32; 8],
    }
    /// `ze_device_module_properties_t`
    ModuleProperties = 0x5 {
        spir_v_version: u32,
        flags: u32,
        fp16_flags: u32,
        fp32_flags: u32,
        fp64_flags: u32,
        max_arguments_bytes: u32,
        printf_buffer_bytes: u32,
        native_kernel: [u8; 16],
    }
    /// `ze_intel_device_module_dp_exp_properties_t`
    DotProperties = 0x0003_0013 { flags: u32, }
    /// `ze_command_queue_group_properties_t`
    QueueGroupProperties = 0x6 { flags: u32, max_fill_pattern_bytes: usize, queues: u32, }
    /// `ze_device_memory_properties_t`
    MemoryProperties = 0x7 {
        flags: u32,
        max_clock_mhz: u32,
        max_bus_bits: u32,
        total_bytes: u64,
        name: [u8; 256],
    }
    /// `ze_device_memory_access_properties_t`
    MemoryAccessProperties = 0x8 {
        host: u32,
        device: u32,
        shared_single_device: u32,
        shared_cross_device: u32,
        shared_system: u32,
    }
    /// `ze_pci_ext_properties_t`
    PciProperties = 0x0001_0008 {
        domain: u32,
        bus: u32,
        device: u32,
        function: u32,
        generation: i32,
        width: i32,
        max_bandwidth: i64,
    }
    /// `ze_device_external_memory_properties_t`
    ExternalMemoryProperties = 0xc { imports: u32, exports: u32, image_imports: u32, image_exports: u32, }
    /// `ze_context_desc_t`
    ContextDesc = 0xd { flags: u32, }
    /// `ze_command_queue_desc_t`
    QueueDesc = 0xe { ordinal: u32, index: u32, flags: u32, mode: u32, priority: u32, }
    /// `ze_command_list_desc_t`
    ListDesc = 0xf { ordinal: u32, flags: u32, }
    /// `ze_event_pool_desc_t`
    EventPoolDesc = 0x10 { flags: u32, count: u32, }
    /// `ze_event_desc_t`
    EventDesc = 0x11 { index: u32, signal: u32, wait: u32, }
    /// `ze_device_mem_alloc_desc_t`
    DeviceMemoryDesc = 0x15 { flags: u32, ordinal: u32, }
    /// `ze_host_mem_alloc_desc_t`
    HostMemoryDesc = 0x16 { flags: u32, }
    /// `ze_memory_allocation_properties_t`
    AllocationProperties = 0x17 { memory: u32, id: u64, page_bytes: u64, }
    /// `ze_external_memory_export_desc_t`
    ExportDesc = 0x18 { flags: u32, }
    /// `ze_external_memory_import_fd_t`
    ImportFd = 0x19 { flags: u32, fd: i32, }
    /// `ze_external_memory_export_fd_t`
    ExportFd = 0x1a { flags: u32, fd: i32, }
    /// `ze_relaxed_allocation_limits_exp_desc_t`
    RelaxedLimits = 0x0002_0001 { flags: u32, }
    /// `ze_module_desc_t`
    ModuleDesc = 0x1b {
        format: u32,
        bytes: usize,
        code: *const u8,
        build_flags: *const c_char,
        constants: *const c_void,
    }
    /// `ze_kernel_desc_t`
    KernelDesc = 0x1d { flags: u32, name: *const c_char, }
    /// `ze_kernel_properties_t`
    KernelProperties = 0x1e {
        arguments: u32,
        required_group: [u32; 3],
        required_sub_groups: u32,
        required_sub_group_size: u32,
        max_sub_group_size: u32,
        max_sub_groups: u32,
        local_bytes: u32,
        private_bytes: u32,
        spill_bytes: u32,
        uuid: [u8; 32],
    }
    /// `zes_mem_state_t`
    MemoryState = 0x1e { health: u32, free_bytes: u64, size_bytes: u64, }
    /// `zes_freq_properties_t`
    FrequencyProperties = 0x9 {
        domain: u32,
        on_subdevice: u8,
        subdevice_id: u32,
        can_control: u8,
        reports_throttling: u8,
        min_mhz: f64,
        max_mhz: f64,
    }
    /// `zes_freq_state_t`
    FrequencyState = 0x1b {
        volts: f64,
        requested_mhz: f64,
        limit_mhz: f64,
        efficient_mhz: f64,
        actual_mhz: f64,
        throttle_reasons: u32,
    }
}

/// `ze_driver_extension_properties_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) name: [u8; 256],
    pub(crate) version: u32,
}

impl Default for Extension {
    fn default() -> Self {
        Self { name: [0; 256], version: 0 }
    }
}

/// `ze_kernel_timestamp_result_t`: the first two words are the start and the end on the device's global timer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Timestamps {
    pub(crate) start: u64,
    pub(crate) end: u64,
    context_start: u64,
    context_end: u64,
}

/// Values of flags and enumerations.
pub(crate) mod value {
    /// `ZE_DEVICE_TYPE_GPU`
    pub(crate) const GPU: u32 = 1;
    /// `ZES_FREQ_DOMAIN_GPU`
    pub(crate) const GPU_CLOCK: u32 = 0;
    /// `ZES_FREQ_DOMAIN_MEMORY`
    pub(crate) const MEMORY_CLOCK: u32 = 1;
    /// `ZE_DEVICE_TYPE_CPU`
    pub(crate) const CPU: u32 = 2;
    /// `ZE_DEVICE_PROPERTY_FLAG_INTEGRATED`
    pub(crate) const INTEGRATED: u32 = 1;
    /// `ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE`
    pub(crate) const SUBDEVICE: u32 = 2;
    /// `ZE_DEVICE_MODULE_FLAG_FP16`
    pub(crate) const FP16: u32 = 1;
    /// `ZE_DEVICE_MODULE_FLAG_DP4A`
    pub(crate) const DP4A: u32 = 8;
    /// `ZE_INTEL_DEVICE_MODULE_EXP_FLAG_DP4A`
    pub(crate) const INTEL_DP4A: u32 = 1;
    /// `ZE_INTEL_DEVICE_MODULE_EXP_FLAG_DPAS`
    pub(crate) const INTEL_DPAS: u32 = 2;
    /// `ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF`
    pub(crate) const DMA_BUF: u32 = 2;
    /// `ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE`
    pub(crate) const COMPUTE: u32 = 1;
    /// `ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY`
    pub(crate) const COPY: u32 = 2;
    /// `ZE_MEMORY_ACCESS_CAP_FLAG_RW`
    pub(crate) const READ_WRITE: u32 = 1;
    /// `ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS`
    pub(crate) const ASYNCHRONOUS: u32 = 2;
    /// `ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP`
    pub(crate) const VISIBLE_WITH_TIMESTAMPS: u32 = 5;
    /// `ZE_EVENT_SCOPE_FLAG_HOST`
    pub(crate) const HOST: u32 = 4;
    /// `ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE`
    pub(crate) const MAX_SIZE: u32 = 1;
    /// `ZE_MODULE_FORMAT_IL_SPIRV`
    pub(crate) const SPIR_V: u32 = 0;
    /// `ZE_MODULE_FORMAT_NATIVE`
    pub(crate) const NATIVE: u32 = 1;
    /// `ZEL_HANDLE_DRIVER`
    pub(crate) const DRIVER_HANDLE: u32 = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of the C structures on 64-bit machines.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        let sizes = [
            (size_of::<DriverProperties>(), 40),
            (size_of::<DeviceProperties>(), 368),
            (size_of::<ComputeProperties>(), 88),
            (size_of::<ModuleProperties>(), 64),
            (size_of::<QueueGroupProperties>(), 40),
            (size_of::<MemoryProperties>(), 296),
            (size_of::<MemoryAccessProperties>(), 40),
            (size_of::<PciProperties>(), 48),
            (size_of::<ExternalMemoryProperties>(), 32),
            (size_of::<AllocationProperties>(), 40),
            (size_of::<ExportDesc>(), 24),
            (size_of::<ImportFd>(), 24),
            (size_of::<QueueDesc>(), 40),
            (size_of::<ModuleDesc>(), 56),
            (size_of::<KernelProperties>(), 96),
            (size_of::<MemoryState>(), 40),
            (size_of::<FrequencyProperties>(), 48),
            (size_of::<FrequencyState>(), 64),
            (size_of::<Extension>(), 260),
            (size_of::<Timestamps>(), 32),
        ];
        for (at, (own, header)) in sizes.into_iter().enumerate() {
            assert_eq!(own, header, "structure {at}");
        }
    }
}
