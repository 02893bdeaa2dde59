//! CPU time that other processes take from measurements.
//!
//! Linux counts two times for each thread: the time on a CPU, and the time in which the thread was ready but waited
//! for a CPU. If other processes use the CPUs, these waits lengthen every timing. Waits for other threads of this
//! process do not count, because a run has them, too. On other systems, nothing is known of waits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// CPU time of all processes on each CPU since the system started.
const MACHINE: &str = "/proc/stat";
/// Line with the CPUs that this process may use, in [`STATUS`].
const ALLOWED: &str = "Cpus_allowed_list:";
const STATUS: &str = "/proc/self/status";
/// Threads of this process.
const THREADS: &str = "/proc/self/task";
/// Nanoseconds per unit of [`MACHINE`], on all usual systems.
const TICK_NS: u64 = 10_000_000;
/// Interval between readings of [`MACHINE`]. A reading takes long on a machine with many cores.
const REFRESH: Duration = Duration::from_millis(50);

/// Times of a thread or of several threads, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    ran_ns: u64,
    waited_ns: u64,
}

/// Times of all threads of this process at one moment.
#[derive(Debug)]
pub(super) struct Threads(BTreeMap<u64, Times>);

/// Meter of the CPU time that other processes take from this process.
#[derive(Debug)]
pub struct Meter {
    threads: Threads,
    /// CPUs that this process may use. Load on other CPUs does not disturb it.
    cpus: Vec<RangeInclusive<u32>>,
    /// CPU time of all processes on these CPUs at the start. `None` if the system does not report it.
    all_ns: Option<u64>,
    start: Instant,
    /// Fraction of this process's waits that other processes caused, and the time of its computation.
    by_others: Cell<Option<(Instant, f64)>>,
}

impl Meter {
    /// Creates a meter that starts now.
    pub fn start() -> Self {
        let cpus = std::fs::read_to_string(STATUS).ok().and_then(|text| allowed(&text)).unwrap_or_default();
        let (all_ns, start) = (machine_ns(&cpus), Instant::now());
        Self { threads: Threads::now(), cpus, all_ns, start, by_others: Cell::new(None) }
    }

    /// Returns the fraction of the time since the start that this process's busy threads have lost to other
    /// processes. Returns 0 if the system does not report it.
    pub fn lost(&self) -> f64 {
        self.lost_since(&self.threads)
    }

    /// Returns the fraction of the time since `before` that this process's busy threads have lost to other processes.
    pub(super) fn lost_since(&self, before: &Threads) -> f64 {
        let Times { ran_ns, waited_ns } = Threads::now().since(before);
        lost(ran_ns, waited_ns, self.by_others())
    }

    /// Returns the average number of CPUs that other processes have used since the start, of those that this process
    /// may use.
    pub(super) fn others(&self) -> f64 {
        let own = Threads::now().since(&self.threads);
        self.others_ns(own.ran_ns) as f64 / self.start.elapsed().as_nanos().max(1) as f64
    }

    fn others_ns(&self, own_ns: u64) -> u64 {
        let all_ns = self.all_ns.zip(machine_ns(&self.cpus));
        all_ns.map_or(0, |(before, now)| now.saturating_sub(before).saturating_sub(own_ns))
    }

    /// Returns the fraction of this process's waits since the start that other processes caused.
    fn by_others(&self) -> f64 {
        if let Some((at, fraction)) = self.by_others.get()
            && at.elapsed() < REFRESH
        {
            return fraction;
        }
        let own = Threads::now().since(&self.threads);
        let fraction = (self.others_ns(own.ran_ns) as f64 / own.waited_ns.max(1) as f64).min(1.0);
        self.by_others.set(Some((Instant::now(), fraction)));
        fraction
    }
}

impl Threads {
    pub(super) fn now() -> Self {
        let threads = std::fs::read_dir(THREADS).into_iter().flatten().flatten();
        let thread = |entry: std::fs::DirEntry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            // A thread may end before the file is read.
            let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            Some((number, thread_times(&text)?))
        };
        Self(threads.filter_map(thread).collect())
    }

    /// Returns the total times of the present threads since `before`.
    fn since(&self, before: &Self) -> Times {
        let mut sum = Times::default();
        for (number, now) in &self.0 {
            let before = before.0.get(number).copied().unwrap_or_default();
            sum.ran_ns += now.ran_ns.saturating_sub(before.ran_ns);
            sum.waited_ns += now.waited_ns.saturating_sub(before.waited_ns);
        }
        sum
    }
}

/// Returns the fraction of the time that threads lost. They ran for `ran_ns` and waited for `waited_ns`. Other
/// processes caused the fraction `by_others` of the waits.
fn lost(ran_ns: u64, waited_ns: u64, by_others: f64) -> f64 {
    let lost_ns = waited_ns as f64 * by_others;
    if lost_ns > 0.0 { lost_ns / (ran_ns as f64 + lost_ns) } else { 0.0 }
}

