//! Tests of the solver. They compare the solutions of random instances with an enumeration of all placements,
//! and solve instances that were constructed to be difficult.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Returns a random cost of at most `largest`. It is often 0 or a multiple of `largest / 4`, so that ties
/// occur.
fn cost(rng: &mut SmallRng, largest: f64) -> f64 {
    match rng.random_range(0..6) {
        0 => 0.0,
        1..=3 => f64::from(rng.random_range(1..5)) * largest / 4.0,
        _ => rng.random_range(0.0..largest),
    }
}

fn costs(rng: &mut SmallRng, largest: f64) -> Costs {
    Costs { busy: cost(rng, largest), time: cost(rng, largest), chunk: cost(rng, largest) }
}

fn device(rng: &mut SmallRng, segments: usize, classes: usize) -> DeviceCosts {
    let speed = rng.random_range(0.2..4.0);
    let alike = rng.random_bool(0.5).then(|| costs(rng, speed));
    let mut before = vec![Costs::default()];
    for at in 0..segments {
        before.push(before[at] + alike.unwrap_or_else(|| costs(rng, speed)));
    }
    let mut reach = Vec::new();
    let longest = if rng.random_bool(0.3) { segments } else { rng.random_range(0..=segments) };
    for _ in 0..classes {
        let longest = longest.saturating_sub(rng.random_range(0..2));
        let mut row = vec![0];
        for first in 0..segments {
            let fits = first + longest.saturating_sub(usize::from(rng.random_bool(0.2)));
            row.push(fits.min(segments).max(row[first]).max(first));
        }
        row.push(segments);
        reach.push(row[1..].to_vec());
    }
    let (stage, entry, exit) = (costs(rng, 1.0), costs(rng, 1.0), costs(rng, 1.0));
    DeviceCosts { before, stage, entry, exit, reach }
}

fn random_score(rng: &mut SmallRng) -> Score {
    let chunk_weight = if rng.random_bool(0.4) { 0.0 } else { rng.random_range(0.1..10.0) };
    match rng.random_range(0..3) {
        0 => Score::Sum { chunk_weight, busy_weight: 0.0 },
        1 => Score::Busy { sequences: f64::from(rng.random_range(1..12)), chunk_weight },
        _ => Score::Sum { chunk_weight, busy_weight: rng.random_range(0.0..10.0) },
    }
}

fn random_instance(seed: u64, most_devices: usize, most_segments: usize) -> Instance {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let segments = rng.random_range(1..=most_segments);
    let count = rng.random_range(1..=most_devices);
    let classes = rng.random_range(1..=2);
    let alike = rng.random_bool(0.3);
    let mut devices: Vec<DeviceCosts> = Vec::new();
    for _ in 0..count {
        let like = (!devices.is_empty() && rng.random_bool(0.6) && alike)
            .then(|| devices[devices.len() - 1].clone());
        devices.push(like.unwrap_or_else(|| device(rng, segments, classes)));
    }
    let usual = LinkCosts { costs: costs(rng, 2.0), class: rng.random_range(0..classes) };
    let transfers = (0..count * count)
        .map(|_| {
            let own = LinkCosts { costs: costs(rng, 2.0), class: rng.random_range(0..classes) };
            let transfer = if alike { usual } else { own };
            (alike || !rng.random_bool(0.15)).then_some(transfer)
        })
        .collect();
    let mut shared = Vec::new();
    if rng.random_bool(0.3) {
        for _ in 0..rng.random_range(1..3) {
            let pairs = (0..count * count).filter(|_| rng.random_bool(0.5)).collect::<Vec<_>>();
            let users =
                pairs.into_iter().map(|pair| ((pair / count, pair % count), cost(rng, 4.0))).collect();
            let term = if rng.random_bool(0.5) { Term::Busy } else { Term::Chunk };
            shared.push(SharedBus { term, users });
        }
    }
    let pin = |rng: &mut SmallRng| rng.random_bool(0.1).then(|| rng.random_range(0..count));
    let pinned = rng.random_bool(0.2);
    let pins = (0..segments).map(|_| if pinned { pin(rng) } else { None }).collect();
    let required = (0..count).filter(|_| rng.random_bool(0.06)).collect();
    let excluded = (0..count).map(|_| rng.random_bool(0.05)).collect();
    let max_stages = if rng.random_bool(0.2) { rng.random_range(1..=count) } else { count };
    Instance {
        segments,
        devices,
        transfers,
        shared,
        score: random_score(rng),
        pins,
        required,
        excluded,
        max_stages,
        known: f64::INFINITY,
    }
}

