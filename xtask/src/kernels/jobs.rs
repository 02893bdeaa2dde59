//! Runs many compilations in parallel, on all cores.

use rayon::prelude::*;
use std::io;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs `work` on each job in parallel and reports progress on stderr. Returns the results in the order of
/// the jobs.
pub(super) fn each<J: Sync, R: Send>(what: &str, jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let (start, done) = (Instant::now(), AtomicUsize::new(0));
    let step = jobs.len().div_ceil(5).max(1);
    let one = |job: &J| {
        let result = work(job);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(step) || done == jobs.len() {
            eprintln!("{what}: {done} of {} in {:.0} s", jobs.len(), start.elapsed().as_secs_f64());
        }
        result
    };
    jobs.par_iter().map(one).collect()
}

/// Prints the logs of the first few failed jobs and the names of the others. Returns an error if a job
/// failed.
pub(super) fn verdict(what: &str, tried: usize, failures: &[(String, String)]) -> Result<(), String> {
    const SHOWN: usize = 5;
    for (name, log) in failures.iter().take(SHOWN) {
        eprintln!("== {name}\n{}", log.trim_end());
    }
    for (name, _) in failures.iter().skip(SHOWN) {
        eprintln!("== {name}: failed, too");
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("{what}: {} of {tried} failed", failures.len())) }
}

/// Runs a compiler. If it succeeds, returns its output. If it fails, returns its output as the error.
pub(super) fn run(command: &mut Command) -> Result<String, String> {
    let text = |output: &Output| {
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
    };
    match command.output() {
        Ok(output) if output.status.success() => Ok(text(&output)),
        Ok(output) => Err(format!("{}\n{}", output.status, text(&output))),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

/// Starts `program` to find out whether it is installed. Returns the error if it does not start.
pub(super) fn missing(program: &str) -> Option<io::Error> {
    Command::new(program).arg("--version").output().err()
}
