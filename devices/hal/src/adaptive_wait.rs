//! Adaptive waiting: a thread parks until shortly before an event is expected, then spins until it arrives.
//!
//! Waking a parked thread costs tens of microseconds (up to 100 in a virtual machine), and each token passes
//! through several such threads. A pipeline step takes about as long as the step before it, so a thread can
//! predict when the next event arrives. During generation, spinning takes up part of a core. On machines with
//! fewer than eight cores, threads therefore do not spin around predicted times.
//!
//! This module knows nothing about the events that it waits for.

use crossbeam_channel::Receiver;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Number of past waits kept for prediction.
const REMEMBERED: usize = 4;
/// Time by which a thread wakes before the expected event. It is longer than the usual delay of the system's
/// timers.
const EARLY: Duration = Duration::from_micros(150);
/// Time after the expected event during which a thread keeps spinning.
const LATE: Duration = Duration::from_micros(100);
/// Minimum number of correct predictions among the last eight waits. Below it, a thread makes no prediction.
const RELIABLE: u32 = 4;
/// Minimum number of cores of a machine on which threads spin around predicted times.
const SPARE_FROM: usize = 8;

/// Next action of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll once.
    Look,
    /// Park until another thread wakes the waiting thread, or until the timeout, if there is one.
    Rest(Option<Duration>),
}

/// Result of a turn.
#[derive(Debug)]
pub enum Awaited<T> {
    /// The awaited item.
    Found(T),
    /// The item has not arrived yet.
    Nothing,
    /// The item will never arrive.
    Gone,
}

/// Wait policy of a thread for one kind of event. The default policy parks until another thread wakes the
/// waiting thread.
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

    /// Returns the policy of [`lingering`](Self::lingering) on machines with spare cores, and the default
    /// policy on other machines.
    pub fn lingering_if_spare(linger: Duration) -> Self {
        if has_spare_cores() { Self::lingering(linger) } else { Self::default() }
    }

    /// Calls `take` until it finds the item. Returns `None` if the item will never arrive.
    pub fn wait<T>(&mut self, mut take: impl FnMut(Turn) -> Awaited<T>) -> Option<T> {
        let start = Instant::now();
        let found = loop {
            let elapsed = start.elapsed();
            let turn = match self.phase(elapsed) {
                Phase::Awake => Turn::Look,
                Phase::Asleep { until } => Turn::Rest(until.map(|until| until.saturating_sub(elapsed))),
            };
            match take(turn) {
                Awaited::Found(found) => break Some(found),
                Awaited::Gone => break None,
                // Let other threads run between polls.
                Awaited::Nothing if turn == Turn::Look => std::thread::yield_now(),
                Awaited::Nothing => {}
            }
        };
        if let Some(history) = &mut self.history {
            history.learn(start.elapsed());
        }
        found
    }

    /// Receives the next item of a channel. Returns `None` if the channel is closed and empty.
    pub fn receive<T>(&mut self, channel: &Receiver<T>) -> Option<T> {
        self.wait(|turn| {
            let received = match turn {
                Turn::Look => channel.try_recv().map_err(|error| error.is_disconnected()),
                Turn::Rest(None) => channel.recv().map_err(|_| true),
                Turn::Rest(Some(limit)) => {
                    channel.recv_timeout(limit).map_err(|error| error.is_disconnected())
                }
            };
            match received {
                Ok(item) => Awaited::Found(item),
                Err(true) => Awaited::Gone,
                Err(false) => Awaited::Nothing,
            }
        })
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
    /// Parked until the given time, or until another thread wakes the waiting thread.
    Asleep { until: Option<Duration> },
}

/// Durations of recent waits.
#[derive(Debug, Default)]
struct History {
    recent: [Duration; REMEMBERED],
    waits: usize,
    /// One bit for each of the last eight waits. The bit is set if the wait's duration was within one of the
    /// windows.
    predicted: u8,
}

impl History {
    /// Returns one time window per recent wait, around the duration of that wait.
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
        // Bounds the counter. Once it has reached `REMEMBERED`, only its remainder matters.
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
        // Waits of about 2 ms and 5 ms alternate.
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
    fn a_channel_is_received_from_until_it_is_closed() {
        for mut policy in
            [Anticipation::default(), Anticipation::lingering(us(200)), Anticipation::lingering(us(5))]
        {
            let (sender, receiver) = crossbeam_channel::unbounded();
            let sending = std::thread::spawn(move || {
                for item in 0..20 {
                    std::thread::sleep(us(100 * (item % 3)));
                    sender.send(item).unwrap();
                }
            });
            for item in 0..20 {
                assert_eq!(policy.receive(&receiver), Some(item));
            }
            assert_eq!(policy.receive(&receiver), None);
            sending.join().unwrap();
        }
    }

    #[test]
    fn an_item_is_found_by_spinning_or_after_parking() {
        let mut anticipation = Anticipation { linger: us(50), history: Some(history(&[20_000; 8])) };
        let by_looking = |turn| if turn == Turn::Look { Awaited::Found(1) } else { Awaited::Gone };
        assert_eq!(anticipation.wait(by_looking), Some(1));
        let mut rests = Vec::new();
        let by_resting = |turn| {
            let Turn::Rest(limit) = turn else { return Awaited::Nothing };
            rests.push(limit);
            if rests.len() == 2 { Awaited::Found(2) } else { Awaited::Nothing }
        };
        assert_eq!(anticipation.wait(by_resting), Some(2));
        assert!(rests[0].is_some_and(|limit| limit <= us(19_850)), "{rests:?}");
        assert_eq!(anticipation.wait(|_| Awaited::<()>::Gone), None);
    }
}
