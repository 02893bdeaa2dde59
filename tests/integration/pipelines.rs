//! Tests that all pipelines give the same results, whatever their cuts, devices and micro-batches. Tests that
//! a sequence frees its resources no matter how it ends.

use crate::support::{
    self, Said, Setup, block_on, golden, greedy, listen, model_path, relative_error, within,
};
use ragtag::cli::exit_code;
use ragtag::{
    DeviceOptions, Devices, Engine, EngineOptions, Error, Event, Generation, Granularity, Model, Planner,
    Prompt, Reason, Session, WireType, overlap,
};
use ragtag_hal::{Checked, Device, LeakWatch, Leaks, QueueKind};
use ragtag_kernels::{Activations, NumericsClass};
use ragtag_scheduler::SpanKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio_stream::StreamExt;

const BITNET: &str = "tales-bitnet-tq2_0";
const LLAMA: &str = "tales-q8_0";
/// Number of segments: the embedding, twelve blocks and the head.
const SEGMENTS: u32 = 14;
/// Number of half-block segments: the embedding, twelve attention and twelve feed-forward halves, and the
/// head.
const HALVES: u32 = 26;

fn open(name: &str) -> Model {
    Model::open(model_path(name)).unwrap()
}

/// Returns the ids of the first golden prompt and of `more` golden tokens after it.
fn ids(name: &str, more: usize) -> Vec<u32> {
    let case = &golden(name).cases[0];
    [&case.prompt_ids[..], &case.greedy_ids[..more]].concat()
}

fn logits(model: &Model, setup: &Setup<'_>, ids: &[u32]) -> Vec<f32> {
    let engine = support::engine(model, setup);
    block_on(engine.session().logits(ids)).unwrap()
}

fn assert_same_bits(out: &[f32], reference: &[f32], what: &str) {
    assert_eq!(out.len(), reference.len(), "{what}");
    let other = out.iter().zip(reference).position(|(o, r)| o.to_bits() != r.to_bits());
    if let Some(at) = other {
        panic!("{what}: value {at} of {} is {}, not {}", out.len(), out[at], reference[at]);
    }
}

fn say(session: &Session, prompt: &[u32], generation: &Generation) -> ragtag::Result<Said> {
    block_on(listen(session.generate(Prompt::Tokens(prompt), generation)?))
}

/// Returns the setup for engines that only generate text, and so need only the logits of each last row.
fn generating<'a>() -> Setup<'a> {
    Setup { all_logits: false, ..Setup::default() }
}

// ---- Cuts ---------------------------------------------------------------------------------------------------------

fn check_every_cut(name: &'static str, activations: Activations) {
    within(120, move || {
        let (model, ids) = (open(name), ids(name, 8));
        assert_eq!(model.graph().segment_count(), SEGMENTS as usize);
        let setup = Setup { activations, chunk: 8, context: 32, ..Setup::default() };
        let alone = logits(&model, &setup, &ids);
        assert!(alone.iter().all(|v| v.is_finite()));
        for cut in 1..SEGMENTS {
            for (first, second) in [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")] {
                let split = format!("0-{}={first},{cut}-{}={second}", cut - 1, SEGMENTS - 1);
                let setup = Setup { cpu_devices: 2, split: Some(&split), ..setup.clone() };
                let engine = support::engine(&model, &setup);
                let order: Vec<_> = engine.stages().iter().map(|s| s.adapter.label()).collect();
                assert_eq!(order, [first, second]);
                let out = block_on(engine.session().logits(&ids)).unwrap();
                assert_same_bits(&out, &alone, &format!("{name} {activations:?} {split}"));
            }
        }
    });
}

