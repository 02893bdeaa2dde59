//! The programs that the table of variants is made of.

use ragtag_hal::{Feature, KernelLanguage};
use ragtag_kernels::{Code, artefacts, variants};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A text, and what it is for.
pub(super) struct Program {
    /// Named after the first variant that it is for.
    pub name: String,
    pub language: KernelLanguage,
    pub text: Arc<str>,
    /// The function that one of its variants launches; the only one where the language is WGSL.
    pub function: &'static str,
    /// What each of its variants requires.
    requires: BTreeSet<&'static [Feature]>,
}

impl Program {
    /// The name of the file of its text.
    pub fn file_name(&self) -> String {
        let extension = match self.language {
            KernelLanguage::CudaC => "cu",
            KernelLanguage::HipC => "hip",
            KernelLanguage::Wgsl => "wgsl",
            _ => "cl",
        };
        format!("{}.{extension}", self.name)
    }

    /// What each of its variants requires.
    pub fn requires(&self) -> impl Iterator<Item = &'static [Feature]> {
        self.requires.iter().copied()
    }

    /// Whether a device with these features takes any variant of it.
    pub fn runs_with(&self, features: &[Feature]) -> bool {
        self.requires.iter().any(|requires| requires.iter().all(|feature| features.contains(feature)))
    }

    /// The architectures for which PTX of it is committed.
    pub fn architectures(&self) -> BTreeSet<&'static str> {
        self.requires.iter().flat_map(|requires| artefacts::architectures(requires)).collect()
    }
}

/// Each text once for each language, by name.
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

/// Those in a language.
pub(super) fn in_language<'a>(programs: &[&'a Program], language: KernelLanguage) -> Vec<&'a Program> {
    programs.iter().copied().filter(|program| program.language == language).collect()
}
