//! Tests of the threaded pipeline on CPU devices, with a synthetic model.

#![allow(missing_docs)]

mod failures;
mod loading;
mod reading;
mod recovery;
mod remote;
mod requests;
#[path = "../support/mod.rs"]
mod support;

use loading::Spoilt;
use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_graph::StageResult;
use ragtag_graph::execution::Arenas;
use ragtag_hal::pool::class_bytes;
use ragtag_hal::{
    Backend, Checked, CopyFault, CopyFaultKind, Device, DeviceId, Error as DeviceError, Faults, FaultyCopies,
    LeakWatch, Leaks, Limits,
};
use ragtag_scheduler::core::{FinishReason, Finished, RunCounts, Sample, SequenceId};
use ragtag_scheduler::*;
use ragtag_transfer::{Route, Routes, SizedRoute};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use support::Model;

/// Time limit of a wait. It is far longer than any operation in these tests takes.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Greedy;

impl Sample for Greedy {
    fn sample(&mut self, logits: &[f32], _: &[u32]) -> std::result::Result<u32, String> {
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        best.map(|b| b as u32).ok_or_else(|| "no logits".into())
    }
}

/// Opens the CPU device at `index` of a CPU that is split into four devices.
fn open(index: usize, faults: &Faults) -> Checked {
    let backend = CpuBackend::new(CpuConfig { devices: 4, threads: Some(1), ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(index);
    let device = backend.open(&[(adapter, DeviceId(index as u16))], &Limits::default()).unwrap();
    Checked::with_faults(device.into_iter().next().unwrap(), faults.clone()).unwrap()
}

struct Setup {
    model: Model,
    devices: Vec<Faults>,
    /// Index of the device that runs each stage.
    hosts: Vec<usize>,
    options: PipelineOptions,
    /// Segments whose weights are streamed.
    streamed: Vec<usize>,
    /// Maximum number of arenas of each stage. 0 stands for the fewest.
    arenas: usize,
    /// Streamed segments whose weights are read for each micro-batch.
    from_file: Vec<usize>,
    /// Device of the prefill stage.
    prefill: Option<usize>,
    compute_timeout: Option<Duration>,
}

impl Setup {
    /// Returns a pipeline with one stage on each device.
    fn new(stages: usize) -> Self {
        Self::on(&(0..stages).collect::<Vec<_>>())
    }

    /// Returns a pipeline whose stages run on the devices in `hosts`.
    fn on(hosts: &[usize]) -> Self {
        let stages = hosts.len();
        let model = Model::default();
        let mut options = PipelineOptions::new(stages, 128, model.kv_blocks, 12);
        // Each micro-batch has several chunks, and no chunk is a whole number of rows.
        options.routes = vec![Route::HostStaged { chunk_bytes: 100, depth: 2 }.into(); stages - 1];
        let devices = vec![Faults::default(); hosts.iter().max().unwrap() + 1];
        let (hosts, streamed, from_file) = (hosts.into(), Vec::new(), Vec::new());
        let (arenas, prefill, compute_timeout) = Default::default();
        Self { model, devices, hosts, options, streamed, arenas, from_file, prefill, compute_timeout }
    }

    fn specs(&self) -> PipelineSpec {
        let (segments, stages) = (self.model.segments(), self.hosts.len());
        let cut = |stage: usize| segments * stage / stages;
        let spec = |(stage, &device): (usize, &usize)| {
            let range = cut(stage)..cut(stage + 1);
            let own = |segments: &[usize]| {
                segments.iter().copied().filter(|segment| range.contains(segment)).collect::<Vec<_>>()
            };
            let streamed = own(&self.streamed);
            StageSpec {
                device,
                compiled: self.model.compile(range.clone()),
                arenas: self.arenas_of(&streamed),
                from_file: own(&self.from_file),
                longest: None,
                compute_timeout: self.compute_timeout,
                streamed,
                weights: Box::new(self.model.weights(range)),
            }
        };
        let devices = self.devices.iter().enumerate();
        let stages: Vec<_> = self.hosts.iter().enumerate().map(spec).collect();
        let prefill = self.prefill.map(|device| {
            let elsewhere = stages.iter().filter(|stage| stage.device != device);
            let streamed = elsewhere.flat_map(|stage| stage.compiled.segments.clone());
            let is_layer = |segment: &usize| *segment > 0 && *segment + 1 < segments;
            let streamed: Vec<_> = streamed.filter(is_layer).collect();
            StageSpec {
                device,
                compiled: self.model.compile(0..segments),
                arenas: self.arenas_of(&streamed),
                streamed,
                from_file: Vec::new(),
                longest: None,
                compute_timeout: self.compute_timeout,
                weights: Box::new(self.model.weights(0..segments)),
            }
        });
        PipelineSpec {
            devices: devices
                .map(|(index, faults)| Box::new(open(index, faults)) as Box<dyn Device>)
                .collect(),
            stages,
            prefill,
            events: None,
            remote: ragtag_scheduler::remote::Remote::default(),
        }
    }

    fn arenas_of(&self, streamed: &[usize]) -> Option<usize> {
        let count = Arenas::at_most(streamed.len(), self.arenas).count();
        (self.arenas > 0 && !streamed.is_empty()).then_some(count)
    }

    /// Returns the devices and stages of the pipeline, and a leak watch for each device.
    fn watched(&self) -> (PipelineSpec, Vec<LeakWatch>) {
        let mut specs = self.specs();
        let watch = |(index, place): (usize, &mut Box<dyn Device>)| {
            let device = open(index, &self.devices[index]);
            let watch = device.leak_watch();
            *place = Box::new(device);
            watch
        };
        let watches = specs.devices.iter_mut().enumerate().map(watch).collect();
        (specs, watches)
    }

    fn start(&self) -> Result<Pipeline> {
        Pipeline::start(self.specs(), &self.options, |_| {})
    }
}

fn submit(pipeline: &Pipeline, prompt: &[u32], job: Job) -> (SequenceId, Receiver<Reply>) {
    let (send, replies) = channel();
    (pipeline.submit(Request::new(prompt, job, sink_of(send))), replies)
}

/// Returns a reply sink that sends to `replies`.
fn sink_of(replies: Sender<Reply>) -> impl FnMut(Reply) -> Flow {
    move |reply| {
        drop(replies.send(reply));
        Flow::Go
    }
}

fn generate(max_new_tokens: u32) -> Job {
    Job::generate(max_new_tokens, Greedy)
}

/// Receives all replies to a request. Fails the test if the request does not end in time.
fn all(replies: &Receiver<Reply>) -> Vec<Reply> {
    let mut all = Vec::new();
    loop {
        all.push(replies.recv_timeout(TIMEOUT).expect("a sequence that never ends"));
        if matches!(all.last(), Some(Reply::Finished(_) | Reply::Failed(_))) {
            assert!(replies.try_recv().is_err(), "a reply after the last");
            return all;
        }
    }
}

fn tokens(replies: &[Reply]) -> Vec<u32> {
    replies.iter().filter_map(|r| if let Reply::Token { id, .. } = r { Some(*id) } else { None }).collect()
}

fn finished(replies: &[Reply]) -> Finished {
    match replies.last() {
        Some(Reply::Finished(finished)) => *finished,
        other => panic!("{other:?}"),
    }
}

fn failed(replies: &[Reply]) -> Error {
    match replies.last() {
        Some(Reply::Failed(error)) => error.clone(),
        other => panic!("{other:?}"),
    }
}

fn prompt(length: u32, salt: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 7 + salt * 13) % 97).collect()
}