/// Returns the smallest score for each number of stages. Tries all ways to cut the segments, for every order
/// of every set of devices.
fn enumerate(instance: &Instance) -> Vec<f64> {
    fn value(instance: &Instance, stages: &[Stage]) -> f64 {
        let (mut busy, mut time, mut chunk) = (0.0_f64, 0.0, 0.0_f64);
        let mut loads = vec![0.0; instance.shared.len()];
        for (at, (device, run)) in stages.iter().enumerate() {
            let costs = &instance.devices[*device];
            let part = |of: fn(&Costs) -> f64| {
                let edges = [(run.start == 0, &costs.entry), (run.end == instance.segments, &costs.exit)];
                let edges: f64 = edges.iter().filter(|(is, _)| *is).map(|(_, costs)| of(costs)).sum();
                of(&costs.before[run.end]) - of(&costs.before[run.start]) + of(&costs.stage) + edges
            };
            let mut class = 0;
            if at > 0 {
                let pair = (stages[at - 1].0, *device);
                let Some(transfer) = &instance.transfers[pair.0 * instance.devices.len() + pair.1] else {
                    return f64::INFINITY;
                };
                class = transfer.class;
                busy = busy.max(transfer.costs.busy);
                time += transfer.costs.time;
                chunk = chunk.max(transfer.costs.chunk);
                for (bus, load) in instance.shared.iter().zip(&mut loads) {
                    *load +=
                        bus.users.iter().filter(|(user, _)| *user == pair).map(|(_, busy)| busy).sum::<f64>();
                }
            }
            let foreign = run.clone().any(|s| instance.pins[s].is_some_and(|pin| pin != *device));
            if foreign || run.end > costs.reach[class][run.start] || instance.excluded[*device] {
                return f64::INFINITY;
            }
            busy = busy.max(part(|c| c.busy));
            time += part(|c| c.time);
            chunk = chunk.max(part(|c| c.chunk));
        }
        if instance.required.iter().any(|d| stages.iter().all(|(device, _)| device != d)) {
            return f64::INFINITY;
        }
        for (bus, load) in instance.shared.iter().zip(loads) {
            let largest = if bus.term == Term::Busy { &mut busy } else { &mut chunk };
            *largest = largest.max(load);
        }
        match instance.score {
            Score::Busy { sequences, chunk_weight } => busy.max((time + chunk_weight * chunk) / sequences),
            Score::Sum { chunk_weight, busy_weight } => time + chunk_weight * chunk + busy_weight * busy,
        }
    }
    fn go(instance: &Instance, stages: &mut Vec<Stage>, best: &mut [f64]) {
        let first = stages.last().map_or(0, |(_, run)| run.end);
        if first == instance.segments {
            let best = &mut best[stages.len() - 1];
            *best = best.min(value(instance, stages));
            return;
        }
        if stages.len() == instance.max_stages {
            return;
        }
        for device in 0..instance.devices.len() {
            if stages.iter().any(|(used, _)| *used == device) {
                continue;
            }
            for end in first + 1..=instance.segments {
                stages.push((device, first..end));
                go(instance, stages, best);
                stages.pop();
            }
        }
    }
    let mut best = vec![f64::INFINITY; instance.devices.len().max(instance.max_stages)];
    go(instance, &mut Vec::new(), &mut best);
    best
}

