//! Runs work on pairs of devices, each pair on its own thread, and gives up on pairs that do not answer.
//!
//! A hung driver never returns from its call, so its thread cannot be stopped. The thread keeps the two
//! devices and ends with the process.

use super::LinkOptions;
use crate::calibrate::solo::SoloDevice;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Indices of the two devices of a pair.
pub(super) type Pair = [usize; 2];

/// Devices, each in use by at most one pair at a time.
pub(super) struct Pairs<'a> {
    /// `None` for a device that does not answer.
    devices: Vec<Option<SoloDevice>>,
    labels: Vec<String>,
    /// Time without a finished step after which a pair counts as silent.
    limit: Duration,
    /// Time limit of all work, and its start.
    total: Duration,
    start: Instant,
    /// Callback for each finished step.
    step: &'a dyn Fn(),
}

/// Message from the thread of a pair.
enum News<T> {
    Step,
    Done(Box<([SoloDevice; 2], T)>),
}

impl<'a> Pairs<'a> {
    pub(super) fn new(devices: Vec<SoloDevice>, options: &LinkOptions, step: &'a dyn Fn()) -> Self {
        let labels = devices.iter().map(|device| device.adapter().label()).collect();
        Self {
            devices: devices.into_iter().map(Some).collect(),
            labels,
            limit: options.silence,
            total: options.total,
            start: Instant::now(),
            step,
        }
    }

    /// Runs `work` on pairs that share no device, all at once. Returns the results in the order of the pairs.
    /// For a pair that does not answer, for each later pair with one of its devices, and for all pairs after
    /// the time limit, the result is the reason. `work` gets the devices of a pair and a callback for each finished step.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        pairs: &[Pair],
        work: impl Fn([&mut SoloDevice; 2], &dyn Fn()) -> T + Clone + Send + 'static,
    ) -> Vec<Result<T, String>> {
        let (sender, receiver) = channel();
        let (mut heard, mut results) = (BTreeMap::new(), BTreeMap::new());
        for &pair in pairs {
            let mut devices = match self.take(pair) {
                Ok(devices) => devices,
                Err(silent) => {
                    results.insert(pair, Err(silent));
                    continue;
                }
            };
            let (sender, work) = (sender.clone(), work.clone());
            let thread = std::thread::Builder::new().name("ragtag link".into()).spawn(move || {
                let [first, second] = &mut devices;
                // Sending fails after this pair was given up.
                let step = || drop(sender.send((pair, News::Step)));
                let result = work([first, second], &step);
                let _ = sender.send((pair, News::Done(Box::new((devices, result)))));
            });
            if thread.is_ok() {
                heard.insert(pair, Instant::now());
            }
        }
        // The channel closes when all threads have ended, even after a panic.
        drop(sender);
        results.extend(self.collect(&receiver, heard));
        let silent = || Err(format!("no answer in {} s", self.limit.as_secs_f64()));
        pairs.iter().map(|pair| results.remove(pair).unwrap_or_else(silent)).collect()
    }

    /// Takes the devices of a pair.
    ///
    /// # Errors
    /// Fails if one of the devices does not answer, or after the time limit.
    fn take(&mut self, [first, second]: Pair) -> Result<[SoloDevice; 2], String> {
        if self.start.elapsed() >= self.total {
            return Err(format!("not probed within {} s", self.total.as_secs_f64()));
        }
        let silent = |at: usize| format!("not probed, because {} does not answer", self.labels[at]);
        match (self.devices[first].take(), self.devices[second].take()) {
            (Some(a), Some(b)) => Ok([a, b]),
            (a, b) => {
                let missing = if a.is_none() { first } else { second };
                let error = silent(missing);
                (self.devices[first], self.devices[second]) = (a, b);
                Err(error)
            }
        }
    }

    /// Collects the results of all pairs in `heard`, until each has answered or is silent. `heard` has the
    /// time of the last sign of each pair.
    fn collect<T>(
        &mut self,
        receiver: &Receiver<(Pair, News<T>)>,
        mut heard: BTreeMap<Pair, Instant>,
    ) -> BTreeMap<Pair, Result<T, String>> {
        let mut results = BTreeMap::new();
        while let Some(oldest) = heard.values().min() {
            let left = (*oldest + self.limit).saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                // A pair that was given up may still answer. Its devices stay closed.
                Ok((pair, _)) if !heard.contains_key(&pair) => {}
                Ok((pair, News::Step)) => {
                    heard.insert(pair, Instant::now());
                    (self.step)();
                }
                Ok((pair, News::Done(done))) => {
                    let ([first, second], result) = *done;
                    (self.devices[pair[0]], self.devices[pair[1]]) = (Some(first), Some(second));
                    heard.remove(&pair);
                    results.insert(pair, Ok(result));
                }
                Err(RecvTimeoutError::Timeout) => heard.retain(|_, last| last.elapsed() < self.limit),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        results
    }
}

