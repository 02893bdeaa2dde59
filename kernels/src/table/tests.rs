//! Tests of the variants that devices with given capabilities get.

use super::*;
use crate::activations::{activations_for, has_f16_products, has_matrix_products};
use crate::blocks::TensorType;
use crate::kernel::{Activations, KvType};
use ragtag_hal::{Feature, GemmLibrary, KernelLanguage, QueueLayout};

/// Returns the capabilities of a CPU with `features`.
pub(crate) fn caps(features: &[Feature]) -> Caps {
    Caps {
        languages: [KernelLanguage::Host].into(),
        features: features.iter().copied().collect(),
        queues: QueueLayout::Separate,
        records_programs: false,
        max_allocation_bytes: 1 << 40,
        max_binding_bytes: 1 << 40,
        binding_alignment_bytes: 64,
        copy_alignment_bytes: 1,
        parallel_units: 1,
        max_work_group_items: 1,
        local_memory_bytes: 0,
        clocks: Default::default(),
        gemm: None,
        sharing: Default::default(),
    }
}

#[test]
fn every_kernel_runs_on_any_host() {
    for kernel in Kernel::all() {
        let is_of_hosts = matches!(kernel, Kernel::ExpertMatMul(_, Activations::Int8));
        let name = if kernel.is_optional() && !is_of_hosts { None } else { Some("portable") };
        assert_eq!(select(kernel, &caps(&[]), 1).map(|v| v.name), name, "{kernel}");
    }
}

/// Returns the capabilities of a device that accepts `language`. The two limits are the smallest that
/// kernels in this language require.
pub(crate) fn gpu(language: KernelLanguage, max_work_group_items: u32, local_memory_bytes: u64) -> Caps {
    Caps { languages: [language].into(), max_work_group_items, local_memory_bytes, ..caps(&[]) }
}

#[track_caller]
fn runs_every_kernel(caps: &Caps, api: &str) {
    for kernel in Kernel::all() {
        for rows in [1, 2, 8, 512] {
            // The only forms in WGSL are for one row.
            let is_of_many =
                matches!(kernel, Kernel::MatMul(..) | Kernel::ExpertMatMul(..) | Kernel::AttentionShared(_));
            if kernel.is_optional() && (is_of_many || api != "wgsl" || rows > 1) {
                let found = select(kernel, caps, rows);
                let is_expert = matches!(kernel, Kernel::ExpertMatMul(_, Activations::Int8));
                assert!(found.is_none() || (api == "wgsl" || is_expert) && rows <= 8, "{kernel} × {rows}");
                continue;
            }
            let variant = select(kernel, caps, rows).unwrap_or_else(|| panic!("{kernel} × {rows}"));
            if !matches!(kernel, Kernel::Widen(_) | Kernel::MatMul(_, Activations::F16)) {
                assert!(preferred(kernel, caps, rows).is_some(), "{kernel} × {rows}");
            }
            assert!(variant.name.starts_with(api), "{kernel} × {rows}: {}", variant.name);
            assert_eq!(variant.class, kernel.class());
        }
        let small = Caps { max_work_group_items: 64, ..caps.clone() };
        assert!(select(kernel, &small, 1).is_none(), "{kernel}: groups are larger than that");
    }
    let little = Caps { local_memory_bytes: 1 << 10, ..caps.clone() };
    assert!(select(Kernel::ArgMax, &little, 1).is_none());
}

