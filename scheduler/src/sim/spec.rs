//! Specification of a simulation: stages, requests and faults. Callers write it or draw it from a seed.

use crate::core::{Limits, Nanoseconds, RunShape};
use crate::sim::request::{SimRequest, random_requests};
use crate::sim::time::{ComputeTime, CopyTime};
use ragtag_graph::KvRing;
use ragtag_graph::execution::{
    Arenas, Chunks, Eviction, FEWEST, KvUse, MAX_ARENAS, PromptChunk, Reserve, StagePart,
};
use ragtag_hal::QueueKind;
use ragtag_transfer::{Route, Routes, SizedRoute};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A simulated stage, with the timing parameters of its device.
#[derive(Clone, Debug, PartialEq)]
pub struct SimStage {
    /// Device label. Stages with the same label share a device.
    pub device: String,
    /// Number of slots of the stage.
    pub slots: u32,
    /// Computation time of the stage.
    pub compute: ComputeTime,
    /// Additional delay of a computation that starts after the device was idle. It never exceeds the idle
    /// time.
    pub hand_over_ns: Nanoseconds,
    /// Time to copy activations to the device.
    pub upload: CopyTime,
    /// Time to copy activations from the device.
    pub download: CopyTime,
    /// Time to copy logits from the device. Used on the last stage only.
    pub logits: CopyTime,
    /// Whether one hardware queue executes all three queues of the device. If one stage of a device sets
    /// this, it applies to all stages of that device.
    pub single_queue: bool,
    /// Routes to the next stage. Unused on the last stage.
    pub routes: Routes,
    /// Parts of the stage, if some of its weights are streamed. Empty if all are resident.
    pub parts: Vec<SimPart>,
}

/// Part of a stage: a streamed segment, or a run of resident ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimPart {
    /// Arena of the weights. `None` for a part with resident weights.
    pub arena: Option<usize>,
    /// Share of the stage's computation time, from 0 to 1.
    pub share: f64,
    /// Time to copy the weights to the arena.
    pub stream_ns: Nanoseconds,
    /// Time to read the weights from the model's file. `None` if they are in memory.
    pub read_ns: Option<Nanoseconds>,
}

/// A simulated prefill stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SimPrefill {
    /// The stage.
    pub stage: SimStage,
    /// Passages of keys and values to the stages that decode. At least one.
    pub passes: Vec<SimPass>,
}

/// A passage of keys and values from the prefill stage to another stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SimPass {
    /// Index of the other stage.
    pub stage: usize,
    /// Parts of the prefill stage that compute its segments, in ascending order. At least one.
    pub parts: Vec<usize>,
    /// Time to copy the keys and values of one row to host memory, and again to the other stage's cache.
    pub row_ns: f64,
}

/// A resource that several edges share, such as a bus. It serves one copy at a time, in the order in which
/// the copies start.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSharedLink {
    /// Display name.
    pub name: String,
    /// Edges that use the resource. Edge `n` leaves stage `n`.
    pub edges: Vec<usize>,
    /// Time for which one byte occupies the resource, in nanoseconds.
    pub byte_ns: f64,
}

