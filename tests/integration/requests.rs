//! Tests of requests that share the KV cache, of readers that are behind, and of seeds.

use crate::support::{self, Setup, argmax, block_on, greedy, listen, within};
use ragtag::{Dialogue, Engine, Event, Generation, Limits, Model, Prompt, Reason, Sampling};
use ragtag_scheduler::{Error as RunError, Refusal};
use std::time::Duration;

/// Difference between the best two logits from which on another order of rounding selects the same token.
const CLEAR_MARGIN: f32 = 0.005;

fn engine(model: &Model, cpu_devices: u32, context: u32, sequences: u32, all_logits: bool) -> Engine {
    support::engine(model, &Setup { cpu_devices, context, sequences, all_logits, ..Setup::default() })
}

/// Returns the difference between the best two logits at each of the last `count` positions of `ids`.
fn margins(engine: &Engine, ids: &[u32], count: usize) -> Vec<f32> {
    let logits = block_on(engine.session().logits(ids)).unwrap();
    let rows = logits.chunks_exact(logits.len() / ids.len()).skip(ids.len() - count);
    let margin = |row: &[f32]| {
        let best = argmax(row) as usize;
        let others = row.iter().enumerate().filter(|(at, _)| *at != best);
        row[best] - others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max)
    };
    rows.map(margin).collect()
}

/// Eight sequences at their full length need four times the blocks that the cache has.
#[test]
fn sequences_that_are_preempted_generate_the_same_tokens() {
    within(240, || {
        const NEW: u32 = 100;
        let model = Model::bundled().unwrap();
        for cpu_devices in [1, 2] {
            let engine = engine(&model, cpu_devices, 128, 2, true);
            let session = engine.session();
            let prompt = |salt: u32| (0..28).map(|at| 300 + (at * 7 + salt * 31) % 900).collect::<Vec<u32>>();
            let prompts: Vec<_> = (0..8).map(prompt).collect();
            let start = |ids: &Vec<u32>| {
                let generation = Generation { cache: false, ..greedy(NEW) };
                session.generate(Prompt::Tokens(ids), &generation).unwrap()
            };
            let alone: Vec<_> = prompts.iter().map(|ids| block_on(listen(start(ids))).unwrap().ids).collect();
            assert_eq!(engine.stats().counts.preempted, 0);
            let together: Vec<_> = prompts.iter().map(start).collect();
            let mut different = 0;
            for ((stream, alone), prompt) in together.into_iter().zip(&alone).zip(&prompts) {
                let said = block_on(listen(stream)).unwrap();
                assert_eq!((said.ids.len(), said.summary.reason), (NEW as usize, Reason::MaxTokens));
                let Some(at) = said.ids.iter().zip(alone).position(|(a, b)| a != b) else { continue };
                let before = [prompt, &alone[..at]].concat();
                let margin = margins(&engine, &before, 1)[0];
                assert!(margin <= CLEAR_MARGIN, "token {at} differs although the best leads by {margin}");
                different += 1;
            }
            assert!(different <= 1, "{different} of 8 sequences differ");
            let counts = engine.stats().counts;
            assert!(counts.preempted > 0, "{counts:?}");
        }
    });
}

#[test]
fn a_conversation_computes_only_the_new_tokens_of_each_turn() {
    within(120, || {
        let model = Model::bundled().unwrap();
        for cpu_devices in [1, 2] {
            let engine = engine(&model, cpu_devices, 512, 1, false);
            let session = engine.session();
            let mut dialogue = Dialogue::new(&model).unwrap();
            let mut held = Vec::new();
            for text in ["Once upon a time there was a king", "And what did the queen say?", "And then?"] {
                dialogue.ask(text);
                let ids = dialogue.prompt().unwrap().ids;
                let generation = Generation { max_tokens: 70, ..Generation::greedy() };
                let said =
                    block_on(listen(session.generate(Prompt::Tokens(&ids), &generation).unwrap())).unwrap();
                assert!(
                    ids.starts_with(&held),
                    "the turn does not continue the one before:\n{held:?}\n{ids:?}"
                );
                // The last token of a turn was never an input.
                assert_eq!(said.summary.cached_tokens as usize, held.len().saturating_sub(1));
                held = [ids, said.ids].concat();
                dialogue.answer(&said.text, "");
            }
            let uncached = Generation { cache: false, ..greedy(1) };
            let again = session.generate(Prompt::Tokens(&held), &uncached).unwrap();
            assert_eq!(block_on(listen(again)).unwrap().summary.cached_tokens, 0);
        }
    });
}

