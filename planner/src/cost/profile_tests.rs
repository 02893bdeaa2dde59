//! Tests of measured profiles.

use super::*;
use ragtag_graph::{Segment, SegmentKind};
use ragtag_kernels::{Activations, KvType};
use std::sync::Arc;

fn segment_time(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> Figure {
    kind_time(&SegmentKey::from(segment), device, activations, batch)
}

fn segment(kind: SegmentKind) -> Segment {
    let attends = kind == SegmentKind::Block;
    Segment {
        kind,
        name: "segment".into(),
        tensors: Vec::new(),
        flops_per_row: 2_000_000,
        flops_per_row_position: if attends { 1_000 } else { 0 },
        read_bytes: 1_000_000,
        experts: None,
        read_bytes_per_row: 100,
        kv_bytes_per_position: if attends { 512 } else { 0 },
        value_bytes_per_position: if attends { 256 } else { 0 },
        window: None,
        state_bytes: [0; 2],
        scratch_bytes: 0,
        wide_scratch_bytes: 0,
        tensor_bytes: 0,
    }
}

fn sample(rows: u32, sequences: u32, positions: f64, median_us: f64) -> TimeSample {
    TimeSample { at: TimePoint { rows, sequences, positions }, median_us, spread_us: 1.0, count: 9 }
}

/// Returns a profile that contains a transformer block with times of at least 100 µs and an embedding, but no
/// head.
fn profile() -> Profile {
    let block = vec![
        sample(1, 1, 32.0, 100.0),
        sample(1, 1, 512.0, 148.0),
        sample(4, 4, 32.0, 160.0),
        sample(4, 4, 512.0, 352.0),
        sample(64, 1, 32.5, 900.0),
        sample(64, 1, 512.0, 2100.0),
        sample(128, 1, 64.5, 1700.0),
    ];
    let embedding = vec![sample(1, 1, 0.0, 2.0), sample(128, 128, 0.0, 40.0)];
    let kinds = vec![
        KindProfile::new((&segment(SegmentKind::Block)).into(), block),
        KindProfile::new((&segment(SegmentKind::Embedding)).into(), embedding),
    ];
    Profile {
        ragtag_profile: PROFILE_VERSION,
        identity: ProfileIdentity {
            device: "cpu:0".into(),
            name: "a processor".into(),
            driver: "none".into(),
            units: 1,
            together: 2,
            kernels: "k".into(),
            shape: "s".into(),
            activations: Activations::Int8,
            kv: KvType::F16,
        },
        measured_unix_s: 1_000,
        timed_for: TimedFor { chunk: 128, sequences: 4 },
        stage_us: 12.0,
        hand_over_us: 4.0,
        host_latency_us: 3.0,
        host_bandwidth_bytes_per_s: 5e9,
        token_return: TokenReturn { latency_us: 20.0, row_us: 7.0 },
        roofline: Roofline::fit(&kinds),
        kinds,
    }
}

fn device() -> DeviceFacts {
    DeviceFacts::assumed("cpu:0", ragtag_hal::AdapterKind::Cpu, 1, 1 << 30, FigureSource::User)
        .with_profile(Arc::new(profile()))
}

fn decode(rows: u32, positions: f64) -> BatchShape {
    BatchShape { rows, logit_rows: rows, sequences: rows, positions }
}

fn chunk(rows: u32, positions: f64) -> BatchShape {
    BatchShape { rows, logit_rows: 0, sequences: 1, positions }
}

fn block(batch: &BatchShape) -> Figure {
    segment_time(&segment(SegmentKind::Block), &device(), Activations::Int8, batch)
}

const fn measured(value: f64) -> Figure {
    Figure { value, source: FigureSource::Measured }
}

const fn fitted(value: f64) -> Figure {
    Figure { value, source: FigureSource::Fitted }
}

#[test]
fn a_measured_point_has_its_time() {
    assert_eq!(block(&decode(1, 32.0)), measured(100.0));
    assert_eq!(block(&decode(4, 512.0)), measured(352.0));
    assert_eq!(block(&chunk(64, 32.5)), measured(900.0));
    assert_eq!(block(&chunk(1, 512.0)), measured(148.0));
    // Without attention, the time does not depend on positions or sequences.
    let embedding =
        |batch| segment_time(&segment(SegmentKind::Embedding), &device(), Activations::Int8, &batch);
    assert_eq!(embedding(chunk(128, 300.0)), measured(40.0));
    assert_eq!(embedding(decode(1, 7.0)), measured(2.0));
}

#[test]
fn times_are_interpolated_and_extrapolated_linearly() {
    assert_eq!(block(&decode(1, 272.0)), fitted(124.0));
    assert_eq!(block(&decode(2, 32.0)), fitted(120.0));
    assert_eq!(block(&decode(2, 512.0)), fitted(216.0));
    assert_eq!(block(&decode(1, 992.0)), fitted(196.0));
    assert_eq!(block(&decode(1, 22.0)), fitted(99.0));
    // Decode is extrapolated with 20 µs per row, the slope between one row and four.
    assert_eq!(block(&decode(8, 32.0)), fitted(240.0));
    // 128 rows were measured at only one position count. They take twice as long per position as 64 rows.
    let slope_us = 2.0 * 1200.0 / (512.0 - 32.5);
    let time = block(&chunk(128, 900.0));
    assert!((time.value - (1700.0 + slope_us * (900.0 - 64.5))).abs() < 1e-6, "{time:?}");
    let alone = KindProfile::new((&segment(SegmentKind::Block)).into(), vec![sample(64, 1, 32.5, 900.0)]);
    let far = TimePoint { rows: 64, sequences: 1, positions: 800.0 };
    assert_eq!(alone.time(&far), Some(fitted(900.0)), "nothing tells what positions take");
    // Only single sequences were measured, so several sequences are assumed to take as long as a prefill
    // chunk.
    let samples = vec![sample(1, 1, 32.5, 100.0), sample(64, 1, 32.5, 900.0)];
    let one = KindProfile::new((&segment(SegmentKind::Block)).into(), samples);
    let many = TimePoint { rows: 64, sequences: 64, positions: 32.5 };
    assert_eq!(one.time(&many), Some(fitted(900.0)));
}

#[test]
fn times_grow_between_measured_points() {
    let grows = |times: Vec<f64>| times.windows(2).all(|pair| pair[0] <= pair[1]) && times[0] > 0.0;
    assert!(grows((1..=300).map(|rows| block(&decode(rows, 100.0)).value).collect()));
    assert!(grows((1..=300).map(|rows| block(&chunk(rows, 50.0)).value).collect()));
    assert!(grows((0..=3000).map(|positions| block(&decode(3, f64::from(positions))).value).collect()));
}

#[test]
fn unmeasured_segments_use_the_fitted_or_assumed_roofline() {
    let head = segment(SegmentKind::Head);
    let roofline = profile().roofline.unwrap();
    let time = segment_time(&head, &device(), Activations::Int8, &decode(1, 0.0));
    let moving_us = 1_000_100.0 / roofline.bandwidth_bytes_per_s * 1e6;
    let computing_us = 2e6 / roofline.flops_per_s * 1e6;
    assert_eq!(time, fitted(roofline.launch_us + moving_us.max(computing_us)));
    // The operation rate of the other activation type was not measured.
    let many = segment_time(&head, &device(), Activations::F32, &decode(100, 0.0));
    assert_eq!(many.source, FigureSource::Assumed);
    assert_eq!(segment_time(&head, &device(), Activations::Int8, &chunk(4, 0.0)), measured(0.0));
}

#[test]
fn a_launch_takes_no_longer_than_the_shortest_segment_nor_than_is_usual() {
    let facts =
        || DeviceFacts::assumed("cpu:0", ragtag_hal::AdapterKind::Cpu, 1, 1 << 30, FigureSource::User);
    let with = |launch_us: f64| {
        let mut profile = profile();
        profile.roofline.as_mut().unwrap().launch_us = launch_us;
        facts().with_profile(Arc::new(profile)).launch_us
    };
    assert_eq!(with(7.0), fitted(7.0));
    // Only large segments were measured.
    assert_eq!(with(4000.0), fitted(facts().launch_us.value));
}

#[test]
fn no_measured_time_is_below_the_roofline() {
    let profile = profile();
    let roofline = profile.roofline.unwrap();
    for kind in &profile.kinds {
        for sample in &kind.samples {
            let work = kind.key.work(&sample.at);
            let moving_us = work.bytes / roofline.bandwidth_bytes_per_s * 1e6;
            let computing_us = work.flops / roofline.flops_per_s * 1e6;
            let bound = moving_us.max(computing_us);
            assert!(bound <= sample.median_us * (1.0 + 1e-9), "{sample:?}: {bound}");
        }
    }
}

#[test]
fn the_overheads_are_those_of_the_profile() {
    let device = device();
    assert_eq!(device.stage_us, measured(12.0));
    assert_eq!(device.hand_over_us, measured(4.0));
    assert_eq!(device.token_return(4, 1000), measured(48.0));
    assert_eq!((device.host_latency_us, device.host_bandwidth_bytes_per_s), (measured(3.0), measured(5e9)));
    assert_eq!(device.nonsense(), None);
    let plain = DeviceFacts::assumed("cpu:1", ragtag_hal::AdapterKind::Cpu, 1, 1 << 30, FigureSource::User);
    assert_eq!(plain.token_return(1, 8_000_000), Figure::assumed(2.0 + 1000.0));
}

#[test]
fn invalid_profiles_are_named() {
    let json = |profile: &Profile| serde_json::to_string(profile).unwrap();
    assert_eq!(Profile::from_json(&json(&profile())).unwrap(), profile());
    let with = |change: &dyn Fn(&mut Profile)| {
        let mut changed = profile();
        change(&mut changed);
        Profile::from_json(&json(&changed)).expect_err("invalid").to_string()
    };
    assert!(with(&|p| p.ragtag_profile = 3).contains("version 3"));
    assert!(with(&|p| p.stage_us = -1.0).contains("stage_us"));
    assert!(with(&|p| p.hand_over_us = f64::MAX).contains("hand_over_us"));
    assert!(with(&|p| p.host_bandwidth_bytes_per_s = 0.0).contains("host_bandwidth_bytes_per_s"));
    assert!(with(&|p| p.kinds[1].samples[0].median_us = 1e300).contains("kinds[1].samples[0].median_us"));
    assert!(with(&|p| p.kinds[0].samples[2].at.rows = 0).contains("kinds[0].samples[2].at"));
    assert!(with(&|p| p.kinds[0].samples.reverse()).contains("order"));
    assert!(with(&|p| p.kinds[0].samples[1] = p.kinds[0].samples[0]).contains("order"));
    // A line through both samples would be too steep.
    let steep = with(&|p| {
        let [first, second, ..] = &mut p.kinds[0].samples[..] else { panic!("two samples") };
        second.at = TimePoint { positions: first.at.positions + 1e-6, ..first.at };
    });
    assert!(steep.contains("kinds[0].samples (their order)"), "{steep}");
    let more = json(&profile()).replacen("\"stage_us\"", "\"stages_us\":1,\"stage_us\"", 1);
    assert!(Profile::from_json(&more).unwrap_err().to_string().contains("stages_us"));
    assert!(Profile::from_json("{").is_err());
}

#[test]
fn equal_devices_have_the_mean_of_their_profiles() {
    let (mut first, mut second) = (profile(), profile());
    second.stage_us = 14.0;
    second.kinds[0].samples[0].median_us = 110.0;
    first.kinds[1].samples.remove(1);
    let mean = Profile::mean(&[&first, &second]).unwrap();
    assert_eq!(mean.stage_us, 13.0);
    assert_eq!((mean.kinds[0].samples[0].median_us, mean.kinds[0].samples[0].count), (105.0, 18));
    assert_eq!(mean.kinds[1].samples[1].median_us, 40.0, "one of them has it");
    assert_eq!(Profile::mean(&[&first]).unwrap().kinds, first.kinds);
    assert!(Profile::mean(&[]).is_none());
}

#[test]
fn merged_profiles_prefer_newer_samples() {
    let (mut new, old) = (profile(), profile());
    let key = new.kinds[0].key;
    new.kinds.truncate(1);
    new.kinds[0] = KindProfile::new(key, vec![sample(1, 1, 32.0, 90.0), sample(2, 2, 32.0, 95.0)]);
    new.merge(&old);
    let time = |rows, sequences, positions| new.kinds[0].time(&TimePoint { rows, sequences, positions });
    assert_eq!(time(1, 1, 32.0), Some(measured(90.0)));
    assert_eq!(time(2, 2, 32.0), Some(measured(95.0)));
    assert_eq!(time(4, 4, 512.0), Some(measured(352.0)));
    assert_eq!(new.kinds[1], old.kinds[1]);
    assert!(new.has(&key, &TimePoint { rows: 2, sequences: 2, positions: 32.0 }));
    assert!(!old.has(&key, &TimePoint { rows: 2, sequences: 2, positions: 32.0 }));
}

#[test]
fn samples_beyond_the_window_are_one_point() {
    let windowed = Segment { window: Some(64), ..segment(SegmentKind::Block) };
    let key = SegmentKey::from(&windowed);
    assert_ne!(key, SegmentKey::from(&segment(SegmentKind::Block)));
    let at = |positions| key.point(&BatchShape { rows: 1, logit_rows: 1, sequences: 1, positions });
    let timed = [(32.0, 100.0), (512.0, 116.0), (4096.0, 118.0)];
    let timed = timed.map(|(positions, us)| TimeSample { at: at(positions), ..sample(1, 1, 0.0, us) });
    let kind = KindProfile::new(key, timed.to_vec());
    assert_eq!(kind.samples.len(), 2);
    let time = |positions| kind.time(&at(positions)).expect("measured").value;
    assert_eq!([32.0, 48.0, 64.0, 1e5].map(time), [100.0, 108.0, 116.0, 116.0]);
    let mut profile = profile();
    profile.kinds.push(kind);
    let json = serde_json::to_string(&profile).expect("JSON");
    assert_eq!(Profile::from_json(&json).expect("a profile"), profile);
    assert_eq!(json.matches("window").count(), 1, "{json}");
}

/// Half a block takes its part of the measured block's time, whatever its own experts read.
#[test]
fn halves_share_the_time_of_their_block() {
    let experts = ragtag_graph::ExpertReads { bytes: 8_000_000, count: 8, used: 2 };
    let whole = Segment { experts: Some(experts), ..segment(SegmentKind::Block) };
    let attention = Segment {
        kind: SegmentKind::Attention,
        read_bytes: 1_000_000,
        experts: None,
        flops_per_row: 500_000,
        read_bytes_per_row: 50,
        ..whole.clone()
    };
    let feed_forward = Segment {
        kind: SegmentKind::FeedForward,
        read_bytes: 0,
        flops_per_row: 1_500_000,
        flops_per_row_position: 0,
        read_bytes_per_row: 50,
        kv_bytes_per_position: 0,
        ..whole.clone()
    };
    let samples = vec![sample(1, 1, 32.0, 100.0), sample(64, 64, 32.0, 900.0)];
    let kinds = vec![KindProfile::new((&whole).into(), samples)];
    let roofline = Some(Roofline { bandwidth_bytes_per_s: 1e11, flops_per_s: 1e13, launch_us: 1.0 });
    let profile = Profile { kinds, roofline, ..profile() };
    for rows in [1, 64] {
        let batch = BatchShape { rows, logit_rows: 0, sequences: rows, positions: 32.0 };
        let us =
            |segment: &Segment| profile.time(&segment.into(), &batch).expect("a half of the block").value;
        let (attention_us, feed_forward_us) = (us(&attention), us(&feed_forward));
        assert!((attention_us + feed_forward_us - us(&whole)).abs() < 1e-6);
        // One row reads 2 MB of experts, beside 1 MB of attention; all rows read all 8 MB.
        let share = if rows == 1 { 2.0 / 3.0 } else { 8.0 / 9.0 };
        assert!((feed_forward_us / us(&whole) - share).abs() < 0.12, "{rows} rows: {feed_forward_us}");
    }
    let other = Segment { window: Some(16), ..attention };
    assert!(
        profile
            .time(&(&other).into(), &BatchShape { rows: 1, logit_rows: 0, sequences: 1, positions: 1.0 })
            .is_none()
    );
}
