//! Plans without running: which device would run which segments of a model.

mod measured;

pub use measured::Replanned;

use crate::calibrate::Calibration;
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{Boundary, Granularity, Lowering, Segment};
use ragtag_hal::Adapter;
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::{
    Baseline, Chunks, Constraints, DeviceFacts, EngineDecode, Fleet, LinkFacts, Links, ModelFacts, Objective,
    Pin, Plan, PlanDeviceOptions, PlanError, PlanLimits, PlannerInput, Split, Workload,
};
use ragtag_transfer::Route;

/// Prefill chunk that is tried first unless one is asked for: long enough to use the arithmetic of a device, short enough that
/// one prompt fills a pipeline.
pub const DEFAULT_CHUNK: u32 = 128;

/// The longest prefill chunk that is tried unless one is asked for; the context bounds it.
pub const MAX_CHUNK: u32 = 4096;

/// The others that are tried: shorter ones fill a pipeline sooner, longer ones use the devices' arithmetic better.
const OTHER_CHUNKS: [u32; 6] = [64, 256, 512, 1024, 2048, MAX_CHUNK];

/// Micro-batches that a stage holds: one arriving, one computed, one leaving.
pub const SLOTS: u32 = 3;

/// Makes a [`Plan`] for a model.
///
/// ```no_run
/// # fn main() -> ragtag::Result<()> {
/// let model = ragtag::Model::open("model.gguf")?;
/// let mut options = ragtag::DeviceOptions::default();
/// options.cpu_devices = 2;
/// let devices = ragtag::Devices::probe(&options)?;
/// let calibration = ragtag::Calibration::run(&model, &devices, &Default::default(), &|_, _| ())?;
/// let planner = ragtag::Planner::new(&model).devices(&devices).calibrated(&calibration);
/// let plan = planner.context(4096).plan()?;
/// println!("{}", plan.reasons.join("\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    model: Model,
    granularity: Granularity,
    devices: Vec<DeviceFacts>,
    /// Labels of devices that are there and not to be planned for.
    not_selected: Vec<String>,
    device_options: Option<PlanDeviceOptions>,
    links: Links,
    host_memory_bytes: Option<u64>,
    objective: Objective,
    workload: Workload,
    limits: PlanLimits,
    /// Whether the chunk was asked for.
    chunk_given: bool,
    /// The chunks that the plan allows, in place of those that are predicted to be fastest.
    chunks: Option<Chunks>,
    constraints: Constraints,
    explained: bool,
    split: Option<Split>,
}

/// The smallest chunk that is taken for want of memory.
const SMALLEST_CHUNK: u32 = 16;

impl Planner {
    /// A planner for one sequence at a time, int8 activations, blocks as segments and the longest context that fits.
    pub fn new(model: &Model) -> Self {
        let limits = PlanLimits {
            context: None,
            sequences: 1,
            chunk: DEFAULT_CHUNK,
            logit_rows: 1,
            slots: SLOTS,
            decode_groups: None,
            credits: None,
            kv: KvType::F16,
            activations: Activations::Int8,
            boundary: None,
        };
        Self {
            model: model.clone(),
            granularity: Granularity::default(),
            devices: Vec::new(),
            not_selected: Vec::new(),
            device_options: None,
            links: Links::default(),
            host_memory_bytes: None,
            objective: Objective::Throughput,
            workload: Workload::default(),
            limits,
            chunk_given: false,
            chunks: None,
            constraints: Constraints::default(),
            explained: true,
            split: None,
        }
    }

    /// Plans for the devices that are selected in `devices`, with rates from datasheets, else assumed ones, and the memory that
    /// is free now. [`Planner::calibrated`] adds what was measured of them: predictions are worth little without it.
    pub fn devices(self, devices: &Devices) -> Self {
        let mut planner = self.device_facts(devices.facts());
        let detected = devices.report().adapters().map(Adapter::label);
        planner.not_selected = detected.filter(|label| !devices.labels().contains(label)).collect();
        planner.device_options = Some(devices.plan_options().clone());
        planner.host_memory_bytes = devices.host_memory_bytes();
        planner
    }

    /// Takes what was measured of the devices named so far, and of the links between them, in place of what is assumed.
    /// Devices that did not open are excluded.
    pub fn calibrated(mut self, calibration: &Calibration) -> Self {
        self.devices = calibration.apply(self.devices);
        self.links = calibration.links.clone();
        calibration.closed.iter().fold(self, |planner, device| planner.exclude(device))
    }

