//! Planning. A [`Planner`] assigns the segments of a model to devices without running the model.

mod measured;

pub use measured::Replanned;

use crate::calibrate::{Calibration, LinkReport};
use crate::defaults::{DEFAULT_CHUNK, OTHER_CHUNKS, SLOTS};
use crate::devices::{Devices, staged_route};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::prepared::Options;
use ragtag_graph::execution::{Chunks, Eviction, KvUse, Reserve};
use ragtag_graph::{Granularity, Lowering, Segment, WireType};
use ragtag_hal::Adapter;
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::plan::PlanStage;
use ragtag_planner::{
    Baseline, Constraints, DeviceFacts, EngineDecode, Fleet, HostFacts, LinkFacts, Links, ModelFacts,
    Objective, Pin, Plan, PlanDeviceOptions, PlanError, PlanLimits, PlannerInput, Split, Workload,
};
use ragtag_transfer::Routes;

/// A planner, which makes a [`Plan`] for a model. It needs no devices: this example plans for a fleet, and reads
/// the plan.
///
/// ```
/// use ragtag_engine::{Fleet, Granularity, Model, Plan, Planner};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Model::bundled()?; // or Model::open_metadata("model.gguf", None)?
/// let planner = Planner::new(&model).fleet(&Fleet::from_line("2x-arc-a770+rx7900xtx")?)?;
/// let plan = planner.clone().context(256).sequences(4).plan()?;
/// for stage in &plan.stages {
///     println!("{} runs {} with {} bytes", stage.device, stage.segments, stage.memory_bytes.total);
/// }
/// for edge in &plan.edges {
///     println!("stage {} sends to stage {} in {} µs", edge.from, edge.to, edge.predicted.decode_us);
/// }
/// println!("{} tokens/s", plan.predicted.decode_tokens_per_s);
///
/// // A plan from a file runs only with its model and its devices.
/// let read = Plan::from_json(&plan.to_json())?;
/// let labels = planner.labels();
/// let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
/// read.validate(&model.as_planned(Granularity::Block)?, &labels)?;
/// assert_eq!(read, plan);
/// # Ok(())
/// # }
/// ```
///
/// This example plans for the devices of this machine:
///
/// ```no_run
/// # fn main() -> ragtag_engine::Result<()> {
/// let model = ragtag_engine::Model::open("model.gguf")?;
/// let mut options = ragtag_engine::DeviceOptions::default();
/// options.cpu_devices = 2;
/// let devices = ragtag_engine::Devices::probe(&options)?;
/// let calibration = ragtag_engine::Calibration::run(&model, &devices, &Default::default(), &|_, _| ())?;
/// let planner = ragtag_engine::Planner::new(&model).devices(&devices).calibrated(&calibration);
/// let plan = planner.context(4096).plan()?;
/// println!("{}", plan.reasons.join("\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    model: Model,
    /// The granularity that the caller has set with [`Planner::granularity`].
    granularity: Option<Granularity>,
    devices: Vec<DeviceFacts>,
    /// Labels of devices that are present but not selected.
    not_selected: Vec<String>,
    device_options: Option<PlanDeviceOptions>,
    links: Links,
    /// Probes of the links.
    probes: LinkReport,
    host_memory_bytes: Option<u64>,
    /// Other hosts of the devices.
    hosts: Vec<HostFacts>,
    objective: Objective,
    workload: Workload,
    limits: PlanLimits,
    /// Whether the caller has set the maximum prefill chunk with [`Planner::chunk`].
    chunk_given: bool,
    /// Prefill chunks that the plan allows. `None` lets the planner choose the chunks with the best
    /// predictions.
    chunks: Option<Chunks>,
    constraints: Constraints,
    explained: bool,
    /// Whether devices may stream weights.
    streaming: bool,
    split: Option<Split>,
    /// Pairs of devices on other hosts whose activations pass through this host.
    relayed: Vec<[String; 2]>,
}

