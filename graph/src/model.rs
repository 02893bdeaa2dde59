//! A model: its numbers, its weights and its operator graph, lowered for a form of activations.

use crate::arch::{Architecture, Hyperparameters};
use crate::boundary::Boundary;
use crate::checkpoint;
use crate::error::{FormatError, TokenizerError};
use crate::gguf::{Metadata, ModelFile};
use crate::granularity::Granularity;
use crate::op::{Operator, OperatorGraph, Rows};
use crate::passes;
use crate::segment::{self, Segment, SegmentKind};
use crate::source::Directory;
use crate::stack::{Stack, StackedMatrix};
use crate::tokenizer::Tokenizer;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::{Activations, KvType, Layout, TensorType};
use std::sync::Arc;

/// Why a file is not a model that Ragtag can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An architecture that is not in the table.
    #[error("architecture {name:?} is not supported; supported are {known}")]
    Architecture {
        /// The file's.
        name: String,
        /// Those of the table.
        known: String,
    },
    /// A hyperparameter that no model can have.
    #[error("{key}: {why}")]
    Hyperparameter {
        /// Its key.
        key: String,
        /// What is wrong with its value.
        why: String,
    },
    /// A tensor that the architecture needs.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor that the architecture does not use; the model would be computed without it.
    #[error(
        "tensor {name} is not part of this architecture as Ragtag knows it; running without it would be wrong"
    )]
    UnknownTensor {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape than the hyperparameters say.
    #[error("tensor {name} has shape {found:?}; the hyperparameters ask for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Shape by the hyperparameters, row length first.
        expected: Vec<u64>,
        /// Shape in the file.
        found: Vec<u64>,
    },
    /// A tensor of which the files hold a description alone.
    #[error("the data of tensor {name} is not there: such a model can be planned for, not run")]
    NoData {
        /// Its name.
        name: String,
    },
    /// A feature of the model that Ragtag does not have.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
}

/// The choices that shape programs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// Form of the activations that enter products with quantised weights.
    pub activations: Activations,
    /// Form of keys and values.
    pub kv: KvType,
    /// Longest sequence, in positions.
    pub context: u32,
    /// Most sequences at a time.
    pub sequences: u32,
    /// Most rows of a micro-batch.
    pub chunk: u32,
    /// Most rows of a micro-batch of which logits are wanted.
    pub logit_rows: u32,
    /// Form in which activations cross between stages.
    pub boundary: Boundary,
}

impl Lowering {
    /// Cache blocks that one sequence needs at the full context.
    pub fn table_blocks(&self) -> u32 {
        self.context.div_ceil(ragtag_kernels::params::BLOCK_TOKENS as u32)
    }

    /// Cache blocks in all.
    pub fn cache_blocks(&self) -> u32 {
        self.table_blocks().saturating_mul(self.sequences)
    }
}

/// Where a model's files say what its weights are, and how text becomes tokens.
#[derive(Clone, Debug)]
enum Description {
    /// Metadata of a GGUF file.
    Metadata(Arc<Metadata>),
    /// The files beside the weights.
    Directory(Arc<Directory>),
}

/// A model's files, understood. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Model {
    hyperparameters: Hyperparameters,
    description: Description,
    weights: Arc<Weights>,
    /// Its nodes are numbered by the finest cut.
    graph: Arc<OperatorGraph>,
    granularity: Granularity,
}

impl Model {
    /// Reads the hyperparameters of GGUF files and builds the operator graph; no weights are read.
    ///
    /// # Errors
    /// [`ModelError`] names the key, tensor or architecture at fault.
    pub fn new(file: ModelFile) -> Result<Self, ModelError> {
        let architecture = Architecture::find(file.metadata.get("general.architecture")?)?;
        let hyperparameters = Hyperparameters::read(&file.metadata, &file.weights)?;
        let description = Description::Metadata(Arc::new(file.metadata));
        Self::build(architecture, hyperparameters, file.weights, description)
    }

    /// Reads the hyperparameters of a directory with `config.json` and safetensors files, and builds the operator
    /// graph; no weights are read. The directory must hold [`checkpoint::FILES`], as far as they exist, and
    /// [`checkpoint::shard_names`].
    ///
    /// # Errors
    /// [`ModelError`] names the file, key, tensor or architecture at fault.
    pub fn from_directory(directory: Directory) -> Result<Self, ModelError> {
        let (architecture, hyperparameters, weights) =
            checkpoint::open(&directory).map_err(checkpoint::with_original_names)?;
        let description = Description::Directory(Arc::new(directory));
        Self::build(architecture, hyperparameters, weights, description)
            .map_err(checkpoint::with_original_names)
    }

