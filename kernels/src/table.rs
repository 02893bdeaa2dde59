//! The table of variants, and the functions that select a variant by a device's capabilities.

use crate::artefacts::{self, Artefact, Form};
use crate::blocks::TensorType;
use crate::c_family;
use crate::cases::Case;
use crate::cpu;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::{Layout, layout_for};
use crate::wgsl;
use crate::{cases, matmul};
use ragtag_hal::{
    BinaryEntry, Caps, DeviceFunction, EntryAbi, Feature, GemmEntry, HostFn, KernelLanguage, LinkedEntry,
    ModuleSource, TextEntry,
};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// An implementation of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Kernel that the variant implements.
    pub kernel: Kernel,
    /// Name in receipts, for example `avx512-vnni` or `portable`.
    pub name: &'static str,
    /// Numerics class of the results.
    pub class: NumericsClass,
    /// Features that a device must have.
    pub requires: &'static [Feature],
    /// Binary interface: bindings, constants, and the extents of bindings.
    pub abi: &'static EntryAbi,
    /// Grid of a launch: see [`Variant::grid`].
    pub grid: Grid,
    /// Layout of the weight matrices that the variant reads, or `None` if it reads none.
    pub layout: Option<Layout>,
    /// Minimum row capacity for which programs prefer this variant to an alternative sequence of kernels: see
    /// [`preferred`]. [`NEVER`] marks a variant that is correct but not fast.
    pub min_rows: u32,
    /// Maximum row capacity for which [`select`] returns the variant. Its results are correct for any
    /// capacity.
    pub max_rows: u32,
    /// Code of the variant.
    pub code: Code,
}

/// Function that computes the grid of a launch from the constants.
#[derive(Clone, Copy, Debug)]
pub enum Grid {
    /// The grid is the same on every device.
    Fixed(fn(constants: &[u32]) -> [u32; 3]),
    /// The grid depends on the number of compute units, `units`.
    PerDevice(fn(constants: &[u32], units: u32) -> [u32; 3]),
}

/// Code of a variant.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// A Rust function in this process.
    Host(HostFn),
    /// Source text for a device's compiler.
    Text(Text),
    /// A matrix product in the GEMM library that the device's capabilities name.
    Library(GemmEntry),
}

/// A kernel function in a source language.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Source language of the text.
    pub language: KernelLanguage,
    /// Composes the complete source text in the given language.
    pub compose: fn(KernelLanguage) -> Arc<str>,
    /// Name of the kernel function in the text.
    pub function: &'static str,
    /// Work-group size, in work items.
    pub work_group: [u32; 3],
    /// Upper bound of the local memory that the text declares per group, in bytes.
    pub local_bytes: u64,
    /// Dynamic local memory that a launch requests per group, in bytes, in addition to the memory that the
    /// text declares.
    pub dynamic_local_bytes: u32,
}

impl Text {
    /// Returns the complete source text.
    pub fn text(&self) -> Arc<str> {
        (self.compose)(self.language)
    }

    fn function(&self) -> DeviceFunction {
        DeviceFunction {
            name: self.function.into(),
            work_group: self.work_group,
            dynamic_local_bytes: self.dynamic_local_bytes,
        }
    }
}

impl Variant {
    /// Returns the grid of a launch on a device with `caps`. The number of `constants` must match the ABI.
    pub fn grid(&self, constants: &[u32], caps: &Caps) -> [u32; 3] {
        match self.grid {
            Grid::Fixed(grid) => grid(constants),
            Grid::PerDevice(grid) => grid(constants, caps.parallel_units.max(1)),
        }
    }

    /// Returns the language of the code, or `None` for a library product.
    pub fn language(&self) -> Option<KernelLanguage> {
        match self.code {
            Code::Host(_) => Some(KernelLanguage::Host),
            Code::Text(text) => Some(text.language),
            Code::Library(_) => None,
        }
    }

    /// Returns the variant's conformance cases.
    pub fn cases(&self, seed: u64) -> Vec<Case> {
        let cases = match self.code {
            Code::Library(_) => matmul::cases_of_whole_launches(seed),
            Code::Host(_) | Code::Text(_) => cases::cases(self.kernel, self.layout, seed),
        };
        cases.into_iter().map(|case| Case { tolerance: self.bound(), ..case }).collect()
    }

