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