/// Returns the number of stages and the score of the placement that [`Solution::choose`] should select.
fn choice(best: &[f64], share: f64) -> Option<(usize, f64)> {
    let least = best.iter().copied().fold(f64::INFINITY, f64::min);
    let at = best.iter().position(|score| score.is_finite() && *score <= least * (1.0 + share))?;
    Some((at + 1, best[at]))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Checks that all placements are complete and allowed, that their scores are correct, and that no score is
/// below the bound.
fn check_solution(instance: &Instance, solution: &Solution, what: &str) {
    for (at, placement) in solution.best_by_stages.iter().enumerate() {
        let Some(placement) = placement else { continue };
        assert_eq!(placement.stages.len(), at + 1, "{what}");
        assert!(placement.score.is_finite(), "{what}: {placement:?}");
        assert!(close(placement.score, score(instance, &placement.stages)), "{what}: {placement:?}");
        assert!(solution.bound <= placement.score * (1.0 + 1e-9), "{what}: {solution:?}");
    }
}

/// Returns the maximum numbers of devices and segments of an instance. They are mostly small, because the
/// enumeration tries all placements.
fn sizes(seed: u64) -> (usize, usize) {
    match seed % 200 {
        0 => (6, 12),
        1 => (5, 16),
        2..=9 => (6, 9),
        10..=49 => (5, 9),
        _ => (4, 8),
    }
}

#[test]
fn equals_the_enumeration() {
    let mut placed = 0;
    for seed in 0..2000 {
        let (devices, segments) = sizes(seed);
        let instance = random_instance(seed, devices, segments);
        let solution = solve(&instance);
        let what = format!("seed {seed}");
        check_solution(&instance, &solution, &what);
        assert!(solution.exact, "{what}");
        let all = enumerate(&instance);
        // A different order of summation changes the rounding.
        for share in [1e-12, 0.004, SHARE] {
            let found = solution.choose(share).map(|p| (p.stages.len(), p.score));
            match (choice(&all, share), found) {
                (None, None) => {}
                (Some((stages, score)), Some((found_stages, found))) => {
                    let same = stages == found_stages && close(score, found);
                    assert!(same, "{what}, share {share}: {stages} {score} but found {solution:?}");
                    placed += 1;
                }
                (expected, found) => panic!("{what}: {expected:?} but found {found:?}"),
            }
        }
        for (at, placement) in solution.best_by_stages.iter().enumerate() {
            let score = placement.as_ref().map_or(f64::INFINITY, |p| p.score);
            assert!(
                score >= all[at] * (1.0 - 1e-9),
                "{what}: {score} with {} stages, not {}",
                at + 1,
                all[at]
            );
        }
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(solution.bound == least || close(solution.bound, least), "{what}: bound {}", solution.bound);
    }
    assert!(placed > 3 * 1000, "{placed} of the instances have a placement");
}

/// Checks that a known score does not prune a placement that beats it.
#[test]
fn placements_that_beat_a_known_score_are_found() {
    let (mut beaten, mut kept) = (0, 0);
    for seed in (0..600).step_by(if test_support::nightly() { 1 } else { 5 }) {
        let (devices, segments) = sizes(seed);
        let instance = random_instance(seed, devices, segments);
        let all = enumerate(&instance);
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        for factor in [0.5, 0.985, 0.995, 1.005, 1.5] {
            let known = least * factor;
            let solution = solve(&Instance { known, ..instance.clone() });
            let what = format!("seed {seed}, {factor}");
            assert!(least.is_infinite() || solution.bound <= least.min(known) * (1.0 + 1e-9), "{what}");
            assert!(solution.exact && solution.bound >= least.min(known) * (1.0 - 1e-9), "{what}");
            // Find the fewest stages with which a placement comes close to the known score.
            let most = least.min(known) * (1.0 + SHARE);
            let wanted = all.iter().position(|score| score.is_finite() && *score <= most * (1.0 - 1e-9));
            let score = |at: usize| solution.best_by_stages[at].as_ref().map_or(f64::INFINITY, |p| p.score);
            match wanted {
                Some(at) => assert!(close(score(at), all[at]), "{what}: {} with {}", score(at), at + 1),
                None => kept += 1,
            }
            beaten += usize::from(wanted.is_some());
        }
        assert!(bound(&instance) <= least * (1.0 + 1e-9), "seed {seed}: {} bounds {least}", bound(&instance));
    }
    assert!(beaten > 70 && kept > 70, "{beaten} beaten, {kept} kept");
}

/// Checks the search without enumeration: its placements are allowed and never better than the optimum, and
/// its bound never exceeds the optimum.
#[test]
fn bounds_hold() {
    for seed in (0..300).step_by(if test_support::nightly() { 1 } else { 5 }) {
        let instance = random_instance(seed, 6, 12);
        let (exact, bounded) = (solve(&instance), bounded::solve(&instance));
        let what = format!("seed {seed}");
        check_solution(&instance, &bounded, &what);
        let best = exact.best();
        assert!(bounded.best() >= best * (1.0 - 1e-9), "{what}: {} is better than {best}", bounded.best());
        assert!(bounded.bound <= best * (1.0 + 1e-9), "{what}: {} bounds {best}", bounded.bound);
        assert!(!bounded.exact || close(bounded.best(), best), "{what}: {bounded:?} is not exact");
    }
}

/// Checks that more memory, or another optional device, never makes the best score worse.
#[test]
fn more_is_never_worse() {
    for seed in (0..500).step_by(if test_support::nightly() { 1 } else { 5 }) {
        let instance = random_instance(seed, 5, 10);
        let before = solve(&instance).best();
        let mut roomier = instance.clone();
        let rng = &mut SmallRng::seed_from_u64(seed);
        let device = rng.random_range(0..instance.devices.len());
        for row in &mut roomier.devices[device].reach {
            row.iter_mut().for_each(|end| *end = (*end + 1).min(instance.segments));
        }
        let after = solve(&roomier).best();
        assert!(
            after <= before * (1.0 + 1e-9) || before.is_infinite(),
            "seed {seed}: {before}, then {after}"
        );

        let (count, more) = (instance.devices.len(), instance.devices.len() + 1);
        let mut larger = instance.clone();
        larger.devices.push(larger.devices[device].clone());
        larger.excluded.push(false);
        larger.transfers = (0..more * more)
            .map(|at| match (at / more, at % more) {
                (from, to) if from < count && to < count => instance.transfers[from * count + to],
                _ => Some(LinkCosts { costs: costs(rng, 1.0), class: 0 }),
            })
            .collect();
        let after = solve(&larger).best();
        assert!(
            after <= before * (1.0 + 1e-9) || before.is_infinite(),
            "seed {seed}: {before}, then {after}"
        );
    }
}

/// Returns an instance with equal devices, which the tests modify.
fn plain(devices: usize, segments: usize, score: Score) -> Instance {
    let each = Costs { busy: 10.0, time: 10.0, chunk: 20.0 };
    let mut before = vec![Costs::default()];
    (0..segments).for_each(|at| before.push(before[at] + each));
    let device = DeviceCosts {
        before,
        stage: Costs { busy: 1.0, time: 1.0, chunk: 1.0 },
        entry: Costs::default(),
        exit: Costs::default(),
        reach: vec![vec![segments; segments + 1]],
    };
    let transfer = LinkCosts { costs: Costs { busy: 2.0, time: 3.0, chunk: 4.0 }, class: 0 };
    Instance {
        segments,
        devices: vec![device; devices],
        transfers: vec![Some(transfer); devices * devices],
        shared: Vec::new(),
        score,
        pins: vec![None; segments],
        required: Vec::new(),
        excluded: vec![false; devices],
        max_stages: devices,
        known: f64::INFINITY,
    }
}

const SUM: Score = Score::Sum { chunk_weight: 0.0, busy_weight: 0.0 };
const BUSY: Score = Score::Busy { sequences: 1000.0, chunk_weight: 0.0 };

#[test]
fn equal_devices_share_equally() {
    let solution = solve(&plain(40, 80, BUSY));
    assert!(solution.exact);
    let best = solution.choose(0.0).expect("there is room");
    assert_eq!((best.stages.len(), best.score), (40, 21.0));
    let alone = solve(&plain(40, 80, SUM));
    assert_eq!(alone.choose(SHARE).map(|p| (p.stages.clone(), p.score)), Some((vec![(0, 0..80)], 801.0)));
}

/// Checks that two devices are not interchangeable if a single transfer differs in one direction.
#[test]
fn devices_with_different_transfers_are_not_interchangeable() {
    assert_eq!(alike(&plain(3, 6, SUM)), [[0, 1, 2]]);
    for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        let mut instance = plain(3, 6, SUM);
        let transfer = instance.transfers[from * 3 + to].as_mut().expect("a link");
        transfer.costs.time += 1.0;
        assert_eq!(alike(&instance), [[0], [1], [2]], "{from} to {to}");
    }
}

