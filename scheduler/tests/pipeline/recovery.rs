//! Recovery: other stages replace those of a pipeline whose device has failed, and no token is lost.

use super::*;
use failures::nothing_leaks;
use ragtag_graph::WeightBuffer;
use ragtag_scheduler::LoadProgress;
use ragtag_scheduler::core::SequenceId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::null::{Hang, Zero};

/// Number of tokens of each sequence.
const TOKENS: u32 = 30;

fn start(setup: &Setup) -> (Pipeline, Recovery) {
    Pipeline::start_recoverable(setup.specs(), &setup.options, |_| {}).unwrap()
}

/// Replaces the failed stages by those of `setup`.
fn restart(recovery: &Recovery, setup: &Setup) -> Result<()> {
    assert!(recovery.clear().is_empty());
    recovery.restart(setup.specs(), &setup.options, |_| {})
}

/// Returns a pipeline whose device at `stage` is lost at a command.
fn losing(stages: usize, stage: usize, command: u64) -> Setup {
    let mut setup = Setup::new(stages);
    setup.devices[stage].lost_at_command = Some(command);
    setup
}

/// Returns a sampler whose tokens depend on a seed.
fn sampler(seed: u64) -> Sampler {
    Sampler::new(Sampling { seed: Some(seed), temperature: 1.5, ..Sampling::default() }).unwrap()
}

/// Submits a greedy and a random request for each of five prompts.
fn requests(pipeline: &Pipeline) -> Vec<(SequenceId, Receiver<Reply>)> {
    let prompts = (0..5u32).map(|at| prompt(1 + at * 7, at));
    let both = prompts.flat_map(|prompt| {
        let random = Job::generate(TOKENS, sampler(prompt.len() as u64));
        [submit(pipeline, &prompt, generate(TOKENS)), submit(pipeline, &prompt, random)]
    });
    both.collect()
}

fn results(requests: &[(SequenceId, Receiver<Reply>)]) -> Vec<Vec<u32>> {
    let ended = requests.iter().map(|(_, replies)| all(replies));
    let checked = ended.inspect(|replies| assert_eq!(finished(replies).reason, FinishReason::MaxTokens));
    checked.map(|replies| tokens(&replies)).collect()
}

#[test]
fn every_sequence_gets_the_tokens_of_a_run_without_a_loss() {
    let undisturbed = Setup::new(3).start().unwrap();
    let expected = results(&requests(&undisturbed));
    assert_eq!(expected[0], Setup::new(3).model.reference(&prompt(1, 0), TOKENS as usize));
    for stage in 0..3 {
        for command in [30, 37, 52, 80, 150] {
            let (pipeline, recovery) = start(&losing(3, stage, command));
            let requests = requests(&pipeline);
            for (next, device) in [(losing(2, 1, 60), stage), (Setup::new(1), 1)] {
                let interruption = recovery.wait().unwrap();
                assert_eq!(interruption.device, Some(format!("cpu:{device}")), "{}", interruption.error);
                restart(&recovery, &next).unwrap();
            }
            assert_eq!(results(&requests), expected, "stage {stage}, command {command}");
            let counts = settled(&pipeline);
            assert_eq!((counts.free_blocks, counts.free_credits), (Setup::new(1).options.kv_blocks, 2));
            let report = pipeline.shutdown();
            assert_eq!(report.stats.stages.len(), 1);
            assert_eq!(report.stats.new_tokens, u64::from(TOKENS) * 10);
            assert_eq!(recovery.wait(), None);
        }
    }
}

/// Checks that stages upload only the weights that their devices do not keep.
#[test]
fn devices_keep_weights_that_they_need_again() {
    let expected = results(&requests(&Setup::new(3).start().unwrap()));
    let (pipeline, recovery) = start(&losing(3, 2, 80));
    let requests = requests(&pipeline);
    let next = Setup::new(2);
    let (before, after) = (Setup::new(3).specs(), next.specs());
    let bytes = |weights: &dyn Fn(&StageSpec, &StageSpec) -> u64| {
        before.stages.iter().zip(&after.stages).map(|(before, after)| weights(before, after)).sum::<u64>()
    };
    let all = bytes(&|_, after| after.compiled.weights.iter().map(|weight| weight.bytes()).sum());
    let moved = bytes(&|before, after| {
        let is_held =
            |weight: &&WeightBuffer| before.compiled.weights.iter().any(|held| held.is_same(weight));
        after.compiled.weights.iter().filter(|weight| !is_held(weight)).map(|weight| weight.bytes()).sum()
    });
    assert!(0 < moved && moved < all, "{moved} of {all} bytes");
    recovery.wait().unwrap();
    for (kept, uploaded) in [(true, moved), (true, 0), (false, all)] {
        let stopped = recovery.stopped();
        if !kept {
            recovery.forget_weights();
        }
        let done = Arc::<AtomicU64>::default();
        let count = Arc::clone(&done);
        let progress = move |progress: LoadProgress| {
            count.fetch_max(progress.done_bytes, Ordering::Relaxed);
        };
        recovery.restart(next.specs(), &next.options, progress).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), uploaded);
        assert!(stopped.end().is_empty());
        if uploaded == moved {
            assert_eq!(results(&requests), expected);
        }
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(TOKENS));
        assert_eq!(tokens(&super::all(&replies)), next.model.reference(&prompt(9, 1), TOKENS as usize));
        pipeline.interrupt();
        assert!(recovery.wait().unwrap().has_stopped);
    }
}

