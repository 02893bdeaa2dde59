//! Implements the layer's functions. The loader and the program call them in place of the next layer's
//! functions.

#![allow(clippy::missing_safety_doc)] // the requirements are those of Vulkan's specification

use crate::chain::{DeviceLink, INTERFACE_VERSION, InstanceLink, Negotiation, key, take};
use crate::control::{all_are_closed, are_gpus};
use crate::device::Device;
use crate::kernel;
use ash::vk;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Vulkan instance with the next layer's `vkGetInstanceProcAddr`.
#[derive(Clone, Copy)]
struct Instance {
    raw: vk::Instance,
    get_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    /// Functions of the next layer, which it only returns while the instance is created.
    properties: Option<vk::PFN_vkGetPhysicalDeviceProperties>,
    properties2: Option<vk::PFN_vkGetPhysicalDeviceProperties2>,
}

/// Locks the table that maps keys to instances. A new instance replaces a destroyed instance that had the
/// same key.
fn instances() -> MutexGuard<'static, HashMap<usize, Instance>> {
    static INSTANCES: LazyLock<Mutex<HashMap<usize, Instance>>> = LazyLock::new(Mutex::default);
    INSTANCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Negotiates the interface version. The loader calls this function first.
// SAFETY: no other library exports the name.
#[unsafe(export_name = "vkNegotiateLoaderLayerInterfaceVersion")]
pub unsafe extern "system" fn negotiate(negotiation: *mut Negotiation) -> vk::Result {
    // SAFETY: the pointer is null or points to the loader's structure.
    let Some(negotiation) = (unsafe { negotiation.as_mut() }) else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    if negotiation.version < INTERFACE_VERSION {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    negotiation.version = INTERFACE_VERSION;
    negotiation.get_instance_proc_addr = Some(get_instance_proc_addr);
    negotiation.get_device_proc_addr = Some(get_device_proc_addr);
    negotiation.get_physical_device_proc_addr = std::ptr::null();
    vk::Result::SUCCESS
}

/// Returns this layer's implementation of the Vulkan function `name`, if the layer has one.
fn own(name: &CStr) -> vk::PFN_vkVoidFunction {
    let function = match name.to_bytes() {
        b"vkGetInstanceProcAddr" => get_instance_proc_addr as *const c_void,
        b"vkGetDeviceProcAddr" => get_device_proc_addr as *const c_void,
        b"vkCreateInstance" => create_instance as *const c_void,
        b"vkCreateDevice" => create_device as *const c_void,
        b"vkDestroyDevice" => destroy_device as *const c_void,
        b"vkQueueSubmit" => queue_submit as *const c_void,
        b"vkQueueSubmit2" | b"vkQueueSubmit2KHR" => queue_submit2 as *const c_void,
        b"vkQueueWaitIdle" => queue_wait_idle as *const c_void,
        b"vkDeviceWaitIdle" => device_wait_idle as *const c_void,
        b"vkWaitSemaphores" | b"vkWaitSemaphoresKHR" => wait_semaphores as *const c_void,
        b"vkWaitForFences" => wait_for_fences as *const c_void,
        b"vkGetSemaphoreCounterValue" | b"vkGetSemaphoreCounterValueKHR" => counter_value as *const c_void,
        b"vkAllocateMemory" => allocate_memory as *const c_void,
        b"vkFreeMemory" => free_memory as *const c_void,
        b"vkEndCommandBuffer" => end_command_buffer as *const c_void,
        b"vkGetPhysicalDeviceProperties" => properties as *const c_void,
        b"vkGetPhysicalDeviceProperties2" | b"vkGetPhysicalDeviceProperties2KHR" => {
            properties2 as *const c_void
        }
        b"vkCreateShaderModule" => create_shader_module as *const c_void,
        b"vkCreateComputePipelines" => create_compute_pipelines as *const c_void,
        _ => return None,
    };
    // SAFETY: every arm yields a function; the caller knows its parameters from its name.
    Some(unsafe { std::mem::transmute::<*const c_void, unsafe extern "system" fn()>(function) })
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the name is zero-terminated.
    let own = own(unsafe { CStr::from_ptr(name) });
    if instance == vk::Instance::null() {
        return own;
    }
    // SAFETY: the instance comes from the loader.
    let known = instances().get(&unsafe { key(instance) }).copied();
    // The loader asks the first layer for `vkCreateInstance` with the instance that it is about to create.
    let Some(known) = known else { return own };
    // SAFETY: the function belongs to the next layer.
    let next = unsafe { (known.get_proc_addr)(instance, name) };
    // This layer hides functions that the next layer lacks.
    next.map(|next| own.unwrap_or(next))
}

unsafe extern "system" fn get_device_proc_addr(
    device: vk::Device,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the device comes from the loader, and the name is zero-terminated.
    let (known, own) = unsafe { (Device::of(device)?, own(CStr::from_ptr(name))) };
    // SAFETY: the function belongs to the next layer.
    let next = unsafe { (known.get_proc_addr)(device, name) };
    next.map(|next| own.unwrap_or(next))
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    let failed = vk::Result::ERROR_INITIALIZATION_FAILED;
    let kind = vk::StructureType::LOADER_INSTANCE_CREATE_INFO;
    // SAFETY: the chain of structures comes from the loader.
    let link = unsafe { take((*info).p_next, kind, |link: &InstanceLink| link.rest) };
    let Some(InstanceLink { get_instance_proc_addr: get_proc_addr, .. }) = link else { return failed };
    // SAFETY: the function belongs to the next layer.
    let create = unsafe { get_proc_addr(vk::Instance::null(), c"vkCreateInstance".as_ptr()) };
    let Some(create) = create else { return failed };
    // SAFETY: the function has this type, and gets the arguments of the calling function.
    unsafe {
        let create = std::mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create);
        let result = create(info, allocator, instance);
        if result == vk::Result::SUCCESS {
            let find = |name: &CStr| get_proc_addr(*instance, name.as_ptr());
            let properties = find(c"vkGetPhysicalDeviceProperties");
            let properties2 = find(c"vkGetPhysicalDeviceProperties2")
                .or_else(|| find(c"vkGetPhysicalDeviceProperties2KHR"));
            let known = Instance {
                raw: *instance,
                get_proc_addr,
                properties: std::mem::transmute::<
                    vk::PFN_vkVoidFunction,
                    Option<vk::PFN_vkGetPhysicalDeviceProperties>,
                >(properties),
                properties2: std::mem::transmute::<
                    vk::PFN_vkVoidFunction,
                    Option<vk::PFN_vkGetPhysicalDeviceProperties2>,
                >(properties2),
            };
            instances().insert(key(*instance), known);
        }
        result
    }
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    if all_are_closed() {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    let failed = vk::Result::ERROR_INITIALIZATION_FAILED;
    let kind = vk::StructureType::LOADER_DEVICE_CREATE_INFO;
    // SAFETY: the chain of structures and the physical device come from the loader.
    let (link, instance) = unsafe {
        let link = take((*info).p_next, kind, |link: &DeviceLink| link.rest);
        (link, instances().get(&key(physical)).copied())
    };
    let (Some(link), Some(instance)) = (link, instance) else { return failed };
    // SAFETY: the function belongs to the next layer.
    let create = unsafe { (link.get_instance_proc_addr)(instance.raw, c"vkCreateDevice".as_ptr()) };
    let Some(create) = create else { return failed };
    // SAFETY: the function has this type, and gets the arguments of the calling function.
    unsafe {
        let create = std::mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let result = create(physical, info, allocator, device);
        if result == vk::Result::SUCCESS {
            Device::keep(*device, link.get_device_proc_addr);
        }
        result
    }
}

unsafe extern "system" fn destroy_device(device: vk::Device, allocator: *const vk::AllocationCallbacks<'_>) {
    if device == vk::Device::null() {
        return;
    }
    // SAFETY: the caller passes its device and no longer uses it.
    unsafe {
        if let Some(known) = Device::forget(device) {
            (known.next.fp_v1_0().destroy_device)(device, allocator);
        }
    }
}

/// Runs `call` on the device that owns `handle`. Returns `ERROR_UNKNOWN` if the layer does not know the
/// device.
///
/// # Safety
/// The handle must come from the loader.
unsafe fn on(handle: impl vk::Handle, call: impl FnOnce(&Device) -> vk::Result) -> vk::Result {
    // SAFETY: the caller guarantees the handle.
    let device = unsafe { Device::of(handle) };
    device.map_or(vk::Result::ERROR_UNKNOWN, |device| call(&device))
}

unsafe extern "system" fn queue_submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(queue, |device| device.submit(|next| (next.fp_v1_0().queue_submit)(queue, count, infos, fence)))
    }
}

