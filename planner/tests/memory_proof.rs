//! Compares the memory that the planner computes with the memory of compiled stages, for the bundled models.
//! Weights, KV cache and slots must match to the byte. The computed scratch must be at least the actual size.
//! The size of each buffer is rounded up to its size class.

use ragtag_graph::execution::{Arenas, READ_PLACES, arena_buffers};
use ragtag_graph::{
    CompiledStage, Directory, Granularity, Lowering, MemorySource, Model, ModelFile, WeightBuffer, WireType,
};
use ragtag_hal::pool::class_bytes;
use ragtag_hal::{Caps, Feature, KernelLanguage};
use ragtag_kernels::checksum::place_bytes;
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::cost::RunSizes;
use ragtag_planner::plan::PlanStage;
use ragtag_planner::{
    BufferLimits, DeviceFacts, FigureSource, Links, ModelFacts, Plan, PlanError, PlanLimits, PlannerInput,
    Split, WeightSharing,
};
use std::ops::Range;
use std::sync::Arc;

const SLOTS: u32 = 3;

fn model(name: &str) -> Model {
    let bytes = std::fs::read(test_support::model(name)).expect("the bundled model");
    let file = ModelFile::open(vec![Arc::new(MemorySource::new(name, bytes))]).expect("a model file");
    Model::new(file).expect("a model")
}

fn caps() -> Caps {
    Caps {
        languages: [KernelLanguage::Host].into(),
        max_allocation_bytes: 1 << 40,
        max_binding_bytes: 1 << 40,
        ..Caps::default()
    }
}

/// Makes a plan for two devices with the capabilities `caps`.
fn plan(model: &Model, lowering: &Lowering, split: &str, caps: &Caps) -> Plan {
    try_plan(model, lowering, split, caps).expect("fits")
}

fn try_plan(model: &Model, lowering: &Lowering, split: &str, caps: &Caps) -> Result<Plan, PlanError> {
    plan_of_split(model, lowering, &split.parse().expect("a split"), caps)
}

fn plan_of_split(model: &Model, lowering: &Lowering, split: &Split, caps: &Caps) -> Result<Plan, PlanError> {
    plan_verifying(model, lowering, split, caps, false)
}

/// Makes a plan for a run in which the stages verify transfers if `verified` is set.
fn plan_verifying(
    model: &Model,
    lowering: &Lowering,
    split: &Split,
    caps: &Caps,
    verified: bool,
) -> Result<Plan, PlanError> {
    let device = |i| {
        let kind = ragtag_hal::AdapterKind::Cpu;
        let facts = DeviceFacts::assumed(&format!("cpu:{i}"), kind, 1, 1 << 40, FigureSource::User);
        let buffers = BufferLimits {
            allocation_bytes: caps.max_allocation_bytes,
            binding_bytes: caps.max_binding_bytes,
        };
        DeviceFacts { f16_products: ragtag_kernels::has_f16_products(caps), buffers, ..facts }
    };
    let facts = ModelFacts::new("tales", "digest", model.hyperparameters());
    let (segments, links) = (model.segments(lowering).expect("segments"), Links::default());
    let devices = [device(0), device(1)];
    let limits = PlanLimits { slots: SLOTS, verified, ..PlanLimits::from(lowering) };
    ragtag_planner::plan(&PlannerInput {
        several_stages: false,
        streaming: false,
        from_file: false,
        split: Some(split),
        ..PlannerInput::new(&facts, &segments, &devices, &links, limits)
    })
}

/// Returns the capabilities of a device with different kernels and a different scratch size.
fn gpu_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::OpenClC].into(),
        parallel_units: 132,
        max_work_group_items: 1024,
        local_memory_bytes: 48 << 10,
        ..caps()
    }
}

/// Returns the capabilities of a device with matrix units.
fn cuda_caps() -> Caps {
    Caps {
        languages: [KernelLanguage::CudaC].into(),
        features: [Feature::Sm70, Feature::Sm75, Feature::Sm80].into(),
        local_memory_bytes: 163 << 10,
        ..gpu_caps()
    }
}

