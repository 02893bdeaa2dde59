//! Pass over the SPIR-V that naga generates. It makes writes to local memory visible across barriers.
//!
//! Cooperative matrices require the Vulkan memory model. In this model, a memory access is private to its
//! invocation unless it is marked as non-private. A barrier makes memory available and visible only if the
//! barrier's semantics name that memory. naga declares the model, but emits neither the marks nor the
//! semantics. A driver may therefore move accesses to local memory across barriers. This pass adds
//! `NonPrivatePointer` to each access, and `MakeAvailable` and `MakeVisible` to each barrier. The opcodes are
//! those of SPIR-V 1.6.
//!
//! This module does not depend on WGSL.

use std::collections::{BTreeSet, HashMap};

/// Number of header words before the first instruction. The header word at index [`BOUND`] is the ID bound.
pub(crate) const HEADER: usize = 5;
pub(crate) const BOUND: usize = 3;

const OP_MEMORY_MODEL: u32 = 14;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_LOAD: u32 = 61;
const OP_STORE: u32 = 62;
const OP_CONTROL_BARRIER: u32 = 224;
const OP_MEMORY_BARRIER: u32 = 225;
const OP_COOPERATIVE_MATRIX_LOAD: u32 = 4457;
const OP_COOPERATIVE_MATRIX_STORE: u32 = 4458;
/// Opcodes whose result may be a pointer: parameters, variables, access chains, copies, selections and phis.
const OPS_OF_POINTERS: [u32; 8] = [55, 59, 65, 66, 67, 83, 169, 245];

const VULKAN: u32 = 3;
const WORKGROUP: u32 = 4;
const NON_PRIVATE_POINTER: u32 = 0x20;
const MAKE_AVAILABLE_AND_VISIBLE: u32 = 0x2000 | 0x4000;

/// Returns the opcode and the words of each instruction in a module.
pub(crate) fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let (instruction, after) = rest.split_at_checked((first >> 16).max(1) as usize)?;
        rest = after;
        Some((first & 0xffff, instruction))
    })
}

/// Adds the missing marks and semantics to a module. Returns the module unchanged if it does not declare the
/// Vulkan memory model.
pub(crate) fn complete(words: Vec<u32>) -> Vec<u32> {
    if !instructions(&words).any(|(op, words)| op == OP_MEMORY_MODEL && words.get(2) == Some(&VULKAN)) {
        return words;
    }
    let facts = IdsOfBarriers::of(&words);
    let mut out: Vec<u32> = words[..HEADER].to_vec();
    // Barriers get new constants for their semantics, because other instructions may also use the old
    // constants.
    let mut semantics = HashMap::new();
    for (op, instruction) in instructions(&words) {
        let mut instruction = instruction.to_vec();
        match op {
            OP_LOAD => facts.share(&mut instruction, 3, 4),
            OP_STORE => facts.share(&mut instruction, 1, 3),
            OP_COOPERATIVE_MATRIX_LOAD => facts.share(&mut instruction, 3, 6),
            OP_COOPERATIVE_MATRIX_STORE => facts.share(&mut instruction, 1, 5),
            OP_CONTROL_BARRIER | OP_MEMORY_BARRIER => {
                if let Some(last) = instruction.last_mut() {
                    *last = semantics.get(last).copied().unwrap_or(*last);
                }
            }
            _ => {}
        }
        out.extend(&instruction);
        if let (OP_CONSTANT, [_, of_type, id, value]) = (op, &instruction[..])
            && facts.semantics.contains(id)
        {
            let new = out[BOUND];
            out[BOUND] += 1;
            semantics.insert(*id, new);
            out.extend([(4 << 16) | OP_CONSTANT, *of_type, new, value | MAKE_AVAILABLE_AND_VISIBLE]);
        }
    }
    out
}

/// Types and values that the pass needs, by ID.
struct IdsOfBarriers {
    /// IDs of pointers to local memory.
    local: BTreeSet<u32>,
    /// IDs of the constants that barriers use as their semantics.
    semantics: BTreeSet<u32>,
}