#[test]
fn five_devices_of_two_kinds() {
    let mut instance = plain(5, 60, BUSY);
    for slow in 3..5 {
        let double = |costs: &Costs| *costs + *costs;
        instance.devices[slow].before = instance.devices[slow].before.iter().map(double).collect();
    }
    let solution = solve(&instance);
    let best = solution.choose(0.0).expect("there is room");
    // Each of the three fast devices takes 15 segments, and each of the two slow ones takes 7 or 8.
    assert_eq!((best.stages.len(), best.score, solution.exact), (5, 161.0, true));
}

#[test]
fn a_transfer_of_enormous_cost_is_avoided() {
    let mut instance = plain(3, 30, BUSY);
    for transfer in instance.transfers.iter_mut().flatten() {
        transfer.costs = Costs { busy: 1e15, time: 1e15, chunk: 1e15 };
    }
    assert_eq!(solve(&instance).choose(SHARE).map(|p| (p.stages.len(), p.score)), Some((1, 301.0)));
    instance
        .devices
        .iter_mut()
        .for_each(|device| device.reach = vec![(0..=30).map(|at| 30.min(at + 20)).collect()]);
    assert_eq!(solve(&instance).choose(SHARE).map(|p| p.stages.len()), Some(2));
}

#[test]
fn a_device_that_fits_nothing_is_left_out() {
    let mut instance = plain(3, 30, BUSY);
    instance.devices[1].reach = vec![(0..=30).collect()];
    let solution = solve(&instance);
    let best = solution.choose(SHARE).expect("there is room");
    assert_eq!((best.stages.len(), best.score), (2, 151.0));
    assert!(best.stages.iter().all(|(device, _)| *device != 1));
    instance.required = vec![1];
    let solution = solve(&instance);
    assert!(solution.choose(SHARE).is_none() && solution.exact && solution.bound.is_infinite());
}

