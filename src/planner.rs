//! Plans without running: which device would run which segments of a model.

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::Lowering;
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::plan::{Plan, PlanModel};
use ragtag_scheduler::planner::{self, ModelFacts, Objective, PlanLimits, PlannerInput, Workload};
use ragtag_scheduler::{DeviceFacts, Links, Split};

/// Prefill chunk unless one is asked for: long enough to use the arithmetic of a device, short enough that one prompt
/// fills a pipeline.
pub const DEFAULT_CHUNK: u32 = 128;

/// Micro-batches that a stage holds: one arriving, one computed, one leaving.
pub const SLOTS: u32 = 3;

/// Makes a [`Plan`] for a model.
///
/// ```no_run
/// # fn main() -> ragtag::Result<()> {
/// let model = ragtag::Model::open("model.gguf")?;
/// let devices = ragtag::Devices::probe(&ragtag::DeviceOptions { cpu_devices: 2, ..Default::default() })?;
/// let plan = ragtag::Planner::new(&model).devices(&devices).context(4096).plan()?;
/// println!("{}", plan.reasons.join("\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    model: Model,
    devices: Vec<DeviceFacts>,
    links: Links,
    objective: Objective,
    workload: Workload,
    limits: PlanLimits,
    /// Whether the chunk was asked for.
    chunk_given: bool,
    split: Option<Split>,
}

/// The smallest chunk that is taken for want of memory.
const SMALLEST_CHUNK: u32 = 16;

impl Planner {
    /// A planner for one sequence at a time, int8 activations and the longest context that fits.
    pub fn new(model: &Model) -> Self {
        let limits = PlanLimits {
            context: None,
            sequences: 1,
            chunk: DEFAULT_CHUNK,
            logit_rows: 1,
            slots: SLOTS,
            kv: KvType::F16,
            activations: Activations::Int8,
        };
        Self {
            model: model.clone(),
            devices: Vec::new(),
            links: Links::default(),
            objective: Objective::Throughput,
            workload: Workload::default(),
            limits,
            chunk_given: false,
            split: None,
        }
    }

    /// Plans for the devices that are selected in `devices`, with assumed rates and the memory that is free now.
    pub fn devices(self, devices: &Devices) -> Self {
        self.device_facts(devices.facts())
    }

    /// Plans for devices described by figures, whether they exist or not.
    pub fn device_facts(mut self, facts: Vec<DeviceFacts>) -> Self {
        self.devices = facts;
        self
    }

    /// Figures of the links between the devices.
    pub fn links(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// What to minimise.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = objective;
        self
    }

    /// The request to plan for.
    pub fn workload(mut self, workload: Workload) -> Self {
        self.workload = workload;
        self
    }

    /// The longest sequence that must fit, in tokens.
    pub fn context(mut self, tokens: u32) -> Self {
        self.limits.context = Some(tokens);
        self
    }

    /// Sequences that must fit at the full context at the same time.
    pub fn sequences(mut self, sequences: u32) -> Self {
        self.limits.sequences = sequences;
        self.limits.logit_rows = self.limits.logit_rows.max(sequences);
        self
    }

    /// Most tokens that go through the pipeline together.
    pub fn chunk(mut self, rows: u32) -> Self {
        self.limits.chunk = rows;
        self.chunk_given = true;
        self
    }

    /// Logits of every row of a micro-batch are wanted, not only of the last of each sequence.
    pub fn all_logits(mut self) -> Self {
        self.limits.logit_rows = u32::MAX;
        self
    }

    /// Form of keys and values.
    pub fn kv(mut self, kv: KvType) -> Self {
        self.limits.kv = kv;
        self
    }

    /// Form of the activations in products with quantised weights.
    pub fn activations(mut self, activations: Activations) -> Self {
        self.limits.activations = activations;
        self
    }

    /// A placement to check and prove instead of a search.
    pub fn split(mut self, split: Split) -> Self {
        self.split = Some(split);
        self
    }

    /// Makes the plan: memory is proved, then the busiest stage is made as short as the segments allow.
    ///
    /// # Errors
    /// [`Error::Planner`] says what does not fit, or which figure or part of the split is wrong.
    pub fn plan(&self) -> Result<Plan> {
        let model = &self.model;
        let context = self.limits.context.unwrap_or(model.hyperparameters().context);
        let limits = PlanLimits { chunk: self.limits.chunk.min(context.max(1)), ..self.limits };
        let limits = PlanLimits { chunk: limits.chunk.max(limits.sequences), ..limits };
        let lowering = Lowering {
            activations: limits.activations,
            kv: limits.kv,
            context,
            sequences: limits.sequences,
            chunk: limits.chunk,
            logit_rows: limits.logit_rows.min(limits.chunk),
        };
        let segments = model
            .graph()
            .segments(&lowering)
            .map_err(|cause| Error::Model { name: model.name().into(), cause })?;
        let facts = model_facts(model)?;
        Ok(planner::plan(&PlannerInput {
            model: &facts,
            segments: &segments,
            devices: &self.devices,
            links: &self.links,
            objective: self.objective,
            workload: self.workload,
            limits: PlanLimits { logit_rows: lowering.logit_rows, ..limits },
            split: self.split.as_ref(),
        })?)
    }
}

impl Planner {
    /// The same for a device that turned out to hold no more than so many bytes.
    pub(crate) fn holding_at_most(mut self, device: &str, bytes: u64) -> Self {
        for facts in self.devices.iter_mut().filter(|facts| facts.label == device) {
            facts.memory_bytes = facts.memory_bytes.min(bytes);
        }
        self
    }

    /// A plan that asks for less than one that did not fit: for its context with a smaller chunk, else with fewer slots
    /// as well; else, unless the context was asked for, for the longest one that fits then. What was asked for stays.
    pub(crate) fn smaller_than(&self, before: &Plan) -> Result<Plan> {
        let halves = std::iter::successors(Some(before.chunk), |chunk| Some(chunk / 2));
        let halves = halves.take_while(|&chunk| chunk == before.chunk || chunk >= SMALLEST_CHUNK);
        let chunks: Vec<u32> = halves.take(if self.chunk_given { 1 } else { usize::MAX }).collect();
        let smallest = *chunks.last().unwrap_or(&before.chunk);
        let fewer = (1..before.slots).rev().map(|slots| (smallest, slots));
        let steps = chunks.iter().map(|&chunk| (chunk, before.slots)).chain(fewer);
        let with = |chunk: u32, slots: u32, context: Option<u32>| {
            let limits = PlanLimits { chunk, slots, context, ..self.limits };
            Self { limits, ..self.clone() }.plan()
        };
        let mut last = (smallest, before.slots);
        for (chunk, slots) in steps {
            match with(chunk, slots, Some(before.context)) {
                Err(Error::Planner(planner::PlanError::DoesNotFit(_))) => last = (chunk, slots),
                other => return other,
            }
        }
        with(last.0, last.1, self.limits.context)
    }
}

fn model_facts(model: &Model) -> Result<ModelFacts> {
    let h = model.hyperparameters();
    Ok(ModelFacts {
        name: model.name().into(),
        digest: model.fingerprint()?,
        context: h.context,
        row_bytes: u64::from(h.width) * 4,
        logit_row_bytes: u64::from(h.vocabulary) * 4,
    })
}

/// What a plan must name to be one for this model.
pub(crate) fn plan_model(model: &Model) -> Result<PlanModel> {
    Ok(PlanModel {
        name: model.name().into(),
        digest: model.fingerprint()?,
        segments: model.graph().segment_count() as u32,
    })
}
