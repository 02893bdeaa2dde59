//! Command buffers, and the descriptor sets and timestamps that belong to them.

use super::{BufferPart, Logical, Pipeline, SharedQueue, said};
use ash::vk;
use ragtag_hal::Result;
use std::sync::Arc;

/// Capacity of a descriptor pool: the number of descriptor sets and the number of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    sets: u32,
    descriptors: u32,
}

/// Two timestamp queries of a command buffer, for its start and its end.
pub(crate) struct Stamps {
    logical: Arc<Logical>,
    pool: vk::QueryPool,
    /// Number of valid timestamp bits.
    bits: u32,
}

impl Stamps {
    fn new(queue: &SharedQueue) -> Result<Option<Arc<Self>>> {
        let logical = queue.logical();
        if queue.timestamp_bits == 0 || !logical.facts().host_query_reset {
            return Ok(None);
        }
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2);
        // SAFETY: the device is alive.
        let pool = said("vkCreateQueryPool", unsafe { logical.raw.create_query_pool(&info, None) })?;
        Ok(Some(Arc::new(Self { logical: Arc::clone(logical), pool, bits: queue.timestamp_bits })))
    }

    /// Discards the timestamps of the previous run.
    pub(crate) fn reset(&self) {
        // SAFETY: the feature is enabled, and the previous run has ended.
        unsafe { self.logical.raw.reset_query_pool(self.pool, 0, 2) }
    }

    /// Returns the start and end of the latest run, in nanoseconds on the device's clock. Returns `None` if
    /// the run has not ended.
    pub(crate) fn times_ns(&self) -> Option<(u64, u64)> {
        let mut ticks = [0u64; 2];
        // SAFETY: the pool has two queries, and `ticks` has room for both.
        let read = unsafe {
            self.logical.raw.get_query_pool_results(self.pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        };
        read.ok()?;
        let mask = 1u64.checked_shl(self.bits).map_or(u64::MAX, |beyond| beyond - 1);
        let period_ns = f64::from(self.logical.facts().limits.timestamp_period);
        let [start, end] = ticks.map(|ticks| ((ticks & mask) as f64 * period_ns) as u64);
        (start <= end).then_some((start, end))
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        // SAFETY: enqueued work keeps the query pool alive until it has ended.
        unsafe { self.logical.raw.destroy_query_pool(self.pool, None) }
    }
}

/// A command buffer that can be recorded, submitted many times, and recorded again.
pub(crate) struct Recorder {
    logical: Arc<Logical>,
    pool: vk::CommandPool,
    buffer: vk::CommandBuffer,
    sets: vk::DescriptorPool,
    room: Room,
    stamps: Option<Arc<Stamps>>,
    /// Pipeline stages that the queue supports.
    stages: vk::PipelineStageFlags,
    /// Types of write access that the queue supports.
    writes: vk::AccessFlags,
}

