//! Tests of the threaded pipeline on CPU devices, with a synthetic model.

#![allow(missing_docs)]

mod loading;
mod reading;
#[path = "../support/mod.rs"]
mod support;

use loading::Spoilt;
use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::pool::class_bytes;
use ragtag_hal::{
    Backend, Checked, CopyFault, CopyFaultKind, Device, DeviceId, Error as DeviceError, Faults, FaultyCopies,
    LeakWatch, Leaks, Limits,
};
use ragtag_planner::streaming::Arenas;
use ragtag_scheduler::core::{FinishReason, Finished, RunCounts, Sample, SequenceId};
use ragtag_scheduler::*;
use ragtag_transfer::{Route, Routes, SizedRoute};
use std::sync::mpsc::{Receiver, channel};
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
        Self { model, devices, hosts, options, streamed, arenas: 0, from_file, prefill: None }
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
                weights: Box::new(self.model.weights(0..segments)),
            }
        });
        PipelineSpec {
            devices: devices
                .map(|(index, faults)| Box::new(open(index, faults)) as Box<dyn Device>)
                .collect(),
            stages,
            prefill,
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
    let reply = Box::new(move |reply| drop(send.send(reply)));
    (pipeline.submit(Request { prompt: prompt.into(), job, reply }), replies)
}

