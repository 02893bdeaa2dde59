//! Tests of comparisons. The runs are synthetic.

use super::*;
use crate::trace::SizeReport;
use ragtag_graph::SegmentKind;
use ragtag_hal::AdapterKind;
use ragtag_planner::cost::{Figure, FigureSource, LinkFacts};
use ragtag_planner::plan::{PlanStage, PrefillStage};
use ragtag_planner::split::Span;

fn segment(kind: SegmentKind) -> Segment {
    Segment {
        kind,
        name: "segment".into(),
        tensors: Vec::new(),
        flops_per_row: 2_000_000,
        flops_per_row_position: 0,
        read_bytes: 1_000_000,
        experts: None,
        read_bytes_per_row: 0,
        kv_bytes_per_position: 0,
        value_bytes_per_position: 0,
        window: None,
        state_bytes: [0; 2],
        scratch_bytes: 4096,
        wide_scratch_bytes: 4096,
        tensor_bytes: 4096,
    }
}

fn segments() -> Vec<Segment> {
    [SegmentKind::Embedding, SegmentKind::Block, SegmentKind::Block, SegmentKind::Head].map(segment).into()
}

/// Returns a device on which a segment takes 10 µs, plus 1000 µs or 500 µs per row, whichever is larger.
fn device(label: &str) -> DeviceFacts {
    DeviceFacts {
        bandwidth_bytes_per_s: Figure::assumed(1e9),
        exact_flops_per_s: Figure::assumed(1e9),
        fast_flops_per_s: Figure::assumed(4e9),
        launch_us: Figure::assumed(10.0),
        stage_us: Figure::assumed(5.0),
        hand_over_us: Figure::assumed(0.0),
        host_latency_us: Figure::assumed(2.0),
        host_bandwidth_bytes_per_s: Figure::assumed(1e9),
        ..DeviceFacts::assumed(label, AdapterKind::Cpu, 1, 1 << 30, FigureSource::User)
    }
}

fn plan() -> Plan {
    let plan = crate::made_up::plan("0-1=cpu:0,2-3=cpu:1");
    Plan { context: 64, sequences: 4, chunk: 8, decode_rows: 2, decode_groups: 2, ..plan }
}

/// Inputs of a comparison.
struct Run {
    plan: Plan,
    segments: Vec<Segment>,
    devices: Vec<DeviceFacts>,
    links: Links,
}

impl Run {
    fn new() -> Self {
        let devices = vec![device("cpu:0"), device("cpu:1")];
        Self { plan: plan(), segments: segments(), devices, links: Links::default() }
    }

    fn comparand(&self) -> Comparand<'_> {
        let Self { plan, segments, devices, links } = self;
        Comparand { plan, segments, row_bytes: 100, return_row_bytes: 1000, devices, links }
    }

    fn alike(&self, comparison: &Comparison) -> Alike {
        Alike::of(comparison, &self.devices)
    }

    fn compare(&self, stats: &PipelineStats) -> Comparison {
        Comparison::new(&self.comparand(), stats)
    }
}

/// Returns a report of `count` micro-batches of one size that each take `each_us`, after a warm-up
/// micro-batch that `warm` does not count.
fn size(decode: bool, count: u64, rows: u64, logit_rows: u64, each_us: u64) -> SizeReport {
    let sequences = if decode { rows } else { 1 };
    let computed = |count: u64| Computed {
        micro_batches: count,
        rows: count * rows,
        sequences: count * sequences,
        positions: 0,
        logit_rows: count * logit_rows,
        with_logits: if logit_rows > 0 { count } else { 0 },
        busy_ns: count * each_us * 1000,
        busy_us2: (count * each_us).saturating_mul(each_us),
    };
    let (computed, warm) = (computed(count + 1), computed(count));
    SizeReport { decode, rows: (rows as u32).next_power_of_two(), computed, warm }
}