/// A fault that the simulator injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A device is lost at a given time.
    DeviceLost {
        /// Index of the stage.
        stage: u32,
        /// Time of the loss.
        at_ns: Nanoseconds,
    },
    /// A device has too little memory for its stage. Loading fails.
    OutOfMemory {
        /// Index of the stage.
        stage: u32,
    },
    /// A device refuses a submission.
    SubmissionRefused {
        /// Index of the stage.
        stage: u32,
        /// Number of the submission, counted from 1.
        nth: u64,
    },
    /// A device is lost when it starts a given command.
    LostAtCommand {
        /// Index of the stage.
        stage: u32,
        /// Number of the command, counted from 1 over all queues in the order of their starts.
        nth: u64,
    },
    /// A device hangs when it starts a given command, which never ends. The other queues go on until the run notices
    /// that the command makes no progress.
    HungAtCommand {
        /// Index of the stage.
        stage: u32,
        /// Number of the command, as in [`Fault::LostAtCommand`].
        nth: u64,
    },
    /// All submissions to one queue take longer.
    Slow {
        /// Index of the stage.
        stage: u32,
        /// The queue.
        queue: QueueKind,
        /// Additional time per submission.
        by_ns: Nanoseconds,
    },
    /// Submissions to a device take longer by random amounts, so its queues overtake each other.
    Unsteady {
        /// Index of the stage.
        stage: u32,
        /// Maximum additional time of a submission.
        up_to_ns: Nanoseconds,
    },
    /// The run is stopped.
    Stopped {
        /// Time of the stop.
        at_ns: Nanoseconds,
    },
    /// Each progress notice of an actor makes the actor send another notice to itself. A run cannot survive
    /// this. The fault tests that the simulator stops endless loops.
    NoticesRepeated {
        /// Index of the stage.
        stage: u32,
    },
    /// A message between stages, or from the last stage to the coordinator, is lost. A run cannot survive
    /// this. The fault tests that the simulator detects it.
    MessageLost {
        /// Number of the message, counted from 0.
        nth: u64,
    },
    /// A message between stages, or from the last stage to the coordinator, arrives twice. A run cannot
    /// survive this.
    MessageTwice {
        /// Number of the message, counted from 0.
        nth: u64,
    },
    /// Copies of activations to the next stage, or of keys and values from the prefill stage, write wrong
    /// bytes. Without verification, the run continues.
    WrongBytes {
        /// Index of the stage that the activations or the keys and values leave.
        stage: u32,
        /// First wrong copy, counted from 0. Copies of activations of both ends count. Of keys and values,
        /// only those to host memory count.
        first: u64,
        /// Number of wrong copies.
        copies: u64,
    },
    /// A device refuses copies over the peer route, without verification. The next route replaces it.
    CopyRefused {
        /// Index of the stage that the activations leave.
        stage: u32,
        /// First refused copy of the stage over the peer route, counted from 0.
        first: u64,
        /// Number of refused copies.
        copies: u64,
    },
    /// The submissions of a stage do not wait for points. A run cannot survive this.
    WaitsIgnored {
        /// Index of the stage.
        stage: u32,
    },
}

/// Network between the hosts of a pipeline. The coordinator is on host 0. TCP loses no message: it sends a lost one again,
/// and delivers later ones after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimNetwork {
    /// Host of each stage. Stages after the last entry are on host 0.
    pub hosts: Vec<u32>,
    /// Time of a message between two hosts. The lower one comes first. Pieces of activations take it with their
    /// copies ([`SimStage::upload`], [`SimStage::download`]).
    pub latencies_ns: BTreeMap<(u32, u32), Nanoseconds>,
    /// Number of messages per million that are lost.
    pub lost_per_million: u32,
    /// Time after which a lost message is sent again. It doubles with each further loss of the message.
    pub again_ns: Nanoseconds,
}

impl SimNetwork {
    /// Returns the host of a stage.
    pub(super) fn host(&self, stage: usize) -> u32 {
        self.hosts.get(stage).copied().unwrap_or(0)
    }

    /// Returns the time of a message between two hosts.
    pub(super) fn latency_ns(&self, a: u32, b: u32) -> Nanoseconds {
        self.latencies_ns.get(&(a.min(b), a.max(b))).copied().unwrap_or(0)
    }
}

/// Specification of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSpec {
    /// Seed of all random delays.
    pub seed: u64,
    /// The stages.
    pub stages: Vec<SimStage>,
    /// The prefill stage, if any. Its index follows those of the other stages.
    pub prefill: Option<SimPrefill>,
    /// The coordinator's description of the pipeline.
    pub run: RunShape,
    /// Bytes of one row of activations in the wire type.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
    /// Resources that several edges share.
    pub shared_links: Vec<SimSharedLink>,
    /// Maximum delay of a message.
    pub message_ns: Nanoseconds,
    /// Network between the hosts of the stages.
    pub network: SimNetwork,
    /// Time that an actor takes to handle a message.
    pub handling_ns: Nanoseconds,
    /// Maximum random increase of the time of a device operation, in percent.
    pub jitter_percent: u64,
    /// The requests.
    pub requests: Vec<SimRequest>,
    /// Number of concurrent requests. If it is set, each request arrives when an earlier one ends, and
    /// `at_ns` is ignored.
    pub at_once: Option<u32>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// Whether to check every cache access and to keep all events of the coordinator, which is slow. The
    /// contents of slots and rings and the results of sequences are always checked.
    pub checked: bool,
    /// Maximum number of spans to keep.
    pub max_spans: usize,
    /// Whether each stage verifies the activations, and the keys and values, that it receives.
    pub verified: bool,
    /// Pipeline that replaces this one when a device fails. It has the same requests, context and vocabulary. `None` lets
    /// the failure end the run.
    pub then: Option<Box<SimSpec>>,
}

