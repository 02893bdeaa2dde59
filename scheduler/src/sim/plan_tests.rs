//! Tests of simulated plans: the latency of one sequence, the throughput of many sequences, and the
//! completeness of the output.

use super::*;
use crate::core::Want;
use ragtag_graph::{Segment, SegmentKind, SegmentTensor, WireType};
use ragtag_hal::AdapterKind;
use ragtag_kernels::Activations;
use ragtag_planner::cost::{BatchShape, DeviceFacts, Figure, FigureSource, LinkFacts, Links, SharedLink};
use ragtag_planner::cost::{RunSizes, step_us};
use ragtag_planner::plan::{PlanStage, PrefillStage};
use ragtag_planner::{ModelFacts, Plan};
use ragtag_transfer::Route;

const ROW_BYTES: u64 = 16_384;
const VOCABULARY: u32 = 32_000;

/// A plan with the inputs of its simulation.
#[derive(Clone)]
struct Planned {
    plan: Plan,
    model: ModelFacts,
    segments: Vec<Segment>,
    devices: Vec<DeviceFacts>,
    links: Links,
}

impl Planned {
    /// Creates a plan with one stage per entry of `blocks`. An entry is the number of transformer blocks of
    /// the stage. All devices are equally fast. The embedding is on the first device, and the head is on the
    /// last.
    fn new(blocks: &[u32]) -> Self {
        let devices: Vec<_> = (0..blocks.len()).map(device).collect();
        let all: u32 = blocks.iter().sum();
        let kinds = (0..all + 2).map(|segment| match segment {
            0 => SegmentKind::Embedding,
            s if s == all + 1 => SegmentKind::Head,
            _ => SegmentKind::Block,
        });
        let segments: Vec<_> = kinds.map(segment).collect();
        let model = ModelFacts {
            name: "made up".into(),
            digest: "none".into(),
            context: 1024,
            row_bytes: ROW_BYTES,
            vocabulary: VOCABULARY,
            sequence_frequencies: 0,
        };
        let (mut first, mut split) = (0, Vec::new());
        for (at, &blocks_here) in blocks.iter().enumerate() {
            let ends = u32::from(at == 0) + u32::from(at + 1 == blocks.len());
            let last = first + blocks_here + ends - 1;
            split.push(format!("{first}-{last}={}", devices[at].label));
            first = last + 1;
        }
        let plan = crate::made_up::plan(&split.join(","));
        Self { plan, model, segments, devices, links: Links::default() }
    }

    /// Sets the plan's numbers of sequences and of decode groups.
    fn sequences(mut self, sequences: u32, groups: u32) -> Self {
        (self.plan.sequences, self.plan.decode_groups) = (sequences, groups);
        self.plan.decode_rows = sequences.div_ceil(groups);
        self.plan.kv_blocks = self.plan.full_blocks();
        (self.plan.credits, self.plan.slots) = (groups + 1, 4);
        self
    }

    fn spec(&self, load: &Load) -> SimSpec {
        let Self { plan, model, segments, devices, links } = self;
        SimSpec::of_plan(plan, model, segments, devices, links, load).unwrap()
    }

    fn run(&self, load: &Load) -> SimSummary {
        let spec = self.spec(load);
        let report = simulate(&spec).unwrap();
        SimSummary::new(&spec, report)
    }

    /// Returns the time of a stage for a micro-batch of `rows` rows, `logit_rows` of them with logits.
    fn stage_us(&self, stage: usize, rows: u32, logit_rows: u32, positions: f64) -> f64 {
        let segments = &self.segments[self.plan.stages[stage].segments.range()];
        let (device, wire_type) = (&self.devices[stage], self.plan.wire_type);
        let costs = StageCosts::new(segments, device, Activations::Int8, wire_type, ROW_BYTES);
        costs.time_us(&BatchShape { rows, logit_rows, sequences: logit_rows, positions })
    }

    fn stages_us(&self, rows: u32, logit_rows: u32, positions: f64) -> f64 {
        (0..self.plan.stages.len()).map(|stage| self.stage_us(stage, rows, logit_rows, positions)).sum()
    }