/// Parses the times of a thread: the time on a CPU, the time of waits, and the number of time slices.
fn thread_times(text: &str) -> Option<Times> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    Some(Times { ran_ns: words.next()??, waited_ns: words.next()?? })
}

fn machine_ns(cpus: &[RangeInclusive<u32>]) -> Option<u64> {
    busy_ns(&std::fs::read_to_string(MACHINE).ok()?, cpus)
}

/// Parses the CPUs that a process may use, such as `0-3,8`.
fn allowed(status: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let list = status.lines().find_map(|line| line.strip_prefix(ALLOWED))?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').map(range).collect()
}

/// Parses the CPU time of all processes on `cpus`. Each CPU has a line with its number. The line counts ticks in user
/// code, in user code with low priority, in the kernel, idle, idle during I/O, in interrupts, and in soft interrupts.
fn busy_ns(text: &str, cpus: &[RangeInclusive<u32>]) -> Option<u64> {
    let of_cpu = |line: &str| {
        let (number, counts) = line.strip_prefix("cpu")?.split_once(' ')?;
        let number = number.parse().ok()?;
        cpus.iter().any(|range| range.contains(&number)).then(|| busy_ticks(counts))
    };
    let ticks: Vec<u64> = text.lines().filter_map(of_cpu).collect::<Option<_>>()?;
    let all = ticks.iter().try_fold(0_u64, |sum, ticks| sum.checked_add(*ticks))?;
    if ticks.is_empty() { None } else { all.checked_mul(TICK_NS) }
}

fn busy_ticks(counts: &str) -> Option<u64> {
    let counts: Vec<u64> =
        counts.split_whitespace().map(|count| count.parse().ok()).collect::<Option<_>>()?;
    let [user, low, kernel, _idle, _io, interrupts, soft, ..] = counts[..] else { return None };
    [low, kernel, interrupts, soft].iter().try_fold(user, |sum, ticks| sum.checked_add(*ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_the_system() {
        let times = |ran_ns, waited_ns| Some(Times { ran_ns, waited_ns });
        assert_eq!(thread_times("123 45 6\n"), times(123, 45));
        assert_eq!(["", "1", "a 2 3", "-1 2 3"].map(thread_times), [None; 4]);
        let machine =
            "cpu  99 9 9 9 9 9 9 9 9 9\ncpu0 1 1 1 1 1 1 1 1\ncpu1 10 2 30 400 5 6 7 80 9 9\nintr 1\n";
        let of = |text: &str, cpus| busy_ns(text, &[cpus]);
        assert_eq!(of(machine, 1..=1), Some((10 + 2 + 30 + 6 + 7) * TICK_NS));
        assert_eq!(of(machine, 0..=7), Some((10 + 2 + 30 + 6 + 7 + 5) * TICK_NS));
        assert_eq!(of(machine, 2..=2), None, "no such CPU");
        let broken = ["", "cpu 1 2 3 4 5 6 7", "cpu0 1 2 3", "cpu0 1 2 3 4 5 6 x"];
        assert_eq!(broken.map(|text| of(text, 0..=7)), [None; 4]);
        assert_eq!(of(&format!("cpu0 {0} 1 0 0 0 0 0", u64::MAX), 0..=7), None);
        assert_eq!(allowed("Name:\tragtag\nCpus_allowed_list:\t0-1,8\n"), Some(vec![0..=1, 8..=8]));
        assert_eq!(["", "Cpus_allowed_list:\t", "Cpus_allowed_list:\t1-x"].map(allowed), [const { None }; 3]);
    }

    #[test]
    fn only_waits_for_other_processes_are_lost() {
        // Four busy loops and two threads share two CPUs.
        assert_eq!(lost(200, 400, 1.0), 2.0 / 3.0);
        // More threads than CPUs wait for each other.
        assert_eq!(lost(200, 400, 0.0), 0.0);
        assert_eq!(lost(300, 400, 0.25), 0.25);
        assert_eq!(lost(0, 0, 1.0), 0.0);
    }

    #[test]
    fn threads_count_from_their_start() {
        let at = |times: &[(u64, [u64; 2])]| {
            let times = times.iter().map(|&(id, [ran_ns, waited_ns])| (id, Times { ran_ns, waited_ns }));
            Threads(times.collect())
        };
        let before = at(&[(1, [10, 1]), (2, [20, 2])]);
        // Thread 2 has ended, and thread 3 is new.
        let now = at(&[(1, [15, 3]), (3, [7, 4])]);
        assert_eq!(now.since(&before), Times { ran_ns: 12, waited_ns: 6 });
    }

    /// Checks that a thread's own work is no loss. The test knows nothing of the machine's load.
    #[test]
    fn a_meter_gives_fractions() {
        let meter = Meter::start();
        assert!((0.0..=1.0).contains(&meter.lost()) && meter.others() >= 0.0);
        assert!((0.0..=1.0).contains(&meter.by_others()));
    }
}
