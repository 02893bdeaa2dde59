//! Requested placements. Merges the placement arguments with the plan file of `--plan`.

use super::overrides::{self, Override};
use super::pins::{self, Pin};
use crate::cli::args::{MAX_TOKENS, PlacementArgs, RequestArgs, WireArg};
use crate::cli::error::{Error, Result};
use crate::cli::files::{input_name, read_input};
use crate::cli::output::note;
use crate::files::MAX_JSON_BYTES;
use crate::{CalibrationOptions, Model, Planner};
use ragtag_devices::canonical;
use ragtag_graph::execution::KvUse;
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::plan::{InvalidPlan, Plan, PlanDeviceOptions};
use ragtag_planner::{PartitionError, Split, Workload};
use std::path::Path;

/// Device selection if the user gives none.
pub(crate) const AUTO: &str = "auto";

/// Returns the default KV cache type for the type of activations.
pub(crate) fn usual_kv(activations: Activations) -> KvType {
    if activations == Activations::F32 { KvType::F32 } else { KvType::F16 }
}

/// Requirements that a command sets for its plan, in addition to the user's placement arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Number of concurrent sequences that the user requested, or `None` for the default.
    pub(crate) asked: Option<u32>,
    /// Number of concurrent sequences if neither the arguments nor the plan file sets it.
    pub(crate) sequences: u32,
    /// Whether the command needs logits of every row.
    pub(crate) all_logits: bool,
    /// Whether the command verifies transfers.
    pub(crate) verified: bool,
    /// Context in tokens if the user sets none. `None` means the longest context that fits.
    pub(crate) context: Option<u32>,
    /// Parts of the planned request that the user's arguments describe.
    pub(crate) request: RequestArgs,
    /// Request to plan for if neither the arguments nor the plan file describes one.
    pub(crate) workload: Workload,
}

impl Needs {
    /// Creates needs in which `sequences` is the default number of concurrent sequences. All other fields
    /// have their defaults.
    pub(crate) fn of(sequences: u32) -> Self {
        Self { sequences, ..Self::default() }
    }
}

/// Returns a workload with the given token counts, each limited to [`MAX_TOKENS`].
pub(crate) fn workload(prompt_tokens: usize, generated_tokens: u32) -> Workload {
    let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX).min(MAX_TOKENS);
    Workload { prompt_tokens, generated_tokens: generated_tokens.min(MAX_TOKENS) }
}

/// A requested placement. Arguments take precedence over the plan file.
pub(crate) struct Wanted<'a> {
    args: &'a PlacementArgs,
    pub(crate) needs: Needs,
    file: Option<(&'a Path, Plan)>,
    split: Option<Split>,
    pins: Vec<Pin>,
    overrides: Vec<Override>,
    kv: KvType,
}

impl<'a> Wanted<'a> {
    /// Reads the plan file and parses the split, the pins and the overrides.
    ///
    /// # Errors
    /// Fails if the plan file cannot be read, or if the plan file, the split, a pin or an override cannot be parsed.
    /// Also fails if the types of keys and values do not go together.
    pub(crate) fn read(args: &'a PlacementArgs, needs: Needs) -> Result<Self> {
        let file = args.plan.as_deref().map(|path| read_plan(path).map(|plan| (path, plan))).transpose()?;
        let split = args.split.as_deref().map(str::parse::<Split>).transpose()?.map(with_canonical_names);
        let mut pins = args.pin.iter().map(|pin| Pin::read(pin)).collect::<Result<Vec<_>>>()?;
        pins.extend(Pin::of_moe(args.cpu_moe, args.n_cpu_moe));
        let overrides = args.override_tensor.iter().map(|text| overrides::read(text));
        let overrides = overrides.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let mut wanted = Self { args, needs, file, split, pins, overrides, kv: KvType::F16 };
        wanted.kv = args.kv.types(wanted.usual_kv())?;
        Ok(wanted)
    }

    fn plan(&self) -> Option<&Plan> {
        self.file.as_ref().map(|(_, plan)| plan)
    }

