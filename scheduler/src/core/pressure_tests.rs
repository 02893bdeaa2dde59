//! Tests of the cache blocks of requests: growth, preemption, prefixes, pauses, deadlines and limits.

use super::tests::{Run, items, shape};
use super::*;
use crate::error::{Error, Refusal};
use ragtag_graph::execution::{Chunks, Eviction, KvUse, Reserve};

/// A pipeline of one stage and one credit with `kv_blocks` blocks, in which sequences grow.
fn growing(kv_blocks: u32, prefixes: Option<Eviction>) -> RunShape {
    let kv_use = KvUse { reserve: Reserve::Grow, prefixes };
    RunShape { kv_blocks, kv_use, credits: 1, ..shape(1) }
}

fn generate(tokens: impl IntoIterator<Item = u32>, max_new_tokens: u32) -> Prompt {
    let want = Want::Generate { max_new_tokens, end_tokens: [].into() };
    Prompt::new(tokens.into_iter().collect(), want)
}

impl Run {
    fn submit_prompt(&mut self, id: u64, prompt: Prompt) {
        self.step(RunEvent::Submit { sequence: SequenceId(id), prompt });
    }

    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.entered.is_empty() {
                return;
            }
            self.give_back();
        }
        panic!("the run does not end: {:?}", self.core.counts());
    }

    /// Returns the numbers of tokens of the sequences.
    fn counts(&self, ids: std::ops::Range<u64>) -> Vec<usize> {
        ids.map(|id| self.tokens.iter().filter(|(of, _)| of.0 == id).count()).collect()
    }

    fn ends(&self) -> Vec<(u64, FinishReason)> {
        self.finished.iter().map(|(id, reason)| (id.0, *reason)).collect()
    }
}

#[test]
fn the_youngest_sequence_makes_room_and_is_computed_again() {
    let mut run = Run::new(growing(5, None));
    for id in 0..3 {
        run.submit(id, 10, 40);
    }
    run.drain();
    assert_eq!(run.counts(0..3), [40, 40, 40]);
    let ends: Vec<_> = run.finished.iter().map(|(id, _)| id.0).collect();
    assert_eq!(ends, [0, 1, 2]);
    let preempted: Vec<_> = run.reuse.iter().map(|(_, _, times)| *times).collect();
    assert_eq!(preempted[0], 0, "the oldest keeps its blocks");
    assert!(preempted[2] > 0, "{preempted:?}");
    let counts = run.core.counts();
    assert_eq!((counts.free_blocks, counts.cached_blocks, counts.active), (5, 0, 0));
    assert_eq!(counts.preempted, u64::from(preempted.iter().sum::<u32>()));
}

#[test]
fn a_sequence_enters_again_with_the_tokens_that_it_has() {
    let mut run = Run::new(growing(5, None));
    run.submit(0, 16, 30);
    run.submit(1, 16, 30);
    let mut entered = Vec::new();
    while !run.entered.is_empty() {
        let batch = run.give_back();
        let of_1 = batch.items.iter().filter(|item| item.sequence.0 == 1);
        entered.extend(of_1.map(|item| (item.epoch, item.first_position, item.tokens.clone())));
    }
    let last_epoch: Vec<_> = entered.iter().filter(|(epoch, ..)| *epoch > 0).collect();
    let tokens: Vec<u32> = last_epoch.iter().flat_map(|(.., tokens)| tokens.clone()).collect();
    let wanted: Vec<u32> = (0..16).chain([7; 29]).collect();
    assert_eq!((last_epoch[0].1, tokens), (0, wanted));
    assert_eq!(run.counts(0..2), [30, 30]);
}

#[test]
fn a_token_counts_once_though_its_row_may_enter_twice() {
    let mut run = Run::new(RunShape { credits: 2, decode_groups: 2, ..growing(3, None) });
    run.submit(0, 15, 30);
    run.submit(1, 15, 30);
    run.drain();
    // A row of a preempted sequence may be in flight when the sequence enters again.
    assert_eq!(run.counts(0..2), [30, 30]);
    assert!(run.reuse.iter().any(|(.., preemptions)| *preemptions > 0));
}