impl Recorder {
    /// Creates a recorder for the queue family of a queue.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(queue: &SharedQueue) -> Result<Self> {
        let logical = queue.logical();
        let raw = &logical.raw;
        // The timestamps are created first: if creating them failed after the command pool was created,
        // nothing would destroy the pool.
        let stamps = Stamps::new(queue)?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(queue.family);
        // SAFETY: the device is alive and has the family.
        let pool = said("vkCreateCommandPool", unsafe { raw.create_command_pool(&info, None) })?;
        let computes = queue.flags.contains(vk::QueueFlags::COMPUTE);
        let (mut stages, mut writes) = (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_WRITE);
        if computes {
            stages |= vk::PipelineStageFlags::COMPUTE_SHADER;
            writes |= vk::AccessFlags::SHADER_WRITE;
        }
        let mut recorder = Self {
            logical: Arc::clone(logical),
            pool,
            buffer: vk::CommandBuffer::null(),
            sets: vk::DescriptorPool::null(),
            room: Room::default(),
            stamps,
            stages,
            writes,
        };
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is new and used only here.
        let buffers = said("vkAllocateCommandBuffers", unsafe { raw.allocate_command_buffers(&info) })?;
        recorder.buffer = buffers[0];
        Ok(recorder)
    }

    pub(crate) fn buffer(&self) -> vk::CommandBuffer {
        self.buffer
    }

    pub(crate) fn stamps(&self) -> Option<&Arc<Stamps>> {
        self.stamps.as_ref()
    }

    /// Resets the command buffer and begins a recording of `dispatches` dispatches, which have `bindings`
    /// bindings in total.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn begin(&mut self, dispatches: u32, bindings: u32) -> Result<()> {
        self.make_room(Room { sets: dispatches, descriptors: bindings })?;
        let raw = &self.logical.raw;
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is not pending, because pending work keeps its recorder alive.
        unsafe {
            let reset = raw.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty());
            said("vkResetCommandPool", reset)?;
            said("vkBeginCommandBuffer", raw.begin_command_buffer(self.buffer, &info))?;
        }
        self.stamp(vk::PipelineStageFlags::TOP_OF_PIPE, 0);
        // The barrier makes the command buffer wait for all earlier work of the queue.
        self.barrier();
        Ok(())
    }

    fn make_room(&mut self, wanted: Room) -> Result<()> {
        let raw = &self.logical.raw;
        if wanted.sets <= self.room.sets && wanted.descriptors <= self.room.descriptors {
            if self.sets != vk::DescriptorPool::null() {
                // SAFETY: no descriptor set of the pool is in use.
                let reset =
                    unsafe { raw.reset_descriptor_pool(self.sets, vk::DescriptorPoolResetFlags::empty()) };
                said("vkResetDescriptorPool", reset)?;
            }
            return Ok(());
        }
        let wanted = Room {
            sets: wanted.sets.max(self.room.sets),
            descriptors: wanted.descriptors.max(self.room.descriptors).max(1),
        };
        let size = vk::DescriptorPoolSize {
            ty: vk::DescriptorType::STORAGE_BUFFER,
            descriptor_count: wanted.descriptors,
        };
        let sizes = [size];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(wanted.sets).pool_sizes(&sizes);
        // SAFETY: the device is alive, and no descriptor set of the old pool is in use.
        unsafe {
            raw.destroy_descriptor_pool(self.sets, None);
            (self.sets, self.room) = (vk::DescriptorPool::null(), Room::default());
            self.sets = said("vkCreateDescriptorPool", raw.create_descriptor_pool(&info, None))?;
        }
        self.room = wanted;
        Ok(())
    }

    fn stamp(&self, stage: vk::PipelineStageFlags, query: u32) {
        if let Some(stamps) = &self.stamps {
            // SAFETY: the buffer is being recorded. The query is reset before each run.
            unsafe { self.logical.raw.cmd_write_timestamp(self.buffer, stage, stamps.pool, query) }
        }
    }

    /// Records a barrier. Later commands wait for earlier commands and see their writes.
    pub(crate) fn barrier(&self) {
        let mut reads = vk::AccessFlags::TRANSFER_READ;
        if self.stages.contains(vk::PipelineStageFlags::COMPUTE_SHADER) {
            reads |= vk::AccessFlags::SHADER_READ;
        }
        self.wait_for_writes([self.stages; 2], self.writes, reads | self.writes);
    }

    /// Records a barrier that only orders launches. Drivers flush fewer caches for it than for
    /// [`Recorder::barrier`].
    pub(crate) fn barrier_between_launches(&self) {
        let (stage, writes) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::AccessFlags::SHADER_WRITE);
        self.wait_for_writes([stage; 2], writes, vk::AccessFlags::SHADER_READ | writes);
    }

    /// Records a barrier that makes earlier writes visible to the host once the command buffer has ended.
    pub(crate) fn show_host(&self) {
        let stages = [self.stages, vk::PipelineStageFlags::HOST];
        self.wait_for_writes(stages, self.writes, vk::AccessFlags::HOST_READ);
    }

    fn wait_for_writes(
        &self,
        [before, after]: [vk::PipelineStageFlags; 2],
        writes: vk::AccessFlags,
        access: vk::AccessFlags,
    ) {
        let barrier = vk::MemoryBarrier::default().src_access_mask(writes).dst_access_mask(access);
        let no_flags = vk::DependencyFlags::empty();
        // SAFETY: the buffer is being recorded.
        unsafe {
            let raw = &self.logical.raw;
            raw.cmd_pipeline_barrier(self.buffer, before, after, no_flags, &[barrier], &[], &[]);
        }
    }

    /// Binds a pipeline and its storage buffers.
    ///
    /// # Errors
    /// Returns an error if the descriptor pool has no room for the bindings.
    pub(crate) fn bind(&self, pipeline: &Pipeline, parts: &[BufferPart<'_>]) -> Result<()> {
        let raw = &self.logical.raw;
        let layouts = [pipeline.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.sets).set_layouts(&layouts);
        // SAFETY: the pool belongs to this recorder.
        let sets = said("vkAllocateDescriptorSets", unsafe { raw.allocate_descriptor_sets(&info) })?;
        let buffers: Vec<_> = parts.iter().map(|part| [part.descriptor()]).collect();
        let writes = (0..pipeline.bindings).zip(&buffers).map(|(at, buffer)| {
            vk::WriteDescriptorSet::default()
                .dst_set(sets[0])
                .dst_binding(at)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(buffer)
        });
        let writes: Vec<_> = writes.collect();
        // SAFETY: the buffer is being recorded. The set is new and has as many bindings as the pipeline.
        unsafe {
            raw.update_descriptor_sets(&writes, &[]);
            raw.cmd_bind_pipeline(self.buffer, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
            let point = vk::PipelineBindPoint::COMPUTE;
            raw.cmd_bind_descriptor_sets(self.buffer, point, pipeline.layout, 0, &sets, &[]);
        }
        Ok(())
    }

    /// Dispatches groups of the bound pipeline. `words` are the first push constants.
    pub(crate) fn dispatch(&self, pipeline: &Pipeline, words: &[u32], groups: [u32; 3]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let raw = &self.logical.raw;
        // SAFETY: the buffer is being recorded. The pipeline and all its arguments are bound.
        unsafe {
            let stage = vk::ShaderStageFlags::COMPUTE;
            raw.cmd_push_constants(self.buffer, pipeline.layout, stage, 0, &bytes);
            raw.cmd_dispatch(self.buffer, groups[0], groups[1], groups[2]);
        }
    }

    /// Copies a range between two buffers.
    pub(crate) fn copy(&self, from: BufferPart<'_>, to: BufferPart<'_>) {
        let region = vk::BufferCopy { src_offset: from.offset, dst_offset: to.offset, size: to.bytes };
        // SAFETY: the buffer is being recorded. Both ranges lie in their buffers.
        unsafe {
            self.logical.raw.cmd_copy_buffer(self.buffer, from.buffer(), to.buffer(), &[region]);
        }
    }

    /// Fills a range with a word.
    pub(crate) fn fill(&self, to: BufferPart<'_>, word: u32) {
        // SAFETY: the buffer is being recorded. The range lies in its buffer and consists of whole words.
        unsafe {
            self.logical.raw.cmd_fill_buffer(self.buffer, to.buffer(), to.offset, to.bytes, word);
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Returns an error if the driver could not record a command.
    pub(crate) fn end(&self) -> Result<()> {
        self.stamp(vk::PipelineStageFlags::BOTTOM_OF_PIPE, 1);
        // SAFETY: the buffer is being recorded.
        said("vkEndCommandBuffer", unsafe { self.logical.raw.end_command_buffer(self.buffer) })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: enqueued work keeps its recorder alive until it has ended.
        unsafe {
            self.logical.raw.destroy_descriptor_pool(self.sets, None);
            self.logical.raw.destroy_command_pool(self.pool, None);
        }
    }
}
