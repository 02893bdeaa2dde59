//! Mixtral: Llama with experts. GGUF files of these models name the architecture `llama`.

use super::architecture::{Architecture, USUAL, kv_heads, rope_base};
use super::experts;
use super::keys::Setting;
use super::names::{COMMON, MIXTRAL_EXPERTS, NORMS};
use super::rope::RopePairing;
use ragtag_kernels::experts::route::Choice;

pub(super) static MIXTRAL: Architecture = Architecture {
    name: "mixtral",
    classes: &["MixtralForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(8),
        rope_base(1e6),
        ("num_experts_per_tok", Setting::Count(2)),
    ],
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        keys.window(h, 0)?;
        h.extras.experts = Some(experts::read(keys, h, Choice::softmax(1, true))?);
        Ok(())
    },
    tensors: &[COMMON, NORMS, MIXTRAL_EXPERTS],
    ..USUAL
};