    /// Returns a conformance case of random shape.
    pub fn random_case(&self, seed: u64) -> Case {
        let case = match self.code {
            Code::Library(_) => matmul::random_case_of_a_whole_launch(seed),
            Code::Host(_) | Code::Text(_) => cases::random_case(self.kernel, self.layout, seed),
        };
        Case { tolerance: self.bound(), ..case }
    }

    /// Returns whether a device with `caps` accepts the code. A device accepts a source text if it accepts
    /// its language, or PTX or SPIR-V that was built from it. A device accepts a library product if it has a
    /// GEMM library.
    pub fn is_taken_by(&self, caps: &Caps) -> bool {
        match self.language() {
            Some(language) => caps.languages.contains(&language) || self.built(caps).is_some(),
            None => caps.gemm.is_some(),
        }
    }

    /// Returns the PTX of the variant that is best for a device with `caps`, or its SPIR-V if the device does
    /// not compile OpenCL C. Returns `None` if the device does not accept this form, or if no such program was
    /// built.
    fn built(&self, caps: &Caps) -> Option<(Form, &'static Artefact)> {
        let Code::Text(text) = self.code else { return None };
        let takes = |language| caps.languages.contains(&language);
        match text.language {
            KernelLanguage::CudaC if takes(KernelLanguage::Ptx) => {
                artefacts::find_ptx(&text.text(), &caps.features).map(|ptx| (Form::Ptx, ptx))
            }
            KernelLanguage::OpenClC if takes(KernelLanguage::SpirV) && !takes(KernelLanguage::OpenClC) => {
                artefacts::find_spir_v(&text.text()).map(|spir_v| (Form::SpirV, spir_v))
            }
            _ => None,
        }
    }

    /// Returns whether a device with `caps` meets all requirements of the variant.
    pub fn runs_on(&self, caps: &Caps) -> bool {
        self.is_taken_by(caps)
            && self.requires.iter().all(|feature| caps.features.contains(feature))
            && self.work_group_items() <= caps.max_work_group_items
            && self.local_bytes() <= caps.local_memory_bytes
    }

    /// Returns whether the variant is a product that adds up in f16, on a device without matrix units.
    pub(crate) fn adds_in_f16(&self) -> bool {
        self.requires == c_family::ADDS_IN_F16
    }

    fn work_group_items(&self) -> u32 {
        match self.code {
            Code::Host(_) | Code::Library(_) => 1,
            Code::Text(text) => text.work_group.iter().product(),
        }
    }

    fn local_bytes(&self) -> u64 {
        match self.code {
            Code::Host(_) | Code::Library(_) => 0,
            Code::Text(text) => text.local_bytes,
        }
    }
}

/// Number of rows that exceeds the capacity of every launch.
pub const NEVER: u32 = u32::MAX;

/// Returns all variants of this build, best first.
pub fn variants() -> &'static [Variant] {
    static VARIANTS: LazyLock<Vec<Variant>> =
        LazyLock::new(|| [cpu::variants(), c_family::variants(), wgsl::variants()].concat());
    &VARIANTS
}

/// Returns the best variant of `kernel` for launches of up to `rows` rows on a device with `caps`. This is
/// the first variant that is designed for `rows` rows, reads the device's weight layout, and runs on the
/// device. If the device prefers its library, a library variant that fits takes precedence.
pub fn select(kernel: Kernel, caps: &Caps, rows: u32) -> Option<&'static Variant> {
    let layout = kernel.layout(|tensor_type| layout_for(tensor_type, caps));
    let fits = |v: &Variant| v.kernel == kernel && v.layout == layout && rows <= v.max_rows;
    let library = |v: &&Variant| matches!(v.code, Code::Library(_)) && rows >= v.min_rows;
    let prefers = caps.gemm.as_ref().is_some_and(|library| library.preferred);
    let first = if prefers { variants().iter().find(|v| fits(v) && library(v)) } else { None };
    first.or_else(|| variants().iter().find(|v| fits(v) && v.runs_on(caps)))
}

