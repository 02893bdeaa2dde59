//! Devices whose submissions complete at once without any work, and stages for them. Benchmarks use them to
//! measure the scheduling overhead alone.

#![allow(missing_docs)]

use ragtag_graph::{CompiledStage, Program, RowKind, StageResult, WeightBuffer, WeightChunk};
use ragtag_hal::*;
use ragtag_kernels::params::ParamsShape;
use ragtag_scheduler::core::Sample;
use ragtag_scheduler::{PipelineSpec, StageSpec, WeightSource};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// A device whose submissions complete at once without any work.
pub struct NullDevice {
    id: DeviceId,
    adapter: Adapter,
    timelines: [Arc<Timeline>; 3],
    imported: Vec<Arc<Timeline>>,
    hang: Option<Hang>,
    recorded: Arc<AtomicU32>,
}

/// A driver that hangs.
pub struct Hang {
    /// The first computation that never completes, counted from 1.
    pub computation: u64,
    /// Closing the device blocks until the other end is dropped.
    pub release: Receiver<()>,
    /// Receives a message for each computation that never completes. Disconnected when the device has been closed.
    pub news: Sender<()>,
}

impl NullDevice {
    fn open(id: u16, hang: Option<Hang>, recorded: &Arc<AtomicU32>) -> Box<dyn Device> {
        let id = DeviceId(id);
        let adapter = Adapter {
            backend: "null".into(),
            index: u32::from(id.0),
            name: "null".into(),
            driver: "none".into(),
            kind: AdapterKind::Software,
            identity: PhysicalIdentity::default(),
            condition: None,
            memory: Vec::new(),
            caps: Caps {
                languages: BTreeSet::from([KernelLanguage::Host]),
                binding_alignment_bytes: 4,
                ..Caps::default()
            },
        };
        let timelines = QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: id, queue }));
        let (imported, recorded) = (Vec::new(), Arc::clone(recorded));
        Box::new(Checked::new(Box::new(Self { id, adapter, timelines, imported, hang, recorded })))
    }
}

impl Drop for NullDevice {
    fn drop(&mut self) {
        if let Some(hang) = &self.hang {
            let _ = hang.release.recv();
        }
    }
}

impl Device for NullDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        Ok(Vec::new())
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.timelines[queue.index()])
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.imported.push(timeline);
        Ok(())
    }

    fn pool_stats(&self) -> PoolStats {
        PoolStats::default()
    }

    fn trim_pool(&mut self) -> u64 {
        0
    }

    fn create_buffer(&mut self, _: BufferId, _: u64) -> Result<()> {
        Ok(())
    }

    fn export_buffer(&self, _: BufferId) -> Result<SharedMemory> {
        Ok(SharedMemory { bytes: 1 << 20, handle: Arc::new(()) })
    }

    fn import_buffer(&mut self, _: BufferId, _: &SharedMemory) -> Result<()> {
        Ok(())
    }

    fn destroy_buffer(&mut self, _: BufferId) -> Result<()> {
        Ok(())
    }

    fn create_module(&mut self, _: ModuleId, _: &Module) -> Result<()> {
        Ok(())
    }

    fn destroy_module(&mut self, _: ModuleId) -> Result<()> {
        Ok(())
    }

    fn register_region(&mut self, _: RegionId, _: Arc<HostRegion>) -> Result<()> {
        Ok(())
    }

    fn unregister_region(&mut self, _: RegionId) -> Result<()> {
        Ok(())
    }

    fn record(&mut self, _: ProgramId, _: Vec<Command>) -> Result<()> {
        self.recorded.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn destroy_program(&mut self, _: ProgramId) -> Result<()> {
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let Submission { queue, signal, .. } = submission;
        let is_endless = |hang: &&Hang| queue == QueueKind::Compute && signal.value >= hang.computation;
        if let Some(hang) = self.hang.as_ref().filter(is_endless) {
            let _ = hang.news.send(());
            return Ok(());
        }
        for wait in &submission.waits {
            let known = self.timelines.iter().chain(&self.imported).find(|t| t.id() == wait.timeline);
            let has_passed = known.is_some_and(|t| t.value() >= wait.value);
            // Submissions complete at once, so every awaited point has passed.
            assert!(has_passed || self.hang.is_some(), "{wait} has not passed");
            if !has_passed {
                return Ok(());
            }
        }
        self.timelines[queue.index()].advance(signal.value);
        Ok(())
    }

    fn take_timings(&mut self, _: &mut Vec<Timing>) {}
}

