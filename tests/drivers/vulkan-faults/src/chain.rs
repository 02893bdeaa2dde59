//! Declares the interface between Vulkan's loader and its layers. The structures are those of `vk_layer.h`
//! from Vulkan-Headers.
//!
//! The first word of the object behind a handle is a pointer to a dispatch table. A layer identifies devices
//! and instances by this pointer. The loader uses one table for a device and all its queues, and one table
//! for an instance and all its physical devices.

use ash::vk;
use std::ffi::c_void;

/// Lowest interface version at which the loader queries the layer's functions through [`Negotiation`].
pub const INTERFACE_VERSION: u32 = 2;

/// Structure that `vkNegotiateLoaderLayerInterfaceVersion` fills in.
#[repr(C)]
pub struct Negotiation {
    kind: u32,
    next: *const c_void,
    pub version: u32,
    pub get_instance_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
    pub get_device_proc_addr: Option<vk::PFN_vkGetDeviceProcAddr>,
    pub get_physical_device_proc_addr: *const c_void,
}

/// Link of an instance's layer chain. It has the functions of the next layer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InstanceLink {
    pub rest: *mut InstanceLink,
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    get_physical_device_proc_addr: *const c_void,
}

/// Link of a device's layer chain. It has the functions of the next layer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceLink {
    pub rest: *mut DeviceLink,
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    pub get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// Structure that the loader adds to the `pNext` chain of `vkCreateInstance` or `vkCreateDevice`.
#[repr(C)]
struct Info<L> {
    kind: vk::StructureType,
    next: *const c_void,
    /// Value that says how to interpret the last field.
    function: u32,
    link: *mut L,
}

/// Value of [`Info::function`] if the last field is a link of a layer chain.
const LINK: u32 = 0;

/// Removes the first link from the layer chain that a creation call receives, and returns this link.
///
/// # Safety
/// `next` must start a chain of Vulkan structures. The links in structures of type `kind` must have type `L`.
pub unsafe fn take<L: Copy>(
    mut next: *const c_void,
    kind: vk::StructureType,
    rest: impl Fn(&L) -> *mut L,
) -> Option<L> {
    while !next.is_null() {
        let info = next.cast_mut().cast::<Info<L>>();
        // SAFETY: `info` is a structure of the chain. Every structure starts with its kind and a pointer to
        // the next one, and the loader's structures may be written.
        unsafe {
            if (*info).kind == kind && (*info).function == LINK {
                let link = *(*info).link.as_ref()?;
                (*info).link = rest(&link);
                return Some(link);
            }
            next = (*info).next;
        }
    }
    None
}

/// Returns the address of an object's dispatch table, which identifies the object.
///
/// # Safety
/// The handle must come from the loader.
pub unsafe fn key(handle: impl vk::Handle) -> usize {
    // SAFETY: the caller guarantees the handle.
    unsafe { *(handle.as_raw() as *const usize) }
}
