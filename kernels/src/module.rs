//! The code of modules: the entries that a device compiles or loads for variants.

use crate::artefacts::Form;
use crate::variant::{Code, Variant};
use ragtag_hal::{BinaryEntry, Caps, GemmEntry, KernelLanguage, LinkedEntry, ModuleSource, TextEntry};
use std::collections::BTreeSet;
use std::sync::Arc;

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
    use crate::blocks::TensorType;
    use crate::kernel::{Activations, Kernel};
    use crate::table::select;
    use crate::table::tests::{gpu, library};
    use ragtag_hal::Feature;

    #[test]
    fn modules_with_library_products_are_linked() {
        let caps = Caps { gemm: library(true), ..gpu(KernelLanguage::Ptx, 1024, 48 << 10) };
        let product = select(Kernel::MatMul(TensorType::F16, Activations::F16), &caps, 512).unwrap();
        let [add, arg_max] = [Kernel::Add, Kernel::ArgMax].map(|kernel| select(kernel, &caps, 1).unwrap());
        let Some(ModuleSource::Linked { language, entries }) = module_source([add, product, arg_max], &caps)
        else {
            panic!("not linked")
        };
        let name = |entry: &LinkedEntry| match entry {
            LinkedEntry::Text(text) => text.function.name.clone(),
            LinkedEntry::Gemm(_) => "a product".into(),
        };
        assert_eq!(language, Some(KernelLanguage::Ptx));
        assert_eq!(entries.iter().map(name).collect::<Vec<_>>(), ["add", "a product", "arg_max"]);
        let alone = module_source([product], &caps);
        assert!(
            matches!(alone, Some(ModuleSource::Linked { language: None, entries }) if entries.len() == 1)
        );
        assert!(matches!(module_source([add], &caps), Some(ModuleSource::Text { .. })));
    }

    #[test]
    fn devices_get_spir_v_only_without_opencl_c() {
        let variants =
            |caps: &Caps| [Kernel::Add, Kernel::ArgMax].map(|kernel| select(kernel, caps, 1).unwrap());
        let caps = gpu(KernelLanguage::SpirV, 256, 32 << 10);
        let Some(ModuleSource::SpirV { entries }) = module_source(variants(&caps), &caps) else {
            panic!("no SPIR-V")
        };
        assert_eq!(entries.iter().map(|e| &*e.function.name).collect::<Vec<_>>(), ["add", "arg_max"]);
        assert_eq!(entries[0].binary, entries[1].binary, "row kernels share a program");
        let languages = [KernelLanguage::SpirV, KernelLanguage::OpenClC].into();
        let both = Caps { languages, ..caps };
        let source = module_source(variants(&both), &both);
        assert!(matches!(source, Some(ModuleSource::Text { language: KernelLanguage::OpenClC, .. })));
    }

    #[test]
    fn cuda_devices_get_the_best_supported_ptx() {
        let source = |languages: &[KernelLanguage], features: &[Feature]| {
            let caps = Caps {
                languages: languages.iter().copied().collect(),
                features: features.iter().copied().collect(),
                ..gpu(KernelLanguage::Ptx, 1024, 48 << 10)
            };
            let variants = [Kernel::Add, Kernel::ArgMax].map(|kernel| select(kernel, &caps, 1).unwrap());
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
                assert_eq!(&*entries[1].function.name, "arg_max");
                assert!(entries[1].text.contains(target), "{features:?}");
                assert!(entries[1].text.contains(".entry arg_max("));
            }
        }
        let (language, entries) = source(&[CudaC], &[Feature::Sm90]);
        assert_eq!(language, CudaC);
        assert!(entries[0].text.contains("KERNEL(ITEMS) add("));
    }
}
