//! Snapshots of operator graphs and programs as text. In code review, they show changes to the lowering.
//!
//! After an intended change, run `INSTA_UPDATE=always cargo test -p ragtag-graph --test snapshots` and review
//! the diff.

use ragtag_graph::{
    CompiledStage, Granularity, Lowering, MemorySource, Model, ModelFile, RowKind, Source, StageBuffer,
    StageResult, WeightContent, WireType, compile,
};
use ragtag_hal::{Caps, Feature, KernelLanguage, QueueLayout};
use ragtag_kernels::params::{DECODE_ROWS, ROWS};
use ragtag_kernels::{Activations, KvType, Layout, TensorType};
use std::fmt::Write;
use std::sync::Arc;

fn open(name: &str, file: &str) -> Model {
    let bytes = std::fs::read(test_support::model(file)).unwrap();
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(name, bytes));
    Model::new(ModelFile::open(vec![source]).unwrap()).unwrap()
}

fn bitnet() -> Model {
    open("bitnet", "tales-bitnet-tq2_0")
}

fn llama() -> Model {
    open("llama", "tales-q8_0")
}

/// Returns the capabilities of a device without special features, so that all machines select the same kernel
/// variants.
fn plain_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::Host].into(),
        features: Default::default(),
        queues: QueueLayout::Separate,
        records_programs: false,
        max_allocation_bytes: u64::MAX,
        max_binding_bytes: u64::MAX,
        binding_alignment_bytes: 64,
        copy_alignment_bytes: 1,
        parallel_units: 1,
        max_work_group_items: 1,
        local_memory_bytes: 0,
        clocks: Default::default(),
        gemm: None,
        sharing: Default::default(),
    }
}

fn lowering(activations: Activations) -> Lowering {
    Lowering {
        activations,
        kv: KvType::F16,
        context: 100,
        sequences: 2,
        kv_blocks: None,
        chunk: 6,
        logit_rows: 2,
        wire_type: WireType::F32,
    }
}

/// Lists the nodes of the embedding, the first block and the head, along with their inputs.
fn graph_text(model: &Model, activations: Activations) -> String {
    let graph = model.graph(activations);
    let mut text = String::new();
    let nodes = graph.ordered();
    for &index in nodes.iter().filter(|&&n| [0, 1, 13].contains(&graph.node(n).segment)) {
        let node = graph.node(index);
        let inputs: Vec<_> = graph.inputs(index).iter().map(|i| format!("n{}", i.index())).collect();
        writeln!(
            text,
            "{:9} n{:<3} {:?} × {:<4} ← [{}] {:?}",
            model.segment_name(node.segment),
            index.index(),
            node.rows,
            node.width,
            inputs.join(", "),
            node.operator
        )
        .unwrap();
    }
    text
}

/// Lists the steps of the embedding, the first block and the head, in the bucket of four rows.
fn program_text(stage: &CompiledStage) -> String {
    let mut text = String::new();
    let program = &stage.programs[stage.program_for([3, 1], 1, 0).unwrap()];
    writeln!(text, "{:?}", program.params).unwrap();
    for step in program.steps.iter().filter(|s| [0, 1, 13].contains(&s.segment)) {
        let place = |place: &StageBuffer| match place {
            StageBuffer::Weight(index) => stage.weights[*index].name.clone(),
            other => format!("{other:?}"),
        };
        let slices: Vec<_> = step
            .slices
            .iter()
            .map(|s| format!("{} {}+{} {:?}", place(&s.buffer), s.offset, s.bytes, s.access))
            .collect();
        let name = &stage.variants[step.entry as usize];
        writeln!(
            text,
            "{} {name} {:?} grid {:?}\n    {}",
            step.segment,
            step.constants,
            step.grid,
            slices.join("; ")
        )
        .unwrap();
    }
    writeln!(text, "scratch {} bytes, cache {:?} bytes", stage.scratch_bytes, stage.kv_bytes.first())
        .unwrap();
    text
}

