//! Recurrent layers: a causal convolution and a scan with states of fixed size, and the gated forms around them.

use super::kv::{Heads, StateUse};
use super::lower::{Call, Cost, Lower, Shape, Site, Work};
use super::weight::{Affine, Weight};
use ragtag_kernels::Kernel;
use ragtag_kernels::recurrent::NONE;
use ragtag_kernels::recurrent::conv::Mode;
use ragtag_kernels::recurrent::gated_norm::{Function, Order};
use ragtag_kernels::recurrent::scan::DELTA;
use serde::Serialize;

/// Causal convolution of columns of the input with the rows before it.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConv {
    /// Layer that owns the state.
    pub layer: u32,
    /// Names of the tensors with the weights and with the biases, if there are any.
    pub weights: Vec<String>,
    /// Whether the last of these tensors has biases.
    pub is_biased: bool,
    /// Number of taps.
    pub taps: u32,
    /// Number of columns of the output.
    pub columns: u32,
    /// First column of the input.
    pub first: u32,
    /// First columns of the factors before and after the convolution, if there are factors.
    pub factors: Option<[u32; 2]>,
    /// Whether SiLU follows the sum.
    pub silu: bool,
}

impl Lower for CausalConv {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: self.columns, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: self.weights.clone(), affine: Affine::IDENTITY }]
    }

    fn state(&self) -> Option<StateUse> {
        Some(StateUse { layer: self.layer, part: 0, values: (self.taps - 1) * self.columns })
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        // The few bytes of the weights do not count.
        work.columns(2 * u64::from(self.taps), 0)
    }

    /// Returns one launch for a single row. Otherwise, a second launch replaces the states, which the groups of other rows
    /// read in the first one.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let (x, state) = (site.x(), site.state());
        let [before, after] = self.factors.unwrap_or([NONE; 2]);
        let call = |mode: Mode| {
            let sizes = [self.columns, x.width, self.first, before, after, self.taps];
            let flags = [u32::from(self.silu), u32::from(self.is_biased), state.slots, mode as u32];
            let arguments =
                vec![site.params, x.argument, site.weight(0), state.argument, site.output.argument];
            let constants = [&site.capacities()[..], &sizes, &flags].concat();
            Call { kernel: Kernel::CausalConv, arguments, constants }
        };
        let modes: &[Mode] = if site.rows == 1 { &[Mode::Both] } else { &[Mode::Rows, Mode::States] };
        modes.iter().map(|mode| call(*mode)).collect()
    }
}

/// Heads of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScanHeads {
    /// Number of heads.
    pub count: u32,
    /// Number of heads of keys and queries.
    pub keys: u32,
    /// Values per key.
    pub key_dimension: u32,
    /// Values per head of the output.
    pub value_dimension: u32,
}

impl ScanHeads {
    /// Returns the number of values of all keys.
    pub(crate) fn key_width(&self) -> u32 {
        self.keys * self.key_dimension
    }

    /// Returns the number of columns of the output.
    pub(crate) fn width(&self) -> u32 {
        self.count * self.value_dimension
    }
}

/// Linear recurrence over the rows of each sequence. The second input holds the gates.
#[derive(Clone, Debug, PartialEq)]
pub struct StateScan {
    /// Layer that owns the state.
    pub layer: u32,
    /// Heads.
    pub heads: ScanHeads,
    /// First columns of queries, keys and values in the first input.
    pub columns: [u32; 3],
    /// First columns of the gates of the decay and of the strength in the second input, and the distance between the gates
    /// of the heads of two key heads.
    pub gates: [u32; 3],
    /// Flags of [`ragtag_kernels::recurrent::scan`].
    pub flags: u32,
    /// Names of the tensors with the decays, their biases and, without the delta rule, the direct factors.
    pub weights: Vec<String>,
}

