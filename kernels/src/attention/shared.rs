//! First launch of split attention with one split, for rows of prompts. Rows of a sequence share loads of keys and values.
//!
//! Bindings, constants and partials are those of [`partial`](super::partial) with one split. Attention with sinks needs
//! partials also for prompts.

use super::partial::{self, BINDINGS};
use super::{Scene, random_scene, scene};
use crate::abi::{IMPOSSIBLE, abi_for};
use crate::cases::{Case, Random};
use crate::kernel::{Accuracy, Kernel, KvType, Spec};
use crate::layout::Layout;
use ragtag_hal::EntryAbi;

fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    partial::extents(kv_type, constants, out);
    if constants[12] != 1 {
        out[4] = IMPOSSIBLE;
    }
}

pub(crate) struct AttentionShared(pub KvType);

impl Spec for AttentionShared {
    fn exists(&self) -> bool {
        self.0 == KvType::F16
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(KvType, self.0, "attention_shared", BINDINGS, 14, extents)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        // Capacity, (first position, rows) of each sequence, heads, kv heads, head dimension, window, cap.
        [
            (1, vec![(0, 1)], [1, 1, 64], super::NO_WINDOW, 0.0),
            (150, vec![(0, 140)], [8, 1, 64], super::NO_WINDOW, 0.0),
            (90, vec![(30, 70), (0, 5), (200, 10)], [4, 2, 128], super::NO_WINDOW, 0.0),
            (80, vec![(60, 77)], [16, 2, 64], 50, 0.0),
            (70, vec![(0, 33), (100, 33)], [4, 4, 48], 128, 1.5),
            (40, vec![(20, 40)], [6, 2, 256], super::NO_WINDOW, 0.0),
            (20, vec![(70, 17)], [2, 1, 20], 9, 0.0),
            (40, vec![(31, 38)], [8, 2, 64], super::CHUNKS | 32, 0.0),
        ]
        .into_iter()
        .map(|(capacity, starts, [heads, kv_heads, head_dim], window, cap)| {
            let mut scene = scene(random, self.0, (capacity, heads, kv_heads, head_dim), &starts);
            scene.limit(window, cap);
            self.case(&scene)
        })
        .collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (capacity, starts, [heads, kv_heads, head_dim]) = random_scene(random, self.0);
        let mut scene = scene(random, self.0, (capacity, heads, kv_heads, head_dim), &starts);
        scene.limit_randomly(random);
        self.case(&scene)
    }
}

impl AttentionShared {
    fn case(&self, scene: &Scene) -> Case {
        partial::case(Kernel::AttentionShared(self.0), scene, 1)
    }
}