impl SimSpec {
    /// Returns all stages. The prefill stage is the last.
    pub(super) fn all(&self) -> impl Iterator<Item = &SimStage> {
        self.stages.iter().chain(self.prefill.as_ref().map(|prefill| &prefill.stage))
    }

    /// Returns a random pipeline with random requests. About one pipeline in eight loses a device at some
    /// time, and one in eight is stopped. About one in sixteen loses a device at some command, one in sixteen
    /// has a refused submission, and one in sixteen runs out of memory. Many have slow or unsteady devices.
    /// Many have a prefill stage, and many have a KV ring. Half of the pipelines verify their transfers, and
    /// in half of them some copies of activations write wrong bytes. With a prefill stage, in a quarter of
    /// them a copy of keys and values writes wrong bytes. In half of the others, devices refuse some copies
    /// over the peer route. In many pipelines, the cache is small, prompts share prefixes, requests end or
    /// pause at some time, and few requests may wait. A third of them have a network that delays and loses messages.
    pub fn random(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let stages = rng.random_range(1..=6u32);
        let max_rows = rng.random_range(1..=24);
        let run = RunShape {
            stages,
            decode_groups: rng.random_range(1..=stages + 1),
            credits: rng.random_range(1..=2 * stages + 1),
            context: rng.random_range(1..=96),
            vocabulary: rng.random_range(1..=500),
            has_picks: SmallRng::seed_from_u64(seed ^ 0x7069_636b).random_ratio(3, 4),
            chunks: random_chunks(&mut rng, max_rows),
            max_rows,
            max_logit_rows: rng.random_range(1..=max_rows),
            max_sequences: rng.random_range(1..=6),
            kv_blocks: rng.random_range(1..=24),
            kv_use: KvUse::default(),
            limits: Limits::default(),
            kv_ring: None,
            prefill_from: None,
            recompute_at: None,
        };
        let run = random_memory(seed, run);
        let run = RunShape { kv_ring: random_kv_ring(seed, &run), ..run };
        let row_bytes = rng.random_range(1..=64);
        let mut stages: Vec<_> = (0..stages).map(|at| random_stage(&mut rng, at, row_bytes)).collect();
        stream_weights(seed, &mut stages);
        share_devices(seed, &mut stages);
        let prefill = random_prefill(seed, &stages);
        let mut from = SmallRng::seed_from_u64(seed ^ 0x7265_6669);
        let prefill_from = prefill.as_ref().map(|_| from.random_range(1..=run.context));
        let run = RunShape { prefill_from, ..run };
        let run = RunShape { kv_ring: random_states(seed, &run).or(run.kv_ring), ..run };
        let requests = random_requests(&mut rng, &run, seed);
        let mut faults = Vec::new();
        for stage in 0..stages.len() as u32 {
            if rng.random_ratio(1, 8 * stages.len() as u32) {
                faults.push(Fault::DeviceLost { stage, at_ns: rng.random_range(0..3_000_000) });
            }
        }
        faults.extend(random_faults(seed, stages.len() as u32));
        faults.extend(wrong_bytes(seed, stages.len() as u32));
        faults.extend(prefill.as_ref().and_then(|_| wrong_keys_and_values(seed, stages.len() as u32)));
        faults.extend(refused_copies(seed, stages.len() as u32));
        let network = random_network(seed, stages.len());
        Self {
            seed,
            stages,
            prefill,
            row_bytes,
            logit_row_bytes: u64::from(run.vocabulary),
            shared_links: Vec::new(),
            run,
            message_ns: 10u64.pow(rng.random_range(0..6)),
            network,
            handling_ns: 10u64.pow(rng.random_range(0..5)),
            jitter_percent: rng.random_range(0..=100),
            requests,
            at_once: None,
            faults,
            checked: true,
            max_spans: usize::MAX,
            verified: SmallRng::seed_from_u64(seed ^ 0x6775_6172).random_ratio(1, 2),
            then: None,
        }
    }