/// Minimum chunk, in tokens, that the planner tries after a device has run out of memory.
const SMALLEST_CHUNK: u32 = 16;

impl Planner {
    /// Creates a planner for one sequence, int8 activations and the longest context that fits.
    pub fn new(model: &Model) -> Self {
        let limits = PlanLimits {
            context: None,
            sequences: 1,
            chunk: DEFAULT_CHUNK,
            logit_rows: 1,
            slots: SLOTS,
            decode_groups: None,
            credits: None,
            kv_blocks: None,
            kv_memory_bytes: None,
            kv_use: KvUse { reserve: Reserve::Grow, prefixes: Some(Eviction::Lru) },
            kv: KvType::F16,
            activations: Activations::Int8,
            wire_type: None,
            verified: false,
        };
        Self {
            model: model.clone(),
            granularity: None,
            devices: Vec::new(),
            not_selected: Vec::new(),
            device_options: None,
            links: Links::default(),
            probes: LinkReport::default(),
            host_memory_bytes: None,
            hosts: Vec::new(),
            objective: Objective::Throughput,
            workload: Workload::default(),
            limits,
            chunk_given: false,
            chunks: None,
            constraints: Constraints::default(),
            explained: true,
            streaming: true,
            split: None,
            relayed: Vec::new(),
        }
    }

    /// Plans for the selected devices and their currently free memory. Of the free host memory, keeps what the
    /// process needs itself, for example for the tokenizer and while it loads weights. The devices' rates come from
    /// datasheets or from the API. If neither provides a rate, the planner assumes one. Predictions from such
    /// rates are rough, so call [`Planner::calibrated`] as well. All edges go through host memory, because other
    /// routes need a probe ([`Planner::calibrated`], [`Planner::probed`]).
    pub fn devices(self, devices: &Devices) -> Self {
        let process_bytes = devices.process_bytes(&self.model);
        let mut planner = self.device_facts(devices.facts_beside(process_bytes));
        let detected = devices.report().adapters().map(Adapter::label);
        planner.not_selected = detected.filter(|label| !devices.labels().contains(label)).collect();
        planner.device_options = Some(devices.plan_options().clone());
        planner.host_memory_bytes = devices.host_memory_bytes(process_bytes);
        planner.devices.extend(devices.hosts.facts());
        planner.hosts.clone_from(&devices.hosts.memory);
        planner.links.known.extend(devices.hosts.links.iter().cloned());
        planner.relayed = devices.hosts.relayed();
        // The memory from which weights stream is that of one host.
        planner.streaming &= devices.hosts.devices.is_empty();
        for (from, to) in
            devices.selected().iter().flat_map(|from| devices.selected().iter().map(move |to| (from, to)))
        {
            let routes = staged_route(from, to).into();
            if from.label() != to.label() && routes != planner.links.other.routes {
                planner = planner.routes(&from.label(), &to.label(), routes);
            }
        }
        planner
    }

    /// Uses the fastest verified routes of probed links, with the measured figures. Excludes devices until every
    /// pair of probed devices has a verified route. Call [`Planner::devices`] first. A planner with
    /// [`Planner::calibrated`] does not need this call, because a calibration probes the links.
    pub fn probed(mut self, links: &LinkReport) -> Self {
        self.links.known.splice(0..0, links.planned().known);
        self.probes = links.clone();
        let mut labels = self.labels();
        while let Some((at, _)) = links.without_route(&labels) {
            self = self.exclude(&labels.remove(at));
        }
        self
    }

    /// Replaces the rates of devices and links with the measurements in `calibration`. Uses the fastest verified
    /// routes. Excludes devices that the calibration could not open. Call [`Planner::devices`] first.
    pub fn calibrated(mut self, calibration: &Calibration) -> Self {
        self.devices = calibration.apply(self.devices);
        let planner = self.probed(&calibration.links);
        calibration.closed.iter().fold(planner, |planner, device| planner.exclude(device))
    }

