//! Benchmark of whole plans: the search over all points of the grid and the explanation, without simulated
//! trials.

use super::{CARDS, Fleet};
use ragtag_graph::segment::SegmentTensor;
use ragtag_graph::{Segment, SegmentKind};
use ragtag_hal::AdapterKind;
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::{Constraints, ModelFacts, PlanLimits, PlannerInput, plan};
use ragtag_planner::{DeviceFacts, Figure, FigureSource, Links, Mix, Objective, Workload};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Instant;

/// With both wire types and eight numbers of decode groups they make 64 points.
const CHUNKS: [u32; 4] = [64, 128, 256, 512];
const SEQUENCES: u32 = 32;
const CONTEXT: u32 = 2048;
const WIDTH: u64 = 8192;

pub(super) fn objectives() -> [(&'static str, Objective); 3] {
    let mix = Mix { latency: 1.0, throughput: 16.0, first_token: 1.0 };
    [("latency", Objective::Latency), ("throughput", Objective::Throughput), ("mix", Objective::Mix(mix))]
}

/// Returns the planning time in milliseconds, without and with the explanation, for a model whose weights
/// take half to four fifths of a fleet's memory.
pub(super) fn plan_ms(
    seed: u64,
    devices: usize,
    segments: usize,
    fleet: Fleet,
    objective: Objective,
) -> [f64; 2] {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let facts: Vec<DeviceFacts> = (0..devices).map(|at| device(rng, at, fleet)).collect();
    let memory: u64 = facts.iter().map(|device| device.memory_bytes).sum();
    let weights = (memory as f64 * rng.random_range(0.5..0.8)) as u64 / segments as u64;
    let lowered = CHUNKS.map(|chunk| (chunk, model(segments, weights, chunk)));
    let [(chunk, own), others @ ..] = &lowered;
    let others = others.each_ref().map(|(chunk, segments)| (*chunk, segments.as_slice()));
    let input = PlannerInput {
        model: &ModelFacts {
            name: "made up".into(),
            digest: "d1".into(),
            context: CONTEXT,
            row_bytes: WIDTH * 4,
            logit_row_bytes: 128_000 * 4,
        },
        segments: own,
        other_chunks: &others,
        devices: &facts,
        links: &Links::default(),
        host_memory_bytes: None,
        objective,
        workload: Workload { prompt_tokens: 512, generated_tokens: 128 },
        limits: PlanLimits {
            context: Some(CONTEXT),
            sequences: SEQUENCES,
            chunk: *chunk,
            logit_rows: SEQUENCES,
            slots: 3,
            decode_groups: None,
            credits: None,
            kv: KvType::F16,
            activations: Activations::Int8,
            boundary: None,
        },
        constraints: Constraints::NONE,
        trial: None,
        explained: true,
        split: None,
    };
    [false, true].map(|explained| {
        let start = Instant::now();
        plan(&PlannerInput { explained, ..input }).expect("it fits");
        start.elapsed().as_secs_f64() * 1e3
    })
}

fn device(rng: &mut SmallRng, at: usize, fleet: Fleet) -> DeviceFacts {
    let (bandwidth, rate, memory) = CARDS[rng.random_range(0..CARDS.len())];
    let spread = fleet.spread(rng);
    let memory = (memory * spread * (1u64 << 30) as f64) as u64;
    let device =
        DeviceFacts::assumed(&format!("gpu:{at}"), AdapterKind::Discrete, 1, memory, FigureSource::User);
    DeviceFacts {
        bandwidth_bytes_per_s: Figure::assumed(bandwidth * spread * 1e6),
        fast_flops_per_s: Figure::assumed(rate * spread * 1e6),
        ..device
    }
}

/// Returns an embedding, blocks and a head with `weights` bytes each, lowered for `chunk`.
fn model(segments: usize, weights: u64, chunk: u32) -> Vec<Segment> {
    let segment = |at: usize| {
        let kind = match at {
            0 => SegmentKind::Embedding,
            _ if at + 1 == segments => SegmentKind::Head,
            _ => SegmentKind::Block,
        };
        let is_block = u64::from(kind == SegmentKind::Block);
        let computes = u64::from(kind != SegmentKind::Embedding);
        Segment {
            kind,
            name: format!("segment {at}"),
            tensors: vec![SegmentTensor { name: format!("{at}.weight"), resident_bytes: weights }],
            flops_per_row: weights * 4 * computes,
            flops_per_row_position: WIDTH * 4 * is_block,
            read_bytes: weights * computes,
            read_bytes_per_row: WIDTH * 4,
            kv_bytes_per_position: 1024 * is_block,
            scratch_bytes: WIDTH * 16 * u64::from(chunk),
            wide_scratch_bytes: WIDTH * 16 * u64::from(chunk),
            tensor_bytes: WIDTH * 4 * u64::from(chunk),
        }
    };
    (0..segments).map(segment).collect()
}
