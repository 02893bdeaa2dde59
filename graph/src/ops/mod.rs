//! The registry of operators: an implementation of `Lower` and one row per operator.

mod attention;
mod elementwise;
mod experts;
mod kv;
mod latent;
mod lower;
mod matmul;
mod norm;
mod picks;
mod recurrent;
mod rope_append;
mod rows;
mod weight;

pub(crate) use elementwise::row_copy;
pub(crate) use kv::{CacheUse, StateUse};
pub(crate) use lower::{Argument, Cache, Call, Cost, Lower, Output, Part, Site, State, Tensor, Work};
pub(crate) use matmul::WIDENED;
pub(crate) use weight::{Weight, pair_pitch};

pub use attention::Scores;
pub use kv::Heads;
pub use lower::{Rows, Shape};
pub use recurrent::ScanHeads;
pub use weight::Affine;

use std::fmt;

/// Defines [`Operator`]. A row has the name of an operator and its type, which says what the operator does.
macro_rules! operators {
    ($($text:literal $module:ident::$name:ident;)*) => {
        $(pub use $module::$name;)*

        /// Operation of a node on its inputs.
        #[derive(Clone, PartialEq)]
        pub enum Operator {
            $(#[doc = concat!("See [`", stringify!($name), "`](struct@", stringify!($name), ").")] $name($name),)*
        }

        $(impl From<$name> for Operator {
            fn from(operator: $name) -> Self {
                Self::$name(operator)
            }
        })*

        impl Operator {
            /// Returns the name of the operation, without parameters.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $text,)*
                }
            }

            pub(crate) fn lower(&self) -> &dyn Lower {
                match self {
                    $(Self::$name(operator) => operator,)*
                }
            }

            pub(crate) fn lower_mut(&mut self) -> &mut dyn Lower {
                match self {
                    $(Self::$name(operator) => operator,)*
                }
            }
        }
    };
}

operators! {
    "embed" rows::Embed;
    "lookup" rows::Lookup;
    "gather" rows::Gather;
    "peaks" picks::Peaks;
    "picks" picks::Picks;
    "rms-norm" norm::RmsNorm;
    "layer-norm" norm::LayerNorm;
    "scale" elementwise::Scale;
    "scale-by" elementwise::ScaleBy;
    "xielu" elementwise::Xielu;
    "unary" elementwise::Unary;
    "quantize" elementwise::Quantize;
    "widen" matmul::Widen;
    "matmul" matmul::MatMul;
    "bias" matmul::Bias;
    "head-norm" norm::HeadNorm;
    "query-growth" norm::QueryGrowth;
    "rope-append" rope_append::RopeAppend;
    "attention" attention::Attention;
    "attention-partial" attention::AttentionPartial;
    "attention-merge" attention::AttentionMerge;
    "silu-mul" elementwise::SiluMul;
    "add" elementwise::Add;
    "scale-rows" elementwise::ScaleRows;
    "expert-route" experts::ExpertRoute;
    "expert-matmul" experts::ExpertMatMul;
    "expert-gate" experts::ExpertGate;
    "expert-combine" experts::ExpertCombine;
    "head-matmul" latent::HeadMatMul;
    "latent-rows" latent::LatentRows;
    "causal-conv" recurrent::CausalConv;
    "state-scan" recurrent::StateScan;
    "gated-norm" recurrent::GatedNorm;
    "gated-heads" recurrent::GatedHeads;
}

impl Operator {
    /// Returns the names of the weight tensors that the operator reads.
    pub fn tensors(&self) -> Vec<String> {
        self.lower().weights().iter().flat_map(Weight::tensors).cloned().collect()
    }
}

/// Formats the operator without the name of its variant, which is also the name of its type.
impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lower().fmt(f)
    }
}
