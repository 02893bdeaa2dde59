//! Names of kernels. A kernel is the operation that one step of a program computes, independent of its
//! implementation on a device.

use crate::blocks::TensorType;
use crate::layout::Layout;
use crate::{abi, half_rows, quantize};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Class of a kernel's accuracy relative to float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumericsClass {
    /// f32 activations: relative error of at most 1e-4.
    Exact,
    /// int8 or f16 activations, or an f16 KV cache: relative error of at most 2e-2.
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

/// Type of the values that a general operator accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16, the upper half of an f32.
    BF16,
}

impl ElementType {
    /// All element types.
    pub const ALL: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::BF16];

    /// Returns the number of bytes in one value.
    pub fn bytes(self) -> u64 {
        match self {
            ElementType::F32 => 4,
            ElementType::F16 | ElementType::BF16 => 2,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::F32 => "f32",
            ElementType::F16 => "f16",
            ElementType::BF16 => "bf16",
        })
    }
}

/// Storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// f32.
    F32,
    /// f16.
    F16,
}

impl KvType {
    /// Returns the number of bytes in one value.
    pub fn bytes(self) -> u64 {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

/// An operation with a defined interface. Its module documents its bindings, constants and semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernel {
    /// Looks up rows of an embedding table.
    Embed(TensorType),
    /// Selects the rows that need logits.
    Gather,
    /// RMS norm with output of the given activation type.
    RmsNorm(Activations),
    /// Converts f32 to int8 or f16 activations.
    Quantize(Activations),
    /// Product of weights of the given type and activations.
    MatMul(TensorType, Activations),
    /// RMS norm fused with the product of its f32 output and weights of the given type.
    NormMatMul(TensorType),
    /// RMS norm, the products of its output with gate and up weights, and SiLU(gate) · up, fused into one
    /// kernel.
    GatedMatMul(TensorType),
    /// Dequantizes weights of the given type to f16.
    Widen(TensorType),
    /// RMS norm of each query and key head.
    HeadNorm,
    /// RoPE and KV append.
    RopeAppend(KvType),
    /// Causal attention over the KV cache.
    Attention(KvType),
    /// First launch of split attention: causal attention over splits of the positions.
    AttentionPartial(KvType),
    /// RoPE, KV append and the first launch of split attention, fused, for one row.
    AppendAttention(KvType),
    /// Second launch of split attention: combines the splits into activations of the given type.
    AttentionMerge(Activations),
    /// SiLU(gate) · up with output of the given activation type.
    SiluMul(Activations),
    /// Addition in place: x += y.
    Add,
    /// Softmax of rows.
    Softmax,
    /// Position of the largest value in each row.
    ArgMax,
    /// The largest values of each row, in descending order.
    TopK,
    /// C = α · op(A) · op(B) + β · C, with A and B of the given type.
    Gemm(ElementType),
    /// Attention over dense keys and values of the given type, with the masks and score functions of common
    /// models.
    AttentionDense(ElementType),
    /// Convolution of images with weights, both of the given type.
    Conv2d(ElementType),
    /// Copies elements between strided tensors and converts their type.
    Copy,
    /// Looks up rows of a table and converts their type.
    GatherRows,
    /// Applies a function to each value.
    Unary,
    /// Applies an operation to pairs of values.
    Binary,
    /// Reduces each line of values along an axis to one value.
    Reduce,
    /// Softmax along an axis.
    SoftmaxAxis,
    /// Layer norm of rows.
    LayerNorm,
    /// Rotary position embedding of heads.
    Rope,
    /// Decodes blocks of a file to values.
    DecodeBlocks,
    /// Encodes values as blocks of a file.
    EncodeBlocks,
}

impl Kernel {
    /// Returns all kernels that have variants. They include a product for each pair of weight and activation
    /// types that [`crate::matmul::takes`] accepts.
    pub fn all() -> Vec<Kernel> {
        let mut all = vec![Kernel::Gather, Kernel::Add, Kernel::HeadNorm];
        all.extend([Kernel::Softmax, Kernel::ArgMax, Kernel::TopK]);
        all.extend([Kernel::Copy, Kernel::GatherRows, Kernel::Unary, Kernel::Binary]);
        all.extend([Kernel::Reduce, Kernel::SoftmaxAxis, Kernel::LayerNorm, Kernel::Rope]);
        all.extend([Kernel::DecodeBlocks, Kernel::EncodeBlocks]);
        all.extend([Activations::Int8, Activations::F16].map(Kernel::Quantize));
        for activations in Activations::ALL {
            all.extend([Kernel::RmsNorm(activations), Kernel::SiluMul(activations)]);
            all.push(Kernel::AttentionMerge(activations));
            let takes = |t: &TensorType| crate::matmul::takes(*t, activations);
            all.extend(TensorType::ALL.into_iter().filter(takes).map(|t| Kernel::MatMul(t, activations)));
        }
        all.extend(TensorType::ALL.map(Kernel::NormMatMul));
        all.extend(TensorType::ALL.map(Kernel::GatedMatMul));
        all.extend(TensorType::ALL.into_iter().filter(|t| t.block_values() > 1).map(Kernel::Widen));
        for kv_type in [KvType::F32, KvType::F16] {
            all.extend([Kernel::RopeAppend(kv_type), Kernel::Attention(kv_type)]);
            all.extend([Kernel::AttentionPartial(kv_type), Kernel::AppendAttention(kv_type)]);
        }
        all.extend(TensorType::ALL.map(Kernel::Embed));
        all.extend(ElementType::ALL.map(Kernel::Gemm));
        all.extend(ElementType::ALL.map(Kernel::AttentionDense));
        all.extend(ElementType::ALL.map(Kernel::Conv2d));
        all
    }