/// Checks each of the twelve cuts between the two halves of a block. The logits must be bit-identical to
/// those of a single device.
fn check_cuts_within_blocks(name: &'static str, activations: Activations) {
    within(120, move || {
        let (model, ids) = (open(name), ids(name, 8));
        let setup = Setup { activations, chunk: 8, context: 32, ..Setup::default() };
        let alone = logits(&model, &setup, &ids);
        assert!(alone.iter().all(|v| v.is_finite()));
        for cut in (2..HALVES).step_by(2) {
            let split = format!("0-{}=cpu:1,{cut}-{}=cpu:0", cut - 1, HALVES - 1);
            let granularity = Granularity::HalfBlock;
            let setup = Setup { cpu_devices: 2, granularity, split: Some(&split), ..setup.clone() };
            let out = logits(&model, &setup, &ids);
            assert_same_bits(&out, &alone, &format!("{name} {activations:?} {split}"));
        }
    });
}

#[test]
fn every_cut_within_a_block_of_the_ternary_model_gives_the_bits_of_one_device() {
    check_cuts_within_blocks(BITNET, Activations::Int8);
}

#[test]
fn every_cut_within_a_block_of_the_llama_model_gives_the_bits_of_one_device() {
    check_cuts_within_blocks(LLAMA, Activations::F32);
}

#[test]
fn each_half_of_a_block_on_its_own_device_gives_the_bits_of_one() {
    within(120, || {
        let each: Vec<_> = (0..HALVES).map(|s| format!("{s}=cpu:{s}")).collect();
        for (name, activations) in [(BITNET, Activations::F32), (LLAMA, Activations::Int8)] {
            let (model, ids) = (open(name), ids(name, 8));
            let setup = Setup { activations, chunk: 8, context: 32, ..Setup::default() };
            let alone = logits(&model, &setup, &ids);
            let granularity = Granularity::HalfBlock;
            let split = each.join(",");
            let setup = Setup { cpu_devices: HALVES, granularity, split: Some(&split), ..setup };
            assert_same_bits(&logits(&model, &setup, &ids), &alone, name);
        }
    });
}

#[test]
fn every_cut_of_the_ternary_model_gives_the_bits_of_one_device() {
    check_every_cut(BITNET, Activations::F32);
}

#[test]
fn every_cut_of_the_llama_model_gives_the_bits_of_one_device() {
    check_every_cut(LLAMA, Activations::F32);
}

#[test]
fn every_cut_with_int8_activations_gives_the_bits_of_one_device() {
    check_every_cut(LLAMA, Activations::Int8);
}

#[test]
fn three_four_and_fourteen_devices_give_the_bits_of_one() {
    within(120, || {
        let (model, ids) = (open(BITNET), ids(BITNET, 8));
        let setup = Setup { chunk: 8, context: 32, ..Setup::default() };
        let alone = logits(&model, &setup, &ids);
        let each: Vec<_> = (0..SEGMENTS).map(|s| format!("{s}=cpu:{s}")).collect();
        for split in [
            "0=cpu:0,1-12=cpu:1,13=cpu:2",
            "0-4=cpu:2,5-8=cpu:0,9-13=cpu:1",
            "0-3=cpu:0,4-6=cpu:1,7-10=cpu:2,11-13=cpu:3",
            "0-11=cpu:3,12=cpu:1,13=cpu:0",
            &each.join(","),
        ] {
            let setup = Setup { cpu_devices: SEGMENTS, split: Some(split), ..setup.clone() };
            assert_same_bits(&logits(&model, &setup, &ids), &alone, split);
        }
    });
}

#[test]
fn devices_with_several_stages_give_the_bits_of_one() {
    within(120, || {
        let (model, ids) = (open(LLAMA), ids(LLAMA, 8));
        let setup = Setup { chunk: 8, context: 32, ..Setup::default() };
        let alone = logits(&model, &setup, &ids);
        for split in [
            "0-3=cpu:0,4-7=cpu:1,8-13=cpu:0",
            "0-3=cpu:0,4-7=cpu:1,8-10=cpu:0,11-13=cpu:1",
            "0-1=cpu:2,2=cpu:0,3-8=cpu:1,9-11=cpu:2,12=cpu:1,13=cpu:0",
        ] {
            let setup = Setup { cpu_devices: 3, split: Some(split), ..setup.clone() };
            assert_same_bits(&logits(&model, &setup, &ids), &alone, split);
        }
        let split = support::feed_forward_apart("cpu:0", "cpu:1", HALVES);
        let granularity = Granularity::HalfBlock;
        let setup = Setup { cpu_devices: 2, granularity, split: Some(&split), ..setup };
        assert_same_bits(&logits(&model, &setup, &ids), &alone, &split);
    });
}

