//! Compute pipelines and pipeline caches.

use super::{Logical, said};
use ash::vk;
use ragtag_hal::{Error, Result};
use std::ffi::CString;
use std::sync::Arc;

/// A pipeline cache of the driver.
pub(crate) struct PipelineCache {
    logical: Arc<Logical>,
    raw: vk::PipelineCache,
}

impl PipelineCache {
    /// Creates a cache from stored data. The driver ignores data that it does not recognise.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(logical: &Arc<Logical>, kept: &[u8]) -> Result<Self> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(kept);
        // SAFETY: the device is alive. Drivers check the header of the data, and Ragtag's checksum protects
        // the rest.
        let raw = said("vkCreatePipelineCache", unsafe { logical.raw.create_pipeline_cache(&info, None) })?;
        Ok(Self { logical: Arc::clone(logical), raw })
    }

    /// Returns the contents of the cache, for storage.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn data(&self) -> Result<Vec<u8>> {
        // SAFETY: the cache is alive.
        said("vkGetPipelineCacheData", unsafe { self.logical.raw.get_pipeline_cache_data(self.raw) })
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        // SAFETY: no pipeline is being compiled with the cache.
        unsafe { self.logical.raw.destroy_pipeline_cache(self.raw, None) }
    }
}

/// A compute pipeline and its layout.
pub(crate) struct Pipeline {
    logical: Arc<Logical>,
    pub(super) raw: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set_layout: vk::DescriptorSetLayout,
    pub(super) bindings: u32,
    push_bytes: u32,
}

impl Pipeline {
    /// Creates a pipeline for one entry point. The pipeline has `bindings` storage buffers in set 0 and
    /// `push_bytes` bytes of push constants. If `full_sub_groups` is true, it runs only with full sub-groups.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] if the driver rejects the code.
    pub(crate) fn new(
        logical: &Arc<Logical>,
        words: &[u32],
        entry: &str,
        (bindings, push_bytes): (u32, u32),
        full_sub_groups: bool,
        cache: &PipelineCache,
    ) -> Result<Self> {
        let mut pipeline = Self {
            logical: Arc::clone(logical),
            raw: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            bindings,
            push_bytes,
        };
        pipeline.lay_out()?;
        let name =
            CString::new(entry).map_err(|_| Error::invalid(format!("invalid function name {entry:?}")))?;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the words are SPIR-V that naga generated. A checksum protects words that come from the
        // cache.
        let module = unsafe { logical.raw.create_shader_module(&info, None) };
        let module = said("vkCreateShaderModule", module)?;
        let made = pipeline.make(module, &name, full_sub_groups, cache);
        // SAFETY: the pipeline does not need the module after its creation.
        unsafe { logical.raw.destroy_shader_module(module, None) };
        made.map(|()| pipeline)
    }

    fn lay_out(&mut self) -> Result<()> {
        let raw = &self.logical.raw;
        let binding = |index: u32| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(index)
                .descriptor_count(1)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..self.bindings).map(binding).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the device is alive, and the counts are within its limits.
        let set_layout = unsafe { raw.create_descriptor_set_layout(&info, None) };
        self.set_layout = said("vkCreateDescriptorSetLayout", set_layout)?;
        let push = vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE);
        let (push, sets) = ([push.size(self.push_bytes)], [self.set_layout]);
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&push);
        // SAFETY: as above.
        self.layout = said("vkCreatePipelineLayout", unsafe { raw.create_pipeline_layout(&info, None) })?;
        Ok(())
    }

    fn make(
        &mut self,
        module: vk::ShaderModule,
        name: &CString,
        full_sub_groups: bool,
        cache: &PipelineCache,
    ) -> Result<()> {
        let flags = match full_sub_groups {
            true => vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS,
            false => vk::PipelineShaderStageCreateFlags::empty(),
        };
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .flags(flags)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(name);
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        // SAFETY: the module, the layout and the cache belong to this device, and the module has the entry
        // point.
        let made = unsafe { self.logical.raw.create_compute_pipelines(cache.raw, &[info], None) };
        match made {
            Ok(pipelines) => self.raw = pipelines[0],
            // Vulkan does not provide a compiler log.
            Err((_, vk::Result::ERROR_UNKNOWN | vk::Result::ERROR_INVALID_SHADER_NV)) => {
                let log = format!("the driver refuses {name:?} without a reason");
                return Err(Error::Compile { log });
            }
            Err((_, code)) => return said("vkCreateComputePipelines", Err(code)),
        }
        Ok(())
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: enqueued work keeps its pipelines alive until it has ended.
        unsafe {
            self.logical.raw.destroy_pipeline(self.raw, None);
            self.logical.raw.destroy_pipeline_layout(self.layout, None);
            self.logical.raw.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}
