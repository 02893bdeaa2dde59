//! Waiting: asleep while nothing is expected, awake around the times after which something came before.
//!
//! Whoever sleeps until it is woken loses tens of microseconds to the system, in a virtual machine up to a hundred, and a
//! token passes several such threads. Steps of a pipeline take nearly as long as the steps before, so a thread can know when
//! to be awake. It costs a part of a core for as long as steps come; where cores are few nobody is awake for that.
//!
//! This module must not know what is waited for.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Waits that are remembered.
const REMEMBERED: usize = 4;
/// How long before the expected time a thread wakes: longer than a timer may be late.
const EARLY: Duration = Duration::from_micros(150);
/// How long after it a thread looks on.
const LATE: Duration = Duration::from_micros(100);
/// So many of the last eight waits must have ended when expected, or nothing is expected any more.
const RELIABLE: u32 = 4;
/// Processors from which on some are to spare.
const SPARE_FROM: usize = 8;

/// What to do next while one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// See whether it has come.
    Look,
    /// Sleep until it comes, for so long at most if there is a limit.
    Rest(Option<Duration>),
}

/// What came of a turn.
#[derive(Debug)]
pub enum Outcome<T> {
    /// That which was waited for.
    Found(T),
    /// Nothing yet.
    Nothing,
    /// Nothing will come any more.
    Gone,
}

/// How one thread waits at one place. By default it rests until it is woken.
#[derive(Debug, Default)]
pub struct Anticipation {
    linger: Duration,
    habit: Option<Habit>,
}

impl Anticipation {
    /// Of someone who always looks around for so long before the first rest.
    pub fn lingering(linger: Duration) -> Self {
        Self { linger, habit: has_spare_cores().then(Habit::default) }
    }

    /// The same where cores are to spare; elsewhere of someone who rests at once.
    pub fn lingering_if_spare(linger: Duration) -> Self {
        if has_spare_cores() { Self::lingering(linger) } else { Self::default() }
    }

    /// Looks for `linger` before the first rest, and predicts nothing.
    pub fn brief(linger: Duration) -> Self {
        Self { linger, habit: None }
    }

    /// Waits by taking turns until something is found; `None` when nothing will come any more.
    pub fn wait<T>(&mut self, mut take: impl FnMut(Turn) -> Outcome<T>) -> Option<T> {
        let start = Instant::now();
        let found = loop {
            let elapsed = start.elapsed();
            let turn = match self.phase(elapsed) {
                Phase::Awake => Turn::Look,
                Phase::Asleep { until } => Turn::Rest(until.map(|until| until.saturating_sub(elapsed))),
            };
            match take(turn) {
                Outcome::Found(found) => break Some(found),
                Outcome::Gone => break None,
                // Others may run in between.
                Outcome::Nothing if turn == Turn::Look => std::thread::yield_now(),
                Outcome::Nothing => {}
            }
        };
        if let Some(habit) = &mut self.habit {
            habit.learn(start.elapsed());
        }
        found
    }

    fn phase(&self, elapsed: Duration) -> Phase {
        if elapsed < self.linger {
            return Phase::Awake;
        }
        self.habit.as_ref().map_or(Phase::Asleep { until: None }, |habit| habit.phase(elapsed))
    }
}

fn has_spare_cores() -> bool {
    static SPARE: OnceLock<bool> = OnceLock::new();
    *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= SPARE_FROM))
}

/// What to do at some time of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Look.
    Awake,
    /// Rest until then, or until woken.
    Asleep { until: Option<Duration> },
}

/// How long the last waits took.
#[derive(Debug, Default)]
struct Habit {
    recent: [Duration; REMEMBERED],
    waits: usize,
    /// Whether each of the last eight ended when one before it had.
    foreseen: u8,
}

impl Habit {
    /// When a wait would end if it took as long as one of the last.
    fn windows(&self) -> impl Iterator<Item = Range<Duration>> {
        self.recent.iter().take(self.waits).map(|&wait| wait.saturating_sub(EARLY)..wait + LATE)
    }

    fn is_expected(&self, elapsed: Duration) -> bool {
        self.windows().any(|window| window.contains(&elapsed))
    }

    fn phase(&self, elapsed: Duration) -> Phase {
        if self.foreseen.count_ones() < RELIABLE {
            return Phase::Asleep { until: None };
        }
        if self.is_expected(elapsed) {
            return Phase::Awake;
        }
        Phase::Asleep {
            until: self.windows().map(|window| window.start).filter(|start| *start > elapsed).min(),
        }
    }

    fn learn(&mut self, waited: Duration) {
        self.foreseen = self.foreseen << 1 | u8::from(self.is_expected(waited));
        self.recent[self.waits % REMEMBERED] = waited;
        // The remainder is what counts from then on.
        self.waits = if self.waits + 1 == 2 * REMEMBERED { REMEMBERED } else { self.waits + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn habit(waits: &[u64]) -> Habit {
        let mut habit = Habit::default();
        waits.iter().for_each(|&wait| habit.learn(us(wait)));
        habit
    }

    #[test]
    fn one_is_awake_around_the_times_of_regular_waits_and_asleep_otherwise() {
        // Two kinds of waits in turns.
        let habit = habit(&[2000, 5000, 2010, 5020, 1990, 4990, 2000, 5000]);
        assert_eq!(habit.phase(us(0)), Phase::Asleep { until: Some(us(1840)) });
        assert_eq!(habit.phase(us(1840)), Phase::Awake);
        assert_eq!(habit.phase(us(2050)), Phase::Awake);
        assert_eq!(habit.phase(us(2100)), Phase::Asleep { until: Some(us(4840)) });
        assert_eq!(habit.phase(us(5100)), Phase::Asleep { until: None });
        assert_eq!(habit.phase(us(900_000)), Phase::Asleep { until: None });
    }

    #[test]
    fn nothing_is_expected_of_waits_without_rule_nor_of_the_first() {
        assert_eq!(habit(&[]).phase(us(0)), Phase::Asleep { until: None });
        assert_eq!(habit(&[3000, 3000]).phase(us(2950)), Phase::Asleep { until: None });
        let mut wild = habit(&[3000; 12]);
        assert_eq!(wild.phase(us(2950)), Phase::Awake);
        for wait in [400, 9000, 1700, 30_000, 800, 70_000, 5000] {
            wild.learn(us(wait));
        }
        assert_eq!(wild.phase(us(4950)), Phase::Asleep { until: None });
    }

    #[test]
    fn what_comes_is_found_awake_or_asleep() {
        let mut anticipation = Anticipation { linger: us(50), habit: Some(habit(&[20_000; 8])) };
        let by_looking = |turn| if turn == Turn::Look { Outcome::Found(1) } else { Outcome::Gone };
        assert_eq!(anticipation.wait(by_looking), Some(1));
        let mut rests = Vec::new();
        let by_resting = |turn| {
            let Turn::Rest(limit) = turn else { return Outcome::Nothing };
            rests.push(limit);
            if rests.len() == 2 { Outcome::Found(2) } else { Outcome::Nothing }
        };
        assert_eq!(anticipation.wait(by_resting), Some(2));
        assert!(rests[0].is_some_and(|limit| limit <= us(19_850)), "{rests:?}");
        assert_eq!(anticipation.wait(|_| Outcome::<()>::Gone), None);
    }
}
