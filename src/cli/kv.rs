//! Requested KV cache: the types of keys and values, the memory, and its use.

use super::args::choice;
use super::error::{Error, Result};
use clap::Args;
use ragtag_devices::size_bytes;
use ragtag_graph::execution::{Eviction, KvUse, Reserve};
use ragtag_kernels::{CacheType, KvType};
use ragtag_planner::request::PlanOptions;

/// Arguments of the KV cache.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct KvArgs {
    /// Type of keys and values in the KV cache. Default: the type in the plan with --plan, otherwise f16, or f32
    /// with --activations f32.
    #[arg(long, value_name = "TYPE", value_parser = choice(TYPES))]
    kv: Option<CacheType>,
    /// Type of keys in the KV cache. Default: the type of --kv.
    #[arg(long, value_name = "TYPE", value_parser = choice(TYPES), hide = true)]
    kv_keys: Option<CacheType>,
    /// Type of values in the KV cache: the type of keys, or q4_0 with q8_0 keys. Default: the type of --kv.
    #[arg(long, value_name = "TYPE", value_parser = choice(TYPES), hide = true)]
    kv_values: Option<CacheType>,
    /// Memory for keys and values in all devices together: 8GiB, 512MiB … Default: what is left beside the weights, at
    /// most as much as all sequences need at the full context.
    #[arg(long, value_name = "SIZE", value_parser = size, hide = true)]
    pub(super) kv_memory: Option<u64>,
    /// When a sequence takes blocks of the KV cache: as it grows, or all of them before it starts. With full, no
    /// sequence is preempted, and results do not depend on other requests. Default: the use in the plan with --plan,
    /// otherwise grow.
    #[arg(long, value_name = "WHEN", value_parser = choice(RESERVES), hide = true)]
    kv_reserve: Option<Reserve>,
    /// Keep the keys and values of earlier prompts for later ones that begin alike: on, off, or which block is
    /// overwritten first (lru, fifo, lfu; on is lru). Default: on, but off with --kv-reserve full.
    #[arg(long, value_name = "POLICY", value_parser = choice(PREFIXES), hide = true)]
    prefix_cache: Option<Prefixes>,
}

/// Policy of eviction, or `None` if the cache keeps no blocks.
#[derive(Clone, Copy, Debug)]
struct Prefixes(Option<Eviction>);

/// Values of `--kv-reserve` and of `--prefix-cache`.
const RESERVES: &[(&str, Reserve)] = &[("grow", Reserve::Grow), ("full", Reserve::Full)];
const PREFIXES: &[(&str, Prefixes)] = &[
    ("on", Prefixes(Some(Eviction::Lru))),
    ("off", Prefixes(None)),
    ("lru", Prefixes(Some(Eviction::Lru))),
    ("fifo", Prefixes(Some(Eviction::Fifo))),
    ("lfu", Prefixes(Some(Eviction::Lfu))),
];

/// Parses a number of bytes.
fn size(text: &str) -> std::result::Result<u64, String> {
    size_bytes(text).ok_or_else(|| "expected a size like 512MiB or 11.5GiB (B, KiB, MiB, GiB or TiB)".into())
}

/// Names of the types.
const TYPES: &[(&str, CacheType)] =
    &[("f32", CacheType::F32), ("f16", CacheType::F16), ("q8_0", CacheType::Q8_0), ("q4_0", CacheType::Q4_0)];

impl KvArgs {
    /// Returns the arguments with the settings of `options` in place of theirs.
    pub(super) fn over(self, options: &PlanOptions) -> Self {
        let [keys, values] = [KvType::keys, KvType::values].map(|of| options.kv.map(of));
        let kv_use = options.kv_use;
        Self {
            kv: if options.kv.is_some() { None } else { self.kv },
            kv_keys: keys.or(self.kv_keys),
            kv_values: values.or(self.kv_values),
            kv_memory: options.kv_memory_bytes.or(self.kv_memory),
            kv_reserve: kv_use.map(|kv_use| kv_use.reserve).or(self.kv_reserve),
            prefix_cache: kv_use.map(|kv_use| Prefixes(kv_use.prefixes)).or(self.prefix_cache),
        }
    }