#[test]
fn a_prefix_in_the_cache_does_not_enter_again() {
    let mut run = Run::new(growing(16, Some(Eviction::Lru)));
    run.submit_prompt(0, generate(0..40, 2));
    run.drain();
    assert_eq!(run.core.counts().cached_blocks, 3);
    // The last block has a generated token where this prompt has another.
    run.submit_prompt(1, generate((0..40).chain([90]), 1));
    assert_eq!(items(&run.entered[0]), [(1, 40, 1)]);
    run.drain();
    // The last token is computed for the next one, so the last block does not count.
    run.submit_prompt(2, generate(0..32, 1));
    assert_eq!(items(&run.entered[0]), [(2, 16, 8)]);
    run.drain();
    let private = |id, prompt: Prompt| (id, Prompt { shares_prefix: false, ..prompt });
    for (id, prompt) in [private(3, generate(0..40, 1)), (4, Prompt::new((0..40).collect(), Want::Logits))] {
        run.submit_prompt(id, prompt);
        assert_eq!(items(&run.entered[0]), [(id, 0, 8)]);
        run.drain();
    }
    let cached: Vec<_> = run.reuse.iter().map(|(_, cached, _)| *cached).collect();
    assert_eq!(cached, [0, 40, 16, 0, 0]);
    assert_eq!(run.core.counts().free_blocks, 16);
}

#[test]
fn a_prompt_waits_for_the_one_that_computes_its_prefix() {
    let shape = growing(32, Some(Eviction::Lru));
    let mut run = Run::new(RunShape { chunks: Chunks::fixed(64), max_rows: 64, credits: 2, ..shape });
    run.submit_prompt(9, generate(50..60, 1));
    run.submit_prompt(8, generate(60..70, 1));
    // Both credits are taken, so these enter together.
    for id in 0..3 {
        run.submit_prompt(id, generate((0..20).chain([90 + id as u32]), 1));
    }
    run.give_back();
    assert_eq!(items(&run.entered[1]), [(0, 0, 21)]);
    run.give_back();
    assert_eq!(items(&run.entered[1]), [(1, 16, 5), (2, 16, 5)]);
    run.drain();
    assert_eq!(run.finished.len(), 5);
}

#[test]
fn a_conversation_goes_on_where_it_ended() {
    let mut run = Run::new(growing(16, Some(Eviction::Lru)));
    run.submit_prompt(0, generate(0..20, 30));
    run.drain();
    // 20 prompt tokens and 29 generated ones were computed.
    let turn = (0..20).chain([7; 30]).chain([3, 4]);
    run.submit_prompt(1, generate(turn, 2));
    assert_eq!(items(&run.entered[0]), [(1, 49, 3)]);
}

#[test]
fn logits_are_delivered_once() {
    let mut run = Run::new(growing(4, None));
    let mut rows = vec![0; 60];
    run.submit_prompt(0, generate(0..10, 50));
    run.submit_prompt(1, Prompt::new((0..60).collect(), Want::Logits));
    for _ in 0..200 {
        if run.entered.is_empty() {
            break;
        }
        let batch = run.give_back();
        for item in batch.items.iter().filter(|item| item.logits == LogitRows::All) {
            (item.first_position..item.end_position()).for_each(|at| rows[at as usize] += 1);
        }
    }
    assert!(run.finished.contains(&(SequenceId(1), FinishReason::LogitsDone)));
    assert!(rows.iter().all(|&times| times == 1), "{rows:?}");
}

#[test]
fn a_paused_sequence_keeps_its_place_until_others_need_its_blocks() {
    let mut run = Run::new(growing(4, None));
    run.submit(0, 8, 20);
    run.submit(1, 8, 20);
    while run.counts(0..1)[0] < 3 {
        run.give_back();
    }
    run.step(RunEvent::Pause { sequence: SequenceId(0) });
    let before = run.counts(0..1)[0];
    while run.counts(1..2)[0] < 15 {
        run.give_back();
    }
    // One row was in flight.
    assert!(run.counts(0..1)[0] <= before + 1);
    run.step(RunEvent::Resume { sequence: SequenceId(0) });
    while run.counts(0..1)[0] < 10 {
        run.give_back();
    }
    // The paused sequence is the oldest, but a new one needs blocks.
    run.step(RunEvent::Pause { sequence: SequenceId(0) });
    run.submit(2, 40, 2);
    run.drain();
    assert_eq!(run.counts(1..3), [20, 2]);
    run.step(RunEvent::Resume { sequence: SequenceId(0) });
    run.drain();
    assert_eq!(run.counts(0..1), [20]);
    assert!(run.reuse.contains(&(SequenceId(0), 0, 1)), "{:?}", run.reuse);
}

#[test]
fn sequences_end_at_their_deadlines() {
    let mut run = Run::new(growing(8, None));
    let until = |at| Prompt { deadline_ns: Some(at), ..generate(0..8, 20) };
    run.submit_prompt(0, until(100));
    run.submit_prompt(1, until(50));
    run.submit_prompt(2, generate(0..8, 20));
    assert_eq!(run.core.next_deadline_ns(), Some(50));
    run.now = 60;
    run.step(RunEvent::Tick);
    assert_eq!((run.ends(), run.core.next_deadline_ns()), (vec![(1, FinishReason::Deadline)], Some(100)));
    run.give_back();
    run.now = 100;
    run.give_back();
    run.drain();
    assert_eq!(run.ends()[1..], [(0, FinishReason::Deadline), (2, FinishReason::MaxTokens)]);
    assert_eq!((run.core.next_deadline_ns(), run.core.counts().free_blocks), (None, 8));
}

