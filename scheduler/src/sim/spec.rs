//! What is simulated: stages, requests and faults, given or drawn from a seed.

use crate::core::{Nanoseconds, RunShape, Want};
use crate::sim::time::{ComputeTime, CopyTime};
use ragtag_hal::QueueKind;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_planner::plan::{Chunks, PromptChunk};
use ragtag_transfer::Route;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// A made-up device with its stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SimStage {
    /// Label of the device.
    pub device: String,
    /// Slots of the stage.
    pub slots: u32,
    /// Computing time.
    pub compute: ComputeTime,
    /// By how much later it begins to compute after a rest that was as long or longer; after a shorter one by as much as that.
    pub hand_over_ns: Nanoseconds,
    /// Time of copies of activations to the device.
    pub upload: CopyTime,
    /// Time of copies of activations from the device.
    pub download: CopyTime,
    /// Time of copies of logits from the device; ignored but on the last stage.
    pub logits: CopyTime,
    /// Whether all three queues are one hardware queue.
    pub single_queue: bool,
    /// The route to the next stage; ignored on the last.
    pub route: Route,
}

/// Something that several edges have in common, such as a bus. It serves one copy after another, in the order in which
/// they begin.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSharedLink {
    /// Name, for people.
    pub name: String,
    /// The edges that use it: edge `n` leaves stage `n`.
    pub edges: Vec<usize>,
    /// How long each byte occupies it.
    pub byte_ns: f64,
}

/// A made-up request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimRequest {
    /// When it comes.
    pub at_ns: Nanoseconds,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// What it wants.
    pub want: Want,
    /// When it is cancelled, if it is.
    pub cancel_ns: Option<Nanoseconds>,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A device is lost.
    DeviceLost {
        /// Which stage's.
        stage: u32,
        /// When.
        at_ns: Nanoseconds,
    },
    /// A device has not enough memory for its stage: loading fails.
    OutOfMemory {
        /// Which stage's.
        stage: u32,
    },
    /// A device refuses a submission.
    SubmissionRefused {
        /// Which stage's.
        stage: u32,
        /// Which of its submissions, counted from 1.
        nth: u64,
    },
    /// A device is lost when it is to start a command.
    LostAtCommand {
        /// Which stage's.
        stage: u32,
        /// Which of its commands, counted from 1 over all queues in the order in which they start.
        nth: u64,
    },
    /// A queue takes longer for everything.
    Slow {
        /// Which stage's.
        stage: u32,
        /// Which queue.
        queue: QueueKind,
        /// By so much.
        by_ns: Nanoseconds,
    },
    /// A device takes longer, each time by another while: its queues overtake each other.
    Unsteady {
        /// Which stage's.
        stage: u32,
        /// By up to so much.
        up_to_ns: Nanoseconds,
    },
    /// The run is stopped.
    Stopped {
        /// When.
        at_ns: Nanoseconds,
    },
    /// Each notice of an actor's progress sends it another. Not survivable: shows that the simulator ends endless loops.
    NoticesRepeated {
        /// Which stage's actor.
        stage: u32,
    },
    /// The so-manieth message between stages or from the last stage never arrives. Not survivable: shows that the
    /// simulator notices.
    MessageLost {
        /// Counted from 0.
        nth: u64,
    },
    /// The so-manieth such message arrives twice. Not survivable.
    MessageTwice {
        /// Counted from 0.
        nth: u64,
    },
    /// A stage's submissions do not wait for points. Not survivable.
    WaitsIgnored {
        /// Which stage.
        stage: u32,
    },
}

