//! Synthetic models and fleets for tests. The tests of simulated trials (`scheduler/tests/trials.rs`) also
//! use them.

use super::*;

pub const MIB: u64 = 1 << 20;
pub const MIX: Objective = Objective::Mix(Mix { latency: 0.3, throughput: 2.0, first_token: 1.5 });
pub const OBJECTIVES: [Objective; 4] =
    [Objective::Latency, Objective::Throughput, Objective::FirstToken, MIX];

pub fn segment(kind: SegmentKind, name: &str, weights: u64) -> Segment {
    Segment {
        kind,
        name: name.into(),
        tensors: vec![SegmentTensor::new(format!("{name}.weight"), weights)],
        flops_per_row: weights.saturating_mul(4),
        flops_per_row_position: 512,
        read_bytes: weights,
        experts: None,
        read_bytes_per_row: 1024,
        kv_bytes_per_position: 1024,
        value_bytes_per_position: 512,
        window: None,
        state_bytes: [0; 2],
        scratch_bytes: MIB,
        wide_scratch_bytes: MIB,
        tensor_bytes: MIB,
    }
}

/// Returns the segments of a model: an embedding, `blocks` blocks of `block` bytes, and a head of `head`
/// bytes. No tensors are shared.
pub fn model(blocks: usize, block: u64, head: u64) -> Vec<Segment> {
    let mut segments = vec![Segment {
        flops_per_row: 0,
        flops_per_row_position: 0,
        read_bytes: 0,
        kv_bytes_per_position: 0,
        value_bytes_per_position: 0,
        window: None,
        state_bytes: [0; 2],
        ..segment(SegmentKind::Embedding, "embedding", head)
    }];
    segments.extend((0..blocks).map(|i| segment(SegmentKind::Block, &format!("block {i}"), block)));
    segments.push(Segment {
        kv_bytes_per_position: 0,
        value_bytes_per_position: 0,
        ..segment(SegmentKind::Head, "head", head)
    });
    segments
}

pub fn device(label: &str, memory_bytes: u64, speed: f64) -> DeviceFacts {
    DeviceFacts {
        label: label.into(),
        memory_bytes,
        memory_source: FigureSource::User,
        bandwidth_bytes_per_s: Figure::assumed(10e9 * speed),
        exact_flops_per_s: Figure::assumed(20e9 * speed),
        fast_flops_per_s: Figure::assumed(80e9 * speed),
        launch_us: Figure::assumed(10.0),
        stage_us: Figure::assumed(0.0),
        hand_over_us: Figure::assumed(0.0),
        host_latency_us: Figure::assumed(0.0),
        host_bandwidth_bytes_per_s: Figure::assumed(1e18),
        f16_products: false,
        buffers: BufferLimits::default(),
        in_host_memory: false,
        file_bytes_per_s: Figure::assumed(2e9),
        weight_sharing: WeightSharing::None,
        profile: None,
    }
}

/// Owns all values that a [`PlannerInput`] borrows.
#[derive(Clone)]
pub struct World {
    pub model: ModelFacts,
    pub segments: Vec<Segment>,
    pub devices: Vec<DeviceFacts>,
    pub links: Links,
    pub host_memory_bytes: Option<u64>,
    pub hosts: Vec<HostFacts>,
    pub objective: Objective,
    pub workload: Workload,
    pub limits: PlanLimits,
    pub constraints: Constraints,
    pub split: Option<Split>,
    pub several_stages: bool,
    pub streaming: bool,
    pub from_file: bool,
}

impl World {
    pub fn new(segments: Vec<Segment>, devices: Vec<DeviceFacts>) -> Self {
        let limits = PlanLimits {
            context: Some(512),
            sequences: 4,
            chunk: 128,
            logit_rows: 8,
            slots: 2,
            decode_groups: None,
            credits: None,
            kv_blocks: None,
            kv_memory_bytes: None,
            kv_use: KvUse { reserve: Reserve::Full, prefixes: None },
            kv: KvType::F16,
            activations: Activations::Int8,
            wire_type: None,
            verified: false,
        };
        Self {
            model: ModelFacts {
                name: "made up".into(),
                digest: "d1".into(),
                context: 2048,
                row_bytes: 2048,
                vocabulary: 4096,
                sequence_frequencies: 0,
            },
            segments,
            devices,
            links: Links::default(),
            host_memory_bytes: None,
            hosts: Vec::new(),
            objective: Objective::Throughput,
            workload: Workload { prompt_tokens: 256, generated_tokens: 128 },
            limits,
            constraints: Constraints::default(),
            split: None,
            several_stages: false,
            streaming: false,
            from_file: false,
        }
    }