/// Like [`select`], but returns `None` if `rows` is below the variant's minimum number of rows. In this case,
/// programs should use an alternative sequence of kernels.
pub fn preferred(kernel: Kernel, caps: &Caps, rows: u32) -> Option<&'static Variant> {
    select(kernel, caps, rows).filter(|v| rows >= v.min_rows)
}

/// Returns the activation type for products of weights of type `tensor_type` and up to `rows` rows on a
/// device with `caps`.
///
/// For a `wanted` type of f32, the result is f32. For int8, the result is the fastest type that the device
/// supports: f16 if its matrix units are faster for `rows` rows, or its f16 arithmetic for weights without
/// blocks, otherwise int8 for weights with integer quants, and f32 for other weights. For f16, the result is
/// f16 if any variant supports it, even a slow one. Before a product with f16 activations, the program
/// dequantizes weights with integer quants to f16.
pub fn activations_for(tensor_type: TensorType, wanted: Activations, caps: &Caps, rows: u32) -> Activations {
    let quantised = tensor_type.block_values() > 1;
    let offers = |kernel| match wanted {
        Activations::F32 => false,
        Activations::Int8 => preferred(kernel, caps, rows).is_some(),
        Activations::F16 => select(kernel, caps, rows).is_some(),
    };
    let product = Kernel::MatMul(TensorType::F16, Activations::F16);
    let f16 = if quantised {
        // Without matrix units, dot products of int8 are faster.
        let is_slower =
            wanted == Activations::Int8 && select(product, caps, rows).is_some_and(Variant::adds_in_f16);
        offers(Kernel::Widen(tensor_type)) && offers(product) && !is_slower
    } else {
        layout_for(tensor_type, caps) == Layout::RowMajor
            && offers(Kernel::MatMul(tensor_type, Activations::F16))
    };
    match wanted {
        Activations::F32 => Activations::F32,
        _ if f16 => Activations::F16,
        _ if tensor_type.has_integer_quants() => Activations::Int8,
        _ => Activations::F32,
    }
}

/// Returns whether fast products use f16 activations on a device with `caps`, for at least one tensor type
/// and number of rows.
pub fn has_f16_products(caps: &Caps) -> bool {
    TensorType::ALL.into_iter().any(|tensor_type| uses_f16(tensor_type, caps))
}

/// Returns whether fast products use matrix units on a device with `caps`. Only these make products of
/// quantised weights with f16 activations fast.
pub fn has_matrix_products(caps: &Caps) -> bool {
    TensorType::ALL.into_iter().any(|t| t.block_values() > 1 && uses_f16(t, caps))
}

/// Returns whether fast products of `tensor_type` use f16 activations for at least one number of rows.
fn uses_f16(tensor_type: TensorType, caps: &Caps) -> bool {
    let form = |rows| activations_for(tensor_type, Activations::Int8, caps, rows);
    (0..16).any(|bit| form(1 << bit) == Activations::F16)
}

/// Returns the code of a module for a device with `caps`. The entries of the module are `variants`, which
/// must run on the device. Returns `None` if the variants are in several languages. If all CUDA C++ texts of
/// the module were built to PTX ahead of time, returns the PTX instead. Links library products with either
/// kind of code. Returns SPIR-V for a device that accepts no OpenCL C.
pub fn module_source<'a>(
    variants: impl IntoIterator<Item = &'a Variant>,
    caps: &Caps,
) -> Option<ModuleSource> {
    let (mut host, mut entries, mut built, mut binaries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut languages, mut linked) = (BTreeSet::new(), Vec::new());
    for (at, variant) in variants.into_iter().enumerate() {
        languages.extend(variant.language());
        match variant.code {
            Code::Host(function) => host.push(function),
            Code::Text(text) => {
                let function = text.function();
                match variant.built(caps) {
                    Some((Form::Ptx, ptx)) => {
                        built.extend(ptx.ptx().map(|text| TextEntry { text, function }));
                    }
                    Some((Form::SpirV, spir_v)) => {
                        let binary = spir_v.bytes().map(Arc::from);
                        binaries.extend(binary.map(|binary| BinaryEntry { binary, function }));
                    }
                    None => {}
                }
                entries.push(TextEntry { text: text.text(), function: text.function() });
            }
            Code::Library(gemm) => linked.push((at, gemm)),
        }
    }
    let language = languages.first().copied();
    let (language, entries) = match language {
        _ if languages.len() > 1 => return None,
        Some(KernelLanguage::Host) => return linked.is_empty().then_some(ModuleSource::Host(host)),
        None if linked.is_empty() => return Some(ModuleSource::Host(host)),
        Some(_) if !binaries.is_empty() => {
            let complete = binaries.len() == entries.len() && linked.is_empty();
            return complete.then_some(ModuleSource::SpirV { entries: binaries });
        }
        Some(_) if built.len() == entries.len() => (Some(KernelLanguage::Ptx), built),
        _ => (language, entries),
    };
    match language {
        Some(language) if linked.is_empty() => Some(ModuleSource::Text { language, entries }),
        _ => Some(ModuleSource::Linked { language, entries: in_order(entries, linked) }),
    }
}