    /// Returns a random pipeline that fails up to three times, each time at some command, and is then replaced by another
    /// random pipeline. A device is lost or hangs, also at once after the replacement, and some fail while they load.
    /// Nothing else ends the run.
    #[cfg(test)]
    pub(super) fn random_losses(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x6c6f_7373);
        let first = Self::random(seed);
        let mut then = None;
        for at in (0..=rng.random_range(1..=3)).rev() {
            let other = if at == 0 { first.clone() } else { Self::random(rng.random()) };
            let RunShape { context, vocabulary, kv_blocks, kv_use, limits, recompute_at, .. } = first.run;
            let run = RunShape { context, vocabulary, kv_blocks, kv_use, limits, recompute_at, ..other.run };
            let run = RunShape { kv_ring: random_kv_ring(seed, &run), ..run };
            let mut faults = other.faults;
            match then {
                None => faults.retain(|fault| matches!(fault, Fault::Slow { .. } | Fault::Unsteady { .. })),
                Some(_) => faults.retain(|fault| !matches!(fault, Fault::Stopped { .. })),
            }
            let stage = rng.random_range(0..other.stages.len() as u32);
            let last = if rng.random_ratio(1, 3) { 3 } else { 59 };
            let nth = rng.random_range(1..=last);
            let fault = match rng.random_ratio(1, 3) {
                true => Fault::HungAtCommand { stage, nth },
                false => Fault::LostAtCommand { stage, nth },
            };
            faults.extend(then.is_some().then_some(fault));
            let requests = first.requests.clone();
            then = Some(Box::new(Self { run, faults, requests, then, ..other }));
        }
        then.map_or(first, |spec| *spec)
    }
}

/// For about half of the seeds, makes some copies of activations write wrong bytes.
fn wrong_bytes(seed: u64, stages: u32) -> Option<Fault> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x666c_6970);
    let edges = stages - 1;
    (edges > 0 && rng.random_ratio(1, 2)).then(|| Fault::WrongBytes {
        stage: rng.random_range(0..edges),
        first: rng.random_range(0..60),
        copies: rng.random_range(1..=4),
    })
}

/// For a quarter of the seeds, makes a copy of keys and values write wrong bytes.
fn wrong_keys_and_values(seed: u64, prefill_stage: u32) -> Option<Fault> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6b65_7973);
    let (first, copies) = (rng.random_range(0..8), 1);
    rng.random_ratio(1, 4).then_some(Fault::WrongBytes { stage: prefill_stage, first, copies })
}

/// For about half of the seeds, makes the devices refuse some copies over the peer route.
fn refused_copies(seed: u64, stages: u32) -> Vec<Fault> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7265_6675);
    let edges = if rng.random_ratio(1, 2) { stages - 1 } else { 0 };
    let fault =
        |stage| Fault::CopyRefused { stage, first: rng.random_range(0..20), copies: rng.random_range(1..=4) };
    (0..edges).map(fault).collect()
}

fn random_faults(seed: u64, stages: u32) -> Vec<Fault> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6661_756c);
    let mut faults = Vec::new();
    for stage in 0..stages {
        let nth = rng.random_range(1..200);
        let rare = |rng: &mut SmallRng| rng.random_ratio(1, 16 * stages);
        if rare(&mut rng) {
            faults.push(Fault::OutOfMemory { stage });
        }
        if rare(&mut rng) {
            faults.push(Fault::SubmissionRefused { stage, nth });
        }
        if rare(&mut rng) {
            faults.push(Fault::LostAtCommand { stage, nth });
        }
        if rng.random_ratio(1, 8) {
            let queue = QueueKind::ALL[rng.random_range(0..3)];
            faults.push(Fault::Slow { stage, queue, by_ns: rng.random_range(0..500_000) });
        }
        if rng.random_ratio(1, 8) {
            faults.push(Fault::Unsteady { stage, up_to_ns: rng.random_range(0..500_000) });
        }
    }
    if rng.random_ratio(1, 8) {
        faults.push(Fault::Stopped { at_ns: rng.random_range(0..3_000_000) });
    }
    faults
}