    /// Plans for the devices that `facts` describes. The devices need not exist.
    pub fn device_facts(mut self, facts: Vec<DeviceFacts>) -> Self {
        self.devices = facts;
        self.not_selected.clear();
        self.device_options = None;
        self.host_memory_bytes = None;
        self.hosts.clear();
        self
    }

    /// Plans for the devices and links in `fleet`, which need not exist.
    ///
    /// # Errors
    /// Returns [`Error::Fleet`] if the fleet is invalid. The error names the invalid figure, label or link.
    pub fn fleet(self, fleet: &Fleet) -> Result<Self> {
        let invalid = |cause| Error::Fleet { of: "the fleet".into(), cause };
        let (devices, links) = fleet.facts().map_err(invalid)?;
        let hosts = fleet.host_facts().map_err(invalid)?;
        let planner = self.device_facts(devices).links(links);
        // A plan over several hosts streams no weights.
        let streaming = planner.streaming && fleet.hosts.is_empty();
        Ok(Self { host_memory_bytes: fleet.host_memory_bytes, hosts, streaming, ..planner })
    }

    /// Returns the planner's devices and links, and the free host memory, as a fleet. A planner for this fleet makes
    /// the same plans on any machine, except that they record no device options. Leaves out excluded devices.
    pub fn to_fleet(&self) -> Fleet {
        let excluded = &self.constraints.excluded;
        let devices = self.devices.iter().filter(|device| !excluded.contains(&device.label));
        Fleet::of(&devices.cloned().collect::<Vec<_>>(), &self.links, self.host_memory_bytes)
    }

    /// Returns the labels of the planner's devices.
    pub fn labels(&self) -> Vec<String> {
        self.devices.iter().map(|device| device.label.clone()).collect()
    }

    /// Returns the options with which the devices were probed, or `None` if the devices come from
    /// [`Planner::device_facts`].
    pub fn device_options(&self) -> Option<&PlanDeviceOptions> {
        self.device_options.as_ref()
    }

    /// Sets the latency, bandwidth and route of the links between the devices.
    pub fn links(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// Sets the objective to minimize.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = objective;
        self
    }

    /// Sets the prompt length and the number of new tokens of the request to plan for.
    pub fn workload(mut self, workload: Workload) -> Self {
        self.workload = workload;
        self
    }

    /// Sets the maximum length of a sequence that must fit in memory, in tokens.
    pub fn context(mut self, tokens: u32) -> Self {
        self.limits.context = Some(tokens);
        self
    }

    /// Sets the number of concurrent sequences. Memory must suffice for all of them at the length of the planned
    /// request, and for one of them at the full context. With [`Reserve::Full`], it must suffice for all of them at
    /// the full context.
    pub fn sequences(mut self, sequences: u32) -> Self {
        self.limits.sequences = sequences;
        self.limits.logit_rows = self.limits.logit_rows.max(sequences);
        self
    }

    /// Sets the maximum number of prompt tokens in one micro-batch.
    pub fn chunk(mut self, rows: u32) -> Self {
        self.limits.chunk = rows;
        self.chunk_given = true;
        self
    }

    /// Sets the prefill chunks that the plan allows. No chunk may be longer than the maximum that
    /// [`Planner::chunk`] sets.
    pub fn chunks(mut self, chunks: Chunks) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Sets the number of micro-batches among which the scheduler divides the decoding sequences. By default,
    /// the planner chooses this number.
    pub fn decode_groups(mut self, groups: u32) -> Self {
        self.limits.decode_groups = Some(groups);
        self
    }

    /// Sets the maximum number of micro-batches in flight. By default, the planner chooses this number. A plan for
    /// several sequences has at least one more than decode groups.
    pub fn credits(mut self, credits: u32) -> Self {
        self.limits.credits = Some(credits);
        self
    }