#[test]
fn operator_graphs() {
    insta::assert_snapshot!("bitnet_int8", graph_text(&bitnet(), Activations::Int8));
    insta::assert_snapshot!("llama_f32", graph_text(&llama(), Activations::F32));
}

#[test]
fn programs() {
    for (name, model, activations) in [
        ("program_bitnet_int8", bitnet(), Activations::Int8),
        ("program_llama_f32", llama(), Activations::F32),
        ("program_llama_f16", llama(), Activations::F16),
    ] {
        let stage = compile(&model, 0..14, &lowering(activations), &plain_caps()).unwrap();
        insta::assert_snapshot!(name, program_text(&stage));
    }
}

/// Returns the capabilities of a device that splits attention.
fn wide_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::OpenClC].into(),
        parallel_units: 132,
        max_work_group_items: 1024,
        local_memory_bytes: 48 << 10,
        ..plain_caps()
    }
}

/// Checks which programs a stage has, and the number of splits in those that split attention of decode rows.
#[test]
fn decode_rows_have_programs_of_their_own() {
    use RowKind::{Any, Decode, Mixed};
    let many = Lowering { chunk: 512, sequences: 300, logit_rows: 300, ..lowering(Activations::F32) };
    let of = |caps: &Caps, lowering: &Lowering| compile(&llama(), 0..14, lowering, caps).unwrap();
    let has = |stage: CompiledStage, kind| stage.programs.iter().any(|program| program.kind == kind);
    assert!([Decode, Mixed].iter().all(|kind| !has(of(&plain_caps(), &many), *kind)));
    let [one, few] = [1, 32].map(|sequences| Lowering { sequences, ..many });
    assert!(!has(of(&wide_caps(), &few), Decode) && !has(of(&wide_caps(), &one), Mixed));
    let stage = of(&wide_caps(), &many);
    let shapes: Vec<_> = stage.programs.iter().map(|p| (p.params.rows, p.kind)).collect();
    let few = [1, 2, 4, 8, 16, 32].map(|rows| (rows, Any));
    let large = [64, 128, 256].map(|rows| [(rows, Decode), (rows, Mixed), (rows, Any)]);
    assert_eq!(shapes, [&few[..], large.as_flattened(), &[(300, Decode), (512, Mixed), (512, Any)]].concat());
    let found = |rows, sequences, decode| stage.program_for([rows, sequences], sequences, decode);
    for (rows, sequences, decode, program) in [
        (32, 32, 32, (32, Any)),
        (40, 40, 40, (64, Decode)),
        (40, 39, 38, (64, Mixed)),
        (40, 2, 0, (64, Any)),
        (300, 300, 300, (300, Decode)),
    ] {
        assert_eq!(found(rows, sequences, decode).map(|index| shapes[index]), Some(program));
    }
    assert_eq!(found(301, 301, 301), None);
    let bounds = llama().segments(&many).unwrap().into_iter().map(|segment| segment.scratch_bytes).max();
    assert!(Some(stage.scratch_bytes) <= bounds, "{} of {bounds:?} bytes", stage.scratch_bytes);
    for program in stage.programs.iter().filter(|program| program.kind != Any) {
        let name = |step: &&ragtag_graph::ProgramStep| stage.variants[step.entry as usize].as_str();
        let attention = program.segment_steps(1).filter(|step| name(step).starts_with("attention"));
        let (steps, rows): (Vec<_>, _) = (attention.collect(), program.params.rows);
        let names: Vec<_> = steps.iter().map(|step| name(step).split(['/', ' ']).next().unwrap()).collect();
        let is_mixed = program.kind == Mixed;
        let expected = ["attention-partial", "attention", "attention-merge"];
        assert_eq!(names, if is_mixed { expected.to_vec() } else { vec![expected[0], expected[2]] });
        // The word of the number of rows, in the partial and in the merge.
        let [partial, merge] = [&steps[0].constants, &steps[steps.len() - 1].constants];
        assert_eq!([partial[13], merge[1]], [if is_mixed { DECODE_ROWS } else { ROWS }; 2]);
        assert_eq!(steps[0].grid[2], if is_mixed { rows.min(300) } else { rows });
        assert!(partial[12] * rows <= 32 * 64 + rows, "{} splits of {rows} rows", partial[12]);
    }
}