#[test]
fn scratch_is_proved_for_all_kernels() {
    for name in ["tales-q8_0", "tales-bitnet-tq2_0"] {
        let model = model(name);
        for (chunk, logit_rows) in [(1, 1), (5, 1), (8, 1), (31, 31), (32, 1), (100, 1), (100, 100)] {
            let (kv, activations) = (KvType::F16, Activations::Int8);
            let wire_type = WireType::F32;
            let lowering = Lowering {
                activations,
                kv,
                context: 1500,
                sequences: 3,
                kv_blocks: None,
                chunk,
                logit_rows,
                wire_type,
            };
            for caps in [caps(), gpu_caps(), cuda_caps()] {
                let halves = model.with_granularity(Granularity::HalfBlock);
                let splits = [(&model, "0-6=cpu:0,7-13=cpu:1"), (&halves, "0-13=cpu:0,14-25=cpu:1")];
                let stages = splits.into_iter().flat_map(|(model, split)| {
                    let plan = plan(model, &lowering, split, &caps);
                    plan.stages.into_iter().map(move |stage| (model, stage))
                });
                for (model, stage) in stages {
                    let promised = stage.memory_bytes.scratch;
                    let compiled = ragtag_graph::compile(model, stage.segments.range(), &lowering, &caps);
                    let taken = class_bytes(compiled.expect("compiles").scratch_bytes);
                    assert!(promised >= taken, "{name}, {chunk} rows: {taken} of {promised}");
                }
            }
        }
    }
}

#[test]
fn plans_within_buffer_limits_compile() {
    let model = model("tales-q8_0");
    let (kv, activations, wire_type) = (KvType::F16, Activations::Int8, WireType::F32);
    let (mut planned, mut refused) = (0, 0);
    for limit in [100, 200, 400, 1000, 4000].map(|kib: u64| kib << 10) {
        for (context, chunk, logit_rows) in
            [(64, 8, 3), (500, 32, 3), (4000, 8, 3), (64, 500, 3), (64, 64, 64)]
        {
            let lowering = Lowering {
                activations,
                kv,
                context,
                sequences: 3,
                kv_blocks: None,
                chunk,
                logit_rows,
                wire_type,
            };
            for (allocation, binding) in [(1 << 40, limit), (limit, 1 << 40)] {
                let caps = Caps { max_allocation_bytes: allocation, max_binding_bytes: binding, ..caps() };
                let plan = try_plan(&model, &lowering, "0-6=cpu:0,7-13=cpu:1", &caps);
                let compile = |stage: Range<usize>| ragtag_graph::compile(&model, stage, &lowering, &caps);
                let refusal = [0..7, 7..14].map(compile).into_iter().find_map(Result::err);
                // The proof covers any number of parallel units, so it may reject a plan that compiles for
                // these few units.
                assert!(plan.is_err() || refusal.is_none(), "{lowering:?} {limit}: {refusal:?}");
                planned += u32::from(plan.is_ok());
                refused += u32::from(refusal.is_some());
            }
        }
    }
    assert!(planned > 10 && refused > 10, "{planned} {refused}");
}