    /// Returns whether the kernel fuses several others. Such a kernel has variants only for devices on which
    /// fusion is faster.
    pub fn is_fused(self) -> bool {
        matches!(self, Kernel::NormMatMul(_) | Kernel::GatedMatMul(_) | Kernel::AppendAttention(_))
    }

    /// Returns the numerics class of the kernel's variants. The class describes the error that the kernel
    /// itself adds. A kernel that writes an f16 KV cache is fast, because it rounds keys and values.
    pub fn class(self) -> NumericsClass {
        match self {
            Kernel::RmsNorm(activations)
            | Kernel::SiluMul(activations)
            | Kernel::Quantize(activations)
            | Kernel::AttentionMerge(activations)
            | Kernel::MatMul(_, activations)
                if activations != Activations::F32 =>
            {
                NumericsClass::Fast
            }
            Kernel::Widen(_) | Kernel::RopeAppend(KvType::F16) | Kernel::AppendAttention(KvType::F16) => {
                NumericsClass::Fast
            }
            _ => NumericsClass::Exact,
        }
    }

    /// Returns the layout of the weights that the kernel reads, or `None` if it reads no weights. `kept`
    /// returns the layout in which the device stores a type. Products with f16 activations always read the
    /// row-major layout, because matrix units load rows.
    pub fn layout(self, kept: impl FnOnce(TensorType) -> Layout) -> Option<Layout> {
        match self {
            Kernel::MatMul(_, Activations::F16) => Some(Layout::RowMajor),
            Kernel::MatMul(tensor_type, _)
            | Kernel::NormMatMul(tensor_type)
            | Kernel::GatedMatMul(tensor_type)
            | Kernel::Embed(tensor_type) => Some(kept(tensor_type)),
            Kernel::Widen(_) => Some(Layout::Rows16),
            _ => None,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kv = |k: &KvType| match k {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
        };
        match self {
            Kernel::Embed(t) => write!(f, "embed/{t}"),
            Kernel::Gather => write!(f, "gather"),
            Kernel::RmsNorm(a) => write!(f, "rms-norm/{a}"),
            Kernel::Quantize(a) => write!(f, "quantize/{a}"),
            Kernel::MatMul(t, a) => write!(f, "matmul/{t}/{a}"),
            Kernel::NormMatMul(t) => write!(f, "norm-matmul/{t}"),
            Kernel::GatedMatMul(t) => write!(f, "gated-matmul/{t}"),
            Kernel::Widen(t) => write!(f, "widen/{t}"),
            Kernel::HeadNorm => write!(f, "head-norm"),
            Kernel::RopeAppend(k) => write!(f, "rope-append/{}", kv(k)),
            Kernel::Attention(k) => write!(f, "attention/{}", kv(k)),
            Kernel::AttentionPartial(k) => write!(f, "attention-partial/{}", kv(k)),
            Kernel::AppendAttention(k) => write!(f, "append-attention/{}", kv(k)),
            Kernel::AttentionMerge(a) => write!(f, "attention-merge/{a}"),
            Kernel::SiluMul(a) => write!(f, "silu-mul/{a}"),
            Kernel::Add => write!(f, "add"),
            Kernel::Softmax => write!(f, "softmax"),
            Kernel::ArgMax => write!(f, "arg-max"),
            Kernel::TopK => write!(f, "top-k"),
            Kernel::Gemm(e) => write!(f, "gemm/{e}"),
            Kernel::AttentionDense(e) => write!(f, "attention-dense/{e}"),
            Kernel::Conv2d(e) => write!(f, "conv2d/{e}"),
            Kernel::Copy => write!(f, "copy"),
            Kernel::GatherRows => write!(f, "gather-rows"),
            Kernel::Unary => write!(f, "unary"),
            Kernel::Binary => write!(f, "binary"),
            Kernel::Reduce => write!(f, "reduce"),
            Kernel::SoftmaxAxis => write!(f, "softmax-axis"),
            Kernel::LayerNorm => write!(f, "layer-norm"),
            Kernel::Rope => write!(f, "rope"),
            Kernel::DecodeBlocks => write!(f, "decode-blocks"),
            Kernel::EncodeBlocks => write!(f, "encode-blocks"),
        }
    }
}