    /// Sets the number of micro-batches that a stage can hold. The default is [`SLOTS`].
    pub fn slots(mut self, slots: u32) -> Self {
        self.limits.slots = slots;
        self
    }

    /// Sets the transfer routes from one device to another. The caller answers for routes that no probe has
    /// verified ([`Planner::refusals`]).
    pub fn routes(mut self, from: &str, to: &str, routes: Routes) -> Self {
        let before = self.links.between(from, to);
        let probed = self.probes.facts(from, to, &routes);
        let facts = probed.unwrap_or_else(|| LinkFacts { routes, verified: false, ..before.clone() });
        self.links.known.insert(0, (from.into(), to.into(), facts));
        self
    }

    /// Plans for runs that need logits of every row, not only of the last row of each sequence.
    pub fn all_logits(mut self) -> Self {
        self.limits.logit_rows = u32::MAX;
        self
    }

    /// Sets the types of keys and values in the KV cache.
    pub fn kv(mut self, kv: KvType) -> Self {
        self.limits.kv = kv;
        self
    }

    /// Sets when sequences take blocks of the KV cache, and whether it keeps the blocks of earlier sequences. By
    /// default, sequences take blocks as they grow, and the cache keeps the blocks that were used last.
    pub fn kv_use(mut self, kv_use: KvUse) -> Self {
        self.limits.kv_use = kv_use;
        self
    }

    /// Sets the memory for keys and values in all devices together. It must hold one sequence at the full
    /// context. By default, the KV cache gets the memory that is left, at most as much as all sequences need at
    /// the full context.
    pub fn kv_memory(mut self, bytes: u64) -> Self {
        self.limits.kv_memory_bytes = Some(bytes);
        self
    }

    /// Sets the number of blocks of the KV cache, in place of [`Planner::kv_memory`].
    pub fn kv_blocks(mut self, blocks: u32) -> Self {
        self.limits.kv_blocks = Some(blocks);
        self
    }

    /// Sets the type of activations in matmuls with quantized weights.
    pub fn activations(mut self, activations: Activations) -> Self {
        self.limits.activations = activations;
        self
    }

    /// Sets the wire type of activations between stages. By default, the planner chooses the type with the
    /// shorter predicted time. [`Planner::plan`] returns an error for f16 with exact activations.
    pub fn wire_type(mut self, wire_type: WireType) -> Self {
        self.limits.wire_type = Some(wire_type);
        self
    }

    /// Counts the memory for checksums of transfers, as runs with
    /// [`EngineOptions::verify_transfers`](crate::EngineOptions) need it.
    pub fn verify_transfers(mut self, verified: bool) -> Self {
        self.limits.verified = verified;
        self
    }

    /// Pins a segment to a device. Segment 0 is the embedding, and the last segment is the head.
    pub fn pin(mut self, segment: u32, device: &str) -> Self {
        self.constraints.pins.push(Pin { segment, device: device.into() });
        self
    }

    /// Excludes a device from the plan.
    pub fn exclude(mut self, device: &str) -> Self {
        self.constraints.excluded.push(device.into());
        self
    }

    /// Limits the number of stages.
    pub fn max_stages(mut self, stages: u32) -> Self {
        self.constraints.max_stages = Some(stages);
        self
    }