/// Returns a model in which the embedding of `token` contains the outlier `value`. Some real models have such
/// outliers in their residual streams.
fn with_an_outlier(token: usize, value: f32) -> Model {
    let mut bytes = support::model_bytes(LLAMA);
    let table = support::tensor_data(&bytes, "token_embd.weight");
    let width = open(LLAMA).hyperparameters().width as usize;
    // A Q8_0 block has a scale in f16 and 32 quants.
    let at = table.start + token * width / 32 * 34;
    let mut block = [0; 34];
    block[..2].copy_from_slice(&half::f16::from_f32(value / 100.0).to_le_bytes());
    block[2] = 100;
    support::patch(&mut bytes, at, &block);
    Model::from_bytes("outlier", bytes).unwrap()
}

/// Checks that the f16 wire type saturates values beyond the largest f16 and rounds small values. All logits
/// must stay finite, and the outlier must not affect earlier rows.
#[test]
fn outliers_stay_finite_with_the_f16_wire_type() {
    let ids = ids(LLAMA, 8);
    let (token, before) = (ids[5] as usize, ids[..5].iter().all(|id| *id != ids[5]));
    assert!(before);
    let cut = "0=cpu:0,1-13=cpu:1";
    let with = |value: f32, wire_type| {
        let model = with_an_outlier(token, value);
        let activations = Activations::Int8;
        let setup = Setup { cpu_devices: 2, split: Some(cut), activations, wire_type, ..Setup::default() };
        (model.hyperparameters().vocabulary as usize, logits(&model, &setup, &ids))
    };
    for value in [6e4, 1e5, 3e6] {
        let (vocabulary, wide) = with(value, WireType::F32);
        let (_, narrow) = with(value, WireType::F16);
        assert!(narrow.iter().chain(&wide).all(|logit| logit.is_finite()), "{value}");
        // The outlier does not affect earlier rows.
        let error = relative_error(&narrow[..5 * vocabulary], &wide[..5 * vocabulary]);
        assert!(error <= NumericsClass::Fast.tolerance(), "{value}: {error}");
        let row = 5 * vocabulary..6 * vocabulary;
        let error = relative_error(&narrow[row.clone()], &wide[row]);
        println!("an outlier of {value}: relative error {error:.2e} in its row");
        // A norm follows. The only large value of a row dominates the norm regardless of the value's size.
        assert!(error <= NumericsClass::Fast.tolerance(), "{value}: {error}");
    }
}

// ---- Micro-batches ------------------------------------------------------------------------------------------------

fn check_chunks(activations: Activations, class: NumericsClass) {
    within(120, move || {
        for name in [BITNET, LLAMA] {
            let (model, ids) = (open(name), ids(name, 64));
            let setup = |chunk, cpu_devices| Setup {
                activations,
                chunk,
                cpu_devices,
                context: 96,
                ..Setup::default()
            };
            let whole = logits(&model, &setup(96, 1), &ids);
            for chunk in [1, 2, 5, 16, 64] {
                let engine = support::engine(&model, &Setup { trace: true, ..setup(chunk, 2) });
                let out = block_on(engine.session().logits(&ids)).unwrap();
                let trace = engine.shutdown().trace;
                let batches = trace.spans().iter().filter(|s| s.kind == SpanKind::Compute && s.stage == 0);
                assert_eq!(batches.count(), ids.len().div_ceil(chunk as usize), "chunk {chunk}");
                let error = relative_error(&out, &whole);
                println!("{name} {activations:?} chunk {chunk}: relative error {error:.2e}");
                assert!(error <= class.tolerance(), "{name} {activations:?}, chunk {chunk}: {error}");
            }
        }
    });
}

