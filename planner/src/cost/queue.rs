//! Times of a stage with streamed weights: runs its computations, the copies of its weights and the reads from
//! the model's file on three queues.
//!
//! The copies run in order on one queue. The copy to an arena starts when the part that used the arena has
//! computed. A part computes when its copy is complete and the part before it has computed. The scheduler
//! submits copies in the same order. Weights from the model's file are read in this order too. A read starts
//! when the copy from its place has ended, and the copy of these weights starts when the read has ended.
//!
//! This module knows nothing about plans.

use ragtag_graph::execution::READ_PLACES;

/// Maximum number of simulated steps.
const STEPS: usize = 64;
/// Maximum number of steps after which the queues are in the same state again.
const CYCLE: usize = 6;
/// Relative difference between times that count as equal.
const SAME: f64 = 1e-9;

/// A part of a stage: a streamed segment, or a run of resident ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueuePart {
    /// Arena of the weights. `None` if the weights are resident.
    pub arena: Option<usize>,
    /// Time to read the weights from the model's file, in microseconds. 0 if they are in host memory.
    pub read_us: f64,
    /// Time to copy the weights to the arena, in microseconds.
    pub copy_us: f64,
    /// Time of the computation, in microseconds.
    pub compute_us: f64,
}

/// Returns the average time of a step that computes all parts, in microseconds, if many steps follow each
/// other.
pub fn step_us(parts: &[QueuePart]) -> f64 {
    let next = next_parts(parts);
    let (computed_us, copied_us, read_us, freed_us) = Default::default();
    let loaded_us = vec![0.0; parts.len()];
    let mut queues = Queues { computed_us, copied_us, read_us, freed_us, loaded_us };
    let mut states = vec![queues.clone()];
    for _ in 0..STEPS {
        queues.step(parts, &next);
        for (earlier, steps) in states.iter().rev().zip(1..=CYCLE) {
            if let Some(us) = queues.moved_us(earlier) {
                return us / steps as f64;
            }
        }
        states.push(queues.clone());
    }
    let half = &states[STEPS / 2];
    (queues.computed_us - half.computed_us) / (STEPS - STEPS / 2) as f64
}

/// Returns the time that a step takes at least, in microseconds: the sum of its reads, of its copies or of
/// its computations, whichever is longest. A part that is alone in its arena is copied only once.
pub fn floor_us(parts: &[QueuePart]) -> f64 {
    let copied = parts.iter().zip(next_parts(parts)).filter(|(_, next)| next.is_some());
    let (read_us, copied_us) = copied.fold((0.0, 0.0), |(read_us, copied_us), (part, _)| {
        (read_us + part.read_us, copied_us + part.copy_us)
    });
    f64::max(read_us, copied_us).max(parts.iter().map(|part| part.compute_us).sum())
}

/// Returns, for each part, the next part with the same arena. `None` for resident parts and for a part that
/// is alone in its arena.
fn next_parts(parts: &[QueuePart]) -> Vec<Option<usize>> {
    let next = |at: usize| {
        let arena = parts[at].arena?;
        let mut later = (at + 1..parts.len()).chain(0..at);
        later.find(|&other| parts[other].arena == Some(arena))
    };
    (0..parts.len()).map(next).collect()
}

/// Times at which the queues become idle and the weights of each part are in their arena.
#[derive(Clone)]
struct Queues {
    computed_us: f64,
    copied_us: f64,
    read_us: f64,
    /// Times at which the places for reads become free. The place that is used next comes first.
    freed_us: [f64; READ_PLACES],
    loaded_us: Vec<f64>,
}

impl Queues {
    fn step(&mut self, parts: &[QueuePart], next: &[Option<usize>]) {
        for (at, part) in parts.iter().enumerate() {
            self.computed_us = self.computed_us.max(self.loaded_us[at]) + part.compute_us;
            let Some(next) = next[at] else { continue };
            let start_us = self.copied_us.max(self.computed_us);
            if parts[next].read_us > 0.0 {
                self.read_us = self.read_us.max(self.freed_us[0]) + parts[next].read_us;
                self.copied_us = start_us.max(self.read_us) + parts[next].copy_us;
                self.freed_us.rotate_left(1);
                self.freed_us[READ_PLACES - 1] = self.copied_us;
            } else {
                self.copied_us = start_us + parts[next].copy_us;
            }
            self.loaded_us[next] = self.copied_us;
        }
    }

    /// Returns the time since the state `earlier` if everything has moved by the same time.
    fn moved_us(&self, earlier: &Self) -> Option<f64> {
        let moved_us = self.computed_us - earlier.computed_us;
        let is_same = |now: f64, then: f64| (now - then - moved_us).abs() <= SAME * self.computed_us;
        let mut times = self.times_us().zip(earlier.times_us());
        // Queues that were never used, and weights that were never copied again, delay nothing.
        times.all(|(now, then)| now == 0.0 || is_same(now, then)).then_some(moved_us)
    }

