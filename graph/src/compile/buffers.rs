//! Weight buffers of a stage: their names, and the content of each.

use crate::arch::{LONG_FACTORS, ROPE_FACTORS, Rope, RopeFactors, SHORT_FACTORS, positive};
use crate::error::ModelError;
use crate::model::Model;
use crate::op::{Affine, Node, Operator, OperatorGraph};
use crate::program::{WeightBuffer, WeightContent, vector_values};
use crate::stack::{Stack, StackedMatrix};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::{Layout, TensorType};
use std::collections::BTreeSet;

/// Returns the weight buffers that `nodes` need, without duplicates. `kept` returns the resident layout
/// for a given weight type. `context` is the maximum length of a sequence.
pub(crate) fn weight_buffers(
    model: &Model,
    graph: &OperatorGraph,
    nodes: &[NodeIndex],
    context: u32,
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
            Operator::Embed { table } => matrix(&Stack::of(table))?,
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
            Operator::RopeAppend { rope, .. } => rope_frequencies(model, rope, context)?,
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
        | Operator::RmsNorm { .. }
        | Operator::MatMul { .. }
        | Operator::LayerNorm { .. }
        | Operator::Bias { .. }
        | Operator::HeadNorm { .. } => Some(operator.tensors().join(" + ")),
        Operator::RopeAppend { rope, .. } => Some(frequencies_name(rope)),
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

/// Returns the RoPE frequencies. `context` is the maximum length of a sequence, which may select the factors.
fn rope_frequencies(model: &Model, rope: &Rope, context: u32) -> Result<WeightContent, ModelError> {
    let rope = &rope.for_context(context);
    let name = match rope.factors {
        RopeFactors::None => None,
        RopeFactors::File => Some(ROPE_FACTORS),
        RopeFactors::ByContext { original_context } => {
            let is_long = context > original_context;
            if let Some([short, long]) = &model.hyperparameters().extras.rope_factors {
                let factors = if is_long { long } else { short };
                return Ok(WeightContent::Generated(rope.frequencies(Some(factors)).into()));
            }
            Some(if is_long { LONG_FACTORS } else { SHORT_FACTORS })
        }
    };
    let tensor = name.map(|name| model.weights().required(name)).transpose()?;
    // Models without data are used only for planning, which needs sizes but no values.
    let tensor = tensor.filter(|tensor| model.weights().holds(tensor));
    let factors = tensor.map(|tensor| {
        let factors = vector_values(tensor, model.weights())?;
        factors.into_iter().map(|factor| positive(&tensor.name, factor)).collect::<Result<Vec<f32>, _>>()
    });
    Ok(WeightContent::Generated(rope.frequencies(factors.transpose()?.as_deref()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::RopeScaling;
    use crate::test_models;

    fn frequencies(model: &Model, context: u32) -> Vec<f32> {
        match rope_frequencies(model, &model.hyperparameters().rope, context).unwrap() {
            WeightContent::Generated(values) => values.to_vec(),
            _ => panic!("the frequencies are generated"),
        }
    }

    /// Checks that contexts up to the original length use the short factors, and longer contexts the long
    /// factors.
    #[test]
    fn the_context_selects_the_factors_of_longrope() {
        for model in test_models::phi3() {
            let rope = model.hyperparameters().rope;
            let of = |factors: [f32; 4]| rope.frequencies(Some(&factors));
            let (short, long) = (of([1.0, 1.1, 1.2, 1.5]), of([1.0, 2.0, 5.0, 9.0]));
            assert_eq!([1, 32].map(|context| frequencies(&model, context)), [short.clone(), short]);
            assert_eq!([33, 512].map(|context| frequencies(&model, context)), [long.clone(), long]);
        }
    }

    /// Checks that a requested scaling replaces factors of the model, whose tensors then have no effect.
    #[test]
    fn a_requested_scaling_replaces_factors() {
        for model in test_models::phi3() {
            let model = model.with_rope_scaling(RopeScaling::Linear(4.0)).unwrap();
            assert_eq!(model.hyperparameters().context, 128);
            let wanted = [0, 1, 2, 3].map(|pair| 10_000f64.powf(-f64::from(pair) / 4.0) / 4.0);
            for (found, wanted) in frequencies(&model, 512).into_iter().zip(wanted) {
                assert!((f64::from(found) / wanted - 1.0).abs() < 1e-6, "{found} for {wanted}");
            }
            assert_eq!(model.hyperparameters().rope.magnitude, 1.0);
        }
    }
}
