//! Tests of the cost model.

use super::*;
use ragtag_graph::segment::SegmentTensor;
use ragtag_graph::{Segment, SegmentKind, WireType};
use ragtag_hal::pool::class_bytes;
use ragtag_kernels::Activations;

fn segment(kind: SegmentKind, tensors: &[(&str, u64)]) -> Segment {
    Segment {
        kind,
        name: "segment".into(),
        tensors: tensors
            .iter()
            .map(|&(name, resident_bytes)| SegmentTensor::new(name, resident_bytes))
            .collect(),
        flops_per_row: 2_000_000,
        flops_per_row_position: 1_000,
        read_bytes: 1_000_000,
        experts: None,
        read_bytes_per_row: 100,
        kv_bytes_per_position: 512,
        value_bytes_per_position: 256,
        window: None,
        state_bytes: [0; 2],
        scratch_bytes: 4096,
        wide_scratch_bytes: 8192,
        tensor_bytes: 2048,
    }
}

fn device() -> DeviceFacts {
    DeviceFacts {
        label: "cpu:0".into(),
        memory_bytes: 1 << 30,
        memory_source: FigureSource::User,
        bandwidth_bytes_per_s: Figure::assumed(1e9),
        exact_flops_per_s: Figure::assumed(1e9),
        fast_flops_per_s: Figure::assumed(4e9),
        launch_us: Figure::assumed(10.0),
        stage_us: Figure::assumed(0.0),
        hand_over_us: Figure::assumed(0.0),
        host_latency_us: Figure::assumed(0.0),
        host_bandwidth_bytes_per_s: Figure::assumed(1e10),
        f16_products: false,
        buffers: BufferLimits::default(),
        in_host_memory: false,
        file_bytes_per_s: Figure::assumed(2e9),
        weight_sharing: WeightSharing::None,
        profile: None,
    }
}

#[test]
fn a_segment_takes_launch_plus_the_slower_of_moving_and_computing() {
    let block = segment(SegmentKind::Block, &[]);
    let batch = |rows, positions| BatchShape { rows, logit_rows: 1, sequences: 1, positions };
    let time = |activations, batch: BatchShape| segment_time_us(&block, &device(), activations, &batch);
    // One row: 1 000 100 bytes at 1000 bytes/µs, and 2 000 000 operations at 1000 (or 4000) per µs.
    assert_eq!(time(Activations::F32, batch(1, 0.0)), 10.0 + 2000.0);
    assert_eq!(time(Activations::Int8, batch(1, 0.0)), 10.0 + 1000.1);
    // Keys and values are read once per sequence. Operations are done for each row.
    assert!((time(Activations::Int8, batch(1, 100.0)) - (10.0 + 1051.3)).abs() < 1e-9);
    assert_eq!(time(Activations::F32, batch(8, 100.0)), 10.0 + 8.0 * 2100.0);
    assert_eq!(time(Activations::F32, batch(0, 100.0)), 0.0);
}

#[test]
fn halves_count_rows_as_blocks_and_launch_half_as_much() {
    let time = |kind, rows, logit_rows| {
        let batch = BatchShape { rows, logit_rows, sequences: 1, positions: 10.0 };
        segment_time_us(&segment(kind, &[]), &device(), Activations::F32, &batch)
    };
    for kind in [SegmentKind::Attention, SegmentKind::FeedForward] {
        for rows in [1, 7] {
            assert_eq!(time(kind, rows, 0) + 5.0, time(SegmentKind::Block, rows, 1));
        }
        assert_eq!(time(kind, 0, 1), 0.0);
    }
}

#[test]
fn rows_attend_to_at_most_the_window() {
    let full = segment(SegmentKind::Block, &[]);
    let windowed = Segment { window: Some(100), ..full.clone() };
    let time = |segment: &Segment, positions: f64| {
        let batch = BatchShape { rows: 8, logit_rows: 8, sequences: 8, positions };
        segment_time_us(segment, &device(), Activations::F32, &batch)
    };
    assert_eq!(time(&windowed, 40.0), time(&full, 40.0));
    assert_eq!(time(&windowed, 100_000.0), time(&full, 100.0));
    assert!(time(&full, 100_000.0) > 2.0 * time(&full, 100.0));
}

#[test]
fn the_head_costs_by_logit_rows() {
    let head = segment(SegmentKind::Head, &[]);
    let time = |rows, logit_rows| {
        let batch = BatchShape { rows, logit_rows, sequences: 1, positions: 0.0 };
        segment_time_us(&head, &device(), Activations::F32, &batch)
    };
    assert_eq!(time(128, 0), 0.0);
    assert_eq!(time(128, 1), time(1, 1));
    assert!(time(128, 8) > time(128, 1));
}

