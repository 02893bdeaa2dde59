//! Pipelines: translated once for a text and a target, compiled once for a device and its driver, kept in this process and on
//! disk.
//!
//! What is kept of a text is its SPIR-V and what the driver made of that, as the driver gives it away. A second device of the
//! same kind takes both from the first.
//!
//! This module must not know kernels' arguments.

use crate::api::{Logical, Pipeline, PipelineCache};
use crate::error::allocation_failure;
use crate::translate::{SpirVTarget, VERSION, translate, uses_sub_groups};
use ragtag_hal::cache::{Folder, Key, key};
use ragtag_hal::{DeviceFunction, EntryAbi, Error, KernelLanguage, Module, ModuleSource, Result, TextEntry};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Words of a kernel's constants that are the place of its first group.
const PLACE_WORDS: usize = 3;
/// Bytes of a word.
const WORD_BYTES: usize = 4;

/// What became of the programs that were asked for, since the backend was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Compiled from their text.
    pub compiled: u64,
    /// Loaded from disk.
    pub loaded: u64,
    /// Found in this process.
    pub reused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    compiled: AtomicU64,
    loaded: AtomicU64,
    reused: AtomicU64,
}

/// An entry of a module: a kernel, and its interface.
pub(crate) struct Entry {
    pub(crate) abi: &'static EntryAbi,
    pub(crate) pipeline: Arc<Pipeline>,
}

/// What is kept of a text: SPIR-V, and what the driver gave away.
struct Artefact {
    words: Vec<u32>,
    kept: Vec<u8>,
}

impl Artefact {
    /// The number of words, the words, what is left: little-endian.
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

/// What is kept of a text in this process; locked while it is made.
type Slot = Arc<Mutex<Option<Artefact>>>;

/// What is kept for all devices of a backend.
pub(crate) struct Kept {
    folder: Option<Folder>,
    counters: Counters,
    slots: Mutex<HashMap<Key, Slot>>,
}

impl Kept {
    pub(crate) fn new(folder: Option<Folder>) -> Self {
        Self { folder, counters: Counters::default(), slots: Mutex::default() }
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        CacheCounters {
            compiled: self.counters.compiled.load(Ordering::Relaxed),
            loaded: self.counters.loaded.load(Ordering::Relaxed),
            reused: self.counters.reused.load(Ordering::Relaxed),
        }
    }

    fn slot(&self, key: Key) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(key).or_default())
    }
}

/// A text to be compiled for an entry.
#[derive(Clone, Copy)]
struct Source<'a> {
    text: &'a str,
    function: &'a DeviceFunction,
    abi: &'static EntryAbi,
}

impl Source<'_> {
    /// Bindings, and bytes of push constants.
    fn interface(&self) -> (u32, u32) {
        (self.abi.bindings.len() as u32, ((PLACE_WORDS + self.abi.constants) * WORD_BYTES) as u32)
    }

    fn wrong(&self, what: String) -> Error {
        Error::invalid(format!("function {}: {what}", self.function.name))
    }
}

/// The pipelines of a device.
pub(crate) struct Programs {
    kept: Arc<Kept>,
    target: SpirVTarget,
    pipelines: Mutex<HashMap<Key, Arc<Pipeline>>>,
    logical: Arc<Logical>,
    label: String,
}

impl Programs {
    pub(crate) fn new(logical: &Arc<Logical>, target: SpirVTarget, kept: &Arc<Kept>, label: String) -> Self {
        let (kept, logical) = (Arc::clone(kept), Arc::clone(logical));
        Self { kept, target, pipelines: Mutex::default(), logical, label }
    }