/// Merges text entries and library entries in the order of the variants. `products` pairs each library entry
/// with its position in this order.
fn in_order(texts: Vec<TextEntry>, products: Vec<(usize, GemmEntry)>) -> Vec<LinkedEntry> {
    let mut entries: Vec<_> = texts.into_iter().map(LinkedEntry::Text).collect();
    // Inserts in ascending order, so that all earlier entries are in place.
    products
        .into_iter()
        .for_each(|(at, gemm)| entries.insert(at.min(entries.len()), LinkedEntry::Gemm(gemm)));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::partial::MAX_ROWS;
    use crate::kernel::KvType;
    use ragtag_hal::{GemmLibrary, QueueLayout};

    fn caps(features: &[Feature]) -> Caps {
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
            let name = if kernel.is_fused() { None } else { Some("portable") };
            assert_eq!(select(kernel, &caps(&[]), 1).map(|v| v.name), name, "{kernel}");
        }
    }

    /// Returns the capabilities of a device that accepts `language`. The two limits are the smallest that
    /// kernels in this language require.
    fn gpu(language: KernelLanguage, max_work_group_items: u32, local_memory_bytes: u64) -> Caps {
        Caps { languages: [language].into(), max_work_group_items, local_memory_bytes, ..caps(&[]) }
    }

    #[track_caller]
    fn runs_every_kernel(caps: &Caps, api: &str) {
        for kernel in Kernel::all() {
            for rows in [1, 2, 8, 512] {
                if matches!(kernel, Kernel::AttentionPartial(_)) && rows > MAX_ROWS {
                    assert!(select(kernel, caps, rows).is_none(), "attention of many rows is not split");
                    continue;
                }
                if kernel.is_fused() && (api != "wgsl" || rows > 1) {
                    let found = select(kernel, caps, rows);
                    assert!(found.is_none() || api == "wgsl" && rows <= 8, "{kernel} × {rows}");
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
        assert!(select(Kernel::Softmax, &little, 1).is_none());
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
            assert_eq!([8, 16].map(is_preferred), [false, !features.is_empty()]);
        }
    }

    /// Returns a GEMM library of a device. `preferred` sets whether the device prefers it to kernels.
    fn library(preferred: bool) -> Option<GemmLibrary> {
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
    fn modules_with_library_products_are_linked() {
        let caps = Caps { gemm: library(true), ..gpu(KernelLanguage::Ptx, 1024, 48 << 10) };
        let product = select(Kernel::MatMul(TensorType::F16, Activations::F16), &caps, 512).unwrap();
        let [add, softmax] = [Kernel::Add, Kernel::Softmax].map(|kernel| select(kernel, &caps, 1).unwrap());
        let Some(ModuleSource::Linked { language, entries }) = module_source([add, product, softmax], &caps)
        else {
            panic!("not linked")
        };
        let name = |entry: &LinkedEntry| match entry {
            LinkedEntry::Text(text) => text.function.name.clone(),
            LinkedEntry::Gemm(_) => "a product".into(),
        };
        assert_eq!(language, Some(KernelLanguage::Ptx));
        assert_eq!(entries.iter().map(name).collect::<Vec<_>>(), ["add", "a product", "softmax"]);
        let alone = module_source([product], &caps);
        assert!(
            matches!(alone, Some(ModuleSource::Linked { language: None, entries }) if entries.len() == 1)
        );
        assert!(matches!(module_source([add], &caps), Some(ModuleSource::Text { .. })));
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
    const MATRICES_IN_WGSL: [Feature; 3] = [Feature::CooperativeMatrix, Feature::Fp16, Feature::SubGroups];

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
        for kernel in kernels.filter(|kernel| is_read(kernel) && !kernel.is_fused()) {
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
            (&features[..3], 99 << 10, split, ["sm80-few"; 3]),
            (&features[..2], 64 << 10, split, ["few"; 3]),
            (&features[..1], 64 << 10, norm, ["few", "few", ""]),
        ] {
            let caps = gpu(KernelLanguage::CudaC, 1024, local_bytes);
            let caps = Caps { features: features.iter().copied().collect(), ..caps };
            for (rows, name) in [1, 8, 32].into_iter().zip(names) {
                let Some(found) = select(kernel, &caps, rows) else {
                    assert!(rows > MAX_ROWS, "{kernel} × {rows}");
                    continue;
                };
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
    fn devices_get_spir_v_only_without_opencl_c() {
        let variants =
            |caps: &Caps| [Kernel::Add, Kernel::Softmax].map(|kernel| select(kernel, caps, 1).unwrap());
        let caps = gpu(KernelLanguage::SpirV, 256, 32 << 10);
        let Some(ModuleSource::SpirV { entries }) = module_source(variants(&caps), &caps) else {
            panic!("no SPIR-V")
        };
        assert_eq!(entries.iter().map(|e| &*e.function.name).collect::<Vec<_>>(), ["add", "softmax"]);
        assert_eq!(entries[0].binary, entries[1].binary, "row kernels share a program");
        let languages = [KernelLanguage::SpirV, KernelLanguage::OpenClC].into();
        let both = Caps { languages, ..caps };
        let source = module_source(variants(&both), &both);
        assert!(matches!(source, Some(ModuleSource::Text { language: KernelLanguage::OpenClC, .. })));
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
            assert_eq!(
                [norm, append].map(|kernel| select(kernel, &caps, 1).map(|v| v.name)),
                names.map(Some)
            );
        }
    }

    #[test]
    fn cuda_devices_get_the_best_supported_ptx() {
        let source = |languages: &[KernelLanguage], features: &[Feature]| {
            let caps = Caps {
                languages: languages.iter().copied().collect(),
                features: features.iter().copied().collect(),
                ..gpu(KernelLanguage::Ptx, 1024, 48 << 10)
            };
            let variants = [Kernel::Add, Kernel::Softmax].map(|kernel| select(kernel, &caps, 1).unwrap());
            match module_source(variants, &caps) {
                Some(ModuleSource::Text { language, entries }) => (language, entries),
                other => panic!("{other:?}"),
            }
        };
        use KernelLanguage::{CudaC, Ptx};
        for (features, target) in [
            (&[][..], ".target sm_61"),
            (&[Feature::Sm70, Feature::Sm75, Feature::Sm80], ".target sm_61"),
            (&[Feature::Sm70, Feature::Sm75, Feature::Sm80, Feature::Sm90], ".target sm_90"),
        ] {
            for languages in [&[Ptx][..], &[Ptx, CudaC]] {
                let (language, entries) = source(languages, features);
                assert_eq!((language, entries.len()), (Ptx, 2));
                assert_eq!(entries[0].text, entries[1].text);
                assert_eq!(&*entries[1].function.name, "softmax");
                assert!(entries[1].text.contains(target), "{features:?}");
                assert!(entries[1].text.contains(".entry softmax("));
            }
        }
        let (language, entries) = source(&[CudaC], &[Feature::Sm90]);
        assert_eq!(language, CudaC);
        assert!(entries[0].text.contains("KERNEL(ITEMS) add("));
    }

    #[test]
    fn products_take_the_requested_activations_if_supported() {
        let opencl = gpu(KernelLanguage::OpenClC, 1024, 48 << 10);
        let cuda = gpu(KernelLanguage::CudaC, 1024, 48 << 10);
        for tensor_type in TensorType::ALL {
            let quantised = tensor_type.block_values() > 1;
            let form = |wanted, caps: &Caps, rows| activations_for(tensor_type, wanted, caps, rows);
            for rows in [1, 8, 31, 512] {
                for caps in [&caps(&[]), &opencl, &cuda] {
                    assert_eq!(form(Activations::F32, caps, rows), Activations::F32);
                    // None of these devices has matrix units.
                    let fast =
                        if tensor_type.has_integer_quants() { Activations::Int8 } else { Activations::F32 };
                    assert_eq!(form(Activations::Int8, caps, rows), fast);
                    assert!(!has_f16_products(caps));
                }
                let halves = |caps: &Caps| form(Activations::F16, caps, rows) == Activations::F16;
                assert_eq!(halves(&caps(&[])), quantised, "{tensor_type}");
                assert_eq!(halves(&opencl), quantised, "{tensor_type}");
                assert_eq!(halves(&cuda), tensor_type != TensorType::F32, "{tensor_type}");
            }
        }
    }

    #[test]
    fn wide_products_take_f16_on_matrix_units() {
        use KernelLanguage::{CudaC, HipC, OpenClC, Wgsl};
        for (language, features) in [
            (CudaC, &[Feature::Sm70][..]),
            (CudaC, &[Feature::Sm80]),
            (CudaC, &[Feature::Sm90a]),
            (HipC, &[Feature::Wmma]),
            (HipC, &[Feature::Mfma, Feature::Wave64]),
            (OpenClC, &[Feature::Xmx]),
            (Wgsl, &MATRICES_IN_WGSL),
        ] {
            let features = features.iter().copied().collect();
            let caps = Caps { features, ..gpu(language, 1024, 227 << 10) };
            assert!(has_f16_products(&caps));
            for tensor_type in TensorType::ALL {
                let form = |wanted, rows| activations_for(tensor_type, wanted, &caps, rows);
                let (few, wide) = match tensor_type {
                    TensorType::F32 => (Activations::F32, Activations::F32),
                    TensorType::F16 | TensorType::BF16 | TensorType::F8_E4M3 => {
                        (Activations::F32, Activations::F16)
                    }
                    _ => (Activations::Int8, Activations::F16),
                };
                for rows in [1, 2, 8] {
                    assert_eq!(form(Activations::Int8, rows), few, "{tensor_type} × {rows}");
                }
                for rows in [32, 64, 2048] {
                    assert_eq!(form(Activations::Int8, rows), wide, "{tensor_type} × {rows}");
                    assert_eq!(form(Activations::F32, rows), Activations::F32);
                }
            }
        }
    }

    #[test]
    fn sources_hold_their_functions() {
        for variant in variants() {
            let Code::Text(text) = variant.code else { continue };
            let start = match text.language {
                KernelLanguage::Wgsl => format!("\nfn {}(", text.function),
                _ => format!(") {}(", text.function),
            };
            assert!(text.text().contains(&start), "{} {}", variant.kernel, variant.name);
        }
    }

    #[test]
    fn attention_is_not_split_on_cpus_or_for_many_rows() {
        let kernel = Kernel::AttentionPartial(KvType::F16);
        assert!(preferred(kernel, &caps(&[]), 1).is_none());
        assert!(preferred(Kernel::Attention(KvType::F16), &caps(&[]), 1).is_some());
        let split = variants().iter().filter(|v| matches!(v.kernel, Kernel::AttentionPartial(_)));
        // The memory estimate of scratch covers up to `MAX_ROWS` rows.
        assert!(split.filter(|v| v.min_rows != NEVER).all(|v| v.max_rows <= MAX_ROWS));
    }

    #[test]
    fn overflowing_constants_require_impossible_sizes() {
        for variant in variants() {
            for constant in [u32::MAX, u32::MAX - 31] {
                let mut extents = vec![0; variant.abi.bindings.len()];
                (variant.abi.extents)(&vec![constant; variant.abi.constants], &mut extents);
                assert!(extents.iter().any(|bytes| *bytes > 1 << 62), "{}: {extents:?}", variant.abi.name);
            }
        }
    }

    #[test]
    fn devices_without_host_code_get_none() {
        let caps = Caps { languages: Default::default(), ..caps(&[]) };
        assert!(select(Kernel::Add, &caps, 1).is_none());
    }
}