/// Waits until the pipeline has no sequences and no micro-batches. Returns the final counts.
fn settled(pipeline: &Pipeline) -> RunCounts {
    for _ in 0..3000 {
        let counts = pipeline.stats().counts;
        if counts.active + counts.waiting + counts.in_flight == 0 {
            return counts;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never settles: {:?}", pipeline.stats());
}

/// Generates tokens for many sequences at once and checks every token against the reference.
fn check(setup: &Setup) -> PipelineReport {
    let pipeline = setup.start().unwrap();
    let prompts: Vec<_> = (0..9).map(|i| prompt(1 + i * 5, i)).collect();
    let requests: Vec<_> = prompts.iter().map(|p| submit(&pipeline, p, generate(20))).collect();
    for (prompt, (_, replies)) in prompts.iter().zip(&requests) {
        let replies = all(replies);
        assert_eq!(tokens(&replies), setup.model.reference(prompt, 20), "prompt of {}", prompt.len());
        let finished = finished(&replies);
        assert_eq!((finished.reason, finished.new_tokens), (FinishReason::MaxTokens, 20));
        assert_eq!(finished.prompt_tokens as usize, prompt.len());
        let times = finished.times;
        let times =
            [Some(times.submitted_ns), times.admitted_ns, times.prefilled_ns, Some(times.finished_ns)];
        assert!(times.is_sorted() && times[1].is_some() && times[2].is_some());
    }
    let counts = settled(&pipeline);
    assert_eq!(counts.free_blocks, setup.options.kv_blocks);
    assert_eq!(counts.free_credits, setup.options.credits);
    pipeline.shutdown()
}

#[test]
fn pipelines_of_any_length_generate_equal_tokens() {
    for stages in 1..=4 {
        check(&Setup::new(stages));
    }
}

#[test]
fn devices_with_several_stages_generate_equal_tokens() {
    for hosts in [&[0, 1, 0][..], &[0, 1, 0, 1], &[1, 0, 2, 0], &[0, 1, 2, 1, 0]] {
        let PipelineReport { stats, .. } = check(&Setup::on(hosts));
        assert_eq!(stats.stages.len(), hosts.len());
        for stage in &stats.stages {
            assert_eq!(stage.counts.micro_batches, stats.micro_batches);
            assert_eq!(stage.prefill.micro_batches + stage.decode.micro_batches, stats.micro_batches);
        }
    }
    for (slots, credits, depth) in [(1, 1, 1), (1, 6, 1), (4, 6, 2)] {
        let mut setup = Setup::on(&[0, 1, 0, 1]);
        (setup.options.slots, setup.options.credits) = (slots, credits);
        setup.options.routes = vec![Route::HostStaged { chunk_bytes: 37, depth }.into(); 3];
        setup.devices.iter_mut().for_each(|d| d.random_delay_us = 100);
        check(&setup);
    }
}

#[test]
fn stages_of_one_device_share_scratch_and_equal_weights() {
    const SCRATCH_BYTES: u64 = 1 << 20;
    // The first and the last stage have one identical weight, which they share on the same device.
    let in_use = |hosts: &[usize]| {
        let setup = Setup::on(hosts);
        let mut specs = setup.specs();
        specs.stages.iter_mut().for_each(|stage| stage.compiled.scratch_bytes = SCRATCH_BYTES);
        let equal = specs.stages[0].compiled.weights[0].clone();
        specs.stages[2].compiled.weights[0] = equal;
        let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
        pipeline.stats().stages.iter().map(|stage| stage.pool.in_use_bytes).collect::<Vec<_>>()
    };
    let (apart, shared) = (in_use(&[0, 1, 2]), in_use(&[0, 1, 0]));
    assert_eq!(shared[0], shared[2], "one pool");
    let saved_bytes = SCRATCH_BYTES + class_bytes(Setup::new(3).model.weight_bytes);
    assert_eq!(shared[0], apart[0] + apart[2] - saved_bytes);
    assert_eq!(shared[1], apart[1]);
}

#[test]
fn streamed_weights_change_no_token() {
    for (hosts, layers, streamed) in [
        (&[0][..], 7, &[1, 2, 5, 6][..]),
        (&[0], 9, &[1, 3, 5, 7, 9]),
        (&[0], 7, &[1, 2, 3, 4, 5, 6, 7]),
        (&[0, 1], 12, &[1, 2, 3, 5, 7, 8, 9, 10]),
        (&[0, 1, 0], 16, &[1, 2, 3, 4, 12, 13, 14, 16]),
    ] {
        let mut setup = Setup::on(hosts);
        setup.model.layers = layers;
        let resident = check(&setup).stats;
        setup.streamed = streamed.into();
        for arenas in [0, 4, 8] {
            setup.arenas = arenas;
            let PipelineReport { stats, .. } = check(&setup);
            let bytes = |stats: &PipelineStats| stats.stages[0].pool.in_use_bytes;
            let specs = setup.specs();
            let on_first = specs.stages.iter().filter(|stage| stage.device == 0).map(|stage| &stage.streamed);
            let count = |streamed: &Vec<usize>| Arenas::at_most(streamed.len(), arenas).count();
            let saved = on_first.map(|streamed| streamed.len() - count(streamed));
            let saved_bytes = saved.sum::<usize>() as u64 * class_bytes(setup.model.weight_bytes);
            assert_eq!(bytes(&resident) - bytes(&stats), saved_bytes, "{streamed:?} {arenas}");
            for stage in &stats.stages {
                assert_eq!(stage.prefill.micro_batches + stage.decode.micro_batches, stats.micro_batches);
            }
        }
        setup.devices.iter_mut().for_each(|device| device.random_delay_us = 100);
        (setup.options.slots, setup.options.credits) = (1, 6);
        check(&setup);
    }
}

#[test]
fn a_prefill_stage_changes_no_token() {
    for (hosts, device) in [(&[0, 1][..], 0), (&[0, 1], 1), (&[0, 1, 0], 0), (&[0, 1, 2], 1), (&[1, 2], 0)] {
        let mut setup = Setup::on(hosts);
        setup.devices = vec![Faults::default(); 3];
        setup.devices.truncate(hosts.iter().chain([&device]).max().unwrap() + 1);
        setup.model.layers = 12;
        setup.prefill = Some(device);
        for from in [1, 5, 42] {
            (setup.options.prefill_from, setup.arenas) = (from, from as usize);
            let stats = check(&setup).stats;
            let prefill = stats.stages.last().unwrap();
            assert_eq!(prefill.decode.micro_batches, 0);
            assert_eq!(prefill.prefill.micro_batches > 0, from < 42, "{hosts:?} {from}");
        }
        setup.options.prefill_from = 2;
        setup.devices.iter_mut().for_each(|device| device.random_delay_us = 100);
        for (slots, credits, verified) in [(1, 6, false), (4, 1, true), (2, 3, true)] {
            (setup.options.slots, setup.options.credits) = (slots, credits);
            setup.options.verify_transfers = verified;
            check(&setup);
        }
    }
}

#[test]
fn invalid_streamed_segments_are_refused() {
    for streamed in [vec![1, 2, 3], vec![4, 3, 2, 1], vec![1, 2, 2, 3], vec![1, 2, 3, 9]] {
        let setup = Setup::new(1);
        let mut specs = setup.specs();
        specs.stages[0].streamed = streamed.clone();
        let error = Pipeline::start(specs, &setup.options, |_| {}).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot stream the segments {streamed:?}")), "{error}");
    }
    let setup = Setup { streamed: vec![1, 2, 3, 4], ..Setup::new(1) };
    let mut specs = setup.specs();
    specs.stages[0].arenas = Some(4);
    let error = Pipeline::start(specs, &setup.options, |_| {}).unwrap_err().to_string();
    assert!(error.contains("stage 0: 4 streamed segments cannot share 4 arenas (possible: 2)"), "{error}");
    let mut setup = Setup { from_file: vec![2, 3], streamed: vec![1, 2, 4, 5], ..Setup::new(1) };
    setup.model.layers = 6;
    let error = setup.start().unwrap_err().to_string();
    assert!(error.contains("segment 3 is read from the model's file, but it is not streamed"), "{error}");
}

#[test]
fn tight_slots_credits_and_rings_do_not_change_tokens() {
    for (slots, credits, depth) in [(1, 1, 1), (1, 6, 1), (2, 4, 3), (4, 6, 1)] {
        let mut setup = Setup::new(3);
        (setup.options.slots, setup.options.credits) = (slots, credits);
        setup.options.routes = vec![Route::HostStaged { chunk_bytes: 37, depth }.into(); 2];
        check(&setup);
    }
}

/// Returns lists of routes in which transfers take every route, and change it with their size.
fn mixed_routes() -> Vec<Routes> {
    let staged = |chunk_bytes| Route::HostStaged { chunk_bytes, depth: 1 };
    let sized = |up_to_bytes, route| SizedRoute { up_to_bytes, route };
    let by_size = |small, large| Routes(vec![sized(Some(600), small), sized(None, large)]);
    vec![
        Route::Peer.into(),
        Route::Import.into(),
        by_size(staged(37), staged(100)),
        by_size(Route::Peer, Route::Import),
        by_size(Route::Import, staged(100)),
        by_size(staged(37), Route::Peer),
    ]
}

#[test]
fn routes_do_not_change_tokens() {
    for routes in mixed_routes() {
        for (hosts, slots, credits) in [(&[0, 1, 2][..], 1, 6), (&[0, 1, 0, 1], 4, 6)] {
            let mut setup = Setup::on(hosts);
            (setup.options.slots, setup.options.credits) = (slots, credits);
            setup.options.routes.fill(routes.clone());
            setup.devices.iter_mut().for_each(|d| d.random_delay_us = 100);
            check(&setup);
        }
    }
}

/// Checks that both ends of an edge take the next route if one of their devices refuses to share memory.
/// Without another route, the pipeline does not start.
#[test]
fn a_refused_route_is_replaced_by_the_next() {
    let refusals = [
        Faults { refuses_exports: true, ..Faults::default() },
        Faults { failing_import: Some(2), ..Faults::default() },
    ];
    for (route, refusal) in [Route::Peer, Route::Import]
        .into_iter()
        .flat_map(|route| refusals.iter().map(move |fault| (route, fault)))
    {
        // Device 1 is the sender of one edge and the receiver of the other.
        let mut setup = Setup::new(3);
        setup.devices[1] = refusal.clone();
        setup.options.routes.fill(Routes::or_staged(route));
        check(&setup);
        setup.options.routes.fill(route.into());
        let (specs, watches) = setup.watched();
        let refused = Pipeline::start(specs, &setup.options, |_| {}).err();
        let Some(Error::Stage { stage: 1, cause, .. }) = &refused else { panic!("{refused:?}") };
        assert!(matches!(cause, DeviceError::Unsupported { .. }), "{cause}");
        drop(refused);
        for watch in watches {
            assert_eq!(watch.leaks(), Some(Leaks::default()));
        }
    }
}

#[test]
fn slow_devices_do_not_change_tokens() {
    let mut setup = Setup::new(3);
    setup.devices.iter_mut().for_each(|d| d.random_delay_us = 300);
    check(&setup);
}

/// Checks that a sleeping thread is always woken. Submissions complete at once, so notifications often race
/// with threads that are going to sleep.
#[test]
fn no_wake_up_is_lost_on_devices_that_finish_at_once() {
    // A chunk holds less than a micro-batch's rows, so places of the ring run out too.
    let ring = Route::HostStaged { chunk_bytes: 5000, depth: 1 };
    let pipelines = [
        (&[0][..], 1, 4, 12, ring),
        (&[0, 1], 1, 1, 2, ring),
        (&[0, 1], 5, 2, 1, ring),
        (&[0, 1], 1, 1, 1, Route::Peer),
        (&[0, 1], 5, 2, 1, Route::Import),
        (&[0, 1, 2], 8, 1, 1, ring),
        (&[0, 1, 0], 1, 1, 1, ring),
        (&[0, 1, 0], 3, 1, 1, Route::Import),
        (&[0, 1, 0, 1, 2, 0], 8, 2, 1, ring),
        (&[0, 1, 0, 1, 2, 0], 8, 2, 1, Route::Peer),
    ];
    for (hosts, sequences, slots, times, route) in pipelines {
        let specs = support::null::pipeline(hosts);
        let mut options = PipelineOptions::new(hosts.len(), 4096, 2048, 16);
        options.slots = slots;
        options.routes.fill(route.into());
        let pipeline = Pipeline::start(specs, &options, |_| {}).unwrap();
        let job = || Job::generate(3000, support::null::Zero);
        for _ in 0..times {
            let requests: Vec<_> = (0..sequences).map(|_| submit(&pipeline, &[0], job())).collect();
            for (_, replies) in requests {
                assert_eq!(finished(&all(&replies)).new_tokens, 3000);
            }
        }
    }
}

#[test]
fn a_short_cache_makes_sequences_wait_their_turn() {
    let mut setup = Setup::new(2);
    setup.options.kv_blocks = 8;
    check(&setup);
}

#[test]
fn stages_that_do_not_fit_together_are_refused() {
    let refused = |change: &dyn Fn(&mut Setup, &mut PipelineSpec)| {
        let mut setup = Setup::new(2);
        let mut specs = setup.specs();
        change(&mut setup, &mut specs);
        match Pipeline::start(specs, &setup.options, |_| {}) {
            Err(Error::Spec { what }) => what,
            other => panic!("{other:?}"),
        }
    };
    let said = |what: String, part: &str| assert!(what.contains(part), "{what}");
    said(refused(&|_, specs| specs.stages.clear()), "no stages");
    said(refused(&|setup, _| setup.options.routes.clear()), "routes for 0 edges between 2 stages");
    said(
        refused(&|setup, _| setup.options.routes = vec![Routes(Vec::new())]),
        "routes of edge 0: the up_to_bytes of the routes must ascend",
    );
    said(refused(&|setup, _| setup.options.context = 129), "block tables hold only 128");
    said(refused(&|setup, _| setup.options.slots = 0), "no slots");
    said(refused(&|setup, _| setup.options.credits = 0), "invalid pipeline shape");
    said(
        refused(&|setup, _| setup.options.chunks = ragtag_graph::execution::Chunks::fixed(17)),
        "invalid pipeline shape",
    );
    said(refused(&|_, specs| specs.stages.swap(0, 1)), "begin");
    said(refused(&|_, specs| specs.stages[1].compiled.row_bytes += 8), "not compiled for this pipeline");
    for result in [StageResult::Nothing, StageResult::Logits { vocabulary: 0 }] {
        said(refused(&|_, specs| specs.stages[1].compiled.result = result), "returns no logits");
    }
    said(
        refused(&|_, specs| specs.devices[1] = Box::new(open(0, &Faults::default()))),
        "device 0 is listed twice",
    );
    said(refused(&|_, specs| specs.stages[1].device = 0), "device 1 has no stage");
    said(refused(&|_, specs| specs.stages[1].device = 2), "device 1 has no stage");
    let neighbours = |_: &mut Setup, specs: &mut PipelineSpec| {
        specs.devices.truncate(1);
        specs.stages[1].device = 0;
    };
    said(refused(&neighbours), "on one device; merge them");
    let beyond = |setup: &mut Setup, specs: &mut PipelineSpec| {
        *setup = Setup::new(3);
        *specs = setup.specs();
        specs.devices.truncate(2);
        specs.stages[2].device = 2;
    };
    said(refused(&beyond), "stage 2 is on device 2 of 2");
}

#[test]
fn a_trace_names_what_ran_where() {
    let mut setup = Setup::new(2);
    setup.options.trace_spans = 100_000;
    let PipelineReport { stats, trace, .. } = check(&setup);
    assert_eq!(trace.dropped, 0);
    for stage in 0..2u32 {
        let spans = |kind| trace.spans.iter().filter(move |s| s.stage == stage && s.kind == kind);
        let computed: Vec<_> = spans(SpanKind::Compute).map(|s| s.micro_batch.unwrap().0).collect();
        assert_eq!(computed, (0..stats.micro_batches).collect::<Vec<_>>(), "every micro-batch, in order");
        assert!(
            spans(SpanKind::Compute)
                .all(|s| s.rows > 0 && s.segments == setup.specs().stages[stage as usize].compiled.segments)
        );
        assert!(spans(SpanKind::Weights).count() > 0);
        assert_eq!(spans(SpanKind::Upload).count() > 0, stage == 1);
        assert_eq!(spans(SpanKind::Download).count() > 0, stage == 0);
        assert_eq!(spans(SpanKind::Logits).count() > 0, stage == 1);
        let report = &stats.stages[stage as usize];
        assert_eq!(report.prefill.micro_batches + report.decode.micro_batches, stats.micro_batches);
        assert!(report.prefill.busy_ns > 0 && report.decode.rows > 0);
        assert_eq!(report.counts.rows, report.prefill.rows + report.decode.rows);
    }
    assert!(trace.spans.iter().all(|s| s.start_ns <= s.end_ns));
    assert_eq!((stats.prompt_tokens, stats.new_tokens), ((0..9).map(|i| 1 + i * 5).sum(), 9 * 20));

    setup.options.trace_spans = 0;
    assert!(check(&setup).trace.spans.is_empty());
}
