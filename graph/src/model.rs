//! A model: hyperparameters, weights, operator graph and tokenizer.

use crate::arch::{Architecture, Hyperparameters, Indexer, RopeScaling, layer_of};
use crate::chat_templates::ChatTemplates;
use crate::checkpoint;
use crate::converted;
use crate::error::{FormatError, ModelError, TokenizerError};
use crate::gguf::{Metadata, ModelFile};
use crate::granularity::{Granularity, SegmentKind};
use crate::graph::OperatorGraph;
use crate::ops::{ExpertMatMul, MatMul, Operator, Rows};
use crate::passes::{self, Splits};
use crate::source::Directory;
use crate::stack::Stack;
use crate::tokenizer::{self, Tokenizer};
use crate::unused::Unused;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::matmul;
use ragtag_kernels::{Activations, Kernel, KvType, TensorType};
use std::sync::Arc;

/// Files or metadata from which the tokenizer is built.
#[derive(Clone, Debug)]
enum Description {
    /// Metadata of a GGUF file.
    Metadata(Arc<Metadata>),
    /// Files in the model directory.
    Directory(Arc<Directory>),
}

/// A model, read from its files. Clones share the weights and the graph.
#[derive(Clone, Debug)]
pub struct Model {
    hyperparameters: Hyperparameters,
    description: Description,
    weights: Arc<Weights>,
    /// Operator graph in which segments are numbered at half-block granularity.
    graph: Arc<OperatorGraph>,
    granularity: Granularity,
    predictors: Unused,
    indexers: Unused,
}

impl Model {
    /// Reads the hyperparameters from GGUF files and builds the operator graph. Does not read weights.
    ///
    /// # Errors
    /// Returns a [`ModelError`] that names the invalid key, tensor or architecture.
    pub fn new(file: ModelFile) -> Result<Self, ModelError> {
        let architecture = Architecture::find(file.metadata.get("general.architecture")?)?;
        let hyperparameters = Hyperparameters::read(architecture, &file.metadata, &file.weights)?;
        let description = Description::Metadata(Arc::new(file.metadata));
        Self::build(architecture, hyperparameters, file.weights, description)
    }

    /// Reads the hyperparameters from a directory with `config.json` and safetensors files, and builds the
    /// operator graph. Does not read weights. `directory` must contain every existing file that
    /// [`checkpoint::FILES`] lists, and every file that [`checkpoint::shard_names`] returns.
    ///
    /// # Errors
    /// Returns a [`ModelError`] that names the invalid file, key, tensor or architecture.
    pub fn from_directory(directory: Directory) -> Result<Self, ModelError> {
        let (architecture, hyperparameters, weights, apart) = checkpoint::open(&directory)?;
        let description = Description::Directory(Arc::new(directory));
        let in_layers = further_layers(&hyperparameters, &weights);
        let apart = apart.iter().map(|(name, bytes)| (&**name, *bytes));
        let predictors = Unused::of(in_layers.chain(apart));
        let model = Self::build(architecture, hyperparameters, weights, description);
        let model = model.map_err(|error| checkpoint::with_original_names(architecture, error))?;
        Ok(Self { predictors, ..model })
    }

    /// Creates a model without weight data from a directory that contains `config.json`. The hyperparameters
    /// determine the shapes of the weights. Matrices have the type `matrices`. If `matrices` is `None`, they
    /// have the type that `config.json` specifies (`torch_dtype` or `dtype`).
    ///
    /// # Errors
    /// Returns a [`ModelError`] that names the invalid key or tensor.
    pub fn described(directory: Directory, matrices: Option<TensorType>) -> Result<Self, ModelError> {
        let (architecture, hyperparameters, weights) = checkpoint::describe(&directory, matrices)?;
        let description = Description::Directory(Arc::new(directory));
        Self::build(architecture, hyperparameters, weights, description)
    }

    fn build(
        architecture: &Architecture,
        hyperparameters: Hyperparameters,
        weights: Weights,
        description: Description,
    ) -> Result<Self, ModelError> {
        let predictors = Unused::of(further_layers(&hyperparameters, &weights));
        let is_indexer = |tensor: &&TensorInfo| {
            layer_of(&tensor.name).is_some_and(|layer| layer < hyperparameters.layers)
                && tensor.name.contains(".indexer.")
        };
        let indexers = weights.tensors().iter().filter(is_indexer);
        let indexers = Unused::of(indexers.map(|tensor| (&*tensor.name, tensor.bytes)));
        let weights = converted::split_latents(weights, &hyperparameters)?;
        let weights = converted::split_key_heads(weights, &hyperparameters)?;
        let weights = converted::split_layers(weights, &hyperparameters)?;
        let weights = converted::widen_rows(weights)?;
        let mut graph = architecture.build(&hyperparameters, &weights)?;
        passes::fuse_residuals(&mut graph);
        graph.check();
        let (weights, graph, granularity) = (Arc::new(weights), Arc::new(graph), Granularity::default());
        Ok(Self { hyperparameters, description, weights, graph, granularity, predictors, indexers })
    }

