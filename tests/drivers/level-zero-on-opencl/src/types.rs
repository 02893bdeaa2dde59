//! Level Zero's structures and codes, for version 1.8 of its specification. Only the parts that this driver
//! uses.

use std::ffi::{c_char, c_void};

/// Result of a call. The error is a nonzero `ze_result_t`.
pub type Result<T> = std::result::Result<T, u32>;
/// Address of an object as callers see it.
pub type Handle = *mut c_void;

/// Values of `ze_result_t`.
pub mod code {
    pub const NOT_READY: u32 = 1;
    pub const DEVICE_LOST: u32 = 0x7000_0001;
    pub const OUT_OF_DEVICE_MEMORY: u32 = 0x7000_0003;
    pub const MODULE_BUILD_FAILURE: u32 = 0x7000_0004;
    pub const UNINITIALIZED: u32 = 0x7800_0001;
    pub const UNSUPPORTED_FEATURE: u32 = 0x7800_0003;
    pub const INVALID_ARGUMENT: u32 = 0x7800_0004;
    pub const INVALID_NULL_HANDLE: u32 = 0x7800_0005;
    pub const HANDLE_OBJECT_IN_USE: u32 = 0x7800_0006;
    pub const INVALID_NULL_POINTER: u32 = 0x7800_0007;
    pub const INVALID_SIZE: u32 = 0x7800_0008;
    pub const UNSUPPORTED_SIZE: u32 = 0x7800_0009;
    pub const UNSUPPORTED_ALIGNMENT: u32 = 0x7800_000a;
    pub const INVALID_ENUMERATION: u32 = 0x7800_000c;
    pub const UNSUPPORTED_ENUMERATION: u32 = 0x7800_000d;
    pub const INVALID_NATIVE_BINARY: u32 = 0x7800_000f;
    pub const INVALID_KERNEL_NAME: u32 = 0x7800_0011;
    pub const INVALID_GROUP_SIZE_DIMENSION: u32 = 0x7800_0013;
    pub const INVALID_KERNEL_ARGUMENT_INDEX: u32 = 0x7800_0015;
    pub const INVALID_KERNEL_ARGUMENT_SIZE: u32 = 0x7800_0016;
    pub const INVALID_COMMAND_LIST_TYPE: u32 = 0x7800_0019;
    pub const UNKNOWN: u32 = 0x7fff_fffe;
}

/// First fields of every described structure.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Head {
    pub kind: u32,
    pub next: *const Head,
}

/// Structure with C's layout that starts with a [`Head`] and allows every bit pattern. Only `structures!`
/// implements it.
pub trait Described: Copy {
    /// Values of `ze_structure_type_t` for this structure.
    const KINDS: &[u32];
}

/// Defines described structures. The numbers are the structure's types. All fields are numbers, pointers or
/// arrays of numbers.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident [$($kind:literal),+] { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                pub head: Head,
                $(pub $field: $type,)*
            }

            impl Described for $name {
                const KINDS: &[u32] = &[$($kind),+];
            }
        )*
    };
}

