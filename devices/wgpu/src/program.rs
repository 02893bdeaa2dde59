//! Programs. Each program is compiled once per source and device, and cached in memory. If the driver
//! provides binaries, programs are also cached on disk.
//!
//! This module does not depend on kernel arguments.

use crate::gpu::{Failure, Gpu};
use crate::probe::Found;
use ragtag_hal::cache::{self, Shelf, key};
use ragtag_hal::{DeviceFunction, EntryAbi, Error, KernelLanguage, Module, ModuleSource, Result};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType,
    ComputePipeline, ComputePipelineDescriptor, PipelineCache, PipelineCacheDescriptor,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModule, ShaderModuleDescriptor,
    ShaderRuntimeChecks, ShaderSource, ShaderStages,
};

/// Number of words that precede the constants. They hold the position of a launch's first work group.
pub(crate) const FIRST_GROUP_WORDS: usize = 3;
/// Size of an empty pipeline cache in bytes: wgpu's header (64) and Vulkan's header (32).
const EMPTY_CACHE_BYTES: usize = 96;

/// A compute pipeline and its launch parameters.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pipeline: ComputePipeline,
    pub(crate) layout: BindGroupLayout,
    /// Size of the constants in bytes, including the position of the first group.
    pub(crate) immediate_bytes: usize,
    pub(crate) name: &'static str,
}

/// Compiles and caches the programs of a device.
pub(crate) struct Programs {
    entries: cache::Programs<Entry>,
    /// Bind group layouts by number of bindings.
    layouts: Mutex<HashMap<usize, BindGroupLayout>>,
}

impl Programs {
    pub(crate) fn new(shelf: Arc<Shelf>) -> Self {
        Self { entries: cache::Programs::new(shelf), layouts: Mutex::default() }
    }

    /// Returns the entries of a module. Compiles distinct programs in parallel.
    ///
    /// # Errors
    /// Returns one of these errors:
    /// - [`Error::Compile`] with the log, if a program does not compile;
    /// - [`Error::Unsupported`], if the language is not WGSL, or if an entry has more bindings or constants
    ///   than the device supports.
    pub(crate) fn entries(&self, gpu: &Gpu, found: &Found, module: &Module) -> Result<Vec<Entry>> {
        let ModuleSource::Text { language: KernelLanguage::Wgsl, entries } = &module.source else {
            return Err(Error::Unsupported { what: format!("module {} on a wgpu device", module.name) });
        };
        let entries: Vec<_> = entries.iter().zip(&module.entries).collect();
        let entry = |(entry, abi): &(&ragtag_hal::TextEntry, &&'static EntryAbi)| {
            self.get(gpu, found, &entry.text, &entry.function, abi)
        };
        entries.par_iter().map(entry).collect()
    }

    /// Returns the program for a source, and compiles it on first use.
    ///
    /// # Errors
    /// Returns the same errors as [`Programs::entries`].
    pub(crate) fn get(
        &self,
        gpu: &Gpu,
        found: &Found,
        text: &str,
        function: &DeviceFunction,
        abi: &'static EntryAbi,
    ) -> Result<Entry> {
        let key = key([found.fingerprint.as_bytes(), function.name.as_bytes(), text.as_bytes()]);
        let load = |kept: &[u8]| {
            let cache = cache(gpu, Some(kept)).map_err(|failure| failure.of("a pipeline cache"))?;
            self.make(gpu, cache.as_ref(), text, function, abi)
        };
        let compile = || {
            let cache = cache(gpu, None).unwrap_or_default();
            let entry = self.make(gpu, cache.as_ref(), text, function, abi)?;
            let data = cache.and_then(|cache| cache.get_data());
            Ok((entry, data.filter(|data| data.len() > EMPTY_CACHE_BYTES)))
        };
        self.entries.get(key, 0, load, compile)
    }

    fn make(
        &self,
        gpu: &Gpu,
        cache: Option<&PipelineCache>,
        text: &str,
        function: &DeviceFunction,
        abi: &'static EntryAbi,
    ) -> Result<Entry> {
        // The structure of the constants starts with a vector of three words, so its size is a multiple of
        // four words.
        let immediate_bytes = (FIRST_GROUP_WORDS + abi.constants).next_multiple_of(4) * 4;
        let limits = gpu.device.limits();
        if immediate_bytes > limits.max_immediate_size as usize {
            let most = limits.max_immediate_size;
            let what = format!("{immediate_bytes} bytes of constants for {} (the limit is {most})", abi.name);
            return Err(Error::Unsupported { what });
        }
        let most = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
        if abi.bindings.len() > most as usize {
            let what = format!("{} bindings for {} (the limit is {most})", abi.bindings.len(), abi.name);
            return Err(Error::Unsupported { what });
        }
        let compile_error = |failure| match failure {
            Failure::Refused(log) => Error::Compile { log: format!("{}: {log}", function.name) },
            other => other.of("a pipeline"),
        };
        let layout = self.layout(gpu, abi.bindings.len())?;
        let module = gpu.guarded(|| shader_module(gpu, text)).map_err(compile_error)?;
        let pipeline = gpu.guarded(|| {
            let pipeline_layout = gpu.device.create_pipeline_layout(&PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: immediate_bytes as u32,
            });
            gpu.device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: Some(abi.name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(&function.name),
                // Local memory need not be zeroed, because kernels write it before they read it.
                compilation_options: PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..PipelineCompilationOptions::default()
                },
                cache,
            })
        });
        let pipeline = pipeline.map_err(compile_error)?;
        Ok(Entry { pipeline, layout, immediate_bytes, name: abi.name })
    }

    /// Returns a bind group layout whose bindings are all writable. wgpu rejects a launch that reads a buffer
    /// through one binding and writes it through another. Kernels often read and write different parts of one
    /// buffer.
    fn layout(&self, gpu: &Gpu, bindings: usize) -> Result<BindGroupLayout> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = layouts.get(&bindings) {
            return Ok(layout.clone());
        }
        let entry = |binding| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only: false },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = (0..bindings as u32).map(entry).collect();
        let descriptor = BindGroupLayoutDescriptor { label: None, entries: &entries };
        let made = gpu.guarded(|| gpu.device.create_bind_group_layout(&descriptor));
        let layout = made.map_err(|failure| failure.of("a bind group layout"))?;
        layouts.insert(bindings, layout.clone());
        Ok(layout)
    }
}

/// Creates a pipeline cache for one program. Returns `None` if the device does not support pipeline caches.
fn cache(gpu: &Gpu, data: Option<&[u8]>) -> std::result::Result<Option<PipelineCache>, Failure> {
    if !gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return Ok(None);
    }
    let descriptor = PipelineCacheDescriptor { label: None, data, fallback: false };
    // SAFETY: the data was saved from a pipeline cache for the same device and driver, which the key
    // identifies, and its checksum is valid.
    gpu.guarded(|| unsafe { gpu.device.create_pipeline_cache(&descriptor) }).map(Some)
}

/// Creates a shader module from a source. All bindings become writable, and run-time checks are disabled.
fn shader_module(gpu: &Gpu, text: &str) -> ShaderModule {
    let text = text.replace("var<storage, read>", "var<storage, read_write>");
    let descriptor = ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(Cow::Owned(text)) };
    // SAFETY: `Checked` validates every launch against its entry's ABI, so the kernel accesses only its
    // bindings. In kernels, all loops end and divisors are not zero.
    unsafe { gpu.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) }
}
