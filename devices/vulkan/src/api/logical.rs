//! Logical devices and their queues.

use super::matrices::{FLEXIBLE, FlexibleFeatures};
use super::{Facts, Instance, Semaphore, said};
use ash::{ext, khr, vk};
use ragtag_hal::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// An owned logical device.
pub(crate) struct Logical {
    pub(super) raw: ash::Device,
    pub(super) import: Option<ext::external_memory_host::Device>,
    #[cfg(unix)]
    pub(super) fd: Option<khr::external_memory_fd::Device>,
    facts: Arc<Facts>,
    /// Families of the device's queues, without duplicates.
    families: Vec<u32>,
    instance: Arc<Instance>,
}

impl Logical {
    /// Opens a device. Each pair in `queues` is a queue family and the number of queues to create in it.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(instance: &Arc<Instance>, facts: &Arc<Facts>, queues: &[(u32, u32)]) -> Result<Self> {
        let priorities = [1.0; 16];
        let count = |count: u32| &priorities[..(count as usize).min(priorities.len())];
        let queue_infos: Vec<_> = queues
            .iter()
            .map(|&(family, queues)| {
                let info = vk::DeviceQueueCreateInfo::default().queue_family_index(family);
                info.queue_priorities(count(queues))
            })
            .collect();
        let mut in_1_1 = vk::PhysicalDeviceVulkan11Features::default()
            .storage_buffer16_bit_access(facts.half_floats)
            .uniform_and_storage_buffer16_bit_access(facts.half_floats);
        let mut in_1_2 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .host_query_reset(facts.host_query_reset)
            .shader_float16(facts.half_floats)
            .shader_subgroup_extended_types(facts.sub_group_types)
            .vulkan_memory_model(facts.cooperative_matrices)
            .vulkan_memory_model_device_scope(facts.cooperative_matrices);
        let mut in_1_3 = vk::PhysicalDeviceVulkan13Features::default()
            .subgroup_size_control(facts.full_sub_groups.is_some())
            .compute_full_subgroups(facts.full_sub_groups.is_some())
            .shader_integer_dot_product(facts.integer_dot);
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut flexible = FlexibleFeatures::with(true);
        let mut extensions = Vec::new();
        if facts.import_alignment_bytes.is_some() {
            extensions.push(ext::external_memory_host::NAME.as_ptr());
        }
        if facts.imports_dma_buf {
            extensions.push(ext::external_memory_dma_buf::NAME.as_ptr());
        }
        if facts.exports_fd || facts.imports_fd || facts.imports_dma_buf {
            extensions.push(khr::external_memory_fd::NAME.as_ptr());
        }
        if facts.cooperative_matrices {
            extensions.push(khr::cooperative_matrix::NAME.as_ptr());
        }
        if facts.flexible_matrices {
            extensions.push(FLEXIBLE.as_ptr());
        }
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queue_infos)
            .enabled_extension_names(&extensions)
            .push_next(&mut in_1_1)
            .push_next(&mut in_1_2);
        if facts.api_version >= vk::API_VERSION_1_3 {
            info = info.push_next(&mut in_1_3);
        }
        if facts.cooperative_matrices {
            info = info.push_next(&mut matrices);
        }
        if facts.flexible_matrices {
            info = info.push_next(&mut flexible);
        }
        // SAFETY: the call requests only supported features. The structures live until the call returns.
        let raw = unsafe { instance.raw().create_device(facts.handle, &info, None) };
        let raw = said("vkCreateDevice", raw)?;
        let import = facts.import_alignment_bytes.is_some();
        Ok(Self {
            import: import.then(|| ext::external_memory_host::Device::new(instance.raw(), &raw)),
            #[cfg(unix)]
            fd: (facts.exports_fd || facts.imports_dma_buf)
                .then(|| khr::external_memory_fd::Device::new(instance.raw(), &raw)),
            raw,
            facts: Arc::clone(facts),
            families: queues.iter().map(|&(family, _)| family).collect(),
            instance: Arc::clone(instance),
        })
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Returns the queue families of the device, which share all buffers.
    pub(super) fn families(&self) -> &[u32] {
        &self.families
    }

    /// Returns the size of a heap and, if the driver reports them, its free bytes.
    pub(crate) fn heap(&self, index: u32) -> (u64, Option<u64>) {
        self.facts.heap(&self.instance, index)
    }
}

impl Drop for Logical {
    fn drop(&mut self) {
        // SAFETY: every object of the device keeps it alive, so no object is left.
        unsafe { self.raw.destroy_device(None) }
    }
}

/// A Vulkan queue. Several of Ragtag's queues may share it.
pub(crate) struct SharedQueue {
    logical: Arc<Logical>,
    /// Vulkan allows only one thread at a time to use a queue.
    raw: Mutex<vk::Queue>,
    pub(crate) family: u32,
    pub(crate) flags: vk::QueueFlags,
    pub(crate) timestamp_bits: u32,
}

impl SharedQueue {
    /// Returns a queue that was requested when the device was opened.
    ///
    /// # Errors
    /// Returns an error if the device has no such queue family.
    pub(crate) fn new(logical: &Arc<Logical>, family: u32, index: u32) -> Result<Self> {
        let known = logical.facts.families.iter().find(|known| known.index == family);
        let known = known.ok_or_else(|| Error::invalid(format!("unknown queue family {family}")))?;
        // SAFETY: the device was opened with this queue.
        let raw = unsafe { logical.raw.get_device_queue(family, index) };
        Ok(Self {
            logical: Arc::clone(logical),
            raw: Mutex::new(raw),
            family,
            flags: known.flags,
            timestamp_bits: known.timestamp_bits,
        })
    }

    pub(crate) fn logical(&self) -> &Arc<Logical> {
        &self.logical
    }

    /// Enqueues `commands`, or an empty submission if `commands` is `None`. The submission first waits for
    /// the semaphore values in `waits`. At its end, it advances the semaphore in `signal` to the given value.
    ///
    /// # Errors
    /// Returns the driver's error.
    ///
    /// # Safety
    /// The semaphores and all objects of the commands must live until `signal` has passed or the device is
    /// lost. The command buffer must not be pending. No wait may depend on work that is submitted to this
    /// queue later.
    pub(crate) unsafe fn submit(
        &self,
        commands: Option<vk::CommandBuffer>,
        waits: &[(&Semaphore, u64)],
        signal: (&Semaphore, u64),
    ) -> Result<()> {
        let commands: Vec<_> = commands.into_iter().collect();
        let semaphores: Vec<_> = waits.iter().map(|(semaphore, _)| semaphore.raw).collect();
        let values: Vec<_> = waits.iter().map(|&(_, value)| value).collect();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let (signalled, signal_values) = ([signal.0.raw], [signal.1]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&signal_values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&commands)
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&signalled)
            .push_next(&mut timeline);
        let queue = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: guaranteed by the caller. The lock excludes other users of the queue.
        said("vkQueueSubmit", unsafe { self.logical.raw.queue_submit(*queue, &[info], vk::Fence::null()) })
    }
}