    /// The model of a directory with `config.json` and no weights: what they would be follows from the hyperparameters, and
    /// from the type that `config.json` names (`torch_dtype` or `dtype`) or that is given for its matrices.
    ///
    /// # Errors
    /// [`ModelError`] names the key or tensor at fault.
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
        let mut graph = architecture.build(&hyperparameters, &weights)?;
        check_columns(&graph, &weights)?;
        passes::fuse_residuals(&mut graph);
        let (weights, graph, granularity) = (Arc::new(weights), Arc::new(graph), Granularity::default());
        Ok(Self { hyperparameters, description, weights, graph, granularity })
    }

    /// The same model, cut into segments of this granularity. Models are opened with blocks as segments.
    #[must_use]
    pub fn with_granularity(&self, granularity: Granularity) -> Self {
        Self { granularity, ..self.clone() }
    }

    /// What of a block is a segment.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// Builds the tokenizer that the files describe.
    ///
    /// # Errors
    /// They have none, or one that is not supported.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        match &self.description {
            Description::Metadata(metadata) => Tokenizer::from_metadata(metadata),
            Description::Directory(directory) => Tokenizer::from_directory(directory),
        }
    }

    /// The numbers that shape it.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    /// The metadata of a GGUF file.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.description {
            Description::Metadata(metadata) => Some(metadata),
            Description::Directory(_) => None,
        }
    }

    /// The tensors, under the names that GGUF files give them.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// The operator graph with products of quantised weights in this form, and others with f32 activations: what devices
    /// without matrix units compute.
    pub fn graph(&self, activations: Activations) -> OperatorGraph {
        self.lowered(None, |t, _| basic_form(t, activations))
    }

    /// The operator graph with each product in the form that is said of its weights' type and its rows, and attention
    /// split into so many runs of positions.
    pub(crate) fn lowered(
        &self,
        splits: Option<u32>,
        form: impl Fn(TensorType, Rows) -> Activations,
    ) -> OperatorGraph {
        let mut graph = OperatorGraph::clone(&self.graph);
        graph.renumber(|half| self.granularity.segment_of(half));
        if let Some(splits) = splits {
            passes::split_attention(&mut graph, self.hyperparameters.head_dimensions, splits);
        }
        let of_type = |stack: &Stack| stack.infos(&self.weights).ok()?.first().map(|t| t.tensor_type);
        passes::quantize_activations(&mut graph, |stack, rows| {
            of_type(stack).map_or(Activations::F32, |tensor_type| form(tensor_type, rows))
        });
        passes::widen_weights(&mut graph, |stack| {
            of_type(stack).filter(|t| is_quantised(*t))?;
            let matrix = *StackedMatrix::new(&self.weights, stack, |_| Layout::Rows16).ok()?.resident();
            Some((matrix.rows() as u32, matrix.columns() as u32))
        });
        graph
    }

    /// Number of segments: embedding, blocks or their halves, head.
    pub fn segment_count(&self) -> usize {
        self.granularity.segment_count(self.hyperparameters.layers)
    }

    /// The segments with their costs.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if a tensor has no resident layout.
    pub fn segments(&self, lowering: &Lowering) -> Result<Vec<Segment>, ModelError> {
        segment::segments(self, lowering)
    }

    /// Parameters in all tensors.
    pub fn parameters(&self) -> u64 {
        self.weights.tensors().iter().map(|t| t.shape.iter().product::<u64>()).sum()
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.weights.tensor(name).ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    pub(crate) fn segment_kind(&self, segment: usize) -> SegmentKind {
        self.granularity.kind(segment, self.hyperparameters.layers)
    }

    /// Name of a segment.
    pub fn segment_name(&self, segment: usize) -> String {
        self.granularity.name(segment, self.hyperparameters.layers)
    }

    /// The graph in Graphviz's language.
    pub fn dot(&self, activations: Activations) -> String {
        let names: Vec<_> = (0..self.segment_count()).map(|s| self.segment_name(s)).collect();
        self.graph(activations).dot(&names)
    }
}

/// Whether products with this type may take int8 activations.
pub(crate) fn is_quantised(tensor_type: TensorType) -> bool {
    ragtag_kernels::matmul::takes(tensor_type, Activations::Int8)
}

/// The activations of a product on a device without matrix units, where `wanted` are asked for.
pub(crate) fn basic_form(tensor_type: TensorType, wanted: Activations) -> Activations {
    if is_quantised(tensor_type) { wanted } else { Activations::F32 }
}

/// Int8 activations come in blocks of 32, and kernels of every type step by 32 columns.
fn check_columns(graph: &OperatorGraph, weights: &Weights) -> Result<(), ModelError> {
    for node in graph.ordered() {
        let node = graph.node(node);
        let matrix = matches!(node.operator, Operator::MatMul { .. } | Operator::Embed { .. });
        let tensors = node.operator.tensors().iter().filter(|_| matrix);
        for tensor in tensors.filter_map(|name| weights.tensor(name)) {
            if !tensor.shape[0].is_multiple_of(32) {
                let what = format!(
                    "tensor {} with rows of {} values (a multiple of 32 is needed)",
                    tensor.name, tensor.shape[0]
                );
                return Err(ModelError::Unsupported { what });
            }
        }
        debug_assert!(node.rows == Rows::Tokens || node.segment > 0);
    }
    Ok(())
}