/// A whole simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSpec {
    /// Seeds every delay.
    pub seed: u64,
    /// The stages.
    pub stages: Vec<SimStage>,
    /// What the coordinator knows of them.
    pub run: RunShape,
    /// Bytes of one row of activations, as it crosses.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
    /// What edges have in common.
    pub shared_links: Vec<SimSharedLink>,
    /// Longest time that a message takes.
    pub message_ns: Nanoseconds,
    /// Time that an actor takes to handle a message.
    pub handling_ns: Nanoseconds,
    /// By how much, in percent, times on devices vary.
    pub jitter_percent: u64,
    /// The requests.
    pub requests: Vec<SimRequest>,
    /// With a number, so many requests are there at once: another comes when one has ended, and not at its time.
    pub at_once: Option<u32>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Whether every look-up in the caches is checked, and all events of the coordinator kept: much work. What slots and
    /// rings hold, and how sequences end, is checked in any case.
    pub checked: bool,
    /// Most spans kept.
    pub max_spans: usize,
}

/// The token that a simulated sequence has at a position, in its prompt and after it.
pub fn token_at(sequence: u64, position: u32, vocabulary: u32) -> u32 {
    let mixed = (sequence << 32 | u64::from(position)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29) % u64::from(vocabulary)) as u32
}

impl SimSpec {
    /// A random pipeline with random requests. About one in eight loses a device at some time, one in sixteen each at some
    /// command, by a refused submission or for want of memory; one in eight is stopped; many have slow and unsteady devices.
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
            chunks: random_chunks(&mut rng, max_rows),
            max_rows,
            max_logit_rows: rng.random_range(1..=max_rows),
            max_sequences: rng.random_range(1..=6),
            kv_blocks: rng.random_range(1..=24),
        };
        let row_bytes = rng.random_range(1..=64);
        let stages: Vec<_> = (0..stages).map(|at| random_stage(&mut rng, at, row_bytes)).collect();
        let requests = (0..rng.random_range(1..=12)).map(|_| random_request(&mut rng, &run)).collect();
        let mut faults = Vec::new();
        for stage in 0..stages.len() as u32 {
            if rng.random_ratio(1, 8 * stages.len() as u32) {
                faults.push(Fault::DeviceLost { stage, at_ns: rng.random_range(0..3_000_000) });
            }
        }
        faults.extend(random_faults(seed, stages.len() as u32));
        Self {
            seed,
            stages,
            row_bytes,
            logit_row_bytes: u64::from(run.vocabulary),
            shared_links: Vec::new(),
            run,
            message_ns: 10u64.pow(rng.random_range(0..6)),
            handling_ns: 10u64.pow(rng.random_range(0..5)),
            jitter_percent: rng.random_range(0..=100),
            requests,
            at_once: None,
            faults,
            checked: true,
            max_spans: usize::MAX,
        }
    }
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
        route: Route::HostStaged {
            chunk_bytes: rng.random_range(1..=row_bytes * 8),
            depth: rng.random_range(1..=5),
        },
    }
}

fn random_request(rng: &mut SmallRng, run: &RunShape) -> SimRequest {
    // A few are longer than the context or larger than the cache: those are to be refused.
    let cache = run.kv_blocks * BLOCK_TOKENS as u32;
    let prompt_tokens = rng.random_range(0..=run.context.min(cache) + 2);
    let end_tokens = (0..rng.random_range(0..3)).map(|_| rng.random_range(0..run.vocabulary)).collect();
    let want = if rng.random_ratio(1, 5) {
        Want::Logits
    } else {
        Want::Generate { max_new_tokens: rng.random_range(0..40), end_tokens }
    };
    let at_ns = rng.random_range(0..2_000_000);
    let cancel_ns = rng.random_ratio(1, 5).then(|| at_ns + rng.random_range(0..2_000_000));
    SimRequest { at_ns, prompt_tokens, want, cancel_ns }
}

/// Three random chunks of at most `max_rows` rows.
fn random_chunks(rng: &mut SmallRng, max_rows: u32) -> Chunks {
    let mut from_tokens = 0;
    let mut chunk = |at: u32| {
        from_tokens += if at == 0 { 0 } else { rng.random_range(1..=24) };
        PromptChunk { from_tokens, rows: rng.random_range(1..=max_rows) }
    };
    let by_prompt = (0..3).map(&mut chunk).collect();
    Chunks { by_prompt, beside_decode: rng.random_range(1..=max_rows) }
}