#[test]
fn every_chunk_length_agrees_within_the_exact_class() {
    check_chunks(Activations::F32, NumericsClass::Exact);
}

#[test]
fn every_chunk_length_agrees_within_the_fast_class() {
    check_chunks(Activations::Int8, NumericsClass::Fast);
}

/// Checks sequences of random lengths that arrive together. They share micro-batches of random sizes, but
/// each must have the same logits as when it runs alone.
#[test]
fn concurrent_sequences_have_the_logits_of_single_ones() {
    within(120, || {
        let (model, ids) = (open(LLAMA), ids(LLAMA, 60));
        let vocabulary = model.hyperparameters().vocabulary as usize;
        for (activations, class) in
            [(Activations::F32, NumericsClass::Exact), (Activations::Int8, NumericsClass::Fast)]
        {
            let whole = logits(&model, &Setup { activations, chunk: 73, ..Setup::default() }, &ids);
            for seed in 0..3 {
                let mut random = StdRng::seed_from_u64(seed);
                let cut = random.random_range(1..SEGMENTS);
                let split = format!("0-{}=cpu:0,{cut}-13=cpu:1", cut - 1);
                let chunk = random.random_range(4..24);
                let setup = Setup { activations, cpu_devices: 2, split: Some(&split), ..Setup::default() };
                let engine = support::engine(&model, &Setup { chunk, sequences: 4, ..setup });
                let session = engine.session();
                let lengths: Vec<usize> = (0..8).map(|_| random.random_range(1..=ids.len())).collect();
                let running: Vec<_> = lengths.iter().map(|&n| session.start_logits(&ids[..n])).collect();
                for (&length, running) in lengths.iter().zip(running) {
                    let out = block_on(running.collect()).unwrap();
                    let error = relative_error(&out, &whole[..length * vocabulary]);
                    assert!(
                        error <= class.tolerance(),
                        "seed {seed} {activations:?} length {length}: {error}"
                    );
                }
            }
        }
    });
}

/// Returns the token ids of eight prompts: the four golden prompts and four short texts.
fn eight_prompts(model: &Model) -> Vec<Vec<u32>> {
    let more =
        ["The", "There was once a princess", "\"No,\" said the fox", "In the middle of the night the giant"];
    let tokenizer = model.tokenizer().unwrap();
    let more = more.iter().map(|text| tokenizer.encode(text, true).unwrap());
    golden(BITNET).cases.into_iter().map(|case| case.prompt_ids).chain(more).collect()
}

#[test]
fn eight_concurrent_sequences_give_the_text_of_single_ones() {
    within(120, || {
        let model = open(BITNET);
        let prompts = eight_prompts(&model);
        let alone = support::engine(&model, &generating());
        let together = Setup { cpu_devices: 2, sequences: 8, ..generating() };
        let together = support::engine(&model, &together);
        let generation = greedy(32);
        let session = together.session();
        let start = |prompt: &Vec<u32>| session.generate(Prompt::Tokens(prompt), &generation).unwrap();
        let streams: Vec<_> = prompts.iter().map(start).collect();
        for (at, (prompt, stream)) in prompts.iter().zip(streams).enumerate() {
            let said = block_on(listen(stream)).unwrap();
            let expected = say(&alone.session(), prompt, &generation).unwrap();
            assert_eq!(said.ids, expected.ids, "sequence {at}");
            assert_eq!(said.text, expected.text, "sequence {at}");
        }
    });
}

// ---- Cancelling ---------------------------------------------------------------------------------------------------

