//! Progress bars on standard error. They are hidden if `--quiet` is set or if standard error is not a
//! terminal.

use super::output::is_quiet;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Time after which the progress bar for prompt processing appears.
const QUICK: Duration = Duration::from_millis(500);

/// Creates a bar for loading weights. Returns a closure that updates it from the number of loaded bytes and
/// the total number of bytes.
pub(super) fn loading() -> Box<dyn FnMut(u64, u64) + Send> {
    let bar = bar("loading {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}");
    Box::new(move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if done == total {
            bar.finish_and_clear();
        }
    })
}

/// Creates a bar that counts up to `total` steps of the work `what`.
pub(super) fn steps(what: &'static str, total: u64) -> ProgressBar {
    let bar = bar("{msg} {bar:40} {pos}/{len} {eta}").with_message(what);
    bar.set_length(total);
    bar
}

fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let target = if is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    ProgressBar::with_draw_target(None, target).with_style(style)
}

/// A progress bar for prompt processing. It appears once [`QUICK`] has elapsed and disappears when it is
/// dropped.
pub(super) struct Prefill {
    tokens: u64,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Prefill {
    /// Creates a bar for a prompt of `tokens` tokens.
    pub(super) fn of(tokens: usize) -> Self {
        Self { tokens: tokens as u64, begun: Instant::now(), bar: None }
    }

    /// Sets the number of prompt tokens that are processed.
    pub(super) fn set(&mut self, done: u64) {
        if self.begun.elapsed() >= QUICK {
            let bar = self.bar.get_or_insert_with(|| steps("prompt", self.tokens));
            bar.set_position(done);
        }
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