/// Lists the kernels that one block launches in the bucket for `rows` rows. Checks that both granularities
/// and all splits into stages launch the same kernels.
fn launches(model: &Model, activations: Activations, caps: &Caps, rows: u32) -> Vec<String> {
    let lowering = Lowering { chunk: 64, ..lowering(activations) };
    let of = |model: &Model, segments| {
        let stage = compile(model, segments, &lowering, caps).unwrap();
        let kernel = |step: &ragtag_graph::ProgramStep| {
            stage.variants[step.entry as usize].split(' ').next().unwrap().to_string()
        };
        let program = &stage.programs[stage.program_for([rows, 1], 1, 0).unwrap()];
        program.steps.iter().map(kernel).collect::<Vec<_>>()
    };
    let (block, halves) = (of(model, 1..2), model.with_granularity(Granularity::HalfBlock));
    assert_eq!([of(&halves, 1..2), of(&halves, 2..3)].concat(), block);
    block
}

#[test]
fn stages_of_whole_blocks_do_not_depend_on_the_granularity() {
    // Each pair holds a segment range at block granularity and the same range at half-block granularity.
    let stages = [(0..14, 0..26), (0..7, 0..13), (7..14, 13..26), (3..5, 5..9), (13..14, 25..26)];
    for (model, activations) in
        [(bitnet(), Activations::Int8), (llama(), Activations::F16), (llama(), Activations::F32)]
    {
        let halves = model.with_granularity(Granularity::HalfBlock);
        for (segments, in_halves) in &stages {
            for caps in [plain_caps(), wide_caps(), cuda_caps(), wgsl_caps()] {
                let compiled =
                    |model, segments| compile(model, segments, &lowering(activations), &caps).unwrap();
                let stage = compiled(&model, segments.clone());
                let mut same = compiled(&halves, in_halves.clone());
                for step in same.programs.iter_mut().flat_map(|program| &mut program.steps) {
                    step.segment = step.segment.div_ceil(2);
                }
                assert_eq!(same.programs, stage.programs);
                same.weights.iter_mut().for_each(|weight| weight.segment = weight.segment.div_ceil(2));
                assert_eq!(same.weights, stage.weights);
                assert_eq!((same.kv_bytes, same.scratch_bytes), (stage.kv_bytes, stage.scratch_bytes));
                assert_eq!((same.row_bytes, same.result), (stage.row_bytes, stage.result));
            }
        }
    }
}