fn report(sizes: &[SizeReport]) -> StageReport {
    let sum = |decode: bool| {
        sizes.iter().filter(|s| s.decode == decode).fold(Computed::default(), |sum, size| Computed {
            micro_batches: sum.micro_batches + size.computed.micro_batches,
            rows: sum.rows + size.computed.rows,
            sequences: sum.sequences + size.computed.sequences,
            positions: sum.positions + size.computed.positions,
            logit_rows: sum.logit_rows + size.computed.logit_rows,
            with_logits: sum.with_logits + size.computed.with_logits,
            busy_ns: sum.busy_ns.saturating_add(size.computed.busy_ns),
            busy_us2: 0,
        })
    };
    StageReport { decode: sum(true), prefill: sum(false), sizes: sizes.into(), ..StageReport::default() }
}

fn crossed(crossings: u64, bytes: u64, us: u64) -> Crossed {
    Crossed { crossings, bytes: crossings * bytes, busy_ns: crossings * us * 1000, untimed: 0 }
}

fn stats(stages: Vec<StageReport>) -> PipelineStats {
    PipelineStats { stages, ..PipelineStats::default() }
}

#[test]
fn predictions_are_made_per_size() {
    // Each of the two segments takes 10 + 1000 µs for up to two rows and 10 + 4000 µs for eight. The stage
    // takes 5 µs.
    let chunks = [size(false, 3, 8, 0, 8025), size(false, 1, 1, 0, 2025), size(true, 7, 2, 2, 2025)];
    // Of four prefill micro-batches, only one runs the head, for one row.
    let last = [size(false, 3, 8, 0, 4015), size(false, 1, 1, 1, 2025), size(true, 7, 2, 2, 2025)];
    let comparison = Run::new().compare(&stats(vec![report(&chunks), report(&last)]));
    assert_eq!(comparison.parts.len(), 4);
    for part in &comparison.parts {
        assert!(part.deviation.abs() < 1e-9 && part.finding.is_none(), "{part:?}");
    }
    let prefill = comparison.part(Place::Stage, 0, Phase::Prefill).unwrap();
    assert_eq!((prefill.micro_batches, prefill.rows), (4, 25.0 / 4.0));
    assert!((prefill.parts.overhead_us - 25.0).abs() < 1e-9);
    assert!(
        (prefill.parts.computing_us - 6000.0).abs() < 1e-9 && (prefill.parts.moving_us - 500.0).abs() < 1e-9
    );
}

#[test]
fn averages_lie_between_whole_micro_batches() {
    // 2.5 rows take the average of two rows (1000 µs per segment) and three rows (1500 µs).
    let mut uneven = size(true, 2, 2, 0, 0);
    uneven.warm.rows = 5;
    uneven.warm.busy_ns = 2 * 2_525_000;
    let comparison = Run::new().compare(&stats(vec![report(&[uneven])]));
    assert!(comparison.parts[0].deviation.abs() < 1e-9, "{:?}", comparison.parts[0]);
}

#[test]
fn findings_name_the_wrong_assumption() {
    let run = Run::new();
    let slow = [report(&[size(true, 4, 1, 0, 4050), size(false, 4, 8, 0, 12037)]), report(&[])];
    let comparison = run.compare(&stats(slow.into()));
    let findings = comparison.findings();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert_eq!(
        findings[0],
        "stage 0 on cpu:0, decode ×2.0: bandwidth was 500.0 MB/s in the run, 1.0 GB/s assumed"
    );
    assert!(
        findings[1]
            .ends_with("+50 %: rate with int8 activations was 2.7 GFLOP/s in the run, 4.0 GFLOP/s assumed"),
        "{findings:?}"
    );

    let mut idle = Run::new();
    idle.devices.iter_mut().for_each(|device| device.launch_us = Figure::assumed(5000.0));
    let quick = idle.compare(&stats(vec![report(&[size(true, 1, 1, 0, 6002)])]));
    let finding = quick.findings().join("; ");
    assert!(
        finding.contains("decode ×0.") && finding.contains(": launch overhead per segment was 2"),
        "{finding}"
    );
}

