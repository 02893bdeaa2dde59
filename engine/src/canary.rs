//! Compares the first block of each stage on its device with the same block on the CPU. A device, a driver or
//! a kernel that computes wrong values is found before the first token. Of a prefill stage, compares a block
//! of each stage to which keys and values pass, together with the decode step that uses them.

use crate::calibrate::solo::{SoloBatch, SoloDevice, SoloStage};
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::stage::{FileWeights, lowering};
use ragtag_graph::{Lowering, WireType};
use ragtag_hal::{Adapter, AdapterKind, Checked};
use ragtag_kernels::{Activations, KvType, NumericsClass};
use ragtag_planner::plan::{Plan, PlanStage, PrefillStage};

/// Numbers of rows of the compared micro-batches: a decode step and a prefill chunk.
const ROWS: [u32; 2] = [1, 8];

/// Comparison of a stage's first block with the CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedBlock {
    /// Index of the stage.
    pub stage: usize,
    /// Label of the stage's device.
    pub device: String,
    /// Segment that was compared.
    pub segment: usize,
    /// Prefill stage only: label of the device to which the keys and values of the segment pass.
    pub keys_to: Option<String>,
    /// Relative error ‖device − CPU‖ / ‖CPU‖.
    pub error: f64,
    /// Maximum relative error of the numerics class.
    pub bound: f64,
}

/// Computes the first block of each stage on its device and on the CPU, from the same random rows. Of a
/// prefill stage, computes the first block of each stage to which keys and values pass, and that stage's
/// device computes the next decode step of the block with them. Loads a copy of these blocks, so that it does
/// not disturb a running engine.
///
/// # Errors
/// Returns [`Error::Canary`] if the results of a stage differ by more than the numerics class allows. Returns
/// [`Error::Usage`] if this build has no CPU device, and otherwise the error of a device.
pub fn check_first_blocks(model: &Model, devices: &Devices, plan: &Plan) -> Result<Vec<CheckedBlock>> {
    let processor = devices.report().adapters().find(|adapter| adapter.kind == AdapterKind::Cpu);
    let processor = processor.ok_or_else(|| Error::Usage("the canary needs the CPU backend".into()))?;
    let open = |label: &String| Ok::<_, Error>(devices.open(std::slice::from_ref(label))?.swap_remove(0));
    let reference = || {
        let opened = devices.open_adapter(processor);
        let opened = opened.map_err(|cause| Error::Device { device: processor.label(), cause })?;
        Ok::<_, Error>((processor.clone(), opened))
    };
    let mut blocks = Vec::new();
    for (at, stage) in plan.stages.iter().enumerate() {
        let segments = stage.segments.range();
        // The first stage starts with the embedding, which computes nothing.
        let segment = if segments.start == 0 && segments.len() > 1 { 1 } else { segments.start };
        let block = Block { model, plan, segment };
        let (own, expected) = (block.outputs(open(&stage.device)?)?, block.outputs(reference()?)?);
        let (stage, device, error) = (at, stage.device.clone(), relative_error(&own, &expected));
        let checked = CheckedBlock { stage, device, segment, keys_to: None, error, bound: bound(plan) };
        blocks.push(checked.or_wrong(|| arrival(plan, at))?);
    }
    let Some(PrefillStage { stage: prefill, .. }) = &plan.prefill_stage else { return Ok(blocks) };
    for (stage, segment) in receivers(model, plan, &prefill.device)? {
        let block = Block { model, plan, segment };
        let (rows, keys) = block.prefill(open(&prefill.device)?)?;
        let (expected_rows, expected_keys) = block.prefill(reference()?)?;
        let step = block.step_with(&keys, open(&stage.device)?)?;
        let expected_step = block.step_with(&expected_keys, reference()?)?;
        let [rows, step] = [relative_error(&rows, &expected_rows), relative_error(&step, &expected_step)];
        let (device, keys_to) = (prefill.device.clone(), Some(stage.device.clone()));
        let (at, bound) = (plan.stages.len(), bound(plan));
        let error = if rows <= bound { step } else { rows };
        let checked = CheckedBlock { stage: at, device, segment, keys_to, error, bound };
        let route = || format!("prefill; keys and values pass to {} through host memory", stage.device);
        blocks.push(checked.or_wrong(route)?);
    }
    Ok(blocks)
}

/// Returns the stages to which the keys and values of a prefill stage on `device` pass, each with its first
/// segment that has keys and values.
fn receivers<'a>(model: &Model, plan: &'a Plan, device: &str) -> Result<Vec<(&'a PlanStage, usize)>> {
    let graph = model.graph().with_granularity(plan.model.granularity);
    let segments = graph
        .segments(&lowering(plan, false))
        .map_err(|cause| Error::Model { name: model.name().into(), cause })?;
    let has_keys = |segment: &usize| segments.get(*segment).is_some_and(|of| of.kv_bytes_per_position > 0);
    let others = plan.stages.iter().filter(|stage| stage.device != device);
    Ok(others.filter_map(|stage| Some((stage, stage.segments.range().find(has_keys)?))).collect())
}