#[test]
fn dropped_streams_give_back_their_cache_and_credits() {
    within(120, || {
        const CONTEXT: u32 = 256;
        const ROUNDS: u32 = 30;
        let model = open(BITNET);
        let setup = Setup { cpu_devices: 2, sequences: 2, context: CONTEXT, chunk: 8, ..generating() };
        let engine = support::engine(&model, &setup);
        let (session, case) = (engine.session(), &golden(BITNET).cases[0]);
        let full = greedy(CONTEXT - case.prompt_ids.len() as u32);
        let start = |_| session.generate(Prompt::Tokens(&case.prompt_ids), &full).unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let pair = || {
            let streams: Vec<_> = (0..2).map(start).collect();
            for stream in streams {
                let said = block_on(listen(stream)).unwrap();
                assert_eq!(said.ids.len(), full.max_tokens as usize);
                assert_eq!(said.ids[..64], case.greedy_ids);
            }
        };
        // Counts the rows that the first stage has computed.
        let rows = || engine.stage_reports()[0].counts.rows;
        // Two such sequences fill the cache.
        pair();
        let one_pair = rows();
        for _ in 0..ROUNDS {
            // Only two of the six sequences fit into the cache. Each stream is dropped at a random point
            // between its submission and its end.
            let mut streams: Vec<_> = (0..6).map(start).collect();
            let events = random.random_range(0..6);
            for _ in 0..events {
                block_on(streams[0].next_event()).unwrap();
            }
            while !streams.is_empty() {
                drop(streams.swap_remove(random.random_range(0..streams.len())));
            }
        }
        pair();
        // Without cancellation, the dropped sequences would have computed the rows of ninety pairs.
        let computed = rows() - one_pair;
        assert!(computed < one_pair * u64::from(ROUNDS), "{computed} rows, {one_pair} of a pair");
    });
}

#[test]
fn a_cancelled_stream_still_ends_with_a_summary() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { context: 512, cpu_devices: 2, ..generating() });
        let case = &golden(BITNET).cases[0];
        let mut stream = engine.session().generate(Prompt::Tokens(&case.prompt_ids), &greedy(400)).unwrap();
        let mut first = Vec::new();
        for _ in 0..3 {
            match block_on(stream.next_event()).unwrap() {
                Event::Token { id, .. } => first.extend(id),
                Event::Finished(summary) => panic!("{summary:?}"),
            }
        }
        stream.cancel();
        let rest = block_on(listen(stream)).unwrap();
        assert_eq!(rest.summary.reason, Reason::Cancelled);
        assert_eq!(first, case.greedy_ids[..3]);
        assert_eq!(rest.ids.len() + 3, rest.summary.new_tokens as usize);
        assert!(rest.summary.new_tokens < 400);
    });
}

#[test]
fn dropping_an_engine_ends_its_running_sequences_at_once() {
    within(120, || {
        let model = open(BITNET);
        let setup = Setup { context: 512, cpu_devices: 2, sequences: 8, ..generating() };
        // Track the submissions that the first device completed, and the leaks of all devices.
        let computed = Arc::new(AtomicU64::new(0));
        let leaks = Arc::new(Mutex::new(Vec::new()));
        let (count, watch) = (Arc::clone(&computed), Arc::clone(&leaks));
        let devices = support::devices(&setup).checked_by(move |adapter, device| {
            let device = Checked::new(device);
            watch.lock().unwrap().push(device.leak_watch());
            if adapter.label() == "cpu:0" {
                let count = Arc::clone(&count);
                let timeline = device.timeline(QueueKind::Compute);
                timeline.subscribe(move |progress| {
                    count.fetch_max(progress.value, Ordering::Relaxed);
                });
            }
            Ok(device)
        });
        let engine = support::engine_on(&model, &setup, &devices).unwrap();
        let prompts = eight_prompts(&model);
        let session = engine.session();
        let start = |prompt: &Vec<u32>| session.generate(Prompt::Tokens(prompt), &greedy(450)).unwrap();
        let mut streams: Vec<_> = prompts.iter().map(start).collect();
        for stream in &mut streams {
            for _ in 0..30 {
                block_on(stream.next_event()).unwrap();
            }
        }
        let before = computed.load(Ordering::Relaxed);
        drop((engine, session, streams));
        // The devices are dropped, so nothing is computed any more.
        let left: Vec<_> = leaks.lock().unwrap().iter().map(LeakWatch::leaks).collect();
        assert_eq!(left, vec![Some(Leaks::default()); 2]);
        // For a single sequence, each remaining token would have taken one submission.
        let after = computed.load(Ordering::Relaxed) - before;
        assert!(after < (450 - 30) / 4, "{after} submissions after the engine was dropped");
    });
}

