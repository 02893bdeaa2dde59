//! Compares the first block of each stage on its device with the same block on the CPU. A device, a driver or
//! a kernel that computes wrong values is found before the first token.

use crate::devices::Devices;
use crate::engine::{FileWeights, lowering};
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{Lowering, WireType};
use ragtag_hal::{Adapter, AdapterKind, Checked};
use ragtag_kernels::{Activations, KvType, NumericsClass};
use ragtag_planner::plan::Plan;
use ragtag_scheduler::{SoloBatch, SoloDevice};

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
    /// Relative error ‖device − CPU‖ / ‖CPU‖.
    pub error: f64,
    /// Maximum relative error of the numerics class.
    pub bound: f64,
}

/// Computes the first block of each stage on its device and on the CPU, from the same random rows. Loads a
/// copy of these blocks, so that it does not disturb a running engine.
///
/// # Errors
/// Returns [`Error::Canary`] if the results of a stage differ by more than the numerics class allows. Returns
/// [`Error::Usage`] if this build has no CPU device, and otherwise the error of a device.
pub fn check_first_blocks(model: &Model, devices: &Devices, plan: &Plan) -> Result<Vec<CheckedBlock>> {
    let processor = devices.report().adapters().find(|adapter| adapter.kind == AdapterKind::Cpu);
    let processor = processor.ok_or_else(|| Error::Usage("--canary needs the CPU backend".into()))?;
    let mut blocks = Vec::new();
    for (at, stage) in plan.stages.iter().enumerate() {
        let segments = stage.segments.range();
        // The first stage starts with the embedding, which computes nothing.
        let segment = if segments.start == 0 && segments.len() > 1 { 1 } else { segments.start };
        let block = Block { model, plan, segment };
        let mut opened = devices.open(std::slice::from_ref(&stage.device))?;
        let own = block.outputs(opened.swap_remove(0))?;
        let reference = devices.open_adapter(processor);
        let reference = reference.map_err(|cause| Error::Device { device: processor.label(), cause })?;
        let error = relative_error(&own, &block.outputs((processor.clone(), reference))?);
        let bound = numerics(plan).tolerance();
        let device = stage.device.clone();
        if !matches!(error.partial_cmp(&bound), Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)) {
            return Err(Error::Canary { stage: at, device, route: arrival(plan, at), error, bound });
        }
        blocks.push(CheckedBlock { stage: at, device, segment, error, bound });
    }
    Ok(blocks)
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

fn numerics(plan: &Plan) -> NumericsClass {
    match (plan.activations, plan.kv) {
        (Activations::F32, KvType::F32) => NumericsClass::Exact,
        _ => NumericsClass::Fast,
    }
}

/// A segment of a plan's model.
struct Block<'a> {
    model: &'a Model,
    plan: &'a Plan,
    segment: usize,
}

impl Block<'_> {
    /// Returns the outputs of all micro-batches on a device.
    fn outputs(&self, (adapter, device): (Adapter, Checked)) -> Result<Vec<f32>> {
        let Self { model, plan, segment } = *self;
        let most = ROWS.into_iter().fold(1, u32::max).min(plan.context.max(1));
        let lowering = Lowering {
            context: most,
            sequences: 1,
            chunk: most,
            logit_rows: 1,
            wire_type: WireType::F32,
            ..lowering(plan, false)
        };
        let graph = model.graph().with_granularity(plan.model.granularity);
        let is_head = segment + 1 == graph.segment_count();
        let compiled = ragtag_graph::compile(&graph, segment..segment + 1, &lowering, &adapter.caps);
        let compiled = compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })?;
        let weights = FileWeights::new(model, &compiled);
        let width = if segment == 0 { 0 } else { model.hyperparameters().width };
        let mut solo = SoloDevice::new(Box::new(device));
        let mut loaded = solo.load(compiled, &weights)?;
        let mut outputs = Vec::new();
        for rows in ROWS.map(|rows| rows.min(most)) {
            let batch = SoloBatch { sequences: 1, rows_each: rows, first_position: 0, logits: is_head };
            outputs.extend(loaded.output(&batch, &random(rows as usize * width as usize))?);
        }
        Ok(outputs)
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