#[test]
fn edges_have_latency_and_bandwidth() {
    let mut run = Run::new();
    let link = LinkFacts { bandwidth_bytes_per_s: Figure::assumed(1e9), ..LinkFacts::assumed() };
    run.links.known.push(("cpu:0".into(), "cpu:1".into(), link));
    let edge = EdgeReport { decode: crossed(10, 1000, 84), prefill: crossed(5, 1_000_000, 4020) };
    let token_return = EdgeReport { decode: crossed(10, 2000, 4), ..EdgeReport::default() };
    let comparison =
        run.compare(&PipelineStats { edges: vec![edge], token_return, ..PipelineStats::default() });
    assert_eq!(
        comparison.findings(),
        [
            "the link cpu:0 -> cpu:1, decode ×4.0: latency was 83.0 µs in the run, 20.0 µs assumed",
            "the link cpu:0 -> cpu:1, prefill ×3.9: bandwidth was 253.7 MB/s in the run, 1.0 GB/s assumed"
        ]
    );
    let back = comparison.part(Place::TokenReturn, 0, Phase::Decode).unwrap();
    assert_eq!((back.device.as_str(), back.to.as_deref()), ("cpu:1", Some("cpu:0")));
    assert!((back.predicted_us - 4.0).abs() < 1e-9 && back.deviation.abs() < 1e-9);

    // The token return above took as long as predicted. This one takes 100 µs longer, and the correction adds
    // the difference to the host latency of every device.
    let slow_return = EdgeReport { decode: crossed(10, 2000, 106), ..EdgeReport::default() };
    let slow_return = run.compare(&PipelineStats { token_return: slow_return, ..PipelineStats::default() });
    let (devices, _) = facts_from(&slow_return, &run.alike(&slow_return), &run.devices, &run.links);
    assert!(devices.iter().all(|device| (device.host_latency_us.value - 104.0).abs() < 1e-9));

    // Transfers of two sizes separate latency from bandwidth: 84 µs for 1 kB and 4020 µs for 1 MB.
    let (_, links) = facts_from(&comparison, &run.alike(&comparison), &run.devices, &run.links);
    let facts = links.between("cpu:0", "cpu:1");
    for (bytes, us) in [(1000, 84.0), (1_000_000, 4020.0)] {
        assert!((facts.time_us(bytes) - us).abs() < 1e-6);
    }
    assert_eq!(facts.latency_us.source, FigureSource::Fitted);
    assert_eq!((links.known.len(), links.between("cpu:1", "cpu:0")), (1, &LinkFacts::assumed()));
}

#[test]
fn corrected_facts_predict_what_was_measured() {
    let mut run = Run::new();
    run.devices.extend([device("cpu:2"), device("cuda:0")]);
    let before = run.devices.clone();
    let measured = stats(vec![
        report(&[size(true, 9, 1, 0, 900), size(false, 4, 8, 0, 4000)]),
        report(&[size(true, 9, 1, 1, 8100), size(false, 4, 8, 0, 16000)]),
    ]);
    let alike = run.alike(&run.compare(&measured));
    for _ in 0..8 {
        (run.devices, run.links) = facts_from(&run.compare(&measured), &alike, &run.devices, &run.links);
    }
    let comparison = run.compare(&measured);
    assert!(comparison.largest_stage_deviation() < 0.01, "{comparison:#?}");
    assert_eq!(run.devices[0].bandwidth_bytes_per_s.source, FigureSource::Fitted);
    assert!(run.devices.iter().all(|device| device.nonsense().is_none()));
    // Assumed values of an unused device get the corrections of the other devices of its API. Devices of
    // other APIs do not change.
    let bandwidth = |at: usize| run.devices[at].bandwidth_bytes_per_s.value;
    assert!((bandwidth(2) / (bandwidth(0) * bandwidth(1)).sqrt() - 1.0).abs() < 1e-9);
    assert_eq!(run.devices[2].bandwidth_bytes_per_s.source, FigureSource::Assumed);
    assert_eq!(run.devices[3], before[3]);
    // Measured values do not change.
    run.devices[2].bandwidth_bytes_per_s = Figure { value: 7e9, source: FigureSource::Measured };
    let (devices, _) = facts_from(&run.compare(&measured), &alike, &run.devices, &run.links);
    assert_eq!(devices[2].bandwidth_bytes_per_s, run.devices[2].bandwidth_bytes_per_s);
}