#[test]
fn a_stream_outlives_its_engine() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { cpu_devices: 2, ..generating() });
        let case = &golden(BITNET).cases[0];
        let stream = engine.session().generate(Prompt::Tokens(&case.prompt_ids), &greedy(20)).unwrap();
        drop(engine);
        assert_eq!(block_on(listen(stream)).unwrap().ids, case.greedy_ids[..20]);
    });
}

// ---- Endings ------------------------------------------------------------------------------------------------------

#[test]
fn generation_ends_at_its_limits() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { cpu_devices: 2, context: 48, ..generating() });
        let (session, case) = (engine.session(), &golden(BITNET).cases[0]);
        let new_text = case.text.strip_prefix(&case.prompt).unwrap();

        for tokens in [1, 2, 17] {
            let said = say(&session, &case.prompt_ids, &greedy(tokens)).unwrap();
            assert_eq!(said.summary.reason, Reason::MaxTokens);
            assert_eq!(said.ids, case.greedy_ids[..tokens as usize]);
            assert_eq!(said.summary.new_tokens, tokens);
            assert_eq!(said.summary.prompt_tokens, 13);
            assert!(new_text.starts_with(&said.text), "{:?}", said.text);
        }
        // The prompt takes 13 positions, and the last token takes none.
        let said = say(&session, &case.prompt_ids, &greedy(200)).unwrap();
        assert_eq!(said.summary.reason, Reason::ContextFull);
        assert_eq!(said.ids, case.greedy_ids[..48 - 13 + 1]);

        let nothing = say(&session, &case.prompt_ids, &greedy(0)).unwrap();
        assert_eq!((nothing.ids.len(), nothing.text.as_str()), (0, ""));
        assert_eq!(nothing.summary.reason, Reason::MaxTokens);
    });
}

#[test]
fn text_ends_before_a_stop_string() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { cpu_devices: 2, ..generating() });
        let (session, case) = (engine.session(), &golden(BITNET).cases[0]);
        let new_text = case.text.strip_prefix(&case.prompt).unwrap();
        for stops in
            [vec!["much alike"], vec!["o much"], vec!["ugly", "queen", "alike"], vec!["\nOne"], vec![","]]
        {
            let stop: Vec<String> = stops.iter().map(ToString::to_string).collect();
            let said = say(&session, &case.prompt_ids, &Generation { stop, ..greedy(64) }).unwrap();
            let at = stops.iter().filter_map(|stop| new_text.find(stop)).min().unwrap();
            assert_eq!(said.text, new_text[..at], "{stops:?}");
            assert_eq!(said.summary.reason, Reason::Stop, "{stops:?}");
        }
        let stop = vec!["aeroplane".to_string(), String::new()];
        let said = say(&session, &case.prompt_ids, &Generation { stop, ..greedy(64) }).unwrap();
        assert_eq!((said.text.as_str(), said.summary.reason), (new_text, Reason::MaxTokens));
    });
}

