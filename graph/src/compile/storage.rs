//! Assigns a place to every tensor of a stage. Residual rows are in the slot's activation buffer, logits in the
//! logits buffer, and the best logits in a buffer of their own. All other tensors are in scratch, where tensors that are not live at the same time
//! share bytes.

use crate::graph::{Node, OperatorGraph};
use crate::ops::{Operator, Output, Rows};
use crate::program::StageBuffer;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::params::ParamsShape;
use std::collections::BTreeMap;

/// Alignment of scratch tensors in bytes. It suffices for SIMD loads and for the binding offsets of every
/// API. NVIDIA's OpenCL has the strictest requirement.
const ALIGNMENT_BYTES: u64 = 512;

/// Place of each node's output, including the offset of its first byte in the buffer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    places: BTreeMap<NodeIndex, (StageBuffer, u64)>,
    pub(super) scratch_bytes: u64,
}

struct Live {
    offset: u64,
    bytes: u64,
    /// Position of the tensor's last reader in program order.
    until: usize,
}

impl Storage {
    /// Assigns the places of `nodes`, which are all nodes of some segments in program order.
    pub(super) fn plan(graph: &OperatorGraph, nodes: &[NodeIndex], params: &ParamsShape) -> Self {
        let position: BTreeMap<_, _> = nodes.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        let mut storage = Self { places: BTreeMap::new(), scratch_bytes: 0 };
        let mut live: Vec<Live> = Vec::new();
        for (now, &node) in nodes.iter().enumerate() {
            for input in graph.inputs(node) {
                // The output of an earlier stage is in the slot's activation buffer.
                storage.places.entry(input).or_insert_with(|| {
                    let Node { segment, rows, .. } = graph.node(input);
                    assert!(
                        *segment < graph.node(nodes[0]).segment && *rows == Rows::Tokens,
                        "{:?} reads what no stage sends: {:?}",
                        graph.node(node),
                        graph.node(input)
                    );
                    (StageBuffer::Activation, 0)
                });
            }
            let (place, offset) = match overwritten_input(graph, node) {
                Some(input) => {
                    check_last_reader(graph, input, node);
                    storage.places[&input]
                }
                None if leaves_segment(graph, node) => (StageBuffer::Activation, 0),
                None if is_logits(graph, node) => (StageBuffer::Logits, 0),
                None if graph.consumers(node).is_empty() => {
                    let Node { operator, rows, .. } = graph.node(node);
                    assert_eq!(*rows, Rows::Logits, "no node reads the output of {}", operator.name());
                    (StageBuffer::Picks, 0)
                }
                None => {
                    live.retain(|l| l.until >= now);
                    let bytes = output_bytes(graph.node(node), params).next_multiple_of(ALIGNMENT_BYTES);
                    let until = last_reader(graph, node, &position);
                    let offset = first_fit(&mut live, bytes, until);
                    storage.scratch_bytes = storage.scratch_bytes.max(offset + bytes);
                    (StageBuffer::Scratch, offset)
                }
            };
            storage.places.insert(node, (place, offset));
        }
        storage
    }

    /// Returns the place of a node's output, and the offset of its first byte.
    pub(super) fn of(&self, node: NodeIndex) -> (StageBuffer, u64) {
        self.places[&node]
    }
}

/// Returns whether the output of `node` is the residual stream, which a later segment reads.
fn leaves_segment(graph: &OperatorGraph, node: NodeIndex) -> bool {
    graph.consumers(node).iter().any(|(reader, _)| graph.node(*reader).segment != graph.node(node).segment)
}

/// Returns whether the output of `node` is the logits or the hidden rows, which the host may read.
fn is_logits(graph: &OperatorGraph, node: NodeIndex) -> bool {
    let is_peaks = |reader: NodeIndex| matches!(graph.node(reader).operator, Operator::Peaks(_));
    graph.consumers(node).into_iter().any(|(reader, _)| is_peaks(reader))
}

/// Returns the input whose bytes the output of `node` reuses, if any.
fn overwritten_input(graph: &OperatorGraph, node: NodeIndex) -> Option<NodeIndex> {
    graph.input(node, graph.node(node).operator.lower().overwrites()?)
}

/// Checks that no node reads `input` after `writer` has overwritten it.
fn check_last_reader(graph: &OperatorGraph, input: NodeIndex, writer: NodeIndex) {
    let Node { order, operator, .. } = graph.node(writer);
    let late = graph.consumers(input).into_iter().map(|(n, _)| graph.node(n)).find(|n| n.order > *order);
    assert!(late.is_none(), "{late:?} reads the input of {} after it was overwritten", operator.name());
}