#[test]
fn the_proof_is_what_compiled_stages_take() {
    let models = ["tales-q8_0", "tales-bitnet-tq2_0"].map(|name| (name, model(name)));
    let hidden = models[0].1.with_hidden_rows().expect("a model");
    for (name, model) in models.into_iter().chain([("hidden rows", hidden)]) {
        let forms = [
            (KvType::F16, Activations::Int8, WireType::F32),
            (KvType::F16, Activations::Int8, WireType::F16),
            (KvType::F32, Activations::F32, WireType::F32),
            (KvType::F16, Activations::F16, WireType::F32),
            (KvType::Q8_0, Activations::Int8, WireType::F32),
            (KvType::Q8_0Q4_0, Activations::Int8, WireType::F32),
            (KvType::Q4_0, Activations::F32, WireType::F32),
        ];
        for (kv, activations, wire_type) in forms {
            let (context, sequences, chunk, logit_rows) = (500, 3, 100, 5);
            let lowering = Lowering {
                activations,
                kv,
                context,
                sequences,
                kv_blocks: None,
                chunk,
                logit_rows,
                wire_type,
            };
            let blocks = ["0-13=cpu:0", "0=cpu:0,1-13=cpu:1", "0-6=cpu:0,7-13=cpu:1", "0-12=cpu:0,13=cpu:1"];
            let halves =
                ["0-25=cpu:0", "0-1=cpu:0,2-25=cpu:1", "0-13=cpu:0,14-25=cpu:1", "0-23=cpu:0,24-25=cpu:1"];
            let blocks = blocks.map(|split| (Granularity::Block, split));
            let halves = halves.map(|split| (Granularity::HalfBlock, split));
            for (granularity, split) in blocks.into_iter().chain(halves) {
                let model = model.with_granularity(granularity);
                let plan = plan(&model, &lowering, split, &caps());
                assert_eq!(plan.model.granularity, granularity);
                let what = format!("{name} {split}");
                for stage in &plan.stages {
                    let compiled = check_caches(&model, &lowering, stage, &what);
                    check_total(&compiled, stage, &what);
                }
            }
        }
    }
}

/// Checks that the plan counts the weights once that two compiled stages store in the same layout.
#[test]
fn shared_weights_are_those_with_the_same_layout() {
    let checkpoint =
        std::fs::read(test_support::golden("tiny-gemma3").join("model.gguf")).expect("the model");
    let plain = ModelFile::open(vec![Arc::new(MemorySource::new("tiny-gemma3", checkpoint))]);
    let plain = Model::new(plain.expect("a model file")).expect("a model");
    let (kv, activations, wire_type) = (KvType::F16, Activations::Int8, WireType::F32);
    let (context, sequences, chunk, logit_rows) = (64, 1, 8, 1);
    let lowering =
        Lowering { activations, kv, context, sequences, kv_blocks: None, chunk, logit_rows, wire_type };
    for model in [model("tales-q8_0"), plain] {
        let segments = model.segments(&lowering).expect("segments");
        let sizes = RunSizes::new(&segments);
        let streamed = sizes.streamable(0..segments.len());
        let device = |weight_sharing| {
            let kind = ragtag_hal::AdapterKind::Discrete;
            let facts = DeviceFacts::assumed("gpu:0", kind, 1, 1 << 40, FigureSource::User);
            DeviceFacts { weight_sharing, ..facts }
        };
        let owner = device(WeightSharing::Owner);
        for (caps, sharing) in [(gpu_caps(), WeightSharing::All), (cuda_caps(), WeightSharing::Blocks)] {
            let compiled = |caps: &Caps| {
                let compile = |&at: &usize| ragtag_graph::compile(&model, at..at + 1, &lowering, caps);
                let stages = streamed.iter().map(compile).map(|stage| stage.expect("compiles"));
                stages.flat_map(|stage| stage.weights).collect::<Vec<_>>()
            };
            let own = compiled(&self::caps());
            let is_file = |weight: &&WeightBuffer| !weight.is_generated();
            let weights = compiled(&caps);
            let differs = |weight: &&WeightBuffer| !own.iter().any(|other| other.is_same(weight));
            let others = weights.iter().filter(is_file).filter(differs);
            let copied = sizes.streamed_bytes(&streamed);
            let copied = copied - sizes.shared_bytes(&streamed, &device(sharing), &owner);
            let held: u64 = others.map(|weight| weight.bytes()).sum();
            // The plan assumes the larger one of two layouts.
            assert!(copied >= held && (copied > 0) == (held > 0), "{sharing:?}: {held} of {copied}");
        }
    }
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().map(|&bytes| class_bytes(bytes)).sum()
}