unsafe extern "system" fn queue_submit2(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo2<'_>,
    fence: vk::Fence,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(queue, |device| device.submit(|next| (next.fp_v1_3().queue_submit2)(queue, count, infos, fence)))
    }
}

unsafe extern "system" fn queue_wait_idle(queue: vk::Queue) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe { on(queue, |device| device.drain(|next| (next.fp_v1_0().queue_wait_idle)(queue))) }
}

unsafe extern "system" fn device_wait_idle(device: vk::Device) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe { on(device, |known| known.drain(|next| (next.fp_v1_0().device_wait_idle)(device))) }
}

unsafe extern "system" fn wait_semaphores(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    timeout_ns: u64,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(device, |known| known.wait(|next| (next.fp_v1_2().wait_semaphores)(device, info, timeout_ns)))
    }
}

unsafe extern "system" fn wait_for_fences(
    device: vk::Device,
    count: u32,
    fences: *const vk::Fence,
    all: vk::Bool32,
    timeout_ns: u64,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(device, |known| {
            known.wait(|next| (next.fp_v1_0().wait_for_fences)(device, count, fences, all, timeout_ns))
        })
    }
}

unsafe extern "system" fn counter_value(
    device: vk::Device,
    semaphore: vk::Semaphore,
    value: *mut u64,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(device, |known| {
            known.ask(|next| (next.fp_v1_2().get_semaphore_counter_value)(device, semaphore, value))
        })
    }
}

