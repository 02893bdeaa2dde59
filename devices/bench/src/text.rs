//! The kernel of the tests, in the languages of GPUs.

use crate::GROUP;
use ragtag_hal::{Access, DeviceFunction, EntryAbi, KernelLanguage, Module, ModuleSource, TextEntry};
use std::sync::Arc;

/// Word g of the second binding becomes factor · word g of the first, plus one.
pub static SCALE: EntryAbi = EntryAbi {
    name: "scale",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| extents.fill(u64::from(constants[1]) * 4),
};

const OPENCL_C: &str = "
__kernel void scale(__global const uint *in, __global uint *out, uint factor, uint count) {
    uint at = get_global_id(0);
    if (at < count) out[at] = factor * in[at] + 1u;
}
";

const WGSL: &str = "
struct Constants { first_group: vec3<u32>, factor: u32, count: u32 }
var<immediate> constants: Constants;
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> result: array<u32>;
@compute @workgroup_size(64)
fn scale(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let at = (workgroup.x + constants.first_group.x) * 64u + item;
    if at < constants.count { result[at] = constants.factor * source[at] + 1u; }
}
";

/// [`SCALE`] in a language that a driver compiles, if it is written in it.
pub fn scale_text(language: KernelLanguage) -> Option<Arc<str>> {
    match language {
        KernelLanguage::OpenClC => Some(OPENCL_C.into()),
        KernelLanguage::Wgsl => Some(WGSL.into()),
        _ => None,
    }
}

/// A function whose groups have as many work items as the tests' kernels want.
pub fn function(name: &str) -> DeviceFunction {
    DeviceFunction { name: name.into(), work_group: [GROUP, 1, 1], dynamic_local_bytes: 0 }
}

/// A module of one function with the ABI of [`SCALE`].
pub fn module_of(language: KernelLanguage, text: Arc<str>, function: DeviceFunction) -> Module {
    let source = ModuleSource::Text { language, entries: vec![TextEntry { text, function }] };
    Module { name: "test".into(), entries: vec![&SCALE], source }
}
