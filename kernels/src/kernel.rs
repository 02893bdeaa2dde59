//! The names of kernels: what a step computes, apart from how a device does it.

use crate::blocks::TensorType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How close a kernel comes to float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumericsClass {
    /// f32 activations: relative error at most 1e-4.
    Exact,
    /// int8 or f16 activations, matrix units: at most 2e-2.
    Fast,
}

impl NumericsClass {
    /// The largest relative error ‖out − ref‖ / ‖ref‖ of the class.
    pub fn tolerance(self) -> f64 {
        match self {
            NumericsClass::Exact => 1e-4,
            NumericsClass::Fast => 2e-2,
        }
    }
}

/// The form in which activations enter a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// f32.
    F32,
    /// Blocks of 32 int8 values with a scale: see [`crate::quantize`].
    Int8,
}

/// The form in which keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// f32.
    F32,
    /// f16.
    F16,
}

impl KvType {
    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

/// A kernel. Its module documents bindings, constants and semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernel {
    /// Rows of an embedding table.
    Embed(TensorType),
    /// The rows of which logits are wanted.
    Gather,
    /// RMS norm into f32 or int8 activations.
    RmsNorm(Activations),
    /// f32 into int8 activations.
    Quantize,
    /// Weights of this type times activations.
    MatMul(TensorType, Activations),
    /// Rotary position embedding, and keys and values into the cache.
    RopeAppend(KvType),
    /// Causal attention over the cache.
    Attention(KvType),
    /// Causal attention over runs of the cache's positions.
    AttentionPartial(KvType),
    /// Runs brought together, into f32 or int8 activations.
    AttentionMerge(Activations),
    /// SiLU(gate) · up into f32 or int8 activations.
    SiluMul(Activations),
    /// x += y.
    Add,
    /// Rows of probabilities.
    Softmax,
    /// Where each row is largest.
    ArgMax,
    /// The largest values of each row, in order.
    TopK,
}

impl Kernel {
    /// Every kernel that has variants. Products with int8 activations exist for types with integer quanta only.
    pub fn all() -> Vec<Kernel> {
        let mut all = vec![Kernel::Gather, Kernel::Quantize, Kernel::Add];
        all.extend([Kernel::Softmax, Kernel::ArgMax, Kernel::TopK]);
        for activations in [Activations::F32, Activations::Int8] {
            all.extend([Kernel::RmsNorm(activations), Kernel::SiluMul(activations)]);
            all.push(Kernel::AttentionMerge(activations));
            let takes = |t: &TensorType| crate::matmul::activations_for(*t, activations) == activations;
            all.extend(TensorType::ALL.into_iter().filter(takes).map(|t| Kernel::MatMul(t, activations)));
        }
        for kv_type in [KvType::F32, KvType::F16] {
            all.extend([Kernel::RopeAppend(kv_type), Kernel::Attention(kv_type)]);
            all.push(Kernel::AttentionPartial(kv_type));
        }
        all.extend(TensorType::ALL.map(Kernel::Embed));
        all
    }

    /// How close its variants come to float64, given their inputs. Storing keys and values as f16 rounds them.
    pub fn class(self) -> NumericsClass {
        match self {
            Kernel::RmsNorm(Activations::Int8)
            | Kernel::Quantize
            | Kernel::MatMul(_, Activations::Int8)
            | Kernel::RopeAppend(KvType::F16)
            | Kernel::SiluMul(Activations::Int8)
            | Kernel::AttentionMerge(Activations::Int8) => NumericsClass::Fast,
            _ => NumericsClass::Exact,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activations = |a: &Activations| match a {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        };
        let kv = |k: &KvType| match k {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
        };
        match self {
            Kernel::Embed(t) => write!(f, "embed/{t}"),
            Kernel::Gather => write!(f, "gather"),
            Kernel::RmsNorm(a) => write!(f, "rms-norm/{}", activations(a)),
            Kernel::Quantize => write!(f, "quantize"),
            Kernel::MatMul(t, a) => write!(f, "matmul/{t}/{}", activations(a)),
            Kernel::RopeAppend(k) => write!(f, "rope-append/{}", kv(k)),
            Kernel::Attention(k) => write!(f, "attention/{}", kv(k)),
            Kernel::AttentionPartial(k) => write!(f, "attention-partial/{}", kv(k)),
            Kernel::AttentionMerge(a) => write!(f, "attention-merge/{}", activations(a)),
            Kernel::SiluMul(a) => write!(f, "silu-mul/{}", activations(a)),
            Kernel::Add => write!(f, "add"),
            Kernel::Softmax => write!(f, "softmax"),
            Kernel::ArgMax => write!(f, "arg-max"),
            Kernel::TopK => write!(f, "top-k"),
        }
    }
}