    /// Returns the arguments with these types, if they have none.
    pub(super) fn or_types(self, kv: KvType) -> Self {
        match (self.kv, self.kv_keys, self.kv_values) {
            (None, None, None) => Self { kv_keys: Some(kv.keys()), kv_values: Some(kv.values()), ..self },
            _ => self,
        }
    }

    /// Returns the requested use of the KV cache. `planned` is the use in the plan file, if there is one.
    pub(super) fn kv_use(&self, planned: Option<KvUse>) -> KvUse {
        let usual =
            |reserve| KvUse { reserve, prefixes: (reserve == Reserve::Grow).then_some(Eviction::Lru) };
        let kv_use = match (self.kv_reserve, planned) {
            (Some(reserve), _) => usual(reserve),
            (None, planned) => planned.unwrap_or(usual(Reserve::Grow)),
        };
        match self.prefix_cache {
            Some(Prefixes(prefixes)) => KvUse { prefixes, ..kv_use },
            None => kv_use,
        }
    }

    /// Returns the requested types. `usual` are the types that apply if the user requests none.
    ///
    /// # Errors
    /// [`Error::Usage`] if no kernels exist for the pair of types.
    pub(super) fn types(&self, usual: KvType) -> Result<KvType> {
        let keys = self.kv_keys.or(self.kv).unwrap_or(usual.keys());
        let values = self.kv_values.or(self.kv).unwrap_or(usual.values());
        KvType::new(keys, values).map_err(|error| Error::Usage(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_default_to_the_common_type() {
        let types = |kv, kv_keys, kv_values| {
            KvArgs { kv, kv_keys, kv_values, ..KvArgs::default() }.types(KvType::F16)
        };
        assert_eq!(types(None, None, None).unwrap(), KvType::F16);
        assert_eq!(types(Some(CacheType::F32), None, None).unwrap(), KvType::F32);
        assert_eq!(types(Some(CacheType::Q8_0), None, Some(CacheType::Q4_0)).unwrap(), KvType::Q8_0Q4_0);
        assert_eq!(
            types(Some(CacheType::F32), Some(CacheType::Q4_0), Some(CacheType::Q4_0)).unwrap(),
            KvType::Q4_0
        );
        let error = types(None, Some(CacheType::Q8_0), None).unwrap_err().to_string();
        assert!(error.contains("q8_0 keys and f16 values"), "{error}");
    }

    #[test]
    fn the_cache_keeps_prefixes_unless_sequences_take_all_their_blocks() {
        let kv_use = |kv_reserve, prefix_cache, planned| {
            let KvUse { reserve, prefixes } =
                KvArgs { kv_reserve, prefix_cache, ..KvArgs::default() }.kv_use(planned);
            (reserve, prefixes)
        };
        let (lru, fifo) = (Some(Eviction::Lru), Some(Eviction::Fifo));
        let planned = Some(KvUse { reserve: Reserve::Full, prefixes: fifo });
        assert_eq!(kv_use(None, None, None), (Reserve::Grow, lru));
        assert_eq!(kv_use(Some(Reserve::Full), None, None), (Reserve::Full, None));
        assert_eq!(kv_use(None, Some(Prefixes(fifo)), None), (Reserve::Grow, fifo));
        assert_eq!(kv_use(None, None, planned), (Reserve::Full, fifo));
        assert_eq!(kv_use(None, Some(Prefixes(None)), planned), (Reserve::Full, None));
        assert_eq!(kv_use(Some(Reserve::Grow), None, planned), (Reserve::Grow, lru));
        assert_eq!((size("1.5KiB"), size("x").is_err()), (Ok(1536), true));
    }
}