/// Returns the position in program order after which a node's bytes are free. This is the position of the
/// last node that reads these bytes, either as the output of `node` or as the output of a node that reuses
/// them.
fn last_reader(graph: &OperatorGraph, node: NodeIndex, position: &BTreeMap<NodeIndex, usize>) -> usize {
    let readers = graph.consumers(node).into_iter().map(|(reader, _)| {
        let here = position.get(&reader);
        let here = *here.unwrap_or_else(|| panic!("{:?} reads another stage's scratch", graph.node(reader)));
        match overwritten_input(graph, reader) {
            Some(input) if input == node => last_reader(graph, reader, position).max(here),
            _ => here,
        }
    });
    readers.max().unwrap_or_else(|| position[&node])
}

/// Allocates `bytes` bytes in the lowest sufficiently large gap between live tensors, and returns the offset.
fn first_fit(live: &mut Vec<Live>, bytes: u64, until: usize) -> u64 {
    let mut offset = 0;
    let mut at = 0;
    for (i, tensor) in live.iter().enumerate() {
        if tensor.offset >= offset + bytes {
            break;
        }
        offset = offset.max(tensor.offset + tensor.bytes);
        at = i + 1;
    }
    live.insert(at, Live { offset, bytes, until });
    offset
}

/// Returns the size in bytes of a node's output for the bucket that `params` describes.
pub(crate) fn output_bytes(node: &Node, params: &ParamsShape) -> u64 {
    match node.operator.lower().output() {
        Output::Rows(form) => {
            u64::from(capacity(node.rows, params)) * form.row_bytes(node.width as usize) as u64
        }
        Output::Matrix { rows } => ragtag_kernels::widen::out_bytes(rows, node.width),
    }
}

