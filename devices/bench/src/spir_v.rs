//! The test kernel in SPIR-V.

use std::sync::Arc;

/// A SPIR-V binary under construction.
struct Assembler(Vec<u32>);

impl Assembler {
    /// Starts a SPIR-V 1.0 module whose IDs are less than `bound`.
    fn new(bound: u32) -> Self {
        Self(vec![0x0723_0203, 0x0001_0000, 0, bound, 0])
    }

    /// Appends an instruction: a word with the length and the opcode, followed by the operands.
    fn op(&mut self, code: u32, operands: &[u32]) -> &mut Self {
        self.0.push((operands.len() as u32 + 1) << 16 | code);
        self.0.extend(operands);
        self
    }

    fn bytes(&self) -> Arc<[u8]> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Returns the kernel [`SCALE`](crate::SCALE), but adding `addend` instead of 1. See SPIR-V 1.0, sections 2.3
/// (layout) and 3.32 (instructions).
pub fn scale_binary(addend: u32) -> Arc<[u8]> {
    const NAME: [u32; 2] = [u32::from_le_bytes(*b"scal"), u32::from_le_bytes(*b"e\0\0\0")];
    let (void, uint, ulong, ulong3, global, input, function, boolean) = (1, 2, 3, 4, 5, 6, 7, 8);
    let (one, id, main, from, to, factor, count) = (9, 10, 11, 12, 13, 14, 15);
    let (start, inside, end, at3, at64, at) = (16, 17, 18, 19, 20, 21);
    let (less, source, value, product, sum, target) = (22, 23, 24, 25, 26, 27);
    let mut code = Assembler::new(28);
    code.op(17, &[4]) // OpCapability Addresses
        .op(17, &[6]) // OpCapability Kernel
        .op(17, &[11]) // OpCapability Int64
        .op(14, &[2, 2]) // OpMemoryModel Physical64 OpenCL
        .op(15, &[6, main, NAME[0], NAME[1], id]) // OpEntryPoint Kernel
        .op(71, &[id, 11, 28]) // OpDecorate BuiltIn GlobalInvocationId
        .op(71, &[id, 22]) // OpDecorate Constant
        .op(71, &[id, 41, u32::from_le_bytes(*b"id\0\0"), 1]) // OpDecorate LinkageAttributes "id" Import
        .op(19, &[void]) // OpTypeVoid
        .op(21, &[uint, 32, 0]) // OpTypeInt
        .op(21, &[ulong, 64, 0]) // OpTypeInt
        .op(23, &[ulong3, ulong, 3]) // OpTypeVector
        .op(32, &[global, 5, uint]) // OpTypePointer CrossWorkgroup
        .op(32, &[input, 1, ulong3]) // OpTypePointer Input
        .op(33, &[function, void, global, global, uint, uint]) // OpTypeFunction
        .op(20, &[boolean]) // OpTypeBool
        .op(43, &[uint, one, addend]) // OpConstant
        .op(59, &[input, id, 1]) // OpVariable Input
        .op(54, &[void, main, 0, function]) // OpFunction
        .op(55, &[global, from]) // OpFunctionParameter
        .op(55, &[global, to])
        .op(55, &[uint, factor])
        .op(55, &[uint, count])
        .op(248, &[start]) // OpLabel
        .op(61, &[ulong3, at3, id, 2, 32]) // OpLoad Aligned 32
        .op(81, &[ulong, at64, at3, 0]) // OpCompositeExtract
        .op(113, &[uint, at, at64]) // OpUConvert
        .op(176, &[boolean, less, at, count]) // OpULessThan
        .op(250, &[less, inside, end]) // OpBranchConditional
        .op(248, &[inside]) // OpLabel
        .op(70, &[global, source, from, at64]) // OpInBoundsPtrAccessChain
        .op(61, &[uint, value, source, 2, 4]) // OpLoad Aligned 4
        .op(132, &[uint, product, factor, value]) // OpIMul
        .op(128, &[uint, sum, product, one]) // OpIAdd
        .op(70, &[global, target, to, at64]) // OpInBoundsPtrAccessChain
        .op(62, &[target, sum, 2, 4]) // OpStore Aligned 4
        .op(249, &[end]) // OpBranch
        .op(248, &[end]) // OpLabel
        .op(253, &[]) // OpReturn
        .op(56, &[]); // OpFunctionEnd
    code.bytes()
}