    /// Returns the same model with `scaling` instead of its own RoPE scaling. Its context becomes its
    /// original context times the factor.
    ///
    /// # Errors
    /// Fails only if the model's tensors do not fit its architecture.
    pub fn with_rope_scaling(&self, scaling: RopeScaling) -> Result<Self, ModelError> {
        let mut hyperparameters = self.hyperparameters.clone();
        scaling.apply(&mut hyperparameters);
        self.rebuilt(hyperparameters)
    }

    /// Returns the same model, whose last stage returns hidden rows: those of the last norm, in place of logits. The
    /// projection to logits is not loaded.
    ///
    /// # Errors
    /// Fails only if the model's tensors do not fit its architecture.
    pub fn with_hidden_rows(&self) -> Result<Self, ModelError> {
        let mut hyperparameters = self.hyperparameters.clone();
        hyperparameters.extras.returns_hidden = true;
        self.rebuilt(hyperparameters)
    }

    /// Returns the same model with other hyperparameters.
    fn rebuilt(&self, hyperparameters: Hyperparameters) -> Result<Self, ModelError> {
        let architecture = Architecture::find(&hyperparameters.architecture)?;
        let (weights, description) = (Weights::clone(&self.weights), self.description.clone());
        let model = Self::build(architecture, hyperparameters, weights, description)?;
        Ok(Self { predictors: self.predictors, ..model.with_granularity(self.granularity) })
    }

    /// Returns the same model, divided into segments of `granularity`. The default is [`Granularity::Block`].
    /// Blocks whose two halves read the same norm, or that consist of several layers, are not divided.
    #[must_use]
    pub fn with_granularity(&self, granularity: Granularity) -> Self {
        let blocks = self.hyperparameters.blocks();
        let halves = self.graph.by_segment(Granularity::HalfBlock.segment_count(blocks));
        let is_divisible =
            blocks == self.hyperparameters.layers && halves.iter().all(|nodes| !nodes.is_empty());
        let granularity = if is_divisible { granularity } else { Granularity::Block };
        Self { granularity, ..self.clone() }
    }

