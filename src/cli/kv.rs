//! Requested types of keys and values.

use super::args::choice;
use super::error::{Error, Result};
use clap::Args;
use ragtag_kernels::{CacheType, KvType};

/// Arguments that select the types of keys and values.
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
}

/// Names of the types.
const TYPES: &[(&str, CacheType)] =
    &[("f32", CacheType::F32), ("f16", CacheType::F16), ("q8_0", CacheType::Q8_0), ("q4_0", CacheType::Q4_0)];

impl From<KvType> for KvArgs {
    fn from(kv: KvType) -> Self {
        Self { kv: None, kv_keys: Some(kv.keys()), kv_values: Some(kv.values()) }
    }
}

impl KvArgs {
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
        let types = |kv, kv_keys, kv_values| KvArgs { kv, kv_keys, kv_values }.types(KvType::F16);
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
}