    pub fn input(&self) -> PlannerInput<'_> {
        PlannerInput {
            model: &self.model,
            segments: &self.segments,
            other_chunks: &[],
            devices: &self.devices,
            links: &self.links,
            host_memory_bytes: self.host_memory_bytes,
            hosts: &self.hosts,
            objective: self.objective,
            workload: self.workload,
            limits: self.limits,
            constraints: &self.constraints,
            trial: None,
            several_stages: self.several_stages,
            streaming: self.streaming,
            from_file: self.from_file,
            explained: true,
            split: self.split.as_ref(),
        }
    }

    pub fn plan(&self) -> Result<Plan, PlanError> {
        plan(&self.input())
    }
}

pub fn random_world(seed: u64) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut segments = model(rng.random_range(1..6), 1, 1);
    for segment in &mut segments {
        let weights = rng.random_range(1..20) * MIB;
        segment.tensors[0].resident_bytes = weights;
        if rng.random_bool(0.2) {
            segment.tensors.push(SegmentTensor::new("shared", 5 * MIB));
        }
        segment.read_bytes = weights;
        segment.flops_per_row = rng.random_range(1..4) * weights;
        segment.kv_bytes_per_position = rng.random_range(0..4) * 512;
        segment.value_bytes_per_position = segment.kv_bytes_per_position / 2;
        segment.scratch_bytes = rng.random_range(0..3) * MIB;
        segment.wide_scratch_bytes = segment.scratch_bytes + 2 * MIB;
    }
    let devices = (0..rng.random_range(1..5))
        .map(|i| DeviceFacts {
            f16_products: i % 2 == 1,
            ..device(&format!("cpu:{i}"), rng.random_range(5..90) * MIB, rng.random_range(0.2..3.0))
        })
        .collect();
    let mut world = World::new(segments, devices);
    world.links.other.latency_us.value = rng.random_range(0.0..2000.0);
    world.limits.sequences = rng.random_range(1..9);
    world.workload.prompt_tokens = rng.random_range(0..600);
    for device in &mut world.devices {
        device.hand_over_us.value = rng.random_range(0.0..2000.0);
    }
    // With slow links, the number of transferred bytes matters.
    if rng.random_bool(0.3) {
        world.links.other.bandwidth_bytes_per_s.value = 10f64.powf(rng.random_range(6.0..9.0));
    }
    if rng.random_bool(0.3) {
        world.links.shared = vec![random_bus(&mut rng, &world.devices)];
    }
    world
}

/// Returns a slow resource that about half of the links share.
pub fn random_bus(rng: &mut SmallRng, devices: &[DeviceFacts]) -> SharedLink {
    let pairs = devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to)));
    let pairs = pairs.map(|(from, to)| (from.label.clone(), to.label.clone()));
    SharedLink {
        name: "bus".into(),
        users: pairs.filter(|_| rng.random_bool(0.5)).collect(),
        bandwidth_bytes_per_s: Figure::assumed(10f64.powf(rng.random_range(6.0..9.0))),
    }
}

/// Returns a random world whose devices are fast at different chunk lengths, and whose links vary. If `seed`
/// is even and there are several devices, the world has a constraint.
pub fn unlike_world(seed: u64) -> World {
    let mut world = World { objective: OBJECTIVES[seed as usize % 4], ..random_world(seed) };
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6265_7374);
    let last = world.segments.len() as u32 - 1;
    for device in &mut world.devices {
        device.launch_us.value = 10f64.powf(rng.random_range(0.0..3.5));
        device.fast_flops_per_s.value *= 10f64.powf(rng.random_range(-1.0..1.0));
    }
    let labels: Vec<String> = world.devices.iter().map(|device| device.label.clone()).collect();
    for from in &labels {
        let mut facts = world.links.other.clone();
        facts.bandwidth_bytes_per_s.value = 10f64.powf(rng.random_range(6.0..10.0));
        let to = &labels[rng.random_range(0..labels.len())];
        world.links.known.push((from.clone(), to.clone(), facts));
    }
    let label = |rng: &mut SmallRng| labels[rng.random_range(0..labels.len())].clone();
    if seed.is_multiple_of(2) && labels.len() > 1 {
        match rng.random_range(0..3) {
            0 => world.constraints.max_stages = Some(rng.random_range(1..3)),
            1 => world.constraints.excluded.push(label(&mut rng)),
            _ => {
                let segment = rng.random_range(0..=last);
                world.constraints.pins.push(Pin { segment, device: label(&mut rng) });
            }
        }
    }
    world
}

/// Returns all other plans that the explanation of `plan` lists.
pub fn others(plan: &Plan) -> impl Iterator<Item = &Alternative> {
    let explanation = &plan.explanation;
    let left_out = explanation.left_out.iter().filter_map(|left| left.best_with.as_ref());
    explanation.alternatives.iter().chain(left_out)
}