#[test]
fn a_shared_tensor_counts_once_in_a_stage() {
    let segments = [
        segment(SegmentKind::Embedding, &[("embedding", 1000)]),
        segment(SegmentKind::Block, &[("block", 10)]),
        segment(SegmentKind::Head, &[("norm", 1), ("embedding", 1000)]),
    ];
    let sizes = RunSizes::new(&segments);
    let shape = StageCapacity {
        context: 17,
        sequences: 3,
        kv_blocks: 6,
        rows: 4,
        window: None,
        state_bytes: 0,
        logit_rows: 2,
        slots: 2,
        row_bytes: 100,
        wire_type: WireType::F32,
        logit_row_bytes: 1000,
        sequence_frequencies: 0,
        verified: false,
    };
    let weights = |first, end| sizes.stage(first..end, Streamed::NONE, &shape, 0, &device()).weights;
    // 1000 bytes take 1024, and each small tensor takes 256.
    assert_eq!(weights(0, 3), 1024 + 256 + 256);
    assert_eq!(weights(0, 2), 1024 + 256);
    assert_eq!(weights(1, 3), 1024 + 256 + 256);
    assert_eq!(weights(2, 3), 1024 + 256);

    let stage = sizes.stage(1..3, Streamed::NONE, &shape, 77, &device());
    // 17 positions fill two blocks of 16. Each of the two segments has one buffer of keys and one of values.
    assert_eq!(stage.kv, 2 * 2 * class_bytes(256 * 3 * 32));
    assert_eq!(stage.scratch, 4096);
    let params = 4 * (4 + 3 * 4 + 2 + 3 * 2);
    assert!(params < 256);
    assert_eq!(stage.slots, 2 * (256 + 416 + 2048 + class_bytes(2 * 528)));
    assert_eq!(sizes.stage(0..2, Streamed::NONE, &shape, 0, &device()).slots, 2 * (256 + 416));
    assert_eq!(stage.total, stage.weights + stage.kv + stage.scratch + stage.slots + 77);
    assert_eq!(stage.available, 1 << 30);
    let wide = sizes.stage(1..3, Streamed::NONE, &shape, 77, &DeviceFacts { f16_products: true, ..device() });
    assert_eq!((wide.scratch, wide.total), (8192, stage.total + 4096));
}

#[test]
fn sizes_beyond_64_bits_saturate() {
    let mut huge = segment(SegmentKind::Block, &[("a", u64::MAX), ("b", u64::MAX)]);
    huge.kv_bytes_per_position = u64::MAX;
    let shape = StageCapacity {
        context: u32::MAX,
        sequences: u32::MAX,
        kv_blocks: u32::MAX,
        rows: u32::MAX,
        window: None,
        state_bytes: 0,
        logit_rows: u32::MAX,
        slots: u32::MAX,
        row_bytes: u64::MAX,
        wire_type: WireType::F16,
        logit_row_bytes: u64::MAX,
        sequence_frequencies: u32::MAX,
        verified: false,
    };
    let sizes = RunSizes::new(&[huge]);
    assert_eq!(sizes.kv_bytes(0, 1, &shape), u64::MAX);
}

#[test]
fn impossible_values_are_named() {
    assert_eq!(device().nonsense(), None);
    let with = |change: &dyn Fn(&mut DeviceFacts)| {
        let mut facts = device();
        change(&mut facts);
        facts.nonsense()
    };
    assert_eq!(with(&|d| d.bandwidth_bytes_per_s.value = f64::NAN), Some("bandwidth_bytes_per_s"));
    assert_eq!(with(&|d| d.exact_flops_per_s.value = 0.0), Some("exact_flops_per_s"));
    assert_eq!(with(&|d| d.fast_flops_per_s.value = f64::INFINITY), Some("fast_flops_per_s"));
    assert_eq!(with(&|d| d.launch_us.value = -1.0), Some("launch_us"));
    let mut link = LinkFacts::assumed();
    assert_eq!(link.nonsense(), None);
    link.latency_us.value = f64::NAN;
    assert_eq!(link.nonsense(), Some("latency_us"));
}

#[test]
fn copies_are_fitted_by_their_relative_errors() {
    let exact: Vec<_> = [4096, 65536, 1 << 20].map(|bytes| (bytes, 20.0 + bytes as f64 / 5e9 * 1e6)).into();
    let (latency_us, rate) = fit_copies(&exact);
    assert!((latency_us - 20.0).abs() < 1e-6 && (rate / 5e9 - 1.0).abs() < 1e-9, "{latency_us} {rate}");
    let link = LinkFacts::fitted(ragtag_transfer::Route::HOST_STAGED.into(), &exact);
    assert_eq!((link.nonsense(), link.latency_us.source), (None, FigureSource::Measured));
    // The result is a valid link even if larger copies take less time, or if there are no samples.
    for samples in [&[(100, 50.0), (1000, 40.0)][..], &[(100, 10.0), (1000, 200.0)], &[(100, 5.0)], &[]] {
        let link = LinkFacts::fitted(ragtag_transfer::Route::HOST_STAGED.into(), samples);
        assert_eq!(link.nonsense(), None, "{samples:?}: {link:?}");
    }
}

#[test]
fn rings_over_networks_hold_the_bytes_of_a_round_trip() {
    for (latency_us, rate, places) in
        [(50.0, 1.2e9, 4), (1000.0, 1.2e9, 4 + 9), (20_000.0, 1.2e8, 4 + 18), (1e5, 1e10, 64)]
    {
        let [latency_us, rate] = [latency_us, rate].map(Figure::assumed);
        let link = LinkFacts { latency_us, bandwidth_bytes_per_s: rate, ..LinkFacts::assumed() };
        assert_eq!(link.over_network().routes.places(), places, "{latency_us:?}, {rate:?}");
    }
}

#[test]
fn links_are_directed_and_others_assumed() {
    let mut fast = LinkFacts::assumed();
    fast.bandwidth_bytes_per_s = Figure { value: 60e9, source: FigureSource::Measured };
    let links = Links { known: vec![("a".into(), "b".into(), fast.clone())], ..Links::default() };
    assert_eq!(links.between("a", "b"), &fast);
    assert_eq!(links.between("b", "a"), &LinkFacts::assumed());
    assert_eq!(LinkFacts::assumed().time_us(6_000_000), 20.0 + 1000.0);
}