#[test]
fn uses_nvidia_matrix_units_where_available() {
    let product = Kernel::MatMul(TensorType::BF16, Activations::F16);
    let attention = Kernel::Attention(KvType::F16);
    let hopper = [Feature::Sm70, Feature::Sm75, Feature::Sm80, Feature::Sm90, Feature::Sm90a];
    for (features, kernel, names) in [
        (
            &hopper[..],
            product,
            ["wgmma-64", "wgmma-128-split", "wgmma-128", "wgmma-256"].map(|n| format!("sm90a-{n}")),
        ),
        (&hopper[..3], product, ["mma-few", "mma", "mma", "mma"].map(|n| format!("sm80-{n}"))),
        (&hopper[..1], product, ["sm70-wmma"; 4].map(String::from)),
        (&hopper[..0], product, ["tiled"; 4].map(String::from)),
        (&hopper[..], attention, ["sm90a-wgmma"; 4].map(String::from)),
        (&hopper[..4], attention, ["sm80-mma"; 4].map(String::from)),
        (&hopper[..2], attention, ["tiled"; 4].map(String::from)),
    ] {
        let caps = gpu(KernelLanguage::CudaC, 1024, 227 << 10);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        for (rows, name) in [16, 200, 512, 2048].into_iter().zip(names) {
            let found = select(kernel, &caps, rows).map(|v| v.name.to_owned());
            assert_eq!(found, Some(format!("cuda-{name}")), "{kernel} × {rows}");
        }
        let is_preferred = |rows| preferred(product, &caps, rows).is_some();
        assert_eq!([4, 16].map(is_preferred), [false, !features.is_empty()]);
    }
}

#[test]
fn experts_of_many_rows_use_nvidia_matrix_units() {
    let features = [Feature::Sm70, Feature::Sm75, Feature::Sm80];
    for (features, name) in [(&features[..], Some("cuda-sm80-units")), (&features[..2], None)] {
        let caps = gpu(KernelLanguage::CudaC, 1024, 163 << 10);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        for tensor_type in [TensorType::Q4_K, TensorType::MXFP4, TensorType::F16, TensorType::BF16] {
            let kernel = Kernel::ExpertMatMul(tensor_type, Activations::F16);
            let found = [8, 9, 2048].map(|rows| preferred(kernel, &caps, rows).map(|v| v.name));
            assert_eq!(found, [None, name, name], "{kernel}");
        }
    }
}

/// Returns a GEMM library of a device. `preferred` sets whether the device prefers it to kernels.
pub(crate) fn library(preferred: bool) -> Option<GemmLibrary> {
    Some(GemmLibrary { name: "a library".into(), version: "1".into(), workspace_bytes: 0, preferred })
}

#[test]
fn libraries_serve_without_matrix_units_or_if_preferred() {
    let product = Kernel::MatMul(TensorType::F16, Activations::F16);
    let sm80 = [Feature::Sm70, Feature::Sm75, Feature::Sm80];
    for (features, gemm, names) in [
        (&[][..], None, ["cuda-tiled"; 2]),
        (&[][..], library(false), ["library"; 2]),
        (&[][..], library(true), ["library"; 2]),
        (&sm80, None, ["cuda-sm80-mma"; 2]),
        (&sm80, library(false), ["cuda-sm80-mma"; 2]),
        (&sm80, library(true), ["cuda-sm80-mma", "library"]),
    ] {
        let caps = gpu(KernelLanguage::Ptx, 1024, 163 << 10);
        let caps = Caps { features: features.iter().copied().collect(), gemm: gemm.clone(), ..caps };
        let found = [511, 512].map(|rows| select(product, &caps, rows).map(|v| v.name));
        assert_eq!(found, names.map(Some), "{features:?}, {gemm:?}");
        // Fewer rows do not justify f16 activations.
        let offers = [511, 512].map(|rows| preferred(product, &caps, rows).is_some());
        assert_eq!(offers, [!features.is_empty(), gemm.is_some() || !features.is_empty()]);
        let wide = gemm.is_some() || !features.is_empty();
        let form = |t| activations_for(t, Activations::Int8, &caps, 512);
        assert_eq!(form(TensorType::Q8_0) == Activations::F16, wide);
        // A library requires both factors to have the same type.
        assert_eq!(form(TensorType::BF16) == Activations::F16, !features.is_empty());
        assert_eq!(has_f16_products(&caps), wide);
    }
}