/// Returns the maximum number of rows that `rows` stands for in the bucket that `params` describes.
pub(super) fn capacity(rows: Rows, params: &ParamsShape) -> u32 {
    match rows {
        Rows::Tokens => params.rows,
        Rows::Logits => params.logit_rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Add, Embed, Gather, Heads, Operator, SiluMul};
    use crate::passes::{SplitRows, Splits};
    use crate::{Granularity, Model, test_models};
    use proptest::prelude::*;
    use ragtag_kernels::Activations;
    use ragtag_kernels::silu_mul::Gate;
    use std::ops::Range;

    fn forms() -> Vec<(Activations, Option<Splits<'static>>)> {
        let seven: &dyn Fn(Heads, SplitRows) -> u32 = &|_, _| 7;
        let splits = [None, Some(SplitRows::All), Some(SplitRows::Decode)];
        let splits = splits.map(|rows| Some(Splits { rows, count: seven, shares: false }));
        Activations::ALL.into_iter().flat_map(|a| splits.map(|splits| (a, splits))).collect()
    }

    /// Simulates a program and tracks which node wrote each byte of scratch. Checks that every node reads
    /// only bytes that its inputs wrote. Returns the size of scratch in bytes.
    fn check_owners(
        model: &Model,
        (activations, splits): (Activations, Option<Splits<'_>>),
        segments: Range<usize>,
        rows: u32,
    ) -> u64 {
        let graph = model.lowered(splits, |t, _| crate::model::basic_form(t, activations), |_, _| false);
        let params = ParamsShape { rows, logit_rows: rows, sequences: rows, table_blocks: 4 };
        let storage = Storage::plan(&graph, &graph.within(&segments), &params);
        // The owners are byte ranges of scratch, each paired with the node whose value it holds.
        let mut owners: Vec<(Range<u64>, NodeIndex)> = Vec::new();
        for node in graph.within(&segments) {
            for input in graph.inputs(node) {
                let (place, offset) = storage.of(input);
                if place == StageBuffer::Scratch {
                    let range = offset..offset + output_bytes(graph.node(input), &params);
                    let owner =
                        owners.iter().find(|(held, _)| held.start < range.end && range.start < held.end);
                    assert_eq!(owner, Some(&(range, input)), "{:?} reads lost bytes", graph.node(node));
                }
            }
            let (place, offset) = storage.of(node);
            if place == StageBuffer::Scratch {
                let range = offset..offset + output_bytes(graph.node(node), &params);
                assert!(range.end <= storage.scratch_bytes);
                owners.retain(|(held, _)| !(held.start < range.end && range.start < held.end));
                owners.push((range, node));
            }
        }
        storage.scratch_bytes
    }

    /// Returns each test model at half-block granularity and at block granularity.
    fn models() -> Vec<Model> {
        test_models::all().flat_map(|m| [m.with_granularity(Granularity::HalfBlock), m]).collect()
    }

    #[test]
    fn live_tensors_never_share_bytes() {
        for model in models() {
            let count = model.segment_count();
            for form in forms() {
                for rows in [1, 3, 64] {
                    let all = check_owners(&model, form, 0..count, rows);
                    let largest =
                        (0..count).map(|s| check_owners(&model, form, s..s + 1, rows)).max().unwrap();
                    assert_eq!(all, largest, "a stage needs the scratch of its largest segment");
                }
            }
        }
    }

    #[test]
    fn only_residual_rows_cross_between_segments() {
        for model in models() {
            for (activations, splits) in forms() {
                let graph =
                    model.lowered(splits, |t, _| crate::model::basic_form(t, activations), |_, _| false);
                let params = ParamsShape { rows: 3, logit_rows: 3, sequences: 3, table_blocks: 4 };
                let storage = Storage::plan(&graph, &graph.ordered(), &params);
                let segment = |node| graph.node(node).segment;
                let mut crossed = vec![false; model.segment_count()];
                for node in graph.ordered() {
                    for (reader, _) in graph.consumers(node) {
                        if segment(reader) != segment(node) {
                            assert_eq!(segment(reader), segment(node) + 1, "{:?}", graph.node(node));
                            assert_eq!(
                                storage.of(node),
                                (StageBuffer::Activation, 0),
                                "{:?}",
                                graph.node(node)
                            );
                            crossed[segment(node)] = true;
                        }
                    }
                }
                assert_eq!(crossed.iter().filter(|crossed| **crossed).count(), crossed.len() - 1);
            }
        }
    }

    /// Plans a graph whose last node reads either a sum, or the tensor that the sum overwrites.
    fn plan_sum(late: bool) -> Storage {
        let mut graph = OperatorGraph::default();
        let mut order = 0;
        let mut add = |operator: Operator, rows, inputs: &[NodeIndex]| {
            order += 1;
            let segment = usize::from(order > 1);
            graph.add(Node { operator, segment, rows, width: 64, order: (order, 0) }, inputs)
        };
        let x = add(Embed { table: "table".into() }.into(), Rows::Tokens, &[]);
        let gate = SiluMul { function: Gate::Silu, output: Activations::F32 };
        let y = add(gate.into(), Rows::Tokens, &[x]);
        let sum = add(Add.into(), Rows::Tokens, &[x, y]);
        add(Gather.into(), Rows::Logits, &[if late { x } else { sum }]);
        Storage::plan(
            &graph,
            &graph.ordered(),
            &ParamsShape { rows: 3, logit_rows: 3, sequences: 3, table_blocks: 4 },
        )
    }

    #[test]
    fn a_sum_takes_the_place_of_its_first_input() {
        assert_eq!(plan_sum(false).scratch_bytes, 1024);
    }

    #[test]
    #[should_panic(expected = "reads the input of add after it was overwritten")]
    fn rejects_reads_after_overwrite() {
        plan_sum(true);
    }

    /// Finds, by brute force, the lowest offset at which an allocation of `bytes` bytes overlaps no live
    /// tensor.
    fn lowest_gap(live: &[Live], bytes: u64) -> u64 {
        let fits =
            |start: &u64| live.iter().all(|l| l.offset + l.bytes <= *start || *start + bytes <= l.offset);
        let starts = live.iter().map(|l| l.offset + l.bytes);
        starts.chain([0]).filter(fits).min().unwrap()
    }

    #[test]
    fn skips_a_gap_that_is_512_bytes_short() {
        let taken = |offset, bytes| Live { offset, bytes, until: 9 };
        // The gap is from byte 512 to byte 1536.
        for (bytes, offset) in [(512, 512), (1024, 512), (1536, 2048)] {
            let mut live = vec![taken(0, 512), taken(1536, 512)];
            assert_eq!(first_fit(&mut live, bytes, 9), offset, "{bytes} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Checks that each allocation takes the lowest gap that is large enough. If all sizes are equal, the
        /// total size must be that of the largest set of tensors that are live at the same time.
        #[test]
        fn first_fit_takes_the_lowest_gap_that_is_large_enough(
            sizes_and_lives in proptest::collection::vec((1u64..9, 0usize..12), 1..64),
            equal in any::<bool>(),
        ) {
            let (mut live, mut peak, mut total): (Vec<Live>, u64, u64) = (Vec::new(), 0, 0);
            for (now, (blocks, lives)) in sizes_and_lives.into_iter().enumerate() {
                live.retain(|l| l.until >= now);
                let bytes = ALIGNMENT_BYTES * if equal { 1 } else { blocks };
                let expected = lowest_gap(&live, bytes);
                let offset = first_fit(&mut live, bytes, now + lives);
                prop_assert_eq!(offset, expected);
                total = total.max(offset + bytes);
                peak = peak.max(live.iter().map(|l| l.bytes).sum());
            }
            prop_assert!(!equal || total == peak, "{} bytes for {} live ones", total, peak);
        }
    }
}
