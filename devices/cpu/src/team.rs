//! The threads of a device that share the work of a script.
//!
//! There is no fork and join per kernel, and no thread waits for another thread to wake up. Between scripts, threads
//! spin only if the machine has spare cores ([`Anticipation`]). A launch is
//! divided into pieces, one per work group. Any other step is a single piece. Every thread walks through all
//! steps. In each step, it takes chunks of pieces from a shared counter until no pieces are left. It then
//! waits until all pieces of the step are done, and continues with the next step. A thread that starts late
//! finds the counters exhausted and catches up within nanoseconds. A preempted thread delays the others only
//! until it has finished the chunk that it holds.
//!
//! This module knows nothing about queues, points or timelines.

use crate::driver::{Script, Step};
use crate::script::{name, pieces, run};
use crossbeam_channel::{Sender, unbounded};
use ragtag_hal::queues::Thread;
use ragtag_hal::{Anticipation, Error, Result};
use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Number of chunks per thread into which the pieces of a step are divided. With several chunks per thread,
/// faster threads can do more of the work.
const CHUNKS_PER_THREAD: u32 = 4;
/// Number of spin iterations of a waiting thread before it yields. They take a few microseconds.
const SPINS: u32 = 128;

/// Time for which a helper spins before it parks, on machines with spare cores. It also spins around the times at
/// which it expects the next script: if another device computes between two scripts, a part of the second script
/// would be over before all helpers are awake.
const LINGER: Duration = Duration::from_micros(40);

/// Progress of a step.
#[derive(Debug, Default)]
struct Progress {
    /// Number of pieces that threads have taken. It has 64 bits, because each thread may still add one chunk
    /// after all pieces have been taken.
    taken: AtomicU64,
    /// Number of pieces that are done.
    done: AtomicU64,
}

/// One execution of a script.
struct Run {
    script: Arc<Script>,
    progress: Box<[Progress]>,
    /// Number of threads that share the pieces.
    threads: u32,
    failure: OnceLock<Error>,
}

impl Run {
    fn new(script: Arc<Script>, threads: u32) -> Self {
        let progress = script.steps().iter().map(|_| Progress::default()).collect();
        Self { script, progress, threads, failure: OnceLock::new() }
    }

    /// Works on the run until all steps are done or a step has failed.
    fn work(&self) {
        for (step, progress) in self.script.steps().iter().zip(&self.progress) {
            if let Err(error) = self.share(step, progress) {
                // `set` keeps the first failure.
                let _ = self.failure.set(error);
            }
            if !self.all_done(step, progress) {
                return;
            }
        }
    }

    /// Takes and runs chunks of a step until all pieces are taken or a step has failed.
    fn share(&self, step: &Step, progress: &Progress) -> Result<()> {
        let pieces = u64::from(pieces(step));
        let chunk = match self.threads {
            1 => pieces,
            threads => pieces / u64::from(threads * CHUNKS_PER_THREAD),
        }
        .max(1);
        while self.failure.get().is_none() {
            let start = progress.taken.fetch_add(chunk, Ordering::Relaxed);
            if start >= pieces {
                return Ok(());
            }
            let end = pieces.min(start + chunk);
            run_caught(step, start as u32, end as u32)?;
            // Publishes this thread's writes to the threads that acquire the counter.
            progress.done.fetch_add(end - start, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Waits until all pieces of a step are done. Returns false if a step has failed.
    fn all_done(&self, step: &Step, progress: &Progress) -> bool {
        let pieces = u64::from(pieces(step));
        let mut turns = 0;
        while progress.done.load(Ordering::Acquire) < pieces {
            if self.failure.get().is_some() {
                return false;
            }
            if turns < SPINS {
                turns += 1;
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
        true
    }
}

/// Runs pieces of a step. A panic in a kernel becomes an error that names the kernel.
fn run_caught(step: &Step, start: u32, end: u32) -> Result<()> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(step, start..end)));
    outcome.map_err(|panic| Error::Api {
        call: format!("{} (panic: {})", name(step), panic_text(&*panic)),
        code: 0,
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Runs a script on the calling thread only.
///
/// # Errors
/// Returns the first failure of a step, such as a panic in a kernel.
pub(crate) fn run_alone(script: &Script) -> Result<()> {
    script.steps().iter().try_for_each(|step| run_caught(step, 0, pieces(step)))
}

/// Threads of a device. The caller of [`Team::run`] and the helpers share the work.
#[derive(Debug)]
pub(crate) struct Team {
    helpers: Vec<Helper>,
}

#[derive(Debug)]
struct Helper {
    /// Channel to the helper. It is `None` only while the team is being dropped.
    inbox: Option<Sender<Arc<Run>>>,
    thread: Thread,
}

impl Team {
    /// Starts `threads - 1` helpers.
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
    pub(crate) fn new(name: &str, threads: u32) -> Result<Self> {
        let helper = |number: u32| {
            let (inbox, runs) = unbounded::<Arc<Run>>();
            let work = move || {
                let mut wait = Anticipation::lingering_if_spare(LINGER);
                while let Some(run) = wait.receive(&runs) {
                    run.work();
                }
            };
            Ok(Helper { inbox: Some(inbox), thread: Thread::spawn(format!("{name} {number}"), work)? })
        };
        Ok(Self { helpers: (1..threads).map(helper).collect::<Result<_>>()? })
    }

    /// Runs a script on all threads and returns when it is done.
    ///
    /// # Errors
    /// Returns the first failure of a step, such as a panic in a kernel. Other threads may still be running
    /// chunks, and keep the script alive.
    pub(crate) fn run(&self, script: &Arc<Script>) -> Result<()> {
        if self.helpers.is_empty() || !script.steps().iter().any(|step| pieces(step) > 1) {
            return run_alone(script);
        }
        let run = Arc::new(Run::new(Arc::clone(script), self.helpers.len() as u32 + 1));
        for inbox in self.helpers.iter().filter_map(|helper| helper.inbox.as_ref()) {
            inbox.send(Arc::clone(&run)).expect("a helper receives until `drop` closes its inbox");
        }
        run.work();
        run.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for helper in &mut self.helpers {
            helper.inbox = None;
        }
        self.helpers.iter().for_each(|helper| helper.thread.end());
    }
}