    /// Sets the granularity of segments. With half-blocks, the planner can balance unequal devices better,
    /// but planning takes longer. By default, segments are blocks. If a mixture of experts does not fit one device, and
    /// no split and no pins name segments, the planner also searches half-blocks, so that experts may be apart from
    /// attention.
    pub fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = Some(granularity);
        self
    }

    /// Sets the placement. The planner then does not search for one, but still proves that this placement
    /// fits in memory.
    pub fn split(mut self, split: Split) -> Self {
        self.split = Some(split);
        self
    }

    /// Keeps all weights in device memory. By default, devices may stream weights from host memory if the model
    /// does not fit the devices with memory of their own, and from its file if host memory is short.
    pub fn without_streaming(mut self) -> Self {
        self.streaming = false;
        self
    }

    /// Omits the reasons and the explanation from the plan. Computing them takes longer than the search, so
    /// this option saves time for callers that plan for many fleets.
    pub fn unexplained(mut self) -> Self {
        self.explained = false;
        self
    }

    /// Makes the plan. Searches all subsets and orders of the devices, and all ways to divide the model into
    /// stages, for the plan with the lowest objective. Proves that this plan fits in memory. If no plan fits,
    /// GPUs with their own memory stream some of the weights from host memory. If a plan fits only with the help
    /// of the CPU, a GPU may compute long prompts alone with streamed weights. If host memory is short too, devices
    /// stream weights from the model's file.
    ///
    /// If the plan serves many sequences, the planner also simulates the best few placements and the
    /// baselines. For each placement, it tries several chunks, numbers of decode groups and numbers of
    /// credits. It returns the plan with the best simulated result. Each simulation takes some tens of
    /// milliseconds.
    ///
    /// # Errors
    /// Returns [`Error::Planner`] if no plan fits in memory, or if a figure, a constraint or the split is
    /// invalid. The error names the missing memory or the invalid item.
    pub fn plan(&self) -> Result<Plan> {
        let plan_at = |granularity| self.with_input(granularity, |input| Ok(ragtag_planner::plan(input)?));
        let plan = match (self.granularity, plan_at(self.given_granularity())) {
            (None, plan) if self.may_divide_blocks(&plan) => better(plan, plan_at(Granularity::HalfBlock)),
            (_, plan) => plan,
        }?;
        let chunks = self.chunks.clone().or(plan.chunks);
        let mut reasons = plan.reasons;
        if self.explained {
            reasons.extend(plan.stages.windows(2).filter_map(|pair| self.relay(&pair[0], &pair[1])));
        }
        Ok(Plan { chunks, device_options: self.device_options.clone(), reasons, ..plan })
    }

    /// Describes the edge between two stages if its activations pass through this host.
    fn relay(&self, from: &PlanStage, to: &PlanStage) -> Option<String> {
        let is_pair = |pair: &&[String; 2]| pair[0] == from.device && pair[1] == to.device;
        self.relayed.iter().find(is_pair).map(|[from, to]| {
            format!(
                "edge {from} -> {to}: through the coordinator, because the workers cannot reach one another"
            )
        })
    }

    fn given_granularity(&self) -> Granularity {
        self.granularity.unwrap_or_default()
    }

    /// Returns whether experts apart from attention may be better than `plan`, whose segments are blocks.
    fn may_divide_blocks(&self, plan: &Result<Plan>) -> bool {
        let is_on_one = |plan: &Plan| plan.stages.len() == 1 && plan.stages[0].streamed.is_empty();
        self.model.hyperparameters().extras.experts.is_some()
            && self.devices.len() > 1
            && self.split.is_none()
            && self.constraints.pins.is_empty()
            && !plan.as_ref().is_ok_and(is_on_one)
    }

    /// Makes a plan whose placement follows a simple rule, for comparison with the planner's own placement.
    /// Optimizes only the micro-batches and the number of credits. Returns `None` if the plan does not fit.
    ///
    /// # Errors
    /// Fails like [`Planner::plan`], except that a plan that does not fit is not an error.
    pub fn baseline(&self, rule: Baseline) -> Result<Option<Plan>> {
        self.with_input(self.given_granularity(), |input| Ok(ragtag_planner::baseline(input, rule)?))
    }

    /// Makes a plan with the placement of [`Planner::baseline`] and the fixed settings of common engines.
    /// Returns `None` if the plan does not fit.
    ///
    /// - Prefill chunks have 512 tokens, or as many as fit in memory.
    /// - `decode` sets the number of decode groups. There is at most one group per sequence.
    /// - The number of micro-batches in flight is one more than the number of stages.
    ///
    /// # Errors
    /// Fails like [`Planner::baseline`].
    pub fn untuned_baseline(&self, rule: Baseline, decode: EngineDecode) -> Result<Option<Plan>> {
        let granularity = self.given_granularity();
        self.with_input(granularity, |input| Ok(ragtag_planner::untuned_baseline(input, rule, decode)?))
    }

    fn with_input<T>(
        &self,
        granularity: Granularity,
        then: impl FnOnce(&PlannerInput<'_>) -> Result<T>,
    ) -> Result<T> {
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
        let segments = self.segments(granularity, context, chunk)?;
        let others: Vec<(u32, Vec<Segment>)> = others
            .into_iter()
            .map(|chunk| Ok((chunk, self.segments(granularity, context, chunk)?)))
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
            hosts: &self.hosts,
            objective: self.objective,
            workload: self.workload,
            limits: PlanLimits { chunk, ..self.limits },
            constraints: &self.constraints,
            trial: Some(ragtag_scheduler::trial),
            several_stages: true,
            streaming: self.streaming,
            from_file: self.streaming,
            explained: self.explained,
            split: self.split.as_ref(),
        })
    }

    /// Returns an error if the split, a pin or an exclusion names a device that is present but not selected.
    fn check_selected(&self) -> Result<()> {
        let Constraints { pins, excluded, .. } = &self.constraints;
        let parts = self.split.iter().flat_map(|split| split.parts.iter().map(|part| &part.device));
        let mut named = parts.chain(pins.iter().map(|pin| &pin.device)).chain(excluded);
        match named.find(|label| self.not_selected.contains(label)) {
            Some(device) => Err(Error::NotSelected { device: device.clone(), selected: self.labels() }),
            None => Ok(()),
        }
    }

    /// Lowers the model for a context of `context` tokens and chunks of up to `chunk` tokens. Returns its
    /// segments.
    fn segments(&self, granularity: Granularity, context: u32, chunk: u32) -> Result<Vec<Segment>> {
        let limits = &self.limits;
        let lowering = Lowering {
            activations: limits.activations,
            kv: limits.kv,
            context,
            sequences: limits.sequences,
            kv_blocks: None,
            chunk,
            logit_rows: limits.logit_rows.min(chunk),
            // Segment costs do not depend on the wire type.
            wire_type: WireType::F32,
        };
        let as_error = |cause| Error::Model { name: self.model.name().into(), cause };
        self.model.graph().with_granularity(granularity).segments(&lowering).map_err(as_error)
    }
}

