//! Encodes and decodes file blocks one by one, using the reference implementation.

use super::HostKernel;
use super::isa::Isa;
use crate::abi::array;
use crate::blocks::{dequantise, quantise};
use crate::elements::ITEMS;
use crate::file_blocks::{self, type_of};
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::ops::Range;

/// Returns the range of blocks that `groups` process, limited to `count`. Each work item processes four
/// blocks.
#[inline(always)]
fn blocks(groups: Range<u32>, count: u32) -> Range<usize> {
    let block = |group: u32| (u64::from(group) * u64::from(4 * ITEMS)).min(count.into()) as usize;
    block(groups.start)..block(groups.end)
}

/// Decodes file blocks to values.
pub(crate) struct DecodeBlocks;

impl HostKernel for DecodeBlocks {
    const KERNEL: Kernel = Kernel::DecodeBlocks;

    fn grid(constants: &[u32]) -> [u32; 3] {
        file_blocks::encode_grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [id, count] = array(call.constants);
        let tensor_type = type_of(id).expect("the ABI accepts only types with blocks");
        let (values, bytes) = (tensor_type.block_values(), tensor_type.block_bytes());
        let range = blocks(groups, count);
        // SAFETY: no thread writes the blocks, and each group writes its own values; all bit patterns are
        // valid for these types.
        let (file, out) =
            unsafe { (call.read::<u8>(0), call.write::<f32>(1, range.start * values..range.end * values)) };
        let decoded = dequantise(tensor_type, &file[range.start * bytes..range.end * bytes], out);
        decoded.expect("the range is whole blocks on both sides");
    }
}

/// Encodes values as file blocks.
pub(crate) struct EncodeBlocks;

impl HostKernel for EncodeBlocks {
    const KERNEL: Kernel = Kernel::EncodeBlocks;

    fn grid(constants: &[u32]) -> [u32; 3] {
        file_blocks::encode_grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [id, count] = array(call.constants);
        let tensor_type = type_of(id).expect("the ABI accepts only types with blocks");
        let (values, bytes) = (tensor_type.block_values(), tensor_type.block_bytes());
        let range = blocks(groups, count);
        let end = (range.end * bytes).next_multiple_of(4);
        // SAFETY: no thread writes x, and each group writes its own words of the blocks: all but the last
        // group end at a word.
        let (x, out) = unsafe { (call.read::<f32>(0), call.write::<u8>(1, range.start * bytes..end)) };
        let (out, rest) = out.split_at_mut(range.len() * bytes);
        let encoded = quantise(tensor_type, &x[range.start * values..range.end * values], out);
        encoded.expect("the range is whole blocks on both sides");
        rest.fill(0);
    }
}
