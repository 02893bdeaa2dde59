//! Tests of programs for attention with sinks.

use super::*;
use crate::{Granularity, test_models};
use ragtag_hal::KernelLanguage;
use ragtag_kernels::KvType;

fn caps(language: KernelLanguage, units: u32) -> Caps {
    Caps {
        languages: [language].into(),
        max_allocation_bytes: 1 << 40,
        max_binding_bytes: 1 << 40,
        parallel_units: units,
        max_work_group_items: 1024,
        local_memory_bytes: 48 << 10,
        ..Caps::default()
    }
}

/// Checks for micro-batches of many sizes that all attention with sinks is split, whatever rows it has, and that the planner
/// counts the scratch memory.
#[test]
fn attention_with_sinks_is_split_in_all_programs() {
    let model = test_models::gpt_oss().with_granularity(Granularity::HalfBlock);
    let all = 0..model.segment_count();
    for (chunk, sequences, activations) in [
        (1, 1, Activations::F32),
        (5, 3, Activations::Int8),
        (32, 1, Activations::F32),
        (33, 2, Activations::F16),
        (200, 60, Activations::F32),
    ] {
        let lowering = Lowering {
            activations,
            kv: KvType::F16,
            context: 3000,
            sequences,
            kv_blocks: None,
            chunk,
            logit_rows: sequences,
            wire_type: WireType::F32,
        };
        let segments = model.segments(&lowering).unwrap();
        let bound = segments.iter().map(|segment| segment.wide_scratch_bytes).max().unwrap();
        for caps in [caps(KernelLanguage::Host, 4), caps(KernelLanguage::OpenClC, 132)] {
            let stage = compile(&model, all.clone(), &lowering, &caps).unwrap();
            assert!(stage.scratch_bytes <= bound, "{chunk} rows: {} of {bound}", stage.scratch_bytes);
            for program in &stage.programs {
                let launches = |name: &str| {
                    let is_one = |entry: u32| stage.variants[entry as usize].starts_with(name);
                    program.steps.iter().filter(|step| is_one(step.entry)).count()
                };
                let (merges, others) = (launches("attention-merge-sinks "), launches("attention/"));
                assert_eq!((merges, others), (2, 0), "{:?}, {:?}", program.params, program.kind);
            }
        }
    }
}