unsafe extern "system" fn allocate_memory(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        on(device, |known| {
            known.allocate((*info).allocation_size, |next| {
                let result = (next.fp_v1_0().allocate_memory)(device, info, allocator, memory);
                result.result().map(|()| *memory)
            })
        })
    }
}

unsafe extern "system" fn free_memory(
    device: vk::Device,
    memory: vk::DeviceMemory,
    allocator: *const vk::AllocationCallbacks<'_>,
) {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        if let Some(known) = Device::of(device) {
            known.free(memory);
            (known.next.fp_v1_0().free_memory)(device, memory, allocator);
        }
    }
}

unsafe extern "system" fn end_command_buffer(buffer: vk::CommandBuffer) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe { on(buffer, |device| device.take(|next| (next.fp_v1_0().end_command_buffer)(buffer))) }
}

unsafe extern "system" fn create_compute_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements; `pipelines` has `count` elements.
    unsafe {
        (0..count as usize).for_each(|at| pipelines.add(at).write(vk::Pipeline::null()));
        on(device, |known| {
            known.take(|next| {
                let create = next.fp_v1_0().create_compute_pipelines;
                create(device, cache, count, infos, allocator, pipelines)
            })
        })
    }
}

unsafe extern "system" fn create_shader_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    // SAFETY: the caller meets the next layer's requirements, so the code has this size.
    unsafe {
        let code = std::slice::from_raw_parts((*info).p_code, (*info).code_size / 4);
        let changed = kernel::changed(code);
        let info = (*info).code(changed.as_deref().unwrap_or(code));
        on(device, |known| {
            known.take(|next| (next.fp_v1_0().create_shader_module)(device, &info, allocator, module))
        })
    }
}

unsafe extern "system" fn properties(
    physical: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties,
) {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        let known = instances().get(&key(physical)).copied();
        if let Some(next) = known.and_then(|known| known.properties) {
            next(physical, properties);
            as_a_gpu(&mut *properties);
        }
    }
}

unsafe extern "system" fn properties2(
    physical: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties2<'_>,
) {
    // SAFETY: the caller meets the next layer's requirements.
    unsafe {
        let known = instances().get(&key(physical)).copied();
        if let Some(next) = known.and_then(|known| known.properties2) {
            next(physical, properties);
            as_a_gpu(&mut (*properties).properties);
        }
    }
}

/// Reports a device as a GPU if the environment asks for it.
fn as_a_gpu(properties: &mut vk::PhysicalDeviceProperties) {
    if are_gpus() {
        properties.device_type = vk::PhysicalDeviceType::DISCRETE_GPU;
    }
}
