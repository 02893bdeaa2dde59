//! Parts of a model's files that Ragtag does not use.

use serde::Serialize;
use std::collections::BTreeSet;

/// Layers with tensors that Ragtag does not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// Number of layers.
    pub layers: usize,
    /// Number of tensors.
    pub tensors: usize,
    /// Size of the tensors in bytes.
    pub bytes: u64,
}

impl Unused {
    /// Counts tensors with these names and sizes. The first number in a name is that of the layer.
    pub(crate) fn of<'a>(tensors: impl Iterator<Item = (&'a str, u64)>) -> Self {
        let (mut layers, mut out) = (BTreeSet::new(), Self::default());
        for (name, bytes) in tensors {
            layers.extend(name.split('.').find_map(|part| part.parse::<u32>().ok()));
            (out.tensors, out.bytes) = (out.tensors + 1, out.bytes.saturating_add(bytes));
        }
        // Files with one layer may have no numbers.
        out.layers = layers.len().max(out.tensors.min(1));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_numbers() {
        let of = |names: &[&'static str]| Unused::of(names.iter().map(|name| (*name, 2)));
        assert_eq!(of(&[]), Unused::default());
        assert_eq!(of(&["mtp.fc.weight"]), Unused { layers: 1, tensors: 1, bytes: 2 });
        let names =
            ["mtp.fc.weight", "mtp.layers.0.mlp.experts.3.up_proj.weight", "mtp.layers.1.norm.weight"];
        assert_eq!(of(&names), Unused { layers: 2, tensors: 3, bytes: 6 });
        assert_eq!(of(&["blk.46.attn_q.weight", "blk.46.nextn.eh_proj.weight"]).layers, 1);
    }
}
