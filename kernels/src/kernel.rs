//! The registry of kernels: one folder with a [`Spec`] and one row per kernel. A kernel is the operation that
//! one step of a program computes, independent of its implementation on a device.

use crate::blocks::TensorType;
use crate::cases::{Case, Random};
pub use crate::element_type::ElementType;
use crate::elements::Operator;
pub use crate::kv::{CacheType, KvType};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::{abi, half_rows, quantize};
use ragtag_hal::EntryAbi;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Class of a kernel's accuracy relative to float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumericsClass {
    /// f32 activations: relative error of at most 1e-4.
    Exact,
    /// int8 or f16 activations, or an f16 or quantized KV cache: relative error of at most 2e-2.
    Fast,
}

impl NumericsClass {
    /// Returns the maximum relative error ‖out − ref‖ / ‖ref‖ that the class allows.
    pub fn tolerance(self) -> f64 {
        match self {
            NumericsClass::Exact => 1e-4,
            NumericsClass::Fast => 2e-2,
        }
    }
}

/// Error bound for results that are rounded to f16. The error is 2.8e-4 if all values have similar magnitude,
/// and at most 4.9e-4.
const ROUNDED_TO_F16: f64 = 6e-4;

/// Accuracy of a kernel.
pub(crate) struct Accuracy {
    /// Class of the error that the kernel itself adds.
    pub class: NumericsClass,
    /// Maximum relative error ‖out − ref‖ / ‖ref‖.
    pub bound: f64,
}

impl Accuracy {
    pub fn exact(bound: f64) -> Self {
        Self { class: NumericsClass::Exact, bound }
    }

    pub fn fast(bound: f64) -> Self {
        Self { class: NumericsClass::Fast, bound }
    }

    /// Returns the accuracy of a kernel whose output is rows of `activations`. `exact` is its bound for f32.
    pub fn of_rows(activations: Activations, exact: f64) -> Self {
        match activations {
            Activations::F32 => Self::exact(exact),
            Activations::F16 => Self::fast(ROUNDED_TO_F16),
            // The values of a block differ in size.
            Activations::Int8 => Self::fast(1e-2),
        }
    }

    /// Returns the accuracy of a kernel that writes keys and values of type `kv_type`. `exact` is its bound
    /// for f32.
    pub fn of_cache(kv_type: KvType, exact: f64) -> Self {
        match kv_type {
            KvType::F32 => Self::exact(exact),
            KvType::F16 => Self::fast(ROUNDED_TO_F16),
            // A value between two quants may round to either of them.
            KvType::Q8_0 => Self::fast(3e-3),
            KvType::Q8_0Q4_0 | KvType::Q4_0 => Self::fast(1.5e-2),
        }
    }
}

/// Type of the activations that a matrix product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// f32.
    F32,
    /// int8 in blocks of 32 values that share a scale: see [`crate::quantize`].
    Int8,
    /// f16 in padded rows: see [`crate::half_rows`].
    F16,
}

impl Activations {
    /// All activation types.
    pub const ALL: [Activations; 3] = [Activations::F32, Activations::Int8, Activations::F16];

    /// Returns the distance in bytes between consecutive rows of `width` values. For int8 and f16, `width` is
    /// a multiple of 32.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Activations::F32 => width * 4,
            Activations::Int8 => quantize::row_bytes(width),
            Activations::F16 => half_rows::row_bytes(width),
        }
    }

    /// Returns the value for this type.
    pub(crate) fn select<T>(self, f32: T, int8: T, f16: T) -> T {
        match self {
            Activations::F32 => f32,
            Activations::Int8 => int8,
            Activations::F16 => f16,
        }
    }

    /// Returns the number of bytes in `rows` rows, or `IMPOSSIBLE` if the activation type does not support
    /// `width`.
    pub(crate) fn rows_extent(self, rows: u32, width: u32) -> u64 {
        match self {
            Activations::F32 => abi::words(&[rows, width]),
            Activations::Int8 => quantize::rows_extent(rows, width),
            Activations::F16 => half_rows::rows_extent(rows, width),
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
            Activations::F16 => "f16",
        })
    }
}

/// Specification of a kernel, in the kernel's folder. Values of the implementing type hold the types that
/// distinguish the values of [`Kernel`].
pub(crate) trait Spec {
    /// Returns whether the kernel has variants.
    fn exists(&self) -> bool {
        true
    }

    /// Returns whether a device may lack the kernel.
    fn is_optional(&self) -> bool {
        false
    }