#[test]
fn absurd_clocks_leave_possible_facts() {
    let run = Run::new();
    let absurd = [size(true, 1, 1, 1, u64::MAX / 2000), size(false, 1, 8, 1, 0)];
    let edge = EdgeReport { decode: crossed(1, 0, 0), prefill: crossed(1, u64::MAX, u64::MAX / 1000) };
    let stages = vec![report(&absurd), report(&absurd)];
    let comparison = run.compare(&PipelineStats { stages, edges: vec![edge], ..PipelineStats::default() });
    let (devices, links) = facts_from(&comparison, &run.alike(&comparison), &run.devices, &run.links);
    assert!(devices.iter().all(|device| device.nonsense().is_none()));
    assert!(links.known.iter().all(|(_, _, link)| link.nonsense().is_none()));
    // A plan with unknown devices is not compared.
    let unknown = Run { devices: Vec::new(), ..Run::new() };
    assert_eq!(unknown.compare(&stats(vec![report(&[])])), Comparison::default());
}

#[test]
fn a_prefill_stage_is_compared_and_predicts_long_prompts() {
    let mut run = Run::new();
    let stage = PlanStage {
        device: "cpu:1".into(),
        segments: Span::new(0, 3).unwrap(),
        ..run.plan.stages[1].clone()
    };
    run.plan.prefill_stage = Some(PrefillStage { stage, from_tokens: 8 });
    // The head has nothing to do for rows without logits.
    let both = || vec![report(&[size(true, 4, 1, 0, 2020)]), report(&[size(true, 4, 1, 1, 2020)])];
    let stages = [both(), vec![report(&[size(false, 4, 8, 0, 24_070)])]].concat();
    let mut comparison = run.compare(&stats(stages));
    let part = comparison.part(Place::Stage, 2, Phase::Prefill).expect("the prefill stage");
    assert_eq!((part.stage_name().as_str(), part.micro_batches), ("prefill stage on cpu:1", 4));
    let expected_us = 5.0 + 3.0 * (10.0 + 8.0 * 500.0);
    assert!((part.predicted_us - expected_us).abs() < 1.0, "{part:?}");
    assert!(part.finding.as_deref().unwrap().starts_with("prefill stage on cpu:1, prefill"), "{part:?}");
    assert!(!comparison.part(Place::Stage, 0, Phase::Decode).unwrap().is_prefill_stage);

    // Two chunks of 8 rows on the prefill stage, which also computes the row of logits.
    let rate = |comparison: &mut Comparison, tokens| {
        comparison.add_rate(&run.comparand(), &Burst::Prompts { tokens, sequences: 1 }, 100.0);
        comparison.rates.last().unwrap().predicted_tokens_per_s
    };
    let (head_us, return_us) = (1010.0, 2.0 + 1.0);
    let long = rate(&mut comparison, 16);
    let expected = 16.0 / (2.0 * expected_us + head_us + return_us) * 1e6;
    assert!((long - expected).abs() < 1e-6 * long, "{long}");
    // A short prompt passes through the other stages.
    let short = rate(&mut comparison, 4);
    run.plan.prefill_stage = None;
    let mut without = run.compare(&stats(both()));
    without.add_rate(&run.comparand(), &Burst::Prompts { tokens: 4, sequences: 1 }, 100.0);
    assert_eq!(short, without.rates[0].predicted_tokens_per_s);
}