impl IdsOfBarriers {
    fn of(words: &[u32]) -> Self {
        let (mut types, mut local, mut semantics) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (op, instruction) in instructions(words) {
            match (op, instruction) {
                (OP_TYPE_POINTER, [_, id, WORKGROUP, ..]) => drop(types.insert(*id)),
                (OP_CONTROL_BARRIER | OP_MEMORY_BARRIER, [.., last]) => drop(semantics.insert(*last)),
                (op, [_, of_type, id, ..]) if OPS_OF_POINTERS.contains(&op) && types.contains(of_type) => {
                    local.insert(*id);
                }
                _ => {}
            }
        }
        Self { local, semantics }
    }

    /// Marks an access to local memory as non-private. `pointer` and `operands` are the indices of the
    /// pointer and of the memory operands in the instruction.
    fn share(&self, instruction: &mut Vec<u32>, pointer: usize, operands: usize) {
        if !instruction.get(pointer).is_some_and(|id| self.local.contains(id)) {
            return;
        }
        match instruction.get_mut(operands) {
            Some(mask) => *mask |= NON_PRIVATE_POINTER,
            None => {
                instruction.resize(operands, 0);
                instruction.push(NON_PRIVATE_POINTER);
                instruction[0] = (instruction.len() as u32) << 16 | instruction[0] & 0xffff;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::{SpirVTarget, translate};
    use ragtag_hal::Feature;

    const TEXT: &str = "
        enable f16;
        enable wgpu_cooperative_matrix;
        var<workgroup> tile: array<f16, 256>;
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(32)
        fn main(@builtin(local_invocation_index) item: u32) {
            for (var i = item; i < 256u; i += 32u) { tile[i] = f16(i); }
            workgroupBarrier();
            let left = coopLoadT<coop_mat16x16<f16, A>>(&tile[0], 16u);
            let right = coopLoad<coop_mat16x16<f16, B>>(&tile[0], 16u);
            var sum = coopLoadT<coop_mat16x16<f32, C>>(&y[0], 16u);
            sum = coopMultiplyAdd(left, right, sum);
            let out = sum;
            coopStoreT(out, &y[0], 16u);
            workgroupBarrier();
            y[256u + item] = f32(tile[item]);
        }
    ";

    #[test]
    fn accesses_and_barriers_of_local_memory_are_completed() {
        let features = [Feature::CooperativeMatrix, Feature::Fp16].into();
        let spirv = translate(TEXT, "main", &SpirVTarget { vulkan: (1, 3), features }).unwrap();
        let facts = IdsOfBarriers::of(&spirv.words);
        let (mut accesses, mut barriers) = (0, 0);
        for (op, words) in instructions(&spirv.words) {
            let (pointer, operands) = match op {
                OP_LOAD => (3, 4),
                OP_STORE => (1, 3),
                OP_COOPERATIVE_MATRIX_LOAD => (3, 6),
                OP_COOPERATIVE_MATRIX_STORE => (1, 5),
                OP_CONTROL_BARRIER => {
                    let id = words[3];
                    let mut constants = instructions(&spirv.words).filter(|(op, _)| *op == OP_CONSTANT);
                    let value = constants.find(|(_, words)| words[2] == id).map(|(_, words)| words[3]);
                    assert_eq!(value.map(|v| v & 0x7fff), Some(0x6108), "of {value:?}");
                    barriers += 1;
                    continue;
                }
                _ => continue,
            };
            let is_local = facts.local.contains(&words[pointer]);
            let is_shared = words.get(operands).is_some_and(|mask| mask & NON_PRIVATE_POINTER != 0);
            assert_eq!(is_shared, is_local, "{op} {words:?}");
            accesses += usize::from(is_local);
        }
        assert_eq!((accesses, barriers), (4, 2));
    }

    #[test]
    fn other_modules_are_unchanged() {
        let text = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
            @compute @workgroup_size(1) fn main() { y[0] = 1.0; }";
        let features = [Feature::CooperativeMatrix, Feature::Fp16].into();
        let spirv = translate(text, "main", &SpirVTarget { vulkan: (1, 3), features }).unwrap();
        let model = instructions(&spirv.words).find(|(op, _)| *op == OP_MEMORY_MODEL).unwrap().1;
        assert_eq!(model[2], 1, "GLSL's model, where no matrices are");
    }
}
