//! Tests of sampling: the valid ranges of settings, the individual filters, and the distributions of sampled
//! tokens.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Returns settings that leave the distribution unchanged.
pub(super) fn plain() -> Sampling {
    Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        repetition_window: 64,
        seed: Some(7),
    }
}

fn sampler(settings: Sampling) -> Sampler {
    Sampler::new(settings).expect("valid")
}

/// Draws many tokens and checks by a chi-square test that their counts match `probabilities`.
pub(super) fn assert_distribution(
    settings: Sampling,
    logits: &[f32],
    history: &[u32],
    probabilities: &[f64],
) {
    const DRAWS: usize = 20_000;
    let mut sampler = sampler(settings);
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(logits, history).expect("a token") as usize] += 1;
    }
    let total: f64 = probabilities.iter().sum();
    let (mut chi_square, mut kinds) = (0.0, 0.0);
    for (id, (&count, p)) in counts.iter().zip(probabilities).enumerate() {
        let expected = p / total * DRAWS as f64;
        if expected == 0.0 {
            assert_eq!(count, 0, "token {id} has no probability");
            continue;
        }
        chi_square += (count as f64 - expected).powi(2) / expected;
        kinds += 1.0;
    }
    // The mean is k - 1 and the variance 2 (k - 1). The bound is four standard deviations plus 1 above the
    // mean. Seeds are fixed, so the result never varies.
    let freedom: f64 = kinds - 1.0;
    let bound = freedom + 4.0 * (2.0 * freedom).sqrt() + 1.0;
    assert!(chi_square <= bound, "chi-square {chi_square} above {bound}: {counts:?}");
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect()
}

