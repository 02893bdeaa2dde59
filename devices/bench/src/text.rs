//! The test kernel in each kernel language for GPUs.

use crate::GROUP;
use crate::spir_v::scale_binary;
use ragtag_hal::{
    Access, BinaryEntry, DeviceFunction, EntryAbi, KernelLanguage, Module, ModuleSource, TextEntry,
};
use std::sync::Arc;

/// A kernel that computes `out[i] = factor · in[i] + 1` for `count` words.
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

/// PTX for NVIDIA devices of compute capability 6.1 or newer.
const PTX: &str = "
.version 8.0
.target sm_61
.address_size 64

.visible .entry scale(.param .u64 from, .param .u64 to, .param .u32 factor, .param .u32 count)
{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %a<4>;
	ld.param.u32 %r1, [factor];
	ld.param.u32 %r2, [count];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.u32 %r3, %r3, %r4, %r5;
	setp.ge.u32 %p, %r3, %r2;
	@%p bra done;
	ld.param.u64 %a1, [from];
	ld.param.u64 %a2, [to];
	cvta.to.global.u64 %a1, %a1;
	cvta.to.global.u64 %a2, %a2;
	mul.wide.u32 %a3, %r3, 4;
	add.u64 %a1, %a1, %a3;
	add.u64 %a2, %a2, %a3;
	ld.global.u32 %r4, [%a1];
	mad.lo.u32 %r4, %r4, %r1, 1;
	st.global.u32 [%a2], %r4;
done:
	ret;
}
";

/// HIP C++ source that starts with a prelude, like Ragtag's kernels. The stand-in for AMD's compiler replaces
/// the prelude.
const HIP_C: &str = "
typedef unsigned int uint;
#define KERNEL(items) extern \"C\" __global__ void __launch_bounds__(items)
#define GLOBAL
#define ITEM threadIdx.x
#define GROUP(dimension) blockIdx.x
// == end of the prelude ==
KERNEL(64) scale(const GLOBAL uint *in, GLOBAL uint *out, uint factor, uint count) {
    uint at = GROUP(0) * 64u + ITEM;
    if (at < count) out[at] = factor * in[at] + 1u;
}
";

/// Returns the source of [`SCALE`] in a language, if there is one. There is none in CUDA C++, because not
/// every machine has a compiler for that language.
pub fn scale_text(language: KernelLanguage) -> Option<Arc<str>> {
    match language {
        KernelLanguage::OpenClC => Some(OPENCL_C.into()),
        KernelLanguage::Wgsl => Some(WGSL.into()),
        KernelLanguage::Ptx => Some(PTX.into()),
        KernelLanguage::HipC => Some(HIP_C.into()),
        _ => None,
    }
}

/// Code of a kernel.
#[derive(Clone, Debug)]
pub enum Code {
    /// Source text.
    Text(Arc<str>),
    /// SPIR-V.
    Binary(Arc<[u8]>),
}

/// Returns the code of [`SCALE`] in a language, if there is one.
pub fn scale_code(language: KernelLanguage) -> Option<Code> {
    scale_code_adding(language, 1)
}

/// Returns a variant of [`scale_code`] that adds `addend` instead of 1. For the cache, it is a different
/// program.
pub fn scale_code_adding(language: KernelLanguage, addend: u32) -> Option<Code> {
    let (one, other) = match language {
        KernelLanguage::SpirV => return Some(Code::Binary(scale_binary(addend))),
        KernelLanguage::Ptx => ("%r1, 1;", format!("%r1, {addend};")),
        _ => ("+ 1u", format!("+ {addend}u")),
    };
    scale_text(language).map(|text| Code::Text(text.replace(one, &other).into()))
}

/// Returns a function with the work group size of the test kernels.
pub fn function(name: &str) -> DeviceFunction {
    DeviceFunction { name: name.into(), work_group: [GROUP, 1, 1], dynamic_local_bytes: 0 }
}

/// Returns a module that contains one function with the ABI of [`SCALE`].
pub fn module_of(language: KernelLanguage, text: Arc<str>, function: DeviceFunction) -> Module {
    module_of_codes(language, vec![(Code::Text(text), function)])
}

/// Returns a module of functions with the ABI of [`SCALE`], each with its code in `language`.
pub fn module_of_codes(language: KernelLanguage, codes: Vec<(Code, DeviceFunction)>) -> Module {
    let entries = vec![&SCALE; codes.len()];
    let (mut texts, mut binaries) = (Vec::new(), Vec::new());
    for (code, function) in codes {
        match code {
            Code::Text(text) => texts.push(TextEntry { text, function }),
            Code::Binary(binary) => binaries.push(BinaryEntry { binary, function }),
        }
    }
    let source = match language {
        KernelLanguage::SpirV => ModuleSource::SpirV { entries: binaries },
        language => ModuleSource::Text { language, entries: texts },
    };
    Module { name: "test".into(), entries, source }
}
