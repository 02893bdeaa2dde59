//! Backend for the tests, and the test kernel in each language.
//!
//! A test that finds no suitable device reports that it was skipped.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_cuda::{CudaBackend, CudaConfig};
use std::sync::Arc;

/// Returns a backend without a cache on disk.
pub fn backend() -> CudaBackend {
    CudaBackend::new(CudaConfig { cache_folder: None, ..CudaConfig::default() })
}

/// Returns [`source`] for compute capability 9.0 and newer, with overlapping launches: the kernel lets the
/// next launch start, and then waits for the previous kernel.
pub fn overlapping() -> Arc<str> {
    let (first, wait) =
        ("\tld.param", "\tgriddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;\n\tld.param");
    source().replace("sm_61", "sm_90").replacen(first, wait, 1).into()
}

/// Returns the kernel `scale` in CUDA C++.
pub fn cuda_source() -> Arc<str> {
    "extern \"C\" __global__ void scale(const unsigned *in, unsigned *out, unsigned factor, unsigned count) {
        unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
        if (at < count) out[at] = factor * in[at] + 1u;
    }"
    .into()
}

device_bench::tested!(CudaBackend, Ptx, "CUDA", "CUDA driver");
