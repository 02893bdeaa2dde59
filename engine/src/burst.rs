//! Timed bursts of sequences, for benchmarks.

use crate::error::{Error, Result};
use crate::session::{Event, Generation, Prompt, Session, TokenStream};
use ragtag_scheduler::Sampling;
use ragtag_scheduler::compare::Burst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// Times at which the new tokens of a burst arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct BurstTimes {
    /// Time from the submission of the burst until the end of its last sequence, in seconds.
    pub seconds: f64,
    /// For each sequence, the arrival times of its new tokens, in seconds since the submission of the burst.
    pub tokens_s: Vec<Vec<f64>>,
}

impl BurstTimes {
    /// Returns the total tokens per second of all sequences, over the time in which all of them generate.
    /// This period starts when the last sequence to start receives its first token. It ends when the first
    /// sequence to finish receives its last token. Returns `None` if there is no such period.
    pub fn together_tokens_per_s(&self) -> Option<f64> {
        let from = self.tokens_s.iter().filter_map(|one| one.first()).copied().reduce(f64::max)?;
        let to = self.tokens_s.iter().filter_map(|one| one.last()).copied().reduce(f64::min)?;
        let inside = self.tokens_s.iter().flatten().filter(|&&at| at > from && at <= to).count();
        (to > from).then(|| inside as f64 / (to - from))
    }
}

/// A running sequence of a burst.
struct Sequence {
    stream: TokenStream,
    times: Vec<f64>,
    ended: bool,
    waker: Waker,
}

/// Sequences that have woken since they were polled last, and the waker of the task that polls them.
#[derive(Default)]
struct Woken(Mutex<(Vec<usize>, Option<Waker>)>);

impl Woken {
    fn lock(&self) -> MutexGuard<'_, (Vec<usize>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sequences to poll. Later ones wake the task of `context`.
    fn take(&self, context: &Context<'_>) -> Vec<usize> {
        let mut woken = self.lock();
        woken.1 = Some(context.waker().clone());
        std::mem::take(&mut woken.0)
    }
}

/// Waker of one sequence.
struct Alarm(usize, Arc<Woken>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let mut woken = self.1.lock();
        woken.0.push(self.0);
        let waker = woken.1.take();
        drop(woken);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Session {
    /// Submits all sequences of a burst at once and waits until all of them have ended. The prompts are
    /// synthetic. The sequences continue after the model's end token. Tokens are sampled with the default settings.
    ///
    /// # Errors
    /// Fails like [`Session::generate`] and its stream. Returns [`Error::Usage`] if a sequence ends before it
    /// has generated all tokens.
    pub async fn burst(&self, burst: &Burst) -> Result<BurstTimes> {
        self.burst_with(burst, Sampling::default()).await
    }

    /// Like [`Session::burst`], with other settings of the sampler.
    ///
    /// # Errors
    /// Fails like [`Session::burst`].
    pub async fn burst_with(&self, burst: &Burst, sampling: Sampling) -> Result<BurstTimes> {
        let (prompt, new_tokens, count) = match *burst {
            // The first generated token marks the end of prefill.
            Burst::Prompts { tokens, sequences } => (tokens, 1, sequences),
            Burst::Generations { prompt, tokens, sequences } => (prompt, tokens, sequences),
        };
        let (max_tokens, ignore_end) = (new_tokens, true);
        let generation =
            Generation { sampling, max_tokens, ignore_end, cache: false, ..Generation::default() };
        let vocabulary = self.vocabulary();
        let started = Instant::now();
        let (mut sequences, woken) = (Vec::new(), Arc::<Woken>::default());
        for sequence in 0..count {
            let token = |at: u32| at.wrapping_mul(31).wrapping_add(sequence.wrapping_mul(97)) % vocabulary;
            let ids: Vec<u32> = (0..prompt).map(token).collect();
            let stream = self.generate(Prompt::Tokens(&ids), &generation)?;
            let index = sequences.len();
            let waker = Waker::from(Arc::new(Alarm(index, Arc::clone(&woken))));
            woken.lock().0.push(index);
            sequences.push(Sequence { stream, times: Vec::new(), ended: false, waker });
        }
        let mut ended = 0;
        std::future::poll_fn(|context| {
            for index in woken.take(context) {
                ended += usize::from(sequences[index].take(started, new_tokens)?);
            }
            if ended == sequences.len() { Poll::Ready(Ok::<_, Error>(())) } else { Poll::Pending }
        })
        .await?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(BurstTimes { seconds, tokens_s: sequences.into_iter().map(|sequence| sequence.times).collect() })
    }
}

impl Sequence {
    /// Handles the events of the sequence that have arrived so far. Returns whether the sequence ends with them.
    fn take(&mut self, started: Instant, wanted: u32) -> Result<bool> {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(&waker);
        while !self.ended
            && let Poll::Ready(event) = self.stream.poll_event(&mut context)
        {
            match event? {
                Event::Token { id: Some(_), .. } => self.times.push(started.elapsed().as_secs_f64()),
                // This event contains text of earlier tokens.
                Event::Token { id: None, .. } => {}
                Event::Finished(summary) if summary.new_tokens == wanted => {
                    self.ended = true;
                    return Ok(true);
                }
                Event::Finished(summary) => {
                    return Err(Error::Usage(format!("a sequence ended early ({})", summary.reason)));
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sequences_that_woke_are_polled() {
        struct Task(Mutex<u32>);
        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                *self.0.lock().unwrap() += 1;
            }
        }
        let (task, woken) = (Arc::new(Task(Mutex::new(0))), Arc::<Woken>::default());
        let alarm = |index| Waker::from(Arc::new(Alarm(index, Arc::clone(&woken))));
        let waker = Waker::from(Arc::clone(&task));
        let context = Context::from_waker(&waker);
        assert!(woken.take(&context).is_empty());
        alarm(3).wake();
        alarm(1).wake();
        assert_eq!(*task.0.lock().unwrap(), 1, "the task is woken once");
        assert_eq!(woken.take(&context), [3, 1]);
        alarm(2).wake();
        assert_eq!((woken.take(&context), *task.0.lock().unwrap()), (vec![2], 2));
    }

    #[test]
    fn tokens_count_while_all_sequences_generate() {
        let times = |tokens_s: &[&[f64]]| BurstTimes {
            seconds: 9.0,
            tokens_s: tokens_s.iter().map(|one| one.to_vec()).collect(),
        };
        // Between 2 s and 4 s, the first sequence has tokens at 3 s and 4 s. The second has tokens at 2.5 s
        // and 3.5 s.
        let two = times(&[&[1.0, 2.0, 3.0, 4.0], &[2.0, 2.5, 3.5, 4.5]]);
        assert_eq!(two.together_tokens_per_s(), Some(2.0));
        assert_eq!(times(&[&[1.0, 2.0], &[3.0, 4.0]]).together_tokens_per_s(), None);
        assert_eq!(times(&[&[1.0]]).together_tokens_per_s(), None);
        assert_eq!(times(&[]).together_tokens_per_s(), None);
    }
}