#[test]
fn rates_are_predicted_from_parts_and_explained() {
    let run = Run::new();
    let slow = stats(vec![report(&[size(true, 4, 2, 0, 2025)]), report(&[size(true, 4, 2, 2, 6075)])]);
    let mut comparison = run.compare(&slow);
    // A stage takes 2025 µs for two rows, and the edge takes about 20 µs. Two groups of two sequences are in
    // flight. The token return takes 2 + 2 µs.
    let burst = Burst::Generations { prompt: 0, tokens: 64, sequences: 4 };
    comparison.add_rate(&run.comparand(), &burst, 330.0);
    let rate = &comparison.rates[0];
    let round_us = 2025.0 * 2.0 + LinkFacts::assumed().time_us(200) + 4.0;
    assert!((rate.predicted_tokens_per_s - 4.0 / round_us * 1e6).abs() < 1e-6, "{rate:?}");
    let finding = rate.finding.as_deref().unwrap();
    assert!(finding.starts_with("tg64 ×0.34: mainly because of stage 1 on cpu:1, decode ×3.0"), "{finding}");

    // 20 tokens form chunks of 8, 8 and 4 rows. The slowest part takes 8025 µs for 8 rows and 4025 µs for 4
    // rows. The token return takes 3 µs for one row.
    let prompts = Burst::Prompts { tokens: 10, sequences: 2 };
    comparison.add_rate(&run.comparand(), &prompts, 100.0);
    let rate = &comparison.rates[1];
    let first_us = 8025.0 + 4015.0 + LinkFacts::assumed().time_us(800);
    let busy_us = first_us + 8025.0 + 4025.0 + 1010.0 + 3.0;
    assert!((rate.predicted_tokens_per_s - 20.0 / busy_us * 1e6).abs() < 1e-6, "{rate:?}");
    assert!(rate.finding.as_deref().unwrap().contains("waited for each other"));

    let mut full = stats(vec![report(&[size(false, 4, 8, 0, 8025)])]);
    full.stages[0].counts.micro_batches = 4;
    full.stages[0].counts.waited_for_slot_ns = 4 * 2_000_000;
    let mut comparison = run.compare(&full);
    comparison.add_rate(&run.comparand(), &prompts, 100.0);
    let finding = comparison.rates[0].finding.clone().unwrap();
    assert!(finding.ends_with("micro-batches waited 2000.0 µs each for a slot of stage 0"), "{finding}");

    // The rate equals the prediction, so there is no finding.
    let mut comparison = run.compare(&slow);
    comparison.add_rate(&run.comparand(), &prompts, 20.0 / busy_us * 1e6);
    assert_eq!(comparison.rates[0].finding, None);
    let uneven = stats(vec![report(&[size(true, 4, 1, 0, 2025)]), report(&[size(true, 4, 1, 1, 2025)])]);
    let mut comparison = run.compare(&uneven);
    comparison.add_rate(&run.comparand(), &burst, 330.0);
    let finding = comparison.rates[0].finding.clone().unwrap();
    assert!(finding.contains("uneven, with 1.0 rows on average instead of 2"), "{finding}");
}

#[test]
fn compilation_is_not_compared() {
    let run = Run::new();
    // The first micro-batch includes one second of compilation. The others are as predicted.
    let compiled = |mut size: SizeReport| {
        size.computed.busy_ns += 1_000_000_000;
        size
    };
    let first = report(&[compiled(size(false, 3, 8, 0, 8025)), compiled(size(true, 7, 2, 0, 2025))]);
    let mut comparison = run.compare(&stats(vec![first.clone()]));
    assert_eq!((comparison.parts.len(), comparison.findings().len()), (2, 0), "{comparison:?}");
    assert!((comparison.prefill_warm_up_us - 1e6).abs() < 1.0, "{comparison:?}");
    let prompts = Burst::Prompts { tokens: 10, sequences: 2 };
    comparison.add_rate(&run.comparand(), &prompts, 15.0);
    let finding = comparison.rates[0].finding.clone().unwrap();
    assert!(
        finding.contains("because the first micro-batches of each size took 1000.0 ms longer"),
        "{finding}"
    );
    // A size that occurs only once is not compared.
    let alone = run.compare(&stats(vec![report(&[compiled(size(true, 0, 2, 0, 2025))])]));
    assert!(alone.parts.is_empty() && alone.decode_warm_up_us > 9e5, "{alone:?}");

    // Work before the earlier report does not count.
    let more = |count: u64, busy_ns: u64| {
        let mut more = first.clone();
        more.sizes.truncate(1);
        let SizeReport { computed, warm, .. } = &mut more.sizes[0];
        for computed in [computed, warm] {
            computed.micro_batches += count;
            computed.rows += 8 * count;
            computed.sequences += count;
            computed.busy_ns += count * busy_ns;
        }
        stats(vec![more])
    };
    let later = run.compare(&since(&more(0, 0), &more(5, 16_050_000)));
    let part = later.part(Place::Stage, 0, Phase::Prefill).unwrap();
    assert_eq!((later.parts.len(), part.micro_batches, part.measured_us), (1, 5, 16050.0));
    assert_eq!(later.prefill_warm_up_us, 0.0);
}