/// Checks that the bound is tight for fleets with too many sets of devices to enumerate.
#[test]
fn many_devices_are_bounded_closely() {
    for score in [SUM, BUSY, Score::Sum { chunk_weight: 2.0, busy_weight: 16.0 }] {
        let mut instance = plain(24, 200, score);
        for (at, device) in instance.devices.iter_mut().enumerate() {
            let factor = 1.0 + at as f64 / 10.0;
            let times = |costs: &Costs| Costs {
                busy: costs.busy * factor,
                time: costs.time * factor,
                chunk: costs.chunk * factor,
            };
            device.before = device.before.iter().map(times).collect();
            device.reach = vec![(0..=200).map(|first| 200.min(first + 8 + at % 7)).collect()];
        }
        let solution = solve(&instance);
        check_solution(&instance, &solution, &format!("{score:?}"));
        let best = solution.best();
        assert!(
            best.is_finite() && solution.bound >= 0.98 * best,
            "{score:?}: {} bounds {best}",
            solution.bound
        );
    }
}

#[test]
#[should_panic(expected = "costs of device 0 are negative, infinite or NaN")]
fn costs_are_numbers() {
    let mut instance = random_instance(1, 3, 6);
    instance.devices[0].before[1].time = f64::NAN;
    solve(&instance);
}

#[test]
#[should_panic(expected = "the runs on device 0 do not shrink")]
fn a_run_that_fits_also_fits_without_its_first_segment() {
    let mut instance = random_instance(1, 1, 1);
    instance.devices[0].reach[0] = vec![1, 0];
    solve(&instance);
}

#[test]
#[should_panic(expected = "a placement has 1, below the lower bound 1.001")]
fn no_placement_is_below_the_bound() {
    let instance = random_instance(1, 3, 6);
    instance.check_bound(1.0 + 1e-12, 1.0);
    instance.check_bound(1.001, 1.0);
}