/// Compares the planned KV cache and slots of a stage with those of the compiled stage, which it returns.
fn check_caches(model: &Model, lowering: &Lowering, stage: &PlanStage, what: &str) -> CompiledStage {
    let compiled = ragtag_graph::compile(model, stage.segments.range(), lowering, &caps()).expect("compiles");
    let promised = &stage.memory_bytes;
    let what = format!("{what} {:?} on {}: {promised:?}", lowering.kv, stage.device);
    assert_eq!(promised.kv, sum(&compiled.kv_bytes), "kv, {what}");
    let rows = u64::from(compiled.max_rows());
    let slot = [
        compiled.programs.iter().map(|p| compiled.params_bytes(p)).max().expect("programs"),
        rows * compiled.row_bytes,
        rows * compiled.crossing_row_bytes.unwrap_or(0),
        compiled.max_logits_bytes(),
        compiled.max_picks_bytes(),
    ];
    assert_eq!(compiled.crossing_row_bytes.is_some(), lowering.wire_type == WireType::F16);
    assert_eq!(promised.slots, u64::from(SLOTS) * sum(&slot), "slots, {what}");
    compiled
}

/// Compares the planned weights and the total memory of a stage with those of the compiled stage.
fn check_total(compiled: &CompiledStage, stage: &PlanStage, what: &str) {
    let promised = &stage.memory_bytes;
    let what = format!("{what} on {}: {promised:?}", stage.device);
    let weights: Vec<u64> = compiled.weights.iter().map(|w| w.bytes()).collect();
    assert_eq!(promised.weights, sum(&weights), "weights, {what}");
    let scratch = class_bytes(compiled.scratch_bytes);
    assert!(promised.scratch >= scratch, "scratch {scratch}, {what}");
    let all = promised.weights + promised.kv + scratch + promised.slots + promised.staging;
    let raw = compiled.device_bytes(u64::from(SLOTS)) + promised.staging;
    assert!(promised.total >= all && all >= raw, "{all}, {raw}, {what}");
    let buffers = weights.len() + compiled.kv_bytes.len() + 1 + 5 * SLOTS as usize;
    assert!(all <= raw + raw / 8 + 256 * buffers as u64, "{all} for {raw}, {what}");
}

/// Checks that layers with a window keep only the blocks of their KV rings, and that the plan counts them so.
/// Two of the three layers have a window of 13 positions.
#[test]
fn kv_rings_are_proved() {
    let bytes = std::fs::read(test_support::golden("tiny-gemma3").join("model.gguf")).expect("the model");
    let file =
        ModelFile::open(vec![Arc::new(MemorySource::new("tiny-gemma3", bytes))]).expect("a model file");
    let model = Model::new(file).expect("a model");
    let (kv, activations, wire_type) = (KvType::F16, Activations::F32, WireType::F32);
    // Context, sequences, chunk, and the number of blocks of a ring.
    for (context, sequences, chunk, ring) in [
        (131_072, 1, 512, Some(34)),
        (131_072, 3, 3, Some(2)),
        (112, 2, 64, Some(6)),
        // A ring would be as long as the context.
        (96, 2, 64, None),
    ] {
        let lowering = Lowering {
            activations,
            kv,
            context,
            sequences,
            kv_blocks: None,
            chunk,
            logit_rows: 1,
            wire_type,
        };
        let halves = model.with_granularity(Granularity::HalfBlock);
        for (model, split) in [(&model, "0-2=cpu:0,3-4=cpu:1"), (&halves, "0-1=cpu:0,2-7=cpu:1")] {
            let plan = plan(model, &lowering, split, &caps());
            let what = format!("context {context}, {split}");
            let check = |stage| check_caches(model, &lowering, stage, &what);
            let compiled: Vec<_> = plan.stages.iter().map(check).collect();
            let kv_bytes: Vec<u64> = compiled.iter().flat_map(|stage| stage.kv_bytes.clone()).collect();
            let block_bytes = u64::from(model.hyperparameters().kv_heads * 32 * 16 * 2 * sequences);
            let full = block_bytes * u64::from(context / 16);
            let windowed = ring.map_or(full, |blocks| block_bytes * blocks);
            assert_eq!(kv_bytes, [windowed, windowed, full, full, windowed, windowed], "{what}");
        }
    }
}

