//! Translation of WGSL to SPIR-V with naga.
//!
//! The device's features determine which WGSL features a source may use. They also affect the translation: a
//! dot product of packed bytes becomes a single instruction only if the device has that instruction.
//!
//! WGSL's safety checks are disabled, because Ragtag's kernels do not need them. `Checked` ensures that
//! dispatches stay within their bindings, so indices need no checks. In the kernels, all loops end, divisors
//! are not zero, and local memory is written before it is read.
//!
//! This module does not depend on Vulkan objects.

use crate::{halves, memory_model};
use naga::back::spv::{
    BindingMap, Capability, Options, PipelineOptions, WriterFlags, ZeroInitializeWorkgroupMemoryMode,
};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, ResourceBinding};
use ragtag_hal::{Error, Feature, Features, Result};

/// Version of the translator, which is part of the cache keys. Change it whenever this file or naga changes.
pub(crate) const VERSION: &str = "naga 30, 3";

/// Vulkan version and device features for which a source is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpirVTarget {
    /// Major and minor version of Vulkan, such as (1, 2).
    pub vulkan: (u32, u32),
    /// Features of the device.
    pub features: Features,
}

impl SpirVTarget {
    /// Returns the latest SPIR-V version that this version of Vulkan accepts.
    fn language(&self) -> (u8, u8) {
        match self.vulkan {
            (1, 0) => (1, 0),
            (1, 1) => (1, 3),
            (1, 2) => (1, 5),
            _ => (1, 6),
        }
    }

    /// Returns the WGSL capabilities that a source may use.
    fn accepted(&self) -> Capabilities {
        let mut accepted = Capabilities::IMMEDIATES;
        for feature in &self.features {
            accepted |= match feature {
                Feature::Fp16 => Capabilities::SHADER_FLOAT16 | Capabilities::SHADER_FLOAT16_IN_FLOAT32,
                Feature::SubGroups => Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER,
                Feature::CooperativeMatrix => Capabilities::COOPERATIVE_MATRIX,
                _ => Capabilities::empty(),
            };
        }
        // The instructions that unpack f16 values from words need no device feature.
        accepted | Capabilities::SHADER_FLOAT16_IN_FLOAT32
    }

    /// Returns the SPIR-V capabilities that the output may declare. Cooperative matrices require the Vulkan
    /// memory model. Only sources with cooperative matrices may therefore declare the capabilities for
    /// matrices and for this memory model.
    fn capabilities(&self, has_matrices: bool) -> Vec<Capability> {
        let mut all = vec![Capability::Shader];
        for feature in self.features.iter().filter(|f| has_matrices || **f != Feature::CooperativeMatrix) {
            all.extend_from_slice(match feature {
                Feature::Fp16 => &[Capability::Float16],
                Feature::SubGroups => SUB_GROUPS,
                Feature::IntegerDot => &[Capability::DotProduct, Capability::DotProductInput4x8BitPacked],
                Feature::CooperativeMatrix => {
                    &[Capability::CooperativeMatrixKHR, Capability::VulkanMemoryModel]
                }
                _ => &[],
            });
        }
        all
    }
}

/// Directive in sources that use cooperative matrices.
const MATRICES: &str = "enable wgpu_cooperative_matrix;";

const SUB_GROUPS: &[Capability] = &[
    Capability::GroupNonUniform,
    Capability::GroupNonUniformVote,
    Capability::GroupNonUniformArithmetic,
    Capability::GroupNonUniformBallot,
    Capability::GroupNonUniformShuffle,
    Capability::GroupNonUniformShuffleRelative,
];

/// A translated source and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpirV {
    /// SPIR-V words.
    pub words: Vec<u32>,
    /// Number of storage buffers in group 0: the largest binding plus one.
    pub bindings: u32,
    /// Size of the push constants in bytes.
    pub constant_bytes: u32,
    /// Number of work items per group in each dimension.
    pub work_group: [u32; 3],
}

/// Translates a WGSL source whose only entry point is `entry`.
///
/// # Errors
/// Returns [`Error::Compile`] with the log if the source is invalid or uses a feature that the target lacks.
pub fn translate(text: &str, entry: &str, target: &SpirVTarget) -> Result<SpirV> {
    let refused = |log: String| Error::Compile { log };
    let module = naga::front::wgsl::parse_str(text).map_err(|error| refused(error.emit_to_string(text)))?;
    let mut validator = Validator::new(ValidationFlags::all(), target.accepted());
    let info = validator.validate(&module).map_err(|error| refused(error.emit_to_string(text)))?;
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = Options {
        lang_version: target.language(),
        flags: WriterFlags::empty(),
        fake_missing_bindings: false,
        binding_map: bindings(&module),
        capabilities: Some(target.capabilities(text.contains(MATRICES)).into_iter().collect()),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        use_storage_input_output_16: false,
        emit_int_div_checks: false,
        ..Options::default()
    };
    let pipeline =
        PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: entry.to_string() };
    let words = naga::back::spv::write_vec(&module, &info, &options, Some(&pipeline))
        .map_err(|error| refused(format!("{entry}: {error}")))?;
    let work_group = module.entry_points.iter().find(|one| one.name == entry).map(|one| one.workgroup_size);
    let (bindings, constant_bytes) = arguments(&module).map_err(refused)?;
    let words = halves::keep(memory_model::complete(words));
    Ok(SpirV { words, bindings, constant_bytes, work_group: work_group.unwrap_or_default() })
}