#[test]
fn refuses_invalid_requests_and_continues() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { cpu_devices: 2, context: 32, ..generating() });
        let (session, case) = (engine.session(), &golden(BITNET).cases[0]);
        let refused = |ids: &[u32], message: &str| {
            let error = say(&session, ids, &greedy(4)).unwrap_err();
            assert!(matches!(error, Error::Run(ragtag_scheduler::Error::Refused(_))), "{error:?}");
            assert_eq!(exit_code(&error), 2);
            assert!(error.to_string().starts_with(message), "{error}");
            let error = block_on(session.logits(ids)).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        };
        refused(&[7; 33], "the prompt has 33 tokens, the context holds 32");
        refused(&[7; 5000], "the prompt has 5000 tokens, the context holds 32");
        refused(&[], "the prompt is empty");
        refused(&[1, 4096], "token 4096 at position 1 is outside the vocabulary of 4096");
        refused(&[u32::MAX], "token 4294967295 at position 0 is outside the vocabulary of 4096");
        let bad = Generation {
            sampling: ragtag_scheduler::Sampling { top_p: 0.0, ..Default::default() },
            ..greedy(4)
        };
        let error = session.generate("Once", &bad).unwrap_err();
        assert_eq!(
            (exit_code(&error), error.to_string().as_str()),
            (2, "top-p is 0; it must be above 0 and at most 1")
        );

        let said = say(&session, &case.prompt_ids, &greedy(8)).unwrap();
        assert_eq!(said.ids, case.greedy_ids[..8]);
        // A prompt that fills the context leaves room for one token, because that token needs no position.
        let full: Vec<u32> = case.prompt_ids.iter().chain(&case.greedy_ids).copied().take(32).collect();
        assert_eq!(say(&session, &full, &greedy(8)).unwrap().ids, case.greedy_ids[19..20]);
    });
}

#[test]
fn a_token_stream_implements_stream() {
    within(60, || {
        let model = open(BITNET);
        let engine = support::engine(&model, &Setup { cpu_devices: 2, ..generating() });
        let case = &golden(BITNET).cases[1];
        let mut stream = engine.session().generate(case.prompt.as_str(), &greedy(64)).unwrap();
        let events: Vec<Event> = block_on(async {
            let mut events = Vec::new();
            while let Some(event) = stream.next().await {
                events.push(event.unwrap());
            }
            assert!(stream.next().await.is_none(), "the stream stays ended");
            events
        });
        let (last, tokens) = events.split_last().unwrap();
        assert!(matches!(last, Event::Finished(summary) if summary.reason == Reason::MaxTokens), "{last:?}");
        let mut text = case.prompt.clone();
        for event in tokens {
            match event {
                Event::Token { text: piece, .. } => text.push_str(piece),
                Event::Finished(_) => panic!("finished twice"),
            }
        }
        assert_eq!(text, case.text);
        let again = engine.session().generate(case.prompt.as_str(), &greedy(64)).unwrap();
        assert_eq!(case.prompt.clone() + &again.blocking_text().unwrap(), case.text);
        let refused = engine.session().generate(Prompt::Tokens(&[]), &greedy(1)).unwrap();
        let events: Vec<_> = block_on(refused.collect());
        assert!(matches!(events.as_slice(), [Err(Error::Run(_))]), "{events:?}");
    });
}

// ---- Traces -------------------------------------------------------------------------------------------------------