/// Checks the KV cache of a model with the shape of Gemma 3 4B at a context of 131 072 positions: every sixth
/// of 34 layers keeps all positions, and the others keep their window. Such a model has no weights to
/// compile, so the bytes are those that compiled stages of smaller models allocate.
#[test]
fn windows_of_a_large_model_are_proved() {
    let config = r#"{
        "architectures": ["Gemma3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262208, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "sliding_window": 1024, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "rope_scaling": { "factor": 8.0, "rope_type": "linear" }
    }"#;
    let mut directory = Directory::new("gemma");
    let source = MemorySource::new("gemma/config.json", config.as_bytes().to_vec());
    directory.insert("config.json", Arc::new(source));
    let model = Model::described(directory, None).expect("a model");
    for (kv, block_bytes) in [(KvType::F16, 4 * 256 * 16 * 2), (KvType::Q8_0, 4 * 256 * 16 / 32 * 34)] {
        let (context, sequences, chunk) = (131_072, 2, 512);
        let (activations, wire_type) = (Activations::F32, WireType::F32);
        let lowering = Lowering {
            activations,
            kv,
            context,
            sequences,
            kv_blocks: None,
            chunk,
            logit_rows: 1,
            wire_type,
        };
        let plan = plan(&model, &lowering, "0-20=cpu:0,21-35=cpu:1", &caps());
        // 1024 positions and the 511 that follow in a micro-batch span up to 97 blocks.
        let blocks = |layer: u32| if (layer + 1).is_multiple_of(6) { context / 16 } else { 97 };
        let bytes = |layer| 2 * class_bytes(u64::from(blocks(layer) * sequences) * block_bytes);
        let found: Vec<u64> = plan.stages.iter().map(|stage| stage.memory_bytes.kv).collect();
        let expected = [0..20, 20..34].map(|layers| layers.map(bytes).sum::<u64>());
        assert_eq!(found, expected, "{kv:?}");
        let kept: u64 = found.iter().sum();
        let all_full = 34 * 2 * u64::from(context / 16 * sequences) * block_bytes;
        assert!(kept < all_full / 5, "{kept} of {all_full}");
    }
}

#[test]
fn checksums_of_transfers_are_proved() {
    let model = model("tales-q8_0");
    let (kv, activations) = (KvType::F16, Activations::Int8);
    for (chunk, wire_type) in [(1, WireType::F32), (100, WireType::F16), (2000, WireType::F32)] {
        let lowering = Lowering {
            activations,
            kv,
            context: 2000,
            sequences: 1,
            kv_blocks: None,
            chunk,
            logit_rows: 1,
            wire_type,
        };
        let split = "0-6=cpu:0,7-13=cpu:1".parse().expect("a split");
        let plan = |verified| plan_verifying(&model, &lowering, &split, &caps(), verified).expect("fits");
        let (plain, verified) = (plan(false), plan(true));
        let mut host_bytes = 0;
        for (plain, verified) in plain.stages.iter().zip(&verified.stages) {
            let compiled = ragtag_graph::compile(&model, plain.segments.range(), &lowering, &caps());
            let compiled = compiled.expect("compiles");
            // One place for each end of each slot, as the actor creates them.
            let transfer = u64::from(compiled.max_rows()) * compiled.edge_row_bytes();
            let bytes = place_bytes(transfer) * 2 * u64::from(SLOTS);
            let [plain, verified] = [&plain.memory_bytes, &verified.memory_bytes];
            assert_eq!(verified.slots - plain.slots, class_bytes(bytes));
            assert_eq!(verified.total - plain.total, class_bytes(bytes));
            host_bytes += bytes;
        }
        let [plain, verified] = [&plain.host_memory_bytes, &verified.host_memory_bytes];
        assert_eq!(verified.parameters - plain.parameters, host_bytes);
        assert!(verified.total - plain.total >= host_bytes);
    }
}