/// For about half of the seeds, streams the weights of some segments.
fn stream_weights(seed: u64, stages: &mut [SimStage]) {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7374_7265);
    if rng.random_ratio(1, 2) {
        return;
    }
    for stage in stages {
        let (segments, most_arenas) = (rng.random_range(1..=16usize), rng.random_range(2..=MAX_ARENAS));
        let streamed: Vec<usize> = (0..segments).filter(|_| rng.random_ratio(1, 2)).collect();
        if streamed.len() < FEWEST {
            continue;
        }
        let part = |part: StagePart| SimPart {
            arena: part.arena,
            share: part.segments.len() as f64 / segments as f64,
            stream_ns: if part.arena.is_some() { rng.random_range(0..100_000) } else { 0 },
            read_ns: None,
        };
        let arenas = Arenas::at_most(streamed.len(), most_arenas);
        stage.parts = StagePart::all(0..segments, &streamed, arenas).into_iter().map(part).collect();
        read_weights(rng.random(), &mut stage.parts);
    }
}

/// For about half of the seeds, reads the weights of some streamed parts from the model's file.
fn read_weights(seed: u64, parts: &mut [SimPart]) {
    let mut rng = SmallRng::seed_from_u64(seed);
    if rng.random_ratio(1, 2) {
        return;
    }
    let most_ns = rng.random_range(1..200_000);
    for part in parts.iter_mut().filter(|part| part.arena.is_some()) {
        part.read_ns = rng.random_ratio(2, 3).then(|| rng.random_range(0..most_ns));
    }
}

/// For about half of the seeds, returns a prefill stage. It is on the device of another stage or on a device
/// of its own.
fn random_prefill(seed: u64, stages: &[SimStage]) -> Option<SimPrefill> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7072_6566);
    if rng.random_ratio(1, 2) {
        return None;
    }
    let mut own = [random_stage(&mut rng, stages.len() as u32, 1)];
    stream_weights(rng.random(), &mut own);
    let [mut stage] = own;
    if rng.random_ratio(2, 3) {
        stage.device = stages[rng.random_range(0..stages.len())].device.clone();
    }
    let parts = stage.parts.len().max(1);
    let receivers = stages.iter().enumerate().filter(|(_, other)| other.device != stage.device);
    let pass = |(at, _): (usize, &SimStage)| {
        let first = rng.random_range(0..parts);
        let parts = (first..parts).filter(|&part| part == first || rng.random_ratio(1, 2)).collect();
        SimPass { stage: at, parts, row_ns: f64::from(rng.random_range(0..20_000)) }
    };
    let passes: Vec<_> = receivers.map(pass).collect();
    (!passes.is_empty()).then_some(SimPrefill { stage, passes })
}

/// For about half of the seeds, distributes the stages randomly over fewer devices. Neighbouring stages stay
/// on different devices.
fn share_devices(seed: u64, stages: &mut [SimStage]) {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6465_7669);
    if stages.len() < 3 || rng.random_ratio(1, 2) {
        return;
    }
    let devices = rng.random_range(2..stages.len() as u32);
    let mut before = devices;
    for stage in stages {
        let mut device = rng.random_range(0..devices);
        if device == before {
            device = (device + 1) % devices;
        }
        stage.device = format!("made-up:{device}");
        before = device;
    }
}

/// Returns a network between three hosts for a third of the seeds.
fn random_network(seed: u64, stages: usize) -> SimNetwork {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6e65_7477);
    if !rng.random_ratio(1, 3) {
        return SimNetwork::default();
    }
    SimNetwork {
        hosts: (0..stages).map(|_| rng.random_range(0..3)).collect(),
        latencies_ns: [(0, 1), (0, 2), (1, 2)].map(|pair| (pair, 10u64.pow(rng.random_range(0..7)))).into(),
        lost_per_million: rng.random_range(0..200_000),
        again_ns: rng.random_range(0..1_000_000),
    }
}

