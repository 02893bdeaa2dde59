//! EXAONE 4: norms after each half of a layer instead of before it, and norms of query and key heads. Large models have a
//! window in three of four layers, and no RoPE in the other layers.

use super::architecture::{Architecture, USUAL, kv_heads, sliding_window};
use super::keys::Setting;
use super::names::{COMMON, GATED, HEAD_NORMS};
use super::olmo2::NORMS;
use super::transformer::{Attention, Layer, Norms, QkNorm};

/// Distance between layers that attend to all positions, unless the file says otherwise.
const PERIOD: u32 = 4;

pub(super) static EXAONE4: Architecture = Architecture {
    name: "exaone4",
    classes: &["Exaone4ForCausalLM"],
    defaults: &[("rms_norm_eps", Setting::Number(1e-5)), kv_heads(32), sliding_window(4096)],
    read: |keys, h| {
        // The pattern may be a text such as "LLLG". A list of layers takes precedence.
        let has_list = keys.config().is_some_and(|config| config.find("layer_types").is_some());
        let period = if has_list { None } else { keys.count("", "sliding_window_pattern")? };
        keys.mark("sliding_window_pattern");
        keys.window(h, period.unwrap_or(PERIOD))?;
        if h.extras.window.is_some() {
            h.extras.unrotated_layers = h.extras.windowed_layers.others();
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { qk_norm: Some(QkNorm::Heads), ..plain.attention },
            norms: Norms::After,
            ..plain
        }
    },
    tensors: &[COMMON, GATED, HEAD_NORMS, NORMS],
    ..USUAL
};