    /// Returns the accuracy of the kernel. The default fits kernels that copy values, or round few
    /// intermediate results.
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(1e-6)
    }

    /// Returns the binary interface for weights in `layout`.
    fn abi(&self, layout: Layout) -> &'static EntryAbi;

    /// Returns the layout of the weights that the kernel reads, or `None` if it reads no weights. `kept`
    /// returns the layout in which the device stores a type.
    fn layout(&self, _kept: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        None
    }

    /// Returns the sources of a kernel in the programs of row kernels.
    fn row_kernel(&self) -> Option<RowKernel> {
        None
    }

    /// Returns the sources of a general operator other than a product.
    fn operator(&self) -> Option<Operator> {
        None
    }

    /// Returns the listed conformance cases, with weights in `layout`.
    fn cases(&self, layout: Layout, random: &mut Random) -> Vec<Case>;

    /// Returns a conformance case of random shape, with weights in `layout`.
    fn random_case(&self, layout: Layout, random: &mut Random) -> Case;
}

/// Evaluates `$do` for every combination of values of the given types.
macro_rules! each {
    ($do:expr;) => { $do };
    ($do:expr; $of:ident: $type:ty, $($rest:tt)*) => {
        for $of in <$type>::ALL {
            each!($do; $($rest)*);
        }
    };
}

/// Defines [`Kernel`]. A row has the name of a kernel in messages, its value of [`Kernel`], and its
/// specification. The sources of kernels that share a program follow each other in the order of the rows.
macro_rules! kernels {
    ($(
        $(#[doc = $doc:literal])*
        $text:literal $name:ident $(($($of:ident: $type:ty),+))? => $($module:ident)::+ $(($($part:expr),+))?;
    )*) => {
        /// An operation with a defined interface. Its module documents its bindings, constants and semantics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Kernel {
            $($(#[doc = $doc])* $name $(($($type),+))?,)*
        }

        impl Kernel {
            /// Returns all kernels that have variants.
            pub fn all() -> Vec<Kernel> {
                let mut all = Vec::new();
                $(each!(all.push(Kernel::$name $(($($of),+))?); $($($of: $type,)+)?);)*
                all.retain(|kernel| kernel.spec().exists());
                all
            }

            /// Returns the specification in the kernel's folder.
            pub(crate) fn spec(self) -> Box<dyn Spec> {
                match self {
                    $(Kernel::$name $(($($of),+))? => Box::new(crate::$($module)::+ $(($($part),+))?),)*
                }
            }
        }

        impl fmt::Display for Kernel {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Kernel::$name $(($($of),+))? => {
                        f.write_str($text)?;
                        $($(write!(f, "/{}", $of)?;)+)?
                    })*
                }
                Ok(())
            }
        }
    };
}