structures! {
    DriverProperties [0x1] { uuid: [u8; 16], version: u32, }
    IpcProperties [0x2] { flags: u32, }
    DeviceProperties [0x3, 0x20006] {
        kind: u32,
        vendor: u32,
        device: u32,
        flags: u32,
        subdevice: u32,
        clock_mhz: u32,
        max_allocation: u64,
        max_contexts: u32,
        max_priority: u32,
        threads_per_eu: u32,
        simd_width: u32,
        eus_per_subslice: u32,
        subslices_per_slice: u32,
        slices: u32,
        timer: u64,
        timestamp_bits: u32,
        kernel_timestamp_bits: u32,
        uuid: [u8; 16],
        name: [u8; 256],
    }
    ComputeProperties [0x4] {
        max_group: u32,
        max_group_sizes: [u32; 3],
        max_group_counts: [u32; 3],
        local_bytes: u32,
        sub_group_count: u32,
        sub_groups: [u32; 8],
    }
    ModuleFeatures [0x5] {
        spirv: u32,
        flags: u32,
        fp16: u32,
        fp32: u32,
        fp64: u32,
        argument_bytes: u32,
        printf_bytes: u32,
        native_uuid: [u8; 16],
    }
    QueueGroup [0x6] { flags: u32, max_pattern: usize, queues: u32, }
    MemoryProperties [0x7] { flags: u32, clock_mhz: u32, bus_width: u32, bytes: u64, name: [u8; 256], }
    MemoryAccess [0x8] { host: u32, device: u32, shared: u32, shared_across: u32, system: u32, }
    CacheProperties [0x9] { flags: u32, bytes: usize, }
    PeerProperties [0xb] { flags: u32, }
    ExternalMemory [0xc] { import: u32, export: u32, image_import: u32, image_export: u32, }
    ContextDesc [0xd] { flags: u32, }
    QueueDesc [0xe] { ordinal: u32, index: u32, flags: u32, mode: u32, priority: u32, }
    ListDesc [0xf] { ordinal: u32, flags: u32, }
    PoolDesc [0x10] { flags: u32, count: u32, }
    EventDesc [0x11] { index: u32, signal: u32, wait: u32, }
    FenceDesc [0x12] { flags: u32, }
    DeviceMemoryDesc [0x15] { flags: u32, ordinal: u32, }
    HostMemoryDesc [0x16] { flags: u32, }
    AllocationProperties [0x17] { kind: u32, id: u64, page: u64, }
    ExportDesc [0x18] { flags: u32, }
    ImportFd [0x19] { flags: u32, fd: i32, }
    ExportFd [0x1a] { flags: u32, fd: i32, }
    ModuleDesc [0x1b] {
        format: u32,
        bytes: usize,
        code: *const u8,
        flags: *const c_char,
        constants: *const Constants,
    }
    ModuleProperties [0x1c] { flags: u32, }
    KernelDesc [0x1d] { flags: u32, name: *const c_char, }
    KernelProperties [0x1e] {
        arguments: u32,
        group: [u32; 3],
        sub_groups: u32,
        sub_group: u32,
        max_sub_group: u32,
        max_sub_groups: u32,
        local_bytes: u32,
        private_bytes: u32,
        spill_bytes: u32,
        uuid: [u8; 32],
    }
    PciProperties [0x10008] { address: [u32; 4], generation: i32, width: i32, bandwidth: i64, }
    FreeDesc [0x1000a] { policy: u32, }
    RelaxedLimits [0x20001] { flags: u32, }
    /// `ze_intel_device_module_dp_exp_properties_t`.
    DotProducts [0x30013] { flags: u32, }
    /// `zes_mem_properties_t`.
    SysmanMemory [0xb] {
        kind: u32,
        on_subdevice: u8,
        subdevice: u32,
        location: u32,
        bytes: u64,
        bus_width: i32,
        channels: i32,
    }
    /// `zes_mem_state_t`.
    SysmanMemoryState [0x1e] { health: u32, free: u64, bytes: u64, }
    /// `zes_freq_properties_t`.
    SysmanClock [0x9] {
        domain: u32,
        on_subdevice: u8,
        subdevice: u32,
        can_control: u8,
        reports_throttling: u8,
        min: f64,
        max: f64,
    }
    /// `zes_freq_state_t`.
    SysmanFrequency [0x1b] {
        volts: f64,
        request: f64,
        tdp: f64,
        efficient: f64,
        actual: f64,
        throttle_reasons: u32,
    }
    /// `zes_temp_properties_t`.
    SysmanTemperature [0x14] {
        kind: u32,
        on_subdevice: u8,
        subdevice: u32,
        max: f64,
        critical: u8,
        threshold_1: u8,
        threshold_2: u8,
    }
}

/// Specialisation constants of a module.
#[repr(C)]
pub struct Constants {
    pub count: u32,
    pub ids: *const u32,
    pub values: *const *const c_void,
}

/// Name and version of an extension.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extension {
    pub name: [u8; 256],
    pub version: u32,
}

/// Start and end of a kernel, in ticks of its device.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Stamps {
    pub global: [u64; 2],
    pub context: [u64; 2],
}

/// Bytes that identify an allocation in another context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// Returns `text` as a zero-terminated array.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}