/// Divides pairs into rounds of at most `most` pairs that share no device.
pub(super) fn rounds(pairs: &[Pair], most: usize) -> Vec<Vec<Pair>> {
    let mut rounds: Vec<Vec<Pair>> = Vec::new();
    for pair in pairs {
        let is_free = |round: &&mut Vec<Pair>| {
            round.len() < most && !round.iter().flatten().any(|device| pair.contains(device))
        };
        match rounds.iter_mut().find(is_free) {
            Some(round) => round.push(*pair),
            None => rounds.push(vec![*pair]),
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_a_round_share_no_device() {
        let pairs: Vec<_> = super::super::pairs(4).collect();
        let parallel = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]];
        assert_eq!(rounds(&pairs, 2), parallel.map(|round| round.to_vec()));
        assert_eq!(rounds(&pairs, 1), pairs.iter().map(|pair| vec![*pair]).collect::<Vec<_>>());
    }

    /// Returns four idle CPU devices.
    fn four() -> Vec<SoloDevice> {
        let mut options = crate::DeviceOptions::selecting("cpu");
        (options.cpu_devices, options.cpu_threads) = (4, Some(1));
        let devices = crate::Devices::probe(&options).unwrap();
        let opened = devices.open(&devices.labels()).unwrap();
        opened.into_iter().map(|(_, device)| SoloDevice::new(Box::new(device))).collect()
    }

    #[test]
    fn pairs_of_a_round_run_at_the_same_time() {
        let steps = std::cell::Cell::new(0);
        let step = || steps.set(steps.get() + 1);
        let mut pairs = Pairs::new(four(), &LinkOptions::default(), &step);
        // Each pair waits for the other.
        let barrier = std::sync::Arc::new(std::sync::Barrier::new(2));
        let results = pairs.run(&[[0, 2], [1, 3]], move |ends, step| {
            barrier.wait();
            step();
            ends.map(|end| end.adapter().label())
        });
        let labels = |a: &str, b: &str| Ok([a.to_owned(), b.to_owned()]);
        assert_eq!(results, [labels("cpu:0", "cpu:2"), labels("cpu:1", "cpu:3")]);
        assert_eq!(steps.get(), 2);
        assert_eq!(pairs.run(&[[0, 1]], |_, _| 7), [Ok(7)], "the devices are returned");
    }

    #[test]
    fn a_pair_that_panics_has_no_answer() {
        let mut pairs = Pairs::new(four(), &LinkOptions::default(), &|| ());
        let results = pairs.run(&[[0, 1], [2, 3]], |ends, _| assert_eq!(ends[0].adapter().label(), "cpu:2"));
        assert_eq!(results, [Err("no answer in 60 s".into()), Ok(())]);
        let missing = "not probed, because cpu:0 does not answer".to_owned();
        assert_eq!(pairs.run(&[[0, 2]], |_, _| ()), [Err(missing)]);

        let options = LinkOptions { total: Duration::ZERO, ..LinkOptions::default() };
        let late = Pairs::new(four(), &options, &|| ()).run(&[[0, 1]], |_, _| ());
        assert_eq!(late, [Err("not probed within 0 s".into())]);
    }
}
