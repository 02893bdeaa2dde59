//! Adaptive waiting: a thread parks until shortly before an event is expected, then spins until it arrives.
//!
//! Waking a parked thread costs tens of microseconds (up to 100 in a virtual machine), and a token passes
//! several such threads. Pipeline steps take about as long as the steps before them, so a thread can predict
//! when to be awake. Spinning costs part of a core while steps keep coming. On machines with few cores no
//! thread spins on a prediction.
//!
//! Knows nothing about the events that it waits for.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Number of past waits kept for prediction.
const REMEMBERED: usize = 4;
/// Time before the expected event at which a thread wakes. It exceeds the lateness of timers.
const EARLY: Duration = Duration::from_micros(150);
/// Time after the expected event during which a thread keeps spinning.
const LATE: Duration = Duration::from_micros(100);
/// Minimum number of correct predictions among the last eight waits. Below it, nothing is predicted.
const RELIABLE: u32 = 4;
/// Minimum number of cores for spinning on predictions.
const SPARE_FROM: usize = 8;

/// Next action of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll once.
    Look,
    /// Park until woken, or until the timeout if there is one.
    Rest(Option<Duration>),
}

/// Result of a turn.
#[derive(Debug)]
pub enum Outcome<T> {
    /// The awaited item.
    Found(T),
    /// Nothing yet; keep waiting.
    Nothing,
    /// Nothing will ever arrive.
    Gone,
}

/// Wait policy of one thread at one place. The default parks until woken.
#[derive(Debug, Default)]
pub struct Anticipation {
    linger: Duration,
    history: Option<History>,
}

impl Anticipation {
    /// Returns a policy that always spins for `linger` before it first parks.
    pub fn lingering(linger: Duration) -> Self {
        Self { linger, history: has_spare_cores().then(History::default) }
    }

    /// Returns [`lingering`](Self::lingering) on machines with spare cores, otherwise a policy that parks at
    /// once.
    pub fn lingering_if_spare(linger: Duration) -> Self {
        if has_spare_cores() { Self::lingering(linger) } else { Self::default() }
    }

    /// Returns a policy that spins for `linger` before it first parks and makes no predictions.
    pub fn brief(linger: Duration) -> Self {
        Self { linger, history: None }
    }

    /// Takes turns until an item is found. Returns `None` if nothing will ever arrive.
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
                // Let other threads run between polls.
                Outcome::Nothing if turn == Turn::Look => std::thread::yield_now(),
                Outcome::Nothing => {}
            }
        };
        if let Some(history) = &mut self.history {
            history.learn(start.elapsed());
        }
        found
    }

    fn phase(&self, elapsed: Duration) -> Phase {
        if elapsed < self.linger {
            return Phase::Awake;
        }
        self.history.as_ref().map_or(Phase::Asleep { until: None }, |history| history.phase(elapsed))
    }
}

fn has_spare_cores() -> bool {
    static SPARE: OnceLock<bool> = OnceLock::new();
    *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= SPARE_FROM))
}

/// State of a waiting thread at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Polling.
    Awake,
    /// Parked until the given time or until woken.
    Asleep { until: Option<Duration> },
}

/// Durations of recent waits.
#[derive(Debug, Default)]
struct History {
    recent: [Duration; REMEMBERED],
    waits: usize,
    /// One bit for each of the last eight waits: set if a window predicted it.
    predicted: u8,
}

impl History {
    /// Returns the windows in which a wait ends if it takes as long as a recent one.
    fn windows(&self) -> impl Iterator<Item = Range<Duration>> {
        self.recent.iter().take(self.waits).map(|&wait| wait.saturating_sub(EARLY)..wait + LATE)
    }

    fn is_expected(&self, elapsed: Duration) -> bool {
        self.windows().any(|window| window.contains(&elapsed))
    }

    fn phase(&self, elapsed: Duration) -> Phase {
        if self.predicted.count_ones() < RELIABLE {
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
        self.predicted = self.predicted << 1 | u8::from(self.is_expected(waited));
        self.recent[self.waits % REMEMBERED] = waited;
        // From here on only the remainder matters.
        self.waits = if self.waits + 1 == 2 * REMEMBERED { REMEMBERED } else { self.waits + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn history(waits: &[u64]) -> History {
        let mut history = History::default();
        waits.iter().for_each(|&wait| history.learn(us(wait)));
        history
    }

    #[test]
    fn a_thread_is_awake_around_the_times_of_regular_waits_and_asleep_otherwise() {
        // Two kinds of waits, alternating.
        let history = history(&[2000, 5000, 2010, 5020, 1990, 4990, 2000, 5000]);
        assert_eq!(history.phase(us(0)), Phase::Asleep { until: Some(us(1840)) });
        assert_eq!(history.phase(us(1840)), Phase::Awake);
        assert_eq!(history.phase(us(2050)), Phase::Awake);
        assert_eq!(history.phase(us(2100)), Phase::Asleep { until: Some(us(4840)) });
        assert_eq!(history.phase(us(5100)), Phase::Asleep { until: None });
        assert_eq!(history.phase(us(900_000)), Phase::Asleep { until: None });
    }

    #[test]
    fn the_first_wait_and_irregular_waits_are_not_predicted() {
        assert_eq!(history(&[]).phase(us(0)), Phase::Asleep { until: None });
        assert_eq!(history(&[3000, 3000]).phase(us(2950)), Phase::Asleep { until: None });
        let mut wild = history(&[3000; 12]);
        assert_eq!(wild.phase(us(2950)), Phase::Awake);
        for wait in [400, 9000, 1700, 30_000, 800, 70_000, 5000] {
            wild.learn(us(wait));
        }
        assert_eq!(wild.phase(us(4950)), Phase::Asleep { until: None });
    }

    #[test]
    fn an_item_is_found_by_spinning_or_after_parking() {
        let mut anticipation = Anticipation { linger: us(50), history: Some(history(&[20_000; 8])) };
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