#[test]
fn the_proof_of_streamed_stages_is_what_compiled_ones_take() {
    for name in ["tales-q8_0", "tales-bitnet-tq2_0"] {
        let model = model(name);
        let (kv, activations, wire_type) = (KvType::F16, Activations::Int8, WireType::F32);
        let lowering = Lowering {
            activations,
            kv,
            context: 500,
            sequences: 3,
            kv_blocks: None,
            chunk: 100,
            logit_rows: 5,
            wire_type,
        };
        let cases: [(Granularity, &str, &[&[u32]]); 4] = [
            (Granularity::Block, "0-13=cpu:0", &[&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]),
            (Granularity::Block, "0-13=cpu:0", &[&[2, 5, 8, 11, 12]]),
            (Granularity::Block, "0-6=cpu:0,7-13=cpu:1", &[&[1, 3, 4, 6], &[7, 8, 10, 12]]),
            (Granularity::HalfBlock, "0-13=cpu:0,14-25=cpu:1", &[&[2, 3, 8, 9, 10], &[]]),
        ];
        for ((granularity, split, streamed), most) in cases.iter().flat_map(|case| [(case, 0), (case, 8)]) {
            let model = model.with_granularity(*granularity);
            let mut split: Split = split.parse().expect("a split");
            for (part, streamed) in split.parts.iter_mut().zip(*streamed) {
                let arenas = Arenas::at_most(streamed.len(), most).count() as u32;
                (part.streamed, part.arenas) = (Some(streamed.to_vec()), Some(arenas).filter(|_| most > 0));
            }
            let plan = plan_of_split(&model, &lowering, &split, &caps()).expect("fits");
            for part in &mut split.parts {
                part.from_file = part.streamed.clone().unwrap_or_default();
            }
            let reading = plan_of_split(&model, &lowering, &split, &caps()).expect("fits");
            let (mut host_bytes, mut place_bytes) = (0, 0);
            for stage in &plan.stages {
                let compiled = ragtag_graph::compile(&model, stage.segments.range(), &lowering, &caps());
                let (streamed, resident): (Vec<_>, Vec<_>) =
                    compiled.expect("compiles").weights.into_iter().partition(|weight| {
                        let is_generated = weight.is_generated();
                        stage.streamed.contains(&(weight.segment as u32)) && !is_generated
                    });
                let sizes =
                    |weights: &[WeightBuffer]| weights.iter().map(WeightBuffer::bytes).collect::<Vec<_>>();
                let sum = |bytes: Vec<u64>| bytes.into_iter().map(class_bytes).sum::<u64>();
                let segments: Vec<Vec<u64>> =
                    streamed.chunk_by(|a, b| a.segment == b.segment).map(sizes).collect();
                assert_eq!(segments.len(), stage.streamed.len(), "every streamed segment has weights");
                let memory = &stage.memory_bytes;
                let what = format!("{name} {:?} on {}: {memory:?}", stage.streamed, stage.device);
                assert_eq!(memory.weights, sum(sizes(&resident)), "weights, {what}");
                let arena = sum(arena_buffers(segments.iter().map(Vec::as_slice)));
                let arenas = Arenas::at_most(segments.len(), most).count() as u64;
                assert_eq!(memory.arenas, arena * arenas, "arenas, {what}");
                let parts = memory.weights + memory.arenas + memory.kv + memory.scratch;
                assert_eq!(memory.total, parts + memory.slots + memory.staging, "{what}");
                host_bytes += streamed.iter().map(WeightBuffer::bytes).sum::<u64>();
                place_bytes += segments.iter().map(|sizes| sizes.iter().sum::<u64>()).max().unwrap_or(0);
            }
            // Weights from the model's file pass through places of host memory, and take as much of the device.
            assert_eq!(reading.host_memory_bytes.weights, READ_PLACES as u64 * place_bytes, "{name} {split}");
            for (read, pinned) in reading.stages.iter().zip(&plan.stages) {
                assert_eq!((&read.from_file, read.memory_bytes), (&pinned.streamed, pinned.memory_bytes));
            }
            assert_eq!(plan.host_memory_bytes.weights, host_bytes, "{name} {split}");
        }
    }
}