    /// Returns the total time of all transfers of a micro-batch with `rows` rows and of its token return.
    fn moving_us(&self, rows: u32, logit_rows: u32) -> f64 {
        let crossings = self.devices.windows(2).map(|pair| {
            let link = self.links.between(&pair[0].label, &pair[1].label);
            link.time_us(u64::from(rows) * self.plan.wire_type.row_bytes(ROW_BYTES))
        });
        let logits = u64::from(logit_rows) * ModelFacts::RETURN_ROW_BYTES;
        let last = &self.devices[self.devices.len() - 1];
        crossings.sum::<f64>() + last.host_copy_us(logits)
    }
}

fn device(at: usize) -> DeviceFacts {
    let label = format!("device:{at}");
    let mut facts = DeviceFacts::assumed(&label, AdapterKind::Discrete, 1, 1 << 40, FigureSource::User);
    facts.host_latency_us = Figure::assumed(5.0 + 10.0 * at as f64);
    facts
}

/// Returns a segment. A transformer block takes 250 µs per row, plus a little time per position for its keys
/// and values.
fn segment(kind: SegmentKind) -> Segment {
    let (read_bytes, flops_per_row) = match kind {
        SegmentKind::Embedding => (0, 0),
        SegmentKind::Block | SegmentKind::Attention | SegmentKind::FeedForward => (76_000_000, 400_000_000),
        SegmentKind::Head => (40_000_000, 260_000_000),
    };
    Segment {
        kind,
        name: "segment".into(),
        tensors: Vec::new(),
        flops_per_row,
        flops_per_row_position: 1_000,
        read_bytes,
        experts: None,
        read_bytes_per_row: 100_000,
        kv_bytes_per_position: if kind == SegmentKind::Block { 4096 } else { 0 },
        value_bytes_per_position: if kind == SegmentKind::Block { 2048 } else { 0 },
        window: None,
        state_bytes: [0; 2],
        scratch_bytes: 0,
        wide_scratch_bytes: 0,
        tensor_bytes: 0,
    }
}

/// Returns a load of identical requests that all arrive at the start.
fn burst(requests: u32, prompt: u32, new: u32) -> Load {
    let (prompt_tokens, new_tokens) = (Lengths::Fixed(prompt), Lengths::Fixed(new));
    DrawnLoad { requests, arrivals: Arrivals::Together, prompt_tokens, new_tokens, seed: 0 }.draw().unwrap()
}

fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((got / expected - 1.0).abs() <= tolerance, "{what}: {got} where {expected} was expected");
}

#[test]
fn a_lone_token_takes_all_stages_transfers_and_the_return() {
    for blocks in [&[3][..], &[2, 5], &[4, 1, 3], &[1, 1, 1, 1, 1, 1, 1, 1]] {
        let planned = Planned::new(blocks);
        let summary = planned.run(&burst(1, 100, 101));
        // These are the tokens after the first. Their rows attend to between 101 and 200 positions.
        let expected = planned.stages_us(1, 1, 150.5) + planned.moving_us(1, 1);
        let between = summary.between_tokens_us;
        assert_eq!(between.count, 100);
        assert_near(between.mean, expected, 1e-3, "between tokens");
        // The prompt is one prefill chunk whose last row has logits. Each transfer of it takes several ring
        // chunks.
        let expected = planned.stages_us(100, 1, 50.5) + planned.moving_us(100, 1);
        assert_near(summary.first_token_us.mean, expected, 1e-3, "first token");
        // Exactly one micro-batch is in flight at any time.
        let busy: f64 = summary.stages.iter().map(|s| s.utilisation).sum();
        assert!(busy > 0.5 && busy < 1.0, "{busy}");
        assert_eq!(summary.waiting_requests, Depth::default());
    }
}

#[test]
fn chunks_of_a_prompt_overlap() {
    let planned = Planned::new(&[2, 4, 3]);
    let summary = planned.run(&burst(1, 1024, 1));
    // There are eight chunks. The slowest stage delays all of them, and each other stage delays one.
    let times: Vec<_> = (0..3).map(|stage| planned.stage_us(stage, 128, 0, 512.5)).collect();
    let expected = 8.0 * times[1] + times[0] + times[2];
    assert_near(summary.first_token_us.mean, expected, 0.05, "first token");
    assert_eq!(summary.stages.iter().map(|s| s.prefill.micro_batches).collect::<Vec<_>>(), [8; 3]);
    assert!(summary.stages[1].bubble < 0.02, "{}", summary.stages[1].bubble);
    assert!(summary.stages[0].queue.max > 1);
}