    /// The entries of a module. Its distinct texts are compiled side by side.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log; [`Error::Unsupported`] for a language that the device does not take, and for a
    /// function that is too large for it; [`Error::Invalid`] for a function that is not what its ABI says.
    pub(crate) fn entries(&self, module: &Module) -> Result<Vec<Arc<Entry>>> {
        let ModuleSource::Text { language: KernelLanguage::Wgsl, entries } = &module.source else {
            return Err(Error::Unsupported { what: format!("module {} on a Vulkan device", module.name) });
        };
        let entries: Vec<(&TextEntry, &&'static EntryAbi)> = entries.iter().zip(&module.entries).collect();
        let entry = |(entry, abi): &(&TextEntry, &&'static EntryAbi)| {
            let source = Source { text: &entry.text, function: &entry.function, abi };
            self.pipeline(source).map(|pipeline| Arc::new(Entry { abi, pipeline }))
        };
        entries.par_iter().map(entry).collect()
    }

    fn pipeline(&self, source: Source<'_>) -> Result<Arc<Pipeline>> {
        self.fits(source)?;
        let key = self.key(source);
        let slot = self.kept.slot(key);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.pipelines().get(&key).cloned();
        if let Some(pipeline) = known {
            self.kept.counters.reused.fetch_add(1, Ordering::Relaxed);
            return Ok(pipeline);
        }
        let pipeline = match slot.as_ref() {
            Some(artefact) => {
                let pipeline = self.make(source, artefact)?.0;
                self.kept.counters.reused.fetch_add(1, Ordering::Relaxed);
                pipeline
            }
            None => {
                let (artefact, pipeline) = match self.load(source, &key) {
                    Some(loaded) => loaded,
                    None => self.compile(source, &key)?,
                };
                *slot = Some(artefact);
                pipeline
            }
        };
        let pipeline = Arc::new(pipeline);
        self.pipelines().insert(key, Arc::clone(&pipeline));
        Ok(pipeline)
    }

    fn pipelines(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Pipeline>>> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// If the function is too large for the device.
    fn fits(&self, source: Source<'_>) -> Result<()> {
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

    /// Names the pipeline: the same key means the same code, made alike for the same device and driver.
    fn key(&self, source: Source<'_>) -> Key {
        let (bindings, push_bytes) = source.interface();
        let shape = format!("{:?} {bindings} {push_bytes} {:?}", source.function, self.target);
        let parts = [self.logical.facts().fingerprint.as_str(), VERSION, shape.as_str(), source.text];
        key(parts.map(str::as_bytes))
    }

    fn make(&self, source: Source<'_>, artefact: &Artefact) -> Result<(Pipeline, PipelineCache)> {
        let Artefact { words, kept } = artefact;
        // Drivers do not say how much they have no memory for; they need the words at least.
        let short = |error| allocation_failure(error, (words.len() * WORD_BYTES) as u64, None);
        let cache = PipelineCache::new(&self.logical, kept).map_err(short)?;
        let most = self.logical.facts().full_sub_groups;
        let whole = |most: u32| most > 0 && source.function.work_group[0].is_multiple_of(most);
        let full = most.is_some_and(whole) && uses_sub_groups(words);
        let (entry, interface) = (&source.function.name, source.interface());
        let pipeline = Pipeline::new(&self.logical, words, entry, interface, full, &cache).map_err(short)?;
        Ok((pipeline, cache))
    }

    fn load(&self, source: Source<'_>, key: &Key) -> Option<(Artefact, Pipeline)> {
        let artefact = Artefact::from_bytes(&self.kept.folder.as_ref()?.load(key)?)?;
        match self.make(source, &artefact) {
            Ok((pipeline, _)) => {
                self.kept.counters.loaded.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(device = self.label, %key, "a program was loaded");
                Some((artefact, pipeline))
            }
            Err(error) => {
                tracing::debug!(device = self.label, %key, %error, "a kept program was refused");
                None
            }
        }
    }

    fn compile(&self, source: Source<'_>, key: &Key) -> Result<(Artefact, Pipeline)> {
        let start = std::time::Instant::now();
        let made = translate(source.text, &source.function.name, &self.target)?;
        let translated = start.elapsed();
        let (bindings, push_bytes) = source.interface();
        if made.bindings > bindings {
            return Err(source.wrong(format!("{} bindings, its ABI {bindings}", made.bindings)));
        }
        // The structure of the constants is padded to whole vectors.
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
        self.kept.counters.compiled.fetch_add(1, Ordering::Relaxed);
        let (device, function, elapsed) = (&self.label, &source.function.name, start.elapsed());
        tracing::debug!(device, %key, function, ?translated, ?elapsed, "a program was compiled");
        match cache.data() {
            Ok(kept) => artefact.kept = kept,
            Err(error) => tracing::debug!(%error, "the driver gives nothing away"),
        }
        if let Some(folder) = &self.kept.folder {
            folder.store(key, &artefact.to_bytes());
        }
        Ok((artefact, pipeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artefacts_survive_the_disk() {
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
