//! Progress bars on standard error, for work that takes a while. They are hidden when standard error is no terminal, and by
//! `--quiet`.

use super::output::is_quiet;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Prompts that take less time than this get no bar.
const QUICK: Duration = Duration::from_millis(500);

/// A bar for loading weights: told bytes done and bytes in all.
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

/// A bar that counts steps.
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

/// A bar for a prompt that is being processed. It appears once that takes a while, and goes when this is dropped.
pub(super) struct Prefill {
    tokens: u64,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Prefill {
    /// A bar for a prompt of so many tokens, of which none is processed.
    pub(super) fn of(tokens: usize) -> Self {
        Self { tokens: tokens as u64, begun: Instant::now(), bar: None }
    }

    /// Shows that so many tokens are processed.
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