    /// Plans for devices described by figures, whether they exist or not.
    pub fn device_facts(mut self, facts: Vec<DeviceFacts>) -> Self {
        self.devices = facts;
        self.not_selected.clear();
        self.device_options = None;
        self.host_memory_bytes = None;
        self
    }

    /// Plans for devices and links that need not exist.
    ///
    /// # Errors
    /// [`Error::Fleet`] names the figure, label or link that cannot be.
    pub fn fleet(self, fleet: &Fleet) -> Result<Self> {
        let facts = fleet.facts().map_err(|cause| Error::Fleet { of: "the fleet".into(), cause });
        let (devices, links) = facts?;
        Ok(self.device_facts(devices).links(links))
    }

    /// Labels of the devices.
    pub fn labels(&self) -> Vec<String> {
        self.devices.iter().map(|device| device.label.clone()).collect()
    }

    /// The options that the devices were found with, if they are there.
    pub fn device_options(&self) -> Option<&PlanDeviceOptions> {
        self.device_options.as_ref()
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

    /// The prefill chunks that the plan allows, none longer than that of [`Planner::chunk`].
    pub fn chunks(mut self, chunks: Chunks) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Micro-batches over which generating sequences are spread, in place of as many as are best.
    pub fn decode_groups(mut self, groups: u32) -> Self {
        self.limits.decode_groups = Some(groups);
        self
    }

    /// Micro-batches in flight at most, in place of as many as are best.
    pub fn credits(mut self, credits: u32) -> Self {
        self.limits.credits = Some(credits);
        self
    }

    /// Micro-batches that a stage may hold, in place of [`SLOTS`].
    pub fn slots(mut self, slots: u32) -> Self {
        self.limits.slots = slots;
        self
    }

    /// How activations cross from one device to another, in place of what is known of that link.
    pub fn route(mut self, from: &str, to: &str, route: Route) -> Self {
        let facts = LinkFacts { route, ..self.links.between(from, to).clone() };
        self.links.known.insert(0, (from.into(), to.into(), facts));
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

    /// The form in which activations cross between stages, instead of the one that is predicted to be better. f16 is for fast
    /// activations: [`Planner::plan`] refuses it with exact ones.
    pub fn boundary(mut self, boundary: Boundary) -> Self {
        self.limits.boundary = Some(boundary);
        self
    }

    /// A segment must be on a device; segment 0 is the embedding, the last one the head.
    pub fn pin(mut self, segment: u32, device: &str) -> Self {
        self.constraints.pins.push(Pin { segment, device: device.into() });
        self
    }

    /// A device must not be used.
    pub fn exclude(mut self, device: &str) -> Self {
        self.constraints.excluded.push(device.into());
        self
    }

    /// The plan has so many stages at most.
    pub fn max_stages(mut self, stages: u32) -> Self {
        self.constraints.max_stages = Some(stages);
        self
    }

    /// What of a transformer block is one segment. Halves balance unlike devices better, and take longer to plan for.
    pub fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// A placement to check and prove instead of a search.
    pub fn split(mut self, split: Split) -> Self {
        self.split = Some(split);
        self
    }

    /// The plan says where everything is and what is expected of it, not why: no reasons and no explanation, which take longer
    /// than the search. For programs that look at many fleets.
    pub fn unexplained(mut self) -> Self {
        self.explained = false;
        self
    }

    /// Makes the plan: memory is proved, then the objective is made as small as the segments allow, over all subsets and
    /// orders of the devices. For many sequences the best few placements and those of the rules are tried in simulation,
    /// some tens of milliseconds each, with neighbouring chunks and numbers of decode groups and with fewer credits; what is
    /// best there is chosen.
    ///
    /// # Errors
    /// [`Error::Planner`] says what does not fit, or which figure, constraint or part of the split is wrong.
    pub fn plan(&self) -> Result<Plan> {
        let plan = self.with_input(|input| Ok(ragtag_planner::plan(input)?))?;
        let chunks = self.chunks.clone().or(plan.chunks);
        Ok(Plan { chunks, device_options: self.device_options.clone(), ..plan })
    }

    /// The plan that a rule without a search makes, for comparison, with the micro-batches and credits that suit it best; none
    /// if it does not fit.
    ///
    /// # Errors
    /// As [`Planner::plan`], except that what does not fit is no error.
    pub fn baseline(&self, rule: Baseline) -> Result<Option<Plan>> {
        self.with_input(|input| Ok(ragtag_planner::baseline(input, rule)?))
    }

    /// The placement of [`Planner::baseline`] as engines run it, with nothing chosen to suit it: chunks of 512 tokens or, where
    /// they do not fit, the longest shorter ones; decode groups as `decode` says, but no more than sequences; and a micro-batch
    /// in flight for each stage, with one on its way. None if it does not fit.
    ///
    /// # Errors
    /// As [`Planner::baseline`].
    pub fn untuned_baseline(&self, rule: Baseline, decode: EngineDecode) -> Result<Option<Plan>> {
        self.with_input(|input| Ok(ragtag_planner::untuned_baseline(input, rule, decode)?))
    }

    fn with_input<T>(&self, then: impl FnOnce(&PlannerInput<'_>) -> Result<T>) -> Result<T> {
        let model = &self.model;
        let context = self.limits.context.unwrap_or(model.hyperparameters().context);
        let bounded = |chunk: u32| chunk.min(context.max(1)).max(self.limits.sequences);
        let chunk = bounded(self.limits.chunk);
        let mut others: Vec<u32> = Vec::new();
        if !self.chunk_given {
            others.extend(OTHER_CHUNKS.map(bounded));
            others.retain(|other| *other != chunk);
            others.dedup();
        }
        let segments = self.segments(context, chunk)?;
        let others: Vec<(u32, Vec<Segment>)> = others
            .into_iter()
            .map(|chunk| Ok((chunk, self.segments(context, chunk)?)))
            .collect::<Result<_>>()?;
        let others: Vec<_> = others.iter().map(|(chunk, segments)| (*chunk, segments.as_slice())).collect();
        let facts = model_facts(model)?;
        self.check_selected()?;
        then(&PlannerInput {
            model: &facts,
            segments: &segments,
            other_chunks: &others,
            devices: &self.devices,
            links: &self.links,
            host_memory_bytes: self.host_memory_bytes,
            objective: self.objective,
            workload: self.workload,
            limits: PlanLimits { chunk, ..self.limits },
            constraints: &self.constraints,
            trial: Some(ragtag_scheduler::trial),
            explained: self.explained,
            split: self.split.as_ref(),
        })
    }

    /// Refuses what names a device that is there and not selected.
    fn check_selected(&self) -> Result<()> {
        let Constraints { pins, excluded, .. } = &self.constraints;
        let parts = self.split.iter().flat_map(|split| split.parts.iter().map(|part| &part.device));
        let mut named = parts.chain(pins.iter().map(|pin| &pin.device)).chain(excluded);
        match named.find(|label| self.not_selected.contains(label)) {
            Some(device) => Err(Error::NotSelected { device: device.clone(), selected: self.labels() }),
            None => Ok(()),
        }
    }

    /// The model's segments as they are with a chunk.
    fn segments(&self, context: u32, chunk: u32) -> Result<Vec<Segment>> {
        let limits = &self.limits;
        let lowering = Lowering {
            activations: limits.activations,
            kv: limits.kv,
            context,
            sequences: limits.sequences,
            chunk,
            logit_rows: limits.logit_rows.min(chunk),
            // No segment's costs depend on it.
            boundary: Boundary::F32,
        };
        let as_error = |cause| Error::Model { name: self.model.name().into(), cause };
        self.model.graph().with_granularity(self.granularity).segments(&lowering).map_err(as_error)
    }
}

impl Planner {
    /// What it plans with: the devices and the links.
    pub fn facts(&self) -> (&[DeviceFacts], &Links) {
        (&self.devices, &self.links)
    }

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
            Self { limits, chunk_given: true, chunks: None, ..self.clone() }.plan()
        };
        let mut last = (smallest, before.slots);
        for (chunk, slots) in steps {
            match with(chunk, slots, Some(before.context)) {
                Err(Error::Planner(PlanError::DoesNotFit(_))) => last = (chunk, slots),
                other => return other,
            }
        }
        with(last.0, last.1, self.limits.context)
    }
}

pub(crate) fn model_facts(model: &Model) -> Result<ModelFacts> {
    let h = model.hyperparameters();
    Ok(ModelFacts {
        name: model.name().into(),
        digest: model.fingerprint()?,
        context: h.context,
        row_bytes: u64::from(h.width) * 4,
        logit_row_bytes: u64::from(h.vocabulary) * 4,
    })
}
