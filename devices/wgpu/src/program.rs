//! Programs: compiled once for a text and a device, kept in this process and, where the driver gives them away, on disk.
//!
//! This module must not know kernels' arguments.

use crate::gpu::{Failure, Gpu};
use crate::probe::Found;
use ragtag_hal::cache::{Held, Key, Shelf, Source, key};
use ragtag_hal::{DeviceFunction, EntryAbi, Error, KernelLanguage, Module, ModuleSource, Result};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType,
    ComputePipeline, ComputePipelineDescriptor, PipelineCache, PipelineCacheDescriptor,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModule, ShaderModuleDescriptor,
    ShaderRuntimeChecks, ShaderSource, ShaderStages,
};

/// Words before the constants: the place of a launch's first group.
pub(crate) const FIRST_GROUP_WORDS: usize = 3;
/// The header of a pipeline cache: wgpu's of 64 bytes and Vulkan's of 32. A cache that is no longer holds nothing.
const EMPTY_CACHE_BYTES: usize = 96;

/// What became of the programs that were asked for, since the backend was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Compiled from their source.
    pub compiled: u64,
    /// Loaded from disk.
    pub loaded: u64,
    /// Found in this process.
    pub reused: u64,
}

/// The counters as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    compiled: AtomicU64,
    loaded: AtomicU64,
    reused: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> CacheCounters {
        CacheCounters {
            compiled: self.compiled.load(Ordering::Relaxed),
            loaded: self.loaded.load(Ordering::Relaxed),
            reused: self.reused.load(Ordering::Relaxed),
        }
    }
}

/// An entry of a module: a pipeline, and what it is launched with.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pipeline: ComputePipeline,
    pub(crate) layout: BindGroupLayout,
    /// Bytes of its constants, the place of the first group included.
    pub(crate) immediate_bytes: usize,
    pub(crate) name: &'static str,
}

/// A program in this process; locked while it is made.
type Slot = Arc<Mutex<Option<Entry>>>;

/// What is kept for all devices of a backend.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) shelf: Shelf,
    pub(crate) counters: Counters,
}

/// The programs of a device.
pub(crate) struct Programs {
    kept: Arc<Kept>,
    slots: Mutex<HashMap<Key, Slot>>,
    /// By number of bindings.
    layouts: Mutex<HashMap<usize, BindGroupLayout>>,
}

impl Programs {
    pub(crate) fn new(kept: Arc<Kept>) -> Self {
        Self { kept, slots: Mutex::default(), layouts: Mutex::default() }
    }

    /// The entries of a module. Its distinct programs are made side by side.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log; [`Error::Unsupported`] for another language, and for an entry with more bindings or
    /// constants than the device takes.
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

    /// The program of a text, made if it was not yet.
    ///
    /// # Errors
    /// As [`Programs::entries`].
    pub(crate) fn get(
        &self,
        gpu: &Gpu,
        found: &Found,
        text: &str,
        function: &DeviceFunction,
        abi: &'static EntryAbi,
    ) -> Result<Entry> {
        let key = key([found.fingerprint.as_bytes(), function.name.as_bytes(), text.as_bytes()]);
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(key).or_default())
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = slot.as_ref() {
            self.kept.counters.reused.fetch_add(1, Ordering::Relaxed);
            return Ok(entry.clone());
        }
        Ok(slot.insert(self.make(gpu, found, &key, text, function, abi)?).clone())
    }

    fn make(
        &self,
        gpu: &Gpu,
        found: &Found,
        key: &Key,
        text: &str,
        function: &DeviceFunction,
        abi: &'static EntryAbi,
    ) -> Result<Entry> {
        // A structure that begins with a vector of three words is a multiple of four words long.
        let immediate_bytes = (FIRST_GROUP_WORDS + abi.constants).next_multiple_of(4) * 4;
        let limits = gpu.device.limits();
        if immediate_bytes > limits.max_immediate_size as usize {
            let most = limits.max_immediate_size;
            let what = format!("{immediate_bytes} bytes of constants for {}, of at most {most}", abi.name);
            return Err(Error::Unsupported { what });
        }
        let most = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
        if abi.bindings.len() > most as usize {
            let what = format!("{} bindings for {}, of at most {most}", abi.bindings.len(), abi.name);
            return Err(Error::Unsupported { what });
        }
        let compile_error = |failure| match failure {
            Failure::Refused(log) => Error::Compile { log: format!("{}: {log}", function.name) },
            other => other.of("a pipeline"),
        };
        let layout = self.layout(gpu, abi.bindings.len())?;
        let module = gpu.guarded(|| shader_module(gpu, text)).map_err(compile_error)?;
        let place = self.kept.shelf.place(key);
        let mut held = place.lock();
        let (cache, source) = self.cache(gpu, found, key, &mut held);
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
                // What a kernel finds in the memory of its group is what it put there.
                compilation_options: PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..PipelineCompilationOptions::default()
                },
                cache: cache.as_ref(),
            })
        });
        let pipeline = pipeline.map_err(compile_error)?;
        let counters = &self.kept.counters;
        let counter = match source {
            None => &counters.compiled,
            Some(Source::Disk) => &counters.loaded,
            Some(Source::Process) => &counters.reused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(device = found.adapter.label(), %key, ?source, name = abi.name, "a program was made");
        if let (Some(cache), None) = (&cache, source) {
            match cache.get_data().filter(|data| data.len() > EMPTY_CACHE_BYTES) {
                Some(data) => held.put(&self.kept.shelf, key, data),
                None => tracing::debug!(device = found.adapter.label(), "the driver keeps no program"),
            }
        }
        Ok(Entry { pipeline, layout, immediate_bytes, name: abi.name })
    }

    /// A pipeline cache for one program, where the device has them, and where its content was.
    fn cache(
        &self,
        gpu: &Gpu,
        found: &Found,
        key: &Key,
        held: &mut Held<'_>,
    ) -> (Option<PipelineCache>, Option<Source>) {
        if !gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return (None, None);
        }
        let make = |data: Option<&[u8]>| {
            let descriptor = PipelineCacheDescriptor { label: None, data, fallback: false };
            // SAFETY: the data were given by this function's cache for this device and driver, which the key names, and
            // their checksum is right.
            gpu.guarded(|| unsafe { gpu.device.create_pipeline_cache(&descriptor) })
        };
        if let Some((kept, source)) = held.get(&self.kept.shelf, key) {
            match make(Some(&kept)) {
                Ok(cache) => {
                    held.take(kept);
                    return (Some(cache), Some(source));
                }
                Err(failure) => {
                    tracing::debug!(device = found.adapter.label(), %key, ?failure, "a kept program was refused");
                }
            }
        }
        (make(None).ok(), None)
    }

    /// Bindings in the ABI's order, all of them writable: wgpu refuses one buffer that is bound to be read here and to be
    /// written there in one launch, and parts of one buffer often are.
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

/// The module of a text, with all bindings writable and without checks.
fn shader_module(gpu: &Gpu, text: &str) -> ShaderModule {
    let text = text.replace("var<storage, read>", "var<storage, read_write>");
    let descriptor = ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(Cow::Owned(text)) };
    // SAFETY: `Checked` holds every launch to its entry's ABI, which says what the kernel touches of its bindings for its
    // constants; the kernels' loops end and their divisors are not zero.
    unsafe { gpu.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) }
}