/// Returns the number of bindings and the number of constant bytes.
fn arguments(module: &naga::Module) -> std::result::Result<(u32, u32), String> {
    let (mut bindings, mut constant_bytes) = (0, 0);
    for (_, variable) in module.global_variables.iter() {
        match (variable.space, variable.binding) {
            (AddressSpace::Storage { .. }, Some(ResourceBinding { group: 0, binding })) => {
                bindings = bindings.max(binding.saturating_add(1));
            }
            (AddressSpace::Immediate, _) => {
                constant_bytes = module.types[variable.ty].inner.size(module.to_ctx());
            }
            (AddressSpace::WorkGroup | AddressSpace::Private, _) => {}
            (space, _) => return Err(format!("{:?} lies in {space:?}", variable.name)),
        }
    }
    Ok((bindings, constant_bytes))
}

/// Returns a binding map that preserves the binding numbers of the source.
fn bindings(module: &naga::Module) -> BindingMap {
    let bound = module.global_variables.iter().filter_map(|(_, variable)| variable.binding);
    bound
        .map(|binding| {
            let info = naga::back::spv::BindingInfo {
                descriptor_set: binding.group,
                binding: binding.binding,
                binding_array_size: None,
            };
            (binding, info)
        })
        .collect()
}

/// Returns true if a module declares a capability for sub-group operations. These capabilities are numbers 61
/// to 68 and the capability for cooperative matrices (SPIR-V specification, section 3.31). The opcode of
/// `OpCapability` is 17.
pub(crate) fn uses_sub_groups(words: &[u32]) -> bool {
    let mut rest = words.get(5..).unwrap_or_default();
    while let [first, argument, ..] = rest {
        if first & 0xffff != 17 {
            return false;
        }
        if (61..=68).contains(argument) || *argument == 6022 {
            return true;
        }
        rest = &rest[2..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &str = "
        struct Constants { first_group: vec3<u32>, width: u32 }
        var<immediate> constants: Constants;
        @group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @compute @workgroup_size(64)
        fn add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) item: u32) {
            let at = (group.x + constants.first_group.x) * 64u + item;
            if at < constants.width { x[at] = BODY; }
        }";

    fn with(body: &str, features: &[Feature]) -> Result<Vec<u32>> {
        let target = SpirVTarget { vulkan: (1, 2), features: features.iter().copied().collect() };
        let made = translate(&ADD.replace("BODY", body), "add", &target)?;
        assert_eq!((made.bindings, made.constant_bytes, made.work_group), (1, 16, [64, 1, 1]));
        Ok(made.words)
    }

    /// Returns the opcodes of a module. An opcode is in the low 16 bits of an instruction's first word.
    fn opcodes(words: &[u32]) -> Vec<u32> {
        let (mut rest, mut all) = (&words[5..], Vec::new());
        while let [first, ..] = rest {
            all.push(first & 0xffff);
            rest = &rest[(first >> 16) as usize..];
        }
        all
    }

    #[test]
    fn a_source_becomes_a_module_of_the_targets_version() {
        let words = with("x[at] + 1u", &[]).unwrap();
        assert_eq!(words[..2], [0x0723_0203, 0x0001_0500]);
        assert!(!uses_sub_groups(&words));
    }

    #[test]
    fn sub_groups_need_device_support() {
        assert!(matches!(with("subgroupAdd(at)", &[]), Err(Error::Compile { .. })));
        assert!(uses_sub_groups(&with("subgroupAdd(at)", &[Feature::SubGroups]).unwrap()));
    }

    #[test]
    fn byte_dot_products_are_one_instruction_if_supported() {
        const UDOT: u32 = 4451;
        let plain = with("dot4U8Packed(at, x[at])", &[]).unwrap();
        let packed = with("dot4U8Packed(at, x[at])", &[Feature::IntegerDot]).unwrap();
        assert!(!opcodes(&plain).contains(&UDOT));
        assert!(opcodes(&packed).contains(&UDOT));
    }

    #[test]
    fn errors_in_a_source_show_their_position() {
        let Err(Error::Compile { log }) = with("y[at]", &[]) else { panic!("it compiles") };
        assert!(log.contains("y[at]"), "{log}");
        let target = SpirVTarget { vulkan: (1, 3), features: Features::new() };
        let missing = translate(&ADD.replace("BODY", "1u"), "sub", &target);
        assert!(matches!(missing, Err(Error::Compile { log }) if log.contains("sub")));
    }
}