kernels! {
    /// Looks up rows of an embedding table.
    "embed" Embed(weights: TensorType) => embed::Embed(weights);
    /// Selects the rows that need logits.
    "gather" Gather => gather::Gather;
    /// Addition in place: x += y.
    "add" Add => add::Add;
    /// Converts f32 to int8 or f16 activations.
    "quantize" Quantize(out: Activations) => quantize::Quantize(out);
    /// RMS norm with output of the given activation type.
    "rms-norm" RmsNorm(out: Activations) => rms_norm::RmsNorm(out);
    /// SiLU(gate) · up with output of the given activation type.
    "silu-mul" SiluMul(out: Activations) => silu_mul::SiluMul(out);
    /// Second launch of split attention: combines the splits into activations of the given type.
    "attention-merge" AttentionMerge(out: Activations) => attention::merge::AttentionMerge(out);
    /// Position of the largest value in each row.
    "arg-max" ArgMax => arg_max::ArgMax;
    /// The largest values of each row, in descending order.
    "top-k" TopK => top_k::TopK;
    /// The best logits of the parts of each row.
    "peaks" Peaks => picks::peaks::Peaks;
    /// The best logits of each row, from those of its parts.
    "picks" Picks => picks::Picks;
    /// Norm of each query and key head.
    "head-norm" HeadNorm => head_norm::HeadNorm;
    /// Product of weights of the given type and activations.
    "matmul" MatMul(weights: TensorType, x: Activations) => matmul::MatMul(weights, x);
    /// RMS norm fused with the product of its f32 output and weights of the given type.
    "norm-matmul" NormMatMul(weights: TensorType) => matmul::normed::Normed(weights, false);
    /// RMS norm, the products of its output with gate and up weights, and SiLU(gate) · up, fused into one
    /// kernel.
    "gated-matmul" GatedMatMul(weights: TensorType) => matmul::normed::Normed(weights, true);
    /// Dequantizes weights of the given type to f16.
    "widen" Widen(weights: TensorType) => widen::Widen(weights);
    /// RoPE and KV append.
    "rope-append" RopeAppend(kv: KvType) => rope_append::RopeAppend(kv);
    /// Causal attention over the KV cache.
    "attention" Attention(kv: KvType) => attention::Attention(kv);
    /// First launch of split attention: causal attention over splits of the positions.
    "attention-partial" AttentionPartial(kv: KvType) => attention::partial::AttentionPartial(kv);
    /// First launch of split attention with one split, for rows of prompts, which share loads of keys and values.
    "attention-shared" AttentionShared(kv: KvType) => attention::shared::AttentionShared(kv);
    /// RoPE, KV append and the first launch of split attention, fused, for one row.
    "append-attention" AppendAttention(kv: KvType) => attention::append::AppendAttention(kv);
    /// C = α · op(A) · op(B) + β · C, with A and B of the given type.
    "gemm" Gemm(element: ElementType) => gemm::Gemm(element);
    /// Attention over dense keys and values of the given type, with the masks and score functions of common
    /// models.
    "attention-dense" AttentionDense(element: ElementType) => attention_dense::AttentionDense(element);
    /// Convolution of images with weights, both of the given type.
    "conv2d" Conv2d(element: ElementType) => conv2d::Conv2d(element);
    /// Copies elements between strided tensors and converts their type.
    "copy" Copy => copy::Copy;
    /// Looks up rows of a table and converts their type.
    "gather-rows" GatherRows => gather_rows::GatherRows;
    /// Applies a function to each value.
    "unary" Unary => unary::Unary;
    /// Applies an operation to pairs of values.
    "binary" Binary => binary::Binary;
    /// Reduces each line of values along an axis to one value.
    "reduce" Reduce => reduce::Reduce;
    /// Softmax along an axis.
    "softmax-axis" SoftmaxAxis => softmax_axis::SoftmaxAxis;
    /// Layer norm of rows.
    "layer-norm" LayerNorm => layer_norm::LayerNorm;
    /// Rotary position embedding of heads.
    "rope" Rope => rope::Rope;
    /// Decodes blocks of a file to values.
    "decode-blocks" DecodeBlocks => file_blocks::FileBlocks::Decode;
    /// Encodes values as blocks of a file.
    "encode-blocks" EncodeBlocks => file_blocks::FileBlocks::Encode;
    /// Sums over the words of a buffer, for the comparison of buffers on different devices.
    "checksum" Checksum => checksum::Checksum;
    /// Experts of each row, and their weights.
    "expert-route" ExpertRoute => experts::route::ExpertRoute;
    /// Gated function of the results of each row's experts.
    "expert-gate" ExpertGate => experts::gate::ExpertGate;
    /// Products of activations and the weights of their experts, both of the given types.
    "expert-matmul" ExpertMatMul(weights: TensorType, x: Activations) => experts::matmul::ExpertMatMul(weights, x);
    /// Weighted sum of the results of each row's experts.
    "expert-combine" ExpertCombine => experts::combine::ExpertCombine;
    /// Queries, keys and values of multi-head latent attention.
    "latent-rows" LatentRows => latent::LatentRows;
    /// Second launch of split attention with sinks: combines the splits.
    "attention-merge-sinks" AttentionMergeSinks => attention::merge_sinks::AttentionMergeSinks;
    /// Causal convolution over the rows of each sequence, with a state.
    "causal-conv" CausalConv => recurrent::conv::CausalConv;
    /// Linear recurrence over the rows of each sequence, with a state.
    "state-scan" StateScan => recurrent::scan::StateScan;
    /// Product of rows and a function of gates, with an RMS norm.
    "gated-norm" GatedNorm => recurrent::gated_norm::GatedNorm;
    /// Queries, keys and values of heads with gates.
    "gated-heads" GatedHeads => recurrent::gated_heads::GatedHeads;
    /// xIELU, an activation function with learned numbers.
    "xielu" Xielu => xielu::Xielu;
}

impl Kernel {
    /// Returns whether a device may lack the kernel, because several others do the same. Such a kernel has variants
    /// only for devices on which it is faster.
    pub fn is_optional(self) -> bool {
        self.spec().is_optional()
    }

    /// Returns the numerics class of the kernel's variants. The class describes the error that the kernel
    /// itself adds. A kernel that writes an f16 or quantized KV cache is fast, because it rounds keys and values.
    pub fn class(self) -> NumericsClass {
        self.spec().accuracy().class
    }

    /// Returns the maximum relative error ‖out − ref‖ / ‖ref‖ of the kernel's variants. Some variants have a
    /// larger [`Variant::bound`](crate::Variant::bound).
    pub fn bound(self) -> f64 {
        self.spec().accuracy().bound
    }

    /// Returns the binary interface of variants that read weights in `layout`.
    pub(crate) fn abi(self, layout: Option<Layout>) -> &'static EntryAbi {
        self.spec().abi(layout.unwrap_or(Layout::Rows16))
    }

    /// Returns the layout of the weights that the kernel reads, or `None` if it reads no weights. `kept`
    /// returns the layout in which the device stores a type. Products with f16 activations always read the
    /// row-major layout, because matrix units load rows.
    pub fn layout(self, kept: impl Fn(TensorType) -> Layout) -> Option<Layout> {
        self.spec().layout(&kept)
    }
}
