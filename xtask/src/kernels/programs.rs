//! Collects the programs from the table of kernel variants. A program is a distinct source in one language.

use ragtag_hal::{Feature, KernelLanguage};
use ragtag_kernels::{Code, TensorType, artefacts, variants};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tensor types whose PTX is built only for the oldest sufficient architecture, so that the repository stays
/// small. Newer devices run the same PTX, but launches of these kernels do not overlap.
const BUILT_ONCE: [TensorType; 4] =
    [TensorType::Q2_K, TensorType::IQ4_XS, TensorType::MXFP4, TensorType::F8_E4M3];

/// Kernel source with its language and requirements.
pub(super) struct Program {
    /// Name of the first variant that uses the program.
    pub name: String,
    pub language: KernelLanguage,
    pub text: Arc<str>,
    /// Name of a function that one of the program's variants launches. A WGSL program has only one function.
    pub function: &'static str,
    /// Sets of required features. Each variant that uses the program requires one of these sets.
    requires: BTreeSet<&'static [Feature]>,
}

impl Program {
    /// Returns the name of the source file.
    pub fn file_name(&self) -> String {
        let extension = match self.language {
            KernelLanguage::CudaC => "cu",
            KernelLanguage::HipC => "hip",
            KernelLanguage::Wgsl => "wgsl",
            _ => "cl",
        };
        format!("{}.{extension}", self.name)
    }

    /// Returns the required features of each variant that uses the program.
    pub fn requires(&self) -> impl Iterator<Item = &'static [Feature]> {
        self.requires.iter().copied()
    }

    /// Returns whether a device with `features` can run at least one variant of the program.
    pub fn runs_with(&self, features: &[Feature]) -> bool {
        self.requires.iter().any(|requires| requires.iter().all(|feature| features.contains(feature)))
    }

    /// Returns the architectures for which the program needs committed PTX or SPIR-V.
    pub fn architectures(&self) -> BTreeSet<&'static str> {
        match self.language {
            KernelLanguage::CudaC => {
                let is_once = |t: &TensorType| self.name.contains(&format!("-{t}-"));
                let most = if BUILT_ONCE.iter().any(is_once) { 1 } else { usize::MAX };
                self.requires.iter().flat_map(|r| artefacts::architectures(r).take(most)).collect()
            }
            KernelLanguage::OpenClC => [artefacts::SPIR_V].into(),
            _ => BTreeSet::new(),
        }
    }
}

/// Returns one program per distinct source and language, sorted by name.
pub(super) fn all() -> Vec<Program> {
    let mut programs: BTreeMap<(KernelLanguage, Arc<str>), Program> = BTreeMap::new();
    for variant in variants() {
        let Code::Text(text) = variant.code else { continue };
        let key = (text.language, text.text());
        let new = Program {
            name: format!("{}-{}", variant.kernel, variant.name).replace('/', "-"),
            language: text.language,
            text: Arc::clone(&key.1),
            function: text.function,
            requires: BTreeSet::new(),
        };
        programs.entry(key).or_insert(new).requires.insert(variant.requires);
    }
    let mut programs: Vec<Program> = programs.into_values().collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    programs
}

/// Returns those `programs` that are written in `language`.
pub(super) fn in_language<'a>(programs: &[&'a Program], language: KernelLanguage) -> Vec<&'a Program> {
    programs.iter().copied().filter(|program| program.language == language).collect()
}
