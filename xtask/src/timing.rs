//! Parses the output of `cargo test`. Finds the failed tests, and the durations of test binaries and of
//! single tests.
//!
//! On a stable toolchain, libtest reports no times. It starts tests in the order of their names, one per
//! thread. A test therefore starts when an earlier test frees its thread, so the end times determine all
//! start times. This module starts no process.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Test binary, or the doc tests of one crate.
#[derive(Debug)]
pub(crate) struct Binary {
    /// Package and target of the binary.
    pub name: String,
    pub start: Duration,
    pub end: Duration,
    /// Tests in the order of completion, each with the time at which it ended.
    ended: Vec<(String, Duration)>,
}

/// State of a run of `cargo test`.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub binaries: Vec<Binary>,
    /// Failed tests, each with its binary and name.
    pub failed: Vec<String>,
    /// For each failed binary, the cargo options that rerun it, such as `-p ragtag --lib`. Includes binaries
    /// that crashed before they reported a failed test.
    pub failed_binaries: Vec<String>,
}

impl Run {
    /// Processes `line`, which cargo printed at the time `now` after the start of the run. `names` maps the
    /// file name of a test binary to the name to report.
    pub(crate) fn line(&mut self, line: &str, now: Duration, names: &BTreeMap<String, String>) {
        if let Some(binary) = self.binaries.last_mut() {
            binary.end = now;
        }
        if let Some(name) = started(line) {
            let name = names.get(name).map_or(name, String::as_str).to_owned();
            self.binaries.push(Binary { name, start: now, end: now, ended: Vec::new() });
        } else if let Some(options) = line.strip_prefix("    `").and_then(|rest| rest.strip_suffix('`')) {
            self.failed_binaries.push(options.into());
        } else if let (Some(binary), Some((test, result))) = (self.binaries.last_mut(), ended(line)) {
            if result.starts_with("FAILED") {
                self.failed.push(format!("{}: {test}", binary.name));
            }
            binary.ended.push((test.into(), now));
        }
    }

    /// Adds the results of another run.
    pub(crate) fn add(&mut self, other: Self) {
        self.binaries.extend(other.binaries);
        self.failed.extend(other.failed);
        self.failed_binaries.extend(other.failed_binaries);
    }

    /// Returns all tests with their durations, slowest first. Each binary runs its tests on `threads`
    /// threads.
    pub(crate) fn tests(&self, threads: usize) -> Vec<(Duration, String)> {
        let times = self.binaries.iter().flat_map(|binary| {
            let times = binary.times(threads).into_iter();
            times.map(|(test, time)| (time, format!("{}: {test}", binary.name)))
        });
        let mut tests: Vec<_> = times.collect();
        tests.sort_by(|a, b| b.cmp(a));
        tests
    }
}

impl Binary {
    /// Returns the duration of each test, derived from the end times.
    fn times(&self, threads: usize) -> Vec<(&str, Duration)> {
        // Tests that end in the order of their starts ran sequentially, as with `RUST_TEST_THREADS=1`.
        let one_by_one = self.ended.is_sorted_by_key(|(test, _)| test);
        let threads = if one_by_one { 1 } else { threads };
        let mut waiting: Vec<_> = self.ended.iter().map(|(test, _)| test.as_str()).collect();
        waiting.sort_unstable();
        let mut waiting = VecDeque::from(waiting);
        let mut running: BTreeMap<&str, Duration> =
            waiting.drain(..threads.min(waiting.len())).map(|test| (test, self.start)).collect();
        let mut times = Vec::new();
        for (test, end) in &self.ended {
            // If libtest ran more threads than assumed, the start of a test may be unknown. Its duration is
            // then zero.
            let start = running.remove(test.as_str()).unwrap_or(*end);
            times.push((test.as_str(), *end - start));
            running.extend(waiting.pop_front().map(|next| (next, *end)));
        }
        times
    }
}

/// Returns the file name of the test binary that `line` announces, such as `integration-0123456789abcdef`. If
/// `line` announces doc tests, returns the line.
fn started(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("Doc-tests ") {
        return Some(line);
    }
    let path = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?.1;
    path.rsplit(['/', '\\']).next()
}

/// If `line` reports the end of a test, returns the name and the result of the test.
fn ended(line: &str) -> Option<(&str, &str)> {
    let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((test.trim_end_matches(" - should panic"), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &[(u64, &str)]) -> Run {
        let names = BTreeMap::from([("a-1".into(), "crate-a --lib".into())]);
        let mut run = Run::default();
        lines.iter().for_each(|(s, line)| run.line(line, Duration::from_secs(*s), &names));
        run
    }

    #[test]
    fn tests_start_in_order_of_name_when_a_thread_is_free() {
        let run = run(&[
            (10, "     Running unittests src/lib.rs (target/debug/deps/a-1)"),
            (10, "running 4 tests"),
            (12, "test b - should panic ... ok"),
            (13, "test c ... ignored"),
            (19, "test d ... FAILED"),
            (20, "test a ... ok"),
            (21, "test result: FAILED. 2 passed; 1 failed; 1 ignored"),
            (22, "   Doc-tests ragtag_hal"),
            (25, "test src/lib.rs - open (line 3) ... ok"),
            (25, "error: 2 targets failed:"),
            (25, "    `-p crate-a --lib`"),
        ]);
        let seconds: Vec<_> =
            run.tests(2).iter().map(|(time, name)| format!("{} {name}", time.as_secs())).collect();
        let doc = "3 Doc-tests ragtag_hal: src/lib.rs - open (line 3)";
        let expected =
            ["10 crate-a --lib: a", "6 crate-a --lib: d", doc, "2 crate-a --lib: b", "1 crate-a --lib: c"];
        assert_eq!(seconds, expected);
        assert_eq!(run.failed, ["crate-a --lib: d"]);
        assert_eq!(run.failed_binaries, ["-p crate-a --lib"]);
        assert_eq!((run.binaries[0].end - run.binaries[0].start).as_secs(), 12);
    }

    #[test]
    fn tests_that_end_in_order_ran_sequentially() {
        let run =
            run(&[(0, "Running a (a-1)"), (5, "test a ... ok"), (7, "test b ... ok"), (8, "test c ... ok")]);
        let times: Vec<_> = run.tests(2).iter().map(|(time, _)| time.as_secs()).collect();
        assert_eq!(times, [5, 2, 1]);
    }
}