struct NoWeights;

impl WeightSource for NoWeights {
    fn chunks(&self, _: usize, _: u64) -> Vec<WeightChunk> {
        Vec::new()
    }

    fn fill(
        &self,
        _: usize,
        _: &WeightChunk,
        _: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// A sampler that always selects token 0.
pub struct Zero;

impl Sample for Zero {
    fn sample(&mut self, _: &[f32], _: &[u32]) -> std::result::Result<u32, String> {
        Ok(0)
    }
}

/// Returns a pipeline of stages with one segment each on null devices. `hosts` lists the device of each
/// stage. A micro-batch has at most 16 rows.
pub fn pipeline(hosts: &[usize]) -> PipelineSpec {
    wide_pipeline(hosts, 16)
}

/// Like [`pipeline`], with micro-batches of at most `rows` rows.
pub fn wide_pipeline(hosts: &[usize], rows: u32) -> PipelineSpec {
    let devices = (0..=*hosts.iter().max().expect("a stage"))
        .map(|index| NullDevice::open(index as u16, None, &Arc::default()));
    let stages = hosts.iter().enumerate().map(|(index, &device)| stage(index, hosts.len(), device, rows));
    PipelineSpec {
        devices: devices.collect(),
        stages: stages.collect(),
        prefill: None,
        events: None,
        remote: ragtag_scheduler::remote::Remote::default(),
    }
}

/// Returns a pipeline with one stage on each of two null devices. The second device hangs.
#[allow(dead_code, reason = "benchmarks inject no faults")]
pub fn hanging_pipeline(hang: Hang) -> PipelineSpec {
    let mut specs = pipeline(&[0, 1]);
    specs.devices[1] = NullDevice::open(1, Some(hang), &Arc::default());
    specs
}

/// Returns a pipeline of one stage for five sequences, and the number of programs that its device has recorded.
#[allow(dead_code, reason = "benchmarks count no programs")]
pub fn counting_pipeline(buckets: &[u32]) -> (PipelineSpec, Arc<AtomicU32>) {
    let (mut specs, recorded) = (pipeline(&[0]), Arc::default());
    specs.devices[0] = NullDevice::open(0, None, &recorded);
    let params = |&rows| ParamsShape { rows, logit_rows: rows, sequences: rows.min(5), table_blocks: 256 };
    let program = |rows| Program { params: params(rows), kind: RowKind::Any, steps: Vec::new() };
    specs.stages[0].compiled.programs = buckets.iter().map(program).collect();
    (specs, recorded)
}

fn stage(index: usize, stages: usize, device: usize, rows: u32) -> StageSpec {
    let params = ParamsShape { rows, logit_rows: rows, sequences: rows, table_blocks: 256 };
    StageSpec {
        device,
        streamed: Vec::new(),
        arenas: None,
        from_file: Vec::new(),
        longest: None,
        compute_timeout: None,
        compiled: CompiledStage {
            segments: index..index + 1,
            module: Module {
                name: "null".into(),
                entries: Vec::new(),
                source: ModuleSource::Host(Vec::new()),
            },
            weights: Vec::<WeightBuffer>::new(),
            kv_bytes: Vec::new(),
            kv_blocks: 0,
            kv_ring: None,
            rope_lengths: None,
            is_kv_ring: Vec::new(),
            variants: Vec::new(),
            scratch_bytes: 0,
            row_bytes: 8192,
            crossing_row_bytes: None,
            result: match index + 1 == stages {
                true => StageResult::Logits { vocabulary: 256 },
                false => StageResult::Nothing,
            },
            programs: vec![Program { params, kind: RowKind::Any, steps: Vec::new() }],
        },
        weights: Box::new(NoWeights),
    }
}