#[test]
fn a_stream_that_nobody_reads_pauses_and_loses_no_token() {
    within(240, || {
        let model = Model::bundled().unwrap();
        let engine = engine(&model, 1, 2048, 2, false);
        let session = engine.session();
        let mut slow = session.generate("Once", &greedy(1800)).unwrap();
        let settled = || loop {
            let before = engine.stats().new_tokens;
            std::thread::sleep(Duration::from_millis(200));
            if engine.stats().new_tokens == before {
                break before;
            }
        };
        while settled() < 1000 {}
        assert!(settled() <= 1025, "{} tokens for a reader that is absent", settled());
        let other = block_on(listen(session.generate("Once", &greedy(20)).unwrap())).unwrap();
        let mut ids = Vec::new();
        let summary = loop {
            match block_on(slow.next_event()).unwrap() {
                Event::Token { id, .. } => ids.extend(id),
                Event::Finished(summary) => break summary,
            }
        };
        assert_eq!((ids.len(), summary.new_tokens), (1800, 1800));
        assert_eq!(ids[..20], other.ids);
        // A stop string ends a sequence without a reader.
        let stop = model.tokenizer().unwrap().decode(&ids[30..34]);
        let before = settled();
        let stopped = session.generate("Once", &Generation { stop: vec![stop], ..greedy(500) }).unwrap();
        while settled() == before {}
        assert!(settled() - before <= 34, "{} tokens despite a stop string", settled() - before);
        assert_eq!(block_on(listen(stopped)).unwrap().summary.reason, Reason::Stop);
    });
}

#[test]
fn a_full_queue_is_busy_and_a_deadline_ends_a_generation() {
    within(120, || {
        let model = Model::bundled().unwrap();
        let devices = support::devices(&Setup::default());
        let planner = ragtag::Planner::new(&model).devices(&devices).context(512).sequences(1);
        let mut options = ragtag::EngineOptions::default();
        options.limits = Limits { requests: 1, tokens: 100 };
        let engine = Engine::start(&model, &devices, &planner, options).unwrap();
        let session = engine.session();
        // Each request fills the cache, and the requests wait until one of them is admitted.
        let mut running = Vec::new();
        let busy = loop {
            match session.try_generate("Once", &greedy(500)) {
                Ok(stream) => running.push(stream),
                Err(error) => break error,
            }
            assert!(running.len() < 100_000, "no request was refused");
        };
        let ragtag::Error::Run(RunError::Refused(Refusal::Busy { requests: 1, .. })) = &busy else {
            panic!("{busy:?}");
        };
        assert_eq!(ragtag::cli::exit_code(&busy), 2);
        assert!(busy.to_string().ends_with("try again later"), "{busy}");
        drop(running);
        // The queue is full until the pipeline has cancelled the request that waits.
        let until = |deadline| {
            let generation = Generation { deadline, ..greedy(500) };
            let stream = loop {
                match session.try_generate("Once", &generation) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            block_on(listen(stream)).unwrap()
        };
        let summary = until(Some(Duration::from_millis(300))).summary;
        assert!(matches!(summary.reason, Reason::Deadline | Reason::MaxTokens), "{summary:?}");
        let said = until(Some(Duration::ZERO));
        assert_eq!((said.summary.reason, said.ids.len()), (Reason::Deadline, 0));
    });
}

#[test]
fn a_generation_without_a_seed_draws_one() {
    within(60, || {
        let model = Model::bundled().unwrap();
        let engine = engine(&model, 1, 128, 1, false);
        let say = |seed| {
            let sampling = Sampling { seed, temperature: 1.5, ..Sampling::default() };
            let generation = Generation { sampling, ..greedy(40) };
            let said = block_on(listen(engine.session().generate("Once", &generation).unwrap())).unwrap();
            (said.ids, said.summary.seed)
        };
        let (one, other) = (say(None), say(None));
        assert_ne!(one, other);
        assert_eq!(say(Some(one.1)), one);
    });
}
