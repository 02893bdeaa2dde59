//! Modules and their kernels.
//!
//! This module does not depend on commands.

use crate::driver::Driver;
use ragtag_hal::{
    Adapter, DeviceFunction, EntryAbi, Error, GemmEntry, KernelLanguage, LinkedEntry, Module, ModuleSource,
    Result, TextEntry,
};
use rayon::prelude::*;
use std::sync::Arc;

/// An entry point of a module.
pub enum Code<D: Driver> {
    /// A kernel.
    Kernel(Arc<Kernel<D>>),
    /// A product that the vendor's library computes.
    Gemm(GemmEntry),
}

/// A kernel function and its launch parameters.
pub struct Kernel<D: Driver> {
    pub(crate) function: D::Function,
    pub(crate) work_group: [u32; 3],
    pub(crate) dynamic_local_bytes: u32,
}

/// Loads a module and returns its entries. Compiles and loads distinct sources in parallel. Initialises the
/// product library if the module contains products.
///
/// # Errors
/// Returns one of these errors:
/// - [`Error::Compile`] with the log, if a source does not compile;
/// - [`Error::Unsupported`], if the device does not accept the language, or if a function needs larger groups
///   or more local memory than the device supports;
/// - [`Error::Invalid`], if a function does not match its ABI.
pub(crate) fn entries<D: Driver>(driver: &D, adapter: &Adapter, module: &Module) -> Result<Vec<Code<D>>> {
    let (language, texts, gemms) = parts(&module.source).ok_or_else(|| refused(driver, adapter, module))?;
    let taken = language.is_none_or(|language| adapter.caps.languages.contains(&language));
    if !taken || texts.len() + gemms.len() != module.entries.len() {
        return Err(refused(driver, adapter, module));
    }
    if !gemms.is_empty() {
        driver.ready_gemm()?;
    }
    let of_text = |(at, _): &(usize, &TextEntry)| module.entries[*at];
    let abis: Vec<_> = texts.iter().map(of_text).collect();
    let texts: Vec<_> = texts.into_iter().map(|(_, text)| text).collect();
    let kernels = match language {
        Some(language) => kernels(driver, adapter, language, &texts, &abis)?,
        None => Vec::new(),
    };
    let mut codes: Vec<_> = kernels.into_iter().map(Code::Kernel).collect();
    // Products are inserted in ascending order of index, so that all earlier entries are already in place.
    gemms.into_iter().for_each(|(at, gemm)| codes.insert(at, Code::Gemm(gemm)));
    Ok(codes)
}

fn refused<D: Driver>(driver: &D, adapter: &Adapter, module: &Module) -> Error {
    Error::Unsupported { what: format!("module {} on {} ({})", module.name, adapter.label(), driver.api()) }
}

/// The language of a module's sources, the sources, and the products. Each source and each product is paired
/// with the index of its entry.
type Parts<'a> = (Option<KernelLanguage>, Vec<(usize, &'a TextEntry)>, Vec<(usize, GemmEntry)>);

/// Splits the entries of a module into sources and products. Returns `None` for a module of CPU functions or
/// SPIR-V.
fn parts(source: &ModuleSource) -> Option<Parts<'_>> {
    match source {
        ModuleSource::Text { language, entries } => {
            Some((Some(*language), entries.iter().enumerate().collect(), Vec::new()))
        }
        ModuleSource::Linked { language, entries } => {
            let (mut texts, mut gemms) = (Vec::new(), Vec::new());
            for (at, entry) in entries.iter().enumerate() {
                match entry {
                    LinkedEntry::Text(text) => texts.push((at, text)),
                    LinkedEntry::Gemm(gemm) => gemms.push((at, *gemm)),
                }
            }
            Some((*language, texts, gemms))
        }
        ModuleSource::Host(_) | ModuleSource::SpirV { .. } => None,
    }
}

/// Compiles the sources of `entries` and returns one kernel for each entry. Entries with equal sources share
/// a module.
fn kernels<D: Driver>(
    driver: &D,
    adapter: &Adapter,
    language: KernelLanguage,
    entries: &[&TextEntry],
    abis: &[&'static EntryAbi],
) -> Result<Vec<Arc<Kernel<D>>>> {
    let mut texts: Vec<&Arc<str>> = Vec::new();
    for entry in entries {
        if !texts.contains(&&entry.text) {
            texts.push(&entry.text);
        }
    }
    let load = |text: &&Arc<str>| load(driver, adapter, language, text);
    let loaded: Vec<Arc<D::Module>> = texts.par_iter().map(load).collect::<Result<_>>()?;
    let kernel = |(entry, &abi): (&&TextEntry, &&'static EntryAbi)| {
        let at = texts.iter().position(|text| **text == entry.text);
        let code = at.and_then(|at| loaded.get(at));
        let code = code.ok_or_else(|| Error::invalid("a function without a source"))?;
        checked(driver, code, &entry.function, abi).map(Arc::new)
    };
    entries.iter().zip(abis).map(kernel).collect()
}

fn load<D: Driver>(
    driver: &D,
    adapter: &Adapter,
    language: KernelLanguage,
    text: &str,
) -> Result<Arc<D::Module>> {
    let start = std::time::Instant::now();
    let loaded = driver.load(language, text)?;
    let (device, elapsed) = (adapter.label(), start.elapsed());
    tracing::debug!(device, bytes = text.len(), ?elapsed, "compiled and loaded a source");
    Ok(Arc::new(loaded))
}

/// Looks up a function and checks it against its ABI.
fn checked<D: Driver>(
    driver: &D,
    code: &Arc<D::Module>,
    function: &DeviceFunction,
    abi: &'static EntryAbi,
) -> Result<Kernel<D>> {
    let DeviceFunction { name, work_group, dynamic_local_bytes } = function;
    let found = driver.function(code, function)?;
    let facts = driver.facts(&found)?;
    let wanted = abi.bindings.len() + abi.constants;
    if let Some(has) = facts.parameters.filter(|&has| has != wanted) {
        return Err(Error::invalid(format!("function {name} has {has} parameters, its ABI {wanted}")));
    }
    let items = work_group.iter().fold(1u64, |items, &side| items.saturating_mul(u64::from(side)));
    let limit = facts.max_work_group_items;
    if items > u64::from(limit) {
        let what = format!("{items} work items per group in {name} (this device's limit is {limit})");
        return Err(Error::Unsupported { what });
    }
    let (work_group, dynamic_local_bytes) = (*work_group, *dynamic_local_bytes);
    Ok(Kernel { function: found, work_group, dynamic_local_bytes })
}