impl Planner {
    /// Returns a reason for each route of `plan` that must not be used: a probe has found it unusable, or it
    /// shares memory and no probe has verified it. The planner knows the probes from [`Planner::probed`] and
    /// [`Planner::calibrated`].
    pub fn refusals(&self, plan: &Plan) -> Vec<String> {
        self.probes.refusals(plan)
    }

    /// Returns the descriptions of devices and links from which the planner predicts times.
    pub fn facts(&self) -> (&[DeviceFacts], &Links) {
        (&self.devices, &self.links)
    }

    /// Returns a planner for the selected devices, with the settings of `plan` and no placement.
    pub(crate) fn like(model: &Model, devices: &Devices, plan: &Plan, options: &Options) -> Self {
        let planner = Self::new(model).devices(devices).granularity(plan.model.granularity);
        let planner = planner.context(plan.context).sequences(plan.sequences).chunk(plan.chunk);
        let limits = PlanLimits {
            logit_rows: if options.all_logits { u32::MAX } else { plan.sequences },
            verified: options.verify_transfers,
            kv_use: plan.kv_use,
            kv: plan.kv,
            activations: plan.activations,
            slots: plan.slots,
            ..planner.limits
        };
        Self { limits, ..planner }
    }

    /// Plans for the memory that is free now. Adds the selected devices that the planner does not know.
    pub(crate) fn with_free_memory(mut self, devices: &Devices) -> Self {
        let process_bytes = devices.process_bytes(&self.model);
        for now in devices.facts_beside(process_bytes) {
            match self.devices.iter_mut().find(|facts| facts.label == now.label) {
                Some(facts) => facts.memory_bytes = now.memory_bytes,
                None => self.devices.push(now),
            }
        }
        self.host_memory_bytes = devices.host_memory_bytes(process_bytes);
        self
    }