    /// Returns whether the split, a pin or an override names a CPU device.
    pub(crate) fn names_cpu(&self) -> bool {
        let parts = self.split.iter().flat_map(|split| split.parts.iter().map(|part| part.device.as_str()));
        let overrides = self.overrides.iter().map(|each| each.device.as_str());
        let mut named = parts.chain(self.pins.iter().flat_map(Pin::devices)).chain(overrides);
        named.any(|device| device.starts_with("cpu:"))
    }

    pub(crate) fn is_calibrated(&self) -> bool {
        !self.args.no_calibration
    }

    #[cfg(feature = "remote")]
    pub(super) fn workers(&self) -> &[crate::WorkerAddress] {
        &self.args.worker
    }

    /// Returns the options of the calibration for this placement.
    pub(crate) fn calibration(&self) -> CalibrationOptions {
        let mut options = CalibrationOptions::default();
        options.activations = self.activations();
        options.kv = self.kv();
        options.sequences = self.sequences();
        options.max_load = f64::from(self.args.load.max_load) / 100.0;
        options
    }

    pub(crate) fn activations(&self) -> Activations {
        match (self.args.activations, self.plan()) {
            (None, Some(plan)) => plan.activations,
            (form, _) => form.unwrap_or(Activations::Int8),
        }
    }

    pub(crate) fn kv(&self) -> KvType {
        self.kv
    }

    /// Returns the KV cache type of a plan file with the same activations, or the default.
    fn usual_kv(&self) -> KvType {
        match self.plan() {
            Some(plan) if plan.activations == self.activations() => plan.kv,
            _ => usual_kv(self.args.activations.unwrap_or(Activations::Int8)),
        }
    }

    fn kv_use(&self) -> KvUse {
        self.args.kv.kv_use(self.plan().map(|plan| plan.kv_use))
    }

    pub(crate) fn sequences(&self) -> u32 {
        let usual = self.plan().map_or(self.needs.sequences, |plan| plan.sequences);
        self.needs.asked.unwrap_or(usual)
    }

    /// Returns the wire type that the arguments request, or `usual` if they request none. `None` lets the
    /// planner choose.
    fn wire_type(&self, usual: Option<WireType>) -> Option<WireType> {
        match self.args.wire {
            None => usual,
            Some(WireArg::Auto) => None,
            Some(WireArg::F32) => Some(WireType::F32),
            Some(WireArg::F16) => Some(WireType::F16),
        }
    }

    /// Returns the granularity that the arguments or the plan file request. `None` lets the planner choose.
    fn granularity(&self) -> Option<Granularity> {
        let needs_halves = || self.pins.iter().any(Pin::needs_halves) || !self.overrides.is_empty();
        let of_pins = || needs_halves().then_some(Granularity::HalfBlock);
        let usual = || self.plan().map(|plan| plan.model.granularity);
        self.args.granularity.or_else(of_pins).or_else(usual)
    }

    /// Checks the pins against `model`, and that the plan file is valid for it and for the planner's devices.
    ///
    /// # Errors
    /// Fails if a pin or an override names tensors that the model lacks, or if the plan is invalid, or was made for
    /// another model or other devices.
    pub(crate) fn check(&self, planner: &Planner, model: &Model) -> Result<()> {
        let granularity = self.granularity().unwrap_or_default();
        pins::check(&self.pins, model, granularity)?;
        overrides::check(&self.overrides, model, granularity)?;
        let Some((path, plan)) = &self.file else { return Ok(()) };
        let labels = planner.labels();
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        let Err(cause) = plan.validate(&model.as_planned(granularity)?, &labels) else {
            return Ok(());
        };
        let flags = match (&cause, &plan.device_options, planner.device_options()) {
            (InvalidPlan::Stages(PartitionError::UnknownDevice { .. }), Some(needed), Some(own)) => {
                flags(needed, own)
            }
            _ => None,
        };
        Err(match flags {
            Some(flags) => {
                let devices = plan.all_stages().map(|stage| &stage.device);
                let missing = devices.filter(|device| !labels.contains(&device.as_str())).cloned().collect();
                Error::PlanDevices { path: input_name(path).into(), missing, flags }
            }
            None => invalid(path)(cause),
        })
    }