/// Checks that, in every bucket, the wire type f16 adds one dispatch to a stage for each of its neighbours.
#[test]
fn f16_boundaries_add_a_dispatch_at_each_end_that_has_a_neighbour() {
    let (model, f32_rows) = (llama(), lowering(Activations::Int8));
    let f16_rows = Lowering { wire_type: WireType::F16, ..f32_rows };
    for caps in [plain_caps(), wide_caps(), cuda_caps()] {
        for (segments, arrives, leaves) in
            [(0..14, false, false), (0..4, false, true), (4..9, true, true), (9..14, true, false)]
        {
            let stage = |lowering| compile(&model, segments.clone(), lowering, &caps).unwrap();
            let (plain, stage) = (stage(&f32_rows), stage(&f16_rows));
            assert_eq!((plain.crossing_row_bytes, stage.row_bytes), (None, plain.row_bytes));
            // f16 rows are padded to a multiple of 64 values.
            let pitch = stage.row_bytes / 4 * 2;
            assert_eq!(stage.crossing_row_bytes, Some(pitch.next_multiple_of(128)));
            let crossing = u64::from(stage.max_rows()) * stage.crossing_row_bytes.unwrap();
            assert_eq!(stage.slot_bytes(), plain.slot_bytes() + crossing);
            for (plain, program) in plain.programs.iter().zip(&stage.programs) {
                let kernel = |step: &ragtag_graph::ProgramStep| {
                    stage.variants[step.entry as usize].split(' ').next().unwrap().to_string()
                };
                let places = |step: &ragtag_graph::ProgramStep| {
                    step.slices.iter().map(|s| s.buffer).collect::<Vec<_>>()
                };
                let bytes = |step: &ragtag_graph::ProgramStep| -> Vec<u64> {
                    step.slices.iter().rev().take(2).map(|slice| slice.bytes).collect()
                };
                let rows = u64::from(program.params.rows);
                let [crossing, residual] =
                    [stage.crossing_row_bytes.unwrap(), stage.row_bytes].map(|row_bytes| rows * row_bytes);
                let mut steps = &program.steps[..];
                if arrives {
                    let (first, rest) = steps.split_first().unwrap();
                    assert_eq!((kernel(first), first.segment), ("copy".into(), segments.start));
                    assert_eq!(places(first), [StageBuffer::Crossing, StageBuffer::Activation]);
                    assert_eq!(bytes(first), [residual, crossing]);
                    // Rows have the stride of the wire type, and values are contiguous.
                    let [.., row, value] = first.constants[..] else { panic!("{first:?}") };
                    assert_eq!((u64::from(row) * 2, value), (stage.crossing_row_bytes.unwrap(), 1));
                    steps = rest;
                }
                if leaves {
                    let (last, rest) = steps.split_last().unwrap();
                    assert_eq!((kernel(last), last.segment), ("quantize/f16".into(), segments.end - 1));
                    assert_eq!(
                        places(last),
                        [StageBuffer::Params, StageBuffer::Activation, StageBuffer::Crossing]
                    );
                    assert_eq!(bytes(last), [crossing, residual]);
                    steps = rest;
                }
                let slices = |steps: &[ragtag_graph::ProgramStep]| -> Vec<_> {
                    steps
                        .iter()
                        .map(|step| (step.slices.clone(), step.constants.clone(), step.grid))
                        .collect()
                };
                assert_eq!(slices(steps), slices(&plain.steps));
            }
        }
    }
}

#[test]
fn half_blocks_have_their_own_weights_and_only_attention_has_a_cache() {
    let halves = llama().with_granularity(Granularity::HalfBlock);
    let stage = |segments| compile(&halves, segments, &lowering(Activations::F32), &plain_caps()).unwrap();
    let names = |stage: &CompiledStage| stage.weights.iter().map(|w| w.name.clone()).collect::<Vec<_>>();
    let (attention, ffn) = (stage(3..4), stage(4..5));
    let qkv = "blk.1.attn_q.weight + blk.1.attn_k.weight + blk.1.attn_v.weight";
    let frequencies = "rotary frequencies: base 10000, 64 dimensions";
    let of_attention = ["blk.1.attn_norm.weight", qkv, frequencies, "blk.1.attn_output.weight"];
    assert_eq!(names(&attention), of_attention);
    let gate_up = "blk.1.ffn_gate.weight + blk.1.ffn_up.weight";
    assert_eq!(names(&ffn), ["blk.1.ffn_norm.weight", gate_up, "blk.1.ffn_down.weight"]);
    assert_eq!((attention.kv_bytes.len(), ffn.kv_bytes.len()), (2, 0));
    // The stage has the second half of one block and the first half of the next, so it needs only one cache.
    assert_eq!(stage(4..6).kv_bytes.len(), 2);
    assert_eq!(halves.segment_name(3), "block 1 attention");
    assert_eq!(halves.segment_name(4), "block 1 ffn");
}