#[test]
fn a_hand_over_delays_one_sequence_but_not_throughput() {
    let late = |mut planned: Planned| {
        planned.devices.iter_mut().for_each(|device| device.hand_over_us = Figure::assumed(100.0));
        planned
    };
    let (alone, load) = (|| Planned::new(&[2, 4, 3]), burst(1, 100, 101));
    let (before, after) = (alone().run(&load), late(alone()).run(&load));
    let more_us = |of: fn(&SimSummary) -> f64| of(&after) - of(&before);
    assert_near(more_us(|s| s.between_tokens_us.mean), 300.0, 1e-3, "later by each stage's");
    assert_near(more_us(|s| s.first_token_us.mean), 300.0, 1e-3, "the prompt's chunk, too");
    assert_eq!(before.stages[0].decode, after.stages[0].decode, "it occupies no stage");
    let many = || Planned::new(&[4, 6, 3]).sequences(32, 4);
    let load = burst(32, 16, 600);
    let (before, after) = (many().run(&load), late(many()).run(&load));
    assert_near(after.decode_tokens_per_s, before.decode_tokens_per_s, 0.01, "tokens per second");
}

#[test]
fn many_sequences_get_what_the_slowest_stage_gives() {
    let planned = Planned::new(&[4, 6, 3]).sequences(32, 4);
    let summary = planned.run(&burst(32, 16, 600));
    // The groups have eight sequences. Halfway through, they attend to 316 positions.
    let stage_us = planned.stage_us(1, 8, 8, 316.0);
    assert!((0..3).all(|stage| planned.stage_us(stage, 8, 8, 316.0) <= stage_us));
    assert_near(summary.decode_tokens_per_s, 8.0 / stage_us * 1e6, 0.03, "tokens per second");
    let slowest = &summary.stages[1];
    assert!(slowest.utilisation > 0.97 && slowest.utilisation <= 1.0, "{slowest:?}");
    assert!(slowest.bubble < 0.03);
    assert!(summary.stages.iter().all(|s| s.utilisation <= slowest.utilisation));
    // There is always a queue before the slowest stage, and never one behind it.
    assert!(slowest.queue.mean > 1.0 && summary.stages[2].queue.mean < 1.0, "{:?}", summary.stages);
    assert_eq!((summary.finished, summary.new_tokens, summary.refused), (32, 32 * 600, 0));
}

#[test]
fn a_shared_slow_link_limits_throughput_sooner() {
    let slow = |planned: &mut Planned| {
        planned.links.other.bandwidth_bytes_per_s = Figure { value: 0.1e9, source: FigureSource::User };
    };
    let crossing_us = |rows: u64, bytes_per_s: f64| (rows * ROW_BYTES) as f64 / bytes_per_s * 1e6;
    let mut planned = Planned::new(&[1, 1, 1]).sequences(32, 4);
    slow(&mut planned);
    let alone = planned.run(&burst(32, 16, 800));
    // Bytes are transferred at the link's rate. The latency of the next copy overlaps.
    let expected = 8.0 / (crossing_us(8, 0.1e9) + 20.0 * 5.0 / 20.0) * 1e6;
    assert_near(alone.decode_tokens_per_s, expected, 0.05, "tokens per second");
    assert!(alone.links[0].utilisation > 0.95, "{:?}", alone.links);
    assert!(alone.shared_links.is_empty());

    // Both transfers share this rate. The third user is not part of the plan.
    let users = [("device:0", "device:1"), ("device:1", "device:2"), ("device:5", "device:1")];
    planned.links.shared = vec![SharedLink {
        name: "bus".into(),
        users: users.map(|(from, to)| (from.into(), to.into())).into(),
        bandwidth_bytes_per_s: Figure { value: 0.1e9, source: FigureSource::User },
    }];
    let shared = planned.run(&burst(32, 16, 800));
    let expected = 8.0 / (2.0 * crossing_us(8, 0.1e9)) * 1e6;
    assert_near(shared.decode_tokens_per_s, expected, 0.05, "tokens per second over the bus");
    assert!(shared.shared_links[0].utilisation > 0.95, "{:?}", shared.shared_links);
    // A bus with a single user changes nothing.
    planned.links.shared[0].users = vec![("device:1".into(), "device:0".into())];
    assert_eq!(planned.run(&burst(32, 16, 800)), alone);
}

