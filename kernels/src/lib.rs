//! Kernels for LLM inference. Each kernel has a binary interface, a reference in plain Rust, a numerics
//! class, and sources. A table lists the variants of each kernel. Ragtag selects a variant by the
//! capabilities of the device.
//!
//! This crate does not depend on models, plans or backends. It performs no I/O and starts no threads.

mod abi;
mod activations;
pub mod add;
pub mod arg_max;
pub mod artefacts;
pub mod attention;
pub mod attention_dense;
pub mod binary;
pub mod blocks;
mod bounds;
mod c_family;
pub mod cases;
pub mod checksum;
mod composer;
pub mod conv2d;
pub mod copy;
mod cpu;
mod element_type;
pub mod elements;
pub mod embed;
pub mod experts;
pub mod file_blocks;
pub mod gather;
pub mod gather_rows;
pub mod gemm;
pub mod half_rows;
pub mod head_norm;
mod kernel;
pub mod kv;
pub mod latent;
pub mod layer_norm;
pub mod layout;
mod library;
pub mod matmul;
mod module;
pub mod params;
pub mod picks;
pub mod quantize;
pub mod recurrent;
pub mod reduce;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
mod rows;
pub mod silu_mul;
pub mod softmax_axis;
mod table;
pub mod top_k;
mod types;
pub mod unary;
mod variant;
mod wgsl;
pub mod widen;
pub mod xielu;

pub use activations::{activations_for, has_f16_products, has_matrix_products};
pub use cases::{Case, cases, random_case};
pub use kernel::{Activations, CacheType, ElementType, Kernel, KvType, NumericsClass};
pub use layout::{Layout, LayoutError, Resident, layout_for};
pub use module::module_source;
pub use quantize::row_bytes;
pub use table::{preferred, select, select_for, variants};
pub use types::{BlockScale, TensorType};
pub use variant::{Code, Grid, NEVER, Text, Variant};
