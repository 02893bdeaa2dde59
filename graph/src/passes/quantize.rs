//! Sets the activation type of each product. If all readers of a norm or gate take the same type, the norm or
//! gate writes that type directly. Otherwise the pass inserts one quantize node per type, which all readers
//! of that type share. The node is in the readers' segment: if they read the residual stream, only its f32 rows
//! cross a cut.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{Operator, Quantize, Rows};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::Activations;
use std::collections::BTreeMap;

/// Sets the activation type of every product. `form` selects the type from the operator and the row count.
pub(crate) fn quantize_activations(graph: &mut OperatorGraph, form: impl Fn(&Operator, Rows) -> Activations) {
    for source in graph.ordered() {
        let mut readers: BTreeMap<(Activations, usize), Vec<NodeIndex>> = BTreeMap::new();
        for (consumer, input) in graph.consumers(source) {
            let node = graph.node(consumer);
            // A rounded logit may choose another expert.
            let chooses = |(reader, _): &(NodeIndex, u8)| {
                matches!(graph.node(*reader).operator, Operator::ExpertRoute(_))
            };
            if input == 0 && !graph.consumers(consumer).iter().any(chooses) {
                let form = form(&node.operator, node.rows);
                readers.entry((form, node.segment)).or_default().push(consumer);
            }
        }
        readers.retain(|(form, _), _| *form != Activations::F32);
        for ((form, segment), readers) in readers {
            for &reader in &readers {
                let operator = &mut graph.node_mut(reader).operator;
                *operator.lower_mut().input_type().expect("products read several types") = form;
            }
            let all = readers.len() == graph.consumers(source).len();
            if !(all && writes(graph, source, form)) {
                insert(graph, source, form, segment, &readers);
            }
        }
    }
}

/// Changes the type of a node's output to `form` and returns true. Returns false if the operator cannot write
/// this type.
fn writes(graph: &mut OperatorGraph, source: NodeIndex, form: Activations) -> bool {
    let output = graph.node_mut(source).operator.lower_mut().output_type();
    output.map(|output| *output = form).is_some()
}

fn insert(
    graph: &mut OperatorGraph,
    source: NodeIndex,
    form: Activations,
    segment: usize,
    readers: &[NodeIndex],
) {
    let before = graph.node(source).clone();
    // Each type gets its own position, because several quantize nodes may follow one source.
    let order = (before.order.0, before.order.1 + 1 + form as u32);
    let operator = Quantize { output: form }.into();
    let quantize = graph.add(Node { operator, segment, order, ..before }, &[source]);
    for &reader in readers {
        graph.connect(quantize, reader, 0);
    }
}

#[cfg(test)]
mod tests {
    use crate::Model;
    use crate::graph::OperatorGraph;
    use crate::source::{Directory, MemorySource};
    use ragtag_kernels::{Activations, Kernel, TensorType};
    use std::sync::Arc;

    /// Returns the graph of a mixture of experts on a device that multiplies Q4_0 weights by f16 activations.
    fn lowered(has_experts: bool) -> OperatorGraph {
        let config = r#"{
            "architectures": ["MixtralForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40,
            "max_position_embeddings": 64, "num_experts_per_tok": 2, "num_local_experts": 4,
            "torch_dtype": "bfloat16"
        }"#;
        let mut directory = Directory::new("mixtral");
        let source = MemorySource::new("mixtral/config.json", config.as_bytes().to_vec());
        directory.insert("config.json", Arc::new(source));
        let model = Model::described(directory, Some(TensorType::Q4_0)).unwrap();
        let has =
            |kernel, _| has_experts && kernel == Kernel::ExpertMatMul(TensorType::Q4_0, Activations::F16);
        model.lowered(None, |_, _| Activations::F16, has)
    }

    /// Returns the operators from the last norm but one to the next, with the types that are f16.
    fn experts(graph: &OperatorGraph) -> Vec<String> {
        let text = |index| {
            let node = graph.node(index);
            let debug = format!("{:?}", node.operator);
            let is_f16 = ["activations: F16", "output: F16"].into_iter().find(|name| debug.contains(name));
            format!("{} {}", node.operator.name(), is_f16.unwrap_or_default()).trim_end().to_owned()
        };
        let all: Vec<String> = graph.ordered().into_iter().map(text).collect();
        let parts: Vec<_> = all.split_inclusive(|text| text.starts_with("rms-norm")).collect();
        parts[parts.len() - 2].to_vec()
    }

    #[test]
    fn experts_take_f16_from_gates_and_from_one_conversion() {
        let expected = [
            "quantize output: F16",
            "matmul",
            "expert-route",
            "expert-matmul activations: F16",
            "expert-matmul activations: F16",
            "silu-mul output: F16",
            "expert-matmul activations: F16",
            "expert-combine",
            "add",
            "gather",
        ];
        let with = experts(&lowered(true));
        assert_eq!(with[..expected.len()], expected);
        let without = experts(&lowered(false));
        assert!(without.contains(&"expert-route".into()), "{without:?}");
        assert!(without[..without.len() - 1].iter().all(|text| !text.contains("F16")), "{without:?}");
    }
}