#[test]
fn a_block_takes_few_launches() {
    let (product, half) = ("matmul/Q8_0/int8", ["rms-norm/int8", "matmul/Q8_0/int8", "silu-mul/int8"]);
    let attention = |attention: [&'static str; 2]| {
        [&["rms-norm/int8", product, "rope-append/f16"][..], &attention, &[product], &half, &[product]]
            .concat()
    };
    let whole = attention(["attention/f16", "quantize/int8"]);
    let split = attention(["attention-partial/f16", "attention-merge/int8"]);
    let llama = llama();
    for rows in [1, 8, 64] {
        assert_eq!(launches(&llama, Activations::Int8, &plain_caps(), rows), whole);
        let expected = if rows > 32 { &whole } else { &split };
        assert_eq!(launches(&llama, Activations::Int8, &wide_caps(), rows), *expected);
    }
    assert_eq!(launches(&llama, Activations::F32, &plain_caps(), 1).len(), 9);
    // Dequantizing adds one launch per product.
    for (caps, before) in [(plain_caps(), "quantize/f16"), (wide_caps(), "attention-merge/f16")] {
        let launches = launches(&llama, Activations::F16, &caps, 8);
        assert_eq!(launches.len(), 14);
        assert_eq!(launches[5..8], [before, "widen/Q8_0", "matmul/F16/f16"]);
    }
    // BitNet has two more norms. One of them writes int8 directly.
    assert_eq!(launches(&bitnet(), Activations::Int8, &plain_caps(), 1).len(), 11);
    assert_eq!(launches(&bitnet(), Activations::Int8, &wide_caps(), 1).len(), 12);
}

/// Returns the capabilities of a device with WGSL kernels.
fn wgsl_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::Wgsl].into(),
        features: [Feature::SubGroups, Feature::Fp16].into(),
        ..wide_caps()
    }
}

#[test]
fn fused_kernels_save_launches_for_single_rows() {
    let [first, gates, product] = ["norm-matmul/Q8_0", "gated-matmul/Q8_0", "matmul/Q8_0/f32"];
    let (attention, split) = (["append-attention/f16"], ["rope-append/f16", "attention-partial/f16"]);
    let merge = ["attention-merge/f32", product, gates, product];
    let llama = llama();
    let of = |rows| launches(&llama, Activations::F32, &wgsl_caps(), rows);
    assert_eq!(of(1), [&[first][..], &attention, &merge].concat());
    // With several rows, RoPE and append stay separate, because rows read keys that other rows append.
    assert_eq!(of(2), [&[first][..], &split, &merge].concat());
    // For many rows, this device launches the same kernels as other devices.
    assert_eq!(of(16), launches(&llama, Activations::F32, &wide_caps(), 16));
    // Norms with int8 output stay separate launches. If they were fused, each work group would have to
    // quantize the whole row.
    let [norm, int8, gates] = ["rms-norm/int8", "matmul/Q8_0/int8", "silu-mul/int8"];
    let expected = [&[norm, int8][..], &attention, &["attention-merge/int8", int8, norm, int8, gates, int8]];
    assert_eq!(launches(&llama, Activations::Int8, &wgsl_caps(), 1), expected.concat());
    // BitNet has two more norms.
    assert_eq!(launches(&bitnet(), Activations::F32, &wgsl_caps(), 1).len(), 6);
    // If gate and up projections are in different parts, they are not fused.
    let caps = Caps { max_binding_bytes: 400 << 10, ..wgsl_caps() };
    let in_parts = launches(&llama, Activations::F32, &caps, 1);
    assert!(in_parts.contains(&"silu-mul/f32".to_owned()), "{in_parts:?}");
    assert!(!in_parts.iter().any(|name| name.starts_with("gated") || name.starts_with("rms-norm")));
}

/// Returns the kernels that one block of the tiny bfloat16 model `name` launches for one row.
fn launches_of_tiny(name: &str) -> Vec<String> {
    let bytes = std::fs::read(test_support::golden(name).join("model.gguf")).unwrap();
    let file = ModelFile::open(vec![Arc::new(MemorySource::new(name, bytes))]).unwrap();
    launches(&Model::new(file).unwrap(), Activations::F32, &wgsl_caps(), 1)
}

/// Kernels that a block launches after its QKV product, for one row.
const AFTER_QKV: [&str; 5] = [
    "append-attention/f16",
    "attention-merge/f32",
    "matmul/BF16/f32",
    "gated-matmul/BF16",
    "matmul/BF16/f32",
];