    /// Adds the selected devices that the planner does not know.
    pub(crate) fn knowing(mut self, devices: &Devices) -> Self {
        let is_known = |label: &String| self.devices.iter().any(|facts| facts.label == *label);
        if !devices.labels().iter().all(is_known) {
            let facts = devices.facts_beside(devices.process_bytes(&self.model));
            let new: Vec<_> = facts.into_iter().filter(|facts| !is_known(&facts.label)).collect();
            self.devices.extend(new);
        }
        self
    }

    /// Forgets devices, a split that names one of them, and their pins. If the plan does not fit without an excluded
    /// device, the error would name the exclusion.
    pub(crate) fn avoiding(mut self, devices: &[String]) -> Self {
        let is_named = |split: &Split| split.parts.iter().any(|part| devices.contains(&part.device));
        self.split = self.split.filter(|split| !is_named(split));
        self.constraints.pins.retain(|pin| !devices.contains(&pin.device));
        self.devices.retain(|facts| !devices.contains(&facts.label));
        self
    }

    /// Describes the parts of the placement that `used` does not have.
    pub(crate) fn ignored(&self, used: &Self) -> Option<String> {
        let has_less = (self.split.is_some() && used.split.is_none())
            || self.constraints.pins.len() > used.constraints.pins.len();
        has_less.then(|| "the split or a pin names the device, and does not apply".to_owned())
    }

    /// Makes a plan that is close to `before`: with its context and its prefill chunk, if they fit. Otherwise, the
    /// planner chooses the chunk, and then also the context. Returns the plan with the planner that has made it.
    pub(crate) fn near(&self, before: &Plan) -> Result<(Self, Plan)> {
        let context = Some(before.context);
        let same = PlanLimits { context, chunk: before.chunk, ..self.limits };
        let chunk = PlanLimits { context, ..self.limits };
        let free = PlanLimits { context: None, kv_blocks: None, kv_memory_bytes: None, ..self.limits };
        let same = Self { limits: same, chunk_given: true, ..self.clone() };
        let others =
            [chunk, free].map(|limits| Self { limits, chunk_given: false, chunks: None, ..self.clone() });
        let mut last = None;
        for planner in [same].into_iter().chain(others).filter(|planner| !planner.devices.is_empty()) {
            match planner.plan() {
                Ok(plan) => return Ok((planner, plan)),
                Err(error @ Error::Planner(_)) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Usage("no device is left".into())))
    }

    /// Limits the memory that plans may use on `device` to `bytes`.
    pub(crate) fn holding_at_most(mut self, device: &str, bytes: u64) -> Self {
        for facts in self.devices.iter_mut().filter(|facts| facts.label == device) {
            facts.memory_bytes = facts.memory_bytes.min(bytes);
        }
        self
    }

