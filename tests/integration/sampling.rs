//! Tests that the best logits, which the device finds, give the tokens of whole rows.

use crate::gpus::{adapters, compiles_anew};
use crate::support::{self, Checkpoint, SMALL, Setup, block_on, listen, within};
use ragtag::{Generation, Model, Prompt, Sampling, Shaping};
use ragtag_hal::Adapter;
use test_support::nightly;

/// Maximum number of tokens of a sequence, with its prompt.
const TOKENS: usize = 24;

/// Returns settings that read the best logits, and settings that read whole rows. The windows differ in length, but
/// both hold all tokens of a sequence.
fn pair(temperature: f32, seed: u64) -> [Sampling; 2] {
    let seed = Some(seed);
    let best = Sampling { temperature, top_k: 40, repetition_penalty: 1.2, seed, ..Sampling::default() };
    let pair = [TOKENS as u32, 64].map(|repetition_window| Sampling { repetition_window, ..best });
    let wants = |sampling: Sampling| ragtag_scheduler::Sampler::new(sampling).unwrap().wants_rows();
    assert_eq!(pair.map(wants), [false, true]);
    pair
}

/// Checks that both settings give the same tokens, one sequence after the other and several at once. All sequences of
/// a micro-batch are computed by the same program.
fn check(what: &str, model: &Model, ids: &[u32], new_tokens: usize, setup: &Setup<'_>) {
    assert!(ids.len() + new_tokens <= TOKENS);
    let engine = support::engine(model, &Setup { sequences: 6, all_logits: false, ..setup.clone() });
    let session = engine.session();
    let start_shaped = |sampling: Sampling, shaping: Shaping| {
        let max_tokens = new_tokens as u32;
        let generation = Generation {
            sampling,
            shaping,
            max_tokens,
            ignore_end: true,
            cache: false,
            ..Generation::default()
        };
        session.generate(Prompt::Tokens(ids), &generation).unwrap()
    };
    let start = |sampling| start_shaped(sampling, Shaping::default());
    let tokens = |stream| block_on(listen(stream)).unwrap().ids;
    // A micro-batch whose requests all read the best logits returns little to the host.
    tokens(start(Sampling::default()));
    let returned = engine.stats().token_return.decode;
    assert!(returned.crossings > 0 && returned.bytes == 528 * returned.crossings, "{what}: {returned:?}");
    let settings = [(0.0, 0), (0.8, 1), (1.5, 2)].map(|(temperature, seed)| pair(temperature, seed));
    for [best, whole] in settings {
        assert_eq!(tokens(start(best)), tokens(start(whole)), "{what}, {best:?} alone");
    }
    // The device draws from the whole distribution. For log probabilities, the host reads whole rows and draws from these.
    let reported = Shaping { log_probabilities: Some(0), ..Shaping::default() };
    for seed in 0..4 {
        let plain = Sampling {
            temperature: 1.3,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: Some(seed),
            ..Sampling::default()
        };
        assert_eq!(tokens(start(plain)), tokens(start_shaped(plain, reported.clone())), "{what}, {plain:?}");
    }
    let streams: Vec<_> = settings.iter().flatten().map(|sampling| start(*sampling)).collect();
    let ids: Vec<_> = streams.into_iter().map(tokens).collect();
    for (pair, settings) in ids.chunks(2).zip(settings) {
        assert_eq!(pair[0], pair[1], "{what}, {:?} among others", settings[0]);
        assert_eq!(pair[0].len(), new_tokens, "{what}");
    }
    println!("{what}: equal tokens");
}

#[test]
fn the_best_logits_give_the_tokens_of_whole_rows_on_cpus() {
    within(300, || {
        let model = Model::open(support::model_path("tales-q8_0")).unwrap();
        let ids = &support::golden("tales-q8_0").cases[0].prompt_ids[..4];
        for (cpu_devices, split) in [(1, None), (2, Some("0-6=cpu:0,7-13=cpu:1"))] {
            let setup = Setup { cpu_devices, split, ..Setup::default() };
            check(&format!("{cpu_devices} CPUs"), &model, ids, 20, &setup);
        }
    });
}

/// Leaves out devices that compile each shader anew, except in the nightly run.
#[test]
fn the_best_logits_give_the_tokens_of_whole_rows_on_each_api() {
    within(600, || {
        let Checkpoint { models, ids, .. } = Checkpoint::open(SMALL);
        let mut adapters = adapters();
        adapters.retain(|adapter| nightly() || !compiles_anew(adapter));
        adapters.dedup_by(|b, a| (&a.backend, &a.driver) == (&b.backend, &b.driver));
        for label in adapters.iter().map(Adapter::label) {
            let (devices, no_self_test) = (label.as_str(), true);
            let setup = Setup { devices, no_self_test, chunk: 8, context: 32, ..Setup::default() };
            check(&label, &models[0], &ids[..4], 5, &setup);
        }
    });
}