impl CheckedBlock {
    /// Returns the block, or an error with its route if it differs too much.
    fn or_wrong(self, route: impl FnOnce() -> String) -> Result<Self> {
        let Self { stage, error, bound, .. } = self;
        // NaN is wrong, too.
        if error <= bound {
            return Ok(self);
        }
        Err(Error::Canary { stage, device: self.device, route: route(), error, bound })
    }
}

/// Describes how the rows of a stage arrive.
fn arrival(plan: &Plan, stage: usize) -> String {
    match plan.edges.iter().find(|edge| edge.to as usize == stage) {
        Some(edge) => {
            let routes: Vec<_> = edge.routes.iter().map(|route| route.name()).collect();
            let from = plan.stages.get(edge.from as usize).map_or("", |stage| &stage.device);
            format!("rows arrive from {from} by the {} route", routes.join(" or "))
        }
        None => "tokens arrive from the host".into(),
    }
}

/// Returns the maximum relative error of a plan's numerics class.
fn bound(plan: &Plan) -> f64 {
    let class = match (plan.activations, plan.kv) {
        (Activations::F32, KvType::F32) => NumericsClass::Exact,
        _ => NumericsClass::Fast,
    };
    class.tolerance()
}

/// A segment of a plan's model.
struct Block<'a> {
    model: &'a Model,
    plan: &'a Plan,
    segment: usize,
}

impl Block<'_> {
    /// Returns the outputs of all micro-batches on a device.
    fn outputs(&self, opened: (Adapter, Checked)) -> Result<Vec<f32>> {
        let is_head = self.segment + 1
            == self.model.graph().with_granularity(self.plan.model.granularity).segment_count();
        let most = self.most_rows();
        self.on(opened, most, |loaded| {
            let mut outputs = Vec::new();
            for rows in ROWS.map(|rows| rows.min(most)) {
                let batch = SoloBatch { logits: is_head, ..SoloBatch::chunk(rows, 0) };
                outputs.extend(loaded.output(&batch, &self.rows(rows))?);
            }
            Ok(outputs)
        })
    }

    /// Returns the output of a prefill chunk on a device, and the keys and values that it has computed.
    fn prefill(&self, opened: (Adapter, Checked)) -> Result<(Vec<f32>, Vec<u8>)> {
        let rows = self.most_rows();
        self.on(opened, rows + 1, |loaded| {
            let chunk = SoloBatch::chunk(rows, 0);
            Ok((loaded.output(&chunk, &self.rows(rows))?, loaded.keys_and_values()?))
        })
    }

    /// Returns the output of the decode step that follows the chunk with these keys and values.
    fn step_with(&self, keys: &[u8], opened: (Adapter, Checked)) -> Result<Vec<f32>> {
        let rows = self.most_rows();
        self.on(opened, rows + 1, |loaded| {
            loaded.set_keys_and_values(keys)?;
            let step = SoloBatch::chunk(1, rows);
            loaded.output(&step, &self.rows(1))
        })
    }

    /// Returns the number of rows of the longest micro-batch.
    fn most_rows(&self) -> u32 {
        ROWS.into_iter().fold(1, u32::max).min(self.plan.context.max(1))
    }

    /// Returns random input rows.
    fn rows(&self, rows: u32) -> Vec<f32> {
        let width = if self.segment == 0 { 0 } else { self.model.hyperparameters().width };
        random(rows as usize * width as usize)
    }

    /// Loads the segment with a context of `context` positions on a device, and calls `run` with it.
    fn on<T>(
        &self,
        (adapter, device): (Adapter, Checked),
        context: u32,
        run: impl FnOnce(&mut SoloStage<'_>) -> ragtag_scheduler::Result<T>,
    ) -> Result<T> {
        let Self { model, plan, segment } = *self;
        let most = self.most_rows();
        let lowering = Lowering {
            context,
            sequences: 1,
            kv_blocks: None,
            chunk: most,
            logit_rows: 1,
            wire_type: WireType::F32,
            ..lowering(plan, false)
        };
        let graph = model.graph().with_granularity(plan.model.granularity);
        let compiled = ragtag_graph::compile(&graph, segment..segment + 1, &lowering, &adapter.caps);
        let compiled = compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })?;
        let weights = FileWeights::new(model, &compiled);
        let mut solo = SoloDevice::new(Box::new(device));
        let mut loaded = solo.load(compiled, &weights)?;
        Ok(run(&mut loaded)?)
    }
}

/// Returns pseudo-random values between -1 and 1.
fn random(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        // Knuth's linear congruential generator. Its high bits are random enough.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn relative_error(values: &[f32], reference: &[f32]) -> f64 {
    if values.len() != reference.len() {
        return f64::INFINITY;
    }
    let square = |value: f64| value * value;
    let difference =
        values.iter().zip(reference).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum::<f64>();
    let norm = reference.iter().map(|value| square(f64::from(*value))).sum::<f64>();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_relative_and_finds_every_difference() {
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((relative_error(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-12);
        assert!(relative_error(&[f32::NAN, 4.0], &[3.0, 4.0]).is_nan());
        assert_eq!(relative_error(&[3.0], &[3.0, 4.0]), f64::INFINITY);
        let values = random(1000);
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        assert!(values.iter().sum::<f32>().abs() < 100.0 && values[0] != values[1]);
    }
}