fn random_stage(rng: &mut SmallRng, at: u32, row_bytes: u64) -> SimStage {
    let slots = rng.random_range(1..=4);
    let compute =
        ComputeTime::Linear { batch_ns: rng.random_range(0..50_000), row_ns: rng.random_range(0..20_000) };
    let copy = CopyTime {
        copy_ns: rng.random_range(0..10_000),
        once_ns: 0,
        byte_ns: f64::from(rng.random_range(0..50_000)) / 1e3,
    };
    SimStage {
        device: format!("made-up:{at}"),
        slots,
        compute,
        hand_over_ns: 0,
        upload: copy,
        download: copy,
        logits: copy,
        single_queue: rng.random_ratio(1, 4),
        routes: random_routes(rng, row_bytes),
        parts: Vec::new(),
    }
}

/// Returns one or two random routes.
fn random_routes(rng: &mut SmallRng, row_bytes: u64) -> Routes {
    let route = |rng: &mut SmallRng| match rng.random_range(0..4) {
        0 => Route::Peer,
        1 => Route::Import,
        _ => Route::HostStaged {
            chunk_bytes: rng.random_range(1..=row_bytes * 8),
            depth: rng.random_range(1..=5),
        },
    };
    let large = route(rng);
    let mut routes = Routes::from(large);
    if rng.random_ratio(1, 2) {
        let up_to_bytes = Some(rng.random_range(1..=row_bytes * 4));
        routes.0.insert(0, SizedRoute { up_to_bytes, route: route(rng) });
    }
    // The same route without a ring twice is refused.
    if routes.check().is_ok() { routes } else { large.into() }
}

/// Draws how sequences use the cache and how many requests may wait. Half of the caches are small.
fn random_memory(seed: u64, run: RunShape) -> RunShape {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6d65_6d6f);
    let kv_use = KvUse {
        reserve: if rng.random_ratio(1, 4) { Reserve::Full } else { Reserve::Grow },
        prefixes: [None, Some(Eviction::Lru), Some(Eviction::Fifo), Some(Eviction::Lfu)]
            [rng.random_range(0..4)],
    };
    let most = if rng.random_ratio(1, 2) { rng.random_range(3..=10) } else { u32::MAX };
    let few = Limits { requests: rng.random_range(1..=4), tokens: rng.random_range(1..=200) };
    let limits = if rng.random_ratio(1, 4) { few } else { Limits::default() };
    let context = run.context + if rng.random_ratio(1, 2) { 64 } else { 0 };
    let recompute_at = rng.random_ratio(1, 8).then(|| rng.random_range(1..=context));
    RunShape { context, kv_use, kv_blocks: run.kv_blocks.min(most), limits, recompute_at, ..run }
}

/// Returns the KV ring of a random window in half of all pipelines, if it is shorter than the context.
fn random_kv_ring(seed: u64, run: &RunShape) -> Option<KvRing> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7769_6e64);
    let window = rng.random_ratio(1, 2).then(|| rng.random_range(1..=32));
    KvRing::new(window, run.context, run.max_rows, rng.random_range(1..=4))
}

/// Returns the slots of states in a quarter of all pipelines without a prefill stage.
fn random_states(seed: u64, run: &RunShape) -> Option<KvRing> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7374_6174);
    let has_states = rng.random_ratio(1, 4) && run.prefill_from.is_none();
    has_states.then(|| KvRing { window: 0, blocks: 1, total: rng.random_range(1..=8) })
}

/// Returns a list of three random chunks, each with at most `max_rows` rows.
fn random_chunks(rng: &mut SmallRng, max_rows: u32) -> Chunks {
    let mut from_tokens = 0;
    let mut chunk = |at: u32| {
        from_tokens += if at == 0 { 0 } else { rng.random_range(1..=24) };
        PromptChunk { from_tokens, rows: rng.random_range(1..=max_rows) }
    };
    let by_prompt = (0..3).map(&mut chunk).collect();
    Chunks { by_prompt, beside_decode: rng.random_range(1..=max_rows) }
}