#[test]
fn uses_amd_matrix_units_where_available() {
    use Feature::{Mfma, Wave64, Wmma};
    for tensor_type in [TensorType::F16, TensorType::BF16] {
        let product = Kernel::MatMul(tensor_type, Activations::F16);
        for (features, names) in [
            (&[Wmma][..], ["hip-wmma-64", "hip-wmma"]),
            (&[Mfma, Wave64], ["hip-mfma-64", "hip-mfma"]),
            // The lanes of a wave would not match the lanes of the instructions.
            (&[Mfma], ["hip-tiled"; 2]),
            (&[Wave64], ["hip-tiled"; 2]),
        ] {
            let caps = gpu(KernelLanguage::HipC, 1024, 64 << 10);
            let caps = Caps { features: features.iter().copied().collect(), ..caps };
            let found = [32, 512].map(|rows| select(product, &caps, rows).map(|v| v.name));
            assert_eq!(found, names.map(Some), "{features:?}");
            let has_any = names[0] != "hip-tiled";
            assert_eq!([8, 32].map(|rows| preferred(product, &caps, rows).is_some()), [false, has_any]);
            assert_eq!(has_f16_products(&caps), has_any);
        }
    }
}

/// Features that the WGSL kernels for matrix units require.
pub(crate) const MATRICES_IN_WGSL: [Feature; 3] =
    [Feature::CooperativeMatrix, Feature::Fp16, Feature::SubGroups];

#[test]
fn wgsl_products_use_device_features() {
    let quantised = Kernel::MatMul(TensorType::Q4_0, Activations::Int8);
    let halves = Kernel::MatMul(TensorType::F16, Activations::F16);
    for (features, few, many) in [
        (&[][..], ["gemv-1", "gemv-8", "tiled"], ["tiled"; 2]),
        (&[Feature::SubGroups], ["sub-groups-gemv-1", "sub-groups-gemv-8", "tiled"], ["tiled"; 2]),
        (
            &MATRICES_IN_WGSL,
            ["sub-groups-gemv-1", "sub-groups-gemv-8", "tiled"],
            ["matrices-small", "matrices"],
        ),
    ] {
        let caps = gpu(KernelLanguage::Wgsl, 256, 48 << 10);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        let name = |kernel, rows| select(kernel, &caps, rows).map(|v| v.name.replacen("wgsl-", "", 1));
        assert_eq!([1, 8, 9].map(|rows| name(quantised, rows)), few.map(|n| Some(n.into())));
        assert_eq!([128, 2048].map(|rows| name(halves, rows)), many.map(|n| Some(n.into())));
    }
    let little = Caps { features: MATRICES_IN_WGSL.into(), ..gpu(KernelLanguage::Wgsl, 256, 32 << 10) };
    assert_eq!(select(halves, &little, 2048).map(|v| v.name), Some("wgsl-matrices-wide"));
}

#[test]
fn wgsl_attention_uses_device_features() {
    for (features, local_bytes, name) in [
        (&[][..], 32 << 10, "wgsl-tiled"),
        (&MATRICES_IN_WGSL[..], 32 << 10, "wgsl-tiled"),
        (&MATRICES_IN_WGSL[..], 48 << 10, "wgsl-matrices"),
    ] {
        let caps = gpu(KernelLanguage::Wgsl, 256, local_bytes);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        let of = |kv_type| select(Kernel::Attention(kv_type), &caps, 64).map(|v| v.name);
        assert_eq!([KvType::F16, KvType::F32].map(of), [Some(name), Some("wgsl-tiled")]);
    }
}

#[test]
fn every_wgsl_device_reads_all_weights() {
    let caps = gpu(KernelLanguage::Wgsl, 256, 16 << 10);
    let kernels = Kernel::all().into_iter();
    let is_read = |kernel: &Kernel| kernel.layout(|t| layout_for(t, &caps)).is_some();
    for kernel in kernels.filter(|kernel| is_read(kernel) && !kernel.is_optional()) {
        for rows in [1, 2, 8, 512] {
            let variant = select(kernel, &caps, rows).unwrap_or_else(|| panic!("{kernel} × {rows}"));
            assert_eq!(variant.class, kernel.class());
        }
    }
}