impl Lower for StateScan {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: self.heads.width(), ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: self.weights.clone(), affine: Affine::IDENTITY }]
    }

    fn state(&self) -> Option<StateUse> {
        Some(StateUse { layer: self.layer, part: 1, values: self.heads.width() * self.heads.key_dimension })
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let of_state = if self.flags & DELTA > 0 { 8 } else { 6 };
        let flops = work.rows * of_state * work.width * u64::from(self.heads.key_dimension);
        let read_bytes = 4 * self.weights.len() as u64 * u64::from(self.heads.count);
        Cost { flops, read_bytes, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (x, state) = (site.x(), site.state());
        let gates = site.inputs[1].expect("gates");
        let ScanHeads { count, keys, key_dimension, value_dimension } = self.heads;
        let heads = [count, keys, key_dimension, value_dimension, x.width];
        let [decay, strength, stride] = self.gates;
        let of_gates = [gates.width, decay, strength, stride, self.flags, state.slots];
        let weights = site.weight(0);
        let arguments =
            vec![site.params, x.argument, gates.argument, weights, state.argument, site.output.argument];
        let constants = [&site.capacities()[..], &heads, &self.columns, &of_gates].concat();
        vec![Call { kernel: Kernel::StateScan, arguments, constants }]
    }
}

/// Product of the first input and a function of columns of the second one, with an RMS norm of groups of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNorm {
    /// Number of groups.
    pub groups: u32,
    /// Name of the tensor with the weights of the norm, and their number. `None` without a norm.
    pub norm: Option<(String, u32)>,
    /// Constant that is added to the mean square.
    pub epsilon: f32,
    /// Whether the norm follows the gate.
    pub gates_first: bool,
    /// First gate, and distance between the gates of two groups.
    pub gates: [u32; 2],
    /// Function of the gates.
    pub function: Function,
}

impl Lower for GatedNorm {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn weights(&self) -> Vec<Weight> {
        let vector = |(name, _): &(String, u32)| Weight::Vector {
            tensors: vec![name.clone()],
            affine: Affine::IDENTITY,
        };
        self.norm.iter().map(vector).collect()
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let weights = self.norm.as_ref().map_or(0, |(_, count)| u64::from(*count));
        Cost { flops: work.rows * 8 * work.width, read_bytes: 4 * weights, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let gates = site.inputs[1].expect("gates");
        let width = site.output.width / self.groups;
        let order = match self.norm {
            None => Order::NoNorm,
            Some(_) if self.gates_first => Order::GateFirst,
            Some(_) => Order::NormFirst,
        };
        let count = self.norm.as_ref().map_or(width, |(_, count)| *count);
        let sizes = [self.groups, width, count, gates.width, self.gates[0], self.gates[1]];
        let kinds = [self.epsilon.to_bits(), order as u32, self.function as u32];
        let mut call = site.row_call(Kernel::GatedNorm, &[&sizes[..], &kinds].concat());
        call.arguments.insert(2, gates.argument);
        if self.norm.is_none() {
            // The kernel reads nothing from this binding.
            call.arguments.insert(3, site.x().argument);
        }
        vec![call]
    }
}

/// Queries, keys and values, from rows in which each query head is followed by its gate. Normalises queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedHeads {
    /// Heads of the output.
    pub heads: Heads,
    /// Names of the norm weights of the queries and of the keys.
    pub weights: [String; 2],
    /// Constant that is added to the mean square.
    pub epsilon: f32,
    /// Number that is added to the weights.
    pub offset: f32,
}

impl Lower for GatedHeads {
    fn shape(&self, x: Shape) -> Option<Shape> {
        let width = self.heads.query_width() + 2 * self.heads.kv_width();
        Some(Shape { width, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        let affine = Affine { offset: self.offset, ..Affine::IDENTITY };
        vec![Weight::Vector { tensors: self.weights.to_vec(), affine }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let read_bytes = 8 * u64::from(self.heads.dimensions);
        Cost { flops: work.rows * 4 * work.width, read_bytes, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let Heads { queries, kv, dimensions } = self.heads;
        vec![site.row_call(Kernel::GatedHeads, &[queries, kv, dimensions, self.epsilon.to_bits()])]
    }
}