/// Checks that more credits than a plan has barely change the throughput, and that a single credit is too
/// few, with up to four stages. Therefore the planner's search grid has no axis for credits. A plan has one
/// credit more than the larger of its numbers of groups and stages.
#[test]
fn more_credits_than_a_plan_has_serve_no_more_requests() {
    let shapes: [&[u32]; 3] = [&[4, 4], &[2, 4, 3], &[1, 5, 2, 2]];
    for blocks in shapes {
        let stages = blocks.len() as u32;
        for (sequences, groups) in [(1, 1), (4, 2), (8, stages), (32, stages)] {
            for (prompt, new) in [(16, 64), (300, 40), (900, 8)] {
                let served = |credits: u32| {
                    let mut planned = Planned::new(blocks).sequences(sequences, groups);
                    (planned.plan.credits, planned.plan.slots) = (credits, 3);
                    let arrivals = Arrivals::Closed { at_once: sequences };
                    let (prompt_tokens, new_tokens) = (Lengths::Fixed(prompt), Lengths::Fixed(new));
                    let requests = 3 * sequences;
                    let load = DrawnLoad { requests, arrivals, prompt_tokens, new_tokens, seed: 1 };
                    planned.run(&load.draw().unwrap()).requests_per_s
                };
                let credits = groups.max(stages) + 1;
                let what = format!("{blocks:?}, {sequences} in {groups} groups, {prompt} + {new} tokens");
                let rate = served(credits);
                for more in [credits + 1, 2 * credits, 4 * credits] {
                    assert!(
                        served(more) <= rate * 1.03,
                        "{what}: {more} credits serve {} for {rate}",
                        served(more)
                    );
                }
                // With one micro-batch at a time, nothing overlaps.
                assert!(sequences == 1 || served(1) < rate * 0.8, "{what}: {} for {rate}", served(1));
            }
        }
    }
}

/// Checks that four devices that take turns with four stages each need only four credits. A prompt of eight
/// chunks then passes in two rounds of four chunks, which keep all devices busy. With five credits, the
/// second round has three chunks.
#[test]
fn devices_that_take_turns_need_one_credit_each() {
    let (devices, stages, chunks) = (4, 16, 8);
    let mut planned = Planned::new(&[2; 16]);
    planned.devices.truncate(devices);
    let place = |(at, stage): (usize, &PlanStage)| {
        let segments = stage.segments.range();
        format!("{}-{}=device:{}", segments.start, segments.end - 1, at % devices)
    };
    let split: Vec<String> = planned.plan.stages.iter().enumerate().map(place).collect();
    planned.plan = crate::made_up::plan(&split.join(","));
    let prompt = chunks * planned.plan.chunk - 1;
    let first_token_us = |credits: u32| {
        let mut planned = planned.clone();
        (planned.plan.credits, planned.plan.slots) = (credits, 3);
        planned.run(&burst(1, prompt, 1)).first_token_us.mean
    };
    let stage_us = first_token_us(1) / f64::from(chunks * stages);
    // Each device runs four stages for every chunk. The last device waits for three stages.
    let busy_us = stage_us * f64::from(chunks * stages / 4 + 3);
    assert!(first_token_us(4) < busy_us * 1.05, "{} {busy_us}", first_token_us(4));
    assert!(first_token_us(4) < first_token_us(5));
    assert!(first_token_us(3) > first_token_us(4) * 1.2);
}

/// Checks that wire type f16 shortens a run on a slow link. Links then carry half the bytes, although every
/// stage has two more dispatches.
#[test]
fn f16_activations_halve_the_time_on_a_slow_link() {
    let with = |wire_type| {
        let mut planned = Planned::new(&[2, 2]);
        planned.plan.wire_type = wire_type;
        planned.links.other.bandwidth_bytes_per_s = Figure { value: 1e7, source: FigureSource::User };
        let summary = planned.run(&burst(1, 100, 101));
        let expected = planned.stages_us(1, 1, 150.5) + planned.moving_us(1, 1);
        assert_near(summary.between_tokens_us.mean, expected, 1e-3, "between tokens");
        summary
    };
    let [wide, narrow] = WireType::ALL.map(with);
    assert_eq!((wide.links[0].bytes, narrow.links[0].bytes), (200 * ROW_BYTES, 200 * ROW_BYTES / 2));
    assert!(narrow.duration_us < wide.duration_us);
    assert!(narrow.stages[0].decode.busy_ns > wide.stages[0].decode.busy_ns);
}

