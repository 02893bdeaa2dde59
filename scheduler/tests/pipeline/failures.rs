//! Failures: faulty copies, lost devices, panics, and the objects that they leave behind.

use super::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::Instant;
use support::null::Hang;

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

/// Requests arrive more often than the coordinator checks for stalled work.
#[test]
fn logits_that_never_arrive_end_the_run_also_if_the_coordinator_is_busy() {
    let mut setup = Setup::new(2);
    setup.options.stall_timeout = Some(Duration::from_millis(200));
    // Only the last device copies logits to the host, and its activations stay on it.
    let (kind, copies) = (CopyFaultKind::Endless, FaultyCopies::Downloads);
    setup.devices[1].copy_fault = Some(CopyFault { kind, copies, least_bytes: 1, after: 3, most: None });
    let pipeline = setup.start().unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    let deadline = Instant::now() + TIMEOUT;
    let error = loop {
        assert!(Instant::now() < deadline, "the stalled copy was not found");
        pipeline.cancel(SequenceId(u64::MAX));
        if let Ok(Reply::Failed(error)) = replies.recv_timeout(Duration::from_millis(5)) {
            break error;
        }
    };
    let stalled = Error::StalledCopy { what: "logits".into(), device: "cpu:1".into(), seconds: 1 };
    assert_eq!(error, stalled);
}

#[test]
fn an_endless_computation_names_its_stage() {
    // One micro-batch at a time is in flight, so the stages of the first device take turns.
    for (computation, stage) in [(7, 0), (8, 2)] {
        let mut setup = Setup::on(&[0, 1, 0]);
        setup.options.stall_timeout = Some(Duration::from_millis(100));
        setup.compute_timeout = Some(Duration::from_millis(200));
        setup.devices[0].endless_computation = Some(computation);
        let (specs, watches) = setup.watched();
        let pipeline = Pipeline::start(specs, &setup.options, |_| {}).unwrap();
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
        let stalled = Error::StalledCompute { stage, device: "cpu:0".into(), seconds: 1 };
        assert_eq!(failed(&all(&replies)), stalled);
        assert!(pipeline.shutdown().left.is_empty(), "only the reports are missing");
        nothing_leaks(&watches, "endless");
    }
}

/// Checks that a pipeline stops while the driver of a device hangs, also if no limit has found the hang, and that the
/// device is closed when its driver answers.
#[test]
fn a_device_that_hangs_is_left_behind() {
    for is_found in [false, true] {
        let (answer, release) = channel();
        let (news, hangs) = channel();
        let mut specs = support::null::hanging_pipeline(Hang { computation: 3, release, news });
        for stage in &mut specs.stages {
            stage.longest = Some(Duration::from_millis(1));
            stage.compute_timeout = is_found.then_some(Duration::from_millis(100));
        }
        let pipeline = Pipeline::start(specs, &PipelineOptions::new(2, 128, 16, 12), |_| {}).unwrap();
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
        assert_eq!(hangs.recv_timeout(TIMEOUT), Ok(()));
        if is_found {
            assert!(matches!(failed(&all(&replies)), Error::StalledCompute { stage: 1, .. }));
        }
        let (sender, reports) = channel();
        std::thread::spawn(move || drop(sender.send(pipeline.shutdown())));
        let report = reports.recv_timeout(TIMEOUT).expect("a pipeline that never stops");
        assert_eq!(report.left, ["null:1"]);
        assert_eq!(hangs.try_recv(), Err(TryRecvError::Empty), "still open");
        drop(answer);
        assert_eq!(hangs.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
    }
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
fn a_lost_device_with_several_stages_names_the_stage_that_was_running() {
    let lost = |command| {
        let mut setup = Setup::on(&[0, 1, 0]);
        setup.devices[0].lost_at_command = Some(command);
        let pipeline = setup.start().unwrap();
        // One micro-batch at a time is in flight.
        let error = failed(&all(&submit(&pipeline, &prompt(9, 1), generate(50)).1));
        match error {
            Error::Stage { stage, device, cause: DeviceError::Lost { .. } } if device == "cpu:0" => {
                Some(stage)
            }
            // Between two submissions, neither stage was running.
            Error::Device { stages, device, .. } if *stages == [0, 2] && device == "cpu:0" => None,
            other => panic!("command {command}: {other:?}"),
        }
    };
    let stages: BTreeSet<u32> = (40..60).filter_map(lost).collect();
    assert_eq!(stages, BTreeSet::from([0, 2]));
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

/// Checks that a sampler or a reply sink that panics, while it is called or dropped, ends only its own request.
#[test]
fn a_panic_of_a_client_ends_only_its_own_request() {
    struct Panics;
    impl Sample for Panics {
        fn sample(&mut self, _: &[f32], _: &[u32]) -> std::result::Result<u32, String> {
            panic!("on purpose")
        }
    }
    struct Dropped;
    impl Drop for Dropped {
        fn drop(&mut self) {
            panic!("while dropped")
        }
    }
    let setup = Setup::new(2);
    let pipeline = setup.start().unwrap();
    let (_, other) = submit(&pipeline, &prompt(9, 1), generate(100));
    let cause = failed(&all(&submit(&pipeline, &prompt(9, 2), Job::generate(9, Panics)).1));
    let expected = "no token for position 9: the sampler panicked: on purpose";
    assert_eq!(cause.to_string(), expected);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let sink = move |_| {
        assert!(counted.fetch_add(1, Ordering::SeqCst) < 3, "on purpose");
        Flow::Go
    };
    pipeline.submit(Request::new(prompt(9, 3), generate(90), sink));
    let (send, replies) = channel();
    let (dropped, mut sink) = (Dropped, sink_of(send));
    pipeline.submit(Request::new(prompt(9, 4), generate(2), move |reply| {
        let _ = &dropped;
        sink(reply)
    }));
    assert_eq!(tokens(&all(&replies)).len(), 2);
    assert_eq!(tokens(&all(&other)), setup.model.reference(&prompt(9, 1), 100));
    assert_eq!(settled(&pipeline).free_blocks, setup.model.kv_blocks);
    assert_eq!(calls.load(Ordering::SeqCst), 4, "the sink is not called after its panic");
    assert!(pipeline.stats().new_tokens < 100 + 2 + 50, "its sequence goes on");
}

/// Checks that every device was dropped and left no objects behind.
#[track_caller]
pub(super) fn nothing_leaks(watches: &[LeakWatch], how: &str) {
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