#[test]
fn steps_of_few_rows_have_their_own_kernels() {
    let quantised = Kernel::MatMul(TensorType::Q4_K, Activations::Int8);
    let plain = Kernel::MatMul(TensorType::BF16, Activations::F32);
    let split = Kernel::AttentionPartial(KvType::F16);
    let norm = Kernel::RmsNorm(Activations::Int8);
    let features = [Feature::Sm70, Feature::Sm75, Feature::Sm80, Feature::Sm90];
    for (features, local_bytes, kernel, names) in [
        (&features[..], 227 << 10, quantised, ["sm90-gemv-1", "sm90-gemv-8", "tiled"]),
        (&features[..], 227 << 10, plain, ["sm90-gemv-1", "sm90-gemv-4", "row-major-tiled"]),
        (&features[..], 99 << 10, quantised, ["sm80-gemv-1", "sm80-gemv-8", "tiled"]),
        (&features[..3], 99 << 10, plain, ["sm80-gemv-1", "sm80-gemv-4", "row-major-tiled"]),
        (&features[..2], 64 << 10, quantised, ["gemv-1", "gemv-8", "tiled"]),
        (&features[..3], 99 << 10, split, ["sm80-few", "sm80-few", "sm80-many"]),
        (&features[..2], 64 << 10, split, ["few", "few", "many"]),
        (&features[..1], 64 << 10, norm, ["few", "few", ""]),
    ] {
        let caps = gpu(KernelLanguage::CudaC, 1024, local_bytes);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        for (rows, name) in [1, 8, 32].into_iter().zip(names) {
            let found = select(kernel, &caps, rows).unwrap_or_else(|| panic!("{kernel} × {rows}"));
            let wanted = if name.is_empty() { String::from("cuda") } else { format!("cuda-{name}") };
            assert_eq!(found.name, wanted, "{kernel} × {rows}");
        }
    }
}

#[test]
fn every_kernel_runs_on_any_opencl_device() {
    runs_every_kernel(&gpu(KernelLanguage::OpenClC, 256, 32 << 10), "opencl");
}

#[test]
fn every_kernel_runs_on_any_cuda_device() {
    runs_every_kernel(&gpu(KernelLanguage::CudaC, 1024, 48 << 10), "cuda");
}

#[test]
fn every_kernel_runs_on_any_cuda_device_without_a_compiler() {
    let caps = gpu(KernelLanguage::Ptx, 1024, 48 << 10);
    let is_cuda = |v: &&Variant| v.language() == Some(KernelLanguage::CudaC) && v.requires.is_empty();
    let stale = variants().iter().filter(is_cuda).find(|v| !v.is_taken_by(&caps));
    let stale = stale.map(|v| format!("{} {}", v.kernel, v.name));
    assert_eq!(stale, None, "its PTX was built from another text; run `cargo xtask kernels --nvrtc DIR`");
    runs_every_kernel(&caps, "cuda");
}

#[test]
fn uses_intel_matrix_units_where_available() {
    let caps = gpu(KernelLanguage::SpirV, 1024, 64 << 10);
    let caps = Caps { features: [Feature::Xmx].into(), ..caps };
    for tensor_type in [TensorType::F16, TensorType::BF16] {
        let product = Kernel::MatMul(tensor_type, Activations::F16);
        let found = [32, 512].map(|rows| select(product, &caps, rows).map(|v| v.name));
        assert_eq!(found, ["opencl-xmx-64", "opencl-xmx"].map(Some));
        let decode = select(Kernel::MatMul(tensor_type, Activations::F32), &caps, 1);
        assert_eq!(decode.map(|v| v.name), Some("opencl-row-major-gemv-1"));
    }
    runs_every_kernel(&caps, "opencl");
    let form = |rows| activations_for(TensorType::Q8_0, Activations::Int8, &caps, rows);
    assert_eq!([8, 64].map(form), [Activations::Int8, Activations::F16]);
    assert!(has_matrix_products(&caps));
}

