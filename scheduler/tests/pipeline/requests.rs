//! Requests: logits, ends of sequences, refusals and cancellation.

use super::*;

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
    let job = Job::Generate { max_new_tokens: 9, end_tokens, sampler: Box::new(Greedy), stop: None };
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
    let (_, other) = submit(&pipeline, &prompt, generate(9));
    let replies = all(&submit(&pipeline, &prompt, Job::generate(9, Never)).1);
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

/// Sampler that reports each call and waits until the test lets it go on.
struct Gated {
    calls: Sender<()>,
    gate: Receiver<()>,
}

impl Sample for Gated {
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> std::result::Result<u32, String> {
        self.calls.send(()).unwrap();
        self.gate.recv_timeout(TIMEOUT).map_err(|error| error.to_string())?;
        Greedy.sample(logits, history)
    }
}

/// Submits a request whose sampler blocks the coordinator. Returns when it does. Dropping the sender ends the request.
fn block(pipeline: &Pipeline) -> (Sender<()>, Receiver<Reply>) {
    let ((calls, called), (open, gate)) = (channel(), channel());
    let (_, replies) = submit(pipeline, &[1], Job::generate(1, Gated { calls, gate }));
    called.recv_timeout(TIMEOUT).unwrap();
    (open, replies)
}

#[test]
fn requests_and_cancellations_never_block_and_limits_refuse_requests_at_once() {
    let mut setup = Setup::new(2);
    setup.options.limits = core::Limits { requests: 3, tokens: 40 };
    let pipeline = setup.start().unwrap();
    for _ in 0..2 {
        let (open, blocked) = block(&pipeline);
        let request = |tokens| {
            let (send, replies) = channel();
            (Request::new(prompt(tokens, 1), generate(3), sink_of(send)), replies)
        };
        let refused = |tokens| pipeline.try_submit(request(tokens).0).unwrap_err();
        // A queue without requests takes any.
        let mut taken = vec![submit(&pipeline, &prompt(30, 1), generate(3)).1];
        assert_eq!(refused(11), Busy { requests: 1, tokens: 30 });
        for tokens in [3, 7] {
            let (request, replies) = request(tokens);
            pipeline.try_submit(request).unwrap();
            taken.push(replies);
        }
        let busy = Busy { requests: 3, tokens: 40 };
        assert_eq!(refused(1), busy);
        assert_eq!(failed(&all(&submit(&pipeline, &[1], generate(3)).1)), busy.into());
        // They would fill any bounded channel.
        (0..5000).for_each(|_| pipeline.cancel(SequenceId(u64::MAX)));
        open.send(()).unwrap();
        assert_eq!(tokens(&all(&blocked)).len(), 1);
        taken.iter().for_each(|replies| assert_eq!(tokens(&all(replies)).len(), 3));
        settled(&pipeline);
    }
    let (open, _) = block(&pipeline);
    let long = submit(&pipeline, &prompt(60, 2), generate(3)).1;
    open.send(()).unwrap();
    assert_eq!(tokens(&all(&long)), setup.model.reference(&prompt(60, 2), 3));
}

#[test]
fn a_stop_rule_ends_its_sequence_before_another_row_is_computed() {
    struct Third(u32);
    impl StopRule for Third {
        fn matches(&mut self, _: u32) -> bool {
            self.0 += 1;
            self.0 == 3
        }
    }
    let setup = Setup::new(2);
    let pipeline = setup.start().unwrap();
    let prompt = prompt(10, 1);
    let job = Job::Generate {
        max_new_tokens: 50,
        end_tokens: Vec::new(),
        sampler: Box::new(Greedy),
        stop: Some(Box::new(Third(0))),
    };
    let replies = all(&submit(&pipeline, &prompt, job).1);
    assert_eq!(finished(&replies).reason, FinishReason::StopRule);
    assert_eq!(tokens(&replies), setup.model.reference(&prompt, 3));
    settled(&pipeline);
    let rows = pipeline.shutdown().stats.stages[0].counts.rows;
    assert_eq!(rows, 10 + 2, "the last token is no row");
}

#[test]
fn a_paused_sequence_waits_without_losing_a_token_and_others_go_on() {
    let setup = Setup::new(2);
    let pipeline = setup.start().unwrap();
    let prompt = prompt(20, 2);
    let (send, replies) = channel();
    let mut count = 0;
    let reply = move |reply| {
        count += 1;
        drop(send.send(reply));
        if count % 4 == 0 { Flow::Pause } else { Flow::Go }
    };
    let id = pipeline.submit(Request::new(&prompt[..], generate(40), reply));
    let mut got = Vec::new();
    for round in 1..10 {
        let wanted = 4 * round;
        while got.len() < wanted {
            got.push(replies.recv_timeout(TIMEOUT).unwrap());
        }
        let other = submit(&pipeline, &prompt, generate(8)).1;
        assert_eq!(tokens(&all(&other)), setup.model.reference(&prompt, 8));
        got.extend(replies.try_iter());
        assert!(got.len() <= wanted + 1, "{} replies at a pause after {wanted}", got.len());
        pipeline.resume(id);
    }
    got.extend(all(&replies));
    assert_eq!(tokens(&got), setup.model.reference(&prompt, 40));
    // Its reader never comes back, and its deadline passes while nothing else happens.
    let (send, replies) = channel();
    let reply = move |reply| {
        drop(send.send(reply));
        Flow::Pause
    };
    let request = Request::new(&prompt[..], generate(40), reply);
    pipeline.submit(Request { deadline: Some(Duration::from_millis(100)), ..request });
    let replies = all(&replies);
    assert_eq!(finished(&replies).reason, FinishReason::Deadline);
    assert!(setup.model.reference(&prompt, 2).starts_with(&tokens(&replies)));
    assert_eq!(settled(&pipeline).free_blocks, setup.model.kv_blocks);
}
