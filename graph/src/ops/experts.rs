//! Mixtures of experts. A node has one row per token, in which the results of the chosen experts are side by side.

use super::lower::{Call, Cost, Lower, Part, Shape, Site, Work};
use super::weight::{Affine, Weight};
use crate::segment::ExpertReads;
use crate::stack::{Stack, StackedMatrix};
use ragtag_kernels::experts::gate::Rule;
use ragtag_kernels::experts::route::Choice;
use ragtag_kernels::{Activations, Kernel, Layout};

/// Choice of experts from the router's logits. A row of the output has the ids of the experts, then their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRoute {
    /// Rule of the choice.
    pub choice: Choice,
    /// Name of the tensor with the biases, if the rule has biases.
    pub biases: Option<String>,
}

impl Lower for ExpertRoute {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: 2 * self.choice.used, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        biases(self.biases.as_slice())
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = [&[site.x().width][..], &self.choice.constants()].concat();
        let mut call = site.row_call(Kernel::ExpertRoute, &constants);
        if self.biases.is_none() {
            // The kernel reads nothing from this binding.
            call.arguments.insert(2, site.x().argument);
        }
        vec![call]
    }
}

/// Products of rows of the first input and the weights of the experts that the second input chose. The third input, if
/// any, provides the columns of the output that another product wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertMatMul {
    /// Weights of all experts.
    pub weights: Stack,
    /// Type of the first input.
    pub activations: Activations,
    /// Number of experts.
    pub count: u32,
    /// Number of experts per row.
    pub used: u32,
    /// Number of weight rows per expert.
    pub rows: u32,
    /// Number of weight rows whose results are side by side, for each expert of a row.
    pub piece: u32,
    /// First column that the products write.
    pub column: u32,
}

impl Lower for ExpertMatMul {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1], &[0, 1, 2]]
    }

    fn shape(&self, _: Shape) -> Option<Shape> {
        None
    }

    fn input_type(&mut self) -> Option<&mut Activations> {
        Some(&mut self.activations)
    }

    fn overwrites(&self) -> Option<u8> {
        Some(2)
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Matrix(self.weights.clone())]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let matrix = StackedMatrix::new(work.weights, &self.weights, |_| Layout::Rows16).expect("a layout");
        let (resident, columns) = (matrix.resident(), matrix.resident().columns() as u64);
        let flops = work.rows * 2 * u64::from(self.used) * u64::from(self.rows) * columns;
        let experts = ExpertReads { bytes: resident.bytes(), count: self.count, used: self.used };
        Cost { flops, experts: Some(experts), ..Cost::default() }
    }

    /// Returns one launch per part of the weights. An expert may have rows in several parts.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let (x, route) = (site.x(), site.inputs[1].expect("a route"));
        let call = |part: &Part| {
            let slots = x.width / part.columns;
            let arguments =
                vec![site.params, part.argument, x.argument, route.argument, site.output.argument];
            let counts = [site.rows, site.count, part.rows, part.columns, part.first_row];
            let sizes = [self.rows, self.piece, self.used, slots, self.column, site.output.width];
            // The route is not fixed, and the values of x follow each other without gaps.
            let constants = [&counts[..], &sizes, &[0, part.columns, 0, 0]].concat();
            Call { kernel: Kernel::ExpertMatMul(part.tensor_type, self.activations), arguments, constants }
        };
        site.weights[0].iter().map(call).collect()
    }
}

/// Returns the weights of an operator with the tensors `names`, if there are any.
fn biases(names: &[String]) -> Vec<Weight> {
    let vector = || Weight::Vector { tensors: names.to_vec(), affine: Affine::IDENTITY };
    if names.is_empty() { Vec::new() } else { vec![vector()] }
}

/// A gated function of the results of each row's experts. The second input chose the experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGate {
    /// The function.
    pub rule: Rule,
    /// Number of experts.
    pub count: u32,
    /// Number of experts per row.
    pub used: u32,
    /// Names of the tensors with the biases of the gates and of the up projections, if there are any.
    pub biases: Vec<String>,
}

impl Lower for ExpertGate {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn shape(&self, x: Shape) -> Option<Shape> {
        assert!(x.width.is_multiple_of(2 * self.used), "{} columns of {} experts", x.width, self.used);
        Some(Shape { width: x.width / 2, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        biases(&self.biases)
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(8, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let count = if self.biases.is_empty() { 0 } else { self.count };
        let sizes = [site.output.width / self.used, self.used, count];
        let constants = [&sizes[..], &self.rule.constants()].concat();
        vec![biased_call(site, Kernel::ExpertGate, &constants)]
    }
}

/// Returns a launch of a kernel that reads a route after the first input, and then biases if the operator has them.
fn biased_call(site: &Site, kernel: Kernel, constants: &[u32]) -> Call {
    let mut call = site.row_call(kernel, constants);
    call.arguments.insert(2, site.inputs[1].expect("a route").argument);
    if site.weights.is_empty() {
        // The kernel reads nothing from this binding.
        call.arguments.insert(3, site.x().argument);
    }
    call
}

/// Weighted sum of the results of each row's experts. The second input chose the experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertCombine {
    /// Number of experts.
    pub count: u32,
    /// Number of experts per row.
    pub used: u32,
    /// Name of the tensor with the biases of the results, if there are any.
    pub biases: Option<String>,
}

impl Lower for ExpertCombine {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn shape(&self, x: Shape) -> Option<Shape> {
        assert!(x.width.is_multiple_of(self.used), "{} columns of {} experts", x.width, self.used);
        Some(Shape { width: x.width / self.used, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        biases(self.biases.as_slice())
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(2 * u64::from(self.used), 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let count = if self.biases.is_none() { 0 } else { self.count };
        vec![biased_call(site, Kernel::ExpertCombine, &[site.output.width, self.used, count])]
    }
}