    /// Checks that the probes that `planner` knows allow all routes of the plan file.
    ///
    /// # Errors
    /// Fails if a probe has found a route unusable, or if no probe has verified a route that shares memory.
    pub(crate) fn check_routes(&self, planner: &Planner, strict: bool) -> Result<()> {
        let Some((path, plan)) = &self.file else { return Ok(()) };
        let advised = |finding| format!("{finding} (run `ragtag devices --links` with the same devices)");
        let findings: Vec<_> = planner.refusals(plan).into_iter().map(advised).collect();
        match findings.is_empty() {
            true => Ok(()),
            false if strict => crate::cli::strict::refuse(findings),
            false => Err(Error::PlanRoutes { path: input_name(path).into(), findings }),
        }
    }

    /// Returns `planner` with the requested placement and settings.
    pub(crate) fn over(&self, planner: Planner, model: &Model) -> Planner {
        let planner = match self.granularity() {
            Some(granularity) => planner.granularity(granularity),
            None => planner,
        };
        let planner = planner
            .sequences(self.sequences())
            .kv(self.kv())
            .kv_use(self.kv_use())
            .activations(self.activations())
            .verify_transfers(self.needs.verified);
        let planner = match self.args.kv.kv_memory {
            Some(bytes) => planner.kv_memory(bytes),
            None => planner,
        };
        let planner = match self.plan() {
            Some(plan) => self.like(plan, planner),
            None => self.by_arguments(planner, model),
        };
        let planner = self.aimed(planner);
        self.warn_of_long_context(model);
        if self.needs.all_logits { planner.all_logits() } else { planner }
    }

    /// Returns `planner` with the requested objective and the request to plan for.
    fn aimed(&self, planner: Planner) -> Planner {
        let RequestArgs { objective, prompt_tokens, new_tokens } = self.needs.request;
        let usual = self.plan().map_or(self.needs.workload, |plan| plan.workload);
        let planner = planner.workload(Workload {
            prompt_tokens: prompt_tokens.unwrap_or(usual.prompt_tokens),
            generated_tokens: new_tokens.unwrap_or(usual.generated_tokens),
        });
        match objective.or(self.plan().map(|plan| plan.objective)) {
            Some(objective) => planner.objective(objective),
            None => planner,
        }
    }

    fn warn_of_long_context(&self, model: &Model) {
        let trained = model.hyperparameters().context;
        if let Some(indexer) = model.hyperparameters().extras.indexer.filter(|of| of.context > trained) {
            note(&format!(
                "note: contexts of this model end at {trained} of {} tokens, because its indexer is not used",
                indexer.context
            ));
            return;
        }
        let usual = self.plan().map_or(self.needs.context, |plan| Some(plan.context));
        if let Some(context) = self.args.ctx.or(usual).filter(|context| *context > trained) {
            note(&format!(
                "warning: a context of {context} tokens exceeds the {trained} tokens that the model was trained for"
            ));
        }
    }

    fn by_arguments(&self, mut planner: Planner, model: &Model) -> Planner {
        if let Some(context) = self.args.ctx.or(self.needs.context) {
            planner = planner.context(context);
        }
        if let Some(rows) = self.args.chunk {
            planner = planner.chunk(rows);
        }
        if let Some(wire_type) = self.wire_type(None) {
            planner = planner.wire_type(wire_type);
        }
        if let Some(split) = &self.split {
            planner = planner.split(split.clone());
        }
        let overridden = overrides::segments(&self.overrides, model).unwrap_or_default();
        for (segment, device) in pins::segments(&self.pins, model).into_iter().chain(overridden) {
            planner = planner.pin(segment, &device);
        }
        for device in &self.args.exclude {
            planner = planner.exclude(&canonical(device));
        }
        if let Some(stages) = self.args.max_stages {
            planner = planner.max_stages(stages);
        }
        planner
    }

