//! Pipelines. Each source is translated once per target and compiled once per device and driver. The results
//! are cached in memory and on disk.
//!
//! The cache stores the SPIR-V of a source and the driver's pipeline cache data. A second device with the
//! same hardware and driver reuses both.
//!
//! This module does not depend on kernel arguments.

use crate::api::{Logical, Pipeline, PipelineCache};
use crate::error::allocation_failure;
use crate::translate::{SpirVTarget, VERSION, translate, uses_sub_groups};
use ragtag_hal::cache::{self, Compiled, Key, Shelf, key};
use ragtag_hal::{DeviceFunction, EntryAbi, Error, KernelLanguage, Module, ModuleSource, Result, TextEntry};
use rayon::prelude::*;
use std::sync::Arc;

/// Number of push constant words that hold the position of a launch's first work group.
const PLACE_WORDS: usize = 3;
/// Size of a word in bytes.
const WORD_BYTES: usize = 4;

/// Cache entry of a source: its SPIR-V and the driver's pipeline cache data.
struct Artefact {
    words: Vec<u32>,
    kept: Vec<u8>,
}

impl Artefact {
    /// Serialises the number of SPIR-V words, the words, and then the driver's data. Integers are
    /// little-endian.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((self.words.len() + 1) * WORD_BYTES + self.kept.len());
        bytes.extend((self.words.len() as u32).to_le_bytes());
        bytes.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(&self.kept);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<WORD_BYTES>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (words, kept) = rest.split_at_checked(count.checked_mul(WORD_BYTES)?)?;
        let (words, _) = words.as_chunks::<WORD_BYTES>();
        let words = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Some(Self { words, kept: kept.to_vec() })
    }
}

/// A WGSL source, and the interface of its entry point.
#[derive(Clone, Copy)]
struct WgslSource<'a> {
    text: &'a str,
    function: &'a DeviceFunction,
    abi: &'static EntryAbi,
}

impl WgslSource<'_> {
    /// Returns the number of bindings and the number of push constant bytes.
    fn interface(&self) -> (u32, u32) {
        (self.abi.bindings.len() as u32, ((PLACE_WORDS + self.abi.constants) * WORD_BYTES) as u32)
    }

    fn wrong(&self, what: String) -> Error {
        Error::invalid(format!("function {}: {what}", self.function.name))
    }
}

/// Compiles and caches the pipelines of a device.
pub(crate) struct Programs {
    target: SpirVTarget,
    pipelines: cache::Programs<Arc<Pipeline>>,
    logical: Arc<Logical>,
    label: String,
}

impl Programs {
    pub(crate) fn new(logical: &Arc<Logical>, target: SpirVTarget, shelf: Arc<Shelf>, label: String) -> Self {
        Self { target, pipelines: cache::Programs::new(shelf), logical: Arc::clone(logical), label }
    }