#[test]
fn biases_take_one_launch_and_keep_fusions() {
    assert_eq!(launches_of_tiny("tiny-qwen2"), [&["copy", "norm-matmul/BF16"][..], &AFTER_QKV].concat());
}

#[test]
fn head_norms_take_one_launch_and_keep_fusions() {
    assert_eq!(launches_of_tiny("tiny-qwen3"), [&["norm-matmul/BF16", "head-norm"][..], &AFTER_QKV].concat());
}

#[test]
fn fused_gate_has_one_column_per_two_weight_rows() {
    let stage = compile(&llama(), 1..2, &lowering(Activations::F32), &wgsl_caps()).unwrap();
    let program = &stage.programs[stage.program_for([1, 1], 1, 0).unwrap()];
    let gated =
        |step: &&ragtag_graph::ProgramStep| stage.variants[step.entry as usize].starts_with("gated-matmul");
    let step = program.steps.iter().find(gated).unwrap();
    // The bindings are parameters, weights, x, y and the norm.
    assert_eq!((step.constants[2], step.slices[3].bytes), (1536, 1536 / 2 * 4));
}

/// Returns the capabilities of a device with matrix units.
fn cuda_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::CudaC].into(),
        features: [Feature::Sm70, Feature::Sm75, Feature::Sm80].into(),
        local_memory_bytes: 163 << 10,
        ..wide_caps()
    }
}

#[test]
fn matrix_units_dequantize_weights_for_wide_buckets_only() {
    let lowering = Lowering { chunk: 64, ..lowering(Activations::Int8) };
    let stage = compile(&llama(), 1..2, &lowering, &cuda_caps()).unwrap();
    for program in &stage.programs {
        let kernels: Vec<_> = program.steps.iter().map(|step| &stage.variants[step.entry as usize]).collect();
        let count = |name: &str| kernels.iter().filter(|kernel| kernel.starts_with(name)).count();
        let wide = program.params.rows >= 32;
        let expected = if wide { [4, 4, 0, 1] } else { [0, 0, 4, 0] };
        let names = ["widen/Q8_0 ", "matmul/F16/f16 ", "matmul/Q8_0/int8 ", "silu-mul/f16 "];
        assert_eq!(names.map(count), expected, "{} rows: {kernels:?}", program.params.rows);
    }
    // Scratch holds the largest dequantized matrix, and does not exceed the bound in `Segment`.
    let widest = 2 * 1536 * 256;
    let segments = llama().segments(&lowering).unwrap();
    assert!(stage.scratch_bytes > widest && stage.scratch_bytes <= segments[1].wide_scratch_bytes);
    assert!(segments[1].scratch_bytes < widest);
}

#[test]
fn weight_layouts_match_the_kernels_of_the_device() {
    let model = bitnet();
    for (caps, embedding) in [(cuda_caps(), Layout::RowMajor), (wide_caps(), Layout::Rows16)] {
        let stage = compile(&model, 0..14, &lowering(Activations::F16), &caps).unwrap();
        let layout = |name: &str| {
            let buffer = stage.weights.iter().find(|w| w.name.starts_with(name)).unwrap();
            let WeightContent::Matrix(matrix) = &buffer.content else { panic!("{name} is a matrix") };
            (matrix.resident().tensor_type(), matrix.resident().layout())
        };
        assert_eq!(layout("token_embd.weight"), (TensorType::F16, embedding));
        assert_eq!(layout("blk.0.attn_q.weight"), (TensorType::TQ2_0, Layout::Rows16));
        // The head reads the embedding's table. The layout of the table determines the activations.
        let head = stage.programs.last().unwrap().segment_steps(13);
        let mut kernels = head.map(|step| &stage.variants[step.entry as usize]);
        let kernel = kernels.find(|kernel| kernel.starts_with("matmul/")).unwrap();
        let form = if embedding == Layout::RowMajor { "f16" } else { "f32" };
        assert!(kernel.starts_with(&format!("matmul/F16/{form} ")), "{kernel}");
        assert!(stage.variants.iter().any(|v| v.starts_with("widen/TQ2_0 ")));
    }
}

