//! Weight buffers of a stage: their names, and the content of each.

use crate::arch::{ROPE_FACTORS, Rope, RopeFactors};
use crate::error::ModelError;
use crate::graph::OperatorGraph;
use crate::model::Model;
use crate::ops::{Weight, pair_pitch};
use crate::rope_lengths::factors_of;
use crate::stack::StackedMatrix;
use crate::weight_buffer::{WeightBuffer, WeightContent};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::{Layout, TensorType};
use std::collections::BTreeSet;

/// Returns the weight buffers that `nodes` need, without duplicates. `kept` returns the resident layout
/// for a given weight type.
pub(crate) fn weight_buffers(
    model: &Model,
    graph: &OperatorGraph,
    nodes: &[NodeIndex],
    kept: impl Fn(TensorType) -> Layout,
) -> Result<Vec<WeightBuffer>, ModelError> {
    let mut buffers: Vec<WeightBuffer> = Vec::new();
    let mut seen = BTreeSet::new();
    for node in nodes.iter().map(|index| graph.node(*index)) {
        for weight in node.operator.lower().weights() {
            let name = weight.name();
            if seen.insert(name.clone()) {
                let content = content(model, weight, &kept)?;
                buffers.push(WeightBuffer { name, content, segment: node.segment });
            }
        }
    }
    Ok(buffers)
}

fn content(
    model: &Model,
    weight: Weight,
    kept: impl Fn(TensorType) -> Layout,
) -> Result<WeightContent, ModelError> {
    let values = |name: &String| Ok(model.weights().required(name)?.values());
    Ok(match weight {
        Weight::Matrix(stack) => WeightContent::Matrix(StackedMatrix::new(model.weights(), &stack, kept)?),
        Weight::Vector { tensors, affine } => {
            let values = tensors.iter().map(values).sum::<Result<_, ModelError>>()?;
            WeightContent::Vector { tensors, values, pitch: None, affine }
        }
        Weight::Pair { tensors, affine } => {
            let width = values(&tensors[0])?;
            let pitch = pair_pitch(width);
            WeightContent::Vector { tensors, values: pitch + width, pitch: Some(pitch), affine }
        }
        Weight::Frequencies(rope) => rope_frequencies(model, &rope)?,
        Weight::Factors(factors) => {
            let runs = factors.iter().map(|(factor, columns)| vec![*factor; *columns as usize]);
            let values =
                if let [(factor, _)] = factors[..] { vec![factor] } else { runs.flatten().collect() };
            WeightContent::Generated(values.into())
        }
    })
}

/// Returns the RoPE frequencies, which do not depend on the length of a sequence.
fn rope_frequencies(model: &Model, rope: &Rope) -> Result<WeightContent, ModelError> {
    let factors = match rope.factors {
        RopeFactors::File => factors_of(model.weights(), ROPE_FACTORS)?,
        RopeFactors::None | RopeFactors::Proportional { .. } | RopeFactors::ByContext { .. } => None,
    };
    Ok(WeightContent::Generated(rope.frequencies(factors.as_deref()).into()))
}
