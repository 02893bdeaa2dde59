//! Queries for the matrix shapes that a device's sub-groups can multiply.
//!
//! Kernels need 16 × 16 matrices. On a device that supports only smaller matrices, the driver may compose
//! larger ones through `VK_NV_cooperative_matrix2` (feature `cooperativeMatrixFlexibleDimensions`). The Rust
//! bindings for Vulkan lack this extension. This module therefore declares the extension's structures and
//! function as the Vulkan specification defines them.

use super::Instance;
use ash::vk;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

/// Extension that lets the driver compose larger matrices from smaller ones.
pub(super) const FLEXIBLE: &CStr = c"VK_NV_cooperative_matrix2";

/// Rows, columns and depth of the matrix products in kernels.
const SIDE: u32 = 16;

/// Component type of the operands. Products accumulate in f32.
const HALF: vk::ComponentTypeKHR = vk::ComponentTypeKHR::FLOAT16;
const SINGLE: vk::ComponentTypeKHR = vk::ComponentTypeKHR::FLOAT32;

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
#[repr(C)]
pub(super) struct FlexibleFeatures<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    work_group_scope: vk::Bool32,
    pub(super) flexible_dimensions: vk::Bool32,
    reductions: vk::Bool32,
    conversions: vk::Bool32,
    per_element_operations: vk::Bool32,
    tensor_addressing: vk::Bool32,
    block_loads: vk::Bool32,
    marker: PhantomData<&'a mut c_void>,
}

impl FlexibleFeatures<'_> {
    /// Returns the structure with the given value of the feature `flexible_dimensions` and all other features
    /// disabled.
    pub(super) fn with(flexible_dimensions: bool) -> Self {
        Self {
            s_type: vk::StructureType::from_raw(1_000_593_000),
            p_next: std::ptr::null_mut(),
            work_group_scope: vk::FALSE,
            flexible_dimensions: flexible_dimensions.into(),
            reductions: vk::FALSE,
            conversions: vk::FALSE,
            per_element_operations: vk::FALSE,
            tensor_addressing: vk::FALSE,
            block_loads: vk::FALSE,
            marker: PhantomData,
        }
    }
}

// SAFETY: the specification allows the structure in this chain, and it starts with the common header.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for FlexibleFeatures<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for FlexibleFeatures<'_> {}

/// `VkCooperativeMatrixFlexibleDimensionsPropertiesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FlexibleProperties {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    /// Granularity of M, N and K.
    granularity: [u32; 3],
    /// Component types of A, B, C and the result.
    types: [vk::ComponentTypeKHR; 4],
    saturating_accumulation: vk::Bool32,
    scope: vk::ScopeKHR,
    work_group_invocations: u32,
}

/// `vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV`.
type FlexibleCall =
    unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut FlexibleProperties) -> vk::Result;

/// Maximum number of entries that Ragtag reads from the driver's table of matrix shapes.
const MAX_ROWS: usize = 1024;

/// Returns true if sub-groups can multiply 16 × 16 f16 matrices. The device must support
/// `VK_KHR_cooperative_matrix`.
pub(super) fn multiplies(instance: &Instance, handle: vk::PhysicalDevice) -> bool {
    let functions = ash::khr::cooperative_matrix::Instance::new(instance.entry(), instance.raw());
    // SAFETY: the device supports the extension.
    let known = unsafe { functions.get_physical_device_cooperative_matrix_properties(handle) };
    known.unwrap_or_default().iter().any(|one| {
        [one.m_size, one.n_size, one.k_size] == [SIDE; 3]
            && [one.a_type, one.b_type, one.c_type, one.result_type] == [HALF, HALF, SINGLE, SINGLE]
            && one.scope == vk::ScopeKHR::SUBGROUP
    })
}

/// Returns true if sub-groups can multiply 16 × 16 f16 matrices that the driver composes from smaller ones.
/// The device must support [`FLEXIBLE`] and its feature.
pub(super) fn puts_together(instance: &Instance, handle: vk::PhysicalDevice) -> bool {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: the instance is alive, and the name ends with a zero.
    let call = unsafe { instance.entry().get_instance_proc_addr(instance.raw().handle(), name.as_ptr()) };
    let Some(call) = call else { return false };
    // SAFETY: in the specification, the function of this name has this type.
    let call = unsafe { std::mem::transmute::<unsafe extern "system" fn(), FlexibleCall>(call) };
    let mut count = 0;
    // SAFETY: with a null array, the call writes only the number of entries.
    let asked = unsafe { call(handle, &raw mut count, std::ptr::null_mut()) };
    if asked != vk::Result::SUCCESS {
        return false;
    }
    let empty = FlexibleProperties {
        s_type: vk::StructureType::from_raw(1_000_593_001),
        p_next: std::ptr::null_mut(),
        granularity: [0; 3],
        types: [vk::ComponentTypeKHR::default(); 4],
        saturating_accumulation: vk::FALSE,
        scope: vk::ScopeKHR::default(),
        work_group_invocations: 0,
    };
    let mut rows = vec![empty; (count as usize).min(MAX_ROWS)];
    count = rows.len() as u32;
    // SAFETY: `rows` has room for `count` entries. The call writes at most that many entries and returns
    // their number.
    let filled = unsafe { call(handle, &raw mut count, rows.as_mut_ptr()) };
    let fits = |granularity: u32| granularity > 0 && SIDE.is_multiple_of(granularity);
    matches!(filled, vk::Result::SUCCESS | vk::Result::INCOMPLETE)
        && rows.iter().take(count as usize).any(|row| {
            row.granularity.into_iter().all(fits)
                && row.types == [HALF, HALF, SINGLE, SINGLE]
                && row.scope == vk::ScopeKHR::SUBGROUP
        })
}
