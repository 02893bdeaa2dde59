//! What Vulkan's loader and its layers tell each other: the structures of `vk_layer.h`, which is part of Vulkan-Headers.
//!
//! A layer's name for a device or an instance is the first word behind its handle: the loader has it point at the same table for
//! a device and all its queues, for an instance and all its physical devices.

use ash::vk;
use std::ffi::c_void;

/// The version of the interface in which the loader asks for functions by [`Negotiation`].
pub const INTERFACE_VERSION: u32 = 2;

/// What `vkNegotiateLoaderLayerInterfaceVersion` fills in.
#[repr(C)]
pub struct Negotiation {
    kind: u32,
    next: *const c_void,
    pub version: u32,
    pub get_instance_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
    pub get_device_proc_addr: Option<vk::PFN_vkGetDeviceProcAddr>,
    pub get_physical_device_proc_addr: *const c_void,
}

/// The rest of a chain of layers, for an instance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InstanceLink {
    pub rest: *mut InstanceLink,
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    get_physical_device_proc_addr: *const c_void,
}

/// The rest of a chain of layers, for a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceLink {
    pub rest: *mut DeviceLink,
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    pub get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// A structure of the loader's behind those of the program.
#[repr(C)]
struct Info<L> {
    kind: vk::StructureType,
    next: *const c_void,
    /// What the last field is.
    function: u32,
    link: *mut L,
}

/// An [`Info`] whose last field is a link.
const LINK: u32 = 0;

/// Takes the link to the next layer out of a creation's structures, and leaves the one behind it there.
///
/// # Safety
/// `next` begins a chain of Vulkan's structures, and links of this kind are `L`s.
pub unsafe fn take<L: Copy>(
    mut next: *const c_void,
    kind: vk::StructureType,
    rest: impl Fn(&L) -> *mut L,
) -> Option<L> {
    while !next.is_null() {
        let info = next.cast_mut().cast::<Info<L>>();
        // SAFETY: a structure of the chain; all begin with their kind and the next, and the loader's are its to be written.
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

/// A layer's name for an object that has a dispatch table.
///
/// # Safety
/// The handle is one that the loader gave.
pub unsafe fn key(handle: impl vk::Handle) -> usize {
    // SAFETY: by the caller's promise.
    unsafe { *(handle.as_raw() as *const usize) }
}