#[test]
fn the_trace_shows_both_stages_busy_simultaneously() {
    within(120, || {
        let model = open(BITNET);
        let split = Some("0-6=cpu:0,7-13=cpu:1");
        let setup = Setup {
            cpu_devices: 2,
            split,
            sequences: 8,
            chunk: 16,
            context: 512,
            trace: true,
            ..generating()
        };
        let engine = support::engine(&model, &setup);
        let session = engine.session();
        let prompt: Vec<u32> = (0..200).map(|i| (i * 31 + 7) % 4096).collect();
        // Each sequence computes its whole prompt.
        let generation = Generation { cache: false, ..greedy(16) };
        let streams: Vec<_> =
            (0..8).map(|_| session.generate(Prompt::Tokens(&prompt), &generation).unwrap()).collect();
        for stream in streams {
            block_on(listen(stream)).unwrap();
        }
        drop(session);
        let trace = engine.shutdown().trace;

        let overlap = overlap(&trace);
        let least = *overlap.busy_ns.iter().min().unwrap();
        println!("{overlap:?}");
        assert!(overlap.busy_ns.len() == 2 && least > 0, "{overlap:?}");
        assert!(overlap.together_ns > least / 20, "{overlap:?}");

        // Every micro-batch passes both stages in order, and all prompt rows are computed.
        let computed = |stage: u32| -> std::collections::BTreeMap<_, _> {
            let spans = trace.spans().iter().filter(|s| s.kind == SpanKind::Compute && s.stage == stage);
            spans.map(|s| (s.micro_batch.expect("compute belongs to a micro-batch"), s.clone())).collect()
        };
        let (first, second) = (computed(0), computed(1));
        assert!(first.keys().eq(second.keys()));
        for (id, span) in &first {
            assert_eq!((span.segments.clone(), second[id].segments.clone()), (0..7, 7..14));
            assert_eq!(span.rows, second[id].rows);
            assert!(span.start_ns <= span.end_ns && span.end_ns <= second[id].start_ns, "{span:?}");
        }
        let rows: u32 = first.values().map(|s| s.rows).sum();
        assert_eq!(rows, 8 * (200 + 15), "eight prompts, and fifteen tokens fed back per sequence");

        let json: serde_json::Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        for name in
            ["segments 0-6 · micro-batch 0", "segments 7-13 · micro-batch 0", "weights of segments 0-6"]
        {
            assert!(events.iter().any(|event| event["name"] == name), "{name}");
        }
    });
}

// ---- Files that change --------------------------------------------------------------------------------------------

struct Copy {
    _folder: tempfile::TempDir,
    file: std::fs::File,
    model: Model,
    devices: Devices,
    plan: ragtag::Plan,
}

/// Copies a model file and makes a plan for the copy, so that a test can truncate the file.
fn copy() -> Copy {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.gguf");
    std::fs::copy(model_path(LLAMA), &path).unwrap();
    let model = Model::open(&path).unwrap();
    let mut options = DeviceOptions::selecting("cpu");
    options.cpu_threads = Some(1);
    let devices = Devices::probe(&options).unwrap();
    let plan = Planner::new(&model).devices(&devices).context(32).plan().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    Copy { _folder: folder, file, model, devices, plan }
}

#[test]
fn a_file_that_shrank_before_loading_is_a_clear_error() {
    within(60, || {
        let copy = copy();
        let bytes = copy.model.file_bytes();
        for left in [bytes - 1, bytes / 2, 100, 0] {
            copy.file.set_len(left).unwrap();
            let error = Engine::start_exact(&copy.model, &copy.devices, &copy.plan, EngineOptions::default())
                .unwrap_err();
            let message = error.to_string();
            let expected = format!("shrank while in use: it had {bytes} bytes and now has {left}");
            assert!(message.contains("cpu:0") && message.contains(&expected), "{message}");
            for error in [copy.model.fingerprint().unwrap_err(), copy.model.digest().unwrap_err()] {
                assert!(error.to_string().contains(&expected), "{error}");
                assert_eq!(exit_code(&error), 7);
            }
        }
    });
}

#[test]
fn a_file_that_shrinks_while_loading_is_a_clear_error() {
    within(60, || {
        let copy = copy();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (seen, file) = (Arc::clone(&calls), copy.file);
        let progress = Box::new(move |done: u64, total: u64| {
            seen.lock().unwrap().push((done, total));
            // Only the single reading thread calls this closure, so no read is in progress.
            file.set_len(4096).unwrap();
        });
        let mut options = EngineOptions::default();
        options.progress = Some(progress);
        let error = Engine::start_exact(&copy.model, &copy.devices, &copy.plan, options).unwrap_err();
        assert!(error.to_string().contains("shrank while in use"), "{error}");
        assert_eq!(exit_code(&error), 7);
        let calls = calls.lock().unwrap();
        assert!(calls.iter().all(|(done, total)| done < total), "it was truncated before the end: {calls:?}");
    });
}
