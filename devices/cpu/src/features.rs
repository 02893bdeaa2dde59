//! Run-time detection of the CPU's features.
//!
//! This module knows instruction sets, but not the kernels that use them.

use ragtag_hal::{Feature, Features};

/// Returns the features of the CPU on which this process runs.
pub(crate) fn detect() -> Features {
    let mut features = Features::new();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") && has!("f16c") {
            features.insert(Feature::Avx2);
            if has!("avx512f")
                && has!("avx512bw")
                && has!("avx512vl")
                && has!("avx512dq")
                && has!("avx512vnni")
            {
                features.insert(Feature::Avx512Vnni);
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        if has!("neon") && has!("dotprod") {
            features.insert(Feature::NeonDot);
        }
    }
    features
}

/// Returns the name of the most capable feature in a set.
pub(crate) fn name(features: &Features) -> &'static str {
    match features.last() {
        Some(Feature::Avx512Vnni) => "avx512-vnni",
        Some(Feature::Avx2) => "avx2",
        Some(Feature::NeonDot) => "neon-dot",
        _ => "portable",
    }
}