#[test]
fn noise_does_not_separate_equal_devices() {
    let run = Run::new();
    // `count` steps take `each_us` on average. Half of them are longer by `share`, and half are shorter by
    // `share`.
    let spread = |count: u64, each_us: u64, share: f64| {
        let mut size = size(true, count, 2, 0, each_us);
        size.warm.busy_us2 = (size.warm.busy_us2 as f64 * (1.0 + share * share)) as u64;
        report(&[size])
    };
    let rates = |count: u64, apart: f64, share: f64| {
        let slow_us = (2025.0 * apart) as u64;
        let comparison = run.compare(&stats(vec![spread(count, 2025, share), spread(count, slow_us, share)]));
        let (devices, _) = facts_from(&comparison, &run.alike(&comparison), &run.devices, &run.links);
        let uncertainty = comparison.uncertainty();
        let rates: Vec<f64> = devices.iter().map(|device| device.bandwidth_bytes_per_s.value).collect();
        (rates[0] / rates[1], uncertainty)
    };
    for (count, apart, share) in [(4, 1.5, 0.01), (40, 1.5, 0.4), (1, 4.0, 0.0)] {
        let (ratio, uncertainty) = rates(count, apart, share);
        assert!((ratio - 1.0).abs() < 1e-9, "{count} steps {apart} times apart make a ratio of {ratio}");
        assert!(uncertainty < 0.6, "{uncertainty}");
    }
    // A persistent difference far beyond the spread is attributed to the device.
    for (count, apart, share) in [(40, 1.5, 0.05), (8, 4.0, 0.2)] {
        let (ratio, uncertainty) = rates(count, apart, share);
        assert!(ratio > 1.3, "{count} steps {apart} times apart make a ratio of {ratio}");
        assert!(uncertainty < 0.2, "{uncertainty}");
    }
    assert!(rates(40, 1.0, 0.4).1 > rates(400, 1.0, 0.4).1 * 3.0);
    assert!(run.compare(&stats(vec![report(&[])])).uncertainty().is_infinite());
    // Devices that differ in other values are corrected separately.
    let mut unlike = Run::new();
    unlike.devices[1].launch_us = Figure::assumed(11.0);
    let comparison = unlike.compare(&stats(vec![spread(4, 2025, 0.0), spread(4, 3037, 0.0)]));
    let (devices, _) = facts_from(&comparison, &unlike.alike(&comparison), &unlike.devices, &unlike.links);
    let [a, b] = [0, 1].map(|at: usize| devices[at].bandwidth_bytes_per_s.value);
    assert!(a / b > 1.3, "{a} {b}");
}

/// Checks that a device with several stages runs all of them for each chunk: eight chunks take 9 times the work
/// of a device if each device has one stage, and 8.5 times if the devices take turns with two stages each.
#[test]
fn devices_that_take_turns_run_all_their_stages_for_each_chunk() {
    let mut run = Run::new();
    run.segments = vec![segment(SegmentKind::Block); 4];
    (run.links.other.latency_us, run.links.other.bandwidth_bytes_per_s) =
        (Figure::assumed(0.0), Figure::assumed(1e15));
    let mut rate = |split: &str| {
        run.plan = Plan { context: 64, chunk: 8, ..crate::made_up::plan(split) };
        let model = model::Model::new(&run.comparand()).unwrap();
        model.tokens_per_s(&Burst::Prompts { tokens: 64, sequences: 1 })
    };
    let ratio = rate("0=cpu:0,1=cpu:1,2=cpu:0,3=cpu:1") / rate("0-1=cpu:0,2-3=cpu:1");
    assert!((ratio - 9.0 / 8.5).abs() < 0.01, "{ratio}");
}
