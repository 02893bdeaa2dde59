//! Checks that every WGSL source can be translated to the Metal shading language and to HLSL, with the
//! options that wgpu uses.
//!
//! The tests show that naga can translate every construct of the kernels. They do not show that the compilers
//! of Apple and Microsoft accept the output, or that GPUs compute correct results.

use naga::back::{hlsl, msl};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ResourceBinding, ShaderStage};
use ragtag_hal::{Feature, KernelLanguage};
use ragtag_kernels::{Code, Text, Variant, variants};

/// Returns the variants whose WGSL source does not use cooperative matrices. Metal's matrices have 8 × 8
/// values, and Direct3D has none.
fn in_wgsl() -> impl Iterator<Item = (&'static Variant, Text)> {
    variants().iter().filter_map(|variant| match variant.code {
        Code::Text(text) if text.language == KernelLanguage::Wgsl => {
            (!variant.requires.contains(&Feature::CooperativeMatrix)).then_some((variant, text))
        }
        _ => None,
    })
}

/// Parses and validates `text` as wgpu does, with all bindings writable.
fn read(text: &str) -> Result<(Module, ModuleInfo), String> {
    let text = text.replace("var<storage, read>", "var<storage, read_write>");
    let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(&text))?;
    Ok((module, info))
}

fn binding(binding: usize) -> ResourceBinding {
    ResourceBinding { group: 0, binding: binding as u32 }
}

/// Translates `function` to Metal shading language 2.4, which macOS 12 and later support. Its arguments are
/// the buffers, then their sizes, then the constants.
fn in_metal(module: &Module, info: &ModuleInfo, function: &str, bindings: usize) -> Result<String, String> {
    let target = |slot: usize| msl::BindTarget {
        buffer: Some(slot as msl::Slot),
        mutable: true,
        ..msl::BindTarget::default()
    };
    let resources = msl::EntryPointResources {
        resources: (0..bindings).map(|at| (binding(at), target(at))).collect(),
        immediates_buffer: Some(bindings as msl::Slot + 1),
        sizes_buffer: Some(bindings as msl::Slot),
    };
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [(function.to_string(), resources)].into(),
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..msl::Options::default()
    };
    let entry = Some((ShaderStage::Compute, function.to_string()));
    let pipeline = msl::PipelineOptions { entry_point: entry, ..msl::PipelineOptions::default() };
    let written = msl::write_string(module, info, &options, &pipeline);
    let (text, names) = written.map_err(|e| e.to_string())?;
    let [name] = names.entry_point_names.as_slice() else {
        return Err("expected exactly one entry point".into());
    };
    let name = name.as_ref().map_err(|e| e.to_string())?;
    if text.contains(&format!("kernel void {name}(")) { Ok(text) } else { Err(format!("no kernel {name}")) }
}

/// Translates `function` to HLSL for shader model 6.4, the first version with packed dot products. Buffers
/// become `u0 …`, and constants become `b0`.
fn in_hlsl(module: &Module, info: &ModuleInfo, function: &str, bindings: usize) -> Result<String, String> {
    let target =
        |register: usize| hlsl::BindTarget { register: register as u32, ..hlsl::BindTarget::default() };
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        binding_map: (0..bindings).map(|at| (binding(at), target(at))).collect(),
        fake_missing_bindings: false,
        immediates_target: Some(hlsl::BindTarget { space: 1, ..target(0) }),
        zero_initialize_workgroup_memory: false,
        restrict_indexing: false,
        force_loop_bounding: false,
        ..hlsl::Options::default()
    };
    let entry = Some((ShaderStage::Compute, function.to_string()));
    let pipeline = hlsl::PipelineOptions { entry_point: entry };
    let mut text = String::new();
    let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
    let reflected = writer.write(module, info, None).map_err(|e| e.to_string())?;
    let [name] = reflected.entry_point_names.as_slice() else {
        return Err("expected exactly one entry point".into());
    };
    let name = name.as_ref().map_err(|e| e.to_string())?;
    if text.contains(&format!("void {name}(")) { Ok(text) } else { Err(format!("no function {name}")) }
}

type Writes = fn(&Module, &ModuleInfo, &str, usize) -> Result<String, String>;

#[track_caller]
fn every_text(language: &str, write: Writes) {
    let (mut wrong, mut written) = (Vec::new(), 0);
    for (variant, text) in in_wgsl() {
        let bindings = variant.abi.bindings.len();
        let result =
            read(&text.text()).and_then(|(module, info)| write(&module, &info, text.function, bindings));
        wrong.extend(
            result.err().map(|e| format!("{} ({}) in {language}: {e}", variant.kernel, variant.name)),
        );
        written += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(written > 0, "there are no texts");
}

#[test]
fn translates_every_text_to_metal() {
    every_text("MSL", in_metal);
}

#[test]
fn translates_every_text_to_hlsl() {
    every_text("HLSL", in_hlsl);
}

#[test]
fn reports_a_binding_without_a_place() {
    let (variant, text) = in_wgsl().next().expect("there is a text");
    let (module, info) = read(&text.text()).expect("it is valid");
    let fewer = variant.abi.bindings.len() - 1;
    assert!(in_metal(&module, &info, text.function, fewer).is_err());
    assert!(in_hlsl(&module, &info, text.function, fewer).is_err());
}
