//! Builds operator graphs. Each call adds a node, infers the shape of its output, and checks the shapes of
//! its weights.

use crate::arch::rope::Rope;
use crate::arch::{Extras, Growth, Latent, layer_of};
use crate::error::ModelError;
use crate::graph::{Node, OperatorGraph};
use crate::ops::{
    Add, Affine, Attention, Bias, CausalConv, Embed, ExpertCombine, ExpertGate, ExpertMatMul, ExpertRoute,
    GatedHeads, GatedNorm, Gather, HeadMatMul, HeadNorm, Heads, LatentRows, LayerNorm, Lookup, MatMul,
    Operator, Peaks, Picks, QueryGrowth, RmsNorm, RopeAppend, Rows, Scale, ScaleBy, ScaleRows, ScanHeads,
    Scores, Shape, SiluMul, StateScan, Unary, Xielu,
};
use crate::stack::Stack;
use crate::weights::{TensorInfo, Weights};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::experts::gate::Rule;
use ragtag_kernels::experts::route::Choice;
use ragtag_kernels::head_norm::Form;
use ragtag_kernels::recurrent::gated_norm::Function as GateFunction;
use ragtag_kernels::recurrent::scan::{DELTA, LOGARITHM, VECTOR};
use ragtag_kernels::silu_mul::Gate;
use ragtag_kernels::unary::Function;
use ragtag_kernels::{Activations, TensorType, matmul};
use std::collections::BTreeSet;

/// Alignment, in columns, of the output of each product in a tensor that holds several outputs side by side.
/// With this alignment, every API can bind each output separately. NVIDIA's OpenCL has the strictest
/// requirement: 512 bytes.
const JOINT_COLUMNS: u32 = 128;

/// Source of the tensor descriptions that the builder uses.
enum Tensors<'a> {
    /// The model's files, in which each tensor must have the expected shape.
    Weights(&'a Weights),
    /// No files. The builder itself creates the description of each expected tensor, with the type `matrices`
    /// or `vectors`.
    Described { matrices: TensorType, vectors: TensorType, found: Vec<TensorInfo> },
}

/// A causal convolution of columns.
pub(crate) struct Conv {
    /// Names of the tensors with the weights, one after the other. They have as many columns each.
    pub(crate) weights: Vec<String>,
    /// Name of the biases, if there are any.
    pub(crate) bias: Option<String>,
    pub(crate) taps: u32,
    pub(crate) columns: u32,
    /// First column of the input.
    pub(crate) first: u32,
    pub(crate) silu: bool,
}

/// A norm of groups of columns with gates.
pub(crate) struct GatedBy {
    pub(crate) groups: u32,
    /// Whether the norm follows the gate.
    pub(crate) gates_first: bool,
    /// Column of the first gate.
    pub(crate) first: u32,
    /// Function of the gates.
    pub(crate) function: GateFunction,
}

