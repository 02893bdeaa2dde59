//! The functions that Ragtag calls, in one list.
//!
//! Signatures follow `ze_api.h`, `zes_api.h` and `ze_loader.h` of version 1.4. They are the same in all later
//! versions of API 1. Each function returns a `ze_result_t`.

use super::types::*;
use crate::error::Code;
use std::ffi::{c_char, c_void};

/// Defines the table of functions. A library must have all required functions.
macro_rules! functions {
    (required { $($name:ident($($_a:ident: $type:ty),* $(,)?);)* }
     optional { $($optional:ident($($_o:ident: $optional_type:ty),* $(,)?);)* }) => {
        /// Functions of the loader.
        #[allow(non_snake_case)] // named as in the library
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> Code,)*
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($optional_type),*) -> Code>,)*
        }

        impl Functions {
            /// Looks up all functions.
            ///
            /// # Errors
            /// Returns the name of a required function that the library lacks.
            pub(super) fn of(library: &'static libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures in the list match the headers. The library is never unloaded.
                    $($name: *unsafe { library.get(stringify!($name).as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                    // SAFETY: as above.
                    $($optional: unsafe { library.get(stringify!($optional).as_bytes()) }
                        .ok().map(|found| *found),)*
                })
            }
        }
    };
}

functions! {
    required {
        zeInit(flags: u32);
        zeDriverGet(count: *mut u32, drivers: *mut Handle);
        zeDriverGetApiVersion(driver: Handle, version: *mut u32);
        zeDriverGetProperties(driver: Handle, properties: *mut DriverProperties);
        zeDriverGetExtensionProperties(driver: Handle, count: *mut u32, extensions: *mut Extension);
        zeDriverGetExtensionFunctionAddress(driver: Handle, name: *const c_char, function: *mut *mut c_void);
        zeDeviceGet(driver: Handle, count: *mut u32, devices: *mut Handle);
        zeDeviceGetSubDevices(device: Handle, count: *mut u32, devices: *mut Handle);
        zeDeviceGetProperties(device: Handle, properties: *mut DeviceProperties);
        zeDeviceGetComputeProperties(device: Handle, properties: *mut ComputeProperties);
        zeDeviceGetModuleProperties(device: Handle, properties: *mut ModuleProperties);
        zeDeviceGetCommandQueueGroupProperties(
            device: Handle,
            count: *mut u32,
            groups: *mut QueueGroupProperties,
        );
        zeDeviceGetMemoryProperties(device: Handle, count: *mut u32, memories: *mut MemoryProperties);
        zeDeviceGetMemoryAccessProperties(device: Handle, properties: *mut MemoryAccessProperties);
        zeDeviceGetExternalMemoryProperties(device: Handle, properties: *mut ExternalMemoryProperties);
        zeDeviceCanAccessPeer(device: Handle, peer: Handle, can: *mut u8);
        zeDeviceGetStatus(device: Handle);
        zeContextCreate(driver: Handle, desc: *const ContextDesc, context: *mut Handle);
        zeContextDestroy(context: Handle);
        zeCommandQueueCreate(context: Handle, device: Handle, desc: *const QueueDesc, queue: *mut Handle);
        zeCommandQueueDestroy(queue: Handle);
        zeCommandQueueExecuteCommandLists(queue: Handle, count: u32, lists: *mut Handle, fence: Handle);
        zeCommandQueueSynchronize(queue: Handle, timeout_ns: u64);
        zeCommandListCreate(context: Handle, device: Handle, desc: *const ListDesc, list: *mut Handle);
        zeCommandListCreateImmediate(
            context: Handle,
            device: Handle,
            desc: *const QueueDesc,
            list: *mut Handle,
        );
        zeCommandListDestroy(list: Handle);
        zeCommandListClose(list: Handle);
        zeCommandListAppendBarrier(list: Handle, signal: Handle, count: u32, events: *const Handle);
        zeCommandListAppendMemoryCopy(
            list: Handle,
            to: *mut c_void,
            from: *const c_void,
            bytes: usize,
            signal: Handle,
            count: u32,
            events: *const Handle,
        );
        zeCommandListAppendMemoryFill(
            list: Handle,
            to: *mut c_void,
            pattern: *const c_void,
            pattern_bytes: usize,
            bytes: usize,
            signal: Handle,
            count: u32,
            events: *const Handle,
        );
        zeCommandListAppendLaunchKernel(
            list: Handle,
            kernel: Handle,
            groups: *const [u32; 3],
            signal: Handle,
            count: u32,
            events: *const Handle,
        );
        zeCommandListAppendWaitOnEvents(list: Handle, count: u32, events: *const Handle);
        zeCommandListAppendEventReset(list: Handle, event: Handle);
        zeEventPoolCreate(
            context: Handle,
            desc: *const EventPoolDesc,
            devices: u32,
            list: *const Handle,
            pool: *mut Handle,
        );
        zeEventPoolDestroy(pool: Handle);
        zeEventCreate(pool: Handle, desc: *const EventDesc, event: *mut Handle);
        zeEventDestroy(event: Handle);
        zeEventHostSynchronize(event: Handle, timeout_ns: u64);
        zeEventQueryStatus(event: Handle);
        zeEventHostReset(event: Handle);
        zeEventHostSignal(event: Handle);
        zeEventQueryKernelTimestamp(event: Handle, timestamps: *mut Timestamps);
        zeMemAllocDevice(
            context: Handle,
            desc: *const DeviceMemoryDesc,
            bytes: usize,
            alignment: usize,
            device: Handle,
            pointer: *mut *mut c_void,
        );
        zeMemAllocShared(
            context: Handle,
            device_desc: *const DeviceMemoryDesc,
            host_desc: *const HostMemoryDesc,
            bytes: usize,
            alignment: usize,
            device: Handle,
            pointer: *mut *mut c_void,
        );
        zeMemFree(context: Handle, pointer: *mut c_void);
        zeMemGetAllocProperties(
            context: Handle,
            pointer: *const c_void,
            properties: *mut AllocationProperties,
            device: *mut Handle,
        );
        zeModuleCreate(
            context: Handle,
            device: Handle,
            desc: *const ModuleDesc,
            module: *mut Handle,
            log: *mut Handle,
        );
        zeModuleDestroy(module: Handle);
        zeModuleBuildLogDestroy(log: Handle);
        zeModuleBuildLogGetString(log: Handle, bytes: *mut usize, text: *mut u8);
        zeModuleGetNativeBinary(module: Handle, bytes: *mut usize, binary: *mut u8);
        zeKernelCreate(module: Handle, desc: *const KernelDesc, kernel: *mut Handle);
        zeKernelDestroy(kernel: Handle);
        zeKernelSetGroupSize(kernel: Handle, x: u32, y: u32, z: u32);
        zeKernelSetArgumentValue(kernel: Handle, index: u32, bytes: usize, value: *const c_void);
        zeKernelGetProperties(kernel: Handle, properties: *mut KernelProperties);
    }
    optional {
        zeDeviceGetGlobalTimestamps(device: Handle, host: *mut u64, timer: *mut u64);
        zeDevicePciGetPropertiesExt(device: Handle, properties: *mut PciProperties);
        zelLoaderTranslateHandle(kind: u32, handle: Handle, native: *mut Handle);
        zesDeviceEnumMemoryModules(device: Handle, count: *mut u32, memories: *mut Handle);
        zesMemoryGetState(memory: Handle, state: *mut MemoryState);
        zesDeviceEnumTemperatureSensors(device: Handle, count: *mut u32, sensors: *mut Handle);
        zesTemperatureGetState(sensor: Handle, celsius: *mut f64);
        zesDeviceEnumFrequencyDomains(device: Handle, count: *mut u32, domains: *mut Handle);
        zesFrequencyGetProperties(domain: Handle, properties: *mut FrequencyProperties);
        zesFrequencyGetState(domain: Handle, state: *mut FrequencyState);
    }
}
