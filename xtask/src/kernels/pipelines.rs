//! Compiles WGSL to machine code with Vulkan drivers. Some drivers can also compile for absent GPUs.

use super::jobs;
use ragtag_hal::{KernelLanguage, Module};
use ragtag_kernels::{Variant, module_source, variants};
use ragtag_vulkan::{PipelineCompiler, VulkanBackend, VulkanConfig};

/// Compiles the pipelines of the supported variants on every Vulkan device. Returns an error if there is no device.
pub(super) fn compile(only: &str) -> Result<(), String> {
    let backend = VulkanBackend::new(VulkanConfig { cache_folder: None, ..VulkanConfig::default() });
    let compilers = backend.compilers().map_err(|error| error.to_string())?;
    if compilers.is_empty() {
        return Err("Vulkan shows no device to compile for".into());
    }
    compilers.iter().try_for_each(|compiler| compile_for(compiler, only))?;
    match backend.validation_messages().as_slice() {
        [] => Ok(()),
        objections => Err(objections.join("\n")),
    }
}

fn compile_for(compiler: &PipelineCompiler, only: &str) -> Result<(), String> {
    let name = |variant: &Variant| format!("{}-{}", variant.kernel, variant.name).replace('/', "-");
    let in_wgsl = |variant: &&Variant| variant.language() == Some(KernelLanguage::Wgsl);
    let all: Vec<&Variant> =
        variants().iter().filter(in_wgsl).filter(|variant| name(variant).contains(only)).collect();
    let taken: Vec<&Variant> = all.iter().copied().filter(|one| one.runs_on(compiler.caps())).collect();
    let results = jobs::each(compiler.name(), &taken, |variant| {
        let source = module_source([*variant], compiler.caps()).ok_or("no source")?;
        let module = Module { name: name(variant), entries: vec![variant.abi], source };
        compiler.compile(&module).map_err(|error| error.to_string())
    });
    println!("{}: supports {} of {} WGSL variants", compiler.name(), taken.len(), all.len());
    let failed = |(variant, result): (&&Variant, Result<(), String>)| Some((name(variant), result.err()?));
    let failures: Vec<_> = taken.iter().zip(results).filter_map(failed).collect();
    jobs::verdict(compiler.name(), taken.len(), &failures)
}