#[test]
fn requests_beyond_the_limits_are_refused() {
    let limits = Limits { requests: 2, tokens: 20 };
    let mut run = Run::new(RunShape { limits, ..growing(1, None) });
    let mut refused = |tokens: u32| {
        let mut actions = Vec::new();
        let sequence = SequenceId(100 + u64::from(tokens));
        let prompt = generate(0..tokens, 1);
        run.core.step(0, RunEvent::Submit { sequence, prompt }, &mut actions).unwrap();
        actions.into_iter().any(|action| match action {
            RunAction::Fail { error: Error::Refused(Refusal::Busy { .. }), .. } => true,
            RunAction::Fail { error, .. } => panic!("{error}"),
            _ => false,
        })
    };
    // The first is admitted. An empty queue takes any request.
    assert!(!refused(15));
    assert!(!refused(16));
    assert!(refused(5), "21 tokens would wait");
    assert!(!refused(4));
    assert!(refused(1), "three requests would wait");
    assert_eq!((run.core.counts().waiting, run.core.counts().waiting_tokens), (2, 20));
}

#[test]
fn priorities_change_the_order_but_not_for_ever() {
    let second = 1_000_000_000;
    let mut run = Run::new(RunShape { max_sequences: 1, ..growing(1, None) });
    let of = |priority| Prompt { priority, ..generate([1], 1) };
    run.submit_prompt(0, of(Priority::Normal));
    for (id, at, priority) in [
        (1, 0, Priority::Low),
        (2, 1, Priority::Normal),
        (3, 2, Priority::High),
        (4, 12, Priority::High),
        (5, 62, Priority::Normal),
    ] {
        run.now = at * second;
        run.submit_prompt(id, of(priority));
    }
    run.drain();
    let order: Vec<_> = run.finished.iter().map(|(id, _)| id.0).collect();
    assert_eq!(order, [0, 3, 2, 4, 1, 5]);
}

#[test]
fn small_requests_overtake_one_that_waits_for_memory_but_not_for_ever() {
    let mut run = Run::new(growing(4, None));
    run.submit(0, 20, 6);
    run.submit(1, 60, 1);
    for id in 2..80 {
        run.submit(id, 4, 2);
    }
    run.drain();
    let order: Vec<_> = run.finished.iter().map(|(id, _)| id.0).collect();
    let at = order.iter().position(|id| *id == 1).unwrap();
    assert!((3..=40).contains(&at), "the large request ended as number {at}");
    assert_eq!(order.len(), 80);
}

/// Checks that prompts enter beside decode rows that are as many as the chunk has rows.
#[test]
fn prompts_do_not_starve_beside_decode_rows() {
    for (credits, groups) in [(1, 1), (2, 2)] {
        let chunks = Chunks { beside_decode: 4, ..Chunks::fixed(8) };
        let mut run = Run::new(RunShape { credits, decode_groups: groups, chunks, ..growing(64, None) });
        for id in 0..8 {
            run.submit(id, 2, 50);
        }
        while run.counts(0..8).iter().any(|&tokens| tokens < 2) {
            run.give_back();
        }
        run.submit(8, 8, 1);
        let mut steps = 0;
        while run.counts(8..9)[0] == 0 {
            run.give_back();
            steps += 1;
        }
        assert!(steps <= 16, "{steps} steps with {credits} credits");
    }
}

#[test]
fn a_stop_rule_ends_a_sequence_after_its_token() {
    let mut run = Run::new(growing(4, None));
    run.submit(0, 4, 9);
    let batch = run.entered.remove(0);
    let ready = super::tests::timeline(0, ragtag_hal::QueueKind::Download).at(1);
    run.step(RunEvent::Return(Return { micro_batch: batch.id, ready, rows: ResultRows::default() }));
    run.step(RunEvent::Progress { path: Path::Stages, value: 1 });
    let sampled = vec![Sampled { sequence: SequenceId(0), token: Ok(5), stops: true }];
    run.step(RunEvent::Collected { micro_batch: batch.id, sampled });
    assert_eq!(
        (run.tokens.clone(), run.ends()),
        (vec![(SequenceId(0), 5)], vec![(0, FinishReason::StopRule)])
    );
    assert!(run.entered.is_empty(), "no row is computed after it");
}