    /// Returns the granularity at which the model is divided into segments.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// Builds the tokenizer from the model's metadata or directory.
    ///
    /// # Errors
    /// Fails if the model has no tokenizer, or if its tokenizer is unsupported or invalid.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        match &self.description {
            Description::Metadata(metadata) => Tokenizer::from_metadata(metadata),
            Description::Directory(directory) => Tokenizer::from_directory(directory),
        }
    }

    /// Returns the number of tokens in the tokenizer's vocabulary, without building the tokenizer. Returns `None` for a
    /// directory, whose tokenizer files do not state it.
    ///
    /// # Errors
    /// Fails if the model has no tokenizer, or if the tokenizer of a GGUF file is unsupported.
    pub fn token_count(&self) -> Result<Option<usize>, TokenizerError> {
        match &self.description {
            Description::Metadata(metadata) => tokenizer::count_tokens(metadata).map(Some),
            Description::Directory(directory) => tokenizer::find(directory).map(|_| None),
        }
    }

    /// Checks that a KV cache of type `kv` can hold the model's keys and values.
    ///
    /// # Errors
    /// [`ModelError::KvType`] if it cannot.
    pub fn check_kv(&self, kv: KvType) -> Result<(), ModelError> {
        let h = &self.hyperparameters;
        for head_dimensions in
            [Some(h.head_dimensions), h.extras.windowed_head_dimensions].into_iter().flatten()
        {
            if !kv.takes(head_dimensions) {
                return Err(ModelError::KvType { kv, head_dimensions });
            }
        }
        Ok(())
    }

    /// Returns the hyperparameters.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    /// Reads the chat templates from the model's metadata or directory. A model may have none.
    ///
    /// # Errors
    /// Fails if a value has the wrong type or a file is damaged.
    pub fn chat_templates(&self) -> Result<ChatTemplates, FormatError> {
        match &self.description {
            Description::Metadata(metadata) => ChatTemplates::from_metadata(metadata),
            Description::Directory(directory) => ChatTemplates::from_directory(directory),
        }
    }

    /// Returns the metadata of the GGUF file, or `None` if the model comes from a directory.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.description {
            Description::Metadata(metadata) => Some(metadata),
            Description::Directory(_) => None,
        }
    }

    /// Returns the weight tensors, under their GGUF names.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Returns the layers that predict further tokens.
    pub fn predictors(&self) -> Unused {
        self.predictors
    }

    /// Returns the layers with an indexer. It is not used, because the context is limited.
    pub fn indexers(&self) -> Unused {
        self.indexers
    }

    /// Checks that the model supports contexts of `context` tokens.
    ///
    /// # Errors
    /// [`ModelError::Context`] if it does not.
    pub fn check_context(&self, context: u32) -> Result<(), ModelError> {
        match self.hyperparameters.extras.indexer {
            Some(Indexer { positions: most, .. }) if context > most => {
                Err(ModelError::Context { context, most })
            }
            _ => Ok(()),
        }
    }

    /// Returns the operator graph for devices without matrix units. Products with quantized weights use
    /// activations of type `activations`. All other products use f32 activations.
    pub fn graph(&self, activations: Activations) -> OperatorGraph {
        self.lowered(None, |t, _| basic_form(t, activations), |_, _| false)
    }

    /// Returns the operator graph for a device. `form` selects the activation type of a product from its
    /// weight type and row count, and `has` returns whether the device has a fast variant of an optional kernel. Without
    /// `splits`, no attention is split.
    pub(crate) fn lowered(
        &self,
        splits: Option<Splits<'_>>,
        form: impl Fn(TensorType, Rows) -> Activations,
        has: impl Fn(Kernel, Rows) -> bool,
    ) -> OperatorGraph {
        let mut graph = OperatorGraph::clone(&self.graph);
        graph.renumber(|half| self.granularity.segment_of(half));
        if let Some(splits) = splits {
            passes::split_attention(&mut graph, splits);
        }
        let shape = |stack: &Stack| stack.shape(&self.weights);
        passes::quantize_activations(&mut graph, |operator, rows| match operator {
            Operator::MatMul(MatMul { weights, .. }) => form(shape(weights).tensor_type, rows),
            Operator::ExpertMatMul(ExpertMatMul { weights, .. }) => {
                let tensor_type = shape(weights).tensor_type;
                let has =
                    |activations: &Activations| has(Kernel::ExpertMatMul(tensor_type, *activations), rows);
                let is_exact = form(tensor_type, rows) == Activations::F32;
                let fast = [Activations::F16, Activations::Int8].into_iter().filter(|_| !is_exact);
                fast.into_iter().find(has).unwrap_or(Activations::F32)
            }
            _ => Activations::F32,
        });
        passes::widen_weights(&mut graph, |stack, rows| {
            let shape = shape(stack);
            let decodes = has(Kernel::MatMul(shape.tensor_type, Activations::F16), rows);
            let is_widened = shape.tensor_type.block_bytes() != 2 && !decodes;
            is_widened.then_some((shape.rows, shape.columns))
        });
        graph.check();
        graph
    }

    /// Returns the number of segments, including the embedding and the head.
    pub fn segment_count(&self) -> usize {
        self.granularity.segment_count(self.hyperparameters.blocks())
    }

    /// Returns the total number of parameters in all tensors.
    pub fn parameters(&self) -> u64 {
        self.weights.tensors().iter().map(TensorInfo::values).sum()
    }

    pub(crate) fn segment_kind(&self, segment: usize) -> SegmentKind {
        self.granularity.kind(segment, self.hyperparameters.blocks())
    }

    /// Returns the name of a segment.
    pub fn segment_name(&self, segment: usize) -> String {
        let (blocks, layers) = (self.hyperparameters.blocks(), self.hyperparameters.layers);
        if blocks < layers && segment == blocks as usize {
            return format!("blocks {} to {}", blocks - 1, layers - 1);
        }
        self.granularity.name(segment, blocks)
    }

    /// Returns the graph in the DOT language of Graphviz.
    pub fn dot(&self, activations: Activations) -> String {
        let names: Vec<_> = (0..self.segment_count()).map(|s| self.segment_name(s)).collect();
        self.graph(activations).dot(&names)
    }
}

/// Returns the names and sizes of the tensors in layers after the last one.
fn further_layers<'a>(h: &Hyperparameters, weights: &'a Weights) -> impl Iterator<Item = (&'a str, u64)> {
    let layers = h.layers;
    let tensors = weights.tensors().iter();
    let further = tensors.filter(move |tensor| layer_of(&tensor.name).is_some_and(|layer| layer >= layers));
    further.map(|tensor| (&*tensor.name, tensor.bytes))
}

/// Returns whether products with weights of type `tensor_type` can take int8 activations.
pub(crate) fn is_quantised(tensor_type: TensorType) -> bool {
    matmul::takes(tensor_type, Activations::Int8)
}

/// Returns the activation type of a product on a device without matrix units. `wanted` is the type that the
/// user chose for products with quantized weights.
pub(crate) fn basic_form(tensor_type: TensorType, wanted: Activations) -> Activations {
    if is_quantised(tensor_type) { wanted } else { Activations::F32 }
}