    /// Makes a plan that needs less memory than `before`. First tries smaller chunks at the same context,
    /// then fewer slots, then a shorter context, and finally streams weights. Does not change a chunk or a
    /// context that the caller has set. If `before` streams weights, each of these plans may stream more.
    pub(crate) fn smaller_than(&self, before: &Plan) -> Result<Plan> {
        let halves = std::iter::successors(Some(before.chunk), |chunk| Some(chunk / 2));
        let halves = halves.take_while(|&chunk| chunk == before.chunk || chunk >= SMALLEST_CHUNK);
        let chunks: Vec<u32> = halves.take(if self.chunk_given { 1 } else { usize::MAX }).collect();
        let smallest = *chunks.last().unwrap_or(&before.chunk);
        let fewer = (1..before.slots).rev().map(|slots| (smallest, slots));
        let steps = chunks.iter().map(|&chunk| (chunk, before.slots)).chain(fewer);
        let streams = before.all_stages().any(|stage| !stage.streamed.is_empty());
        let may_stream = |chunk: u32, slots: u32, context: Option<u32>, streaming: bool| {
            let limits = PlanLimits { chunk, slots, context, ..self.limits };
            Self { limits, streaming, chunk_given: true, chunks: None, ..self.clone() }.plan()
        };
        let with = |chunk, slots, context| may_stream(chunk, slots, context, streams);
        let mut last = (smallest, before.slots);
        for (chunk, slots) in steps {
            match with(chunk, slots, Some(before.context)) {
                Err(Error::Planner(PlanError::DoesNotFit(_))) => last = (chunk, slots),
                other => return other,
            }
        }
        match with(last.0, last.1, self.limits.context) {
            Err(Error::Planner(PlanError::DoesNotFit(_))) if self.streaming && !streams => {
                may_stream(before.chunk, before.slots, self.limits.context, true)
            }
            other => other,
        }
    }
}

/// Returns the plan with the better score. Prefers `halves` only if it is better by more than rounding errors.
fn better(blocks: Result<Plan>, halves: Result<Plan>) -> Result<Plan> {
    match (blocks, halves) {
        (Ok(blocks), Ok(halves)) if halves.explanation.score_us < blocks.explanation.score_us * 0.999 => {
            Ok(halves)
        }
        (Err(_), Ok(halves)) => Ok(halves),
        (blocks, _) => blocks,
    }
}

pub(crate) fn model_facts(model: &Model) -> Result<ModelFacts> {
    Ok(ModelFacts::new(model.name(), model.fingerprint()?, model.hyperparameters()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::AdapterKind;
    use ragtag_planner::FigureSource;

    #[test]
    fn a_plan_for_verified_transfers_is_smaller_if_memory_is_short() {
        let facts = DeviceFacts::assumed("gpu:0", AdapterKind::Discrete, 1, 1 << 30, FigureSource::User);
        let planner = Planner::new(&Model::bundled().unwrap()).context(64).unexplained().without_streaming();
        let planner = planner.device_facts(vec![facts]);
        let before = planner.plan().unwrap();
        let planner = planner.holding_at_most("gpu:0", before.stages[0].memory_bytes.total);
        assert_eq!(planner.plan().unwrap().chunk, before.chunk);
        let verifying = planner.verify_transfers(true);
        assert!(matches!(verifying.plan(), Err(Error::Planner(PlanError::DoesNotFit(_)))));
        let smaller = verifying.smaller_than(&before).unwrap();
        assert!(smaller.chunk < before.chunk || smaller.slots < before.slots, "{smaller:?}");
    }

    #[test]
    fn a_smaller_plan_streams_weights_last() {
        let facts = DeviceFacts::assumed("gpu:0", AdapterKind::Discrete, 1, 1 << 30, FigureSource::User);
        let planner = Planner::new(&Model::bundled().unwrap()).context(64).unexplained();
        let planner = planner.device_facts(vec![facts]);
        let before = planner.plan().unwrap();
        let memory = before.stages[0].memory_bytes;
        let with = |bytes| planner.clone().holding_at_most("gpu:0", bytes).smaller_than(&before).unwrap();
        let smaller = with(memory.total - 1);
        assert!(smaller.stages[0].streamed.is_empty(), "{smaller:?}");
        assert!(smaller.chunk < before.chunk || smaller.slots < before.slots, "{smaller:?}");
        // The weights alone fill this memory.
        let streamed = with(memory.weights);
        assert!(!streamed.stages[0].streamed.is_empty(), "{streamed:?}");
        assert_eq!((streamed.chunk, streamed.slots), (before.chunk, before.slots));
    }
}
