//! Weight buffers of a stage: their names, and the content of each.

use crate::arch::{ROPE_FACTORS, Rope, RopeFactors};
use crate::error::ModelError;
use crate::model::Model;
use crate::op::{Affine, Node, Operator, OperatorGraph};
use crate::program::{WeightBuffer, WeightContent};
use crate::rope_lengths::factors_of;
use crate::stack::{Stack, StackedMatrix};
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
    let matrix = |stack: &Stack| {
        Ok::<_, ModelError>(WeightContent::Matrix(StackedMatrix::new(model.weights(), stack, &kept)?))
    };
    let mut buffers: Vec<WeightBuffer> = Vec::new();
    let mut seen = BTreeSet::new();
    for &index in nodes {
        let Node { operator, segment, .. } = graph.node(index);
        let Some(name) = weight_name(operator).filter(|name| seen.insert(name.clone())) else { continue };
        let content = match operator {
            Operator::Embed { table } | Operator::Lookup { table } => matrix(&Stack::of(table))?,
            Operator::MatMul { weights, .. } => matrix(weights)?,
            Operator::RmsNorm { .. }
            | Operator::LayerNorm { .. }
            | Operator::Bias { .. }
            | Operator::HeadNorm { .. } => {
                let tensors = operator.tensors().to_vec();
                let lengths = tensors.iter().map(|name| Ok(model.weights().required(name)?.values()));
                let mut values = lengths.sum::<Result<_, ModelError>>()?;
                let mut pitch = None;
                let affine = match operator {
                    Operator::RmsNorm { affine, .. } => *affine,
                    Operator::HeadNorm { offset, .. } => Affine { offset: *offset, ..Affine::IDENTITY },
                    Operator::LayerNorm { affine, .. } => {
                        let width = model.weights().required(&tensors[0])?.columns();
                        pitch = Some(layer_norm_pitch(width));
                        values = layer_norm_pitch(width) + width;
                        *affine
                    }
                    _ => Affine::IDENTITY,
                };
                WeightContent::Vector { tensors, values, pitch, affine }
            }
            Operator::RopeAppend { rope, .. } => rope_frequencies(model, rope)?,
            Operator::Scale { factors } => {
                let runs = factors.iter().map(|(factor, columns)| vec![*factor; *columns as usize]);
                let values =
                    if let [(factor, _)] = factors[..] { vec![factor] } else { runs.flatten().collect() };
                WeightContent::Generated(values.into())
            }
            _ => continue,
        };
        buffers.push(WeightBuffer { name, content, segment: *segment });
    }
    Ok(buffers)
}

/// Returns the name of the weight buffer that an operator reads, if any.
pub(super) fn weight_name(operator: &Operator) -> Option<String> {
    match operator {
        Operator::Embed { .. }
        | Operator::Lookup { .. }
        | Operator::RmsNorm { .. }
        | Operator::MatMul { .. }
        | Operator::LayerNorm { .. }
        | Operator::Bias { .. }
        | Operator::HeadNorm { .. } => Some(operator.tensors().join(" + ")),
        Operator::RopeAppend { rope, .. } => (!rope.depends_on_length()).then(|| frequencies_name(rope)),
        Operator::Scale { factors } => Some(factors_name(factors)),
        _ => None,
    }
}

/// Returns the distance in values between the weights and the biases of a layer norm in their buffer. It
/// aligns the biases to 512 bytes, as NVIDIA's OpenCL requires.
pub(super) fn layer_norm_pitch(width: u64) -> u64 {
    width.next_multiple_of(128)
}

/// Returns the name of the generated buffer that holds the factor of each run of columns.
fn factors_name(factors: &[(f32, u32)]) -> String {
    if let [(factor, _)] = factors {
        return format!("factor {factor}");
    }
    let runs: Vec<_> = factors.iter().map(|(factor, columns)| format!("{factor} × {columns}")).collect();
    format!("factors {}", runs.join(", "))
}

/// Returns the name of the generated buffer that holds the RoPE frequencies.
pub(super) fn frequencies_name(rope: &Rope) -> String {
    format!("rotary frequencies: {rope}")
}

/// Returns the RoPE frequencies, which do not depend on the length of a sequence.
fn rope_frequencies(model: &Model, rope: &Rope) -> Result<WeightContent, ModelError> {
    let factors = match rope.factors {
        RopeFactors::File => factors_of(model.weights(), ROPE_FACTORS)?,
        RopeFactors::None | RopeFactors::ByContext { .. } => None,
    };
    Ok(WeightContent::Generated(rope.frequencies(factors.as_deref()).into()))
}