#[test]
fn stage_stores_the_tied_embedding_once() {
    let model = llama();
    let names = |segments: std::ops::Range<usize>| -> Vec<String> {
        let stage = compile(&model, segments, &lowering(Activations::F32), &plain_caps()).unwrap();
        stage.weights.into_iter().map(|w| w.name).collect()
    };
    let count = |names: Vec<String>| names.iter().filter(|n| *n == "token_embd.weight").count();
    assert_eq!(count(names(0..14)), 1);
    assert_eq!(count(names(0..7)), 1);
    assert_eq!(count(names(1..13)), 0);
    assert_eq!(count(names(7..14)), 1);
}

#[test]
fn rows_have_the_width_of_the_model_and_logits_its_vocabulary() {
    let model = llama();
    let h = model.hyperparameters();
    let logits = StageResult::Picks { vocabulary: h.vocabulary };
    for (segments, result) in [(0..14, logits), (13..14, logits), (0..13, StageResult::Nothing)] {
        let stage = compile(&model, segments, &lowering(Activations::F32), &plain_caps()).unwrap();
        assert_eq!(stage.row_bytes, u64::from(h.width) * 4);
        assert_eq!(stage.result, result);
    }
}

#[test]
fn attention_is_split_among_compute_units_without_empty_splits() {
    // The model has two key-value heads, and 7 blocks hold 100 positions.
    for (context, parallel_units, splits) in [(100, 132, 7), (4096, 132, 64), (4096, 20, 10), (4096, 1, 1)] {
        let (lowering, caps) =
            (Lowering { context, ..lowering(Activations::F32) }, Caps { parallel_units, ..wide_caps() });
        let stage = compile(&llama(), 1..2, &lowering, &caps).unwrap();
        let splits_of = |step: &ragtag_graph::ProgramStep| {
            let kernel = &stage.variants[step.entry as usize];
            kernel.starts_with("attention-partial/").then(|| step.constants[12])
        };
        for program in &stage.programs {
            let found: Vec<_> = program.steps.iter().filter_map(splits_of).collect();
            assert_eq!(found, [splits], "{context} {parallel_units}");
        }
    }
}

#[test]
fn buckets_cover_every_micro_batch() {
    assert_eq!(ragtag_graph::buckets(1), [1]);
    assert_eq!(ragtag_graph::buckets(6), [1, 2, 4, 6]);
    assert_eq!(ragtag_graph::buckets(64), [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn reports_buffers_that_exceed_the_device_limit() {
    for (bytes, what) in [
        (4 << 10, "token_embd.weight: 64 rows take more than 4096 bytes"),
        (60 << 10, "a key or value buffer takes "),
    ] {
        let caps = Caps { max_binding_bytes: bytes, ..plain_caps() };
        let lowering = Lowering { context: 4096, ..lowering(Activations::F32) };
        let error = compile(&llama(), 0..14, &lowering, &caps).map(drop).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn matrix_above_the_binding_limit_is_split() {
    let (llama, limit) = (llama(), 400 << 10);
    let caps = Caps { max_binding_bytes: limit, ..plain_caps() };
    let stage = |activations, caps: &Caps| compile(&llama, 0..14, &lowering(activations), caps).unwrap();
    for activations in Activations::ALL {
        let (whole, parts) = (stage(activations, &plain_caps()), stage(activations, &caps));
        assert!(parts.weights.len() > whole.weights.len());
        assert!(parts.weights.iter().all(|weight| weight.bytes() <= limit));
        let bytes =
            |stage: &ragtag_graph::CompiledStage| -> u64 { stage.weights.iter().map(|w| w.bytes()).sum() };
        assert_eq!(bytes(&parts), bytes(&whole), "{activations:?}");
        let steps = parts.programs.iter().flat_map(|program| &program.steps);
        for slice in steps.flat_map(|step| &step.slices) {
            assert!(slice.bytes <= limit && slice.offset % 256 == 0, "{slice:?}");
        }
    }
}