/// Checks the total numbers of tokens and requests for all kinds of loads. The simulator itself checks each
/// sequence.
#[test]
fn every_requested_token_arrives_once() {
    let planned = Planned::new(&[2, 3, 2]).sequences(6, 3);
    let lengths = (Lengths::Uniform { least: 1, most: 300 }, Lengths::Geometric { mean: 30.0 });
    for arrivals in [Arrivals::Together, Arrivals::Poisson { per_s: 60.0 }, Arrivals::Closed { at_once: 4 }] {
        let (prompt_tokens, new_tokens) = lengths;
        let load = DrawnLoad { requests: 200, arrivals, prompt_tokens, new_tokens, seed: 3 }.draw().unwrap();
        let spec = planned.spec(&load);
        let report = simulate(&spec).unwrap();
        let mut asked = (0, 0);
        for (request, outcome) in load.requests.iter().zip(report.outcomes.values()) {
            let Want::Generate { max_new_tokens, .. } = request.want else { panic!("{request:?}") };
            let SimOutcome::Finished { tokens, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(tokens.len() as u32, max_new_tokens);
            asked = (asked.0 + u64::from(request.prompt_tokens), asked.1 + u64::from(max_new_tokens));
        }
        let summary = SimSummary::new(&spec, report);
        assert_eq!((summary.prompt_tokens, summary.new_tokens), asked);
        assert_eq!((summary.finished, summary.refused, summary.cut_short), (200, 0, 0));
        assert_eq!(summary.between_tokens_us.count, asked.1 - 200);
        assert_eq!((summary.first_token_us.count, summary.request_us.count), (200, 200));
        // Each stage computes all tokens of each sequence except the last token.
        for stage in &summary.stages {
            assert_eq!(stage.prefill.rows + stage.decode.rows, asked.0 + asked.1 - 200);
        }
        for link in &summary.links {
            assert_eq!(link.bytes, (asked.0 + asked.1 - 200) * ROW_BYTES);
            assert_eq!(
                link.crossings,
                summary.stages[0].prefill.micro_batches + summary.stages[0].decode.micro_batches
            );
        }
        assert_eq!(planned.run(&load), summary, "the same once more");
        if let Arrivals::Closed { .. } = arrivals {
            // The plan has room for at least six sequences.
            assert_eq!(summary.waiting_requests, Depth::default());
        }
        if arrivals == Arrivals::Together {
            // A sequence gets only as many cache blocks as it needs, so more than six sequences fit.
            assert!((100..194).contains(&summary.waiting_requests.max), "{:?}", summary.waiting_requests);
            assert!(summary.first_token_us.p90 > summary.first_token_us.p50);
        }
    }
}

#[test]
fn requests_that_do_not_fit_are_refused_or_cut_short() {
    let load = Load {
        requests: [(1025, 1), (1000, 100), (10, 10)]
            .map(|(prompt, new)| burst(1, prompt, new).requests.remove(0))
            .into(),
        at_once: None,
    };
    let summary = Planned::new(&[1, 1]).sequences(2, 2).run(&load);
    assert_eq!((summary.refused, summary.cut_short, summary.finished), (1, 1, 2));
    assert_eq!((summary.prompt_tokens, summary.new_tokens), (1010, 25 + 10));
}

#[test]
fn a_chart_has_bounds() {
    let planned = Planned::new(&[1, 1]);
    let mut spec = planned.spec(&burst(1, 10, 10));
    let all = SimSummary::new(&spec, simulate(&spec).unwrap());
    // There are ten micro-batches. Each is computed twice and has three copies: out of the first stage, into
    // the second, and its logits.
    assert_eq!((all.spans.len(), all.dropped_spans), (50, 0));
    let kinds = |kind| all.spans.iter().filter(|span| span.kind == kind).count();
    assert_eq!((kinds(SimSpanKind::Prefill), kinds(SimSpanKind::Decode)), (2, 18));
    spec.max_spans = 7;
    let some = SimSummary::new(&spec, simulate(&spec).unwrap());
    assert_eq!((&some.spans[..], some.dropped_spans), (&all.spans[..7], 43));
    assert_eq!(some, SimSummary { spans: some.spans.clone(), dropped_spans: 43, ..all });
}

#[test]
fn unsuitable_plans_are_refused() {
    let load = burst(1, 10, 10);
    let error = |change: &dyn Fn(&mut Planned)| {
        let mut planned = Planned::new(&[1, 1]);
        change(&mut planned);
        let Planned { plan, model, segments, devices, links } = &planned;
        SimSpec::of_plan(plan, model, segments, devices, links, &load).unwrap_err().to_string()
    };
    for (error, words) in [
        (error(&|p| p.devices.truncate(1)), "no device device:1"),
        (error(&|p| p.segments.truncate(3)), "3 segments"),
        (error(&|p| p.model.digest = "other".into()), "digest other"),
        (error(&|p| p.plan.chunk = 0), "chunk is 0"),
        (error(&|p| p.plan.slots = u32::MAX), "slots is 4294967295; it must be at most 65536"),
        (error(&|p| p.plan.credits = u32::MAX), "credits is 4294967295"),
        (error(&|p| (p.plan.context, p.plan.kv_blocks) = (u32::MAX, 1 << 28)), "cache blocks is 268435456"),
        (
            error(&|p| p.plan.edges[0].routes = Route::HostStaged { chunk_bytes: 1, depth: u32::MAX }.into()),
            "ring's depth is 4294967295",
        ),
        (error(&|p| p.devices[1].stage_us.value = f64::NAN), "device:1: invalid stage_us"),
        (error(&|p| p.links.other.latency_us.value = -1.0), "device:0 to device:1: invalid latency_us"),
        (
            error(&|p| {
                p.links.shared = vec![SharedLink {
                    name: "bus".into(),
                    users: Vec::new(),
                    bandwidth_bytes_per_s: Figure::assumed(0.0),
                }];
            }),
            "the shared link bus",
        ),
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// Checks that simulated time saturates at the maximum of the clock with the slowest devices and links.
#[test]
fn times_beyond_the_clock_end_it() {
    let mut planned = Planned::new(&[1, 1]);
    let slowest = Figure { value: 1.0, source: FigureSource::User };
    for device in &mut planned.devices {
        (device.bandwidth_bytes_per_s, device.fast_flops_per_s) = (slowest, slowest);
        device.host_bandwidth_bytes_per_s = slowest;
    }
    planned.links.other = LinkFacts { bandwidth_bytes_per_s: slowest, ..LinkFacts::assumed() };
    planned.segments.iter_mut().for_each(|s| s.read_bytes = u64::MAX);
    let summary = planned.run(&burst(1, 100, 3));
    assert_eq!(summary.finished, 1);
    assert!(summary.duration_us.is_finite());
}

#[test]
fn streamed_weights_take_their_copies_or_the_computation_whichever_is_longer() {
    const WEIGHT_BYTES: u64 = 50_000_000;
    let mut planned = Planned::new(&[12]);
    for (at, segment) in planned.segments.iter_mut().enumerate().filter(|(at, _)| (1..=12).contains(at)) {
        segment.tensors.push(SegmentTensor::new(format!("weight {at}"), WEIGHT_BYTES));
    }
    let streamed = [2, 4, 6, 8, 10, 12];
    planned.plan.stages[0].streamed = streamed.to_vec();
    let computed_us = planned.stages_us(1, 1, 60.0);
    for copied_us in [0.2, 0.8, 1.5, 4.0].map(|factor| computed_us * factor) {
        let rate = (WEIGHT_BYTES * streamed.len() as u64) as f64 / copied_us * 1e6;
        planned.devices[0].host_bandwidth_bytes_per_s = Figure::assumed(rate);
        planned.devices[0].host_latency_us = Figure::assumed(0.0);
        let summary = planned.run(&burst(1, 16, 80));
        assert_near(summary.between_tokens_us.mean, computed_us.max(copied_us), 0.05, "between tokens");
    }
}

/// Returns a plan with one stage of `blocks` blocks that have weights of 50 MB each. The copies of the
/// segments `streamed` take `copied` times as long as a decode step.
fn streaming(blocks: u32, streamed: std::ops::RangeInclusive<u32>, copied: f64) -> Planned {
    const WEIGHT_BYTES: u64 = 50_000_000;
    let mut planned = Planned::new(&[blocks]);
    for (at, segment) in planned.segments.iter_mut().enumerate() {
        let weights = (1..=blocks as usize).contains(&at).then_some(WEIGHT_BYTES);
        let tensor = |resident_bytes| SegmentTensor::new(format!("weight {at}"), resident_bytes);
        segment.tensors.extend(weights.map(tensor));
    }
    planned.plan.stages[0].streamed = streamed.collect();
    let bytes = WEIGHT_BYTES * planned.plan.stages[0].streamed.len() as u64;
    let rate = bytes as f64 / (copied * planned.stages_us(1, 1, 60.0)) * 1e6;
    planned.devices[0].host_bandwidth_bytes_per_s = Figure::assumed(rate);
    planned.devices[0].host_latency_us = Figure::assumed(0.0);
    planned
}

#[test]
fn more_arenas_save_as_much_time_as_the_cost_model_predicts() {
    let mut times_us = Vec::new();
    for arenas in [None, Some(3), Some(4), Some(6)] {
        let mut planned = streaming(30, 19..=30, 1.0);
        planned.plan.stages[0].arenas = arenas;
        let (sizes, computed_us) = (RunSizes::new(&planned.segments), planned.stages_us(1, 1, 60.0));
        let parts = planned.plan.stages[0].queue_parts(&sizes, &planned.devices[0], computed_us);
        let simulated_us = planned.run(&burst(1, 16, 80)).between_tokens_us.mean;
        assert_near(simulated_us, step_us(&parts), 0.02, &format!("{arenas:?} arenas"));
        times_us.push(simulated_us);
    }
    // With two arenas, ten of twelve copies start when the streamed segments compute.
    assert!(times_us.is_sorted_by(|more, fewer| more > fewer), "{times_us:?}");
    assert!(times_us[0] > 1.25 * times_us[3], "{times_us:?}");
}

#[test]
fn reads_from_the_file_take_as_long_as_the_cost_model_predicts() {
    let mut times_us = Vec::new();
    for (arenas, read) in [(None, 0), (None, 2), (None, 6), (Some(4), 6), (None, 12), (Some(4), 12)] {
        let mut planned = streaming(30, 19..=30, 0.5);
        let stage = &mut planned.plan.stages[0];
        stage.arenas = arenas;
        stage.from_file = stage.streamed.iter().copied().take(read).collect();
        let (sizes, computed_us) = (RunSizes::new(&planned.segments), planned.stages_us(1, 1, 60.0));
        let parts = planned.plan.stages[0].queue_parts(&sizes, &planned.devices[0], computed_us);
        let simulated_us = planned.run(&burst(1, 16, 80)).between_tokens_us.mean;
        assert_near(simulated_us, step_us(&parts), 0.02, &format!("{arenas:?} arenas, {read} read"));
        times_us.push(simulated_us);
    }
    assert!(times_us[5] > 2.0 * times_us[0], "{times_us:?}");
}

#[test]
fn a_prefill_stage_has_its_own_use() {
    let mut planned = Planned::new(&[4, 6]);
    let (device, streamed) = (planned.plan.stages[0].device.clone(), (5..=10).collect());
    let segments = "0-11=x".parse::<ragtag_planner::Split>().unwrap().parts[0].span;
    let stage = PlanStage { device, segments, streamed, ..planned.plan.stages[0].clone() };
    planned.plan.prefill_stage = Some(PrefillStage { stage, from_tokens: 64 });
    planned.plan.credits += 2;
    let summary = planned.run(&burst(1, 512, 20));
    let prefill = summary.prefill_stage.as_ref().expect("a prefill stage");
    assert_eq!((&prefill.device, prefill.prefill.micro_batches), (&summary.stages[0].device, 4));
    assert_eq!((prefill.prefill.rows, prefill.decode.micro_batches), (512, 0));
    assert!(prefill.utilisation > 0.1 && prefill.queue.max > 0, "{prefill:?}");
    for stage in &summary.stages {
        assert_eq!((stage.prefill.micro_batches, stage.decode.micro_batches), (0, 19));
        assert!(stage.queue.max <= 1, "the prompt waits for the prefill stage: {stage:?}");
    }
    let json = serde_json::to_string(&summary).unwrap();
    assert_eq!(serde_json::from_str::<SimSummary>(&json).unwrap(), summary);
    let short = planned.run(&burst(1, 63, 20));
    assert_eq!(short.prefill_stage.expect("a prefill stage").prefill.micro_batches, 0);
    assert_eq!(Planned::new(&[4, 6]).run(&burst(1, 16, 4)).prefill_stage, None);
}
