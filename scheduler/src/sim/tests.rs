//! Tests of the simulator: random pipelines, faults that it must detect, and the benefit of pipelining.

use super::*;
use crate::core::{Limits, RunCore, RunShape, Want};
use crate::error::Refusal;
use ragtag_transfer::{Route, Routes};

/// Returns the number in the environment variable `name`, if it is set.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Returns the seed in `RAGTAG_SIM_SEED`. If it is not set, returns `RAGTAG_SIM_SEEDS` seeds (default 1000)
/// derived from `RAGTAG_TEST_SEED`.
fn seeds() -> Vec<u64> {
    if let Some(seed) = variable("RAGTAG_SIM_SEED") {
        return vec![seed];
    }
    let count = variable("RAGTAG_SIM_SEEDS").unwrap_or(1000);
    let first = test_support::seed().wrapping_mul(count);
    (0..count).map(|at| first.wrapping_add(at)).collect()
}

#[test]
fn random_pipelines_keep_their_invariants() {
    let seeds = seeds();
    let mut failures = Vec::new();
    let (mut lost, mut cancelled, mut refused, mut tokens) = (0, 0, 0, 0);
    let (mut no_memory, mut no_submission, mut late, mut stopped) = (0, 0, 0, 0);
    let (mut ended_late, mut busy, mut stop_rules, mut cache) = (0, 0, 0, CacheWork::default());
    let (mut corrupted, mut repaired, mut replaced, mut unreplaced, mut wrong_keys) = (0, 0, 0, 0, 0);
    for &seed in &seeds {
        let spec = SimSpec::random(seed);
        let report = match simulate(&spec) {
            Ok(report) => report,
            Err(failure) => {
                failures.push(format!("{failure}; again with RAGTAG_SIM_SEED={seed}"));
                continue;
            }
        };
        let slow = |fault: &Fault| matches!(fault, Fault::Slow { .. } | Fault::Unsteady { .. });
        late += usize::from(spec.faults.iter().any(slow));
        cache += report.observations.cache;
        repaired += usize::from(report.resent > 0 && spec.verified);
        replaced += usize::from(report.resent > 0 && !spec.verified);
        for outcome in report.outcomes.values() {
            match outcome {
                SimOutcome::Failed { error: Error::Stage { cause, .. } } => match cause {
                    ragtag_hal::Error::OutOfMemory { .. } => no_memory += 1,
                    ragtag_hal::Error::Api { .. } => no_submission += 1,
                    _ => lost += 1,
                },
                SimOutcome::Failed { error: Error::Stopped } => stopped += 1,
                SimOutcome::Failed { error: Error::Corrupted { .. } } => corrupted += 1,
                SimOutcome::Failed { error: Error::Transfer { .. } } => unreplaced += 1,
                SimOutcome::Failed { error: Error::WrongKeysAndValues { .. } } => wrong_keys += 1,
                SimOutcome::Failed { error: Error::Refused(Refusal::Busy { .. }) } => busy += 1,
                SimOutcome::Failed { .. } => refused += 1,
                SimOutcome::Finished { reason: FinishReason::Deadline, .. } => ended_late += 1,
                SimOutcome::Finished { reason: FinishReason::StopRule, .. } => stop_rules += 1,
                SimOutcome::Finished { reason: FinishReason::Cancelled, .. } => cancelled += 1,
                SimOutcome::Finished { tokens: new, .. } => tokens += new.len(),
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} seeds: {failures:#?}", failures.len(), seeds.len());
    // The seeds together cover all intended cases.
    if seeds.len() >= 1000 {
        assert!(lost > 100 && cancelled > 100 && refused > 100 && tokens > 10_000);
        assert!(no_memory > 100 && no_submission > 50 && late > 300 && stopped > 100);
        assert!(corrupted > 20 && repaired > 50 && wrong_keys > 20, "{corrupted} {repaired} {wrong_keys}");
        assert!(replaced > 5 && unreplaced > 20, "{replaced} {unreplaced}");
        let CacheWork { grown, reused, rings, evicted, preempted, paused } = cache;
        assert!(grown > 500 && evicted > 100 && preempted > 50 && paused > 80, "{cache:?}");
        assert!(reused > 50 && rings > 4, "{cache:?}");
        let ends = [ended_late, busy, stop_rules];
        assert!(ends.into_iter().all(|number| number > 50), "{ends:?}");
    }
}

/// Returns the number of failures before the stages that replace others were there.
fn failed_loads(events: &[(Nanoseconds, RunEvent)]) -> usize {
    let mut is_interrupted = false;
    let mut count = 0;
    for (_, event) in events {
        match event {
            RunEvent::Interrupted => count += usize::from(std::mem::replace(&mut is_interrupted, true)),
            RunEvent::Restarted { .. } => is_interrupted = false,
            _ => {}
        }
    }
    count
}

/// Checks that pipelines that fail and are replaced give every sequence the tokens of a run without a failure. The
/// simulation itself compares the results, and checks all invariants on the way.
#[test]
fn no_token_is_lost_with_a_pipeline() {
    let seeds = seeds();
    let (mut failures, mut losses, mut tokens) = (Vec::new(), 0, 0);
    let (mut while_loading, mut hangs, mut at_once) = (0, 0, 0);
    for &seed in &seeds {
        let spec = SimSpec::random_losses(seed);
        let report = match simulate(&spec) {
            Ok(report) => report,
            Err(failure) => {
                failures.push(format!("{failure}; again with RAGTAG_SIM_SEED={seed}"));
                continue;
            }
        };
        losses += report.run_events.iter().filter(|(_, event)| *event == RunEvent::Interrupted).count();
        while_loading += failed_loads(&report.run_events);
        let chain = || std::iter::successors(Some(&spec), |spec| spec.then.as_deref());
        let faults = || chain().flat_map(|spec| &spec.faults);
        hangs += faults().filter(|fault| matches!(fault, Fault::HungAtCommand { .. })).count();
        let is_early = |fault: &&Fault| {
            matches!(fault, Fault::HungAtCommand { nth: ..4, .. } | Fault::LostAtCommand { nth: ..4, .. })
        };
        at_once += faults().filter(is_early).count();
        for outcome in report.outcomes.values() {
            match outcome {
                SimOutcome::Finished { tokens: new, .. } => tokens += new.len(),
                SimOutcome::Failed { error: Error::Refused(_) } => {}
                SimOutcome::Failed { .. } => {
                    failures.push(format!("{outcome:?} with RAGTAG_SIM_SEED={seed}"))
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} seeds: {failures:#?}", failures.len(), seeds.len());
    let drawn = format!(
        "{losses} losses, {while_loading} while loading, {hangs} hangs, {at_once} at once, {tokens} tokens"
    );
    if seeds.len() >= 1000 {
        assert!(
            losses > 1000 && while_loading > 30 && hangs > 300 && at_once > 300 && tokens > 10_000,
            "{drawn}"
        );
    }
}

#[test]
fn a_seed_is_one_run() {
    let spec = SimSpec::random(77);
    assert_eq!(simulate(&spec).unwrap(), simulate(&spec).unwrap());
}

#[test]
fn a_network_delays_messages_and_loses_none() {
    let time_ns = |network| simulate(&SimSpec { network, ..steady(3, 4) }).unwrap().makespan_ns;
    let own = time_ns(SimNetwork::default());
    let network = |latency_ns, lost_per_million| SimNetwork {
        hosts: vec![0, 1, 2],
        latencies_ns: [((0, 1), latency_ns), ((1, 2), latency_ns), ((0, 2), latency_ns)].into(),
        lost_per_million,
        again_ns: 1_000_000,
    };
    let slow = time_ns(network(200_000, 0));
    assert!(slow > own + 32 * 200_000, "{slow} and {own}");
    assert!(time_ns(network(200_000, 20_000)) > slow);
    // Without latency and losses, hosts make no difference.
    assert_eq!(time_ns(network(0, 0)), own);
}

/// Returns a pipeline without faults.
fn steady(stages: usize, sequences: usize) -> SimSpec {
    let copy = CopyTime { copy_ns: 1_000, once_ns: 0, byte_ns: 1.0 };
    let stage = |at| SimStage {
        device: format!("made-up:{at}"),
        slots: 4,
        compute: ComputeTime::Linear { batch_ns: 100_000, row_ns: 1_000 },
        hand_over_ns: 0,
        upload: copy,
        download: copy,
        logits: copy,
        single_queue: false,
        routes: Route::HostStaged { chunk_bytes: 128, depth: 4 }.into(),
        parts: Vec::new(),
    };
    let run = RunShape {
        stages: stages as u32,
        decode_groups: stages as u32,
        credits: stages as u32 + 1,
        context: 256,
        vocabulary: 1000,
        has_picks: false,
        chunks: ragtag_graph::execution::Chunks::fixed(32),
        max_rows: 32,
        max_logit_rows: 32,
        max_sequences: 32,
        kv_blocks: 1024,
        kv_use: ragtag_graph::execution::KvUse::default(),
        limits: Limits::default(),
        kv_ring: None,
        prefill_from: None,
        recompute_at: None,
    };
    let want = Want::Generate { max_new_tokens: 32, end_tokens: [].into() };
    let request = SimRequest::new(0, 32, want);
    SimSpec {
        prefill: None,
        seed: 1,
        stages: (0..stages).map(stage).collect(),
        row_bytes: 64,
        logit_row_bytes: u64::from(run.vocabulary),
        shared_links: Vec::new(),
        run,
        message_ns: 1_000,
        network: SimNetwork::default(),
        handling_ns: 500,
        jitter_percent: 5,
        requests: vec![request; sequences],
        at_once: None,
        faults: Vec::new(),
        checked: true,
        max_spans: usize::MAX,
        verified: false,
        then: None,
    }
}

#[test]
fn any_lost_message_is_a_deadlock_or_a_violation() {
    let mut spec = steady(3, 1);
    simulate(&spec).unwrap();
    let mut deadlocks = 0;
    for nth in 0..40 {
        spec.faults = vec![Fault::MessageLost { nth }];
        match simulate(&spec) {
            Err(SimFailure::Deadlock { .. }) => deadlocks += 1,
            Err(SimFailure::Violation { .. }) => {}
            Ok(_) => panic!("message {nth} was lost without a failure"),
        }
    }
    assert!(deadlocks > 0);
}

#[test]
fn a_lost_hand_off_at_the_entry_is_a_deadlock() {
    let spec = SimSpec { faults: vec![Fault::MessageLost { nth: 0 }], ..steady(1, 1) };
    assert!(
        matches!(simulate(&spec), Err(SimFailure::Deadlock { sequences, .. }) if sequences == [SequenceId(0)])
    );
}

#[test]
fn any_repeated_message_is_noticed() {
    let mut spec = steady(3, 4);
    for nth in 0..40 {
        spec.faults = vec![Fault::MessageTwice { nth }];
        assert!(simulate(&spec).is_err(), "message {nth} came twice without a failure");
    }
}

#[test]
fn a_missing_wait_shows_as_wrong_data() {
    for stage in 0..3 {
        let spec = SimSpec { faults: vec![Fault::WaitsIgnored { stage }], ..steady(3, 4) };
        assert!(matches!(simulate(&spec), Err(SimFailure::Violation { .. })), "stage {stage}");
    }
}

#[test]
fn a_lost_device_ends_every_sequence_with_its_name() {
    for stage in 0..3 {
        let at_ns = 3_000_000;
        let spec = SimSpec { faults: vec![Fault::DeviceLost { stage, at_ns }], ..steady(3, 4) };
        for outcome in simulate(&spec).unwrap().outcomes.values() {
            let SimOutcome::Failed { error } = outcome else { panic!("{outcome:?}") };
            assert_eq!(error.to_string(), format!("stage {stage} on made-up:{stage}: device lost: made up"));
        }
    }
}

/// Returns the results of all sequences in a run with `fault`.
fn outcomes(fault: Fault) -> Vec<SimOutcome> {
    let spec = SimSpec { faults: vec![fault], ..steady(3, 4) };
    simulate(&spec).unwrap().outcomes.into_values().collect()
}

#[test]
fn every_sequence_receives_the_cause_of_a_device_failure() {
    for stage in 0..3 {
        for (fault, said) in [
            (Fault::OutOfMemory { stage }, "out of device memory: 1073741824 bytes wanted, 1048576 free"),
            (Fault::SubmissionRefused { stage, nth: 20 }, "submit failed with code -1"),
            (Fault::LostAtCommand { stage, nth: 20 }, "device lost: made up"),
        ] {
            for outcome in outcomes(fault) {
                let SimOutcome::Failed { error } = outcome else { panic!("{fault:?}: {outcome:?}") };
                assert_eq!(error.to_string(), format!("stage {stage} on made-up:{stage}: {said}"));
            }
        }
    }
}

#[test]
fn a_stopped_run_cancels_every_sequence() {
    for at_ns in [0, 700_000, 3_000_000] {
        for outcome in outcomes(Fault::Stopped { at_ns }) {
            let stopped = match &outcome {
                SimOutcome::Finished { reason, .. } => *reason == FinishReason::Cancelled,
                SimOutcome::Failed { error } => *error == Error::Stopped,
            };
            assert!(stopped, "{at_ns}: {outcome:?}");
        }
    }
}

/// Returns a steady pipeline of three stages with verified transfers over `routes`, in which copies of the
/// first edge write wrong bytes.
fn guarded(routes: Routes, first: u64, copies: u64) -> SimSpec {
    let mut spec = SimSpec { verified: true, ..steady(3, 4) };
    spec.stages.iter_mut().for_each(|stage| stage.routes = routes.clone());
    spec.faults = vec![Fault::WrongBytes { stage: 0, first, copies }];
    spec
}

#[test]
fn verified_transfers_change_times_and_no_token() {
    let routes = || Routes::or_staged(Route::Import);
    let plain = steady(3, 4);
    let expected = simulate(&plain).unwrap();
    let verified = simulate(&guarded(routes(), 0, 0)).unwrap();
    assert_eq!((&verified.outcomes, verified.resent), (&expected.outcomes, 0));
    assert!(verified.makespan_ns > expected.makespan_ns);
    // One route replaces another after the first wrong copy. Later wrong copies are sent once more.
    for (first, copies, resent) in [(0, 1, 1), (9, 1, 1), (9, 2, 2)] {
        let report = simulate(&guarded(routes(), first, copies)).unwrap();
        assert_eq!((&report.outcomes, report.resent), (&expected.outcomes, resent), "{first} {copies}");
    }
}

#[test]
fn a_route_that_stays_wrong_ends_the_run_with_its_edge() {
    let report = simulate(&guarded(Routes::or_staged(Route::Peer), 5, 1000)).unwrap();
    for outcome in report.outcomes.values() {
        let SimOutcome::Failed { error } = outcome else { panic!("{outcome:?}") };
        let (from, to) = ("made-up:0".into(), "made-up:1".into());
        let route = Route::HOST_STAGED;
        assert_eq!(*error, Error::Corrupted { from, to, route });
        assert!(
            error.to_string().starts_with(
                "activations from made-up:0 to made-up:1 arrive with wrong bytes over the staged"
            )
        );
    }
}

#[test]
fn the_next_route_replaces_one_whose_copies_are_refused() {
    let expected = simulate(&steady(3, 4)).unwrap();
    let run = |routes: Routes, first, copies| {
        let mut spec = steady(3, 4);
        spec.stages.iter_mut().for_each(|stage| stage.routes = routes.clone());
        spec.faults = vec![Fault::CopyRefused { stage: 0, first, copies }];
        simulate(&spec).unwrap()
    };
    for (first, copies) in [(0, 1), (9, 1), (9, 1000)] {
        let report = run(Routes::or_staged(Route::Peer), first, copies);
        assert_eq!(report.outcomes, expected.outcomes);
        assert!((1..=4).contains(&report.resent), "{}", report.resent);
    }
    for outcome in run(Route::Peer.into(), 9, 1).outcomes.values() {
        let SimOutcome::Failed { error } = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().starts_with("activations from made-up:0 to made-up:1 over the peer"));
    }
}

#[test]
fn without_verification_wrong_bytes_go_unnoticed() {
    let spec = SimSpec { verified: false, ..guarded(Route::Import.into(), 0, 1000) };
    assert_eq!(simulate(&spec).unwrap().outcomes, simulate(&steady(3, 4)).unwrap().outcomes);
}

#[test]
fn an_endless_loop_is_an_error() {
    let spec = SimSpec { faults: vec![Fault::NoticesRepeated { stage: 1 }], ..steady(3, 4) };
    let Err(SimFailure::Violation { what, .. }) = simulate(&spec) else { panic!("it ended") };
    assert!(what.ends_with("events without a micro-batch that enters"), "{what}");
}

#[test]
fn slow_and_unsteady_devices_change_times_and_no_token() {
    let expected = simulate(&steady(3, 4)).unwrap();
    let slow = QueueKind::ALL.map(|queue| Fault::Slow { stage: 1, queue, by_ns: 700_000 });
    for fault in slow.into_iter().chain([Fault::Unsteady { stage: 1, up_to_ns: 700_000 }]) {
        let report = simulate(&SimSpec { faults: vec![fault], ..steady(3, 4) }).unwrap();
        assert_eq!(report.outcomes, expected.outcomes, "{fault:?}");
        assert!(report.makespan_ns > expected.makespan_ns, "{fault:?}");
    }
}

#[test]
fn all_stages_work_at_once() {
    for (stages, sequences) in [(1, 8), (2, 16), (4, 32)] {
        let report = simulate(&steady(stages, sequences)).unwrap();
        for stage in 0..stages as u32 {
            let busy = report.utilisation(stage, QueueKind::Compute);
            assert!(busy > 0.85, "stage {stage} of {stages} is busy {busy:.2} of the time");
        }
    }
}

#[test]
fn transfers_overlap_with_computation() {
    // Copies take almost as long as computations. Executed in sequence, they would leave the stages idle half
    // of the time.
    let mut spec = steady(3, 24);
    for stage in &mut spec.stages {
        let copy = CopyTime { copy_ns: 80_000, ..CopyTime::default() };
        (stage.upload, stage.download, stage.logits) = (copy, copy, copy);
        stage.routes = Route::HostStaged { chunk_bytes: 4096, depth: 4 }.into();
    }
    spec.run.credits = 6;
    for request in &mut spec.requests {
        (request.prompt_tokens, request.want) = (96, Want::Logits);
    }
    let report = simulate(&spec).unwrap();
    for stage in 0..3 {
        let busy = report.utilisation(stage, QueueKind::Compute);
        assert!(busy > 0.85, "stage {stage} is busy {busy:.2} of the time");
    }
}

/// Checks that a fresh coordinator that receives the recorded events repeats the recorded actions.
#[test]
fn a_log_replays() {
    for seed in 0..20 {
        let spec = SimSpec::random(seed);
        let report = simulate(&spec).unwrap();
        let log = serde_json::to_string(&report.run_events).unwrap();
        let events: Vec<(Nanoseconds, RunEvent)> = serde_json::from_str(&log).unwrap();
        let mut core = RunCore::new(spec.run.clone()).unwrap();
        let mut actions = Vec::new();
        for (now, event) in events {
            core.step(now, event, &mut actions).unwrap();
        }
        assert_eq!(actions, report.run_actions);
    }
}

/// Returns a pipeline of two stages with a prefill stage on the first device. All prompts have 32 tokens.
fn with_prefill(from_tokens: u32) -> SimSpec {
    let mut spec = steady(2, 4);
    let passes = vec![SimPass { stage: 1, parts: vec![0], row_ns: 5_000.0 }];
    spec.prefill = Some(SimPrefill { stage: spec.stages[0].clone(), passes });
    spec.run.prefill_from = Some(from_tokens);
    spec
}

#[test]
fn long_prompts_pass_through_the_prefill_stage() {
    let spans = |spec: &SimSpec, kind: SimSpanKind| -> Vec<u32> {
        let report = simulate(spec).unwrap();
        report.spans.iter().filter(|span| span.kind == kind).map(|span| span.stage).collect()
    };
    let (long, short) = (with_prefill(32), with_prefill(33));
    assert_eq!(spans(&long, SimSpanKind::Prefill), [2; 4]);
    let mut passed = spans(&long, SimSpanKind::KeysAndValues);
    passed.sort_unstable();
    assert_eq!(passed, [1, 1, 1, 1, 2, 2, 2, 2]);
    assert!(spans(&short, SimSpanKind::Prefill).iter().all(|stage| *stage < 2));
    assert!(spans(&short, SimSpanKind::KeysAndValues).is_empty());
    let logits = SimRequest { want: Want::Logits, ..long.requests[0].clone() };
    let logits = SimSpec { requests: vec![logits], ..long };
    assert!(spans(&logits, SimSpanKind::KeysAndValues).is_empty());
}

#[test]
fn faults_of_a_prefill_stage_are_noticed() {
    let spec = with_prefill(1);
    for nth in 0..20 {
        for fault in [Fault::MessageLost { nth }, Fault::MessageTwice { nth }] {
            let spec = SimSpec { faults: vec![fault], ..spec.clone() };
            assert!(simulate(&spec).is_err(), "{fault:?}");
        }
    }
    // The second device decodes before it has received the keys and values.
    let early = SimSpec { faults: vec![Fault::WaitsIgnored { stage: 1 }], ..spec };
    assert!(matches!(simulate(&early), Err(SimFailure::Violation { .. })));
}

#[test]
fn wrong_keys_and_values_end_a_verified_run_with_their_devices() {
    let plain = with_prefill(1);
    let expected = simulate(&plain).unwrap();
    let verified = SimSpec { verified: true, ..plain.clone() };
    let report = simulate(&verified).unwrap();
    assert_eq!(report.outcomes, expected.outcomes);
    let sums: Vec<_> = report.spans.iter().filter(|span| span.kind == SimSpanKind::Checksum).collect();
    // The sums of four prompts on both devices, and those of activations.
    let at_prefill = |queue| sums.iter().filter(|span| (span.stage, span.queue) == (2, queue)).count();
    assert_eq!([QueueKind::Compute, QueueKind::Download].map(at_prefill), [4, 4]);
    for first in 0..4 {
        let fault = Fault::WrongBytes { stage: 2, first, copies: 1 };
        let report = simulate(&SimSpec { faults: vec![fault], ..verified.clone() }).unwrap();
        let mut failed = 0;
        for outcome in report.outcomes.values() {
            let SimOutcome::Failed { error } = outcome else { continue };
            let (from, to) = ("made-up:0".into(), "made-up:1".into());
            assert_eq!(*error, Error::WrongKeysAndValues { from, stage: 1, to });
            failed += 1;
        }
        assert!(failed > 0, "{fault:?}");
        let unnoticed = simulate(&SimSpec { faults: vec![fault], ..plain.clone() }).unwrap();
        assert_eq!(unnoticed.outcomes, expected.outcomes);
    }
}