fn generate(max_new_tokens: u32) -> Job {
    Job::Generate { max_new_tokens, end_tokens: Vec::new(), sampler: Box::new(Greedy) }
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
    replies.iter().filter_map(|r| if let Reply::Token { id } = r { Some(*id) } else { None }).collect()
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
fn faulty_copies_of_streamed_weights_end_the_run_with_an_error() {
    let fault = |kind| {
        let mut setup = Setup::new(1);
        setup.streamed = vec![1, 2, 3, 4];
        setup.options.stall_timeout = Some(Duration::from_millis(200));
        // Weights are loaded in smaller chunks.
        let (copies, least_bytes) = (FaultyCopies::Uploads, setup.model.weight_bytes);
        let copy_fault = CopyFault { kind, copies, least_bytes, after: 20, most: None };
        setup.devices[0].copy_fault = Some(copy_fault);
        setup
    };
    check(&fault(CopyFaultKind::Late { us: 300 }));
    let error = |kind| {
        let pipeline = fault(kind).start().unwrap();
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
        failed(&all(&replies))
    };
    let error_of_copy = error(CopyFaultKind::Failing);
    assert!(matches!(&error_of_copy, Error::Stage { stage: 0, device, .. } if device == "cpu:0"));
    let stalled = error(CopyFaultKind::Endless);
    let what = "streamed weights".into();
    assert_eq!(stalled, Error::StalledCopy { what, device: "cpu:0".into(), seconds: 1 });
    let mut lost = Setup::new(1);
    (lost.streamed, lost.devices[0].losing_submission) = (vec![1, 2, 3, 4], Some(60));
    let pipeline = lost.start().unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    assert!(matches!(failed(&all(&replies)), Error::Stage { stage: 0, .. }));
}

#[test]
fn faulty_copies_of_keys_and_values_end_the_run_with_an_error() {
    // Copies of activations are smaller. The second device loads its six weights in 18 chunks.
    let error = |device: usize, (copies, after), kind| {
        let mut setup = Setup::new(2);
        (setup.model.layers, setup.prefill) = (12, Some(0));
        setup.options.stall_timeout = Some(Duration::from_millis(200));
        let copy_fault = CopyFault { kind, copies, least_bytes: 101, after, most: None };
        setup.devices[device].copy_fault = Some(copy_fault);
        let pipeline = setup.start().unwrap();
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
        failed(&all(&replies))
    };
    let passed = |kind| error(0, (FaultyCopies::Downloads, 0), kind);
    let failed = |error: &Error, (at, label): (u32, &str)| match error {
        Error::KeysAndValues { stage, device, .. } => assert_eq!((*stage, device.as_str()), (at, label)),
        other => panic!("{other:?}"),
    };
    // The device of the prefill stage, stage 2, also runs stage 0.
    failed(&passed(CopyFaultKind::Failing), (2, "cpu:0"));
    failed(&error(1, (FaultyCopies::Uploads, 18), CopyFaultKind::Failing), (1, "cpu:1"));
    let what = String::from("keys and values");
    let stalled = |device: &str| Error::StalledCopy { what: what.clone(), device: device.into(), seconds: 1 };
    assert_eq!(passed(CopyFaultKind::Endless), stalled("cpu:0"));
    assert_eq!(error(1, (FaultyCopies::Uploads, 18), CopyFaultKind::Endless), stalled("cpu:1"));
}

#[test]
fn logits_that_never_arrive_end_the_run_with_an_error() {
    let mut setup = Setup::new(2);
    setup.options.stall_timeout = Some(Duration::from_millis(200));
    // Only the last device copies logits to the host, and its activations stay on it.
    let (kind, copies) = (CopyFaultKind::Endless, FaultyCopies::Downloads);
    setup.devices[1].copy_fault = Some(CopyFault { kind, copies, least_bytes: 1, after: 3, most: None });
    let pipeline = setup.start().unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    let stalled = Error::StalledCopy { what: "logits".into(), device: "cpu:1".into(), seconds: 1 };
    assert_eq!(failed(&all(&replies)), stalled);
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
/// with threads that are going to sleep. A third of the pipelines runs by turns.
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
    for (hosts, sequences, slots, times, route) in test_support::share(pipelines, 3, 0) {
        let specs = support::null::pipeline(hosts);
        let mut options = PipelineOptions::new(hosts.len(), 4096, 2048, 16);
        options.slots = slots;
        options.routes.fill(route.into());
        let pipeline = Pipeline::start(specs, &options, |_| {}).unwrap();
        let job = || Job::Generate {
            max_new_tokens: 3000,
            end_tokens: Vec::new(),
            sampler: Box::new(support::null::Zero),
        };
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
fn logits_of_every_position_come_in_order() {
    let setup = Setup::new(2);
    let pipeline = setup.start().unwrap();
    let prompt = prompt(60, 3);
    let (_, other) = submit(&pipeline, &prompt, generate(5));
    let (_, replies) = submit(&pipeline, &prompt, Job::Logits);
    let replies = all(&replies);
    assert_eq!(finished(&replies).reason, FinishReason::LogitsDone);
    let expected = setup.model.next_tokens(&prompt);
    assert_eq!(replies.len(), prompt.len() + 1);
    for (index, reply) in replies[..prompt.len()].iter().enumerate() {
        let Reply::Logits { position, row } = reply else { panic!("{reply:?}") };
        assert_eq!((*position as usize, row.len()), (index, 97));
        assert_eq!(row.iter().position(|&l| l == 1.0), Some(expected[index] as usize));
    }
    assert_eq!(tokens(&all(&other)), setup.model.reference(&prompt, 5));
}

#[test]
fn end_tokens_full_contexts_and_no_new_tokens_end_a_sequence() {
    let mut setup = Setup::new(2);
    setup.options.context = 30;
    let pipeline = setup.start().unwrap();
    let prompt = prompt(10, 1);
    let expected = setup.model.reference(&prompt, 21);

    let end_tokens = vec![expected[4]];
    let until = expected.iter().position(|t| end_tokens.contains(t)).unwrap();
    let job = Job::Generate { max_new_tokens: 9, end_tokens, sampler: Box::new(Greedy) };
    let replies = all(&submit(&pipeline, &prompt, job).1);
    assert_eq!(finished(&replies).reason, FinishReason::EndToken(expected[until]));
    assert_eq!(tokens(&replies), expected[..until]);

    let replies = all(&submit(&pipeline, &prompt, generate(1000)).1);
    assert_eq!(finished(&replies).reason, FinishReason::ContextFull);
    assert_eq!(tokens(&replies), expected);

    let replies = all(&submit(&pipeline, &prompt, generate(0)).1);
    assert_eq!((finished(&replies).reason, replies.len()), (FinishReason::MaxTokens, 1));
}

#[test]
fn impossible_requests_are_refused_and_others_go_on() {
    let mut setup = Setup::new(2);
    setup.options.kv_blocks = 4;
    let pipeline = setup.start().unwrap();
    let refused = |prompt: &[u32], job| match failed(&all(&submit(&pipeline, prompt, job).1)) {
        Error::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[], generate(1)), Refusal::EmptyPrompt);
    assert_eq!(refused(&prompt(129, 0), generate(1)), Refusal::PromptTooLong { tokens: 129, context: 128 });
    assert_eq!(refused(&prompt(60, 0), generate(6)), Refusal::TooManyBlocks { wanted: 5, total: 4 });
    assert_eq!(
        refused(&[5, 97], generate(1)),
        Refusal::UnknownToken { token: 97, position: 1, vocabulary: 97 }
    );
    let fitting = prompt(60, 0);
    let replies = all(&submit(&pipeline, &fitting, generate(5)).1);
    assert_eq!(tokens(&replies), setup.model.reference(&fitting, 5));
}

#[test]
fn a_sampler_that_fails_ends_its_sequence_alone() {
    struct Never;
    impl Sample for Never {
        fn sample(&mut self, _: &[f32], history: &[u32]) -> std::result::Result<u32, String> {
            if history.len() < 12 { Ok(3) } else { Err("nothing to choose from".into()) }
        }
    }
    let setup = Setup::new(2);
    let pipeline = setup.start().unwrap();
    let prompt = prompt(10, 1);
    let job = Job::Generate { max_new_tokens: 9, end_tokens: Vec::new(), sampler: Box::new(Never) };
    let (_, other) = submit(&pipeline, &prompt, generate(9));
    let replies = all(&submit(&pipeline, &prompt, job).1);
    assert_eq!(tokens(&replies), [3, 3]);
    let cause = "nothing to choose from".to_string();
    assert_eq!(failed(&replies), Error::Sampling { position: 12, cause });
    assert_eq!(tokens(&all(&other)), setup.model.reference(&prompt, 9));
}

#[test]
fn cancelling_frees_what_a_sequence_held() {
    let mut setup = Setup::new(2);
    setup.devices[0].random_delay_us = 1000;
    let pipeline = setup.start().unwrap();
    let prompt = prompt(20, 2);
    let (id, replies) = submit(&pipeline, &prompt, generate(100));
    let (_, other) = submit(&pipeline, &prompt, generate(10));
    let first = replies.recv_timeout(TIMEOUT).unwrap();
    pipeline.cancel(id);
    let replies = all(&replies);
    assert_eq!(finished(&replies).reason, FinishReason::Cancelled);
    let mut got = tokens(&[first]);
    got.extend(tokens(&replies));
    assert!(got.len() < 100 && setup.model.reference(&prompt, 100).starts_with(&got));
    assert_eq!(tokens(&all(&other)), setup.model.reference(&prompt, 10));
    pipeline.cancel(id);
    assert_eq!(settled(&pipeline).free_blocks, setup.model.kv_blocks);
}

#[test]
fn a_lost_device_ends_every_sequence_with_one_clear_error() {
    for stage in 0..3 {
        // The loss may affect any queue.
        for command in 30..40 {
            let mut setup = Setup::new(3);
            setup.devices[stage].lost_at_command = Some(command);
            let pipeline = setup.start().unwrap();
            let requests: Vec<_> = (0..5).map(|i| submit(&pipeline, &prompt(9, i), generate(50))).collect();
            let errors: Vec<_> = requests.iter().map(|(_, replies)| failed(&all(replies))).collect();
            let expected = errors[0].clone();
            let Error::Stage { stage: at, device, cause: DeviceError::Lost { .. } } = &expected else {
                panic!("{expected:?}")
            };
            assert_eq!((*at, device), (stage as u32, &format!("cpu:{stage}")), "command {command}");
            assert!(errors.iter().all(|error| *error == expected), "command {command}: {errors:?}");
            let late = submit(&pipeline, &prompt(9, 9), generate(1));
            assert_eq!(all(&late.1), [Reply::Failed(expected)]);
            pipeline.shutdown();
        }
    }
}

#[test]
fn dropping_a_busy_pipeline_ends_it() {
    let mut setup = Setup::new(3);
    setup.devices.iter_mut().for_each(|d| d.random_delay_us = 2000);
    let pipeline = setup.start().unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(100));
    replies.recv_timeout(TIMEOUT).unwrap();
    drop(pipeline);
    assert_eq!(finished(&all(&replies)).reason, FinishReason::Cancelled);
}

#[test]
fn a_panicking_sampler_ends_the_run_without_a_hang() {
    struct Panics;
    impl Sample for Panics {
        fn sample(&mut self, _: &[f32], _: &[u32]) -> std::result::Result<u32, String> {
            panic!("on purpose")
        }
    }
    let pipeline = Setup::new(2).start().unwrap();
    let (_, other) = submit(&pipeline, &prompt(9, 1), generate(100));
    let job = Job::Generate { max_new_tokens: 9, end_tokens: Vec::new(), sampler: Box::new(Panics) };
    let (_, replies) = submit(&pipeline, &prompt(9, 2), job);
    assert!(matches!(failed(&all(&replies)), Error::Protocol { .. }));
    assert!(matches!(failed(&all(&other)), Error::Protocol { .. }));
    let late = submit(&pipeline, &prompt(9, 3), generate(1));
    assert!(matches!(failed(&all(&late.1)), Error::Stopped));
}

/// Checks that every device was dropped and left no objects behind.
#[track_caller]
fn nothing_leaks(watches: &[LeakWatch], how: &str) {
    for (stage, watch) in watches.iter().enumerate() {
        assert_eq!(watch.leaks(), Some(Leaks::default()), "{how}, stage {stage}");
    }
}

#[test]
fn a_pipeline_that_ran_or_was_cancelled_or_dropped_leaves_nothing_on_its_devices() {
    let mut setup = Setup::new(3);
    let (specs, watches) = setup.watched();
    let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
    all(&submit(&pipeline, &prompt(20, 1), generate(10)).1);
    assert!(pipeline.stats().stages.iter().all(|stage| stage.pool.in_use_bytes > 0));
    assert_eq!(watches[0].leaks(), None, "still open");
    pipeline.shutdown();
    nothing_leaks(&watches, "ran");

    setup.devices.iter_mut().for_each(|d| d.random_delay_us = 1000);
    let (specs, watches) = setup.watched();
    let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
    let (id, replies) = submit(&pipeline, &prompt(20, 2), generate(100));
    replies.recv_timeout(TIMEOUT).unwrap();
    pipeline.cancel(id);
    all(&replies);
    pipeline.shutdown();
    nothing_leaks(&watches, "cancelled");

    let (specs, watches) = setup.watched();
    let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
    let (_, replies) = submit(&pipeline, &prompt(20, 2), generate(100));
    replies.recv_timeout(TIMEOUT).unwrap();
    drop(pipeline);
    nothing_leaks(&watches, "dropped");
}

#[test]
fn a_pipeline_that_failed_leaves_nothing_on_its_devices() {
    // One device is lost. The other devices cannot predict the loss, and still release everything.
    let mut setup = Setup::new(3);
    setup.devices[1].lost_at_command = Some(30);
    let (specs, watches) = setup.watched();
    let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
    failed(&all(&submit(&pipeline, &prompt(9, 1), generate(50)).1));
    pipeline.shutdown();
    nothing_leaks(&watches, "lost");

    // The second device runs out of memory. Everything that it has allocated is freed.
    let mut setup = Setup::new(3);
    setup.devices[1].most_bytes = Some(12_000);
    let (specs, watches) = setup.watched();
    assert!(Pipeline::start(specs, &setup.options, |_| {}).is_err());
    nothing_leaks(&watches, "out of memory");

    for how in ["fill", "panic", "panic in fill"] {
        let setup = Setup::new(3);
        let (mut specs, watches) = setup.watched();
        let segments = specs.stages[2].compiled.segments.clone();
        specs.stages[2].weights = Box::new(Spoilt(setup.model.weights(segments), how));
        assert!(Pipeline::start(specs, &setup.options, |_| {}).is_err());
        nothing_leaks(&watches, how);
    }
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
        refused(&|setup, _| setup.options.chunks = ragtag_planner::Chunks::fixed(17)),
        "invalid pipeline shape",
    );
    said(refused(&|_, specs| specs.stages.swap(0, 1)), "begin");
    said(refused(&|_, specs| specs.stages[1].compiled.row_bytes += 8), "not compiled for this pipeline");
    said(refused(&|_, specs| specs.stages[1].compiled.logit_row_bytes = 0), "logits of 0 bytes");
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
    let PipelineReport { stats, trace } = check(&setup);
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