/// An operator graph under construction.
pub(crate) struct Builder<'a> {
    tensors: Tensors<'a>,
    graph: OperatorGraph,
    used: BTreeSet<String>,
    segment: usize,
    order: u32,
    /// First layer whose tensors no node needs to read.
    skipped: Option<u32>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Self {
        Self::with(Tensors::Weights(weights))
    }

    /// Creates a builder that describes the tensors of a model without files.
    pub(crate) fn describing(matrices: TensorType, vectors: TensorType) -> Self {
        Self::with(Tensors::Described { matrices, vectors, found: Vec::new() })
    }

    fn with(tensors: Tensors<'a>) -> Self {
        Self {
            tensors,
            graph: OperatorGraph::default(),
            used: BTreeSet::new(),
            segment: 0,
            order: 0,
            skipped: None,
        }
    }

    /// Starts the next segment at half-block granularity: an attention half, a feed-forward half, or the
    /// head.
    pub(crate) fn next_segment(&mut self) {
        self.segment += 1;
    }

    /// Ignores the tensors of all layers from `first` on, unless a node reads them.
    pub(crate) fn skip_layers_from(&mut self, first: u32) {
        self.skipped = Some(first);
    }

    /// Returns the type of the tensor `name` after checking that its shape is `expected`, row length first.
    /// `is_matrix` says whether products read the tensor, which then has the type of the matrices in a model
    /// without files.
    fn tensor(&mut self, name: &str, expected: &[u32], is_matrix: bool) -> Result<TensorType, ModelError> {
        let expected: Vec<u64> = expected.iter().copied().map(u64::from).collect();
        let is_new = self.used.insert(name.into());
        match &mut self.tensors {
            Tensors::Weights(weights) => {
                let info = weights.required(name)?;
                if info.shape != expected {
                    return Err(ModelError::Shape { name: name.into(), expected, found: info.shape.clone() });
                }
                Ok(info.tensor_type)
            }
            Tensors::Described { matrices, vectors, found } => {
                let tensor_type = if is_matrix { *matrices } else { *vectors };
                if is_new {
                    found.push(TensorInfo::described(name, tensor_type, expected)?);
                }
                Ok(tensor_type)
            }
        }
    }

    /// Returns the type of the matrix `name` after checking its shape. A matrix of one row may be a vector.
    pub(crate) fn matrix(&mut self, name: &str, columns: u32, rows: u32) -> Result<TensorType, ModelError> {
        let is_vector = rows == 1 && self.found(name).is_some_and(|tensor| tensor.shape.len() == 1);
        self.tensor(name, &[columns, rows][..if is_vector { 1 } else { 2 }], true)
    }

    /// Returns the tensor of the model's files, if there is one.
    fn found(&self, name: &str) -> Option<&'a TensorInfo> {
        let Tensors::Weights(weights) = self.tensors else { return None };
        weights.tensor(name)
    }

    /// Returns whether the model's files lack the tensor `name`.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        matches!(self.tensors, Tensors::Weights(weights) if weights.tensor(name).is_none())
    }

    /// Checks that the tensor `name` is a vector of `values` values.
    pub(crate) fn vector(&mut self, name: &str, values: u32) -> Result<(), ModelError> {
        self.tensor(name, &[values], false).map(drop)
    }

    /// Adds a node whose shape follows from its weights.
    fn add(&mut self, operator: impl Into<Operator>, shape: Shape, inputs: &[NodeIndex]) -> NodeIndex {
        self.order += 1;
        let Shape { rows, width } = shape;
        let (operator, order) = (operator.into(), (self.order, 0));
        self.graph.add(Node { operator, segment: self.segment, rows, width, order }, inputs)
    }

    /// Adds a node whose shape follows from that of its first input.
    fn apply(&mut self, operator: impl Into<Operator>, inputs: &[NodeIndex]) -> NodeIndex {
        let operator = operator.into();
        let shape = operator.lower().shape(self.graph.node(inputs[0]).shape());
        let shape = shape.unwrap_or_else(|| panic!("the shape of {operator:?} follows from weights"));
        self.add(operator, shape, inputs)
    }

    pub(crate) fn embed(
        &mut self,
        table: &str,
        width: u32,
        vocabulary: u32,
    ) -> Result<NodeIndex, ModelError> {
        self.matrix(table, width, vocabulary)?;
        let (operator, shape) = (Embed { table: table.into() }, Shape { rows: Rows::Tokens, width });
        if matmul::takes_columns(width) {
            return Ok(self.add(operator, shape, &[]));
        }
        let of_lookup = Shape { width: Lookup::width(width), ..shape };
        let rows = self.add(Lookup { table: table.into() }, of_lookup, &[]);
        Ok(self.add(operator, shape, &[rows]))
    }

    pub(crate) fn gather(&mut self, x: NodeIndex) -> NodeIndex {
        self.apply(Gather, &[x])
    }

    /// Adds the nodes that find the best logits, or the largest hidden values, of each row.
    pub(crate) fn picks(&mut self, logits: NodeIndex) -> NodeIndex {
        let peaks = self.apply(Peaks, &[logits]);
        self.apply(Picks, &[peaks])
    }

    pub(crate) fn rms_norm(
        &mut self,
        x: NodeIndex,
        weight: &str,
        epsilon: f32,
        affine: Affine,
    ) -> Result<NodeIndex, ModelError> {
        self.vector(weight, self.graph.node(x).width)?;
        let operator = RmsNorm { weight: weight.into(), epsilon, affine, output: Activations::F32 };
        Ok(self.apply(operator, &[x]))
    }

    /// Adds a layer norm. `weights` names the weight, and the bias if there is one.
    pub(crate) fn layer_norm(
        &mut self,
        x: NodeIndex,
        weights: Vec<String>,
        epsilon: f32,
        affine: Affine,
    ) -> Result<NodeIndex, ModelError> {
        for weight in &weights {
            self.vector(weight, self.graph.node(x).width)?;
        }
        Ok(self.apply(LayerNorm { weights, epsilon, affine }, &[x]))
    }

    /// Adds a node that multiplies all values by `factor`, unless it is 1.
    pub(crate) fn scale(&mut self, x: NodeIndex, factor: f32) -> NodeIndex {
        let width = self.graph.node(x).width;
        self.scale_runs(x, vec![(factor, width)])
    }

    /// Adds a node that multiplies runs of columns by factors, unless all factors are 1.
    fn scale_runs(&mut self, x: NodeIndex, factors: Vec<(f32, u32)>) -> NodeIndex {
        let width: u32 = factors.iter().map(|(_, columns)| columns).sum();
        assert_eq!(width, self.graph.node(x).width, "columns with factors");
        let is_plain = factors.iter().all(|(factor, _)| *factor == 1.0);
        if is_plain { x } else { self.apply(Scale { factors }, &[x]) }
    }

    /// Returns the factor by which products with a tensor are multiplied.
    pub(crate) fn factor(&self, name: &str) -> f32 {
        let Tensors::Weights(weights) = self.tensors else { return 1.0 };
        weights.factor(name)
    }

    /// Adds a node that multiplies the first `columns` columns by the values of the tensor `name`. These are as many as
    /// `period`, and repeat themselves.
    pub(crate) fn scale_by(
        &mut self,
        x: NodeIndex,
        name: &str,
        period: u32,
        columns: u32,
    ) -> Result<NodeIndex, ModelError> {
        self.numbers(name, period)?;
        let operator = ScaleBy { weight: name.into(), period };
        Ok(self.add(operator, Shape { width: columns, ..self.graph.node(x).shape() }, &[x]))
    }

    /// Checks that the tensor `name` has as many values as `count`. A single value may have no dimensions.
    fn numbers(&mut self, name: &str, count: u32) -> Result<(), ModelError> {
        let is_single = count == 1 && self.found(name).is_some_and(|tensor| tensor.shape.is_empty());
        self.tensor(name, &[count][usize::from(is_single)..], false).map(drop)
    }

    /// Adds a node that applies xIELU with the numbers of a layer, which `extras` or tensors hold.
    pub(crate) fn xielu(
        &mut self,
        x: NodeIndex,
        layer: u32,
        extras: &Extras,
    ) -> Result<NodeIndex, ModelError> {
        let tensors = ["alpha_p", "alpha_n", "beta", "eps"].map(|part| format!("blk.{layer}.xielu.{part}"));
        if let Some(numbers) = extras.xielu.get(layer as usize) {
            return Ok(self.apply(Xielu { numbers: *numbers, tensors: Vec::new() }, &[x]));
        }
        for name in &tensors {
            self.numbers(name, 1)?;
        }
        Ok(self.apply(Xielu { numbers: [0.0; 4], tensors: tensors.to_vec() }, &[x]))
    }

    /// Adds a node that applies a function to all values.
    pub(crate) fn unary(&mut self, x: NodeIndex, function: Function) -> NodeIndex {
        self.apply(Unary { function }, &[x])
    }

    pub(crate) fn matmul(&mut self, x: NodeIndex, weight: &str, width: u32) -> Result<NodeIndex, ModelError> {
        self.joint_matmul(x, &[(weight, width)], &[])
    }

    /// Adds a product whose output has more columns than the weight has rows. The others have no meaning.
    pub(crate) fn wide_matmul(
        &mut self,
        x: NodeIndex,
        weight: &str,
        rows: u32,
        width: u32,
    ) -> Result<NodeIndex, ModelError> {
        let shape = self.graph.node(x).shape();
        self.matrix(weight, shape.width, rows)?;
        let (activations, column, accumulate, norm, gated) = (Activations::F32, 0, false, None, false);
        let weights = Stack::of(weight);
        let operator = MatMul { weights, activations, column, accumulate, norm, gated };
        let product = self.add(operator, Shape { width, ..shape }, &[x]);
        Ok(self.scale(product, self.factor(weight)))
    }

    /// Ignores the tensor `name`, if there is one.
    pub(crate) fn ignore(&mut self, name: &str) {
        self.used.insert(name.into());
    }

    /// Adds nodes that multiply `x` by each of the weights in `weights`, and write the products side by side
    /// into one tensor. Each entry of `weights` is the name of a weight tensor and the number of columns of
    /// its product. Adjacent weights of the same type are stacked into one product.
    ///
    /// Each product must start at a multiple of [`JOINT_COLUMNS`]. If its first column is not such a
    /// multiple, rows of zeros are prepended to its weights. Products run from last to first, so each product
    /// overwrites the zeros that the next one in the list wrote to its columns.
    pub(crate) fn joint_matmul(
        &mut self,
        x: NodeIndex,
        weights: &[(&str, u32)],
        biases: &[String],
    ) -> Result<NodeIndex, ModelError> {
        assert!(biases.is_empty() || biases.len() == weights.len(), "{biases:?} for {weights:?}");
        let shape = self.graph.node(x).shape();
        let mut products: Vec<(TensorType, u32, Stack)> = Vec::new();
        let mut width = 0;
        for &(name, part) in weights {
            let tensor_type = self.matrix(name, shape.width, part)?;
            match products.last_mut().filter(|(last, ..)| *last == tensor_type) {
                Some((.., stack)) => stack.tensors.push(name.into()),
                None => products.push((tensor_type, width, Stack::of(name))),
            }
            width += part;
        }
        let mut inputs = vec![x];
        if !biases.is_empty() {
            for (bias, (_, part)) in biases.iter().zip(weights) {
                self.vector(bias, *part)?;
            }
            inputs.push(self.add(Bias { weights: biases.to_vec() }, Shape { width, ..shape }, &[]));
        }
        let factors: Vec<_> = weights.iter().map(|(name, part)| (self.factor(name), *part)).collect();
        if !biases.is_empty() && factors.iter().any(|(factor, _)| *factor != 1.0) {
            // The factors do not apply to the biases.
            let product = self.joint_matmul(x, weights, &[])?;
            return Ok(self.apply(Add, &[inputs[1], product]));
        }
        let accumulate = !biases.is_empty();
        for (_, column, mut weights) in products.into_iter().rev() {
            weights.zero_rows = column % JOINT_COLUMNS;
            let column = column - weights.zero_rows;
            let activations = Activations::F32;
            let (norm, gated) = (None, false);
            let operator = MatMul { weights, activations, column, accumulate, norm, gated };
            inputs = vec![x, self.add(operator, Shape { width, ..shape }, &inputs)];
        }
        Ok(self.scale_runs(inputs[inputs.len() - 1], factors))
    }

    /// Adds products of two inputs, side by side in one tensor. Each of `parts` is an input, the name of its weights, and the
    /// number of columns of its product.
    pub(crate) fn matmuls_beside(
        &mut self,
        parts: [(NodeIndex, &str, u32); 2],
    ) -> Result<NodeIndex, ModelError> {
        let [(x, first, width), (other, second, more)] = parts;
        let shape = Shape { width: width + more, ..self.graph.node(x).shape() };
        let mut product = |x: NodeIndex, name: &str, rows: u32, column: u32, below: Option<NodeIndex>| {
            self.matrix(name, self.graph.node(x).width, rows)?;
            let weights = Stack { zero_rows: column % JOINT_COLUMNS, tensors: vec![name.into()] };
            let column = column - weights.zero_rows;
            let (activations, accumulate, norm, gated) = (Activations::F32, false, None, false);
            let operator = MatMul { weights, activations, column, accumulate, norm, gated };
            let inputs: Vec<_> = [x].into_iter().chain(below).collect();
            Ok::<_, ModelError>(self.add(operator, shape, &inputs))
        };
        // The first product overwrites the zeros that the second one writes before its columns.
        let below = product(other, second, more, width, None)?;
        let both = product(x, first, width, 0, Some(below))?;
        Ok(self.scale_runs(both, vec![(self.factor(first), width), (self.factor(second), more)]))
    }

    /// Adds a node that normalises the query heads and the key heads of `qkv`. `weights` names the norm weights
    /// of the queries and of the keys, to which `offset` is added. Without names, all weights are 1.
    pub(crate) fn head_norm(
        &mut self,
        qkv: NodeIndex,
        heads: Heads,
        weights: Option<[String; 2]>,
        epsilon: f32,
        offset: f32,
        form: Form,
    ) -> Result<NodeIndex, ModelError> {
        let dimensions = heads.dimensions;
        let shapes = match form {
            Form::Heads | Form::Values | Form::Growth => [vec![dimensions], vec![dimensions]],
            Form::Whole => [vec![heads.query_width()], vec![heads.kv_width()]],
            Form::Centred => [vec![dimensions, heads.queries], vec![dimensions, heads.kv]],
        };
        for (weight, shape) in weights.iter().flatten().zip(&shapes) {
            self.tensor(weight, shape, false)?;
        }
        Ok(self.apply(HeadNorm { heads, weights, epsilon, offset, form }, &[qkv]))
    }

    /// Adds a node that lets the queries of `qkv` grow with their position.
    pub(crate) fn grow_queries(&mut self, qkv: NodeIndex, heads: Heads, growth: Growth) -> NodeIndex {
        self.apply(QueryGrowth { heads, growth }, &[qkv])
    }

    /// Adds nodes that compute rows of queries, a key and a value of latent attention from the queries and the latent.
    /// `weights` names the matrix for keys, and the weights of the latent's norm.
    pub(crate) fn latent_rows(
        &mut self,
        [q, kv]: [NodeIndex; 2],
        heads: Heads,
        latent: &Latent,
        weights: [String; 2],
        epsilon: f32,
    ) -> Result<NodeIndex, ModelError> {
        let Latent { rank, plain, rotating, .. } = *latent;
        let [keys, norm] = weights;
        self.vector(&norm, rank)?;
        let weights = self.head_weights(&keys, [plain, rank], heads)?;
        let (heads_of, rows, column, gap) = (heads.queries, rank, rotating, rotating);
        let operator = HeadMatMul { weights, heads: heads_of, rows, x_column: 0, column, gap };
        let width = heads.query_width() + 2 * heads.kv_width();
        let queries = self.add(operator, Shape { width, ..self.graph.node(q).shape() }, &[q]);
        Ok(self.apply(LatentRows { heads, latent: *latent, norm, epsilon }, &[queries, q, kv]))
    }

    /// Adds a node that computes the values of all heads from the results of latent attention.
    pub(crate) fn latent_values(
        &mut self,
        attended: NodeIndex,
        heads: Heads,
        latent: &Latent,
        weight: &str,
    ) -> Result<NodeIndex, ModelError> {
        let (rows, x_column, heads_of) = (latent.value, latent.rotating, heads.queries);
        let weights = self.head_weights(weight, [latent.rank, rows], heads)?;
        let operator = HeadMatMul { weights, heads: heads_of, rows, x_column, column: 0, gap: 0 };
        let shape = Shape { width: heads_of * rows, ..self.graph.node(attended).shape() };
        Ok(self.add(operator, shape, &[attended]))
    }

    /// Returns whether the model's files have the tensor `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.found(name).is_some()
    }

    /// Checks that the tensor `name` has these sizes, row length first. Dimensions of 1 do not count.
    fn flat(&mut self, name: &str, sizes: &[u32]) -> Result<(), ModelError> {
        let found = self.found(name).map(|tensor| tensor.shape.clone());
        let is_same = |shape: &Vec<u64>| {
            let others = |sizes: &[u64]| sizes.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
            others(shape) == others(&sizes.iter().map(|size| u64::from(*size)).collect::<Vec<_>>())
        };
        let shape =
            found.filter(is_same).map(|shape| shape.iter().map(|size| *size as u32).collect::<Vec<_>>());
        self.tensor(name, shape.as_deref().unwrap_or(sizes), false).map(drop)
    }

    /// Adds a node that convolves columns of `x`. `factors` gives the first columns of the factors before and after it.
    pub(crate) fn causal_conv(
        &mut self,
        x: NodeIndex,
        layer: u32,
        conv: Conv,
        factors: Option<[u32; 2]>,
    ) -> Result<NodeIndex, ModelError> {
        let Conv { mut weights, bias, taps, columns, first, silu } = conv;
        for name in &weights {
            self.flat(name, &[taps, columns / weights.len() as u32])?;
        }
        if let Some(bias) = &bias {
            self.vector(bias, columns)?;
        }
        let is_biased = bias.is_some();
        weights.extend(bias);
        Ok(self.apply(CausalConv { layer, weights, is_biased, taps, columns, first, factors, silu }, &[x]))
    }

    /// Adds a node that scans the rows of the first input. The second one has the gates. `places` gives the first columns
    /// of queries, keys and values, and those of the gates of decays and of strengths with the distance between the gates of
    /// the heads of two key heads.
    pub(crate) fn state_scan(
        &mut self,
        inputs: [NodeIndex; 2],
        layer: u32,
        heads: ScanHeads,
        (columns, gates): ([u32; 3], [u32; 3]),
        flags: u32,
    ) -> Result<NodeIndex, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let is_logarithm = self.has(&name("ssm_a_log"));
        let decay = name(if is_logarithm { "ssm_a_log" } else { "ssm_a" });
        let mut weights = vec![decay, name("ssm_dt.bias")];
        weights.extend((flags & DELTA == 0).then(|| name("ssm_d")));
        for (at, weight) in weights.iter().enumerate() {
            let of_keys = at == 1 && flags & VECTOR > 0;
            self.flat(weight, &[heads.count * if of_keys { heads.key_dimension } else { 1 }])?;
        }
        let flags = flags | if is_logarithm { LOGARITHM } else { 0 };
        Ok(self.apply(StateScan { layer, heads, columns, gates, flags, weights }, &inputs))
    }

    /// Adds a node that normalises groups of columns of the first input and multiplies them by gates of the second one. All
    /// groups share the weights unless there are as many as columns.
    pub(crate) fn gated_norm(
        &mut self,
        inputs: [NodeIndex; 2],
        by: GatedBy,
        weight: &str,
        epsilon: f32,
    ) -> Result<NodeIndex, ModelError> {
        let GatedBy { groups, gates_first, first, function } = by;
        let all = self.graph.node(inputs[0]).width;
        let width = all / groups;
        let values = self.found(weight).map(|tensor| tensor.shape.iter().product::<u64>());
        let count = if gates_first || values == Some(u64::from(all)) { all } else { width };
        let sizes = if count == all && values.is_some() && groups > 1 {
            // GGUF files have a row for each group, and other files one vector.
            let is_flat = self.found(weight).is_some_and(|tensor| tensor.shape.len() == 1);
            if is_flat { vec![all] } else { vec![width, groups] }
        } else {
            vec![count]
        };
        self.flat(weight, &sizes)?;
        let (norm, gates) = (Some((weight.to_owned(), count)), [first, width]);
        Ok(self.apply(GatedNorm { groups, norm, epsilon, gates_first, gates, function }, &inputs))
    }

    /// Adds a node that moves queries, keys and values out of rows in which a gate follows each query head, and normalises
    /// the heads of queries and keys.
    pub(crate) fn gated_heads(
        &mut self,
        x: NodeIndex,
        heads: Heads,
        weights: [String; 2],
        epsilon: f32,
        offset: f32,
    ) -> Result<NodeIndex, ModelError> {
        for weight in &weights {
            self.vector(weight, heads.dimensions)?;
        }
        Ok(self.apply(GatedHeads { heads, weights, epsilon, offset }, &[x]))
    }

    /// Adds a node that multiplies the heads of `attended` by the sigmoids of the gates in `projected`.
    pub(crate) fn gate_heads(
        &mut self,
        attended: NodeIndex,
        projected: NodeIndex,
        heads: Heads,
    ) -> NodeIndex {
        let (groups, width) = (heads.queries, heads.dimensions);
        let (gates, function) = ([width, 2 * width], GateFunction::Sigmoid);
        let gate = GatedNorm { groups, norm: None, epsilon: 0.0, gates_first: false, gates, function };
        self.apply(gate, &[attended, projected])
    }

    /// Returns the weights of products with parts of rows, one for each head.
    fn head_weights(
        &mut self,
        name: &str,
        [columns, rows]: [u32; 2],
        heads: Heads,
    ) -> Result<Stack, ModelError> {
        let unsupported = |what: String| Err(ModelError::Unsupported { what });
        if !matmul::takes_columns(columns) || !heads.dimensions.is_multiple_of(4) {
            return unsupported(format!("tensor {name} with rows of {columns} values (no multiple of 32)"));
        }
        self.tensor(name, &[columns, rows, heads.queries], true)?;
        if self.factor(name) != 1.0 {
            return unsupported(format!("tensor {name} with a scale"));
        }
        Ok(Stack::of(name))
    }

    /// Adds nodes that append the keys and values of `qkv` to the KV cache of `layer` and compute the
    /// attention of its queries. If `appends` is false, they are there already. `sinks` names the tensor with the sinks, if
    /// there are any. `weights` names tensors by which all query heads are multiplied after RoPE.
    pub(crate) fn attention(
        &mut self,
        qkv: NodeIndex,
        (layer, appends): (u32, bool),
        heads: Heads,
        (rope, scores): (Rope, Scores),
        sinks: Option<String>,
        weights: Option<[String; 2]>,
    ) -> Result<NodeIndex, ModelError> {
        if let Some(sinks) = &sinks {
            self.vector(sinks, heads.queries)?;
        }
        let mut turned = self.apply(RopeAppend { layer, heads, rope, appends }, &[qkv]);
        for weight in weights.iter().flatten() {
            turned = self.scale_by(turned, weight, heads.dimensions, heads.query_width())?;
        }
        Ok(self.apply(Attention { layer, heads, scores, sinks, splits: None }, &[turned]))
    }

    /// Adds a node that applies `function` to the first half of each row, and multiplies by the second half.
    pub(crate) fn gate(&mut self, gate_up: NodeIndex, function: Gate) -> NodeIndex {
        self.apply(SiluMul { function, output: Activations::F32 }, &[gate_up])
    }

    /// Adds a node that chooses experts for each row, from the router's logits. `biases` names the tensor of the biases or
    /// factors.
    pub(crate) fn route(
        &mut self,
        logits: NodeIndex,
        choice: Choice,
        biases: &str,
    ) -> Result<NodeIndex, ModelError> {
        let biases = choice.has_numbers().then(|| biases.to_owned());
        if let Some(name) = &biases {
            let count = self.graph.node(logits).width;
            // Some checkpoints have a matrix of one row.
            let is_matrix = self.found(name).is_some_and(|tensor| tensor.shape.len() == 2);
            self.tensor(name, &[count, 1][..if is_matrix { 2 } else { 1 }], false)?;
        }
        Ok(self.apply(ExpertRoute { choice, biases }, &[logits]))
    }

    /// Adds nodes for the gate and up projections of the experts in `route`. A row of the output has the gates of all its
    /// experts, then their up projections, with `hidden` values each.
    pub(crate) fn expert_gate_up(
        &mut self,
        x: NodeIndex,
        route: NodeIndex,
        layer: u32,
        count: u32,
        hidden: u32,
    ) -> Result<NodeIndex, ModelError> {
        let (shape, used) = (self.graph.node(x).shape(), self.graph.node(route).width / 2);
        let width = 2 * used * hidden;
        let (activations, rows, piece) = (Activations::F32, hidden, hidden);
        let both = format!("blk.{layer}.ffn_gate_up_exps.weight");
        if self.found(&both).is_some() {
            let weights = self.experts(layer, "ffn_gate_up", count, [shape.width, 2 * hidden])?;
            let rows = 2 * hidden;
            let operator = ExpertMatMul { weights, activations, count, used, rows, piece, column: 0 };
            return Ok(self.add(operator, Shape { width, ..shape }, &[x, route]));
        }
        let mut inputs = vec![x, route];
        for (part, column) in [("ffn_gate", 0), ("ffn_up", used * hidden)] {
            let weights = self.experts(layer, part, count, [shape.width, hidden])?;
            let operator = ExpertMatMul { weights, activations, count, used, rows, piece, column };
            let product = self.add(operator, Shape { width, ..shape }, &inputs);
            inputs = vec![x, route, product];
        }
        Ok(inputs[2])
    }

    /// Adds a node for the up projections of the experts in `route`, with `hidden` values each.
    pub(crate) fn expert_up(
        &mut self,
        x: NodeIndex,
        route: NodeIndex,
        layer: u32,
        count: u32,
        hidden: u32,
    ) -> Result<NodeIndex, ModelError> {
        let (shape, used) = (self.graph.node(x).shape(), self.graph.node(route).width / 2);
        let weights = self.experts(layer, "ffn_up", count, [shape.width, hidden])?;
        let (activations, rows, piece) = (Activations::F32, hidden, hidden);
        let operator = ExpertMatMul { weights, activations, count, used, rows, piece, column: 0 };
        Ok(self.add(operator, Shape { width: used * hidden, ..shape }, &[x, route]))
    }

    /// Adds a node that applies `rule` to the gates and up projections of the experts in `route`, after it has added their
    /// biases.
    pub(crate) fn expert_gate(
        &mut self,
        gate_up: NodeIndex,
        route: NodeIndex,
        layer: u32,
        count: u32,
        rule: Rule,
    ) -> Result<NodeIndex, ModelError> {
        let used = self.graph.node(route).width / 2;
        let width = self.graph.node(gate_up).width / (2 * used);
        let name = |part: &str| format!("blk.{layer}.{part}_exps.bias");
        let both = name("ffn_gate_up");
        let biases = if self.found(&both).is_some() {
            self.tensor(&both, &[width, count, 2], false)?;
            vec![both]
        } else {
            let parts = ["ffn_gate", "ffn_up"].map(name);
            for part in &parts {
                self.tensor(part, &[width, count], false)?;
            }
            parts.to_vec()
        };
        Ok(self.apply(ExpertGate { rule, count, used, biases }, &[gate_up, route]))
    }

    /// Adds nodes for the down projections of the experts in `route`, and the weighted sum of their results.
    pub(crate) fn expert_down(
        &mut self,
        x: NodeIndex,
        route: NodeIndex,
        layer: u32,
        (count, has_biases): (u32, bool),
        width: u32,
    ) -> Result<NodeIndex, ModelError> {
        let (shape, used) = (self.graph.node(x).shape(), self.graph.node(route).width / 2);
        let weights = self.experts(layer, "ffn_down", count, [shape.width / used, width])?;
        let (activations, rows, piece) = (Activations::F32, width, width);
        let operator = ExpertMatMul { weights, activations, count, used, rows, piece, column: 0 };
        let all = self.add(operator, Shape { width: used * width, ..shape }, &[x, route]);
        let biases = has_biases.then(|| format!("blk.{layer}.ffn_down_exps.bias"));
        if let Some(biases) = &biases {
            self.tensor(biases, &[width, count], false)?;
        }
        Ok(self.apply(ExpertCombine { count, used, biases }, &[all, route]))
    }

    /// Adds a node that multiplies the rows of `x` by the weight of the only expert of each row in `route`.
    pub(crate) fn scale_by_expert(&mut self, x: NodeIndex, route: NodeIndex, count: u32) -> NodeIndex {
        self.apply(ExpertCombine { count, used: 1, biases: None }, &[x, route])
    }

    /// Returns the weights of all experts, which are one tensor or a tensor for each expert.
    fn experts(
        &mut self,
        layer: u32,
        part: &str,
        count: u32,
        [columns, rows]: [u32; 2],
    ) -> Result<Stack, ModelError> {
        let unsupported = |what: String| Err(ModelError::Unsupported { what });
        if !matmul::takes_columns(columns) {
            return unsupported(format!("experts with rows of {columns} values (no multiple of 32)"));
        }
        let all = format!("blk.{layer}.{part}_exps.weight");
        let stack = if self.found(&all).is_some() || matches!(self.tensors, Tensors::Described { .. }) {
            self.tensor(&all, &[columns, rows, count], true)?;
            Stack::of(&all)
        } else {
            let mut tensors = Vec::new();
            for expert in 0..count {
                let name = format!("blk.{layer}.{part}.{expert}.weight");
                self.matrix(&name, columns, rows)?;
                tensors.push(name);
            }
            Stack { zero_rows: 0, tensors }
        };
        let types = stack.tensors.iter().filter_map(|name| self.found(name)).map(|tensor| tensor.tensor_type);
        if types.collect::<BTreeSet<_>>().len() > 1 {
            return unsupported(format!("experts of several types ({})", stack.name()));
        }
        if stack.tensors.iter().any(|name| self.factor(name) != 1.0) {
            return unsupported(format!("experts with a scale ({})", stack.name()));
        }
        Ok(stack)
    }

    /// Adds a node that multiplies all values of `x` by those of `y`.
    pub(crate) fn product(&mut self, x: NodeIndex, y: NodeIndex) -> NodeIndex {
        assert_eq!(self.graph.node(x).shape(), self.graph.node(y).shape(), "factors of a product");
        self.apply(ScaleRows, &[x, y])
    }

    /// Adds nodes that multiply the rows of `y` by `factors`, which have one column, and add `x`.
    pub(crate) fn add_scaled(&mut self, x: NodeIndex, y: NodeIndex, factors: NodeIndex) -> NodeIndex {
        let scaled = self.apply(ScaleRows, &[y, factors]);
        self.apply(Add, &[x, scaled])
    }

    pub(crate) fn add_residual(&mut self, x: NodeIndex, y: NodeIndex) -> NodeIndex {
        let width = |node| self.graph.node(node).width;
        assert_eq!(width(x), width(y), "the residual stream and what a layer adds");
        self.apply(Add, &[x, y])
    }

    /// Returns the graph. Fails if the graph does not use every tensor in the files, because ignoring a
    /// tensor would give wrong results.
    pub(crate) fn finish(self) -> Result<OperatorGraph, ModelError> {
        let Tensors::Weights(weights) = self.tensors else { return Ok(self.graph) };
        let is_skipped =
            |name: &str| layer_of(name).zip(self.skipped).is_some_and(|(layer, first)| layer >= first);
        let is_unknown = |t: &&TensorInfo| !self.used.contains(&t.name) && !is_skipped(&t.name);
        match weights.tensors().iter().find(is_unknown) {
            Some(unused) => Err(ModelError::UnknownTensor { name: unused.name.clone() }),
            None => Ok(self.graph),
        }
    }

    /// Returns the tensors that the builder has described.
    pub(crate) fn described(self) -> Vec<TensorInfo> {
        match self.tensors {
            Tensors::Weights(_) => Vec::new(),
            Tensors::Described { found, .. } => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use std::sync::Arc;

    /// Returns weights with 64 columns each: a table, and matrices with the given names, types and numbers of
    /// rows.
    fn weights(matrices: &[(&str, TensorType, u64)]) -> Weights {
        let table = ("table", TensorType::F16, 100);
        let tensors = [&[table], matrices].concat().into_iter().map(|(name, tensor_type, rows)| {
            let shape = vec![64, rows];
            TensorInfo { name: name.into(), tensor_type, shape, shard: 0, offset: 0, bytes: 0 }
        });
        Weights::new(vec![Arc::new(MemorySource::new("file", vec![]))], tensors.collect()).unwrap()
    }

    /// Returns the first column, the number of zero rows and the tensor names of each product, in program
    /// order. Also returns the width of the joint tensor.
    fn joint(matrices: &[(&str, TensorType, u64)]) -> (Vec<(u32, u32, String)>, u32) {
        let weights = weights(matrices);
        let mut builder = Builder::new(&weights);
        let x = builder.embed("table", 64, 100).unwrap();
        let parts: Vec<_> = matrices.iter().map(|(name, _, rows)| (*name, *rows as u32)).collect();
        let last = builder.joint_matmul(x, &parts, &[]).unwrap();
        let graph = builder.finish().unwrap();
        let products = graph.ordered().into_iter().filter_map(|n| match &graph.node(n).operator {
            Operator::MatMul(MatMul { weights, column, .. }) => {
                Some((*column, weights.zero_rows, weights.name()))
            }
            _ => None,
        });
        assert_eq!(graph.ordered().last(), Some(&last));
        (products.collect(), graph.node(last).width)
    }

    #[test]
    fn products_add_to_their_biases() {
        use TensorType::{F32, Q4_0, Q8_0};
        let mut tensors = weights(&[("q", Q4_0, 64), ("k", Q4_0, 32), ("v", Q8_0, 32)]).tensors().to_vec();
        for (name, values) in [("bq", 64), ("bk", 32), ("bv", 32), ("nq", 32), ("nk", 32)] {
            tensors.push(TensorInfo::described(name, F32, vec![values]).unwrap());
        }
        let weights = Weights::new(vec![], tensors).unwrap();
        let build = |biases: [&str; 3], norms: [&str; 2]| {
            let mut builder = Builder::new(&weights);
            let x = builder.embed("table", 64, 100)?;
            let qkv =
                builder.joint_matmul(x, &[("q", 64), ("k", 32), ("v", 32)], &biases.map(String::from))?;
            let heads = Heads { queries: 2, kv: 1, dimensions: 32 };
            builder.head_norm(qkv, heads, Some(norms.map(String::from)), 1e-6, 0.0, Form::Heads)?;
            let graph = builder.finish()?;
            let name = |&n: &NodeIndex| {
                let node = graph.node(n);
                let inputs = graph.inputs(n).into_iter().map(|i| graph.node(i).order.0).collect::<Vec<_>>();
                format!("{} {} {:?} {inputs:?}", node.operator.name(), node.width, node.operator.tensors())
            };
            Ok::<_, ModelError>(graph.ordered().iter().map(name).collect::<Vec<_>>())
        };
        let nodes = build(["bq", "bk", "bv"], ["nq", "nk"]).unwrap();
        // The first product adds to the biases. The next product adds to the output of the first.
        let expected = [
            r#"embed 64 ["table"] []"#,
            r#"bias 128 ["bq", "bk", "bv"] []"#,
            r#"matmul 128 ["v"] [1, 2]"#,
            r#"matmul 128 ["q", "k"] [1, 3]"#,
            r#"head-norm 128 ["nq", "nk"] [4]"#,
        ];
        assert_eq!(nodes, expected);
        // The width of a bias must be that of its product, and the width of a norm must be that of a head.
        assert!(matches!(build(["bk", "bq", "bv"], ["nq", "nk"]), Err(ModelError::Shape { .. })));
        assert!(matches!(build(["bq", "bk", "bv"], ["bq", "nk"]), Err(ModelError::Shape { .. })));
    }

    #[test]
    fn adjacent_weights_of_one_type_become_one_product() {
        use TensorType::{Q4_0, Q8_0};
        let one = |column, zeros, name: &str| (column, zeros, name.to_string());
        assert_eq!(
            joint(&[("q", Q4_0, 256), ("k", Q4_0, 40), ("v", Q4_0, 40)]),
            (vec![one(0, 0, "q + k + v")], 336)
        );
        assert_eq!(
            joint(&[("q", Q4_0, 256), ("k", Q4_0, 128), ("v", Q8_0, 128)]),
            (vec![one(384, 0, "v"), one(0, 0, "q + k")], 512)
        );
        // The output of an unaligned product starts with zeros. The product runs before the one that owns
        // those columns.
        assert_eq!(
            joint(&[("q", Q4_0, 576), ("k", Q8_0, 192), ("v", Q4_0, 192)]),
            (vec![one(768, 0, "v"), one(512, 64, "k"), one(0, 0, "q")], 960)
        );
    }
}