    /// Returns all times except that of the computations.
    fn times_us(&self) -> impl Iterator<Item = f64> {
        let queues = [self.copied_us, self.read_us].into_iter().chain(self.freed_us);
        queues.chain(self.loaded_us.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_graph::execution::{Arenas, FEWEST, MAX_ARENAS, StagePart};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Returns the parts of a stage with random durations in whole microseconds, for each assignment of its
    /// streamed segments.
    fn random(rng: &mut SmallRng) -> Vec<(Arenas, Vec<QueuePart>)> {
        let segments = rng.random_range(FEWEST..30);
        let mut streamed: Vec<usize> = (0..segments).collect();
        if rng.random_bool(0.5) {
            let share = rng.random_range(0.3..1.0);
            streamed.retain(|_| rng.random_bool(share));
        } else {
            streamed.drain(..rng.random_range(0..=segments - FEWEST));
        }
        let most_copy_us = rng.random_range(1..200);
        let times: Vec<(u32, u32)> =
            (0..segments).map(|_| (rng.random_range(0..=most_copy_us), rng.random_range(1..100))).collect();
        let of_arenas = |arenas| {
            let part = |part: StagePart| QueuePart {
                arena: part.arena,
                read_us: 0.0,
                copy_us: if part.arena.is_some() { times[part.segments.start].0.into() } else { 0.0 },
                compute_us: times[part.segments].iter().map(|(_, us)| f64::from(*us)).sum(),
            };
            (arenas, StagePart::all(0..segments, &streamed, arenas).into_iter().map(part).collect())
        };
        Arenas::all(streamed.len()).into_iter().filter(|_| streamed.len() >= FEWEST).map(of_arenas).collect()
    }

    /// Returns the average time of a step. Advances both queues by single microseconds.
    fn ticked_us(parts: &[QueuePart]) -> f64 {
        const STEPS: usize = 120;
        let alone = |at: usize| parts.iter().filter(|other| other.arena == parts[at].arena).count() == 1;
        let copied: Vec<usize> =
            (0..parts.len()).filter(|&at| parts[at].arena.is_some() && !alone(at)).collect();
        // All arenas are free at first. `holds` is the computation, counted over all steps, that an arena
        // serves.
        let mut holds = [None; MAX_ARENAS];
        let (mut copies, mut copying_us, mut loaded) = (0usize, 0u64, vec![false; parts.len() * (STEPS + 1)]);
        let (mut computed, mut computing_us, mut now_us) = (0usize, 0u64, 0u64);
        let mut ends_us = vec![];
        while computed < parts.len() * STEPS {
            loop {
                let mut moved = false;
                let (at, step) = (copied.get(copies % copied.len().max(1)), copies / copied.len().max(1));
                if let Some(&at) = at.filter(|_| step <= STEPS) {
                    let (arena, serves) = (parts[at].arena.unwrap(), step * parts.len() + at);
                    if holds[arena].is_none_or(|of: usize| of < computed || of == serves) {
                        holds[arena] = Some(serves);
                        if copying_us == parts[at].copy_us as u64 {
                            (copies, copying_us, moved) = (copies + 1, 0, true);
                            loaded[serves] = true;
                        }
                    }
                }
                let part = computed % parts.len();
                let is_loaded = !copied.contains(&part) || loaded[computed];
                if is_loaded && computing_us == parts[part].compute_us as u64 {
                    (computed, computing_us, moved) = (computed + 1, 0, true);
                    if computed.is_multiple_of(parts.len()) {
                        ends_us.push(now_us);
                    }
                }
                if !moved || computed == parts.len() * STEPS {
                    break;
                }
            }
            let serves =
                copied.get(copies % copied.len().max(1)).map(|at| (copies / copied.len()) * parts.len() + at);
            if serves.is_some_and(|serves| holds[parts[serves % parts.len()].arena.unwrap()] == Some(serves))
            {
                copying_us += 1;
            }
            let part = computed % parts.len();
            if !copied.contains(&part) || loaded[computed] {
                computing_us += 1;
            }
            now_us += 1;
        }
        (ends_us[STEPS - 1] - ends_us[STEPS / 2 - 1]) as f64 / (STEPS / 2) as f64
    }

    #[test]
    fn steps_take_as_long_as_queues_that_advance_tick_by_tick() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut delayed = 0;
        for (arenas, parts) in (0..60).flat_map(|_| random(&mut rng)) {
            let (us, ticked_us) = (step_us(&parts), ticked_us(&parts));
            assert!((us - ticked_us).abs() <= 0.002 * us, "{arenas:?}: {us} {ticked_us} {parts:?}");
            assert!(us >= floor_us(&parts) - 1e-6, "{arenas:?}");
            delayed += usize::from(us > floor_us(&parts) * 1.01);
        }
        assert!(delayed > 40, "copies delay computations in only {delayed} cases");
    }

    /// Returns the average time of a step with reads. Knows the order of all events, and computes when each
    /// may start at the earliest.
    fn ordered_us(parts: &[QueuePart]) -> f64 {
        const STEPS: usize = 400;
        let next = next_parts(parts);
        // Start and end of every read, copy and computation so far.
        let [mut reads, mut copies, mut computed, mut copies_of_reads] = [const { Vec::<f64>::new() }; 4];
        let mut loaded = vec![0.0f64; parts.len()];
        for at in (0..STEPS).flat_map(|_| 0..parts.len()) {
            let start = computed.last().copied().unwrap_or(0.0).max(loaded[at]);
            computed.push(start + parts[at].compute_us);
            let Some(next) = next[at] else { continue };
            let mut ready = copies.last().copied().unwrap_or(0.0).max(computed[computed.len() - 1]);
            if parts[next].read_us > 0.0 {
                let free =
                    copies_of_reads.len().checked_sub(READ_PLACES).map_or(0.0, |at| copies_of_reads[at]);
                reads.push(reads.last().copied().unwrap_or(0.0).max(free) + parts[next].read_us);
                ready = ready.max(reads[reads.len() - 1]);
            }
            copies.push(ready + parts[next].copy_us);
            if parts[next].read_us > 0.0 {
                copies_of_reads.push(copies[copies.len() - 1]);
            }
            loaded[next] = copies[copies.len() - 1];
        }
        let ends = |step: usize| computed[step * parts.len() - 1];
        (ends(STEPS) - ends(STEPS / 2)) / (STEPS / 2) as f64
    }

    #[test]
    fn reads_delay_the_copies_that_wait_for_them() {
        let mut rng = SmallRng::seed_from_u64(3);
        let (mut slower, mut bound) = (0, 0);
        let all: Vec<_> = (0..60).flat_map(|_| random(&mut rng)).collect();
        for (arenas, parts) in all {
            let mut reading = parts.clone();
            for part in reading.iter_mut().filter(|part| part.arena.is_some()) {
                part.read_us = if rng.random_bool(0.7) { f64::from(rng.random_range(1..200)) } else { 0.0 };
            }
            let (us, ordered_us) = (step_us(&reading), ordered_us(&reading));
            assert!((us - ordered_us).abs() <= 0.005 * us, "{arenas:?}: {us} {ordered_us} {reading:?}");
            assert!(us >= floor_us(&reading) - 1e-6 && us >= step_us(&parts) - 1e-6, "{arenas:?}");
            slower += usize::from(us > 1.01 * step_us(&parts));
            bound += usize::from(us < 1.01 * floor_us(&reading));
        }
        assert!(slower > 40 && bound > 40, "{slower} {bound}");
    }

    #[test]
    fn longer_cycles_of_arenas_never_make_a_step_slower() {
        let mut rng = SmallRng::seed_from_u64(2);
        let (mut pairs, mut faster) = (0, 0);
        for _ in 0..400 {
            let all = random(&mut rng);
            for (at, (more, parts)) in all.iter().enumerate() {
                for (fewer, other) in &all[..at] {
                    // With a longer cycle and no more copies, each copy may start at least as early.
                    let cycle = |of: &Arenas| of.count() + of.copied();
                    if more.copied() > fewer.copied() || cycle(more) < cycle(fewer) {
                        continue;
                    }
                    let (us, other_us) = (step_us(parts), step_us(other));
                    assert!(us <= other_us * (1.0 + 1e-6), "{fewer:?} {other_us}, {more:?} {us}");
                    pairs += 1;
                    faster += usize::from(us < 0.99 * other_us);
                }
            }
        }
        assert!(pairs > 300 && faster > 100, "{pairs} {faster}");
    }

    #[test]
    fn neighbouring_streamed_segments_need_several_arenas() {
        // A run of resident segments, then twelve streamed ones: 36 ms, and 12 × 1.8 ms with copies of 8 ms.
        let us = |count| {
            let arenas = Arenas::new(12, Some(count)).expect("possible");
            let part = |arena, copy_us, compute_us| QueuePart { arena, read_us: 0.0, copy_us, compute_us };
            let mut parts = vec![part(None, 0.0, 36e3)];
            let streamed = |at| part(Some(arenas.of(at)), 8e3, 1.8e3);
            parts.extend((0..12).map(streamed));
            step_us(&parts)
        };
        // Two copies fill their arenas while the resident segments compute: 36 + 10 × 8 + 2 × 1.8.
        assert!((us(2) - 119.6e3).abs() < 1.0, "{}", us(2));
        assert!((us(4) - 103.6e3).abs() < 1.0, "{}", us(4));
        assert!((us(6) - 96e3).abs() < 1.0, "{}", us(6));
    }

    #[test]
    fn resident_parts_and_free_copies_take_their_computations() {
        let part = |arena, copy_us| QueuePart { arena, read_us: 0.0, copy_us, compute_us: 5.0 };
        assert!((step_us(&[part(None, 0.0)]) - 5.0).abs() < 1e-9);
        assert!((step_us(&[part(None, 0.0), part(Some(0), 100.0)]) - 10.0).abs() < 1e-9, "copied once");
        let free: Vec<_> = (0..4).map(|at| part(Some(at % 2), 0.0)).collect();
        assert!((step_us(&free) - 20.0).abs() < 1e-9);
        assert!(step_us(&[]).abs() < 1e-9);
    }
}