#[test]
fn uses_sub_groups_where_available() {
    let languages = [KernelLanguage::SpirV, KernelLanguage::OpenClC];
    let halves = [Feature::SubGroups, Feature::Fp16];
    for (language, features, plain) in languages.into_iter().flat_map(|language| {
        let (exact, fast) = (Activations::F32, Activations::F16);
        [(&halves[..1], exact), (&halves[..], fast)].map(|(features, plain)| (language, features, plain))
    }) {
        let features = features.iter().copied().collect();
        let caps = Caps { features, ..gpu(language, 1024, 48 << 10) };
        let names = |kernel, rows: [u32; 3]| rows.map(|rows| select(kernel, &caps, rows).map(|v| v.name));
        let [one, some] = ["opencl-sub-groups-gemv-1", "opencl-gemv-8"];
        let quantised = Kernel::MatMul(TensorType::Q4_K, Activations::Int8);
        assert_eq!(names(quantised, [1, 8, 64]), [one, some, "opencl-sub-groups-tiled"].map(Some));
        for norm in [Kernel::RmsNorm(Activations::Int8), Kernel::HeadNorm, Kernel::LayerNorm] {
            assert_eq!(names(norm, [1, 8, 64]), [Some("opencl-sub-groups"); 3]);
        }
        let form = |t, rows| activations_for(t, Activations::Int8, &caps, rows);
        // Products of int8 are faster than those of f16.
        assert_eq!([1, 64].map(|rows| form(TensorType::Q8_0, rows)), [Activations::Int8; 2]);
        assert_eq!([8, 64].map(|rows| form(TensorType::BF16, rows)), [Activations::F32, plain]);
        let is_fast = plain == Activations::F16;
        assert_eq!((has_f16_products(&caps), has_matrix_products(&caps)), (is_fast, false));
        let f32 = Kernel::MatMul(TensorType::F16, Activations::F32);
        let sub_groups = [one, "opencl-sub-groups-gemv-8", "opencl-sub-groups-tiled"];
        let others = ["opencl-gemv-1", "opencl-gemv-8", "opencl-tiled"];
        assert_eq!(names(f32, [1, 8, 64]), if is_fast { sub_groups } else { others }.map(Some));
        let wanted = activations_for(TensorType::Q8_0, Activations::F16, &caps, 64);
        let product = names(Kernel::MatMul(TensorType::F16, Activations::F16), [64; 3])[0];
        let expected = if is_fast { "opencl-sub-groups-tiled" } else { "opencl-tiled" };
        assert_eq!((wanted, product), (Activations::F16, Some(expected)));
        runs_every_kernel(&caps, "opencl");
    }
}

#[test]
fn every_kernel_runs_on_any_device_that_takes_spir_v() {
    let caps = gpu(KernelLanguage::SpirV, 256, 32 << 10);
    let is_opencl = |v: &&Variant| v.language() == Some(KernelLanguage::OpenClC);
    let stale = variants().iter().filter(is_opencl).find(|v| !v.is_taken_by(&caps));
    let stale = stale.map(|v| format!("{} {}", v.kernel, v.name));
    assert_eq!(stale, None, "its SPIR-V was built from another text; run `cargo xtask kernels --spir-v`");
    runs_every_kernel(&caps, "opencl");
}

#[test]
fn every_kernel_runs_on_any_hip_device() {
    runs_every_kernel(&gpu(KernelLanguage::HipC, 1024, 64 << 10), "hip");
}

#[test]
fn every_kernel_runs_on_any_wgsl_device() {
    runs_every_kernel(&gpu(KernelLanguage::Wgsl, 256, 16 << 10), "wgsl");
}

#[test]
fn wgsl_row_and_cache_kernels_use_device_features() {
    let (norm, append) = (Kernel::RmsNorm(Activations::Int8), Kernel::RopeAppend(KvType::F16));
    for (features, items, names) in [
        (&[][..], 1024, ["wgsl", "wgsl"]),
        (&[Feature::SubGroups], 1024, ["wgsl-sub-groups", "wgsl"]),
        (&[Feature::SubGroups, Feature::Fp16], 256, ["wgsl", "wgsl-f16"]),
    ] {
        let caps = gpu(KernelLanguage::Wgsl, items, 32 << 10);
        let caps = Caps { features: features.iter().copied().collect(), ..caps };
        assert_eq!([norm, append].map(|kernel| select(kernel, &caps, 1).map(|v| v.name)), names.map(Some));
    }
}

#[test]
fn attention_is_not_split_on_cpus() {
    for rows in [1, 512] {
        assert!(preferred(Kernel::AttentionPartial(KvType::F16), &caps(&[]), rows).is_none());
        assert!(preferred(Kernel::Attention(KvType::F16), &caps(&[]), rows).is_some());
    }
}

#[test]
fn devices_without_host_code_get_none() {
    let caps = Caps { languages: Default::default(), ..caps(&[]) };
    assert!(select(Kernel::Add, &caps, 1).is_none());
}