#[test]
fn settings_out_of_range_are_named() {
    assert_eq!(Sampling::default().validate(), Ok(()));
    assert_eq!(Sampling::greedy().validate(), Ok(()));
    let name_of = |settings: Sampling| match Sampler::new(settings) {
        Err(SamplingError::Setting { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    for temperature in [f32::NAN, -0.1, f32::INFINITY] {
        assert_eq!(name_of(Sampling { temperature, ..plain() }), "temperature");
    }
    for top_p in [f32::NAN, 0.0, -1.0, 1.5] {
        assert_eq!(name_of(Sampling { top_p, ..plain() }), "top-p");
    }
    for min_p in [f32::NAN, -0.1, 1.1] {
        assert_eq!(name_of(Sampling { min_p, ..plain() }), "min-p");
    }
    for repetition_penalty in [f32::NAN, 0.0, -1.0, f32::INFINITY] {
        assert_eq!(name_of(Sampling { repetition_penalty, ..plain() }), "repetition-penalty");
    }
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id_among_equals() {
    let mut greedy = sampler(Sampling::greedy());
    assert_eq!(greedy.sample(&[1.0, 3.0, 2.0, 3.0], &[]), Ok(1));
    assert_eq!(greedy.sample(&[f32::NAN, -1.0, f32::NAN, -0.5], &[]), Ok(3));
    assert_eq!(greedy.sample(&[-0.0, 0.0], &[]), Ok(0));
    assert_eq!(greedy.sample(&[1.0, f32::INFINITY, f32::INFINITY], &[]), Ok(1));
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -3e38], &[]), Ok(1));
}

#[test]
fn greedy_takes_the_first_of_the_largest_in_a_vocabulary_of_any_size() {
    let mut greedy = sampler(Sampling::greedy());
    for vocabulary in [1, 15, 16, 17, 1023, 1024, 1025, 5000] {
        for at in [0, vocabulary / 2, vocabulary - 1] {
            let mut logits: Vec<f32> = (0..vocabulary).map(|id| -1.0 - (id * 37 % 101) as f32).collect();
            logits[vocabulary - 1] = 7.0;
            logits[at] = 7.0;
            assert_eq!(greedy.sample(&logits, &[]), Ok(at as u32), "{vocabulary}");
            logits[0] = f32::NAN;
            let first = if at == 0 { vocabulary - 1 } else { at };
            let wanted = if vocabulary == 1 { None } else { Some(first as u32) };
            assert_eq!(greedy.sample(&logits, &[]).ok(), wanted, "{vocabulary}");
        }
    }
}

#[test]
fn without_candidates_there_is_an_error() {
    for settings in [Sampling::greedy(), plain(), Sampling::default()] {
        let mut sampler = sampler(settings);
        let inf = f32::NEG_INFINITY;
        for logits in [vec![], vec![f32::NAN; 3], vec![inf; 3], vec![inf, f32::NAN]] {
            let error = SamplingError::NoCandidate { logits: logits.len() };
            assert_eq!(sampler.sample(&logits, &[0, 1]), Err(error));
        }
    }
}

#[test]
fn nan_is_never_chosen() {
    let logits = [f32::NAN, 0.5, f32::NAN, 1.0, f32::NEG_INFINITY];
    let kept = [0.0, 0.5f64.exp(), 0.0, 1f64.exp(), 0.0];
    assert_distribution(plain(), &logits, &[], &kept);
    // A penalised NaN stays NaN with either sign.
    let settings = Sampling { repetition_penalty: 2.0, ..plain() };
    let kept = [0.0, 0.25f64.exp(), 0.0, 0.5f64.exp(), 0.0];
    assert_distribution(
        settings,
        &[f32::NAN, 0.5, -f32::NAN, 1.0, f32::NEG_INFINITY],
        &[0, 1, 2, 3, 4],
        &kept,
    );
}

#[test]
fn draws_follow_the_softmax_at_each_temperature() {
    let logits = [0.0, 1.0, -1.0, 2.0, 0.5];
    for temperature in [0.5f32, 1.0, 3.0] {
        let settings = Sampling { temperature, ..plain() };
        assert_distribution(settings, &logits, &[], &softmax(&logits, f64::from(temperature)));
    }
    let even = vec![0.0; 64];
    assert_distribution(plain(), &even, &[], &[1.0; 64]);
}

#[test]
fn infinities_share_what_there_is() {
    let logits = [f32::INFINITY, 5.0, f32::INFINITY];
    assert_distribution(plain(), &logits, &[], &[1.0, 0.0, 1.0]);
}

#[test]
fn top_k_keeps_the_likeliest_and_low_ids_among_equals() {
    let logits = [0.0, 2.0, 1.0, 1.0, 1.0];
    let settings = Sampling { top_k: 3, ..plain() };
    let [e1, e2] = [1f64.exp(), 2f64.exp()];
    assert_distribution(settings, &logits, &[], &[0.0, e2, e1, e1, 0.0]);
    let one = Sampling { top_k: 1, temperature: 100.0, ..plain() };
    assert_distribution(one, &logits, &[], &[0.0, 1.0, 0.0, 0.0, 0.0]);
    let many = Sampling { top_k: u32::MAX, ..plain() };
    assert_distribution(many, &logits, &[], &softmax(&logits, 1.0));
}

#[test]
fn top_p_keeps_the_fewest_that_suffice() {
    // The probabilities are 0.5, 0.3, 0.15 and 0.05.
    let logits = [0.15f32.ln(), 0.5f32.ln(), 0.05f32.ln(), 0.3f32.ln()];
    for (top_p, kept) in [
        (0.4, [0.0, 0.5, 0.0, 0.0]),
        (0.6, [0.0, 0.5, 0.0, 0.3]),
        (0.9, [0.15, 0.5, 0.0, 0.3]),
        (0.99, [0.15, 0.5, 0.05, 0.3]),
    ] {
        assert_distribution(Sampling { top_p, ..plain() }, &logits, &[], &kept);
    }
}

#[test]
fn top_p_sees_probabilities_before_the_temperature_and_after_top_k() {
    let logits = [0.15f32.ln(), 0.5f32.ln(), 0.05f32.ln(), 0.3f32.ln()];
    // A high temperature would flatten the probabilities, but top-p still keeps two tokens.
    let hot = Sampling { top_p: 0.6, temperature: 1000.0, ..plain() };
    assert_distribution(hot, &logits, &[], &[0.0, 1.0, 0.0, 1.0]);
    // Top-k keeps two tokens. The first has probability 0.5 / 0.8 = 0.625, which is enough for top-p.
    let both = Sampling { top_p: 0.6, top_k: 2, ..plain() };
    assert_distribution(both, &logits, &[], &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn top_p_is_right_when_many_tokens_are_needed() {
    // The first sort does not cover enough of the equal probabilities. The half with the lowest ids is kept.
    let logits = vec![1.0f32; 2000];
    let mut sampler = sampler(Sampling { top_p: 0.5, ..plain() });
    let drawn: Vec<_> = (0..4000).map(|_| sampler.sample(&logits, &[]).expect("a token")).collect();
    assert!(drawn.iter().all(|id| *id < 1000));
    assert!(drawn.iter().any(|id| *id > 900));
}

#[test]
fn min_p_is_a_share_of_the_likeliest() {
    let logits = [0.15f32.ln(), 0.5f32.ln(), 0.04f32.ln(), 0.31f32.ln()];
    let settings = Sampling { min_p: 0.1, ..plain() };
    assert_distribution(settings, &logits, &[], &[0.15, 0.5, 0.0, 0.31]);
    let one = Sampling { min_p: 1.0, ..plain() };
    assert_distribution(one, &logits, &[], &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn the_penalty_counts_each_seen_token_once_within_the_window() {
    let logits = [2.0, -2.0, 2.0, 0.5];
    let settings = Sampling { repetition_penalty: 2.0, ..plain() };
    let penalised = [1.0, -4.0, 2.0, 0.5];
    assert_distribution(settings, &logits, &[1, 0, 1, 0, 999], &softmax(&penalised, 1.0));
    let short = Sampling { repetition_window: 2, ..settings };
    assert_distribution(short, &logits, &[0, 0, 1, 999], &softmax(&[2.0, -4.0, 2.0, 0.5], 1.0));
    let off = Sampling { repetition_window: 0, ..settings };
    assert_distribution(off, &logits, &[0, 1, 2, 3], &softmax(&logits, 1.0));
    let mut greedy = sampler(Sampling { temperature: 0.0, ..settings });
    assert_eq!(greedy.sample(&logits, &[0]), Ok(2));
}

#[test]
fn a_seed_gives_the_same_tokens_again_and_another_gives_others() {
    let logits: Vec<f32> = (0..500u16).map(|i| f32::from(i * 37 % 101) / 20.0).collect();
    let new = |seed| sampler(Sampling { seed, ..Sampling::default() });
    let run = |sampler: &mut Sampler| {
        (0..50).map(|_| sampler.sample(&logits, &[]).expect("a token")).collect::<Vec<_>>()
    };
    assert_eq!(run(&mut new(Some(1))), run(&mut new(Some(1))));
    assert_ne!(run(&mut new(Some(1))), run(&mut new(Some(2))));
    // Without a seed, each sampler draws its own.
    let (mut one, mut other) = (new(None), new(None));
    let drawn = run(&mut one);
    assert_ne!(drawn, run(&mut other));
    assert_eq!(drawn, run(&mut new(Some(one.seed()))));
}

#[test]
fn sequences_share_the_buffers_of_their_thread() {
    const { assert!(!std::mem::needs_drop::<Sampler>(), "a sampler holds no memory") };
    let logits: Vec<f32> = (0..500u16).map(|i| f32::from(i * 37 % 101) / 20.0).collect();
    let penalised = Sampling { repetition_penalty: 1.5, ..plain() };
    let settings = [Sampling::default(), plain(), penalised].map(|of| Sampling { seed: Some(3), ..of });
    let draw = |sampler: &mut Sampler, turn| sampler.sample(&logits[turn..], &[1, 2]).expect("a token");
    let alone = settings.map(|settings| {
        let mut sampler = sampler(settings);
        (0..50).map(|turn| draw(&mut sampler, turn)).collect::<Vec<_>>()
    });
    let mut beside = settings.map(sampler);
    for turn in 0..50 {
        for (sampler, alone) in beside.iter_mut().zip(&alone) {
            assert_eq!(draw(sampler, turn), alone[turn]);
        }
    }
}

#[test]
fn the_generator_is_splitmix64() {
    // These are the first outputs of the published algorithm for seed 1234567.
    let mut draws = SplitMix64(1_234_567);
    let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423u64];
    assert_eq!([draws.next(), draws.next(), draws.next()], expected);
    assert!((0..1000).all(|_| (0.0..1.0).contains(&draws.unit())));
}

#[test]
fn filters_agree_with_a_full_sort_on_a_large_vocabulary() {
    // The logits have many ties, as those of quantised models do.
    let mut noise = SplitMix64(3);
    let logits: Vec<f32> = (0..32_000).map(|_| ((noise.unit() * 4000.0) as f32).floor() / 250.0).collect();
    let settings = Sampling { top_k: 50, top_p: 0.8, min_p: 0.1, temperature: 0.7, ..plain() };
    let mut order: Vec<u32> = (0..32_000).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    let mut kept = order[..50].to_vec();
    let weight = |id: &u32| f64::from(logits[*id as usize] - logits[order[0] as usize]).exp();
    let wanted = 0.8f32 as f64 * kept.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let reaches = |id: &u32| {
        sum += weight(id);
        sum >= wanted
    };
    let last = kept.iter().position(reaches).expect("reached");
    kept.truncate(last + 1);
    kept.retain(|id| weight(id) >= f64::from(0.1f32));
    let mut expected = vec![0.0; logits.len()];
    for id in &kept {
        expected[*id as usize] = (weight(id).ln() / f64::from(0.7f32)).exp();
    }
    assert!(kept.len() > 3);
    let mut scratch = Scratch::default();
    scratch.collect(&settings, &logits, &[]);
    scratch.keep_top_k(settings.top_k);
    scratch.keep_top_p(settings.top_p);
    scratch.keep_min_p(settings.min_p);
    assert_eq!(scratch.candidates.iter().map(|c| c.id).collect::<Vec<_>>(), kept);
}

/// The scan for the best logits leaves out tokens that the filters would drop, and no others.
#[test]
fn the_scan_for_the_best_logits_changes_no_token() {
    let mut random = SmallRng::seed_from_u64(test_support::seed());
    for _ in 0..2_000 {
        let vocabulary = random.random_range(1..20_000);
        // Few different values make ties.
        let values = [1.0, 10.0, 1e6][random.random_range(0..3)];
        let special = [f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
        let share = [0.0, 0.01, 0.999][random.random_range(0..3)];
        let logit = |random: &mut SmallRng| match random.random_bool(share) {
            true => special[random.random_range(0..special.len())],
            false => (random.random_range(-8.0..8.0) * values as f32).round() / values as f32,
        };
        let logits: Vec<f32> = (0..vocabulary).map(|_| logit(&mut random)).collect();
        let history: Vec<u32> = (0..80).map(|_| random.random_range(0..2 * vocabulary as u32)).collect();
        let settings = Sampling {
            temperature: [0.0, 0.8, 1.5][random.random_range(0..3)],
            top_k: [1, 2, 40, 64, 200][random.random_range(0..5)],
            top_p: [0.5, 0.95, 1.0][random.random_range(0..3)],
            min_p: [0.0, 0.05][random.random_range(0..2)],
            repetition_penalty: [1.0, 1.3, 0.7][random.random_range(0..3)],
            ..plain()
        };
        let mut scanned = Scratch::default();
        scanned.collect(&settings, &logits, &history);
        let mut all = Scratch { recent: scanned.recent.clone(), ..Scratch::default() };
        all.collect_all(&logits, settings.repetition_penalty);
        let seed = random.random();
        let [scanned, all] =
            [scanned, all].map(|mut scratch| scratch.choose(&settings, &mut SplitMix64(seed)));
        assert_eq!(scanned, all, "RAGTAG_TEST_SEED {seed}: {settings:?} of {vocabulary}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_softmax() {
    let logits = [1.0f32, 2.0, 3.0, f32::NEG_INFINITY];
    let sum: f64 = [1f64, 2.0, 3.0].iter().map(|l| l.exp()).sum();
    for (token, logit) in [(0, 1.0), (1, 2.0), (2, 3.0)] {
        let got = token_log_probability(&logits, token).expect("a probability");
        assert!((got - (logit - sum.ln())).abs() < 1e-12);
    }
    assert_eq!(token_log_probability(&logits, 3), Ok(f64::NEG_INFINITY));
    // Adding a constant to all logits changes nothing, and large logits do not overflow.
    let shifted = token_log_probability(&[1001.0, 1002.0, 1003.0], 1).expect("a probability");
    assert!((shifted - (2.0 - sum.ln())).abs() < 1e-12);
    let huge = token_log_probability(&[f32::INFINITY, f32::INFINITY], 0).expect("a probability");
    assert!((huge - 0.5f64.ln()).abs() < 1e-12);
}

#[test]
fn log_probabilities_refuse_what_has_none() {
    use SamplingError::{NoCandidate, NoSuchToken, NotANumber};
    assert_eq!(token_log_probability(&[0.0, f32::NAN], 0), Err(NotANumber { token: 1 }));
    assert_eq!(token_log_probability(&[0.0, 1.0], 2), Err(NoSuchToken { token: 2, vocabulary: 2 }));
    assert_eq!(token_log_probability(&[], 0), Err(NoSuchToken { token: 0, vocabulary: 0 }));
    assert_eq!(token_log_probability(&[f32::NEG_INFINITY; 2], 0), Err(NoCandidate { logits: 2 }));
}