/// Checks that other stages replace those of a sound pipeline, and that an interruption of an interrupted run is a notice.
#[test]
fn the_owner_of_a_pipeline_replaces_its_stages() {
    let expected = results(&requests(&Setup::new(3).start().unwrap()));
    let (pipeline, recovery) = start(&Setup::new(3));
    let requests = requests(&pipeline);
    for (count, stages) in [(1, 2), (2, 1), (3, 3)] {
        for has_stopped in [true, false] {
            pipeline.interrupt();
            let interruption = recovery.wait().unwrap();
            assert_eq!((interruption.device, interruption.has_stopped), (None, has_stopped));
        }
        restart(&recovery, &Setup::new(stages)).unwrap();
        while pipeline.stats().interruptions.count < count {
            std::thread::yield_now();
        }
    }
    assert_eq!(results(&requests), expected);
    let interruptions = pipeline.stats().interruptions;
    assert!(interruptions.token_ns >= Some(interruptions.restarted_ns), "{interruptions:?}");
    recovery.interrupt();
    recovery.wait().unwrap();
    drop(recovery);
    assert_eq!(failed(&all(&submit(&pipeline, &prompt(9, 1), generate(1)).1)), Error::Stopped);
}

#[test]
fn requests_arrive_and_are_cancelled_while_no_stages_are_there() {
    let (pipeline, recovery) = start(&losing(2, 0, 40));
    let first = submit(&pipeline, &prompt(9, 1), generate(TOKENS));
    let cancelled = submit(&pipeline, &prompt(9, 2), generate(TOKENS));
    recovery.wait().unwrap();
    assert!(recovery.clear().is_empty());
    pipeline.cancel(cancelled.0);
    assert_eq!(finished(&all(&cancelled.1)).reason, FinishReason::Cancelled);
    let late = submit(&pipeline, &prompt(9, 3), generate(TOKENS));
    let long = submit(&pipeline, &prompt(100, 4), generate(TOKENS));
    let mut next = Setup::new(1);
    next.options.context = 64;
    recovery.restart(next.specs(), &next.options, |_| {}).unwrap();
    for ((_, replies), salt) in [(&first, 1), (&late, 3)] {
        let expected = next.model.reference(&prompt(9, salt), TOKENS as usize);
        assert_eq!(tokens(&all(replies)), expected);
    }
    let refused = Error::Refused(Refusal::NoLongerFits { tokens: 100, context: 64 });
    assert_eq!(failed(&all(&long.1)), refused);
}

#[test]
fn a_failed_load_may_be_repeated_and_the_lost_devices_keep_nothing() {
    let mut setup = losing(3, 1, 40);
    let (specs, watches) = setup.watched();
    let (pipeline, recovery) = Pipeline::start_recoverable(specs, &setup.options, |_| {}).unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(TOKENS));
    recovery.wait().unwrap();
    assert!(recovery.clear().is_empty());
    nothing_leaks(&watches, "lost");
    setup = Setup::new(2);
    setup.devices[1].most_bytes = Some(12_000);
    assert!(matches!(restart(&recovery, &setup), Err(Error::Memory { stage: 1, .. })));
    restart(&recovery, &Setup::new(2)).unwrap();
    assert_eq!(tokens(&all(&replies)), setup.model.reference(&prompt(9, 1), TOKENS as usize));
}

#[test]
fn without_a_recovery_every_sequence_gets_the_error_of_the_device() {
    for is_late in [false, true] {
        let (pipeline, recovery) = start(&losing(2, 1, 40));
        let mut recovery = Some(recovery).filter(|_| is_late);
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(TOKENS));
        if let Some(recovery) = recovery.take() {
            recovery.wait().unwrap();
            recovery.clear();
        }
        let error = failed(&all(&replies));
        assert!(matches!(&error, Error::Stage { stage: 1, device, .. } if device == "cpu:1"), "{error}");
        assert_eq!(failed(&all(&submit(&pipeline, &prompt(9, 1), generate(1)).1)), error);
    }
}

#[test]
fn a_pipeline_without_stages_stops() {
    let (pipeline, recovery) = start(&losing(2, 0, 40));
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(TOKENS));
    recovery.wait().unwrap();
    pipeline.shutdown();
    assert_eq!(finished(&all(&replies)).reason, FinishReason::Cancelled);
    assert_eq!(restart(&recovery, &Setup::new(1)), Err(Error::Stopped));
    assert_eq!(recovery.wait(), None);
}

/// Checks that recovery does not wait for a driver that hangs, that requests go on before it is left behind, and that later
/// answers of it do no harm.
#[test]
fn a_device_that_hangs_is_replaced() {
    let (answer, release) = channel();
    let (news, hangs) = channel();
    let mut specs = support::null::hanging_pipeline(Hang { computation: 3, release, news });
    for stage in &mut specs.stages {
        (stage.longest, stage.compute_timeout) =
            (Some(Duration::from_millis(1)), Some(Duration::from_millis(100)));
    }
    let options = PipelineOptions::new(2, 128, 16, 12);
    let (pipeline, recovery) = Pipeline::start_recoverable(specs, &options, |_| {}).unwrap();
    let (_, replies) = submit(&pipeline, &prompt(9, 1), Job::generate(TOKENS, Zero));
    assert_eq!(hangs.recv_timeout(TIMEOUT), Ok(()));
    let interruption = recovery.wait().unwrap();
    assert!(matches!(&interruption.error, Error::StalledCompute { stage: 1, .. }), "{interruption:?}");
    assert_eq!(interruption.device.as_deref(), Some("null:1"));
    let stopped = recovery.stopped();
    let options = PipelineOptions::new(1, 128, 16, 12);
    recovery.restart(support::null::pipeline(&[0]), &options, |_| {}).unwrap();
    assert_eq!(tokens(&all(&replies)).len(), TOKENS as usize);
    assert_eq!(stopped.end(), ["null:1"]);
    drop(answer);
    assert!(pipeline.shutdown().left.is_empty());
}