    /// Returns the entries of a module. Compiles distinct sources in parallel.
    ///
    /// # Errors
    /// Returns one of these errors:
    /// - [`Error::Compile`] with the log, if a source does not compile;
    /// - [`Error::Unsupported`], if the device does not accept the language, or if a function exceeds the
    ///   device's limits;
    /// - [`Error::Invalid`], if a function does not match its ABI.
    pub(crate) fn entries(&self, module: &Module) -> Result<Vec<Arc<Pipeline>>> {
        let ModuleSource::Text { language: KernelLanguage::Wgsl, entries } = &module.source else {
            return Err(Error::Unsupported { what: format!("module {} on a Vulkan device", module.name) });
        };
        let entries: Vec<(&TextEntry, &&'static EntryAbi)> = entries.iter().zip(&module.entries).collect();
        let entry = |(entry, abi): &(&TextEntry, &&'static EntryAbi)| {
            self.pipeline(WgslSource { text: &entry.text, function: &entry.function, abi })
        };
        entries.par_iter().map(entry).collect()
    }

    fn pipeline(&self, source: WgslSource<'_>) -> Result<Arc<Pipeline>> {
        self.fits(source)?;
        let load = |bytes: &[u8]| {
            let artefact =
                Artefact::from_bytes(bytes).ok_or_else(|| Error::invalid("damaged cached program"))?;
            self.make(source, &artefact).map(|(pipeline, _)| Arc::new(pipeline))
        };
        self.pipelines.get(self.key(source), 0, load, || self.compile(source))
    }

    /// Checks that a function is within the limits of the device.
    ///
    /// # Errors
    /// Returns an error if the function exceeds a limit.
    fn fits(&self, source: WgslSource<'_>) -> Result<()> {
        let limits = &self.logical.facts().limits;
        let DeviceFunction { name, work_group, .. } = source.function;
        let items = work_group.iter().fold(1u64, |items, &side| items.saturating_mul(u64::from(side)));
        let most = limits.max_compute_work_group_invocations;
        let wide = work_group.iter().zip(limits.max_compute_work_group_size).any(|(&side, most)| side > most);
        let (bindings, push_bytes) = source.interface();
        let most_bindings =
            limits.max_per_stage_descriptor_storage_buffers.min(limits.max_descriptor_set_storage_buffers);
        let what = match () {
            () if items > u64::from(most) || wide => format!("groups of {work_group:?} work items"),
            () if bindings > most_bindings => format!("{bindings} bindings"),
            () if push_bytes > limits.max_push_constants_size => format!("{push_bytes} bytes of constants"),
            () => return Ok(()),
        };
        Err(Error::Unsupported { what: format!("{what} in {name} on {}", self.label) })
    }

    /// Returns the cache key. Sources with equal keys have the same code, target, device and driver.
    fn key(&self, source: WgslSource<'_>) -> Key {
        let (bindings, push_bytes) = source.interface();
        let shape = format!("{:?} {bindings} {push_bytes} {:?}", source.function, self.target);
        let fingerprint = self.logical.facts().fingerprint.as_bytes().as_slice();
        key([fingerprint, VERSION.as_bytes(), shape.as_bytes(), source.text.as_bytes()])
    }

    fn make(&self, source: WgslSource<'_>, artefact: &Artefact) -> Result<(Pipeline, PipelineCache)> {
        let Artefact { words, kept } = artefact;
        // Drivers do not report the size of a failed allocation. The size of the SPIR-V is a lower bound.
        let short = |error| allocation_failure(error, (words.len() * WORD_BYTES) as u64);
        let cache = PipelineCache::new(&self.logical, kept).map_err(short)?;
        let most = self.logical.facts().full_sub_groups;
        let whole = |most: u32| most > 0 && source.function.work_group[0].is_multiple_of(most);
        let full = most.is_some_and(whole) && uses_sub_groups(words);
        let (entry, interface) = (&source.function.name, source.interface());
        let pipeline = Pipeline::new(&self.logical, words, entry, interface, full, &cache).map_err(short)?;
        Ok((pipeline, cache))
    }

    fn compile(&self, source: WgslSource<'_>) -> Result<Compiled<Arc<Pipeline>>> {
        let made = translate(source.text, &source.function.name, &self.target)?;
        let (bindings, push_bytes) = source.interface();
        if made.bindings > bindings {
            return Err(source.wrong(format!("{} bindings, its ABI {bindings}", made.bindings)));
        }
        // The constants form a structure, whose size WGSL may round up to a multiple of 16 bytes.
        if made.constant_bytes > push_bytes.next_multiple_of(16) {
            return Err(
                source.wrong(format!("{} bytes of constants, its ABI {push_bytes}", made.constant_bytes))
            );
        }
        if made.work_group != source.function.work_group {
            return Err(source.wrong(format!("groups of {:?}", made.work_group)));
        }
        let mut artefact = Artefact { words: made.words, kept: Vec::new() };
        let (pipeline, cache) = self.make(source, &artefact)?;
        match cache.data() {
            Ok(kept) => artefact.kept = kept,
            Err(error) => tracing::debug!(%error, "the driver provides no pipeline data"),
        }
        Ok((Arc::new(pipeline), Some(artefact.to_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artefacts_round_trip_through_the_disk() {
        for (words, kept) in
            [(vec![], vec![]), (vec![1, 2, u32::MAX], vec![]), (vec![7], vec![1, 2, 3, 4, 5])]
        {
            let artefact = Artefact { words, kept };
            let back = Artefact::from_bytes(&artefact.to_bytes()).unwrap();
            assert_eq!((back.words, back.kept), (artefact.words, artefact.kept));
        }
        for bytes in [&[][..], &[1, 0, 0], &[2, 0, 0, 0, 1, 2, 3, 4], &[255; 4]] {
            assert!(Artefact::from_bytes(bytes).is_none(), "{bytes:?}");
        }
    }
}