    /// Returns `planner` with the settings of the plan file. The planner proves again that the plan fits,
    /// because less memory may be free than when the file was written.
    fn like(&self, plan: &Plan, mut planner: Planner) -> Planner {
        // Exact activations require the wire type f32. The plan's wire type may be for fast activations.
        let usual = if self.activations() == plan.activations { plan.wire_type } else { WireType::F32 };
        if let Some(wire_type) = self.wire_type(Some(usual)) {
            planner = planner.wire_type(wire_type);
        }
        // If the number of sequences differs from the plan's, the planner chooses the micro-batches again.
        if self.sequences() == plan.sequences {
            planner = planner.decode_groups(plan.decode_groups).credits(plan.credits);
        }
        let is_like = (self.sequences(), self.kv(), self.kv_use()) == (plan.sequences, plan.kv, plan.kv_use);
        let context = self.args.ctx.unwrap_or(plan.context);
        if is_like && context == plan.context && self.args.kv.kv_memory.is_none() {
            planner = planner.kv_blocks(plan.kv_blocks);
        }
        let ends = plan.stages.windows(2).map(|pair| (&pair[0].device, &pair[1].device));
        for ((from, to), routes) in ends.zip(plan.routes()) {
            planner = planner.routes(from, to, routes);
        }
        if self.args.chunk.is_none() {
            planner = planner.chunks(plan.chunks());
        }
        planner
            .context(context)
            .chunk(self.args.chunk.unwrap_or(plan.chunk))
            .slots(plan.slots)
            .split(plan.split())
    }
}

/// Returns `split` with the names of backends in Ragtag, because users write other names too.
pub(super) fn with_canonical_names(mut split: Split) -> Split {
    split.parts.iter_mut().for_each(|part| part.device = canonical(&part.device));
    split
}

fn read_plan(path: &Path) -> Result<Plan> {
    Plan::from_json(&read_input(path, MAX_JSON_BYTES)?).map_err(invalid(path))
}

/// Returns the command-line flags that change the current device options `own` to the options `needed`, which
/// a plan requires. Omits options that have the default value in both. Returns `None` if no flag is needed.
fn flags(needed: &PlanDeviceOptions, own: &PlanDeviceOptions) -> Option<String> {
    let usual = PlanDeviceOptions { selection: AUTO.into(), cpu_devices: 1, threads: None };
    let mut flags = Vec::new();
    if [needed, own].iter().any(|options| options.selection != usual.selection) {
        flags.push(format!("--device {}", quoted(&needed.selection)));
    }
    if [needed, own].iter().any(|options| options.cpu_devices != usual.cpu_devices) {
        flags.push(format!("--cpu-devices {}", needed.cpu_devices));
    }
    flags.extend(needed.threads.map(|threads| format!("--threads {threads}")));
    (needed != own && !flags.is_empty()).then(|| flags.join(" "))
}

/// Quotes a word for a shell, because a word from a plan file may contain any characters.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":,=-_".contains(c);
    if text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn invalid(path: &Path) -> impl Fn(InvalidPlan) -> Error {
    |cause| Error::PlanFile { path: input_name(path).into(), cause: Box::new(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_plan_include_only_those_that_differ() {
        let options = |selection: &str, cpu_devices, threads| PlanDeviceOptions {
            selection: selection.into(),
            cpu_devices,
            threads,
        };
        let auto = options(AUTO, 1, None);
        assert_eq!(flags(&auto, &auto), None);
        assert_eq!(flags(&auto, &options(AUTO, 1, Some(2))), None);
        assert_eq!(flags(&options(AUTO, 2, Some(1)), &auto).unwrap(), "--cpu-devices 2 --threads 1");
        assert_eq!(flags(&auto, &options("cpu", 2, None)).unwrap(), "--device auto --cpu-devices 1");
        let odd = options("cpu, $(it's)", 1, None);
        assert_eq!(flags(&odd, &auto).unwrap(), r"--device 'cpu, $(it'\''s)'");
    }
}
